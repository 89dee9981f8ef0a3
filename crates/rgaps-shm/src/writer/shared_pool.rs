//! A pool that several ports of one process allocate in, so that one block can be a message of several topics.
//!
//! ```text
//!   allocate ──▶ Block (its owner fills it) ──freeze──▶ Arc<FrozenBlock> ──try_loan_frozen, publish──▶ an entry of each table
//!                  │ free                                   │ dropped                           │ reclaimed
//!                  ▼                                        ▼                                   ▼
//!                free ◀──────────────────── when the last of these has gone ────────────────────┘
//! ```
//!
//! Invariants  SP1 the CPU never writes a frozen block: nothing gives out its `Block` for that. (A stream may still fill it.) SP2 its last `Arc` frees it, once.
//!             SP3 a publisher that leaves does not free the blocks of messages that subscribers may still read: `LeftMessages` keeps them until the
//!             manager has freed their entries.
//! Deaths      of the process: as with a pool of one port, the manager releases the pool as a whole, when no topic has a message in it any more. Of
//!             the manager: an entry that it has not freed stays, and so does its block, if no other process brings the segment to its successor.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rgaps_os::{AllocationRight, ForkGuard, MapError};

use crate::segment::Segment;
use crate::words::history::MessageRef;
use crate::writer::pool::{Block, Extent, PoolAllocator, PoolFull, PoolStats};

/// The allocator of a pool that ports share. Cheap to clone; every clone is the same pool.
#[derive(Clone, Debug)]
pub struct SharedPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    fork: ForkGuard,
    in_use: Mutex<InUse>,
}

#[derive(Debug)]
struct InUse {
    allocator: PoolAllocator,
    /// Bytes of each block in use, by its offset.
    blocks: BTreeMap<u64, u64>,
}

/// A filled block of a shared pool, for reading only. Dropping the last `Arc` of it frees it.
#[derive(Debug)]
pub struct FrozenBlock {
    /// `None` only while it is dropped.
    block: Option<Block>,
    pool: SharedPool,
}

impl SharedPool {
    /// A pool whose bytes `right` belongs to.
    pub fn new(right: AllocationRight) -> Result<Self, MapError> {
        let fork = ForkGuard::new().map_err(|source| MapError::Os { bytes: 0, source })?;
        let in_use = Mutex::new(InUse { allocator: PoolAllocator::new(right)?, blocks: BTreeMap::new() });
        Ok(Self(Arc::new(Shared { fork, in_use })))
    }

    /// Allocates a block of at least `bytes` bytes, as `PoolAllocator::allocate` does.
    pub fn allocate(&self, bytes: u64) -> Result<Block, PoolFull> {
        let mut in_use = self.lock();
        let block = in_use.allocator.allocate(bytes)?;
        in_use.blocks.insert(block.offset(), block.bytes());
        Ok(block)
    }

    /// Frees a block that was not frozen.
    ///
    /// # Panics
    /// If the block belongs to another pool.
    pub fn free(&self, block: Block) {
        let mut in_use = self.lock();
        in_use.blocks.remove(&block.offset());
        in_use.allocator.free(block);
    }

    /// Makes a filled block of this pool a message's payload, which nobody writes any more.
    pub fn freeze(&self, block: Block) -> Arc<FrozenBlock> {
        Arc::new(FrozenBlock { block: Some(block), pool: self.clone() })
    }

    /// How the pool is used.
    pub fn stats(&self) -> PoolStats {
        self.lock().allocator.stats()
    }

    /// Runs `look` while no block is allocated or freed.
    pub fn while_unchanged<R>(&self, look: impl FnOnce(PoolStats) -> R) -> R {
        let in_use = self.lock();
        look(in_use.allocator.stats())
    }

    /// Whether both are the same pool.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the empty pool has a block for a message of `bytes` bytes.
    pub fn can_hold(&self, bytes: u64) -> bool {
        self.lock().allocator.can_hold(bytes)
    }

    pub(crate) fn is_enough(&self, block: Extent, bytes: u64) -> bool {
        self.lock().allocator.is_enough(block, bytes)
    }

    /// Whether there would be a block for a message of `bytes` bytes if these blocks were free.
    pub(crate) fn can_hold_without(&self, bytes: u64, freed: &[Extent]) -> bool {
        let in_use = self.lock();
        let is_freed = |offset: u64| freed.iter().any(|block| block.offset == offset);
        let staying = in_use.blocks.iter().filter(|(offset, _)| !is_freed(**offset));
        let mut staying: Vec<Extent> =
            staying.map(|(offset, bytes)| Extent { offset: *offset, bytes: *bytes }).collect();
        in_use.allocator.can_hold_beside(bytes, &mut staying)
    }

