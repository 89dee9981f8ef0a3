//! Path 1: a message goes from its pool through a few slots of a host buffer, so that chunk k + 1 is copied while chunk k is sent.
//!
//!   slot  FREE ──pump──▶ COPYING ──poll──▶ STAGED (the caller's) ──release──▶ FREE
//!
//! Invariants  S1 chunks come out in order, each once. S2 a slot is written only while FREE turns COPYING: never under a chunk that the
//!             caller still sends. S3 nothing is handed out before its copy is complete.

use std::time::Duration;

use super::{Chunk, ChunkError, ChunkPlan, Lane};
use crate::backend::BufferPart;
use crate::copy::InFlight;
use crate::error::DeviceError;

/// Slots of one message at once.
pub const SLOTS_MAX: u32 = 64;

/// A message to be staged, and where.
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
    /// Slots, one behind the other; two suffice to overlap.
    pub slots: u32,
}

/// A chunk that lies in the host buffer. Whoever holds it owns its slot; `StagingCopy::release` gives that back.
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
#[derive(Debug)]
pub struct StagingCopy {
    spec: StagingSpec,
    plan: std::iter::Peekable<ChunkPlan>,
    free: u64,
    under_way: InFlight<StagedChunk>,
}

impl StagingCopy {
    /// Nothing is copied yet. Refuses what cannot be: no slot, too many, empty chunks, or an end beyond 64 bits.
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

    /// Takes up another message, in the same slots: no allocation. Refused while a copy or a chunk of the last one is about.
    pub fn restart(&mut self, pool_offset: u64, bytes: u64) -> Result<(), ChunkError> {
        let StagingSpec { slots, chunk_bytes, .. } = self.spec;
        if !self.is_idle() || pool_offset.checked_add(bytes).is_none() {
            return Err(ChunkError::Staging { slots, chunk_bytes });
        }
        self.spec = StagingSpec { pool_offset, bytes, ..self.spec };
        self.plan = ChunkPlan::new(bytes, chunk_bytes).peekable();
        Ok(())
    }

    /// Whether nothing of the message is left: all chunks have come out, and all are released.
    pub fn is_idle(&mut self) -> bool {
        self.is_handed_out() && self.free == u64::MAX >> (SLOTS_MAX - self.spec.slots)
    }

    /// Whether a copy is under way.
    pub fn is_copying(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Waits until the oldest copy under way is complete, or for so long; `poll` has it then.
    pub fn wait_for_copy(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.under_way.wait_for_oldest(timeout)
    }

    /// Starts copies while slots are free; says how many. Never waits.
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
            // There is room for as many copies as there are slots.
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

    /// The next chunk, when its copy is complete. `None`: no copy is under way; pump, or release a chunk first.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<StagedChunk>, DeviceError> {
        self.under_way.wait(timeout)
    }

    /// The link no longer reads the chunk (its send is complete, or its queue pair is gone): the slot is free. Any order will do.
    pub fn release(&mut self, chunk: StagedChunk) {
        debug_assert!(self.free & (1 << chunk.slot) == 0, "a chunk of another message");
        self.free |= 1 << chunk.slot;
    }

    /// Whether all chunks have come out; some may not be released yet.
    pub fn is_handed_out(&mut self) -> bool {
        self.plan.peek().is_none() && self.under_way.is_empty()
    }

    /// Gives the message up: no further copy is started, and those under way are waited for, so that pool and buffer may be used for
    /// something else. The time-out is for each of at most `slots` copies. Must precede a drop while copies are under way.
    pub fn abandon(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        while self.plan.next().is_some() {}
        while let Some(chunk) = self.under_way.wait(timeout)? {
            self.release(chunk);
        }
        Ok(())
    }
}
