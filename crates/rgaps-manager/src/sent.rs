//! Which messages a sender has sent, by publisher, so that the other host can count the others: a keep-last sender skips messages that are too old,
//! unless history keeps them (`ReaderPort::for_sender`).
//!
//! Each message names the message of its publisher that was sent before it. So the other host can count the missing first messages of a publisher
//! that is new to it. For a publisher that it knows, it compares sequences. If the publisher falls silent or leaves, no later message shows the gap.
//! Then a gap notice names the publisher's last message (`Outbox::post_gap_notice`), and the other host counts the gap up to it.
//!
//! Invariants  U1 only messages that were not sent are named, each once a link until the other host acknowledges the notice. The other host does not
//!             count one twice (`received.rs`). U2 nothing that was published before `from` is named.
//!             U3 the sender names the skipped messages of a publisher that the other host does not know before it sends any message that it took
//!             later. Exceptions: the ring is full, or an earlier message is not complete.
//! Bounds      `left` holds `LEFT_MAX` publishers; `sent`, `named` and `known` no more than these and the slots; `gaps` no more than the outbox.

use std::collections::{HashMap, HashSet};

use rgaps_link::MessageName;
use rgaps_shm::MessageInfo;
use rgaps_shm::manager::last_received::LastReceived;
use rgaps_shm::words::queue::Position;

use crate::envelope::Source;
use crate::outbound::LEFT_MAX;

/// What was sent of each publisher of this host.
#[derive(Debug, Default)]
pub(crate) struct SentMessages {
    /// By publisher, the sequence up to which nothing must be sent any more: the other host has it, gets it, has counted it, or is not owed it.
    sent: HashMap<u64, u64>,
    /// The last messages that gap notices name which the other host has not acknowledged, by publisher.
    named: HashMap<u64, u64>,
    /// Publishers that have left, and their last messages.
    left: Vec<(u64, LastReceived)>,
    /// Publishers of which the other host has, or gets, a message or a gap notice.
    known: HashSet<u64>,
    /// Gaps before the first message of publishers that the other host does not know: the last message of each gap, and the sequence before the gap.
    gaps: Vec<(MessageName, u64)>,
    /// Nothing that was published before it is owed.
    from: Position,
    /// It has had a connection.
    has_resumed: bool,
}

impl SentMessages {
    /// Begins anew for a host that knows none of these publishers: it is owed nothing that was published before `from`, nor the `newest` messages.
    pub(crate) fn begin(&mut self, from: Position, newest: HashMap<u64, LastReceived>) {
        self.named.clear();
        self.known.clear();
        self.sent = newest.into_iter().map(|(publisher, last)| (publisher, last.sequence)).collect();
        self.from = from;
    }

    /// Begins a connection to a host that has each publisher's messages up to those in `has`, or has counted them as lost. At the first connection
    /// the host has that from a predecessor of this sender, and is owed what was published since.
    pub(crate) fn resume(&mut self, has: &HashMap<u64, u64>) {
        if !std::mem::replace(&mut self.has_resumed, true) && !has.is_empty() {
            self.sent.extend(has);
            self.from = Position(0);
        }
        // It may have messages that were given up since.
        for (publisher, sequence) in has {
            if let Some(sent) = self.sent.get_mut(publisher) {
                *sent = (*sent).max(*sequence);
            }
        }
        self.known = has.keys().copied().collect();
        self.gaps.clear();
        for publisher in std::mem::take(&mut self.named).into_keys() {
            if let Some(sequence) = has.get(&publisher) {
                self.mark_sent(publisher, *sequence);
            }
        }
    }

    /// Notes that this message is sent. Returns the sequence of `previous`.
    pub(crate) fn send(&mut self, message: MessageName) -> u64 {
        let MessageName { publisher, sequence } = message;
        let previous = self.previous(publisher, sequence);
        if self.known.insert(publisher) && previous.saturating_add(1) < sequence {
            self.gaps.push((MessageName { publisher, sequence: sequence - 1 }, previous));
        }
        self.mark_sent(publisher, sequence);
        previous
    }

    /// Notes that a message of this publisher is sent before anything else of it.
    pub(crate) fn mark_known(&mut self, publisher: u64) {
        self.known.insert(publisher);
    }

    /// Whether the other host knows nothing of a publisher. The other host dates the losses before such a publisher's first message or gap notice by
    /// that one's arrival.
    pub(crate) fn is_unknown(&self, publisher: u64) -> bool {
        !self.known.contains(&publisher)
    }

    /// Returns, once, the gaps before the first messages of publishers that the other host does not know: each gap's last message, and the sequence
    /// before the gap.
    pub(crate) fn take_gaps(&mut self) -> Vec<(MessageName, u64)> {
        std::mem::take(&mut self.gaps)
    }

