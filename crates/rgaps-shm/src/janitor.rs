//! The manager's part in a segment: who comes, who goes, and what is left to do for the dead.
//!
//! Invariants  J1 a slot's generation moves on each time it is occupied, so that words of a former tenant mean nothing.
//!             J2 a buried publisher's slot is free again only when none of its messages is left, and with it goes its pool.
//! Deaths      the janitor may be killed anywhere: its successor finds the same words and does the same again.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::layout::{PUBLISHERS_MAX, SlotState};
use crate::message::{Life, SUBSCRIBERS_MAX, State, Tenancy};
use crate::notify::ring_always;
use crate::queue::{MessageIndex, Position, Slot};
use crate::segment::{Segment, bits};

/// A publisher that joins.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublisherSpec {
    /// Its identity.
    pub publisher: u64,
    /// Its process, for people.
    pub pid: u32,
    /// Bytes of its pool.
    pub pool_bytes: u64,
    /// Whether it is the manager, for a remote host.
    pub remote: bool,
}

/// A subscriber that joins.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberSpec {
    /// Keep-last depth; 0 is keep-all.
    pub depth: u32,
    /// Its process, for people.
    pub pid: u32,
    /// Whether it is the manager's sender to a remote host.
    pub remote: bool,
}

impl Default for SubscriberSpec {
    fn default() -> Self {
        Self { depth: 10, pid: 0, remote: false }
    }
}

/// An occupied slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// The slot.
    pub slot: u8,
    /// Its occupation count.
    pub generation: u32,
}

impl Seat {
    /// The occupation count as holder words have it.
    pub fn tenancy(&self) -> Tenancy {
        Tenancy::new(self.generation)
    }
}

/// All slots are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the topic has its {limit} {what} on this host; stop one, or use a second topic")]
pub struct Full {
    /// How many there may be.
    pub limit: usize,
    /// Of what.
    pub what: &'static str,
}

/// The manager's hand in one segment.
#[derive(Clone, Debug)]
pub struct Janitor {
    segment: Arc<Segment>,
}

