//! Path 3: copies chunks from the receive ring into the pool. The caller releases their ring bytes, in order, once they are copied.
//!
//! One `PoolingCopy` serves a ring. Chunks of several messages may interleave, because copies of one stream complete in order.

use std::time::Duration;

use super::{ChunkError, InFlight, Lane};
use crate::backend::BufferPart;
use crate::error::DeviceError;

/// A message's block in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolBlock {
    /// Its first byte in the pool.
    pub pool_offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// A chunk that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedChunk {
    /// First byte, from the start of the message.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its first byte in the host buffer.
    pub buffer_offset: u64,
}

/// The copies into the pool that are under way. `T` is what the caller needs to release a chunk's ring bytes.
#[derive(Debug)]
pub struct PoolingCopy<T> {
    under_way: InFlight<T>,
}

impl<T> PoolingCopy<T> {
    /// Allows at most `chunks_max` copies at once.
    pub fn new(chunks_max: usize) -> Self {
        Self { under_way: InFlight::new(chunks_max) }
    }

    /// Whether another copy may be started.
    pub fn has_room(&self) -> bool {
        self.under_way.has_room()
    }

    /// Starts the copy of a chunk. Returns an error and copies nothing if the chunk exceeds its message or its ring, or if there is no room.
    pub fn start(
        &mut self,
        lane: &Lane<'_>,
        target: PoolBlock,
        arrived: ArrivedChunk,
        item: T,
    ) -> Result<(), DeviceError> {
        let ArrivedChunk { offset, bytes, buffer_offset } = arrived;
        if offset.checked_add(bytes).is_none_or(|end| end > target.bytes) {
            return Err(ChunkError::Outside { offset, bytes, total: target.bytes }.into());
        }
        if !self.has_room() {
            return Err(ChunkError::Full { under_way: self.under_way.len() }.into());
        }
        let pool_offset = target.pool_offset.checked_add(offset);
        let pool_offset = pool_offset.ok_or(ChunkError::Outside { offset, bytes, total: target.bytes })?;
        let from = BufferPart { buffer: lane.buffer, offset: buffer_offset };
        let to = lane.pool.skip(pool_offset)?;
        let completion = lane.backend.copy_to_device(lane.stream, from, to, bytes)?;
        let pushed = self.under_way.push(completion, item);
        debug_assert!(pushed.is_ok(), "room was seen above");
        Ok(())
    }

    /// Copies under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Waits until the oldest copy is complete, for at most `timeout`; `poll` returns it then.
    pub fn wait_for_copy(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.under_way.wait_for_oldest(timeout)
    }

    /// The oldest chunk's item, if its copy is complete. Never waits.
    pub fn poll(&mut self) -> Result<Option<T>, DeviceError> {
        self.under_way.poll()
    }

    /// Waits until the oldest chunk's copy is complete, and returns its item. `None`: no copy is under way.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<T>, DeviceError> {
        self.under_way.wait(timeout)
    }
}
