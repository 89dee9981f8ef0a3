//! A publisher's port: loan a block, publish it, learn when its block is free again.
//!
//! A publication's steps, in the order that makes a death at any of them harmless (the names are crash points):
//!
//! ```text
//!   loan.entry       the table entry is LOANED to us              dead owner: the manager gives it back
//!   loan.block       a block of our pool                          the pool goes as a whole
//!   publish.addressed holder words: PENDING for each subscriber   still LOANED: given back
//!   publish.complete the entry is PUBLISHED, in no slot yet       the manager revokes what nobody can find
//!   publish.claimed  one compare-exchange: it is in the queue     subscribers read it; the manager wakes them
//!   publish.offered  offered to who joined in between             they find it themselves (message.rs, claim)
//!   publish.woken    subscribers woken; keep-last and history trimmed,  the next writer trims further
//!                    who lost by it and has a descriptor told
//! ```
//!
//! Invariants  W1 only this port allocates and frees in its pool. W2 a block is freed after RECLAIMING was won, once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rgaps_os::{AllocationRight, EventFd, MapError};

use crate::crash;
use crate::give_way::{Readers, drop_oldest_unread};
use crate::history::{History, MessageRef};
use crate::info::{MessageInfo, encode_path};
use crate::keep_last::trim_keep_last;
use crate::layout::{META_BYTES_MAX, MessageEntry, PublisherSlot, SlotState};
use crate::message::{Generation, Holding, MessageWords, Tenancy};
use crate::notify::{Bells, FutexWait, Wait, Wake};
use crate::pool::{Block, PoolAllocator, PoolFull, PoolStats};
use crate::queue::{MessageIndex, Named, Position, QueueError};
use crate::segment::{Segment, bits, halves};
use crate::unready::Unready;

/// How often a writer that waits for space looks by itself: a stream that lets a message go rings nobody.
const LOOK_FOR_SPACE: Duration = Duration::from_millis(2);

/// What a publisher does when there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhaustion {
    /// Wait until subscribers let go, at most so long.
    Wait(Duration),
    /// Take the oldest messages away from keep-last subscribers that have not taken them.
    DropOldest,
    /// Say so at once.
    Refuse,
}

/// No loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoanError {
    /// The pool has no block of that size.
    #[error("the pool is full: {0}; release messages or raise pool_bytes")]
    Pool(PoolFull),
    /// The message could never fit.
    #[error("a message of {wanted} B is larger than the pool of {capacity} B; raise pool_bytes")]
    TooLarge {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the pool.
        capacity: u64,
    },
    /// Every entry of the message table is in use.
    #[error("all {0} messages of the topic are in use; release messages or raise message_count")]
    Messages(u32),
    /// It stayed so until the time-out.
    #[error("no space after {waited_ms} ms: {full}; a keep-all subscriber is stalled, or messages are held too long")]
    TimedOut {
        /// How long the publisher waited.
        waited_ms: u64,
        /// What was missing, as text would say it.
        full: NoSpace,
    },
}

/// What was missing when a wait for space ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSpace {
    /// A block.
    #[error("{0}")]
    Pool(PoolFull),
    /// A message entry.
    #[error("all {0} messages of the topic are in use")]
    Messages(u32),
}

/// A port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The slot is not ours.
    #[error("slot {slot} is not occupied by generation {generation}: the manager gave it to somebody else")]
    NotOurs {
        /// The slot.
        slot: u8,
        /// The generation that was expected.
        generation: u32,
    },
    /// No memory for the allocator.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A message that is being filled. Publish it or give it back.
#[must_use = "a loan that is neither published nor given back keeps its block"]
#[derive(Debug)]
pub struct LoanedMessage {
    message: MessageRef,
    block: Block,
}

impl LoanedMessage {
    /// Its entry of the table, and which of the entry's lives.
    pub fn message(&self) -> MessageRef {
        self.message
    }

    /// The block, to be read.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// The block to fill.
    pub fn block_mut(&mut self) -> &mut Block {
        &mut self.block
    }

