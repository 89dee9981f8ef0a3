//! The identity of an endpoint, and the topic that it stands for.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The identity of an endpoint in its middleware (rmw_gid_t).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Gid {
    /// The topic that carries the payloads of this subscription.
    pub(super) fn topic(&self) -> String {
        format!("/_rgaps/buffers_of_{self}")
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
