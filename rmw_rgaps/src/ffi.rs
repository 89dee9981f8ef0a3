//! The guard around everything that C calls: no panic leaves this library, and what went wrong is in the error state of rcutils.

use std::any::Any;
use std::fmt::Arguments;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::rcutils;
use crate::sys::{RMW_RET_ERROR, RMW_RET_UNSUPPORTED, rmw_ret_t};

/// What a function returns that could not do its work.
pub(crate) trait Failure {
    /// For an error.
    fn failed() -> Self;

    /// For what the inner RMW lacks.
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

/// Runs an exported function's body. A panic is an error of the call.
pub(crate) fn guard<R: Failure>(name: &str, body: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => {
            rcutils::set_error(format_args!("{name}: a bug of rmw_rgaps: {}", text_of(panic.as_ref())));
            R::failed()
        }
    }
}

/// As `guard`, for what others' threads call: nobody takes a result.
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
    fn a_panic_is_a_failure_of_the_call_and_goes_no_further() {
        assert_eq!(guard("f", || -> rmw_ret_t { panic!("told {}", 1) }), RMW_RET_ERROR);
        assert!(guard("f", || -> *mut u8 { panic!("plain") }).is_null());
        assert!(!guard("f", || -> bool { std::panic::panic_any(3) }));
        assert_eq!(guard("f", || 0), 0);
        guard_callback("f", || panic!("on a thread of others"));
    }
}
