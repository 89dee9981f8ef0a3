//! The words of a wake-up, apart from the system call: who announces that he will sleep, and whether anybody need be woken.
//!
//! Invariant   B1 if a sleeper's look, after `announce`, missed what was published before `is_heard`, then `is_heard` saw the sleeper.
//! Shown by    loom_bell.
//!
//! The two fences order everything here: a count that was loaded before a fence, or added to after one, needs no order of its own.

use crate::sync::{AtomicU32, Ordering, fence};

/// A sleeper announces itself by `say`; the value to sleep on. It must look once more before it sleeps.
pub(crate) fn announce(count: &AtomicU32, say: impl FnOnce()) -> u32 {
    let seen = count.load(Ordering::Relaxed);
    say();
    fence(Ordering::SeqCst);
    seen
}

/// After a publication: whether somebody sleeps, or is about to. If so the count has moved on, and the caller wakes them.
pub(crate) fn is_heard(count: &AtomicU32, sleeps: impl FnOnce() -> bool) -> bool {
    let heard = is_awaited(sleeps);
    if heard {
        count.fetch_add(1, Ordering::Relaxed);
    }
    heard
}

/// As `is_heard`, by who may not write the count: one that is about to sleep may be missed, and must look by itself now and then.
pub(crate) fn is_awaited(sleeps: impl FnOnce() -> bool) -> bool {
    fence(Ordering::SeqCst);
    sleeps()
}
