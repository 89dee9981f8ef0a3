//! The names of messages, and what takes by name have seen of each publisher (by_name.rs).
//!
//! Bounds      `SEEN_EACH_MAX` publishers of each slot, since a slot may be a remote host's; of these the one that was silent longest is forgotten
//!             first. So a host that makes publishers up does not make a subscriber forget those of other slots.

use std::collections::HashMap;

use crate::info::{MessageInfo, SEQUENCE_STEP_MAX};
use crate::layout::PUBLISHERS_MAX;
use crate::reader::held::Held;

/// Publishers of one slot whose newest message is remembered: as many as a remote host may have.
const SEEN_EACH_MAX: usize = PUBLISHERS_MAX;
/// Publishers whose newest message is remembered, at most: if each slot is a remote host's.
pub const SEEN_MAX: usize = PUBLISHERS_MAX * SEEN_EACH_MAX;

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
    /// Publisher slot of the newest message.
    owner: u16,
    is_taken: bool,
}

/// The newest message of each publisher that takes by name have seen.
#[derive(Debug, Default)]
pub(crate) struct SeenPublishers {
    /// By the publisher's identity.
    seen: HashMap<u64, Seen>,
    in_order: bool,
    has_given: bool,
}

impl SeenPublishers {
    /// Notes a message of the publisher slot `owner`.
    pub(crate) fn note(&mut self, info: &MessageInfo, owner: u16) {
        let name = MessageName::of(info);
        let known = self.seen.get(&name.publisher).copied();
        // Compare positions, not sequences: a message with a forged sequence or epoch is believed only until the next message arrives.
        if known.is_some_and(|seen| seen.position > info.position) {
            return;
        }
        if known.is_none() {
            self.make_room(owner);
        }
        let this = Seen {
            name,
            source_host: info.source_host,
            host_epoch: info.host_epoch,
            first: known.map_or(name.sequence, |seen| seen.first),
            position: info.position,
            owner,
            is_taken: known.is_some_and(|seen| seen.is_taken),
        };
        self.seen.insert(name.publisher, this);
    }

    /// Makes room for one more publisher of a slot.
    fn make_room(&mut self, owner: u16) {
        let of_slot = self.seen.values().filter(|seen| seen.owner == owner);
        let silent = of_slot.clone().min_by_key(|seen| seen.position).map(|seen| seen.name.publisher);
        if let Some(silent) = silent.filter(|_| of_slot.count() >= SEEN_EACH_MAX) {
            self.seen.remove(&silent);
        }
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
        let seen = self.seen.get_mut(&name.publisher).filter(|_| in_order)?;
        let is_first = !std::mem::replace(&mut seen.is_taken, true);
        if is_first {
            seen.first = name.sequence;
        }
        Some(!is_first)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Seen> {
        self.seen.values()
    }

    pub(crate) fn of(&self, publisher: u64) -> Option<&Seen> {
        self.seen.get(&publisher)
    }

    pub(crate) fn has_passed(&self, name: MessageName) -> bool {
        let is_behind = |newest: u64| newest.checked_sub(name.sequence).is_some_and(|by| by <= SEQUENCE_STEP_MAX);
        self.of(name.publisher).is_some_and(|seen| is_behind(seen.name.sequence))
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
        seen.note(&info(5, 10, 1), 0);
        assert!(seen.has_passed(name(5)) && !seen.has_passed(name(6)));
        seen.note(&info(1000, 11, u64::MAX), 0);
        assert!(seen.has_passed(name(6)));
        // A walk sees earlier messages again, which changes nothing.
        seen.note(&info(5, 10, 1), 0);
        assert!(seen.has_passed(name(6)));
        seen.note(&info(6, 12, 1), 0);
        assert!(seen.has_passed(name(6)) && !seen.has_passed(name(7)));
        assert_eq!(seen.iter().map(|seen| seen.host_epoch).collect::<Vec<_>>(), [1]);
        // A step that no publisher makes is not believed at all.
        seen.note(&info(u64::MAX, 13, 1), 0);
        assert!(!seen.has_passed(name(7)));
    }

    #[test]
    fn a_slot_that_makes_publishers_up_does_not_make_those_of_others_forgotten() {
        let info = |publisher, position| MessageInfo { publisher, sequence: 5, position, ..MessageInfo::default() };
        let mut seen = SeenPublishers::default();
        seen.note(&info(1, 1), 0);
        let made_up = 2..2 + 2 * SEEN_EACH_MAX as u64;
        for publisher in made_up.clone() {
            seen.note(&info(publisher, publisher), 1);
        }
        assert_eq!(seen.iter().count(), 1 + SEEN_EACH_MAX);
        let has_passed = |publisher| seen.has_passed(MessageName { publisher, sequence: 5 });
        assert!(has_passed(1) && has_passed(made_up.end - 1) && !has_passed(made_up.start));
    }
}
