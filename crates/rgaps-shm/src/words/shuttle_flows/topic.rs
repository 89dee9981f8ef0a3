//! A small topic: the words of a segment, its subscribers as others know them, and the truth about its blocks.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::words::history::MessageRef;
use crate::words::message::{Generation, HoldWord, Life, MessageWords, Need, ReaderWords};
use crate::words::queue::{MessageIndex, Named, Position, Queue, Slot};
use crate::words::shuttle_flows::fates;
use crate::words::sync::{AtomicU32, AtomicU64, Ordering};
use crate::words::wake_up::{self, LastWakeUp};

pub(super) const PUBLISHERS: usize = 2;
pub(super) const SUBSCRIBERS: usize = 3;
/// Entries of each publisher's run.
pub(super) const RUN: usize = 3;
const ENTRIES: usize = PUBLISHERS * RUN;
/// More than all entries together, so that no keep-all subscriber is overrun.
const QUEUE_SLOTS: usize = 8;

/// An occupant of a slot: the slot's index and generation.
pub(super) type SlotId = (usize, u32);

pub(super) const FREE: u32 = 0;
pub(super) const ACTIVE: u32 = 1;
pub(super) const DRAINING: u32 = 2;

/// The state word of a slot.
pub(super) fn slot_state(generation: u32, state: u32) -> u32 {
    generation << 2 | state
}

#[derive(Default)]
pub(super) struct PublisherRecord {
    pub(super) state: AtomicU32,
    pub(super) joined: AtomicU64,
    pub(super) used: AtomicU64,
}

#[derive(Default)]
pub(super) struct SubscriberRecord {
    pub(super) state: AtomicU32,
    pub(super) joined: AtomicU64,
    pub(super) depth: AtomicU64,
}

#[derive(Default)]
pub(super) struct Entry {
    pub(super) life: AtomicU64,
    pub(super) ready: AtomicU32,
    pub(super) position: AtomicU64,
}

/// A subscriber's own words; each occupant has new ones.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) cursor: AtomicU64,
    pub(super) asleep: AtomicU32,
    holds: [AtomicU32; ENTRIES],
}

impl Pages {
    pub(super) fn hold(&self, index: MessageIndex) -> HoldWord<'_> {
        HoldWord(&self.holds[usize::from(index.0)])
    }
}

#[derive(Default)]
pub(super) struct Topic {
    tail: AtomicU64,
    slots: [AtomicU64; QUEUE_SLOTS],
    pub(super) entries: [Entry; ENTRIES],
    pub(super) first_generation: AtomicU32,
    pub(super) publisher_mask: AtomicU64,
    pub(super) publishers: [PublisherRecord; PUBLISHERS],
    pub(super) subscriber_mask: AtomicU64,
    pub(super) subscribers: [SubscriberRecord; SUBSCRIBERS],
    /// The word that subscribers sleep on.
    pub(super) publications: AtomicU32,
    /// Publisher slots that will have no further occupant.
    pub(super) closed: AtomicU32,
    /// Messages of the manager that each publisher has not read yet.
    pub(super) mail: [Mutex<Vec<Known>>; PUBLISHERS],
    truth: Mutex<Truth>,
}

/// A subscriber's words, as the manager hands them out.
pub(super) type Known = (SlotId, Arc<Pages>);

/// The truth that the checks compare with. Reading it is not a step.
#[derive(Default)]
pub(super) struct Truth {
    pub(super) blocks: [Block; ENTRIES],
    /// The payload published in each life of an entry.
    meant: HashMap<MessageRef, Payload>,
    /// Lives that have ended.
    ended: HashSet<MessageRef>,
    /// Every message before this position was published, and its publisher has woken the sleepers since.
    pub(super) announced: u64,
    pub(super) tally: Tally,
}

/// Counts of events, to see what the schedules reach.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) schedules: u64,
    pub(super) published: u64,
    pub(super) taken: u64,
    pub(super) lost: u64,
    pub(super) wanted: u64,
    pub(super) poisoned: u64,
    pub(super) slept: u64,
    pub(super) dropped: u64,
    pub(super) deaths: u64,
    pub(super) occupants: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.schedules += 1;
        self.published += other.published;
        self.taken += other.taken;
        self.lost += other.lost;
        self.wanted += other.wanted;
        self.poisoned += other.poisoned;
        self.slept += other.slept;
        self.dropped += other.dropped;
        self.deaths += other.deaths;
        self.occupants += other.occupants;
    }
}

