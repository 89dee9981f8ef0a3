//! A subscriber's port: take what is ready, hold it, let it go.
//!
//! A reader walks the queue from the position at which it joined. What it finds PENDING for it, it claims; what was revoked, it
//! passes by. It never frees, never locks, and reads the publisher's block where it lies.
//!
//! Deaths      at take.held or while messages are held: the manager moves the slot's generation on, which lets go of all of them.
//! Trusts      nothing: table indices, block offsets and lengths are checked here or by the mapping that the payload lies in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ahead::{read_life, waiting, walk};
use crate::claim::{Claimed, MessageName, PASSED_MAX, Seen, Sightings, take_named};
use crate::crash;
use crate::history::MessageRef;
use crate::info::{MessageInfo, Stamps, decode_path};
use crate::layout::{META_BYTES_MAX, MessageEntry, SlotState, SubscriberSlot};
use crate::message::{Claim, Generation, Holding, Life, MessageWords, Readiness, State, Tenancy, released_word};
use crate::notify::{FutexWait, ring, ring_always};
use crate::queue::{Named, Position, Slot};
use crate::segment::{Segment, whole};
use crate::unread::{UNREADY_MAX, Unread};
use crate::writer::PortError;

/// Which pool a message lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolRef {
    /// Publisher slot.
    pub slot: u8,
    /// Its occupation count.
    pub generation: u32,
}

/// A subscriber's port.
#[derive(Debug)]
pub struct ReaderPort {
    segment: Arc<Segment>,
    slot: u8,
    generation: u32,
    tenancy: Tenancy,
    cursor: Position,
    joined: Position,
    /// What history gave a late joiner, oldest first, claimed but not taken.
    backlog: VecDeque<(Position, MessageRef)>,
    /// Held, and passed by because their bytes were not there yet; oldest first.
    unready: VecDeque<Held>,
    /// What claims have seen.
    seen: Sightings,
    /// What those that `waiter` gives out have in common.
    waiter: FutexWait,
}

impl ReaderPort {
    /// Opens the port of an occupied subscriber slot. With `history` it first gets what publishers keep for late joiners.
    pub fn new(segment: Arc<Segment>, slot: u8, generation: u32, history: bool) -> Result<Self, PortError> {
        let ours = SlotState::Active.word(generation);
        let Some(subscriber) = segment.subscriber(slot).filter(|s| s.state.load(Ordering::Acquire) == ours) else {
            return Err(PortError::NotOurs { slot, generation });
        };
        // The manager noted where the queue ended before it let anybody see us: from there on nothing is missed.
        let cursor = Position(subscriber.cursor.load(Ordering::Acquire));
        let depth = subscriber.depth.load(Ordering::Relaxed);
        let tenancy = Tenancy::new(generation);
        let backlog = if history { claim_history(&segment, slot, tenancy, cursor, depth) } else { VecDeque::new() };
        let waiter = FutexWait::for_messages(segment.clone(), slot);
        Ok(Self {
            segment,
            slot,
            generation,
            tenancy,
            cursor,
            joined: cursor,
            backlog,
            unready: VecDeque::new(),
            seen: Sightings::default(),
            waiter,
        })
    }

    /// The next message whose bytes are there. One whose bytes are not holds up those of its publisher only.
    pub fn take(&mut self) -> Option<Held> {
        if let Some(held) = self.take_ready_now() {
            return Some(held);
        }
        while self.unready.len() < UNREADY_MAX {
            let held = self.next()?;
            let publisher = held.info.publisher;
            let in_turn = self.unready.iter().all(|earlier| earlier.info.publisher != publisher);
            if in_turn && held.readiness() == Readiness::Ready {
                return Some(held);
            }
            self.unready.push_back(held);
        }
        None
    }

    /// The next message, its bytes there or not: for a stream that waits for them.
    pub fn take_unready(&mut self) -> Option<Held> {
        while let Some(held) = self.unready.pop_front() {
            match held.readiness() {
                Readiness::Poisoned => self.count_poisoned(),
                Readiness::Pending | Readiness::Ready => return Some(held),
            }
        }
        self.next()
    }

