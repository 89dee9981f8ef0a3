//! Path 1 on a device whose memory links cannot read: messages are copied to slots of a host buffer, chunk k + 1 while chunk k is sent.
//!
//! ```text
//!   pool ──lane 0: message i────▶ slots ──ready, in order──▶ posted ──the link has released them──▶ slots
//!        └─lane 1: message i + 1─▶ slots
//! ```
//!
//! Invariants  G1 a chunk is ready only when its copy is complete. G2 chunks become ready in the order of messages, and in order within a message.
//!             G3 a slot is written again only when the link has released its last chunk.
//! Source      Jiang, master's thesis (RGAPS), 2026, section 3.3, where the publisher copies its whole message to pinned memory. A copy by the
//!             manager, in chunks of which one is sent while the next is copied, is ours (docs/decisions/007-cut-through-and-copies.md).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rgaps_device::{
    Backend, BufferSpec, DeviceError, HostBuffer, Lane, PoolMemory, PoolPart, StagedChunk, StagingCopy, StagingSpec,
    Stream,
};
use rgaps_link::{MessageId, RecordSequence};
use rgaps_os::{Mapping, SharedBytes};

/// Messages that are staged at a time: the one that is being sent, and the next.
const LANES: usize = 2;
/// Slots of each lane.
const SLOTS: u32 = 8;

/// A message being staged.
#[derive(Debug)]
struct StagedMessage {
    message: MessageId,
    pool: Arc<dyn PoolMemory>,
    copy: StagingCopy,
    ready: VecDeque<StagedChunk>,
}

/// The staging memory of one connection.
#[derive(Debug)]
pub(crate) struct Stager {
    backend: Arc<dyn Backend>,
    stream: Stream,
    buffer: HostBuffer,
    chunk_bytes: u64,
    lanes: [Option<StagedMessage>; LANES],
    /// Chunks that the link may still read: record, lane, chunk.
    posted: VecDeque<(RecordSequence, usize, StagedChunk)>,
}

impl Stager {
    pub(crate) fn new(backend: Arc<dyn Backend>, chunk_bytes: u64) -> Result<Self, DeviceError> {
        let bytes = chunk_bytes * u64::from(SLOTS) * LANES as u64;
        let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-staging".to_owned(), bytes })?;
        let stream = backend.stream()?;
        let posted = VecDeque::with_capacity(LANES * SLOTS as usize);
        Ok(Self { backend, stream, buffer, chunk_bytes, lanes: [const { None }; LANES], posted })
    }

    /// The memory that chunks are sent from.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.buffer.shared_mapping()
    }

    /// Starts copies of these messages, in order, while there are free slots, and notes which copies are complete. Never waits.
    pub(crate) fn pump<'a>(
        &mut self,
        mut messages: impl Iterator<Item = (MessageId, &'a Arc<dyn PoolMemory>, u64, u64)>,
    ) -> Result<(), DeviceError> {
        for _ in 0..LANES {
            let Some((message, pool, offset, bytes)) = messages.next() else { break };
            if !self.lanes.iter().flatten().any(|lane| lane.message == message)
                && !self.take_up(message, pool, offset, bytes)?
            {
                break;
            }
        }
        for lane in self.lanes.iter_mut().flatten() {
            let on = Lane {
                backend: self.backend.as_ref(),
                stream: &self.stream,
                pool: PoolPart::of(lane.pool.as_ref(), 0),
                buffer: &self.buffer,
            };
            lane.copy.pump(&on)?;
            while let Some(chunk) = lane.copy.poll()? {
                lane.ready.push_back(chunk);
            }
        }
        Ok(())
    }

    /// Whether a copy is in progress.
    pub(crate) fn is_copying(&self) -> bool {
        self.lanes.iter().flatten().any(|lane| lane.copy.is_copying())
    }

    /// Waits for a copy in progress, for at most `timeout`. The next `pump` reports a failure.
    pub(crate) fn wait(&self, timeout: Duration) {
        if let Some(lane) = self.lanes.iter().flatten().find(|lane| lane.copy.is_copying()) {
            let _ = lane.copy.wait_for_copy(timeout);
        }
    }

    /// The chunks of a message that can be posted, in order: first byte in the message, bytes, and whether it is the last.
    pub(crate) fn ready(&self, message: MessageId) -> impl Iterator<Item = (u64, SharedBytes<'_>)> {
        let lane = self.lanes.iter().flatten().find(move |lane| lane.message == message);
        lane.into_iter().flat_map(|lane| &lane.ready).map_while(|chunk| {
            let data = self.buffer.mapping().shared(chunk.buffer_offset, chunk.chunk.bytes).ok()?;
            Some((chunk.chunk.offset, data))
        })
    }

    /// The first ready chunk of a message was posted as that record.
    pub(crate) fn posted(&mut self, message: MessageId, record: RecordSequence) {
        let found = self.lanes.iter_mut().enumerate().find_map(|(index, lane)| {
            let lane = lane.as_mut().filter(|lane| lane.message == message)?;
            Some((index, lane.ready.pop_front()?))
        });
        if let Some((index, chunk)) = found {
            self.posted.push_back((record, index, chunk));
        }
    }

    /// Frees the chunks of records before `before`, which the link has released.
    pub(crate) fn reusable(&mut self, before: RecordSequence) {
        while self.posted.front().is_some_and(|(record, ..)| *record < before) {
            let Some((_, index, chunk)) = self.posted.pop_front() else { return };
            self.release(index, chunk);
        }
    }

    /// Ends the connection: waits for the copies in progress. An error means that a copy is stuck; then the staging memory must not be reused.
    pub(crate) fn abandon(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.reusable(RecordSequence(u64::MAX));
        for lane in self.lanes.iter_mut().flatten() {
            while let Some(chunk) = lane.ready.pop_front() {
                lane.copy.release(chunk);
            }
            lane.copy.abandon(timeout)?;
        }
        self.lanes = [const { None }; LANES];
        Ok(())
    }

    fn release(&mut self, index: usize, chunk: StagedChunk) {
        if let Some(lane) = self.lanes.get_mut(index).and_then(Option::as_mut) {
            lane.copy.release(chunk);
        }
    }

    /// Takes a free lane for a message. False if there is none yet.
    fn take_up(
        &mut self,
        message: MessageId,
        pool: &Arc<dyn PoolMemory>,
        pool_offset: u64,
        bytes: u64,
    ) -> Result<bool, DeviceError> {
        for (index, slot) in self.lanes.iter_mut().enumerate() {
            match slot {
                Some(lane) => {
                    if !lane.copy.is_idle() {
                        continue;
                    }
                    lane.copy.restart(pool_offset, bytes)?;
                    (lane.message, lane.pool) = (message, pool.clone());
                }
                None => {
                    let buffer_offset = index as u64 * u64::from(SLOTS) * self.chunk_bytes;
                    let chunk_bytes = self.chunk_bytes;
                    let spec = StagingSpec { pool_offset, bytes, chunk_bytes, buffer_offset, slots: SLOTS };
                    let ready = VecDeque::with_capacity(SLOTS as usize);
                    *slot = Some(StagedMessage { message, pool: pool.clone(), copy: StagingCopy::new(spec)?, ready });
                }
            }
            return Ok(true);
        }
        Ok(false)
    }
}
