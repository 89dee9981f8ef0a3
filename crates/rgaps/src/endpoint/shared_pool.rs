//! A pool that a process's publishers of several topics share.
//!
//! Its memory belongs to a publisher that nobody subscribes to, on a topic of its own (`TopicKey::of_pool`): so the manager makes, budgets, notes and
//! hands it over as it does every pool. The publishers that share it occupy slots in their own topics, to which the manager hands the same memory.
//!
//! A port frees blocks only when its publisher loans. So whoever finds the pool full first reclaims through all ports (`reclaim`), one after the
//! other: nobody has two ports locked.
//!
//! Deaths      of the process: the manager frees the memory when no topic has a message in it. Of the manager: each publisher hands its slot back
//!             with the same memory, which the successor recognizes (`DeviceMemoryManager::adopt`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_control::{PublisherQos, TopicKey};
use rgaps_device::{DeviceError, DeviceKind, DeviceRange, PoolMemory, PoolPart, Stream};
use rgaps_os::OutOfRange;
use rgaps_shm::writer::space::{CutOff, NoSpace, PortError};
use rgaps_shm::{Block, Exhaustion, FrozenBlock, LoanError, Origin};

use crate::endpoint::error::NodeError;
use crate::endpoint::filling::Filling;
use crate::endpoint::loan::dl_device;
use crate::endpoint::node::NodeInner;
use crate::endpoint::pool_share::{PoolShare, lock};
use crate::endpoint::publish_error::PublishError;
use crate::endpoint::publisher::{Filled, PublisherInner, WORDS_TIMEOUT};
use crate::types::{Bytes, Meta};

/// How often a thread that waits for space looks for it: messages come free in several topics, and no futex tells of all.
const LOOK_FOR_SPACE: Duration = Duration::from_millis(2);

/// A shared pool.
#[derive(Debug)]
pub(crate) struct PoolInner {
    /// The publisher to which the memory belongs.
    owner: Arc<PublisherInner>,
    share: Arc<PoolShare>,
}

impl PoolInner {
    /// `None` if the manager died before its successor could learn of the pool.
    pub(crate) fn make(
        node: &Arc<NodeInner>,
        bytes: Option<u64>,
        exhaustion: Exhaustion,
    ) -> Result<Option<Arc<Self>>, NodeError> {
        let key = TopicKey::of_pool(node.domain, u64::from_le_bytes(rgaps_os::random()?));
        let qos = PublisherQos { pool_bytes: bytes, exhaustion, ..PublisherQos::default() };
        let Some(owner) = PublisherInner::join(node, &key, Bytes::TYPE_NAME, qos, None)? else { return Ok(None) };
        let (topic, slot) = (owner.attachment.topic, owner.attachment.slot);
        let blocks = owner.port().shared_pool().cloned();
        let blocks = blocks.ok_or(PortError::CutOff(CutOff(slot.into())))?;
        let share = PoolShare::new(owner.clone(), (topic, slot), owner.pool.clone(), blocks);
        Ok(Some(Arc::new(Self { owner, share: Arc::new(share) })))
    }

    pub(crate) fn node(&self) -> &Arc<NodeInner> {
        &self.owner.node
    }

    /// What publishers that share it get.
    pub(crate) fn share(&self) -> &Arc<PoolShare> {
        &self.share
    }

    /// Allocates a block with memory. If there is none, the pool's `Exhaustion` decides.
    fn allocate(&self, bytes: u64) -> Result<Block, PublishError> {
        self.owner.check_attached()?;
        let topic = || self.owner.topic.clone();
        if !self.share.blocks.can_hold(bytes) {
            let capacity = self.share.blocks.stats().capacity_bytes;
            return Err(PublishError::NoSpace {
                topic: topic(),
                source: LoanError::TooLarge { wanted: bytes, capacity },
            });
        }
        let block = self.find(bytes).map_err(|source| PublishError::NoSpace { topic: topic(), source })?;
        match self.owner.give_memory(block.offset(), bytes) {
            Ok(()) => Ok(block),
            Err(error) => {
                self.share.blocks.free(block);
                Err(error)
            }
        }
    }

