//! The words of a wake-up, apart from the system call: who announces that he will sleep, and whether anybody need be woken.
//!
//! Invariant   B1 if a sleeper's look, after `announce`, missed what was published before `is_heard`, then `is_heard` saw the sleeper.
//! Shown by    loom_bell.
//!
//! The two fences order everything here: a count that was loaded before a fence, or added to after one, needs no order of its own.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A sleeper announces itself; the value to sleep on. It must look once more before it sleeps.
pub(crate) fn announce(count: &AtomicU32, sleepers: &[AtomicU64], slot: u16) -> u32 {
    let seen = count.load(Ordering::Relaxed);
    if let Some(word) = sleepers.get(usize::from(slot / 64)) {
        word.fetch_or(1 << (slot % 64), Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    seen
}

/// After a publication: whether somebody sleeps, or is about to. If so the count has moved on, and the caller wakes them.
pub(crate) fn is_heard(count: &AtomicU32, sleepers: &[AtomicU64]) -> bool {
    fence(Ordering::SeqCst);
    let heard = sleepers.iter().any(|word| word.load(Ordering::Relaxed) != 0);
    if heard {
        count.fetch_add(1, Ordering::Relaxed);
    }
    heard
}