    /// The message of this name, whatever lies before it: that goes on waiting, to be claimed later or taken next. One that `take` has given out
    /// before the first claim counts as not yet come.
    pub fn claim(&mut self, name: MessageName) -> Claimed {
        if let Some(held) = take_named(&mut self.unready, name) {
            return Claimed::Here(held);
        }
        if let Some((position, named)) = self.find(name)
            && let Some(held) = self.hold(position, named.message, named.generation)
        {
            self.pass_by(position, name);
            return Claimed::Here(held);
        }
        if self.seen.has_passed(name) { Claimed::Passed } else { Claimed::NotYet }
    }

    /// The message of this name, if it lies ahead and is this reader's to hold. All that is looked at on the way is noted.
    fn find(&mut self, name: MessageName) -> Option<(Position, Named)> {
        let Self { segment, slot, tenancy, cursor, backlog, seen, .. } = self;
        let mut found = None;
        walk(segment, *cursor, backlog, |position, named| {
            let Some(entry) = segment.message(named.message) else { return true };
            let Some((_, info)) = read_life(entry, position, named.generation) else { return true };
            seen.note(&info);
            if MessageName::of(&info) != name {
                return true;
            }
            found = waiting(segment, (*slot, *tenancy), named).map(|_| (position, named));
            false
        });
        found
    }

    /// From now on claims come in the order of each publisher: what they pass by of it is let go. Losses are counted from the first claim on.
    pub fn expect_claims_in_order(&mut self) {
        self.seen.expect_order();
    }

    /// Where the queue ended when this reader joined.
    pub fn joined(&self) -> Position {
        self.joined
    }