    /// Offset in the publisher's pool.
    pub fn offset(&self) -> u64 {
        self.block.offset()
    }
}

/// What a publisher says of its message.
#[derive(Clone, Copy, Debug)]
pub struct MessageSpec<'a> {
    /// All but the position, which the queue gives.
    pub info: MessageInfo,
    /// Typed metadata, at most `META_BYTES_MAX` bytes.
    pub meta: &'a [u8],
    /// How many last messages of this publisher late joiners get.
    pub history_depth: u32,
}

/// Publishing failed; the block is free again, unless a stream fills it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Metadata is too long.
    #[error("metadata of {0} B exceeds {META_BYTES_MAX} B")]
    Metadata(usize),
    /// The message is longer than its block.
    #[error("a message of {bytes} B does not fit its block of {block} B")]
    Length {
        /// Bytes of the message.
        bytes: u64,
        /// Bytes of the block.
        block: u64,
    },
    /// The topic is unusable.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A publisher's port. One a publisher slot; the manager has one for each host that it receives from.
#[derive(Debug)]
pub struct WriterPort {
    segment: Arc<Segment>,
    slot: u8,
    generation: u32,
    allocator: PoolAllocator,
    history: History,
    /// Blocks by table entry.
    blocks: Vec<Option<Block>>,
    /// Published and not yet reclaimed, oldest first.
    outstanding: VecDeque<MessageRef>,
    bells: Bells,
    /// What those that `space` gives out have in common.
    space: FutexWait,
    /// Who read nothing while space was waited for, and may have read since.
    stalled: Readers,
    seen_released: u64,
    next_entry: u16,
}

impl WriterPort {
    /// Opens the port of an occupied publisher slot; `right` belongs to its pool.
    pub fn new(segment: Arc<Segment>, slot: u8, generation: u32, right: AllocationRight) -> Result<Self, PortError> {
        let ours = SlotState::Active.word(generation);
        if segment.publisher(slot).is_none_or(|publisher| publisher.state.load(Ordering::Acquire) != ours) {
            return Err(PortError::NotOurs { slot, generation });
        }
        let messages = segment.geometry().messages as usize;
        Ok(Self {
            bells: Bells::new(segment.clone()),
            space: FutexWait::for_space(segment.clone(), slot),
            stalled: Readers::default(),
            allocator: PoolAllocator::new(right)?,
            history: History::default(),
            blocks: (0..messages).map(|_| None).collect(),
            outstanding: VecDeque::with_capacity(messages),
            seen_released: 0,
            next_entry: 0,
            segment,
            slot,
            generation,
        })
    }

    /// A block for a message of `bytes` bytes, now or never: what `Exhaustion` asks for is the caller's loop (`loan`).
    pub fn try_loan(&mut self, bytes: u64, exhaustion: Exhaustion) -> Result<LoanedMessage, LoanError> {
        let capacity = self.allocator.stats().capacity_bytes;
        if bytes > capacity {
            return Err(LoanError::TooLarge { wanted: bytes, capacity });
        }
        self.reclaim_if_released();
        let mut error = match self.try_once(bytes) {
            Ok(loan) => return Ok(loan),
            Err(error) => error,
        };
        self.reclaim();
        // Each turn gives up one message of this port, so the loop ends with the outstanding ones.
        for _ in 0..=self.outstanding.len() {
            match self.try_once(bytes) {
                Ok(loan) => return Ok(loan),
                Err(now) => error = now,
            }
            let gave_up = match exhaustion {
                Exhaustion::DropOldest => {
                    self.give_up_history() || drop_oldest_unread(&self.segment, &self.outstanding)
                }
                Exhaustion::Wait(_) => {
                    self.give_up_history() || self.stalled.drop_oldest(&self.segment, &self.outstanding)
                }
                Exhaustion::Refuse => self.give_up_history(),
            };
            if !gave_up {
                break;
            }
            self.reclaim();
        }
        Err(error)
    }

