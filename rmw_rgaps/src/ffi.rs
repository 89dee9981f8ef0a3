//! Guards every function that C calls: no panic leaves this library, and errors are set in the error state of rcutils.

use std::any::Any;
use std::fmt::Arguments;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::rcutils;
use crate::sys::{RMW_RET_ERROR, RMW_RET_UNSUPPORTED, rmw_ret_t};

/// The result of a function that failed.
pub(crate) trait Failure {
    /// The result for an error.
    fn failed() -> Self;

    /// The result for a function that the inner RMW lacks.
    fn unsupported() -> Self;
}

impl Failure for rmw_ret_t {
    fn failed() -> Self {
        RMW_RET_ERROR
    }

    fn unsupported() -> Self {
        RMW_RET_UNSUPPORTED
    }
}

impl Failure for bool {
    fn failed() -> Self {
        false
    }

    fn unsupported() -> Self {
        false
    }
}

impl<T> Failure for *mut T {
    fn failed() -> Self {
        std::ptr::null_mut()
    }

    fn unsupported() -> Self {
        std::ptr::null_mut()
    }
}

impl<T> Failure for *const T {
    fn failed() -> Self {
        std::ptr::null()
    }

    fn unsupported() -> Self {
        std::ptr::null()
    }
}

/// Runs the body of an exported function. A panic makes the call fail.
pub(crate) fn guard<R: Failure>(name: &str, body: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => {
            rcutils::set_error(format_args!("{name}: a bug of rmw_rgaps: {}", text_of(panic.as_ref())));
            R::failed()
        }
    }
}

/// Like `guard`, for callbacks on other threads, which return nothing.
pub(crate) fn guard_callback(name: &str, body: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
        rcutils::log(rcutils::Severity::Error, format_args!("{name}: a bug of rmw_rgaps: {}", text_of(panic.as_ref())));
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

/// Fails a call with a text.
pub(crate) fn fail<R: Failure>(said: Arguments<'_>) -> R {
    rcutils::set_error(said);
    R::failed()
}

/// Refuses a call with a text and a code.
pub(crate) fn refuse(code: rmw_ret_t, said: Arguments<'_>) -> rmw_ret_t {
    rcutils::set_error(said);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_fails_the_call_and_does_not_propagate() {
        assert_eq!(guard("f", || -> rmw_ret_t { panic!("told {}", 1) }), RMW_RET_ERROR);
        assert!(guard("f", || -> *mut u8 { panic!("plain") }).is_null());
        assert!(!guard("f", || -> bool { std::panic::panic_any(3) }));
        assert_eq!(guard("f", || 0), 0);
        guard_callback("f", || panic!("on a thread of others"));
    }
}