    /// A message at this position was claimed: what is before it waits on, within bounds, or is let go if claims come in order.
    fn pass_by(&mut self, claimed: Position, name: MessageName) {
        self.advance();
        if self.seen.gives_first() {
            let lost = &self.counters().lost;
            lost.fetch_sub(lost.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let ends = self.seen.give(name);
        let depth = self.counters().depth.load(Ordering::Relaxed);
        let keeps_all = depth == 0;
        let since_joined = self.segment.queue().end().0.saturating_sub(self.joined.0);
        if !keeps_all && !self.backlog.is_empty() && since_joined > depth {
            self.leave_backlog();
        }
        let queue = self.segment.queue();
        let oldest = Position(queue.end().0.saturating_sub(queue.capacity() / 2));
        // A keep-last subscriber's publishers see to its depth.
        if ends.is_none() && !keeps_all && self.cursor >= oldest {
            return;
        }
        let (seat, segment) = ((self.slot, self.tenancy), &self.segment);
        let is_ended = |position, named: Named| {
            let entry = segment.message(named.message).filter(|_| ends.is_some());
            let life = entry.and_then(|entry| read_life(entry, position, named.generation));
            life.is_some_and(|(_, info)| info.publisher == name.publisher && info.sequence < name.sequence)
        };
        let mut count = 0;
        walk(segment, self.cursor, &self.backlog, |position, named| {
            if position >= claimed {
                return false; // What comes after it has its own claims still to come, however old it is.
            }
            count += usize::from(!is_ended(position, named) && waiting(segment, seat, named).is_some());
            true
        });
        let mut excess = if keeps_all { count.saturating_sub(PASSED_MAX) } else { 0 };
        walk(segment, self.cursor, &self.backlog, |position, named| {
            if position >= claimed {
                return false;
            }
            let is_old = (self.cursor..oldest).contains(&position);
            let is_ended = is_ended(position, named);
            if (is_old || is_ended || excess > 0)
                && let Some(generation) = waiting(segment, seat, named)
                && let Some(entry) = segment.message(named.message)
                && entry.words().revoke(usize::from(self.slot), generation, self.tenancy)
            {
                let is_lost = !is_ended || ends == Some(true);
                self.counters().lost.fetch_add(u64::from(is_lost), Ordering::Relaxed);
                excess = excess.saturating_sub(usize::from(!is_ended));
            }
            true
        });
        self.advance();
    }

    /// What history gave and nobody claimed is older than the depth by now, as publishers see to for what came since. It was offered, and is not lost.
    fn leave_backlog(&mut self) {
        for (_, message) in self.backlog.drain(..) {
            if let Some(entry) = self.segment.message(message.index) {
                entry.words().revoke(usize::from(self.slot), message.generation, self.tenancy);
            }
        }
        self.advance();
    }

    /// Moves on to the oldest message that waits.
    fn advance(&mut self) {
        let seat = (self.slot, self.tenancy);
        let waits =
            |segment: &Segment, message, generation| waiting(segment, seat, Named { message, generation }).is_some();
        while let Some((_, message)) = self.backlog.front() {
            if waits(&self.segment, message.index, message.generation.low()) {
                return;
            }
            self.backlog.pop_front();
        }
        for _ in 0..=2 * self.segment.queue().capacity() {
            match self.segment.queue().read(self.cursor) {
                Slot::Message(named) if waits(&self.segment, named.message, named.generation) => return,
                Slot::Message(_) => self.move_to(self.cursor.next()),
                Slot::Overrun => self.move_to(self.segment.queue().begin().max(self.cursor.next())),
                Slot::Empty => return,
            }
        }
    }

    /// Of which publishers claims have seen messages, and the newest of each; the most recent first.
    pub fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter()
    }

    /// Whether `take` has passed messages by, and so must be called again without anybody ringing.
    pub fn awaits_bytes(&self) -> bool {
        !self.unready.is_empty()
    }

    /// What `take` would give out if it were called again and again now; nothing is taken. Counts `limit` at most.
    pub fn unread(&self, limit: usize) -> Unread {
        let mut unread = Unread::new(limit);
        for held in &self.unready {
            unread.note(held.info.publisher, held.readiness());
        }
        if !unread.is_full() {
            walk(&self.segment, self.cursor, &self.backlog, |_, named| {
                self.look_at(named, &mut unread);
                !unread.is_full()
            });
        }
        unread
    }

    /// Notes a message if it waits for this reader.
    fn look_at(&self, named: Named, unread: &mut Unread) {
        let Some(entry) = self.segment.message(named.message) else { return };
        let Some(life) = entry.words().life().filter(|life| life.generation.low() == named.generation) else { return };
        if entry.words().holding(usize::from(self.slot), life.generation, self.tenancy) == Holding::Pending {
            unread.note(entry.publisher.load(Ordering::Relaxed), entry.words().readiness(life.generation));
        }
    }

    fn take_ready_now(&mut self) -> Option<Held> {
        let mut place = 0;
        while let Some(held) = self.unready.get(place) {
            let publisher = held.info.publisher;
            let in_turn = self.unready.range(..place).all(|earlier| earlier.info.publisher != publisher);
            match held.readiness() {
                Readiness::Poisoned => {
                    self.unready.remove(place);
                    self.count_poisoned();
                }
                Readiness::Ready if in_turn => return self.unready.remove(place),
                Readiness::Ready | Readiness::Pending => place += 1,
            }
        }
        None
    }

    fn count_poisoned(&self) {
        self.counters().poisoned.fetch_add(1, Ordering::Relaxed);
    }

    fn next(&mut self) -> Option<Held> {
        while let Some((position, message)) = self.backlog.pop_front() {
            if let Some(held) = self.hold(position, message.index, message.generation.low()) {
                return Some(held);
            }
        }
        // A lap of the queue at most, and once more after an overrun.
        for _ in 0..=2 * self.segment.queue().capacity() {
            match self.segment.queue().read(self.cursor) {
                Slot::Empty => return None,
                Slot::Overrun => self.move_to(self.segment.queue().begin().max(self.cursor.next())),
                Slot::Message(named) => {
                    let position = self.cursor;
                    let held = self.hold(position, named.message, named.generation);
                    self.move_to(position.next());
                    if held.is_some() {
                        return held;
                    }
                }
            }
        }
        None
    }

    /// What history keeps and this reader has let go, once more, oldest first: for one that passes messages on to whoever has lost them.
    /// `is_wanted` chooses.
    pub fn take_history_again(&mut self, is_wanted: impl Fn(&MessageInfo) -> bool) -> Vec<Held> {
        let mut kept = history(&self.segment, self.cursor);
        kept.retain(|(position, message)| {
            let entry = self.segment.message(message.index);
            entry.is_some_and(|entry| {
                is_wanted(&read_info(entry, *position))
                    && entry.words().join_again(usize::from(self.slot), message.generation, self.tenancy)
            })
        });
        let claimed = kept.into_iter();
        claimed.filter_map(|(at, message)| self.hold(at, message.index, message.generation.low())).collect()
    }

    /// Takes no part in the topic any more, though messages that it has given out are still held: none is addressed to it, what it had not
    /// read is let go, and no publisher waits for it. The slot stays taken until the manager dismisses it.
    pub fn retire(&mut self) {
        // A slot that a manager has given to somebody else is that one's to change.
        if self.counters().state.load(Ordering::Acquire) != SlotState::Active.word(self.generation) {
            return;
        }
        let header = self.segment.header();
        header.subscribers.0.fetch_and(!(1 << self.slot), Ordering::SeqCst);
        // No keep-all subscriber that is behind.
        self.counters().depth.store(1, Ordering::Release);
        self.unready.clear();
        // Ends with what was addressed to it until now; a publisher that is in the middle of it may still add one message.
        while self.next().is_some() {}
    }

    /// What to sleep on until messages come. Several threads may, each on one of its own.
    pub fn waiter(&self) -> FutexWait {
        self.waiter.another()
    }

    /// Whoever sleeps on a waiter looks again.
    pub fn wake_waiters(&self) {
        ring_always(&self.segment.header().arrivals.0);
    }

    /// This subscriber's counters.
    pub fn counters(&self) -> &SubscriberSlot {
        counters(&self.segment, self.slot)
    }

    /// The subscriber slot and its tenancy.
    pub fn seat(&self) -> (u8, Tenancy) {
        (self.slot, self.tenancy)
    }

    /// The segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    fn move_to(&mut self, position: Position) {
        self.cursor = position;
        self.counters().cursor.store(position.0, Ordering::Release);
    }