    fn find(&self, bytes: u64) -> Result<Block, LoanError> {
        if let Ok(block) = self.share.blocks.allocate(bytes) {
            return Ok(block);
        }
        self.share.reclaim();
        let exhaustion = self.owner.qos.exhaustion;
        let ports = self.share.ports();
        let readers: Vec<_> = ports.iter().map(|port| lock(port).taken_counts()).collect();
        let start = Instant::now();
        let full = loop {
            // Nothing of a subscriber is dropped before its words are there, nor history in its place.
            let lack_words = ports.iter().any(|port| lock(port).lacks_words());
            let attempt = match exhaustion {
                Exhaustion::DropOldest if !lack_words => self.allocate_or_give_up(bytes, exhaustion),
                // From subscribers that read nothing during an earlier wait.
                Exhaustion::Wait { .. } if !lack_words => self.allocate_or(bytes, || self.drop_unread(exhaustion)),
                _ => self.share.blocks.allocate(bytes).map_err(LoanError::Pool),
            };
            let full = match attempt {
                Err(LoanError::Pool(full)) => full,
                done => return done,
            };
            let timeout = match exhaustion {
                Exhaustion::Wait { timeout_ms } => Duration::from_millis(timeout_ms),
                Exhaustion::DropOldest if lack_words => WORDS_TIMEOUT,
                Exhaustion::DropOldest | Exhaustion::Refuse => return Err(LoanError::Pool(full)),
            };
            if start.elapsed() >= timeout || self.owner.check_attached().is_err() {
                break full;
            }
            std::thread::sleep(LOOK_FOR_SPACE);
            self.share.reclaim();
        };
        for (port, readers) in ports.iter().zip(readers) {
            lock(port).give_up_on(readers);
        }
        self.allocate_or_give_up(bytes, exhaustion).map_err(|_| {
            let keeper = ports.iter().find_map(|port| lock(port).keeper());
            LoanError::TimedOut { waited_ms: start.elapsed().as_millis() as u64, full: NoSpace::Pool(full), keeper }
        })
    }

    /// Allocates a block, and gives up messages until there is one: what subscribers have not read and may lose, oldest first, then history.
    fn allocate_or_give_up(&self, bytes: u64, exhaustion: Exhaustion) -> Result<Block, LoanError> {
        let give_up_history = || self.share.ports().iter().any(|port| lock(port).give_up_history());
        self.allocate_or(bytes, || self.drop_unread(exhaustion) || give_up_history())
    }

    /// Allocates a block, and gives up one message after the other until there is one. `give_up_one`: false if there is none to give up.
    fn allocate_or(&self, bytes: u64, give_up_one: impl Fn() -> bool) -> Result<Block, LoanError> {
        loop {
            match self.share.blocks.allocate(bytes) {
                Ok(block) => return Ok(block),
                Err(full) if !give_up_one() => return Err(full.into()),
                Err(_) => {}
            }
        }
    }

    /// Gives up the oldest message of all topics that subscribers have not read and may lose. False if there is none.
    fn drop_unread(&self, exhaustion: Exhaustion) -> bool {
        let ports = self.share.ports();
        // A subscriber may read the oldest one meanwhile: then the next one is it.
        for _ in 0..ports.len().saturating_mul(2) {
            let with_oldest = ports.iter().filter_map(|port| Some((lock(port).oldest_unread(exhaustion)?, port)));
            let Some((_, port)) = with_oldest.min_by_key(|(published, _)| *published) else { break };
            if lock(port).drop_unread(exhaustion) {
                return true;
            }
        }
        false
    }
}

/// A block of a shared pool that its owner fills.
#[derive(Debug)]
pub(crate) struct BufferInner {
    pool: Arc<PoolInner>,
    /// `None` only while it is frozen or dropped.
    block: Option<Block>,
    bytes: u64,
    filling: Filling,
}

/// A block of a shared pool that is filled.
#[derive(Clone, Debug)]
pub(crate) struct FrozenInner {
    pool: Arc<PoolInner>,
    pub(crate) block: Arc<FrozenBlock>,
    pub(crate) filled: Filled,
    /// Whether work of a stream may still fill it.
    is_in_stream_order: bool,
    /// What was filled beside the block, for a device that cannot access it. Kept, since reads that began before may go on.
    beside: Option<Arc<dyn PoolMemory>>,
    /// Whether it has the same bytes as the block.
    is_beside_equal: bool,
}

impl BufferInner {
    pub(crate) fn new(pool: &Arc<PoolInner>, bytes: u64) -> Result<Self, PublishError> {
        let block = Some(pool.allocate(bytes)?);
        Ok(Self { pool: pool.clone(), block, bytes, filling: Filling::default() })
    }

