//! A publisher's port: loans blocks, publishes them, and frees them once no subscriber needs them.
//!
//! The steps of a publication. Their order makes a death at any step harmless. The names are crash points:
//!
//! ```text
//!   crash point         state                                         after a death
//!   loan.entry          an entry of our run is LOANED                 the manager gives the entry back
//!   loan.block          a block of our pool is allocated              the pool is released as a whole
//!   publish.described   the entry's description is written            still LOANED: the manager gives the entry back
//!   publish.complete    the entry is complete, in no queue slot yet   no subscriber can find it: the manager frees it
//!   publish.reserved    one compare-exchange put it into the queue    subscribers read it; the manager wakes them
//!   publish.woken       subscribers are woken                         nothing is left to do
//!   reclaim.won         RECLAIMING is set, the block is not free yet  the pool is released as a whole
//! ```
//!
//! A batch (batch.rs) passes the steps up to publish.reserved once for each message, and publish.woken once.
//!
//! Invariants  W1 only this port allocates and frees in its pool and in its run of the table. W2 it frees the block of a published
//!             message once, after RECLAIMING is set.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rgaps_os::{AllocationRight, EventFd};

use crate::crash;
use crate::info::{MessageInfo, encode_path};
use crate::layout::{META_BYTES_MAX, MessageEntry, PublisherRecord, SlotState};
use crate::notify::{FutexWait, Wake};
use crate::pages::SubscriberPages;
use crate::segment::{Segment, entries_of, halves};
use crate::slot::{PublisherSlot, SubscriberSlot};
use crate::words::history::{History, MessageRef};
use crate::words::join::PublishFence;
use crate::words::message::{Generation, Need, State};
use crate::words::queue::{MessageIndex, Named, Position, QueueError};
use crate::writer::droppable::TakenCounts;
use crate::writer::pending::PendingMessage;
use crate::writer::pool::{Block, Extent, PoolAllocator, PoolStats};
use crate::writer::shared_pool::{Allocator, MessageBlock};
use crate::writer::space::{CutOff, Exhaustion, LoanError, PortError, Wanted, loan_within};
use crate::writer::subscribers::{Publication, Reader, Subscribers};

/// Messages that each loan tries to free. When space is short, a loan tries all of them.
const TRIED_PER_LOAN: usize = 8;

/// A message that is being filled. Publish it or give it back.
#[must_use = "a loan that is neither published nor given back keeps its block"]
#[derive(Debug)]
pub struct LoanedMessage {
    pub(crate) message: MessageRef,
    pub(crate) block: MessageBlock,
}

impl LoanedMessage {
    /// Its entry of the table, and the entry's life.
    pub fn message(&self) -> MessageRef {
        self.message
    }

    /// The block, for reading.
    pub fn block(&self) -> &Block {
        self.block.block()
    }

    /// The block, for filling; `None` if it is frozen.
    pub fn block_mut(&mut self) -> Option<&mut Block> {
        match &mut self.block {
            MessageBlock::Own(block) => Some(block),
            MessageBlock::Frozen(_) => None,
        }
    }

    /// Offset in the publisher's pool.
    pub fn offset(&self) -> u64 {
        self.block().offset()
    }
}

/// A publisher's description of its message.
#[derive(Clone, Copy, Debug)]
pub struct MessageSpec<'a> {
    /// Everything but the position, which the queue assigns.
    pub info: MessageInfo,
    /// Typed metadata, at most `META_BYTES_MAX` bytes.
    pub meta: &'a [u8],
    /// How many of this publisher's last messages late joiners get.
    pub history_depth: u32,
}

/// Publishing failed. The block is free again, unless a stream fills it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Metadata is too long.
    #[error("metadata of {0} B is longer than the {META_BYTES_MAX} B that a message can have")]
    Metadata(usize),
    /// The message is longer than its block.
    #[error("a message of {bytes} B does not fit its block of {block} B; loan a larger block")]
    Length {
        /// Bytes of the message.
        bytes: u64,
        /// Bytes of the block.
        block: u64,
    },
    /// The topic is unusable.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The port has lost its slot.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

/// Published and not yet reclaimed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(crate) message: MessageRef,
    /// `None`: the queue refused it.
    position: Option<Position>,
    /// Whether history ever kept it.
    was_kept: bool,
}

impl Outstanding {
    pub(crate) fn publication(&self) -> Publication {
        let MessageRef { index, generation } = self.message;
        Publication { index, generation, position: self.position.map(|at| at.0), was_kept: self.was_kept }
    }
}