    fn hold(&self, position: Position, index: crate::queue::MessageIndex, named: u16) -> Option<Held> {
        let entry = self.segment.message(index)?;
        let Claim::Held(generation) = entry.words().claim(usize::from(self.slot), named, self.tenancy) else {
            return None;
        };
        crash::point("take.held");
        let counters = self.counters();
        counters.taken.fetch_add(1, Ordering::Relaxed);
        counters.held.fetch_add(1, Ordering::Relaxed);
        let owner = entry.words().life().map_or(u8::MAX, |life| life.owner);
        let held = Held {
            segment: self.segment.clone(),
            slot: self.slot,
            tenancy: self.tenancy,
            message: MessageRef { index, generation },
            owner,
            info: read_info(entry, position),
        };
        if held.readiness() == Readiness::Poisoned {
            self.count_poisoned();
            return None;
        }
        Some(held)
    }
}

/// A message that is being read. Nothing can take it away; dropping it lets it go.
#[derive(Debug)]
pub struct Held {
    segment: Arc<Segment>,
    slot: u8,
    tenancy: Tenancy,
    message: MessageRef,
    owner: u8,
    info: MessageInfo,
}

impl Held {
    /// Where it came from and how.
    pub fn info(&self) -> &MessageInfo {
        &self.info
    }

    /// The pool that it lies in.
    pub fn pool(&self) -> PoolRef {
        PoolRef { slot: self.owner, generation: self.entry().pool_generation.load(Ordering::Relaxed) }
    }

    /// Its entry of the table, and which of the entry's lives.
    pub fn message(&self) -> MessageRef {
        self.message
    }

    /// Offset of its first byte in that pool. Another process wrote it: check it against the pool's mapping.
    pub fn offset(&self) -> u64 {
        self.entry().block_offset.load(Ordering::Relaxed)
    }

    /// Copies its typed metadata; returns the bytes in use.
    pub fn copy_meta(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        let entry = self.entry();
        let bytes = (entry.meta_bytes.load(Ordering::Relaxed) as usize).min(META_BYTES_MAX);
        for (to, word) in to.chunks_mut(8).zip(&entry.meta).take(bytes.div_ceil(8)) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }

    /// Whether its bytes are there yet.
    pub fn readiness(&self) -> Readiness {
        self.words().readiness(self.message.generation)
    }

    /// Where a stream waits for its bytes (`Segment::ready_word`).
    pub fn ready_word(&self) -> (u64, u32) {
        self.segment.ready_word(self.message)
    }

    /// What a stream writes to let it go: the offset of a 32-bit word of the segment, and the value. This is kept until it has, and then
    /// dropped, which is what tells the publisher.
    pub fn release_word(&self) -> (u64, u32) {
        (self.segment.geometry().holder_offset(self.message.index, self.slot), released_word(self.tenancy))
    }