    /// A block for a message of `bytes` bytes, after waiting for space if `exhaustion` says so.
    pub fn loan(&mut self, bytes: u64, exhaustion: Exhaustion) -> Result<LoanedMessage, LoanError> {
        let mut space = self.space();
        loan_within(&mut space, exhaustion, || self.try_loan(bytes, exhaustion)).inspect_err(|_| self.count_refusal())
    }

    /// What `loan_within` sleeps on.
    pub fn space(&self) -> FutexWait {
        self.space.another()
    }

    /// Takes back a loan that will not be published.
    pub fn give_back(&mut self, loan: LoanedMessage) {
        if let Some(entry) = self.segment.message(loan.message.index) {
            entry.words().give_back(loan.message.generation, self.slot);
        }
        self.allocator.free(loan.block);
        self.show_use();
    }

    /// Publishes a filled block.
    pub fn publish(&mut self, loan: LoanedMessage, spec: &MessageSpec<'_>) -> Result<Position, PublishError> {
        self.publish_to(loan, spec, None, Bytes::AreThere).map(|(position, _)| position)
    }

    /// Publishes a block that a stream fills: in the order of the queue from now on, to be read once the stream has written the word
    /// (`Segment::ready_word`). It has been told to before, so that no wait for the word stands before it in a queue of the device. After an
    /// error block and entry stay taken, for it will still write.
    pub fn publish_unready(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
    ) -> Result<(Position, Unready), PublishError> {
        let (position, message) = self.publish_to(loan, spec, None, Bytes::WillCome)?;
        Ok((position, Unready::new(self.segment.clone(), message)))
    }

    /// Publishes a message that has been published here before, at `seen` or earlier, and is wanted again for history: who was here
    /// then does not get it twice.
    pub fn publish_again(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
        seen: Position,
    ) -> Result<Position, PublishError> {
        self.publish_to(loan, spec, Some(seen), Bytes::AreThere).map(|(position, _)| position)
    }

    fn publish_to(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
        seen: Option<Position>,
        bytes: Bytes,
    ) -> Result<(Position, MessageRef), PublishError> {
        let block = loan.block.bytes();
        let refused = match spec {
            spec if spec.meta.len() > META_BYTES_MAX => Some(PublishError::Metadata(spec.meta.len())),
            spec if spec.info.bytes > block => Some(PublishError::Length { bytes: spec.info.bytes, block }),
            _ => None,
        };
        if let Some(error) = refused {
            if bytes == Bytes::AreThere {
                self.give_back(loan);
            }
            return Err(error);
        }
        let segment = self.segment.clone();
        let message = loan.message;
        let Some(entry) = segment.message(message.index) else { unreachable!("a loan names an entry of the table") };
        self.describe(entry, &loan, spec);
        let words = entry.words();
        address(&segment, words, message.generation);
        if let Some(seen) = seen {
            spare_those_here_at(&segment, words, message.generation, seen);
        }
        crash::point("publish.addressed");
        if bytes == Bytes::AreThere {
            words.make_ready(message.generation);
        }
        words.complete(message.generation, self.slot);
        crash::point("publish.complete");
        self.blocks[usize::from(message.index.0)] = Some(loan.block);
        self.outstanding.push_back(message);
        let named = Named { message: message.index, generation: message.generation.low() };
        let position = match segment.queue().publish(named) {
            Ok(position) => position,
            Err(error) => {
                if bytes == Bytes::AreThere {
                    self.withdraw(message);
                }
                return Err(error.into());
            }
        };
        crash::point("publish.claimed");
        entry.position.store(position.0, Ordering::Release);
        offer_to_newcomers(&segment, words, message.generation);
        crash::point("publish.offered");
        let _ = self.bells.wake();
        crash::point("publish.woken");
        self.count(spec.info.bytes);
        let losers = trim_keep_last(&segment, position);
        if losers != 0 {
            self.bells.tell_lost(losers);
        }
        self.history.push(spec.info.publisher, spec.history_depth, message, |old| leave_history(&segment, old));
        Ok((position, message))
    }

