//! Path 1: copies a message from its pool through a few slots of a host buffer, so that chunk k + 1 is copied while chunk k is sent.
//!
//!   slot  FREE ──pump──▶ COPYING ──poll──▶ STAGED (the caller's) ──release──▶ FREE
//!
//! Invariants  CS1 chunks are handed out in order, each once. CS2 a copy starts only into a FREE slot, never into one that the caller
//!             still sends from. CS3 no chunk is handed out before its copy is complete.

use std::time::Duration;

use super::{Chunk, ChunkError, ChunkPlan, Lane};
use crate::backend::BufferPart;
use crate::copy::InFlight;
use crate::error::DeviceError;

/// Most slots of a staging area.
pub const SLOTS_MAX: u32 = 64;

/// A message to stage, and its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingSpec {
    /// The message's first byte in the pool.
    pub pool_offset: u64,
    /// Bytes of the message.
    pub bytes: u64,
    /// Bytes of a chunk and of a slot.
    pub chunk_bytes: u64,
    /// The first slot's first byte in the host buffer.
    pub buffer_offset: u64,
    /// Number of slots, contiguous; two suffice to overlap copy and send.
    pub slots: u32,
}

/// A chunk in the host buffer. Its holder owns the slot until `StagingCopy::release`.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its slot is used again only after StagingCopy::release"]
pub struct StagedChunk {
    /// Which part of the message.
    pub chunk: Chunk,
    /// Its first byte in the host buffer.
    pub buffer_offset: u64,
    slot: u32,
}

/// The staging of one message.
///
/// ```
/// use std::time::Duration;
///
/// use rgaps_device::{Backend, BufferSpec, Choice, Lane, PoolPart, PoolSpec, StagingCopy, StagingSpec, open};
///
/// let backend = &*open(Choice::Auto)?.backend;
/// let pool = &*backend.create_pool(&PoolSpec { name: "camera".to_owned(), bytes: 1 << 20 })?;
/// let (stream, buffer) = (&backend.stream()?, &backend.host_buffer(&BufferSpec { name: "staging".to_owned(), bytes: 8192 })?);
/// let lane = Lane { backend, stream, pool: PoolPart::of(pool, 0), buffer };
/// // A message of 10,000 B through two slots of 4096 B.
/// let spec = StagingSpec { pool_offset: 0, bytes: 10_000, chunk_bytes: 4096, buffer_offset: 0, slots: 2 };
/// let (mut copy, mut sent) = (StagingCopy::new(spec)?, 0);
/// while !copy.is_idle() {
///     copy.pump(&lane)?;
///     if let Some(staged) = copy.wait(Duration::from_secs(1))? {
///         sent += staged.chunk.bytes; // here a link sends it from the buffer
///         copy.release(staged);
///     }
/// }
/// assert_eq!(sent, 10_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StagingCopy {
    spec: StagingSpec,
    plan: std::iter::Peekable<ChunkPlan>,
    free: u64,
    under_way: InFlight<StagedChunk>,
}

impl StagingCopy {
    /// Prepares the staging; copies nothing yet. An error for no slot, too many, empty chunks, or an end beyond 64 bits.
    pub fn new(spec: StagingSpec) -> Result<Self, ChunkError> {
        let window =
            u64::from(spec.slots).checked_mul(spec.chunk_bytes).and_then(|w| w.checked_add(spec.buffer_offset));
        let end = spec.pool_offset.checked_add(spec.bytes);
        if spec.slots == 0 || spec.slots > SLOTS_MAX || spec.chunk_bytes == 0 || window.is_none() || end.is_none() {
            return Err(ChunkError::Staging { slots: spec.slots, chunk_bytes: spec.chunk_bytes });
        }
        let free = u64::MAX >> (SLOTS_MAX - spec.slots);
        let plan = ChunkPlan::new(spec.bytes, spec.chunk_bytes).peekable();
        Ok(Self { spec, plan, free, under_way: InFlight::new(spec.slots as usize) })
    }

    /// Starts another message in the same slots, without allocation. An error while the last message has a copy under way or an unreleased
    /// chunk.
    pub fn restart(&mut self, pool_offset: u64, bytes: u64) -> Result<(), ChunkError> {
        let StagingSpec { slots, chunk_bytes, .. } = self.spec;
        if !self.is_idle() || pool_offset.checked_add(bytes).is_none() {
            return Err(ChunkError::Staging { slots, chunk_bytes });
        }
        self.spec = StagingSpec { pool_offset, bytes, ..self.spec };
        self.plan = ChunkPlan::new(bytes, chunk_bytes).peekable();
        Ok(())
    }

    /// Whether the message is finished: all chunks were handed out and released.
    pub fn is_idle(&mut self) -> bool {
        self.is_handed_out() && self.free == u64::MAX >> (SLOTS_MAX - self.spec.slots)
    }

    /// Whether a copy is under way.
    pub fn is_copying(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Waits until the oldest copy is complete, for at most `timeout`; `poll` returns it then.
    pub fn wait_for_copy(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.under_way.wait_for_oldest(timeout)
    }

    /// Starts copies while slots are free, and returns how many. Never waits.
    pub fn pump(&mut self, lane: &Lane<'_>) -> Result<u32, DeviceError> {
        let mut started = 0;
        while self.free != 0 {
            let Some(&chunk) = self.plan.peek() else { break };
            let slot = self.free.trailing_zeros();
            let buffer_offset = self.spec.buffer_offset + u64::from(slot) * self.spec.chunk_bytes;
            let from = lane.pool.skip(self.spec.pool_offset + chunk.offset)?;
            let to = BufferPart { buffer: lane.buffer, offset: buffer_offset };
            let completion = lane.backend.copy_to_host(lane.stream, from, to, chunk.bytes)?;
            self.plan.next();
            self.free &= !(1 << slot);
            // `under_way` has room for one copy of each slot.
            let pushed = self.under_way.push(completion, StagedChunk { chunk, buffer_offset, slot });
            debug_assert!(pushed.is_ok());
            started += 1;
        }
        Ok(started)
    }

    /// The next chunk, if its copy is complete. Never waits.
    pub fn poll(&mut self) -> Result<Option<StagedChunk>, DeviceError> {
        self.under_way.poll()
    }

    /// Waits for the next chunk's copy and returns the chunk. `None`: no copy is under way; pump, or release a chunk first.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<StagedChunk>, DeviceError> {
        self.under_way.wait(timeout)
    }

    /// Frees the chunk's slot. Call it, in any order, once the link no longer reads the chunk: its send is complete or its queue pair is
    /// destroyed.
    pub fn release(&mut self, chunk: StagedChunk) {
        debug_assert!(self.free & (1 << chunk.slot) == 0, "a chunk of another message");
        self.free |= 1 << chunk.slot;
    }

    /// Whether all chunks were handed out; some may not be released yet.
    pub fn is_handed_out(&mut self) -> bool {
        self.plan.peek().is_none() && self.under_way.is_empty()
    }

    /// Abandons the message: starts no further copy and waits for those under way, so that pool and buffer may be reused. `timeout` applies
    /// to each of at most `slots` copies. Call it before dropping this while copies are under way.
    pub fn abandon(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        while self.plan.next().is_some() {}
        while let Some(chunk) = self.under_way.wait(timeout)? {
            self.release(chunk);
        }
        Ok(())
    }
}