    /// See `PoolBuffer::freeze`.
    pub(crate) fn freeze(mut self, stream: Option<&Stream>) -> Result<FrozenInner, PublishError> {
        let owner = &self.pool.owner;
        // It needs no manager: a pool that is cut off must not free what a stream fills.
        owner.check_owner()?;
        let Some(mut block) = self.block.take() else { unreachable!("only freeze and drop take it") };
        if let Err(error) = self.filling.complete(owner, &mut block, self.bytes, stream) {
            // A device that did not answer may still write into the block.
            let is_under_way =
                stream.is_some() || matches!(&error, PublishError::Device { source: DeviceError::TimedOut(_), .. });
            if !is_under_way {
                self.block = Some(block);
            }
            return Err(error);
        }
        let (beside, is_beside_equal) = (self.filling.beside().cloned(), !self.filling.is_scratch_newer());
        let origin = if self.filling.is_in_place() { Origin::Loaned } else { Origin::Pushed };
        let block = self.pool.share.blocks.freeze(block);
        Ok(FrozenInner {
            pool: self.pool.clone(),
            block,
            filled: Filled { bytes: self.bytes, origin },
            is_in_stream_order: stream.is_some(),
            beside,
            is_beside_equal,
        })
    }

    /// See `PoolBuffer::device_range`.
    pub(crate) fn device_range(&self) -> Result<DeviceRange, PublishError> {
        let (memory, offset) = self.place()?;
        range_of(&self.pool, memory, offset, self.bytes, false)
    }

    /// See `PoolBuffer::part`.
    pub(crate) fn part(&mut self) -> Result<PoolPart<'_>, PublishError> {
        let (memory, offset) = self.place()?;
        Ok(PoolPart::to_fill(memory, offset, self.bytes))
    }

    fn place(&self) -> Result<(&dyn PoolMemory, u64), PublishError> {
        let offset = self.block.as_ref().map_or(0, Block::offset);
        self.filling.place(&self.pool.owner, offset, self.bytes)
    }

    /// The block for the CPU, read-only. Empty in a forked child.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.block.as_ref().filter(|_| self.pool.node().is_owner()) {
            Some(block) => self.filling.bytes(&self.pool.owner, block, self.bytes),
            None => &[],
        }
    }

    /// The block for the CPU. Empty in a forked child.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.block.as_mut().filter(|_| self.pool.node().is_owner()) {
            Some(block) => self.filling.bytes_mut(&self.pool.owner, block, self.bytes),
            None => &mut [],
        }
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        if let Some(block) = self.block.take().filter(|_| self.pool.node().is_owner()) {
            self.pool.share.blocks.free(block);
        }
    }
}

impl FrozenInner {
    /// See `FrozenBuffer::bytes`.
    pub(crate) fn bytes(&self) -> Result<&[u8], PublishError> {
        self.pool.owner.check_owner()?;
        // The CPU must not read what a device may be writing. Streams of the host backend have done their work.
        if self.is_in_stream_order && self.pool.share.memory.kind() != DeviceKind::Host {
            let offset = self.block.block().offset();
            return Err(self.outside(OutOfRange { offset, bytes: self.filled.bytes, mapped: 0 }));
        }
        let block = self.pool.share.memory.block(self.block.block().range());
        Ok(&block.map_err(|source| self.outside(source))?[..self.filled.bytes as usize])
    }

    /// See `FrozenBuffer::device_range`.
    pub(crate) fn device_range(&self) -> Result<DeviceRange, PublishError> {
        let (memory, offset) = self.place()?;
        range_of(&self.pool, memory, offset, self.filled.bytes, true)
    }

    /// See `FrozenBuffer::part`.
    pub(crate) fn part(&self) -> Result<PoolPart<'_>, PublishError> {
        let (memory, offset) = self.place()?;
        Ok(PoolPart::to_read(memory, offset, self.filled.bytes))
    }

    /// The memory that the node's device reads, and the offset in it.
    fn place(&self) -> Result<(&dyn PoolMemory, u64), PublishError> {
        self.pool.owner.check_owner()?;
        Ok(match &self.beside {
            Some(beside) if self.is_beside_equal => (beside.as_ref(), 0),
            _ => (self.pool.share.memory.as_ref(), self.block.block().offset()),
        })
    }

    fn outside(&self, source: OutOfRange) -> PublishError {
        PublishError::Block { topic: self.pool.owner.topic.clone(), source }
    }
}

fn range_of(
    pool: &PoolInner,
    memory: &dyn PoolMemory,
    offset: u64,
    bytes: u64,
    is_read_only: bool,
) -> Result<DeviceRange, PublishError> {
    let failed = |source| PublishError::Block { topic: pool.owner.topic.clone(), source };
    // A block without bytes has no address.
    let address = if bytes > 0 { memory.device_address(offset).map_err(failed)? } else { 0 };
    Ok(DeviceRange { address, bytes, device: dl_device(pool.node().backend().as_ref()), is_read_only })
}
