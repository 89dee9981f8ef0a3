//! What a sender has not sent, so that the other host can count it: a keep-last sender skips messages that are too old.
//!
//! Each message says which message of its publisher was sent before it. The other host sees by that how many of a new publisher's first messages are
//! missing; of a publisher that it knows, it sees the gap itself. No message follows the last one of a publisher that has left. So the sender counts
//! what it has not sent of such publishers, and each message has that count (`missed`). If there is no message to have it, a note has (`Outbox::tell`).
//!
//! Invariants  U1 a message is in `missed` at most once, and only if it was never sent. U2 nothing that was published before `from` is owed.
//! Bounds      `sent` and `left` hold no more publishers than slots, and messages in the queue.

use std::collections::HashMap;

use rgaps_shm::last_received::LastReceived;
use rgaps_shm::queue::Position;

/// What was sent of each publisher of this host.
#[derive(Debug, Default)]
pub(crate) struct SentCount {
    /// The newest sequence that was sent, or up to which none is owed, by publisher.
    sent: HashMap<u64, u64>,
    /// Publishers that have left, whose last message is neither taken nor skipped yet.
    left: Vec<(u64, LastReceived)>,
    from: Position,
    missed: u64,
}

impl SentCount {
    /// Begins anew for a host that knows none of these publishers: it is owed nothing that was published before `from`, nor the `newest` messages.
    pub(crate) fn begin(&mut self, from: Position, newest: HashMap<u64, LastReceived>) {
        self.sent = newest.into_iter().map(|(publisher, last)| (publisher, last.sequence)).collect();
        self.from = from;
        self.left.retain(|(_, last)| last.position >= from);
    }

    /// The publisher's message before this one that was sent, or up to which none is owed.
    pub(crate) fn previous(&self, publisher: u64, sequence: u64) -> u64 {
        self.sent.get(&publisher).copied().unwrap_or(0).min(sequence.saturating_sub(1))
    }

    /// Notes that a publisher's messages up to this one were sent, or are not owed.
    pub(crate) fn note_sent(&mut self, publisher: u64, sequence: u64) {
        let newest = self.sent.entry(publisher).or_insert(0);
        *newest = sequence.max(*newest);
    }

    /// Notes that a publisher has left, and its last message.
    pub(crate) fn note_left(&mut self, publisher: u64, last: LastReceived) {
        if last.position < self.from {
            self.sent.remove(&publisher);
        } else {
            self.left.push((publisher, last));
        }
    }

    /// Counts what was not sent of publishers that have left, if the sender is past their last message.
    pub(crate) fn settle(&mut self, passed: Position) {
        let Self { sent, left, missed, .. } = self;
        left.retain(|(publisher, last)| {
            let is_open = last.position >= passed;
            if !is_open {
                *missed += last.sequence.saturating_sub(sent.remove(publisher).unwrap_or(0));
            }
            is_open
        });
    }

    /// How many messages of publishers that have left were not sent.
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u64, position: u64) -> LastReceived {
        LastReceived { sequence, position: Position(position) }
    }

    #[test]
    fn messages_of_a_publisher_that_left_are_missed_once_the_sender_is_past_them() {
        let mut count = SentCount::default();
        count.note_sent(1, 2);
        count.note_left(1, at(5, 10));
        count.note_left(2, at(4, 12));
        count.settle(Position(10));
        assert_eq!(count.missed(), 0, "message 5 may still be sent");
        count.settle(Position(11));
        assert_eq!(count.missed(), 3);
        count.note_sent(2, 4);
        count.settle(Position(13));
        assert_eq!(count.missed(), 3, "of the other publisher everything was sent that is not in a gap");
    }

    #[test]
    fn each_message_says_what_was_sent_before_it_and_nothing_old_is_owed() {
        let mut count = SentCount::default();
        count.begin(Position(20), HashMap::from([(1, at(7, 19))]));
        assert_eq!([count.previous(1, 5), count.previous(1, 8), count.previous(1, 10)], [4, 7, 7]);
        count.note_sent(1, 10);
        assert_eq!([count.previous(1, 11), count.previous(2, 21)], [10, 0]);
        count.note_left(3, at(9, 19));
        count.note_left(1, at(10, 25));
        count.settle(Position(30));
        assert_eq!(count.missed(), 0);
    }
}
