//! Copies a message chunk by chunk, so that the device copies chunk k + 1 while chunk k is on the wire (cut-through).
//!
//! `StagingCopy` is path 1, `PoolingCopy` is path 3. Both are state machines without thread or clock: `pump` and `start` start copies,
//! `poll` and `wait` return those that are over. The caller owns backend, stream, pool and buffer and lends them as a `Lane`. It keeps all
//! of them, and leaves the bytes under way alone, until the copy is complete.

mod in_flight;
mod pooling;
mod staging;
#[cfg(test)]
mod tests;

pub use in_flight::InFlight;
pub use pooling::{ArrivedChunk, PoolBlock, PoolingCopy};
pub use staging::{SLOTS_MAX, StagedChunk, StagingCopy, StagingSpec};

use crate::backend::{Backend, PoolPart};
use crate::buffer::HostBuffer;
use crate::stream::Stream;

/// The backend, stream and memory that copies run on.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// The backend of pool and buffer.
    pub backend: &'a dyn Backend,
    /// The stream that orders the copies.
    pub stream: &'a Stream,
    /// The pool, or a part of it; offsets count from its start.
    pub pool: PoolPart<'a>,
    /// Staging, or the receive ring.
    pub buffer: &'a HostBuffer,
}

/// Why a chunk was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The staging area is impossible.
    #[error(
        "{slots} slots of {chunk_bytes} B cannot stage a message: 1 to {SLOTS_MAX} slots of at least 1 B, within 64 bits"
    )]
    Staging {
        /// Slots requested.
        slots: u32,
        /// Bytes of each.
        chunk_bytes: u64,
    },
    /// A chunk exceeds its message.
    #[error("a chunk of {bytes} B at {offset} exceeds its message of {total} B")]
    Outside {
        /// Its first byte.
        offset: u64,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the message.
        total: u64,
    },
    /// Too many copies are under way.
    #[error("{under_way} copies are under way, the most allowed; wait for one first")]
    Full {
        /// Copies under way.
        under_way: usize,
    },
}

/// The chunks of a message, in order. An empty message is one empty chunk.
#[derive(Clone, Debug)]
pub struct ChunkPlan {
    total: u64,
    chunk_bytes: u64,
    next: u64,
    done: bool,
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First byte, from the start of the message.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether it is the message's last chunk.
    pub last: bool,
}

impl ChunkPlan {
    /// The chunks of `total` bytes, each at most `chunk_bytes` (at least 1).
    pub fn new(total: u64, chunk_bytes: u64) -> Self {
        Self { total, chunk_bytes: chunk_bytes.max(1), next: 0, done: false }
    }
}

impl Iterator for ChunkPlan {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let offset = self.next;
        let bytes = (self.total - offset).min(self.chunk_bytes);
        self.next = offset + bytes;
        self.done = self.next == self.total;
        Some(Chunk { offset, bytes, last: self.done })
    }
}
