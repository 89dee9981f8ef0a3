//! The words of a wake-up, without the system call: a sleeper announces its sleep, and a waker reads whether it must make the call.
//!
//! Invariant   N1 if a sleeper, looking after `announce_sleep`, misses a message that was published before `must_wake`, then `must_wake` sees the
//!             sleeper, or an earlier wake-up of the same waker keeps it from sleeping.
//! Shown by    loom_wake_up.
//!
//! The two fences order everything here (Dekker's argument, as in message.rs), so the loads and additions of the count may be relaxed.

use crate::words::sync::{AtomicU32, Ordering, fence};

/// A waker's last wake-up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastWakeUp(Option<WakeUp>);

#[derive(Clone, Copy, Debug)]
struct WakeUp {
    /// The count that it made.
    count: u32,
    /// Messages that had been published.
    published: u64,
}

/// After so many publications, each of which may have increased the count, two counts cannot be compared any more.
const COMPARABLE: u64 = 1 << 30;

impl LastWakeUp {
    /// Whether a sleeper with this announcement, 0 for none, needs another wake-up. If it announced itself before the last one, it is awake, or will
    /// not fall asleep, since the count is no longer what it saw. It does not say so before it runs, which may take long.
    pub(crate) fn must_be_repeated_for(&self, announced: u32) -> bool {
        let is_before = |last: WakeUp| (last.count.wrapping_sub(announced) as i32) > 0;
        announced != 0 && !self.0.is_some_and(is_before)
    }
}

/// Announces a sleeper by `say`, and returns the value to sleep on. The sleeper must look once more before it sleeps. What it announces is not 0, which
/// stands for nobody: instead of 0 it is 1, which costs at most a wake-up too many.
pub(crate) fn announce_sleep(count: &AtomicU32, say: impl FnOnce(u32)) -> u32 {
    let seen = count.load(Ordering::Relaxed);
    say(seen.max(1));
    fence(Ordering::SeqCst);
    seen
}

/// After a publication: whether a thread sleeps, or is about to, that `last` has not woken. If true, the count has been increased, and the caller wakes
/// the sleepers. `published`: how many messages all publishers have published.
pub(crate) fn must_wake(
    count: &AtomicU32,
    last: &mut LastWakeUp,
    published: u64,
    sleeps: impl FnOnce(&LastWakeUp) -> bool,
) -> bool {
    last.0 = last.0.filter(|last| published.wrapping_sub(last.published) < COMPARABLE);
    let must_wake = has_sleepers(|| sleeps(last));
    if must_wake {
        let count = count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        last.0 = Some(WakeUp { count, published });
    }
    must_wake
}

/// Like `must_wake`, for a caller that may not write the count. It can miss a thread that is about to sleep, so sleepers must also wake by
/// time-out.
pub(crate) fn has_sleepers(sleeps: impl FnOnce() -> bool) -> bool {
    fence(Ordering::SeqCst);
    sleeps()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_compared_across_their_wrap_and_not_after_too_many_publications() {
        let count = AtomicU32::new(u32::MAX - 1);
        let mut last = LastWakeUp::default();
        let mut wakes = |announced: u32, published: u64| {
            must_wake(&count, &mut last, published, |last| last.must_be_repeated_for(announced))
        };
        assert!(wakes(u32::MAX - 1, 1), "the first one");
        assert!(!wakes(u32::MAX - 1, 2) && !wakes(0, 2), "awake");
        assert!(wakes(u32::MAX, 3), "it sleeps again");
        // The count is 0 now, which is announced as 1.
        assert!(!wakes(u32::MAX, 4) && wakes(1, 5));
        assert!(!wakes(u32::MAX, 4 + COMPARABLE) && wakes(u32::MAX, 5 + COMPARABLE));
    }
}
