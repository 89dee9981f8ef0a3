//! Which messages of one host and topic have arrived, by publisher: which need not be resent, and which were lost in between.
//!
//! It outlives connections and ports, and, since the segment holds part of it, the manager. No I/O.
//!
//! Trusts      nothing for longer than a connection: an impostor of that host may number messages arbitrarily. With its next ring request the host
//!             states the newest sequence of each publisher, and `correct` forgets later ones. A step of more than `SEQUENCE_STEP_MAX` does not
//!             count as a loss (docs/decisions/019-one-lie.md).
//! Bounds      `PUBLISHERS_MAX` publishers per host; the longest silent one is forgotten first.

use std::collections::HashMap;

use rgaps_link::Origin;
use rgaps_shm::info::SEQUENCE_STEP_MAX;
use rgaps_shm::last_received::LastReceived;
use rgaps_shm::queue::Position;

/// Publishers of one host that are remembered.
const PUBLISHERS_MAX: usize = 1024;

/// What has arrived from one publisher.
#[derive(Clone, Copy, Debug)]
struct Known {
    last: LastReceived,
    /// The last sequence in the present port, whose history late joiners get.
    here: u64,
}

/// What an arriving message is for the subscribers of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// New. `lost` messages between it and the one at `since` have not arrived.
    New { lost: u64, since: Position },
    /// So far from the last one that its publisher cannot have sent the messages in between: counting restarts, and none counts as lost.
    Step { from: u64 },
    /// All subscribers that had joined by that position have it. It is published only as history for later ones.
    Seen(Position),
    /// All subscribers have it.
    Duplicate,
}

/// The messages that have arrived, by publisher.
#[derive(Debug, Default)]
pub(crate) struct Received {
    known: HashMap<u64, Known>,
    /// Where the queue here ended at the last hand-shake of a host of which nothing was known.
    start: Position,
    has_begun: bool,
}

impl Received {
    /// The state for a host without a port: the state before, merged with what the segment says.
    pub(crate) fn recall(before: Option<Self>, told: HashMap<u64, LastReceived>) -> Self {
        let mut received = before.unwrap_or_default();
        received.known.values_mut().for_each(|known| known.here = 0);
        for (publisher, last) in told {
            if received.known.get(&publisher).is_none_or(|known| known.last.sequence < last.sequence) {
                received.insert(publisher, Known { last, here: 0 });
            }
        }
        received
    }

    /// Forgets sequences that the host's publishers cannot have sent, since they are beyond `published`, and takes from the segment (`told`) what is
    /// within that. Returns the number of publishers of which something was forgotten.
    pub(crate) fn correct(
        &mut self,
        published: &HashMap<u64, u64>,
        told: impl FnOnce() -> HashMap<u64, LastReceived>,
    ) -> usize {
        let before = self.known.len();
        self.known.retain(|publisher, known| published.get(publisher).is_none_or(|last| known.last.sequence <= *last));
        let forgotten = before - self.known.len();
        if forgotten > 0 {
            for (publisher, last) in told() {
                if !self.known.contains_key(&publisher) {
                    self.insert(publisher, Known { last, here: 0 });
                }
            }
        }
        forgotten
    }

    /// Begins a connection. `end`: where the queue here ends. False for a host of which nothing is known: it owes only what it publishes from now
    /// on.
    pub(crate) fn hand_shake(&mut self, end: Position) -> bool {
        let remembers = !self.known.is_empty() || std::mem::replace(&mut self.has_begun, true);
        if !remembers {
            self.start = end;
        }
        remembers
    }

    /// Notes a publisher of which nothing has arrived, before its first message is judged. `previous`: the sender owes none of its messages up to
    /// that sequence.
    pub(crate) fn meet(&mut self, origin: Origin, previous: u64) {
        if !self.known.contains_key(&origin.publisher) {
            let position = self.last().unwrap_or(self.start);
            let last = LastReceived { sequence: previous.min(origin.sequence.saturating_sub(1)), position };
            self.insert(origin.publisher, Known { last, here: 0 });
        }
    }

