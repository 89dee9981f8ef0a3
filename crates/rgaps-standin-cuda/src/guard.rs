//! The wrapper of every exported function: it counts the call, injects faults, and catches panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{Code, NOT_PERMITTED, SUCCESS, Status, UNKNOWN};
use crate::{capture, faults, host_call};

/// Runs the body of the exported function `name`.
pub(crate) fn guard(name: &str, body: impl FnOnce() -> Status) -> Code {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        faults::count(name)?;
        // The driver forbids driver calls in host functions.
        if host_call::is_running() {
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