    /// Gives the port the event descriptor of a subscriber.
    pub fn add_event(&mut self, slot: u8, tenancy: Tenancy, event: EventFd) {
        self.bells.add(slot, tenancy, event);
    }

    /// Lets go of what is kept of a remote publisher that is gone.
    pub fn forget_publisher(&mut self, publisher: u64) {
        let segment = self.segment.clone();
        self.history.forget(publisher, |old| leave_history(&segment, old));
    }

    /// Frees every block that nobody reads any more.
    pub fn reclaim(&mut self) {
        let segment = self.segment.clone();
        let slot = self.slot;
        let (blocks, allocator) = (&mut self.blocks, &mut self.allocator);
        self.outstanding.retain(|message| {
            let Some(entry) = segment.message(message.index) else { return false };
            if !entry.words().try_reclaim(message.generation, slot, |s| segment.tenant(s)) {
                return true;
            }
            crash::point("reclaim.won");
            if let Some(block) = blocks[usize::from(message.index.0)].take() {
                allocator.free(block);
            }
            entry.words().finish(message.generation, slot);
            false
        });
        self.show_use();
    }

    /// How the pool is used.
    pub fn pool(&self) -> PoolStats {
        self.allocator.stats()
    }

    /// Messages published and not yet reclaimed.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The publisher slot and its occupation count.
    pub fn seat(&self) -> (u8, u32) {
        (self.slot, self.generation)
    }

    /// The segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    fn try_once(&mut self, bytes: u64) -> Result<LoanedMessage, LoanError> {
        let (index, generation) = self.loan_entry().ok_or(LoanError::Messages(self.segment.geometry().messages))?;
        crash::point("loan.entry");
        match self.allocator.allocate(bytes) {
            Ok(block) => {
                crash::point("loan.block");
                self.show_use();
                Ok(LoanedMessage { message: MessageRef { index, generation }, block })
            }
            Err(full) => {
                if let Some(entry) = self.segment.message(index) {
                    entry.words().give_back(generation, self.slot);
                }
                Err(LoanError::Pool(full))
            }
        }
    }

    fn loan_entry(&mut self) -> Option<(MessageIndex, Generation)> {
        let messages = self.segment.geometry().messages as u16;
        for step in 0..messages {
            let index = MessageIndex((self.next_entry + step) % messages);
            if let Some(generation) = self.segment.message(index)?.words().try_loan(self.slot) {
                self.next_entry = (index.0 + 1) % messages;
                return Some((index, generation));
            }
        }
        None
    }

    fn reclaim_if_released(&mut self) {
        let released = self.slot_words().released.load(Ordering::Acquire);
        if released != self.seen_released || self.outstanding.len() > self.blocks.len() / 2 {
            self.seen_released = released;
            self.reclaim();
        }
    }

    fn give_up_history(&mut self) -> bool {
        let Some(oldest) = self.history.pop_oldest() else { return false };
        leave_history(&self.segment, oldest);
        true
    }

    /// Who could be in the way of `loan` now: for `give_up_on`, after a wait.
    pub fn readers(&self) -> Readers {
        Readers::of(&self.segment)
    }

    /// Space was waited for in vain since `readers` were looked up. Those of them that have read nothing meanwhile are waited for no more: until
    /// they read again, `Exhaustion::Wait` takes their oldest unread messages as `DropOldest` does.
    pub fn give_up_on(&mut self, readers: Readers) {
        self.stalled = readers;
    }

    fn withdraw(&mut self, message: MessageRef) {
        let Some(entry) = self.segment.message(message.index) else { return };
        for slot in bits(&self.segment.header().subscribers.0) {
            if let Some(tenancy) = self.segment.tenant(usize::from(slot)) {
                entry.words().revoke(usize::from(slot), message.generation, tenancy);
            }
        }
        leave_history(&self.segment, message);
        self.reclaim();
    }

    fn describe(&self, entry: &MessageEntry, loan: &LoanedMessage, spec: &MessageSpec<'_>) {
        let info = &spec.info;
        let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        // What the entry says belongs to its position (`newest`): that goes first and comes last.
        store(&entry.position, u64::MAX);
        fence(Ordering::Release);
        entry.kind.store(info.kind, Ordering::Relaxed);
        store(&entry.block_offset, loan.block.offset());
        store(&entry.block_bytes, info.bytes);
        entry.pool_generation.store(self.generation, Ordering::Relaxed);
        entry.meta_bytes.store(spec.meta.len() as u32, Ordering::Relaxed);
        store(&entry.publisher, info.publisher);
        store(&entry.sequence, info.sequence);
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
        let slot = self.slot_words();
        slot.published.fetch_add(1, Ordering::Relaxed);
        slot.published_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a loan that was refused or timed out.
    pub fn count_refusal(&self) {
        self.slot_words().refused.fetch_add(1, Ordering::Relaxed);
    }

    fn show_use(&self) {
        self.slot_words().used_bytes.store(self.allocator.stats().used_bytes, Ordering::Relaxed);
    }

    fn slot_words(&self) -> &PublisherSlot {
        match self.segment.publisher(self.slot) {
            Some(slot) => slot,
            None => unreachable!("the slot was checked by `new`"),
        }
    }
}

