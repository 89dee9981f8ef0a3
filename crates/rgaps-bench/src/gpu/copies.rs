//! The copies of paths 1 and 3 as the manager makes them, chunk by chunk with its state machines, and one bare copy of the same size.
//!
//! Figures are in µs. The bench busy-waits for a bare copy, so that no sleep adds to the reference.

use std::sync::Arc;
use std::time::Duration;

use rgaps::device::copy::ArrivedChunk;
use rgaps::device::testing::contract::part_of;
use rgaps::device::{
    Backend, BufferPart, BufferSpec, ChunkPlan, Completion, DeviceError, DevicePart, HostBuffer, Lane, PoolMemory,
    PoolPart, PoolSpec, PoolingCopy, StagingCopy, StagingSpec, Stream,
};
use rgaps_os::clock;

use super::content::Content;

/// Staging slots of a message, as in the manager (rgaps-manager/src/staging.rs).
const SLOTS: u32 = 8;
/// Concurrent copies into the pool, as in the manager (rgaps-manager/src/arrival.rs).
const COPIES_MAX: usize = 16;
/// A copy that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Device memory that only this process uses.
#[derive(Debug)]
pub(super) struct Block(Arc<dyn PoolMemory>);

impl Block {
    pub(super) fn new(backend: &dyn Backend, bytes: u64) -> Result<Self, DeviceError> {
        let pool = backend.create_pool(&PoolSpec { name: "rgaps-bench".to_owned(), bytes })?;
        let missing = pool.missing(0, bytes)?;
        pool.commit(&missing)?;
        Ok(Self(pool))
    }

    /// The memory as the source of a push.
    pub(super) fn device_part(&self, bytes: u64) -> Result<DevicePart, DeviceError> {
        part_of(&self.0, 0, bytes)
    }

    pub(super) fn part(&self) -> PoolPart<'_> {
        PoolPart::of(self.0.as_ref(), 0)
    }
}

/// Pinned host memory, with every page present.
pub(super) fn pinned(backend: &dyn Backend, bytes: u64) -> Result<HostBuffer, DeviceError> {
    let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-bench".to_owned(), bytes })?;
    buffer.populate()?;
    Ok(buffer)
}

/// Path 1: from a pool through a few pinned slots, each free again at once, as with a link that never blocks.
#[derive(Debug)]
pub(super) struct Staging {
    backend: Arc<dyn Backend>,
    stream: Stream,
    buffer: HostBuffer,
    chunk_bytes: u64,
}

impl Staging {
    pub(super) fn new(backend: &Arc<dyn Backend>, chunk_bytes: u64) -> Result<Self, DeviceError> {
        let buffer = pinned(backend.as_ref(), chunk_bytes * u64::from(SLOTS))?;
        Ok(Self { backend: backend.clone(), stream: backend.stream()?, buffer, chunk_bytes })
    }

    /// µs until the last chunk is copied; the marks of each chunk are checked.
    pub(super) fn run(&self, from: PoolPart<'_>, content: Content) -> Result<f64, String> {
        let spec = StagingSpec {
            pool_offset: 0,
            bytes: content.bytes,
            chunk_bytes: self.chunk_bytes,
            buffer_offset: 0,
            slots: SLOTS,
        };
        let mut copy = StagingCopy::new(spec).map_err(|error| error.to_string())?;
        let lane = Lane { backend: self.backend.as_ref(), stream: &self.stream, pool: from, buffer: &self.buffer };
        let start = clock::monotonic_ns();
        let outcome = self.all(&mut copy, &lane, content);
        let took = since(start);
        // Copies that were started must be over before their memory is freed.
        copy.abandon(TIMEOUT).map_err(|error| error.to_string())?;
        outcome.map(|()| took)
    }

    fn all(&self, copy: &mut StagingCopy, lane: &Lane<'_>, content: Content) -> Result<(), String> {
        let text = |error: DeviceError| error.to_string();
        while !copy.is_handed_out() {
            copy.pump(lane).map_err(text)?;
            copy.wait_for_copy(TIMEOUT).map_err(text)?;
            while let Some(chunk) = copy.poll().map_err(text)? {
                let data = self.buffer.mapping().shared(chunk.buffer_offset, chunk.chunk.bytes);
                let checked = content.check(data.map_err(|error| error.to_string())?, chunk.chunk.offset);
                copy.release(chunk);
                checked?;
            }
        }
        Ok(())
    }
}

/// Path 3: from pinned memory, where the message has arrived, into a pool.
#[derive(Debug)]
pub(super) struct Pooling {
    backend: Arc<dyn Backend>,
    stream: Stream,
    chunk_bytes: u64,
}

impl Pooling {
    pub(super) fn new(backend: &Arc<dyn Backend>, chunk_bytes: u64) -> Result<Self, DeviceError> {
        Ok(Self { backend: backend.clone(), stream: backend.stream()?, chunk_bytes })
    }

    /// µs until the last chunk is in the pool.
    pub(super) fn run(&self, from: &HostBuffer, to: PoolPart<'_>, bytes: u64) -> Result<f64, DeviceError> {
        let lane = Lane { backend: self.backend.as_ref(), stream: &self.stream, pool: to, buffer: from };
        let target = rgaps::device::copy::PoolBlock { pool_offset: 0, bytes };
        let mut copies = PoolingCopy::new(COPIES_MAX);
        let start = clock::monotonic_ns();
        let mut started = Ok(());
        for chunk in ChunkPlan::new(bytes, self.chunk_bytes) {
            if !copies.has_room() {
                copies.wait(TIMEOUT)?;
            }
            let arrived = ArrivedChunk { offset: chunk.offset, bytes: chunk.bytes, buffer_offset: chunk.offset };
            started = copies.start(&lane, target, arrived, ());
            if started.is_err() {
                break;
            }
        }
        while copies.wait(TIMEOUT)?.is_some() {}
        started.map(|()| since(start))
    }
}

/// One copy of a whole message from the device into pinned memory; µs.
pub(super) fn bare_to_host(
    backend: &dyn Backend,
    stream: &Stream,
    from: PoolPart<'_>,
    to: &HostBuffer,
    bytes: u64,
) -> Result<f64, DeviceError> {
    let start = clock::monotonic_ns();
    let copy = backend.copy_to_host(stream, from, BufferPart { buffer: to, offset: 0 }, bytes)?;
    spin(&copy)?;
    Ok(since(start))
}

/// One copy of a whole message from pinned memory to the device; µs.
pub(super) fn bare_to_device(
    backend: &dyn Backend,
    stream: &Stream,
    from: &HostBuffer,
    to: PoolPart<'_>,
    bytes: u64,
) -> Result<f64, DeviceError> {
    let start = clock::monotonic_ns();
    let copy = backend.copy_to_device(stream, BufferPart { buffer: from, offset: 0 }, to, bytes)?;
    spin(&copy)?;
    Ok(since(start))
}

fn spin(copy: &Completion) -> Result<(), DeviceError> {
    let start = clock::monotonic_ns();
    while !copy.query()? {
        if since(start) > TIMEOUT.as_micros() as f64 {
            return Err(DeviceError::TimedOut(TIMEOUT));
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// µs since `start` on the monotonic clock.
pub(super) fn since(start: u64) -> f64 {
    clock::monotonic_ns().saturating_sub(start) as f64 / 1e3
}
