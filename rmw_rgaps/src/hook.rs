//! A callback of the user's, and its calls.

use std::ffi::c_void;
use std::sync::Mutex;

use crate::context::lock;
use crate::support::Raw;
use crate::sys::rmw_event_callback_t;

/// A callback of rmw's with its argument.
#[derive(Clone, Copy)]
struct Callback {
    function: unsafe extern "C" fn(*const c_void, usize),
    user_data: Raw,
}

/// The place for one. It is set and called inside of its entity's `Gate`, so that none is called after it was taken away.
#[derive(Default)]
pub(crate) struct Hook(Mutex<State>);

#[derive(Default)]
struct State {
    callback: Option<Callback>,
    is_called: bool,
}

impl Hook {
    /// Sets it; takes it away if the function is null. False if this is done by the callback itself, which was told of everything already.
    pub(crate) fn set(&self, function: rmw_event_callback_t, user_data: *const c_void) -> bool {
        let user_data = Raw(user_data.cast_mut());
        let mut state = lock(&self.0);
        state.callback = function.map(|function| Callback { function, user_data });
        !state.is_called
    }

    /// Calls it, if there is one and something to tell it. No lock is held meanwhile.
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