/// Repeats `attempt` until it succeeds or the time of `Exhaustion::Wait` is over. `space` is armed before each look.
pub fn loan_within(
    space: &mut FutexWait,
    exhaustion: Exhaustion,
    mut attempt: impl FnMut() -> Result<LoanedMessage, LoanError>,
) -> Result<LoanedMessage, LoanError> {
    let Exhaustion::Wait(timeout) = exhaustion else { return attempt() };
    let start = Instant::now();
    loop {
        let _ = space.arm();
        let outcome = attempt();
        let full = match outcome {
            Err(LoanError::Pool(full)) => NoSpace::Pool(full),
            Err(LoanError::Messages(messages)) => NoSpace::Messages(messages),
            done => {
                space.disarm();
                return done;
            }
        };
        let waited = start.elapsed();
        if waited >= timeout {
            space.disarm();
            return Err(LoanError::TimedOut { waited_ms: waited.as_millis() as u64, full });
        }
        let _ = space.wait((timeout - waited).min(LOOK_FOR_SPACE));
    }
}

/// Whether a block that is published is filled already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    AreThere,
    WillCome,
}

fn address(segment: &Segment, words: MessageWords<'_>, generation: Generation) {
    let mask = segment.header().subscribers.0.load(Ordering::Acquire);
    words.address_to(generation, |slot| if mask >> slot & 1 == 1 { segment.tenant(slot) } else { None });
}

/// RELEASED instead of PENDING for whoever joined at `seen` or before.
fn spare_those_here_at(segment: &Segment, words: MessageWords<'_>, generation: Generation, seen: Position) {
    for slot in bits(&segment.header().subscribers.0) {
        let Some(subscriber) = segment.subscriber(slot) else { continue };
        let Some(tenancy) = segment.tenant(usize::from(slot)) else { continue };
        if subscriber.joined.load(Ordering::Relaxed) <= seen.0 {
            words.revoke(usize::from(slot), generation, tenancy);
        }
    }
}

/// A subscriber that joined between `address` and the claim either sees the claimed slot, or is seen here.
fn offer_to_newcomers(segment: &Segment, words: MessageWords<'_>, generation: Generation) {
    fence(Ordering::SeqCst);
    for slot in bits(&segment.header().subscribers.0) {
        let slot = usize::from(slot);
        let Some(tenancy) = segment.tenant(slot) else { continue };
        if words.holding(slot, generation, tenancy) == Holding::Free {
            words.offer(slot, generation, tenancy);
        }
    }
}

fn leave_history(segment: &Segment, message: MessageRef) {
    if let Some(entry) = segment.message(message.index) {
        entry.words().leave_history(message.generation);
    }
}
