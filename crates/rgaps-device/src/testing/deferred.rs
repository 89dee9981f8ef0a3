//! A test backend that works as late as it may: it makes a copy only when its completion is queried.
//!
//! Code that uses bytes before their completion always sees old bytes here. The memory is the host backend's; each job maps its source and
//! target itself, or keeps the pool that this backend made. A stalled backend makes no copy. For tests only.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rgaps_os::{Access, Mapping, OutOfRange, SharedBytes};

use crate::backend::{Backend, BufferPart, PayloadAccess, PoolPart, copy_by_way_of_host};
use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::host::HostBackend;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::raw::DevicePart;
use crate::stream::{Completion, Event, EventBody, Stream, StreamBody, StreamMemory, StreamWord};

/// The late backend.
#[derive(Clone, Debug, Default)]
pub struct DeferredBackend {
    host: HostBackend,
    /// Pools that it made or mapped as writer: a sealed pool can only be written through a mapping made before the seal.
    pools: Arc<Mutex<Vec<Weak<dyn PoolMemory>>>>,
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    stalled: AtomicBool,
    work: Mutex<Work>,
}

/// All streams of the backend share one queue. A real device orders less; for late copies one queue is enough.
#[derive(Debug, Default)]
struct Work {
    jobs: VecDeque<Job>,
    given: u64,
    done: u64,
}

#[derive(Debug)]
struct Job {
    from: Mapping,
    from_offset: u64,
    to: Destination,
    to_offset: u64,
    bytes: u64,
}

#[derive(Debug)]
enum Destination {
    Mapped(Mapping),
    Pool(Arc<dyn PoolMemory>),
}

#[derive(Debug)]
struct DeferredStream(Arc<Queue>);

#[derive(Debug)]
struct DeferredEvent(Arc<Queue>, u64);

impl DeferredBackend {
    fn bounce(&self, stream: &Stream, from: SharedBytes<'_>, to: PoolPart<'_>) -> Result<Completion, DeviceError> {
        let buffer = self.host_buffer(&BufferSpec { name: "rgaps-bounce".to_owned(), bytes: from.len() as u64 })?;
        buffer.mapping().copy_in(0, from)?;
        self.copy_to_device(stream, BufferPart { buffer: &buffer, offset: 0 }, to, from.len() as u64)
    }

    /// Stops making copies.
    pub fn stall(&self) {
        self.queue.stalled.store(true, Ordering::Relaxed);
    }

    /// Resumes making copies.
    pub fn go_on(&self) {
        self.queue.stalled.store(false, Ordering::Relaxed);
    }

    /// Copies that were started and are not made yet.
    pub fn waiting(&self) -> usize {
        self.queue.work.lock().unwrap().jobs.len()
    }

    fn give(&self, stream: &Stream, job: Job) -> Completion {
        let mut work = self.queue.work.lock().unwrap();
        work.jobs.push_back(job);
        work.given += 1;
        drop(work);
        Completion::of(stream)
    }
}

impl Queue {
    /// Does one job, if there is one and the queue is not stalled. Returns how many are done.
    fn step(&self) -> u64 {
        let mut work = self.work.lock().unwrap();
        if !self.stalled.load(Ordering::Relaxed)
            && let Some(job) = work.jobs.pop_front()
        {
            match &job.to {
                Destination::Mapped(to) => to.copy_from(job.to_offset, &job.from, job.from_offset, job.bytes).unwrap(),
                Destination::Pool(pool) => {
                    let to = pool.as_host().unwrap().mapping();
                    to.copy_from(job.to_offset, &job.from, job.from_offset, job.bytes).unwrap();
                }
            }
            work.done += 1;
        }
        work.done
    }
}

impl DeferredStream {
    fn mark(&self) -> DeferredEvent {
        DeferredEvent(self.0.clone(), self.0.work.lock().unwrap().given)
    }
}

impl StreamBody for DeferredStream {
    fn record(self: Arc<Self>) -> Arc<dyn EventBody> {
        Arc::new(self.mark())
    }

    fn wait(&self, _event: &Event) -> Result<(), DeviceError> {
        Ok(()) // With one queue all work is in order already.
    }

    fn write_value(&self, word: &StreamWord<'_>, value: u32) -> Result<(), DeviceError> {
        // Words are never late: other processes wait for them.
        self.mark().wait(Duration::ZERO)?;
        Ok(word.write(value)?)
    }