/// A message's content: its publisher, and the publisher's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) publisher: SlotId,
    pub(super) sequence: u32,
}

#[derive(Default)]
pub(super) struct Block {
    is_allocated: bool,
    bytes: Option<Payload>,
    holders: Vec<SlotId>,
}

impl Block {
    pub(super) fn allocate(&mut self) {
        assert!(!self.is_allocated, "a block is allocated twice");
        self.is_allocated = true;
    }

    pub(super) fn free(&mut self) {
        assert!(self.is_allocated, "a block is freed twice");
        self.forget();
    }

    /// Frees the block of a dead owner, which may have freed it already.
    pub(super) fn forget(&mut self) {
        assert!(self.holders.is_empty(), "a block that {:?} hold is freed", self.holders);
        self.is_allocated = false;
    }

    /// The pool is unmapped.
    pub(super) fn wipe(&mut self) {
        self.forget();
        self.bytes = None;
    }

    pub(super) fn release(&mut self, slot: SlotId) {
        self.holders.retain(|holder| *holder != slot);
    }
}

impl Truth {
    pub(super) fn block(&mut self, index: MessageIndex) -> &mut Block {
        &mut self.blocks[usize::from(index.0)]
    }

    pub(super) fn mean(&mut self, message: MessageRef, payload: Payload) {
        let before = self.meant.insert(message, payload);
        assert_eq!(before, None, "a life of an entry has two messages: {message:?}");
    }

    pub(super) fn write(&mut self, message: MessageRef) {
        let payload = self.meant[&message];
        let block = self.block(message.index);
        assert!(block.is_allocated, "{message:?} has no block");
        block.bytes = Some(payload);
    }

    pub(super) fn hold(&mut self, slot: SlotId, message: MessageRef) -> Payload {
        assert!(!self.ended.contains(&message), "{slot:?} holds {message:?}, which is freed");
        self.block(message.index).holders.push(slot);
        self.meant[&message]
    }

    /// Checks that a held and ready message has the content that was published.
    pub(super) fn check(&mut self, message: MessageRef) {
        let meant = self.meant[&message];
        assert_eq!(self.block(message.index).bytes, Some(meant), "{message:?} is used again while it is held");
    }

    pub(super) fn end(&mut self, message: MessageRef) {
        assert!(self.ended.insert(message), "{message:?} is freed twice");
    }
}

impl Topic {
    pub(super) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn queue(&self) -> Queue<'_> {
        Queue::new(&self.tail, &self.slots)
    }

    pub(super) fn entry(&self, index: MessageIndex) -> &Entry {
        &self.entries[usize::from(index.0)]
    }

    pub(super) fn words(&self, index: MessageIndex) -> MessageWords<'_> {
        let entry = self.entry(index);
        MessageWords::new(&entry.life, &entry.ready)
    }

    /// Like `Segment::life_at`.
    pub(super) fn life_at(&self, position: u64, named: Named) -> Option<Life> {
        let joined = |owner| Some(self.publishers[usize::from(owner)].joined.load(Ordering::Relaxed));
        self.words(named.message).life_at(position, named.generation, joined)
    }

    /// Like `Segment::used_entries`.
    pub(super) fn used_entries(&self, slot: usize) -> impl Iterator<Item = MessageIndex> + use<> {
        let used = self.publishers[slot].used.load(Ordering::Acquire) as usize;
        (slot * RUN..slot * RUN + used.min(RUN)).map(|index| MessageIndex(index as u16))
    }

    /// Like `past::find_in_queue`.
    pub(super) fn find_in_queue(&self, message: MessageRef) -> Option<u64> {
        let named = named(message);
        let owner = self.words(message.index).life()?.owner;
        let joined = self.publishers[usize::from(owner)].joined.load(Ordering::Relaxed);
        let positions = self.queue().positions();
        (positions.start.max(joined)..positions.end)
            .rev()
            .find(|position| self.queue().read(Position(*position)) == Slot::Message(named))
    }

    /// Like `notify::wake_all`.
    pub(super) fn wake_all(&self) {
        self.publications.fetch_add(1, Ordering::AcqRel);
        fates::wake_all();
    }

    /// Like `futex::wait` on the publications, by a subscriber that has looked at all positions before `next`.
    pub(super) fn sleep(&self, seen: u32, next: u64) {
        if self.publications.load(Ordering::SeqCst) == seen {
            let mut truth = self.truth();
            truth.tally.slept += 1;
            let announced = truth.announced;
            drop(truth);
            assert!(
                next >= announced,
                "a subscriber sleeps that has looked only before {next}, and not before {announced}"
            );
            fates::sleep(next);
        }
    }

    fn occupants(&self) -> impl Iterator<Item = SlotId> + '_ {
        bits(&self.subscriber_mask).filter_map(|slot| {
            let state = self.subscribers[slot].state.load(Ordering::Acquire);
            (state & 3 == ACTIVE).then_some((slot, state >> 2))
        })
    }
}

