//! Host functions in a stream.

use std::cell::Cell;
use std::ffi::c_void;

/// A host function with its argument.
#[derive(Debug)]
pub(crate) struct HostCall {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub argument: *mut c_void,
}

// SAFETY: cuLaunchHostFunc passes both to be used in another thread.
unsafe impl Send for HostCall {}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

impl HostCall {
    /// Calls it in this thread.
    pub(crate) fn run(&self) {
        IN_HOST_FUNCTION.set(true);
        // SAFETY: the program passed a function that takes this argument in any thread.
        unsafe { (self.function)(self.argument) };
        IN_HOST_FUNCTION.set(false);
    }
}

/// Whether this thread runs a host function for a stream.
pub(crate) fn is_running() -> bool {
    IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false)
}
