//! The manager's part in a segment: it admits publishers and subscribers, frees their slots, and finishes the messages of dead publishers.
//!
//! Invariants  ST1 each new occupant of a slot gets a new generation, so that words about a former occupant mean nothing. ST2 a draining
//!             publisher's slot and pool are freed only when none of its messages is left.
//! Deaths      the manager may be killed anywhere: its successor finds the same words and repeats the steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::layout::{DEPTH_MAX, LINKED, NOT_LINKED, PUBLISHERS_MAX, PublisherRecord, SUBSCRIBERS_MAX, SlotState};
use crate::notify::wake_all;
use crate::pages::{SubscriberFile, SubscriberPages};
use crate::reader::past::find_in_queue;
use crate::segment::{AttachError, Segment, bits, clear_bit, entries_of, set_bit};
use crate::slot::{PublisherSlot, SubscriberSlot};
use crate::words::history::MessageRef;
use crate::words::join::{JOINING, PublishFence, join};
use crate::words::message::{Generation, Need, Readiness, State};
use crate::words::queue::{MESSAGES_MAX, MessageIndex, Named, Position, Slot};
use crate::writer::subscribers::{Publication, Subscribers};

/// Entries of the message table that each publisher can have, whatever other publishers request.
pub const ENTRIES_RESERVED: u32 = MESSAGES_MAX / PUBLISHERS_MAX as u32 / 4;

/// Entries beyond `ENTRIES_RESERVED` that publishers of other hosts leave to those of this host: a quarter of
/// all publisher slots can have 256 entries each.
const ENTRIES_OF_THIS_HOST: u32 = PUBLISHERS_MAX as u32 / 4 * (256 - ENTRIES_RESERVED);

/// Describes a publisher that joins.
#[derive(Clone, Copy, Debug)]
pub struct PublisherSpec {
    /// Its identity.
    pub publisher: u64,
    /// Its process id, for display only.
    pub pid: u32,
    /// Bytes of its pool.
    pub pool_bytes: u64,
    /// Whether it is the manager, on behalf of a remote host.
    pub remote: bool,
    /// Entries of the message table that it wants. It gets fewer if not enough would remain to give `ENTRIES_RESERVED` to each publisher that may still
    /// join.
    pub messages: u32,
}

impl Default for PublisherSpec {
    fn default() -> Self {
        Self { publisher: 0, pid: 0, pool_bytes: 0, remote: false, messages: 256 }
    }
}

/// Describes a subscriber that joins.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberSpec {
    /// Keep-last depth, `DEPTH_MAX` at most; 0 is keep-all.
    pub depth: u32,
    /// Its process id, for display only.
    pub pid: u32,
    /// Whether it is the manager's sender to a remote host.
    pub remote: bool,
}

impl Default for SubscriberSpec {
    fn default() -> Self {
        Self { depth: 10, pid: 0, remote: false }
    }
}

/// The topic has no free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the topic has {limit} {what} on this host, which is the limit: stop one, or use a second topic (a publisher that left keeps its slot while a subscriber holds one of its messages)"
)]
pub struct Full {
    /// The number of slots.
    pub limit: usize,
    /// What the slots are for.
    pub what: &'static str,
}

