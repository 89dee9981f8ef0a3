//! Copies host memory into a pool and back through two pinned halves, so that the driver never uses the caller's slice.

use std::time::Duration;

use super::CudaBackend;
use crate::backend::{Backend, BufferPart, PoolPart};
use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::stream::{Completion, Stream};

const HALF_BYTES: u64 = 4 << 20;
/// How long a copy of a half may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Two halves of pinned memory: one is filled while the other is copied.
#[derive(Debug)]
pub(super) struct Bounce {
    buffer: HostBuffer,
    under_way: [Option<Completion>; 2],
}

impl Bounce {
    pub(super) fn new(backend: &CudaBackend) -> Result<Self, DeviceError> {
        let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-bounce".to_owned(), bytes: 2 * HALF_BYTES })?;
        Ok(Self { buffer, under_way: [None, None] })
    }

    /// Starts copies of all of `from`; the slice is not used after this returns. After an error no copy is under way, except after a time-out.
    pub(super) fn copy_in(
        &mut self,
        backend: &CudaBackend,
        stream: &Stream,
        from: &[u8],
        to: PoolPart<'_>,
    ) -> Result<(), DeviceError> {
        let copied = self.start_copies_in(backend, stream, from, to);
        copied.inspect_err(|_| self.settle())
    }

    fn start_copies_in(
        &mut self,
        backend: &CudaBackend,
        stream: &Stream,
        from: &[u8],
        to: PoolPart<'_>,
    ) -> Result<(), DeviceError> {
        for (number, part) in from.chunks(HALF_BYTES as usize).enumerate() {
            let half = number % 2;
            self.wait_for(half)?;
            let offset = half as u64 * HALF_BYTES;
            self.buffer.mapping().copy_in(offset, part)?;
            let place = PoolPart::of(to.pool, to.offset + number as u64 * HALF_BYTES);
            let source = BufferPart { buffer: &self.buffer, offset };
            self.under_way[half] = Some(backend.copy_to_device(stream, source, place, part.len() as u64)?);
        }
        Ok(())
    }

    /// Fills all of `to`, one half while the device copies the other. After an error no copy is under way, except after a time-out.
    pub(super) fn copy_out(
        &mut self,
        backend: &CudaBackend,
        stream: &Stream,
        from: PoolPart<'_>,
        to: &mut [u8],
    ) -> Result<(), DeviceError> {
        let copied = self.run_copies_out(backend, stream, from, to);
        copied.inspect_err(|_| self.settle())
    }

    /// Waits for the copies under way, each until its time-out.
    fn settle(&mut self) {
        (0..2).for_each(|half| drop(self.wait_for(half)));
    }

    fn run_copies_out(
        &mut self,
        backend: &CudaBackend,
        stream: &Stream,
        from: PoolPart<'_>,
        to: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.wait_for(0)?;
        self.wait_for(1)?;
        let mut parts = to.chunks_mut(HALF_BYTES as usize).enumerate().peekable();
        self.fetch(backend, stream, from, 0, parts.peek().map_or(0, |(_, part)| part.len()))?;
        while let Some((number, part)) = parts.next() {
            if let Some((next, part)) = parts.peek() {
                self.fetch(backend, stream, from, *next, part.len())?;
            }
            self.wait_for(number % 2)?;
            self.buffer.mapping().copy_out((number as u64 % 2) * HALF_BYTES, part)?;
        }
        Ok(())
    }

    /// Starts the copy of part `number` into its half.
    fn fetch(
        &mut self,
        backend: &CudaBackend,
        stream: &Stream,
        from: PoolPart<'_>,
        number: usize,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let half = number % 2;
        let place = PoolPart::of(from.pool, from.offset + number as u64 * HALF_BYTES);
        let target = BufferPart { buffer: &self.buffer, offset: half as u64 * HALF_BYTES };
        self.under_way[half] = Some(backend.copy_to_host(stream, place, target, bytes as u64)?);
        Ok(())
    }

    /// Waits until a half is free. After a time-out the next copy waits for it again.
    fn wait_for(&mut self, half: usize) -> Result<(), DeviceError> {
        let Some(copy) = &self.under_way[half] else { return Ok(()) };
        let waited = copy.wait(TIMEOUT);
        if !matches!(waited, Ok(()) | Err(DeviceError::TimedOut(_))) {
            // Perhaps only the query failed and the copy is still under way: wait again before the memory is reused.
            let _ = copy.wait(TIMEOUT);
        }
        if !matches!(waited, Err(DeviceError::TimedOut(_))) {
            self.under_way[half] = None;
        }
        waited
    }
}