    fn lock(&self) -> MutexGuard<'_, InUse> {
        self.0.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FrozenBlock {
    /// The block, for reading.
    pub fn block(&self) -> &Block {
        match &self.block {
            Some(block) => block,
            None => unreachable!("only drop takes it"),
        }
    }

    /// The pool that it is in.
    pub fn pool(&self) -> &SharedPool {
        &self.pool
    }
}

impl Drop for FrozenBlock {
    fn drop(&mut self) {
        // In a forked child the allocator is not mapped, and the block is the parent's.
        let block = self.block.take().filter(|_| self.pool.0.fork.is_owner());
        block.into_iter().for_each(|block| self.pool.free(block));
    }
}

/// The messages that a publisher leaves behind in a shared pool. Subscribers may still read them.
#[derive(Debug)]
pub struct LeftMessages {
    segment: Arc<Segment>,
    messages: Vec<(MessageRef, Arc<FrozenBlock>)>,
}

impl LeftMessages {
    pub(crate) fn new(segment: Arc<Segment>, messages: Vec<(MessageRef, Arc<FrozenBlock>)>) -> Self {
        Self { segment, messages }
    }

    /// Gives up the blocks of messages that the manager has freed. True if none is left.
    pub fn reclaim(&mut self) -> bool {
        let segment = &self.segment;
        // An entry that is free, in this life or another one, has no message. Its memory may have been given back and read as zeros.
        let is_there = |message: &MessageRef| {
            let life = segment.words(message.index).life();
            life.is_some_and(|life| life.generation == message.generation && life.is_complete())
        };
        self.messages.retain(|(message, _)| is_there(message));
        self.messages.is_empty()
    }
}

/// What a port allocates in.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of each port
pub(crate) enum Allocator {
    Own(PoolAllocator),
    Shared(SharedPool),
}

/// The block of a message. In the entry of a published message of a shared pool it is frozen.
#[derive(Debug)]
pub(crate) enum MessageBlock {
    Own(Block),
    Frozen(Arc<FrozenBlock>),
}

impl MessageBlock {
    pub(crate) fn extent(&self) -> Extent {
        self.block().extent()
    }

    pub(crate) fn block(&self) -> &Block {
        match self {
            Self::Own(block) => block,
            Self::Frozen(frozen) => frozen.block(),
        }
    }

    /// Whether a port that gives it up frees it, after it has given up the blocks of `given_up`, to which this adds it: several messages can have the
    /// same frozen block.
    pub(crate) fn is_freed_by(&self, given_up: &mut Vec<u64>) -> bool {
        let Self::Frozen(frozen) = self else { return true };
        let offset = frozen.block().offset();
        given_up.push(offset);
        given_up.iter().filter(|other| **other == offset).count() == Arc::strong_count(frozen)
    }
}

impl Allocator {
    #[inline]
    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<Block, PoolFull> {
        match self {
            Self::Own(allocator) => allocator.allocate(bytes),
            Self::Shared(pool) => pool.allocate(bytes),
        }
    }

    /// The block of a message that is published.
    #[inline]
    pub(crate) fn published(&self, block: MessageBlock) -> MessageBlock {
        match (self, block) {
            (Self::Shared(pool), MessageBlock::Own(block)) => MessageBlock::Frozen(pool.freeze(block)),
            (_, block) => block,
        }
    }

    /// The block of a message that is reclaimed or was not published.
    #[inline]
    pub(crate) fn reclaim(&mut self, block: MessageBlock) {
        match (self, block) {
            (Self::Own(allocator), MessageBlock::Own(block)) => allocator.free(block),
            (Self::Shared(pool), MessageBlock::Own(block)) => pool.free(block),
            (_, MessageBlock::Frozen(frozen)) => drop(frozen),
        }
    }

    #[inline]
    pub(crate) fn stats(&self) -> PoolStats {
        match self {
            Self::Own(allocator) => allocator.stats(),
            Self::Shared(pool) => pool.stats(),
        }
    }

    #[inline]
    pub(crate) fn can_hold(&self, bytes: u64) -> bool {
        match self {
            Self::Own(allocator) => allocator.can_hold(bytes),
            Self::Shared(pool) => pool.can_hold(bytes),
        }
    }

    pub(crate) fn is_enough(&self, block: Extent, bytes: u64) -> bool {
        match self {
            Self::Own(allocator) => allocator.is_enough(block, bytes),
            Self::Shared(pool) => pool.is_enough(block, bytes),
        }
    }
}
