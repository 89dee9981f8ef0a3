//! Counts the messages that a reader could take, in the order of the takes, without taking any.

use crate::words::message::Readiness;

/// Most messages that a reader sets aside because their bytes, or those of an earlier message of their publisher, are not there yet. Up to so many
/// messages behind a stalled device delay no other publisher.
pub(crate) const SET_ASIDE_MAX: usize = 64;

/// The messages that wait for a reader.
#[derive(Clone, Copy, Debug)]
pub struct ReadyCount {
    /// Messages whose turn it is and whose bytes are there, up to the requested limit.
    pub ready: usize,
    /// Whether a device has still to write the bytes of some. No wake-up follows when it has.
    pub awaits_bytes: bool,
    limit: usize,
    passed: usize,
    awaited: [u64; SET_ASIDE_MAX],
    awaited_count: usize,
}

impl ReadyCount {
    pub(crate) fn new(limit: usize) -> Self {
        Self { ready: 0, awaits_bytes: false, limit, passed: 0, awaited: [0; SET_ASIDE_MAX], awaited_count: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.ready >= self.limit || self.passed == SET_ASIDE_MAX
    }

    /// Counts the next message, in the order of the takes.
    pub(crate) fn note(&mut self, publisher: u64, readiness: Readiness) {
        if self.is_full() {
            return;
        }
        let is_behind = self.awaited[..self.awaited_count].contains(&publisher);
        match readiness {
            Readiness::Poisoned => {}
            Readiness::Ready if !is_behind => self.ready += 1,
            Readiness::Ready => self.passed += 1,
            Readiness::Pending => {
                self.passed += 1;
                self.awaits_bytes = true;
                if !is_behind {
                    self.awaited[self.awaited_count] = publisher;
                    self.awaited_count += 1;
                }
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_message_behind_a_pending_one_of_its_publisher_is_not_ready() {
        let mut count = ReadyCount::new(10);
        for (publisher, readiness) in [
            (1, Readiness::Ready),
            (2, Readiness::Pending),
            (2, Readiness::Ready),
            (3, Readiness::Poisoned),
            (3, Readiness::Ready),
        ] {
            count.note(publisher, readiness);
        }
        assert_eq!((count.ready, count.awaits_bytes), (2, true));
    }

    #[test]
    fn messages_beyond_the_limit_of_those_set_aside_are_not_ready() {
        let mut count = ReadyCount::new(10);
        for _ in 0..SET_ASIDE_MAX - 1 {
            count.note(1, Readiness::Pending);
        }
        count.note(2, Readiness::Ready);
        assert_eq!((count.ready, count.is_full()), (1, false));
        count.note(1, Readiness::Ready);
        count.note(2, Readiness::Ready);
        assert_eq!((count.ready, count.is_full()), (1, true), "a reader looks no further");
    }

    #[test]
    fn the_count_stops_at_its_limit() {
        let mut count = ReadyCount::new(2);
        for publisher in 0..5 {
            count.note(publisher, Readiness::Ready);
        }
        assert_eq!((count.ready, count.is_full()), (2, true));
    }
}
