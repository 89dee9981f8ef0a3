//! The names of messages, and what takes by name have seen of each publisher (by_name.rs).
//!
//! Bounds      `PUBLISHERS_REMEMBERED` publishers; the one that was silent longest is forgotten first.

use std::collections::VecDeque;

use crate::held::Held;
use crate::info::{MessageInfo, SEQUENCE_STEP_MAX};

/// Publishers whose newest message is remembered.
const PUBLISHERS_REMEMBERED: usize = 64;

/// A message's name, the same on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageName {
    /// Identity of its publisher.
    pub publisher: u64,
    /// The publisher's count.
    pub sequence: u64,
}

impl MessageName {
    /// The name of a message.
    pub fn of(info: &MessageInfo) -> Self {
        Self { publisher: info.publisher, sequence: info.sequence }
    }
}

/// The outcome of a take by name.
#[derive(Debug)]
pub enum TakenByName {
    /// It is held. Its bytes are there, pending, or poisoned.
    Here(Held),
    /// Takes by name have seen neither it nor a later message of its publisher.
    NotYet,
    /// It was given out, released or lost before: takes by name have seen it or a later message of its publisher.
    Passed,
}

/// The newest message that was seen of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its name.
    pub name: MessageName,
    /// Its host.
    pub source_host: [u8; 16],
    /// Epoch of that host (`MessageInfo::host_epoch`).
    pub host_epoch: u64,
    /// Sequence of the first message that was seen. With takes by name in order, that of the first message taken, once there is one.
    pub first: u64,
    /// Position of the newest message on this host.
    pub position: u64,
    is_taken: bool,
}

/// The newest message of each publisher that takes by name have seen, the most recent first.
#[derive(Debug, Default)]
pub(crate) struct SeenPublishers {
    seen: VecDeque<Seen>,
    in_order: bool,
    has_given: bool,
}

impl SeenPublishers {
    pub(crate) fn note(&mut self, info: &MessageInfo) {
        let name = MessageName::of(info);
        // The most recent publishers are at the front, so the search is short.
        let place = self.seen.iter().position(|seen| seen.name.publisher == name.publisher);
        let known = place.and_then(|place| self.seen.remove(place));
        let this = Seen {
            name,
            source_host: info.source_host,
            host_epoch: info.host_epoch,
            first: known.map_or(name.sequence, |seen| seen.first),
            position: info.position,
            is_taken: known.is_some_and(|seen| seen.is_taken),
        };
        // Compare positions, not sequences: a message with a forged sequence or epoch is believed only until the next message arrives.
        self.seen.push_front(known.filter(|seen| seen.position > info.position).unwrap_or(this));
        self.seen.truncate(PUBLISHERS_REMEMBERED);
    }

    pub(crate) fn expect_order(&mut self) {
        self.in_order = true;
    }

    /// Whether this is the very first message given out by takes by name in order.
    pub(crate) fn gives_first(&mut self) -> bool {
        self.in_order && !std::mem::replace(&mut self.has_given, true)
    }

    /// Notes that a message is given out. With takes by name in order, `Some` says that its publisher's earlier messages are released, and
    /// whether they are lost.
    pub(crate) fn give(&mut self, name: MessageName) -> Option<bool> {
        let in_order = self.in_order;
        let mut of_publisher = self.seen.iter_mut().filter(|seen| seen.name.publisher == name.publisher);
        let seen = of_publisher.next().filter(|_| in_order)?;
        let is_first = !std::mem::replace(&mut seen.is_taken, true);
        if is_first {
            seen.first = name.sequence;
        }
        Some(!is_first)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter()
    }

    pub(crate) fn has_passed(&self, name: MessageName) -> bool {
        let is_behind = |newest: u64| newest.checked_sub(name.sequence).is_some_and(|by| by <= SEQUENCE_STEP_MAX);
        self.seen.iter().any(|seen| seen.name.publisher == name.publisher && is_behind(seen.name.sequence))
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_forged_sequence_or_epoch_is_believed_until_the_next_message() {
        let info = |sequence, position, host_epoch| MessageInfo {
            publisher: 7,
            sequence,
            position,
            host_epoch,
            ..MessageInfo::default()
        };
        let name = |sequence| MessageName { publisher: 7, sequence };
        let mut seen = SeenPublishers::default();
        seen.note(&info(5, 10, 1));
        assert!(seen.has_passed(name(5)) && !seen.has_passed(name(6)));
        seen.note(&info(1000, 11, u64::MAX));
        assert!(seen.has_passed(name(6)));
        // A walk sees earlier messages again, which changes nothing.
        seen.note(&info(5, 10, 1));
        assert!(seen.has_passed(name(6)));
        seen.note(&info(6, 12, 1));
        assert!(seen.has_passed(name(6)) && !seen.has_passed(name(7)));
        assert_eq!(seen.iter().map(|seen| seen.host_epoch).collect::<Vec<_>>(), [1]);
        // A step that no publisher makes is not believed at all.
        seen.note(&info(u64::MAX, 13, 1));
        assert!(!seen.has_passed(name(7)));
    }
}