/// A subscriber cannot join.
#[derive(Debug, thiserror::Error)]
pub enum NotAdmitted {
    /// No slot is free.
    #[error(transparent)]
    Full(#[from] Full),
    /// Its own words cannot be created.
    #[error(transparent)]
    Pages(#[from] AttachError),
}

/// The slots of one topic, as its manager assigns and frees them.
#[derive(Clone, Debug)]
pub struct SlotTable {
    segment: Arc<Segment>,
    subscribers: Arc<Mutex<Subscribers>>,
}

impl SlotTable {
    /// For a segment that this manager created, or that a client handed back after the death of its predecessor.
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { subscribers: Arc::new(Mutex::new(Subscribers::new(segment.clone()))), segment }
    }

    /// The segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Gives a publisher a slot and a run of the message table. If no slot is free, frees that of a publisher that has left, by dropping its
    /// messages, unless they are held or a keep-all subscriber has not read them.
    pub fn admit_publisher(&self, spec: &PublisherSpec) -> Result<PublisherSlot, Full> {
        self.admit_publisher_among(spec, PUBLISHERS_MAX)
    }

    /// Like `admit_publisher`, with at most `remote_max` slots for remote hosts, including draining ones. The other slots are for publishers of
    /// this host.
    pub fn admit_publisher_among(&self, spec: &PublisherSpec, remote_max: usize) -> Result<PublisherSlot, Full> {
        let draining: Vec<PublisherSlot> = self.draining().collect();
        let mut gone = draining.into_iter();
        loop {
            let is_beyond = spec.remote && self.remote_publishers() >= remote_max;
            if !is_beyond && let Some(slot) = self.try_admit_publisher(spec) {
                return Ok(slot);
            }
            let Some(slot) = gone.find(|slot| !is_beyond || self.is_remote(slot.index)) else {
                return Err(match is_beyond {
                    true => Full { limit: remote_max, what: "publishers of other hosts" },
                    false => Full { limit: PUBLISHERS_MAX, what: "publishers" },
                });
            };
            self.free_dropping(slot, Need::Soft);
        }
    }

    /// Slots of remote hosts' publishers, including draining ones.
    pub fn remote_publishers(&self) -> usize {
        let taken = self.segment.publishers().filter(|(_, state)| *state != Some(SlotState::Free));
        taken.filter(|(slot, _)| self.is_remote(slot.index)).count()
    }

    fn is_remote(&self, index: u16) -> bool {
        self.segment.publisher(index).is_some_and(|words| words.remote.load(Ordering::Relaxed) != 0)
    }

    fn try_admit_publisher(&self, spec: &PublisherSpec) -> Option<PublisherSlot> {
        for index in 0..PUBLISHERS_MAX as u16 {
            let Some(words) = self.segment.publisher(index) else { break };
            let (generation, Some(SlotState::Free)) = SlotState::decode(words.state.load(Ordering::Acquire)) else {
                continue;
            };
            let (first, count) = self.free_run(spec)?;
            let generation = generation.wrapping_add(1).max(1);
            words.publisher.store(spec.publisher, Ordering::Relaxed);
            words.pid.store(u64::from(spec.pid), Ordering::Relaxed);
            words.pool_bytes.store(spec.pool_bytes, Ordering::Relaxed);
            words.remote.store(u64::from(spec.remote), Ordering::Relaxed);
            for counter in
                [&words.used_entries, &words.published, &words.published_bytes, &words.used_bytes, &words.refused]
            {
                counter.store(0, Ordering::Relaxed);
            }
            words.joined.store(self.segment.queue().end().0, Ordering::Relaxed);
            words.entries.store(u64::from(first) << 32 | u64::from(count), Ordering::Relaxed);
            words.state.store(SlotState::Active.word(generation), Ordering::Release);
            set_bit(&self.segment.header().publishers.0, index);
            return Some(PublisherSlot { index, generation });
        }
        None
    }

    /// A free run of the message table: (first entry, length). It has as many entries as wanted, or fewer to leave `ENTRIES_RESERVED` to each publisher
    /// that may still join. Runs occupy multiples of `ENTRIES_RESERVED`, so that no free piece is smaller.
    fn free_run(&self, spec: &PublisherSpec) -> Option<(u32, u32)> {
        let taken = self.segment.publishers().filter(|(_, state)| *state != Some(SlotState::Free));
        let taken = taken.filter_map(|(slot, _)| self.segment.publisher(slot.index)).map(entries_of);
        let mut runs: Vec<(u32, u32)> =
            taken.map(|(first, count)| (first, count.next_multiple_of(ENTRIES_RESERVED))).collect();
        let to_come = (PUBLISHERS_MAX as u32).saturating_sub(runs.len() as u32 + 1);
        let left = MESSAGES_MAX.saturating_sub(runs.iter().map(|(_, count)| count).sum());
        let reserved = to_come * ENTRIES_RESERVED + if spec.remote { ENTRIES_OF_THIS_HOST } else { 0 };
        let wanted = spec.messages.clamp(1, left.saturating_sub(reserved).max(ENTRIES_RESERVED));
        runs.sort_unstable();
        runs.push((MESSAGES_MAX, 0));
        let mut longest = (0, 0);
        let mut from = 0;
        for (first, count) in runs {
            let free = first.saturating_sub(from);
            if free >= wanted {
                return Some((from, wanted));
            }
            if free > longest.1 {
                longest = (from, free);
            }
            from = from.max(first + count);
        }
        (longest.1 > 0).then_some(longest)
    }

    /// Entries of a publisher's run of the message table.
    pub fn run_entries(&self, slot: PublisherSlot) -> u32 {
        self.segment.publisher(slot.index).map_or(0, |words| entries_of(words).1)
    }

    /// Gives a subscriber a slot, and words of its own in its client's file (`pages`). It misses no message that is published after this returns.
    pub fn admit_subscriber(
        &self,
        spec: &SubscriberSpec,
        file: &Arc<SubscriberFile>,
    ) -> Result<SubscriberSlot, NotAdmitted> {
        for index in 0..SUBSCRIBERS_MAX as u16 {
            let Some(words) = self.segment.subscriber(index) else { break };
            let (generation, Some(SlotState::Free)) = SlotState::decode(words.state.load(Ordering::Acquire)) else {
                continue;
            };
            let generation = generation.wrapping_add(1).max(1);
            let slot = SubscriberSlot { index, generation };
            let pages = SubscriberPages::create(file, self.segment.topic(), slot)?;
            words.place.store(pages.place(), Ordering::Relaxed);
            // Until it has joined, `count_lost` must not see it: it was never to get what was lost before.
            let mut subscribers = self.subscribers();
            subscribers.add(Arc::new(pages), None);
            words.depth.store(u64::from(spec.depth.min(DEPTH_MAX)), Ordering::Relaxed);
            words.pid.store(u64::from(spec.pid), Ordering::Relaxed);
            words.remote.store(if spec.remote { NOT_LINKED } else { 0 }, Ordering::Relaxed);
            words.lost.store(0, Ordering::Relaxed);
            words.joined.store(JOINING, Ordering::Relaxed);
            let visible = || {
                // The bit first: if this manager dies in between, its successor finds the slot free and clears the bit.
                set_bit(&self.segment.header().subscribers.0, index);
                words.state.store(SlotState::Active.word(generation), Ordering::Release);
            };
            join(visible, &words.joined, self.segment.queue());
            drop(subscribers);
            return Ok(slot);
        }
        Err(Full { limit: SUBSCRIBERS_MAX, what: "subscribers" }.into())
    }

    /// Tells publishers whether a sender to a remote host is connected with it.
    pub fn set_linked(&self, slot: SubscriberSlot, is_linked: bool) {
        if self.segment.occupant(slot.index) == Some(slot)
            && let Some(words) = self.segment.subscriber(slot.index)
        {
            words.remote.store(if is_linked { LINKED } else { NOT_LINKED }, Ordering::Relaxed);
        }
    }

    /// Counts a port of a remote host that has ended, and returns how many have. Subscribers that look for history from now on have not had its history.
    pub fn end_port(&self) -> u32 {
        self.segment.header().ended_ports.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// A subscriber's own words, if this manager has them. A successor has them once the client has handed them back.
    pub fn pages(&self, slot: SubscriberSlot) -> Option<Arc<SubscriberPages>> {
        self.subscribers().pages(slot).cloned()
    }

    /// Adds a subscriber's own words that a client handed back, or that were found in its files, after a manager's death.
    pub fn adopt_pages(&self, pages: SubscriberPages) {
        let mut subscribers = self.subscribers();
        subscribers.remove(pages.slot().index);
        subscribers.add(Arc::new(pages), None);
    }

    /// The place of a subscriber's own words in its client's file.
    pub fn place_of(&self, slot: SubscriberSlot) -> u32 {
        self.segment.subscriber(slot.index).map_or(0, |words| words.place.load(Ordering::Relaxed))
    }

    /// Bytes of memory that the topic's files occupy.
    pub fn resident_bytes(&self) -> u64 {
        let subscribers = self.subscribers();
        let own = self.active_subscribers().filter_map(|slot| subscribers.pages(slot));
        self.segment.resident_bytes().unwrap_or(0) + own.map(|pages| pages.resident_bytes()).sum::<u64>()
    }

    /// Messages that living subscribers of this host have lost, as far as they know.
    pub fn lost(&self) -> u64 {
        let subscribers = self.subscribers();
        let of_each = self.active_subscribers().filter_map(|slot| {
            let record = self.segment.subscriber(slot.index)?;
            let words = subscribers.pages(slot)?.words();
            let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
            let losses = load(&words.lost).saturating_add(load(&record.lost)).saturating_sub(load(&words.forgiven));
            (load(&record.remote) == 0).then_some(losses)
        });
        of_each.fold(0, u64::saturating_add)
    }

    /// Frees the slot of a subscriber that left or died. All that it held counts as released.
    pub fn release_subscriber(&self, slot: SubscriberSlot) -> bool {
        let SubscriberSlot { index, generation } = slot;
        let Some(words) = self.segment.subscriber(index) else { return false };
        let header = self.segment.header();
        let (active, free) = (SlotState::Active.word(generation), SlotState::Free.word(generation));
        // Slots are freed only under this lock: `demote` relies on it.
        let mut subscribers = self.subscribers();
        if words.state.compare_exchange(active, free, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        clear_bit(&header.subscribers.0, index);
        clear_bit(&header.event_fds.0, index);
        let pages = subscribers.remove(index);
        drop(subscribers);
        if let Some(pages) = pages {
            pages.give_back();
        }
        wake_all(&header.space.0.count);
        true
    }

    /// Marks whether a subscriber has an eventfd, so that publishers signal it.
    pub fn mark_event_fd(&self, slot: SubscriberSlot, has: bool) {
        let mask = &self.segment.header().event_fds.0;
        if has { set_bit(mask, slot.index) } else { clear_bit(mask, slot.index) }
    }

    /// Changes a subscriber's keep-last depth, as a sender's follows the subscribers of its host. 0 is keep-all.
    pub fn set_depth(&self, slot: SubscriberSlot, depth: u32) {
        if let Some(words) = self.segment.subscriber(slot.index) {
            words.depth.store(u64::from(depth.min(DEPTH_MAX)), Ordering::Release);
        }
    }

    /// Makes a keep-all subscriber keep-last, after it has stalled publishers for too long. False if it is not keep-all, or has left; the slot's
    /// next occupant is never demoted by mistake.
    pub fn demote(&self, slot: SubscriberSlot, depth: u32) -> bool {
        let Some(words) = self.segment.subscriber(slot.index) else { return false };
        let _nobody_leaves = self.subscribers();
        if self.segment.occupant(slot.index) != Some(slot) {
            return false;
        }
        words.depth.compare_exchange(0, u64::from(depth.max(1)), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Counts messages lost on the way from another host, for each subscriber of this host that had joined by `since`, the position of the last
    /// message before the gap. A subscriber that joined later was never to get them.
    pub fn count_lost(&self, messages: u64, since: Position) {
        let _nobody_joins_or_leaves = self.subscribers();
        for slot in self.active_subscribers() {
            let Some(words) = self.segment.subscriber(slot.index) else { continue };
            if words.remote.load(Ordering::Relaxed) == 0 && words.joined.load(Ordering::Relaxed) <= since.0 {
                words.lost.fetch_add(messages, Ordering::Relaxed);
            }
        }
    }

    /// Drains the slot of a publisher that left or died: finishes or gives back its messages. Those that are still needed stay for `finish_draining`.
    pub fn drain_publisher(&self, slot: PublisherSlot) -> bool {
        let PublisherSlot { index, generation } = slot;
        let Some(words) = self.segment.publisher(index) else { return false };
        let (active, draining) = (SlotState::Active.word(generation), SlotState::Draining.word(generation));
        if words.state.compare_exchange(active, draining, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        let header = self.segment.header();
        clear_bit(&header.publishers.0, index);
        clear_bit(&header.space.0.sleepers, index);
        self.finish_draining(slot);
        self.segment.wake_everybody();
        true
    }

    /// Finishes the departures that a manager had begun when it died, after the first step of `release_subscriber` or `drain_publisher`.
    pub fn finish_departures(&self) {
        let header = self.segment.header();
        for mask in [&header.subscribers.0, &header.event_fds.0] {
            let gone = bits(mask).filter(|index| self.segment.occupant(*index).is_none());
            gone.for_each(|index| clear_bit(mask, index));
        }
        let active: Vec<u16> = self.active_publishers().map(|slot| slot.index).collect();
        for mask in [&header.publishers.0, &header.space.0.sleepers] {
            bits(mask).filter(|index| !active.contains(index)).for_each(|index| clear_bit(mask, index));
        }
        for slot in self.draining().collect::<Vec<_>>() {
            self.finish_draining(slot);
        }
        self.segment.wake_everybody();
    }

    /// Frees the messages of a draining publisher that no subscriber needs. Returns how many are left. At 0 its slot is free, and its pool may be
    /// released. Safe to repeat.
    pub fn finish_draining(&self, slot: PublisherSlot) -> usize {
        self.free_dropping(slot, Need::None)
    }

    /// Like `finish_draining`, but also frees messages whose need is at most `dropped`.
    fn free_dropping(&self, slot: PublisherSlot, dropped: Need) -> usize {
        let Some(words) = self.segment.publisher(slot.index) else { return 0 };
        if words.state.load(Ordering::Acquire) != SlotState::Draining.word(slot.generation) {
            return 0;
        }
        let subscribers = self.subscribers();
        let is_left = |index: &MessageIndex| !self.finish_message(&subscribers, *index, slot.index, dropped);
        let left = self.segment.used_entries(slot.index).filter(is_left).count();
        if left == 0 {
            words.used_bytes.store(0, Ordering::Relaxed);
            // Keep a remote host's entries: a successor reads in them what was received (last_received.rs).
            if words.remote.load(Ordering::Relaxed) == 0 {
                self.give_entries_back(slot.index, words);
            }
            words.state.store(SlotState::Free.word(slot.generation), Ordering::Release);
        }
        left
    }

    /// Gives the memory of a publisher's entries back. When these entries are used again, their generations go on from there, so that no word about
    /// an old message is taken for one about a new message.
    fn give_entries_back(&self, index: u16, words: &PublisherRecord) {
        let lives = self.segment.used_entries(index).filter_map(|index| self.segment.words(index).life());
        let first = &self.segment.header().first_generation;
        let last =
            lives.fold(Generation(first.load(Ordering::Acquire)), |last, life| last.later(life.generation.next()));
        first.store(last.0, Ordering::Release);
        words.used_entries.store(0, Ordering::Release);
        let (from, count) = entries_of(words);
        self.segment.clear_entries(from, count);
    }

    /// Draining publishers that still have messages.
    pub fn draining(&self) -> impl Iterator<Item = PublisherSlot> + '_ {
        self.publishers_in(SlotState::Draining)
    }

    /// Living publishers.
    pub fn active_publishers(&self) -> impl Iterator<Item = PublisherSlot> + '_ {
        self.publishers_in(SlotState::Active)
    }

    /// Whether a publisher still has its slot: it lives, or is draining.
    pub fn is_taken(&self, slot: PublisherSlot) -> bool {
        let Some(words) = self.segment.publisher(slot.index) else { return false };
        let (generation, state) = SlotState::decode(words.state.load(Ordering::Acquire));
        generation == slot.generation && state != Some(SlotState::Free)
    }

    /// Living subscribers.
    pub fn active_subscribers(&self) -> impl Iterator<Item = SubscriberSlot> + '_ {
        bits(&self.segment.header().subscribers.0).filter_map(|index| self.segment.occupant(index))
    }

    /// Messages of all publishers that are not free.
    pub fn messages_in_use(&self) -> usize {
        let in_use = |index: &MessageIndex| self.segment.words(*index).life().is_none_or(|l| l.state != State::Free);
        let taken = self.segment.publishers().filter(|(_, state)| *state != Some(SlotState::Free));
        taken.flat_map(|(slot, _)| self.segment.used_entries(slot.index)).filter(in_use).count()
    }

    fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publishers_in(&self, wanted: SlotState) -> impl Iterator<Item = PublisherSlot> + '_ {
        let found = self.segment.publishers().filter(move |(_, state)| *state == Some(wanted));
        found.map(|(slot, _)| slot)
    }

    /// True if this entry holds no message of the dead `owner` any more.
    fn finish_message(&self, subscribers: &Subscribers, index: MessageIndex, owner: u16, dropped: Need) -> bool {
        let words = self.segment.words(index);
        let Some(life) = words.life().filter(|life| life.owner == owner) else { return true };
        let generation = life.generation;
        match life.state {
            State::Free => true,
            State::Loaned => words.give_back(generation, owner),
            State::Published | State::Pending | State::Poisoned => {
                words.abandon(generation);
                // Its owner may have died between setting RECLAIMING and reading the hold words.
                words.cancel_reclaim(generation);
                debug_assert_ne!(words.readiness(generation), Readiness::Pending);
                let position = self.position(MessageRef { index, generation });
                let fence_passed = PublishFence::pass();
                let end = self.segment.queue().end().0;
                // Whether history kept it is lost with its owner: assume so.
                let publication = Publication { index, generation, position: position.map(|at| at.0), was_kept: true };
                words.try_reclaim(
                    (generation, owner),
                    fence_passed,
                    || subscribers.readers(publication).any(|reader| reader.need(end) > dropped),
                    || subscribers.readers(publication).any(|reader| reader.is_holding()),
                ) && words.finish(generation, owner)
            }
        }
    }

    /// The position of a dead publisher's message: the one that its entry notes, if the queue agrees, or else the one found in the queue. `None`
    /// if no queue slot names it: it was never published, or is overrun.
    fn position(&self, message: MessageRef) -> Option<Position> {
        let noted = Position(self.segment.message(message.index).position.load(Ordering::Acquire));
        let named = Named { message: message.index, generation: message.generation.low() };
        match self.segment.queue().read(noted) {
            Slot::Message(found) if noted.0 != u64::MAX && found == named => Some(noted),
            // `describe` clears the position before each life, so it is this message that is overrun. A search would take a whole lap.
            Slot::Overrun if noted.0 != u64::MAX => None,
            _ => find_in_queue(&self.segment, message),
        }
    }
}