    fn wait_value(&self, word: &StreamWord<'_>, value: u32, timeout: Duration) -> Result<(), DeviceError> {
        word.wait(value, timeout)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl EventBody for DeferredEvent {
    fn query(&self) -> Result<bool, DeviceError> {
        // Only jobs done before this query count; the step below is for the next query.
        let done = self.0.work.lock().unwrap().done;
        if done < self.1 {
            self.0.step();
        }
        Ok(done >= self.1)
    }

    fn wait(&self, timeout: Duration) -> Result<(), DeviceError> {
        while !self.query()? {
            if self.0.stalled.load(Ordering::Relaxed) {
                return Err(DeviceError::TimedOut(timeout));
            }
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for DeferredBackend {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Host
    }

    fn device(&self) -> DeviceId {
        self.host.device()
    }

    fn payload_access(&self) -> PayloadAccess {
        PayloadAccess::Staged
    }

    fn create_pool(&self, spec: &PoolSpec) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        let pool = self.host.create_pool(spec)?;
        self.pools.lock().unwrap().push(Arc::downgrade(&pool));
        Ok(pool)
    }

    fn import_pool(
        &self,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        let pool = self.host.import_pool(description, slabs, role)?;
        if role == PoolRole::Writer {
            self.pools.lock().unwrap().push(Arc::downgrade(&pool));
        }
        Ok(pool)
    }

    fn host_buffer(&self, spec: &BufferSpec) -> Result<HostBuffer, DeviceError> {
        self.host.host_buffer(spec)
    }

    fn host_buffer_from_fd(&self, spec: &BufferSpec, fd: OwnedFd) -> Result<HostBuffer, DeviceError> {
        self.host.host_buffer_from_fd(spec, fd)
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        Ok(Stream::new(Arc::new(DeferredStream(self.queue.clone()))))
    }

    fn copy_to_host(
        &self,
        stream: &Stream,
        from: PoolPart<'_>,
        to: BufferPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        from.check_read(bytes)?;
        inside(from.offset, bytes, from.pool.bytes())?;
        inside(to.offset, bytes, to.buffer.bytes())?;
        let (_, fds) = from.pool.export()?;
        let job = Job {
            from: map(&fds[0], from.pool.bytes(), Access::ReadOnly),
            from_offset: from.offset,
            to: Destination::Mapped(map(to.buffer, to.buffer.bytes(), Access::ReadWrite)),
            to_offset: to.offset,
            bytes,
        };
        Ok(self.give(stream, job))
    }

    fn copy_to_device(
        &self,
        stream: &Stream,
        from: BufferPart<'_>,
        to: PoolPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        to.check_fill(bytes)?;
        inside(to.offset, bytes, to.pool.bytes())?;
        inside(from.offset, bytes, from.buffer.bytes())?;
        let writable =
            self.pools.lock().unwrap().iter().filter_map(Weak::upgrade).find(|pool| is_same(&**pool, to.pool));
        let Some(pool) = writable else {
            // A reader's pool: the host backend returns the error.
            return self.host.copy_to_device(stream, from, to, bytes);
        };
        let from_mapping = map(from.buffer, from.buffer.bytes(), Access::ReadOnly);
        let (from_offset, to_offset) = (from.offset, to.offset);
        Ok(self.give(stream, Job { from: from_mapping, from_offset, to: Destination::Pool(pool), to_offset, bytes }))
    }

    fn copy_in(&self, stream: &Stream, from: &[u8], to: PoolPart<'_>) -> Result<Completion, DeviceError> {
        self.bounce(stream, from.into(), to)
    }

    fn copy_out(&self, stream: &Stream, from: PoolPart<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        stream.record().wait(Duration::ZERO)?;
        self.host.copy_out(stream, from, to)
    }

    fn copy_within(&self, stream: &Stream, from: &DevicePart, to: PoolPart<'_>) -> Result<(), DeviceError> {
        self.bounce(stream, from.as_host_bytes(), to).map(|_| ())
    }

    fn copy_across(&self, stream: &Stream, from: PoolPart<'_>, to: PoolPart<'_>) -> Result<Completion, DeviceError> {
        copy_by_way_of_host(self, stream, from, to)
    }

    fn stream_memory(&self, mapping: &Arc<Mapping>) -> Result<Arc<dyn StreamMemory>, DeviceError> {
        self.host.stream_memory(mapping)
    }
}

fn is_same(one: &dyn PoolMemory, other: &dyn PoolMemory) -> bool {
    std::ptr::addr_eq(one, other)
}

fn map(fd: impl std::os::fd::AsFd, bytes: u64, access: Access) -> Mapping {
    Mapping::map(fd, bytes, access).unwrap()
}

fn inside(offset: u64, bytes: u64, mapped: u64) -> Result<(), OutOfRange> {
    match offset.checked_add(bytes) {
        Some(end) if end <= mapped => Ok(()),
        _ => Err(OutOfRange { offset, bytes, mapped }),
    }
}

#[cfg(test)]
#[test]
fn a_backend_that_is_always_late_keeps_the_contract() {
    crate::testing::contract::check(&DeferredBackend::default());
}