/// The block of an entry of our run.
#[derive(Debug)]
pub(crate) enum EntryBlock {
    None,
    /// The loan has the block, which lies here.
    Loaned(Extent),
    Published(MessageBlock),
}

/// A publisher's port. There is one per publisher slot. The manager has one for each host that it receives from.
#[derive(Debug)]
pub struct WriterPort {
    pub(crate) segment: Arc<Segment>,
    slot: PublisherSlot,
    pub(crate) allocator: Allocator,
    pub(crate) history: History,
    /// Our run of the message table.
    first_entry: u32,
    first_generation: Generation,
    pub(crate) free_entries: VecDeque<MessageIndex>,
    /// By entry of the run.
    pub(crate) blocks: Vec<EntryBlock>,
    /// Oldest first.
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Where the next loan looks for something to free.
    next_to_try: usize,
    pub(crate) subscribers: Subscribers,
    /// The wait for space; `space` gives out further waiters of it.
    space: FutexWait,
    /// Subscribers that had read nothing when a wait for space ended; they may have read since.
    pub(crate) stalled: TakenCounts,
    /// Blocks that stay in use whatever is given up, while a loan decides that (room.rs).
    pub(crate) staying: Vec<Extent>,
}

/// From when on subscribers get a message: all by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since {
    /// Subscribers that joined at or after this position.
    pub(crate) position: u64,
    /// Of these, only those that looked for history after this many ports of remote hosts had ended.
    pub(crate) ended_ports: u32,
    /// Only those that want history.
    pub(crate) is_history: bool,
    /// The message may have been published before subscribers that joined at or after this position had joined.
    pub(crate) history: u64,
}

impl Default for Since {
    fn default() -> Self {
        Self { position: 0, ended_ports: 0, is_history: false, history: u64::MAX }
    }
}

impl WriterPort {
    /// Opens the port of an occupied publisher slot; `right` belongs to its pool.
    pub fn new(segment: Arc<Segment>, slot: PublisherSlot, right: AllocationRight) -> Result<Self, PortError> {
        Self::with(segment, slot, || Ok(Allocator::Own(PoolAllocator::new(right)?)))
    }

    pub(crate) fn with(
        segment: Arc<Segment>,
        slot: PublisherSlot,
        allocator: impl FnOnce() -> Result<Allocator, PortError>,
    ) -> Result<Self, PortError> {
        let cut_off = CutOff(slot.into());
        let words = segment.publisher(slot.index).ok_or(cut_off)?;
        if words.state.load(Ordering::Acquire) != SlotState::Active.word(slot.generation) {
            return Err(cut_off.into());
        }
        let (first_entry, entries) = entries_of(words);
        Ok(Self {
            subscribers: Subscribers::new(segment.clone()),
            space: FutexWait::for_space(segment.clone(), slot.index),
            stalled: TakenCounts::default(),
            staying: Vec::new(),
            allocator: allocator()?,
            history: History::default(),
            first_entry,
            first_generation: Generation(segment.header().first_generation.load(Ordering::Acquire)),
            free_entries: (first_entry..first_entry + entries).map(|index| MessageIndex(index as u16)).collect(),
            blocks: (0..entries).map(|_| EntryBlock::None).collect(),
            outstanding: VecDeque::with_capacity(entries as usize),
            next_to_try: 0,
            segment,
            slot,
        })
    }

    /// Loans a block for a message of `bytes` bytes without waiting. The caller waits as `Exhaustion::Wait` says (`loan` does).
    pub fn try_loan(&mut self, bytes: u64, exhaustion: Exhaustion) -> Result<LoanedMessage, LoanError> {
        self.check()?;
        // A message that never fits must not cost other messages.
        if !self.allocator.can_hold(bytes) {
            let capacity = self.allocator.stats().capacity_bytes;
            return Err(LoanError::TooLarge { wanted: bytes, capacity });
        }
        self.try_with(Wanted::Loan(bytes), exhaustion, |port| port.try_once(bytes))
    }

    /// Loans a block for a message of `bytes` bytes, and waits for space if `exhaustion` says so. After the time-out, nothing is taken from idle
    /// subscribers: a publisher does that by `give_up_on`.
    pub fn loan(&mut self, bytes: u64, exhaustion: Exhaustion) -> Result<LoanedMessage, LoanError> {
        let mut space = self.space();
        let loan = loan_within(&mut space, exhaustion, || self.try_loan(bytes, exhaustion));
        loan.map_err(|error| error.kept_by(self.keeper())).inspect_err(|_| self.count_refusal())
    }