    /// The sequence of the publisher's last message before this one that was sent or need not be sent.
    pub(crate) fn previous(&self, publisher: u64, sequence: u64) -> u64 {
        self.sent(publisher).min(sequence.saturating_sub(1))
    }

    /// The source of a message that history gave.
    pub(crate) fn source_in_history(&self, info: &MessageInfo) -> Source {
        if Position(info.position) < self.from { Source::History } else { Source::OwedHistory }
    }

    fn sent(&self, publisher: u64) -> u64 {
        self.sent.get(&publisher).copied().unwrap_or(0)
    }

    /// Notes that a publisher's messages up to this one were sent, or are not owed.
    pub(crate) fn mark_sent(&mut self, publisher: u64, sequence: u64) {
        let newest = self.sent.entry(publisher).or_insert(0);
        *newest = sequence.max(*newest);
    }

    /// Notes that this message is given up, though it was marked as sent: a later message or a gap notice shows that it is missing. `previous`: up to
    /// which message its publisher owes none, as its envelope says. True if the publisher has left and is not listed any more: the caller lists it
    /// again.
    pub(crate) fn give_up(&mut self, message: &MessageInfo, previous: u64) -> bool {
        if Position(message.position) < self.from {
            return false;
        }
        let before = self.sent.get(&message.publisher).copied();
        self.sent.insert(message.publisher, previous.min(before.unwrap_or(previous)));
        before.is_none()
    }

    /// Notes that a publisher has left, and its last message.
    pub(crate) fn mark_left(&mut self, publisher: u64, last: LastReceived) {
        if self.left.len() >= LEFT_MAX {
            self.left.remove(0);
        }
        self.left.push((publisher, last));
    }

    /// Whether a publisher has left whose last message may have to be named.
    pub(crate) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// The last messages, of these publishers that stay and of those that have left, that the sender is past and has neither sent nor named.
    pub(crate) fn skipped(
        &mut self,
        passed: Position,
        stay: impl Iterator<Item = (u64, LastReceived)>,
    ) -> Vec<MessageName> {
        let Self { sent, named, left, known, from, .. } = self;
        left.retain(|(publisher, last)| {
            // A message that the sender has still to take says what was sent before it, owed or not.
            let is_settled = last.position < *from || sent.get(publisher).is_some_and(|sent| *sent >= last.sequence);
            // An acknowledgement of its gap notice would list it as sent again.
            let is_over = last.position < passed && is_settled && !named.contains_key(publisher);
            if is_over {
                sent.remove(publisher);
                known.remove(publisher);
            }
            !is_over
        });
        let is_owed = |publisher: &u64, last: &LastReceived| {
            let known = [&*sent, &*named].map(|of| of.get(publisher).copied().unwrap_or(0));
            (*from..passed).contains(&last.position) && known.iter().all(|known| *known < last.sequence)
        };
        let last = stay.chain(left.iter().copied()).filter(|(publisher, last)| is_owed(publisher, last));
        last.map(|(publisher, last)| MessageName { publisher, sequence: last.sequence }).collect()
    }

    /// A gap notice with this message was posted.
    pub(crate) fn mark_named(&mut self, skipped: MessageName) {
        self.known.insert(skipped.publisher);
        self.named.insert(skipped.publisher, skipped.sequence);
    }

