//! What each exported function passes first: it is counted, it may be made to fail, and a panic ends at its edge.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{Code, NOT_PERMITTED, SUCCESS, Status, UNKNOWN};
use crate::{capture, faults, operation};

/// Runs the body of the exported function `name`.
pub(crate) fn guard(name: &str, body: impl FnOnce() -> Status) -> Code {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        faults::count(name)?;
        // The driver forbids its calls in functions that it calls itself.
        if operation::in_host_function() {
            return Err(NOT_PERMITTED);
        }
        capture::check_call(name)?;
        body()
    }));
    match outcome {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Locks; a panic of another thread while it held the lock changes nothing here.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
