//! Claiming: messages taken by name instead of in their order, for whoever learns elsewhere which one is meant (a ROS descriptor).
//!
//! ```text
//!   queue ──▶ is it ahead? ──no──▶ nothing is passed by
//!              │ yes
//!              ├──▶ the message itself ──▶ given out
//!              └──▶ those before it ──▶ aside, oldest first ──▶ claimed later, or taken as the next ones, or let go and counted as lost when
//!                                                               there are too many
//! ```
//!
//! Where claims come in the order of each publisher, what lies aside of one before the message claimed is claimed by nobody: it is let go. Before the
//! first claim it is what came while whoever claims had not been told of messages yet, and nobody has lost it; nor what was revoked until then.
//!
//! Invariants  What lies aside is held: at most `ASIDE_MAX`, and no more than the subscriber's depth unless that is under `ASIDE_MIN`.

use std::collections::VecDeque;

use crate::info::MessageInfo;
use crate::reader::Held;

/// Messages aside however small the depth is, so that a few threads may claim in any order.
const ASIDE_MIN: u64 = 8;
/// Messages aside at most.
const ASIDE_MAX: u64 = 64;
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
    /// Of a message.
    pub fn of(info: &MessageInfo) -> Self {
        Self { publisher: info.publisher, sequence: info.sequence }
    }
}

/// What became of a claim.
#[derive(Debug)]
pub enum Claimed {
    /// It is held, its bytes there, still to come, or lost for ever.
    Here(Held),
    /// It has not come.
    NotYet,
    /// It was given out, let go or lost before: a later one of its publisher has been seen.
    Passed,
}

/// The newest message that was seen of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub name: MessageName,
    /// Its host.
    pub source_host: [u8; 16],
    /// When that host came to life.
    pub host_epoch: u64,
    /// The first message that was seen; with claims in order, once there is one, the first that was claimed.
    pub first: u64,
    is_claimed: bool,
}

/// What a reader passed by, and what it has seen while it did.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    held: VecDeque<Held>,
    seen: VecDeque<Seen>,
    in_order: bool,
    has_given: bool,
}

impl Aside {
    /// The oldest, whichever it is.
    pub(crate) fn pop(&mut self) -> Option<Held> {
        self.held.pop_front()
    }

    /// Oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.iter()
    }

    pub(crate) fn claim(&mut self, name: MessageName) -> Option<Held> {
        take_named(&mut self.held, name)
    }

    /// Keeps one more; returns what there is no place for with a keep-last `depth` (0: keep-all).
    pub(crate) fn put(&mut self, held: Held, depth: u64) -> Option<Held> {
        let places = if depth == 0 { ASIDE_MAX } else { depth.clamp(ASIDE_MIN, ASIDE_MAX) };
        self.held.push_back(held);
        (self.held.len() as u64 > places).then(|| self.held.pop_front()).flatten()
    }

    pub(crate) fn note(&mut self, info: &MessageInfo) {
        let name = MessageName::of(info);
        // The most recent are found first.
        let place = self.seen.iter().position(|seen| seen.name.publisher == name.publisher);
        let known = place.and_then(|place| self.seen.remove(place));
        let newest = known.map_or(name.sequence, |seen| seen.name.sequence.max(name.sequence));
        self.seen.push_front(Seen {
            name: MessageName { sequence: newest, ..name },
            source_host: info.source_host,
            host_epoch: info.host_epoch,
            first: known.map_or(name.sequence, |seen| seen.first),
            is_claimed: known.is_some_and(|seen| seen.is_claimed),
        });
        self.seen.truncate(PUBLISHERS_REMEMBERED);
    }

    pub(crate) fn expect_order(&mut self) {
        self.in_order = true;
    }

    /// Whether this is the first one that is given out, of claims in order.
    pub(crate) fn gives_first(&mut self) -> bool {
        self.in_order && !std::mem::replace(&mut self.has_given, true)
    }

    /// A message is given out. Returns how many are lost by that: with claims in order, those before it.
    pub(crate) fn give(&mut self, name: MessageName) -> u64 {
        let Some(seen) = self.seen.iter_mut().find(|seen| seen.name.publisher == name.publisher) else { return 0 };
        if !self.in_order {
            return 0;
        }
        let is_first = !std::mem::replace(&mut seen.is_claimed, true);
        if is_first {
            seen.first = name.sequence;
        }
        let before = self.held.len();
        self.held.retain(|held| held.info().publisher != name.publisher || held.info().sequence > name.sequence);
        if is_first { 0 } else { (before - self.held.len()) as u64 }
    }

    pub(crate) fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter()
    }

    pub(crate) fn has_passed(&self, name: MessageName) -> bool {
        self.seen.iter().any(|seen| seen.name.publisher == name.publisher && seen.name.sequence >= name.sequence)
    }

    pub(crate) fn clear(&mut self) {
        self.held.clear();
    }
}

/// The one with this name, out of those that a reader keeps.
pub(crate) fn take_named(kept: &mut VecDeque<Held>, name: MessageName) -> Option<Held> {
    let place = kept.iter().position(|held| MessageName::of(held.info()) == name)?;
    kept.remove(place)
}