    /// Notes, before a message over a lossless link is judged, up to which message of its publisher the sender owes none: those in between had arrived
    /// or were counted as lost before the manager here died, and it had acknowledged them.
    pub(crate) fn note_acknowledged(&mut self, origin: Origin, previous: u64) {
        if let Some(known) = self.known.get_mut(&origin.publisher)
            && previous < origin.sequence
            && previous.checked_sub(known.last.sequence).is_some_and(|by| by <= SEQUENCE_STEP_MAX)
        {
            known.last.sequence = previous;
        }
    }

    /// Notes that a message is lost, and need not be resent: it was dropped here, or the sender has skipped it.
    pub(crate) fn give_up(&mut self, origin: Origin) {
        if let Some(known) = self.known.get_mut(&origin.publisher) {
            known.last.sequence = known.last.sequence.max(origin.sequence);
        }
    }

    /// The last sequence of each publisher, which need not be resent.
    pub(crate) fn resume(&self) -> Vec<(u64, u64)> {
        self.known.iter().map(|(publisher, known)| (*publisher, known.last.sequence)).collect()
    }

    /// Whether the present port keeps history of each publisher.
    pub(crate) fn keeps_history(&self) -> bool {
        self.known.values().all(|known| known.here > 0)
    }

    /// Judges a message of which the first record arrives.
    pub(crate) fn judge(&self, origin: Origin) -> Verdict {
        let Some(known) = self.known.get(&origin.publisher) else {
            return Verdict::New { lost: 0, since: Position(0) };
        };
        let LastReceived { sequence, position } = known.last;
        if origin.sequence <= known.here {
            Verdict::Duplicate
        } else if origin.sequence <= sequence {
            Verdict::Seen(position)
        } else if origin.sequence - sequence > SEQUENCE_STEP_MAX {
            Verdict::Step { from: sequence }
        } else {
            Verdict::New { lost: origin.sequence - sequence - 1, since: position }
        }
    }

    /// Notes that a message was published here.
    pub(crate) fn note(&mut self, origin: Origin, position: Position) {
        let last = match self.known.get(&origin.publisher) {
            Some(known) if known.last.sequence >= origin.sequence => known.last,
            _ => LastReceived { sequence: origin.sequence, position },
        };
        self.insert(origin.publisher, Known { last, here: origin.sequence });
    }

    /// The position of the newest message.
    pub(crate) fn last(&self) -> Option<Position> {
        self.known.values().map(|known| known.last.position).max()
    }