    /// The slot of a keep-all subscriber that keeps space although nobody holds the message there: it has not read that message. For
    /// `SlotTable::demote`.
    pub fn stalled_by(&self) -> Option<SubscriberSlot> {
        let (_, end) = self.begin_pass();
        let stalls = |reader: &Reader<'_>| reader.depth == 0 && reader.need(end) == Need::Hard;
        self.outstanding.iter().map(Outstanding::publication).find_map(|publication| {
            let readers = || self.subscribers.readers(publication);
            let is_held = readers().any(|reader| reader.is_holding());
            let stalling = readers().find(stalls).filter(|_| !is_held);
            stalling.map(|reader| reader.slot)
        })
    }

    /// A waiter for space, for `loan_within`.
    pub fn space(&self) -> FutexWait {
        self.space.another()
    }

    /// Takes back a loan that will not be published.
    pub fn give_back(&mut self, loan: LoanedMessage) {
        self.give_back_entry(loan.message);
        self.allocator.reclaim(loan.block);
        self.show_use();
    }

    /// Publishes a filled block.
    pub fn publish(&mut self, loan: LoanedMessage, spec: &MessageSpec<'_>) -> Result<Position, WriteError> {
        self.publish_to(loan, spec, Since::default(), State::Published).map(|(position, _)| position)
    }

    /// Publishes a block that a stream fills. The message has its position from now on, and can be read once the stream has written the ready
    /// word (`Segment::ready_word`). Enqueue that write on the stream before this call, so that no wait for the word precedes it in a queue of
    /// the device. After an error the block and the entry stay in use, since the stream will still write.
    pub fn publish_pending(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
    ) -> Result<(Position, PendingMessage), WriteError> {
        let (position, message) = self.publish_to(loan, spec, Since::default(), State::Pending)?;
        Ok((position, PendingMessage::new(self.segment.clone(), message)))
    }

    /// `since`: subscribers that joined before that do not get the message. `state`: `Published`, or `Pending` if a stream writes the
    /// bytes.
    pub(crate) fn publish_to(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
        since: Since,
        state: State,
    ) -> Result<(Position, MessageRef), WriteError> {
        let published = self.enqueue(loan, spec, since, state)?;
        self.wake();
        Ok(published)
    }

    /// Like `publish_to`, without the wake-up: the caller must `wake` before it waits for anything.
    pub(crate) fn enqueue(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
        since: Since,
        state: State,
    ) -> Result<(Position, MessageRef), WriteError> {
        let block = loan.block().bytes();
        let refused = match spec {
            spec if spec.meta.len() > META_BYTES_MAX => Some(WriteError::Metadata(spec.meta.len())),
            spec if spec.info.bytes > block => Some(WriteError::Length { bytes: spec.info.bytes, block }),
            _ => self.check().err().map(WriteError::from),
        };
        if let Some(error) = refused {
            match state {
                State::Published => self.give_back(loan),
                // A stream will still write to the block.
                _ => std::mem::forget(loan),
            }
            return Err(error);
        }
        let message = loan.message;
        let entry = self.segment.message(message.index);
        self.describe(entry, loan.offset(), spec, since);
        crash::point("publish.described");
        let kept = spec.history_depth > 0;
        if !self.segment.words(message.index).complete(message.generation, self.slot.index, state, kept) {
            match state {
                State::Published => self.allocator.reclaim(loan.block),
                // A stream will still write to the block.
                _ => std::mem::forget(loan),
            }
            return Err(self.cut_off().into());
        }
        crash::point("publish.complete");
        let place = self.place(message.index);
        self.blocks[place] = EntryBlock::Published(self.allocator.published(loan.block));
        let named = Named { message: message.index, generation: message.generation.low() };
        let position = match self.segment.queue().publish(named) {
            Ok(position) => position,
            Err(error) => {
                // No late joiner could find it.
                self.outstanding.push_back(Outstanding { message, position: None, was_kept: false });
                leave_history(&self.segment, message);
                // A message that a stream still fills is not reclaimed.
                self.reclaim();
                return Err(error.into());
            }
        };
        crash::point("publish.reserved");
        self.segment.message(message.index).position.store(position.0, Ordering::Release);
        self.outstanding.push_back(Outstanding { message, position: Some(position), was_kept: kept });
        self.count(spec.info.bytes);
        let segment = &self.segment;
        self.history.push(spec.info.publisher, spec.history_depth, message, |old| leave_history(segment, old));
        Ok((position, message))
    }