    fn words(&self) -> MessageWords<'_> {
        self.entry().words()
    }

    fn entry(&self) -> &MessageEntry {
        match self.segment.message(self.message.index) {
            Some(entry) => entry,
            None => unreachable!("a held message names an entry of the table"),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A stream may have released it already.
        self.words().release(usize::from(self.slot), self.message.generation, self.tenancy);
        // The counter is the slot's: one who has left it meanwhile has no part in it.
        if self.segment.tenant(usize::from(self.slot)) == Some(self.tenancy) {
            counters(&self.segment, self.slot).held.fetch_sub(1, Ordering::Relaxed);
        }
        crash::point("release.done");
        tell_owner(&self.segment, self.owner);
    }
}

/// Tells the owner of a message that a holder has let go.
pub(crate) fn tell_owner(segment: &Segment, owner: u8) {
    if let Some(publisher) = segment.publisher(owner) {
        publisher.released.fetch_add(1, Ordering::Release);
    }
    ring(&segment.header().space.0);
}

/// What a message says of itself; the caller holds it, or lives with torn answers.
pub(crate) fn read_info(entry: &MessageEntry, position: Position) -> MessageInfo {
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let mut info = MessageInfo {
        position: position.0,
        publisher: load(&entry.publisher),
        sequence: load(&entry.sequence),
        source_host: whole([load(&entry.source_host[0]), load(&entry.source_host[1])]),
        host_epoch: load(&entry.host_epoch),
        kind: entry.kind.load(Ordering::Relaxed),
        bytes: load(&entry.block_bytes),
        stamps: Stamps {
            published: load(&entry.stamps[0]),
            staged: load(&entry.stamps[1]),
            sent: load(&entry.stamps[2]),
            landed: load(&entry.stamps[3]),
            pooled: load(&entry.stamps[4]),
        },
        ..MessageInfo::default()
    };
    decode_path(load(&entry.path), &mut info);
    info
}

fn counters(segment: &Segment, slot: u8) -> &SubscriberSlot {
    match segment.subscriber(slot) {
        Some(slot) => slot,
        None => unreachable!("the slot was checked by `new`"),
    }
}

/// Claims what history keeps from before `cursor`, the last `depth` of it (0: all), oldest first.
fn claim_history(
    segment: &Segment,
    slot: u8,
    tenancy: Tenancy,
    cursor: Position,
    depth: u64,
) -> VecDeque<(Position, MessageRef)> {
    let kept = history(segment, cursor);
    let skip = if depth == 0 { 0 } else { kept.len().saturating_sub(depth as usize) };
    kept.into_iter()
        .skip(skip)
        .filter(|(_, message)| {
            let words = segment.message(message.index).map(MessageEntry::words);
            words.is_some_and(|words| words.join_late(usize::from(slot), message.generation, tenancy))
        })
        .collect()
}

/// What history keeps from before `cursor`, oldest first.
fn history(segment: &Segment, cursor: Position) -> Vec<(Position, MessageRef)> {
    let mut kept: Vec<(Position, MessageRef)> = segment
        .indices()
        .filter_map(|index| {
            let entry = segment.message(index)?;
            let life = entry.words().life()?;
            let Life { generation, state: State::Published, .. } = life else { return None };
            let position = position_of(segment, entry, index, generation)?;
            let kept = entry.words().in_history(generation) && position < cursor;
            kept.then_some((position, MessageRef { index, generation }))
        })
        .collect();
    kept.sort_by_key(|(position, _)| *position);
    kept
}

/// A published message's position: its own note, or the queue's if the writer has not noted it yet; `None` if it has none yet.
fn position_of(
    segment: &Segment,
    entry: &MessageEntry,
    index: crate::queue::MessageIndex,
    generation: Generation,
) -> Option<Position> {
    let noted = entry.position.load(Ordering::Acquire);
    if noted != u64::MAX {
        return Some(Position(noted));
    }
    find_in_queue(segment, index, generation)
}

/// The position that names a message in this life.
pub(crate) fn find_in_queue(
    segment: &Segment,
    index: crate::queue::MessageIndex,
    generation: Generation,
) -> Option<Position> {
    let queue = segment.queue();
    queue.positions().map(Position).find(|position| {
        matches!(queue.read(*position), Slot::Message(named) if named.message == index && named.generation == generation.low())
    })
}