    /// The other host has that gap notice.
    pub(crate) fn acknowledged(&mut self, skipped: MessageName) {
        if self.named.get(&skipped.publisher).is_some_and(|named| *named <= skipped.sequence) {
            self.named.remove(&skipped.publisher);
        }
        self.mark_sent(skipped.publisher, skipped.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u64, position: u64) -> LastReceived {
        LastReceived { sequence, position: Position(position) }
    }

    fn name(publisher: u64, sequence: u64) -> MessageName {
        MessageName { publisher, sequence }
    }

    #[test]
    fn the_last_message_of_a_silent_publisher_is_named_once_and_of_a_broken_link_again() {
        let mut count = SentMessages::default();
        count.mark_sent(1, 2);
        let skipped = |count: &mut SentMessages, last| count.skipped(Position(10), [(1, last)].into_iter());
        assert_eq!(skipped(&mut count, at(2, 2)), [], "it was sent");
        assert_eq!(skipped(&mut count, at(5, 10)), [], "it may still be sent");
        assert_eq!(skipped(&mut count, at(5, 9)), [name(1, 5)]);
        count.mark_named(name(1, 5));
        assert_eq!(skipped(&mut count, at(5, 9)), []);
        count.resume(&HashMap::from([(1, 2)]));
        assert_eq!(skipped(&mut count, at(5, 9)), [name(1, 5)], "the notice did not arrive");
        count.mark_named(name(1, 5));
        count.resume(&HashMap::from([(1, 5)]));
        assert_eq!(skipped(&mut count, at(5, 9)), [], "it arrived");
        assert_eq!(skipped(&mut count, at(7, 9)), [name(1, 7)]);
        count.mark_named(name(1, 7));
        count.acknowledged(name(1, 7));
        assert_eq!((skipped(&mut count, at(7, 9)), count.previous(1, 9)), (vec![], 7));
    }

    #[test]
    fn the_last_message_of_a_publisher_that_left_is_named_until_it_is_acknowledged() {
        let mut count = SentMessages::default();
        count.mark_left(1, at(5, 10));
        count.mark_left(2, at(4, 12));
        let skipped = |count: &mut SentMessages, passed| count.skipped(Position(passed), std::iter::empty());
        assert_eq!(skipped(&mut count, 10), [], "message 5 may still be sent");
        assert_eq!(skipped(&mut count, 11), [name(1, 5)]);
        count.mark_named(name(1, 5));
        count.mark_sent(2, 4);
        assert_eq!(skipped(&mut count, 13), [], "of the other publisher everything was sent that is not in a gap");
        assert!(count.has_left());
        count.acknowledged(name(1, 5));
        assert_eq!(skipped(&mut count, 13), []);
        assert!(!count.has_left() && count.sent.is_empty() && count.named.is_empty());
    }

    /// All messages of a publisher that has left were sent. Then the other host acknowledges a gap notice of it, and nothing else.
    #[test]
    fn messages_given_up_after_a_gap_notice_of_a_publisher_that_left_are_named() {
        for over_a_link in [false, true] {
            let mut count = SentMessages::default();
            count.begin(Position(0), HashMap::new());
            assert_eq!(count.send(name(1, 4)), 0);
            assert_eq!(count.take_gaps(), [(name(1, 3), 0)]);
            count.mark_named(name(1, 3));
            count.mark_left(1, at(4, 14));
            assert_eq!(count.skipped(Position(20), std::iter::empty()), []);
            match over_a_link {
                false => count.acknowledged(name(1, 3)),
                true => count.resume(&HashMap::from([(1, 3)])),
            }
            let given_up = MessageInfo { publisher: 1, sequence: 4, position: 14, ..MessageInfo::default() };
            if count.give_up(&given_up, 0) {
                count.mark_left(1, at(4, 14));
            }
            count.resume(&HashMap::from([(1, 3)]));
            assert_eq!(count.skipped(Position(20), std::iter::empty()), [name(1, 4)], "over a link: {over_a_link}");
        }
    }

    #[test]
    fn nothing_stays_of_publishers_that_have_left() {
        let mut count = SentMessages::default();
        count.begin(Position(0), HashMap::new());
        for publisher in 1..=1000 {
            count.send(name(publisher, 4));
            count.take_gaps();
            count.mark_named(name(publisher, 3));
            count.mark_left(publisher, at(4, 14));
            assert_eq!(count.skipped(Position(20), std::iter::empty()), []);
            count.acknowledged(name(publisher, 3));
            assert_eq!(count.skipped(Position(20), std::iter::empty()), []);
        }
        assert_eq!(count.sent.len(), 0, "publishers, all of which have left, and whose messages were all sent");
    }

    #[test]
    fn each_message_says_what_was_sent_before_it_and_nothing_old_is_owed() {
        let mut count = SentMessages::default();
        count.begin(Position(20), HashMap::from([(1, at(7, 19))]));
        assert_eq!([count.previous(1, 5), count.previous(1, 8), count.previous(1, 10)], [4, 7, 7]);
        count.mark_sent(1, 10);
        assert_eq!([count.previous(1, 11), count.previous(2, 21)], [10, 0]);
        count.mark_left(3, at(9, 19));
        count.mark_left(1, at(10, 25));
        assert_eq!(count.skipped(Position(30), [(4, at(3, 18))].into_iter()), []);
        assert!(!count.has_left());
    }

    #[test]
    fn a_gap_before_the_first_message_of_a_new_publisher_is_named_once() {
        let mut count = SentMessages::default();
        count.begin(Position(20), HashMap::from([(1, at(7, 19))]));
        assert!(count.is_unknown(1) && count.is_unknown(2));
        assert_eq!([count.send(name(1, 10)), count.send(name(2, 1)), count.send(name(3, 4))], [7, 0, 0]);
        assert_eq!(count.take_gaps(), [(name(1, 9), 7), (name(3, 3), 0)]);
        assert!(!count.is_unknown(1) && !count.is_unknown(2));
        assert_eq!((count.send(name(1, 15)), count.take_gaps()), (10, vec![]), "the other host sees this one itself");
        count.resume(&HashMap::from([(1, 15)]));
        assert!(!count.is_unknown(1) && count.is_unknown(2), "nothing of publisher 2 has arrived");
        count.mark_known(2);
        assert_eq!(
            (count.send(name(2, 5)), count.take_gaps()),
            (1, vec![]),
            "message 1 is in the outbox, and sent first"
        );
    }
}