    /// Wakes the subscribers, for all that was enqueued or lost.
    pub fn wake(&mut self) {
        let _ = self.subscribers.wake();
        crash::point("publish.woken");
    }

    /// Gives the port a subscriber's words, and its eventfd if it has one. Until the port has the words, it keeps every message for that subscriber
    /// that was published since the subscriber joined, or that history ever kept.
    pub fn add_subscriber(&mut self, pages: Arc<SubscriberPages>, event: Option<Arc<EventFd>>) {
        self.subscribers.forget_gone();
        self.subscribers.add(pages, event);
    }

    /// Subscribers whose words or eventfd this port lacks: the caller requests them from the manager. Also forgets subscribers that have left.
    pub fn unknown_subscribers(&mut self) -> Vec<SubscriberSlot> {
        self.subscribers.forget_gone();
        self.subscribers.unknown()
    }

    /// Whether this port lacks the words of a subscriber, so that it may keep messages that the subscriber does not need.
    pub fn lacks_words(&self) -> bool {
        self.subscribers.lack_words()
    }

    /// Subscribers on this host that are not closed.
    pub fn subscriber_count(&self) -> usize {
        self.subscribers.count()
    }

    /// Those of them that a message reaches now: remote hosts count while they are connected.
    pub fn linked_subscriber_count(&self) -> usize {
        self.subscribers.linked_count()
    }

    /// Takes the messages of a remote publisher that has left out of history.
    pub fn forget_publisher(&mut self, publisher: u64) {
        let segment = self.segment.clone();
        self.history.forget(publisher, |old| leave_history(&segment, old));
    }

    /// Frees the block of every message that no subscriber needs and history does not keep.
    pub fn reclaim(&mut self) {
        self.reclaim_among(0, usize::MAX);
    }

    /// Like `reclaim`, but tries only a few messages, and continues after them the next time.
    pub(crate) fn reclaim_some(&mut self) {
        let from = if self.next_to_try < self.outstanding.len() { self.next_to_try } else { 0 };
        let freed = self.reclaim_among(from, TRIED_PER_LOAN);
        self.next_to_try = from + TRIED_PER_LOAN - freed;
    }

    fn reclaim_among(&mut self, from: usize, count: usize) -> usize {
        if self.outstanding.is_empty() {
            return 0;
        }
        let pass = self.begin_pass();
        let (mut at, mut freed) = (from, 0);
        for _ in 0..count.min(self.outstanding.len().saturating_sub(from)) {
            if self.try_free(at, pass, |_| false) {
                freed += 1;
            } else {
                at += 1;
            }
        }
        self.show_use();
        freed
    }

    /// Passes the fence, and reads where the queue ends.
    pub(crate) fn begin_pass(&self) -> (PublishFence, u64) {
        (PublishFence::pass(), self.segment.queue().end().0)
    }

    /// Frees an outstanding message if no subscriber needs it. The need of a keep-last subscriber does not count where `may_lose` says so.
    pub(crate) fn try_free(
        &mut self,
        at: usize,
        (fence_passed, end): (PublishFence, u64),
        may_lose: impl Fn(&Reader<'_>) -> bool,
    ) -> bool {
        let Some(publication) = self.outstanding.get(at).map(|outstanding| outstanding.publication()) else {
            return false;
        };
        let Publication { index, generation, .. } = publication;
        let needs = |reader: Reader<'_>| match reader.need(end) {
            Need::Hard => true,
            Need::Soft => !may_lose(&reader),
            Need::None => false,
        };
        let words = self.segment.words(index);
        let won = words.try_reclaim(
            (generation, self.slot.index),
            fence_passed,
            || self.subscribers.readers(publication).any(needs),
            || self.subscribers.readers(publication).any(|reader| reader.is_holding()),
        );
        if !won {
            return false;
        }
        crash::point("reclaim.won");
        let place = self.place(index);
        if let EntryBlock::Published(block) = std::mem::replace(&mut self.blocks[place], EntryBlock::None) {
            self.allocator.reclaim(block);
        }
        words.finish(generation, self.slot.index);
        self.free_entries.push_back(index);
        self.outstanding.remove(at);
        true
    }

    /// How the pool is used.
    pub fn pool(&self) -> PoolStats {
        self.allocator.stats()
    }

    /// Messages published and not yet reclaimed.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The publisher slot and its generation.
    pub fn slot(&self) -> PublisherSlot {
        self.slot
    }