impl Janitor {
    /// For a segment that this manager made, or that it was handed back after its predecessor's death.
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment }
    }

    /// The segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Gives a publisher a slot.
    pub fn admit_publisher(&self, spec: &PublisherSpec) -> Result<Seat, Full> {
        for slot in 0..PUBLISHERS_MAX as u8 {
            let Some(words) = self.segment.publisher(slot) else { break };
            let (generation, Some(SlotState::Free)) = SlotState::decode(words.state.load(Ordering::Acquire)) else {
                continue;
            };
            let generation = generation.wrapping_add(1).max(1);
            words.publisher.store(spec.publisher, Ordering::Relaxed);
            words.pid.store(u64::from(spec.pid), Ordering::Relaxed);
            words.pool_bytes.store(spec.pool_bytes, Ordering::Relaxed);
            words.remote.store(u64::from(spec.remote), Ordering::Relaxed);
            for counter in
                [&words.published, &words.published_bytes, &words.used_bytes, &words.refused, &words.released]
            {
                counter.store(0, Ordering::Relaxed);
            }
            words.state.store(SlotState::Active.word(generation), Ordering::Release);
            self.segment.header().publishers.fetch_or(1 << slot, Ordering::AcqRel);
            return Ok(Seat { slot, generation });
        }
        Err(Full { limit: PUBLISHERS_MAX, what: "publishers" })
    }

    /// Gives a subscriber a slot. From its return on, no message is missed.
    pub fn admit_subscriber(&self, spec: &SubscriberSpec) -> Result<Seat, Full> {
        for slot in 0..SUBSCRIBERS_MAX as u8 {
            let Some(words) = self.segment.subscriber(slot) else { break };
            let (generation, Some(SlotState::Free)) = SlotState::decode(words.state.load(Ordering::Acquire)) else {
                continue;
            };
            // Tenancies have 30 bits, and 0 is nobody's.
            let generation = Tenancy::new(generation.wrapping_add(1)).bits().max(1);
            words.depth.store(u64::from(spec.depth), Ordering::Relaxed);
            words.pid.store(u64::from(spec.pid), Ordering::Relaxed);
            words.remote.store(u64::from(spec.remote), Ordering::Relaxed);
            for counter in [&words.taken, &words.lost, &words.poisoned, &words.held, &words.copied_bytes] {
                counter.store(0, Ordering::Relaxed);
            }
            // Where it starts is noted before anybody can address a message to it: what is addressed to it comes later.
            let start = self.segment.queue().end().0;
            words.cursor.store(start, Ordering::Relaxed);
            words.trimmed.store(start, Ordering::Relaxed);
            words.joined.store(start, Ordering::Relaxed);
            words.state.store(SlotState::Active.word(generation), Ordering::Release);
            self.segment.header().subscribers.0.fetch_or(1 << slot, Ordering::SeqCst);
            return Ok(Seat { slot, generation });
        }
        Err(Full { limit: SUBSCRIBERS_MAX, what: "subscribers" })
    }

    /// A subscriber left or died: all that it had claimed counts as released.
    pub fn dismiss_subscriber(&self, slot: u8, generation: u32) -> bool {
        let Some(words) = self.segment.subscriber(slot) else { return false };
        let header = self.segment.header();
        let (active, free) = (SlotState::Active.word(generation), SlotState::Free.word(generation));
        if words.state.compare_exchange(active, free, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        header.subscribers.0.fetch_and(!(1 << slot), Ordering::AcqRel);
        header.descriptors.fetch_and(!(1 << slot), Ordering::AcqRel);
        header.arrivals.0.sleepers.fetch_and(!(1 << slot), Ordering::AcqRel);
        for owner in bits(&header.publishers) {
            if let Some(publisher) = self.segment.publisher(owner) {
                publisher.released.fetch_add(1, Ordering::Release);
            }
        }
        ring_always(&header.space.0);
        true
    }

    /// Notes whether a subscriber has an event descriptor, so that publishers signal it.
    pub fn mark_descriptor(&self, slot: u8, has: bool) {
        let mask = &self.segment.header().descriptors;
        if has {
            mask.fetch_or(1 << slot, Ordering::AcqRel);
        } else {
            mask.fetch_and(!(1 << slot), Ordering::AcqRel);
        }
    }

    /// What a subscriber keeps has changed: that of a host, with its subscribers. 0 is keep-all.
    pub fn set_depth(&self, slot: u8, depth: u32) {
        if let Some(words) = self.segment.subscriber(slot) {
            words.depth.store(u64::from(depth), Ordering::Release);
        }
    }

    /// A keep-all subscriber has stalled the fleet for too long: from now on it is keep-last.
    pub fn demote(&self, slot: u8, depth: u32) -> bool {
        let Some(words) = self.segment.subscriber(slot) else { return false };
        words.depth.compare_exchange(0, u64::from(depth.max(1)), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The reverse of `demote`, for a host that takes messages again.
    pub fn restore_keep_all(&self, slot: u8) {
        self.set_depth(slot, 0);
    }

    /// Demotes the keep-all subscriber that is furthest behind, if one has anything unread. Returns its slot.
    pub fn demote_stalled(&self) -> Option<u8> {
        let end = self.segment.queue().end().0;
        let lag = |seat: &Seat| {
            let words = self.segment.subscriber(seat.slot)?;
            let keep_all = words.depth.load(Ordering::Relaxed) == 0;
            keep_all.then(|| end.saturating_sub(words.cursor.load(Ordering::Acquire)))
        };
        let slowest = self.active_subscribers().filter_map(|seat| Some((lag(&seat)?, seat.slot))).max()?;
        (slowest.0 > 0 && self.demote(slowest.1, 1)).then_some(slowest.1)
    }

    /// Messages from another host were lost on the way: each subscriber of this host that was here at `since`, where the last one
    /// before them lies, has lost them. Who came later never was to get them.
    pub fn count_lost(&self, messages: u64, since: Position) {
        for seat in self.active_subscribers() {
            let Some(words) = self.segment.subscriber(seat.slot) else { continue };
            if words.remote.load(Ordering::Relaxed) == 0 && words.joined.load(Ordering::Relaxed) <= since.0 {
                words.lost.fetch_add(messages, Ordering::Relaxed);
            }
        }
    }

    /// A publisher left or died. What it had begun is finished or given back, and what is still read stays until `sweep`.
    pub fn bury_publisher(&self, slot: u8, generation: u32) -> bool {
        let Some(words) = self.segment.publisher(slot) else { return false };
        let (active, buried) = (SlotState::Active.word(generation), SlotState::Buried.word(generation));
        if words.state.compare_exchange(active, buried, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        let header = self.segment.header();
        header.publishers.fetch_and(!(1 << slot), Ordering::AcqRel);
        header.space.0.sleepers.fetch_and(!(1 << slot), Ordering::AcqRel);
        self.sweep(slot);
        self.wake_everybody();
        true
    }

    /// Finishes what a buried publisher left. Returns how many of its messages are still read; at 0 its slot is free again and
    /// its pool may go. Safe to repeat.
    pub fn sweep(&self, slot: u8) -> usize {
        let Some(words) = self.segment.publisher(slot) else { return 0 };
        let (generation, Some(SlotState::Buried)) = SlotState::decode(words.state.load(Ordering::Acquire)) else {
            return 0;
        };
        let named = self.named();
        let left = self.segment.indices().filter(|index| !self.finish_message(*index, slot, &named)).count();
        if left == 0 {
            words.used_bytes.store(0, Ordering::Relaxed);
            words.state.store(SlotState::Free.word(generation), Ordering::Release);
        }
        left
    }

    /// Buried publishers that still have messages.
    pub fn buried(&self) -> impl Iterator<Item = Seat> + '_ {
        self.publishers_in(SlotState::Buried)
    }

    /// Living publishers.
    pub fn active_publishers(&self) -> impl Iterator<Item = Seat> + '_ {
        self.publishers_in(SlotState::Active)
    }

    /// Living subscribers.
    pub fn active_subscribers(&self) -> impl Iterator<Item = Seat> + '_ {
        (0..SUBSCRIBERS_MAX as u8).filter_map(|slot| {
            let tenancy = self.segment.tenant(usize::from(slot))?;
            Some(Seat { slot, generation: tenancy.bits() })
        })
    }

    /// After a death: whoever sleeps looks again.
    pub fn wake_everybody(&self) {
        ring_always(&self.segment.header().arrivals.0);
        ring_always(&self.segment.header().space.0);
    }

    /// Messages that are not free, whoever owns them.
    pub fn messages_in_use(&self) -> usize {
        let in_use = |index: &MessageIndex| {
            self.segment.message(*index).is_some_and(|m| m.words().life().is_none_or(|l| l.state != State::Free))
        };
        self.segment.indices().filter(in_use).count()
    }

    fn publishers_in(&self, wanted: SlotState) -> impl Iterator<Item = Seat> + '_ {
        (0..PUBLISHERS_MAX as u8).filter_map(move |slot| {
            let (generation, state) = SlotState::decode(self.segment.publisher(slot)?.state.load(Ordering::Acquire));
            (state == Some(wanted)).then_some(Seat { slot, generation })
        })
    }

    /// True if nothing of the dead `owner` is left in this entry.
    fn finish_message(&self, index: MessageIndex, owner: u8, named: &HashSet<(MessageIndex, u16)>) -> bool {
        let Some(entry) = self.segment.message(index) else { return true };
        let words = entry.words();
        let Some(life) = words.life() else { return true };
        let Life { generation, state, .. } = life;
        if life.owner != owner || state == State::Free {
            return true;
        }
        match state {
            State::Free => true,
            State::Loaned => words.give_back(generation, owner),
            State::Reclaiming => words.finish(generation, owner),
            State::Published => {
                words.abandon(generation);
                if !named.contains(&(index, generation.low())) {
                    self.revoke_from_all(index, generation);
                }
                words.try_reclaim(generation, owner, |slot| self.segment.tenant(slot))
                    && words.finish(generation, owner)
            }
        }
    }

    /// What the queue's slots name: message and the low half of its generation.
    fn named(&self) -> HashSet<(MessageIndex, u16)> {
        let queue = self.segment.queue();
        let named = queue.positions().filter_map(|position| match queue.read(Position(position)) {
            Slot::Message(named) => Some((named.message, named.generation)),
            Slot::Empty | Slot::Overrun => None,
        });
        named.collect()
    }

    fn revoke_from_all(&self, index: MessageIndex, generation: crate::message::Generation) {
        let Some(entry) = self.segment.message(index) else { return };
        for slot in 0..SUBSCRIBERS_MAX {
            if let Some(tenancy) = self.segment.tenant(slot) {
                entry.words().revoke(slot, generation, tenancy);
            }
        }
    }
}
