//! Locks of the stand-in's tables.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, and ignores poisoning: a panic leaves the tables consistent.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
