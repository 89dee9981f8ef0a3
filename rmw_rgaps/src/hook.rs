//! A user's callback.

use std::ffi::c_void;
use std::sync::Mutex;

use crate::lock::lock;
use crate::support::Raw;
use crate::sys::rmw_event_callback_t;

/// An rmw callback with its argument.
#[derive(Clone, Copy)]
struct Callback {
    function: unsafe extern "C" fn(*const c_void, usize),
    user_data: Raw,
}

/// Holds a callback. It is set and called inside its entity's `Gate`, so that none is called after it was removed.
#[derive(Default)]
pub(crate) struct Hook(Mutex<State>);

#[derive(Default)]
struct State {
    callback: Option<Callback>,
    is_called: bool,
}

impl Hook {
    /// Sets it, or removes it if the function is null. False if the callback itself does this: it has been told of all messages already.
    pub(crate) fn set(&self, function: rmw_event_callback_t, user_data: *const c_void) -> bool {
        let user_data = Raw(user_data.cast_mut());
        let mut state = lock(&self.0);
        state.callback = function.map(|function| Callback { function, user_data });
        !state.is_called
    }

    /// Calls it if it is set and the count is not 0. No lock is held meanwhile.
    pub(crate) fn call(&self, count: impl FnOnce() -> usize) {
        let Some(callback) = lock(&self.0).callback else { return };
        let count = count();
        if count == 0 {
            return;
        }
        lock(&self.0).is_called = true;
        // SAFETY: the user's function with the user's argument, as it asked.
        unsafe { (callback.function)(callback.user_data.0, count) };
        lock(&self.0).is_called = false;
    }
}