pub(super) fn named(message: MessageRef) -> Named {
    Named { message: message.index, generation: message.generation.low() }
}

/// Like `segment::bits`.
pub(super) fn bits(mask: &AtomicU64) -> impl Iterator<Item = usize> + use<> {
    let word = mask.load(Ordering::Acquire);
    (0..64).filter(move |bit| word >> bit & 1 == 1)
}

/// What decides which subscribers could have a message.
#[derive(Clone, Copy)]
pub(super) struct Publication {
    pub(super) message: MessageRef,
    pub(super) position: Option<u64>,
    pub(super) was_kept: bool,
}

/// Like `subscribers::Reader`.
pub(super) struct Reader<'a> {
    publication: Publication,
    joined: u64,
    words: Option<ReaderWords<'a>>,
}

impl Reader<'_> {
    pub(super) fn need(&self, end: u64) -> Need {
        match (self.publication.position, self.words) {
            (None, _) => Need::None,
            (Some(position), Some(words)) => words.need(position, self.publication.message.generation, end),
            (Some(_), None) if self.could_have_it() => Need::Hard,
            (Some(_), None) => Need::None,
        }
    }

    pub(super) fn is_holding(&self) -> bool {
        self.words.map_or_else(|| self.could_have_it(), |words| words.is_holding(self.generation()))
    }

    fn generation(&self) -> Generation {
        self.publication.message.generation
    }

    fn could_have_it(&self) -> bool {
        self.publication.position.is_some_and(|position| self.publication.was_kept || position >= self.joined)
    }
}

/// Like `Subscribers`.
pub(super) struct Subscribers {
    pub(super) topic: Arc<Topic>,
    pub(super) known: [Option<(u32, Arc<Pages>)>; SUBSCRIBERS],
    last_wake_up: LastWakeUp,
}

impl Subscribers {
    pub(super) fn new(topic: Arc<Topic>) -> Self {
        Self { topic, known: Default::default(), last_wake_up: LastWakeUp::default() }
    }

    pub(super) fn add(&mut self, ((slot, generation), pages): Known) {
        self.known[slot] = Some((generation, pages));
    }

    pub(super) fn readers(&self, publication: Publication) -> impl Iterator<Item = Reader<'_>> {
        self.topic.occupants().map(move |slot| {
            let record = &self.topic.subscribers[slot.0];
            let joined = record.joined.load(Ordering::Acquire);
            let depth = record.depth.load(Ordering::Relaxed);
            let words = self.get(slot).map(|pages| {
                let hold = pages.hold(publication.message.index);
                ReaderWords { cursor: &pages.cursor, hold, joined, depth }
            });
            Reader { publication, joined, words }
        })
    }

    pub(super) fn wake(&mut self) {
        let (mut last, published) = (self.last_wake_up, self.topic.queue().end().0);
        let any_sleeps = |last: &LastWakeUp| {
            let announced = |pages: &Arc<Pages>| pages.asleep.load(Ordering::Relaxed);
            let is_asleep = |slot| self.get(slot).is_none_or(|pages| last.must_be_repeated_for(announced(pages)));
            self.topic.occupants().any(is_asleep)
        };
        if wake_up::must_wake(&self.topic.publications, &mut last, published, any_sleeps) {
            fates::wake_all();
        }
        self.last_wake_up = last;
    }

    fn get(&self, (slot, generation): SlotId) -> Option<&Arc<Pages>> {
        self.known[slot].as_ref().filter(|known| known.0 == generation).map(|known| &known.1)
    }
}