    fn insert(&mut self, publisher: u64, known: Known) {
        if self.known.len() >= PUBLISHERS_MAX && !self.known.contains_key(&publisher) {
            let silent = self.known.iter().min_by_key(|(_, known)| known.last.position).map(|(silent, _)| *silent);
            silent.map(|silent| self.known.remove(&silent));
        }
        self.known.insert(publisher, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(sequence: u64) -> Origin {
        Origin { publisher: 1, sequence }
    }

    #[test]
    fn missing_messages_are_counted_once_and_repeated_ones_are_recognised() {
        let mut received = Received::default();
        assert_eq!(received.judge(origin(7)), Verdict::New { lost: 0, since: Position(0) }, "it was there before us");
        received.note(origin(7), Position(3));
        assert_eq!(received.judge(origin(7)), Verdict::Duplicate);
        assert_eq!(received.judge(origin(10)), Verdict::New { lost: 2, since: Position(3) });
        received.note(origin(10), Position(4));
        assert_eq!(received.judge(origin(11)), Verdict::New { lost: 0, since: Position(4) });
        assert_eq!(received.resume(), [(1, 10)]);
    }

    #[test]
    fn messages_of_a_former_port_count_as_seen_and_newer_state_of_the_segment_wins() {
        let mut received = Received::default();
        received.note(origin(7), Position(3));
        let told = HashMap::from([(1, LastReceived { sequence: 9, position: Position(8) })]);
        let mut recalled = Received::recall(Some(received), told);
        assert_eq!(recalled.judge(origin(7)), Verdict::Seen(Position(8)));
        recalled.note(origin(7), Position(9));
        assert_eq!(recalled.judge(origin(7)), Verdict::Duplicate);
        assert_eq!(recalled.judge(origin(9)), Verdict::Seen(Position(8)));
        assert_eq!(recalled.judge(origin(10)), Verdict::New { lost: 0, since: Position(8) });
    }

    #[test]
    fn an_impossible_step_is_no_loss_and_is_forgotten_at_the_next_ring_request() {
        let mut received = Received::default();
        received.note(origin(7), Position(3));
        let furthest = 7 + SEQUENCE_STEP_MAX;
        assert_eq!(received.judge(origin(furthest)), Verdict::New { lost: SEQUENCE_STEP_MAX - 1, since: Position(3) });
        assert_eq!(received.judge(origin(furthest + 1)), Verdict::Step { from: 7 });
        assert_eq!(received.judge(origin(u64::MAX)), Verdict::Step { from: 7 });
        received.note(origin(u64::MAX), Position(4));
        let told = || HashMap::from([(1, LastReceived { sequence: 7, position: Position(3) })]);
        assert_eq!(received.correct(&HashMap::from([(2, 0)]), || unreachable!()), 0, "of others");
        assert_eq!(received.correct(&HashMap::from([(1, 9)]), told), 1);
        assert_eq!(received.judge(origin(9)), Verdict::New { lost: 1, since: Position(3) });
        assert_eq!(received.correct(&HashMap::from([(1, 9)]), || unreachable!()), 0);
    }

    #[test]
    fn missing_first_messages_of_a_new_publisher_are_counted_since_the_last_arrival() {
        let mut received = Received::default();
        received.hand_shake(Position(2));
        received.meet(origin(21), 0);
        assert_eq!(received.judge(origin(21)), Verdict::New { lost: 20, since: Position(2) });
        let other = |sequence| Origin { publisher: 2, sequence };
        received.note(origin(21), Position(5));
        received.meet(other(9), 6);
        assert_eq!(received.judge(other(9)), Verdict::New { lost: 2, since: Position(5) });
        received.meet(other(9), 0);
        assert_eq!(received.judge(other(9)), Verdict::New { lost: 2, since: Position(5) }, "it is known by now");
        let liar = Origin { publisher: 3, sequence: 4 };
        received.meet(liar, u64::MAX);
        assert_eq!(received.judge(liar), Verdict::New { lost: 0, since: Position(5) });
    }

    #[test]
    fn what_a_dead_manager_had_acknowledged_counts_no_more() {
        let mut successor =
            Received::recall(None, HashMap::from([(1, LastReceived { sequence: 5, position: Position(3) })]));
        successor.note_acknowledged(origin(13), 10);
        assert_eq!(successor.judge(origin(13)), Verdict::New { lost: 2, since: Position(3) });
        successor.note_acknowledged(origin(13), 7);
        successor.note_acknowledged(origin(13), 13);
        successor.note_acknowledged(origin(u64::MAX), u64::MAX - 1);
        assert_eq!(successor.judge(origin(13)), Verdict::New { lost: 2, since: Position(3) }, "of an impostor");
    }

    #[test]
    fn a_dropped_message_counts_once_and_is_not_resent() {
        let mut received = Received::default();
        received.note(origin(7), Position(3));
        received.give_up(origin(8));
        assert_eq!(received.resume(), [(1, 8)]);
        assert_eq!(received.judge(origin(8)), Verdict::Seen(Position(3)));
        assert_eq!(received.judge(origin(9)), Verdict::New { lost: 0, since: Position(3) });
    }

    #[test]
    fn the_publisher_that_was_silent_longest_is_forgotten_first() {
        let mut received = Received::default();
        for publisher in 0..=PUBLISHERS_MAX as u64 {
            received.note(Origin { publisher, sequence: 1 }, Position(publisher));
        }
        assert_eq!(received.resume().len(), PUBLISHERS_MAX);
        assert!(!received.resume().iter().any(|(publisher, _)| *publisher == 0));
    }
}
