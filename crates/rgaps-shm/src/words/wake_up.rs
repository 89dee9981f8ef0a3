//! The words of a wake-up, without the system call: a sleeper announces its sleep, and a waker reads whether it must make the call.
//!
//! Invariant   N1 if a sleeper, looking after `announce_sleep`, misses a message that was published before `must_wake`, then `must_wake` sees the
//!             sleeper.
//! Shown by    loom_wake_up.
//!
//! The two fences order everything here (Dekker's argument, as in message.rs), so the loads and additions of the count may be relaxed.

use crate::words::sync::{AtomicU32, Ordering, fence};

/// Announces a sleeper by `say`, and returns the value to sleep on. The sleeper must look once more before it sleeps.
pub(crate) fn announce_sleep(count: &AtomicU32, say: impl FnOnce()) -> u32 {
    let seen = count.load(Ordering::Relaxed);
    say();
    fence(Ordering::SeqCst);
    seen
}

/// After a publication: whether a thread sleeps or is about to. If true, the count has been increased, and the caller wakes the sleepers.
pub(crate) fn must_wake(count: &AtomicU32, sleeps: impl FnOnce() -> bool) -> bool {
    let must_wake = has_sleepers(sleeps);
    if must_wake {
        count.fetch_add(1, Ordering::Relaxed);
    }
    must_wake
}

/// Like `must_wake`, for a caller that may not write the count. It can miss a thread that is about to sleep, so sleepers must also wake by
/// time-out.
pub(crate) fn has_sleepers(sleeps: impl FnOnce() -> bool) -> bool {
    fence(Ordering::SeqCst);
    sleeps()
}
