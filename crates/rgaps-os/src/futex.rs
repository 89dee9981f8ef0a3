//! Waits on a 32-bit word in shared memory. One wake-up reaches every waiter in every process that maps the word.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

use crate::poll::timespec;

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Another thread or a signal woke this one: look again.
    Maybe,
    /// The word no longer held the expected value: look again.
    Changed,
    /// The time-out passed.
    TimedOut,
}

/// Sleeps while `*word == expected`, at most `timeout`. Wake-ups may be spurious; the caller looks again.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> Woken {
    match futex::wait(word, Flags::empty(), expected, Some(&timespec(timeout))) {
        Err(Errno::AGAIN) => Woken::Changed,
        Err(Errno::TIMEDOUT) => Woken::TimedOut,
        _ => Woken::Maybe,
    }
}

/// Wakes every waiter of the word, and returns how many there were.
pub fn wake_all(word: &AtomicU32) -> usize {
    // The count is an i32 in the kernel: u32::MAX would be -1 and wake one only.
    futex::wake(word, Flags::empty(), i32::MAX as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_changed_word_does_not_sleep_and_a_waiter_is_woken() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, 0, Duration::from_secs(60)), Woken::Changed);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                while word.load(Ordering::Acquire) == 1 {
                    wait(&word, 1, Duration::from_secs(60));
                }
            });
            word.store(2, Ordering::Release);
            while !waiter.is_finished() {
                wake_all(&word);
                std::thread::yield_now();
            }
        });
    }
}
