//! Guard conditions of the inner RMW.

use std::ffi::c_void;

use crate::inner::calls;
use crate::support::Raw;
use crate::sys::{rmw_context_t, rmw_guard_condition_t};

/// A guard condition of the inner RMW.
#[derive(Clone, Copy)]
pub(crate) struct Guard(Raw<rmw_guard_condition_t>);

impl Guard {
    /// A new one of an rmw context; None, with the inner RMW's error set, if none can be made.
    // SAFETY: a context that is initialised.
    pub(crate) unsafe fn new(context: *mut rmw_context_t) -> Option<Self> {
        // SAFETY: as the caller says.
        let guard = unsafe { calls::rmw_create_guard_condition(context) };
        (!guard.is_null()).then_some(Self(Raw(guard)))
    }

    /// Its entry in a wait set.
    pub(crate) fn data(self) -> *mut c_void {
        // SAFETY: it lives as long as its context's GPU entities.
        unsafe { (*self.0.0).data }
    }

    /// Wakes the wait that includes it.
    pub(crate) fn trigger(self) {
        // SAFETY: it lives as long as its context's GPU entities; triggering is for every thread.
        let _ = unsafe { calls::rmw_trigger_guard_condition(self.0.0) };
    }

    /// Call it after the notifier's thread has ended, so that no trigger follows.
    pub(crate) fn destroy(self) {
        // SAFETY: made by `Waiters::get`, and destroyed once, by the owner of its waiter.
        let _ = unsafe { calls::rmw_destroy_guard_condition(self.0.0) };
    }

    pub(crate) fn is(self, other: Self) -> bool {
        self.0.0 == other.0.0
    }
}