    /// The segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(crate) fn check(&self) -> Result<(), CutOff> {
        let ours = SlotState::Active.word(self.slot.generation);
        if self.record().state.load(Ordering::Acquire) == ours { Ok(()) } else { Err(self.cut_off()) }
    }

    fn cut_off(&self) -> CutOff {
        CutOff(self.slot.into())
    }

    pub(crate) fn place(&self, index: MessageIndex) -> usize {
        usize::from(index.0) - self.first_entry as usize
    }

    pub(crate) fn try_once(&mut self, bytes: u64) -> Result<LoanedMessage, LoanError> {
        let message = self.entry()?;
        crash::point("loan.entry");
        match self.allocator.allocate(bytes) {
            Ok(block) => {
                crash::point("loan.block");
                let place = self.place(message.index);
                self.blocks[place] = EntryBlock::Loaned(block.extent());
                self.show_use();
                Ok(LoanedMessage { message, block: MessageBlock::Own(block) })
            }
            Err(full) => {
                self.give_back_entry(message);
                Err(LoanError::Pool(full))
            }
        }
    }

    pub(crate) fn entry(&mut self) -> Result<MessageRef, LoanError> {
        self.loan_entry().ok_or(LoanError::Messages(self.blocks.len() as u32))
    }

    fn loan_entry(&mut self) -> Option<MessageRef> {
        let index = self.free_entries.pop_front()?;
        let used = self.place(index) as u64 + 1;
        let used_entries = &self.record().used_entries;
        if used_entries.load(Ordering::Relaxed) < used {
            used_entries.store(used, Ordering::Release);
        }
        // An entry of our run that is not free was overwritten by another process: do not use it.
        let generation = self.segment.words(index).try_loan(self.slot.index, self.first_generation)?;
        Some(MessageRef { index, generation })
    }

    fn give_back_entry(&mut self, message: MessageRef) {
        let place = self.place(message.index);
        self.blocks[place] = EntryBlock::None;
        self.segment.words(message.index).give_back(message.generation, self.slot.index);
        // To the end of the list, so that an entry keeps the description of its last message for as long as possible (last_received.rs).
        self.free_entries.push_back(message.index);
    }

    fn describe(&self, entry: &MessageEntry, offset: u64, spec: &MessageSpec<'_>, since: Since) {
        let info = &spec.info;
        let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        // A description belongs to the position in its entry (`last_received`): clear the position first, and set it last.
        store(&entry.position, u64::MAX);
        fence(Ordering::Release);
        entry.kind.store(info.kind, Ordering::Relaxed);
        entry.history_depth.store(spec.history_depth, Ordering::Relaxed);
        store(&entry.block_offset, offset);
        store(&entry.block_bytes, info.bytes);
        entry.pool_generation.store(self.slot.generation, Ordering::Relaxed);
        entry.meta_bytes.store(spec.meta.len() as u32, Ordering::Relaxed);
        store(&entry.publisher, info.publisher);
        store(&entry.sequence, info.sequence);
        store(&entry.since, since.position);
        entry.since_ports.store(since.ended_ports, Ordering::Relaxed);
        entry.is_history.store(u32::from(since.is_history), Ordering::Relaxed);
        store(&entry.history_since, since.history);
        let [low, high] = halves(info.source_host);
        store(&entry.source_host[0], low);
        store(&entry.source_host[1], high);
        store(&entry.host_epoch, info.host_epoch);
        store(&entry.path, encode_path(info));
        let stamps = &info.stamps;
        let values = [stamps.published, stamps.staged, stamps.sent, stamps.landed, stamps.pooled];
        entry.stamps.iter().zip(values).for_each(|(word, value)| store(word, value));
        for (word, bytes) in entry.meta.iter().zip(spec.meta.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            store(word, u64::from_le_bytes(value));
        }
    }

    fn count(&self, bytes: u64) {
        let slot = self.record();
        slot.published.fetch_add(1, Ordering::Relaxed);
        slot.published_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a loan that was refused or timed out.
    pub fn count_refusal(&self) {
        self.record().refused.fetch_add(1, Ordering::Relaxed);
    }

    fn show_use(&self) {
        self.record().used_bytes.store(self.allocator.stats().used_bytes, Ordering::Relaxed);
    }

    fn record(&self) -> &PublisherRecord {
        match self.segment.publisher(self.slot.index) {
            Some(record) => record,
            None => unreachable!("the slot was checked by `new`"),
        }
    }
}

pub(crate) fn leave_history(segment: &Segment, message: MessageRef) {
    segment.words(message.index).leave_history(message.generation);
}
