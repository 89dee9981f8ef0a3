//! The eventfds that the node's thread watches, and the wakers of those that sleep on them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use rgaps_os::EventFd;

/// Wakes a task. If its executor panics, this thread goes on and wakes the others.
pub(crate) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("the waker of a task panicked; the task may sleep on, its node goes on");
    }
}

/// For each eventfd, the waker to wake when the eventfd is readable: the last one that was set.
#[derive(Debug, Default)]
pub(crate) struct Sleepers(Mutex<Vec<(Arc<EventFd>, Waker)>>);

impl Sleepers {
    /// Sets or removes the waker of an eventfd. Returns whether that changed anything; setting a waker always does.
    pub(crate) fn set(&self, event: &Arc<EventFd>, waker: Option<Waker>) -> bool {
        let mut sleepers = self.lock();
        let before = sleepers.len();
        sleepers.retain(|(known, _)| !Arc::ptr_eq(known, event));
        let is_changed = waker.is_some() || sleepers.len() < before;
        sleepers.extend(waker.map(|waker| (event.clone(), waker)));
        is_changed
    }

    pub(crate) fn all(&self) -> Vec<(Arc<EventFd>, Waker)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<EventFd>, Waker)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
