//! A backend for tests that does everything as late as it may: a copy happens when somebody asks whether it has happened.
//!
//! Code that uses bytes before their completion sees old bytes here, every time. Memory is the host backend's; each job maps what it
//! needs through descriptors of its own. A stalled backend never gets anything done.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rgaps_os::{Access, Mapping, OutOfRange};

use crate::backend::{Backend, BufferPart, PayloadAccess, PoolPart};
use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::host::HostBackend;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::stream::{Completion, Event, EventBody, Stream, StreamBody};

#[derive(Clone, Debug, Default)]
pub(crate) struct LazyBackend {
    host: HostBackend,
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    stalled: AtomicBool,
    work: Mutex<Work>,
}

/// All streams of the backend share one queue: stricter than a device need be, and enough to be late.
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
    to: Mapping,
    to_offset: u64,
    bytes: u64,
}

#[derive(Debug)]
struct LazyStream(Arc<Queue>);

#[derive(Debug)]
struct LazyEvent(Arc<Queue>, u64);

impl LazyBackend {
    /// From now on nothing gets done.
    pub(crate) fn stall(&self) {
        self.queue.stalled.store(true, Ordering::Relaxed);
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
    /// One job, if there is one; says how many are done.
    fn step(&self) -> u64 {
        let mut work = self.work.lock().unwrap();
        if !self.stalled.load(Ordering::Relaxed)
            && let Some(job) = work.jobs.pop_front()
        {
            job.to.copy_from(job.to_offset, &job.from, job.from_offset, job.bytes).unwrap();
            work.done += 1;
        }
        work.done
    }
}

impl StreamBody for LazyStream {
    fn record(&self) -> Arc<dyn EventBody> {
        Arc::new(LazyEvent(self.0.clone(), self.0.work.lock().unwrap().given))
    }

    fn wait(&self, _event: &Event) -> Result<(), DeviceError> {
        Ok(()) // One queue: all work is in order already.
    }
}

impl EventBody for LazyEvent {
    fn query(&self) -> Result<bool, DeviceError> {
        // What was done before this question counts; then one step, for the next.
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
}

impl Backend for LazyBackend {
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
        self.host.create_pool(spec)
    }

    fn import_pool(
        &self,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        self.host.import_pool(description, slabs, role)
    }

    fn host_buffer(&self, spec: &BufferSpec) -> Result<HostBuffer, DeviceError> {
        self.host.host_buffer(spec)
    }

    fn host_buffer_from_fd(&self, spec: &BufferSpec, fd: OwnedFd) -> Result<HostBuffer, DeviceError> {
        self.host.host_buffer_from_fd(spec, fd)
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        Ok(Stream::new(Arc::new(LazyStream(self.queue.clone()))))
    }

    fn copy_to_host(
        &self,
        stream: &Stream,
        from: PoolPart<'_>,
        to: BufferPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        inside(from.offset, bytes, from.pool.bytes())?;
        inside(to.offset, bytes, to.buffer.bytes())?;
        let (_, fds) = from.pool.export()?;
        let job = Job {
            from: map(&fds[0], from.pool.bytes(), Access::ReadOnly),
            from_offset: from.offset,
            to: map(to.buffer, to.buffer.bytes(), Access::ReadWrite),
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
        inside(to.offset, bytes, to.pool.bytes())?;
        inside(from.offset, bytes, from.buffer.bytes())?;
        let (_, fds) = to.pool.export()?;
        if let Ok(mapping) = Mapping::map(&fds[0], to.pool.bytes(), Access::ReadWrite) {
            let from_mapping = map(from.buffer, from.buffer.bytes(), Access::ReadOnly);
            let job = Job { from: from_mapping, from_offset: from.offset, to: mapping, to_offset: to.offset, bytes };
            return Ok(self.give(stream, job));
        }
        // A sealed pool cannot be mapped for writing again: its own mapping is used at once, after all that was given before.
        stream.synchronize(Duration::ZERO)?;
        self.host.copy_to_device(stream, from, to, bytes)
    }

    fn copy_in(&self, stream: &Stream, from: &[u8], to: PoolPart<'_>) -> Result<Completion, DeviceError> {
        let buffer = self.host_buffer(&BufferSpec { name: "rgaps-bounce".to_owned(), bytes: from.len() as u64 })?;
        buffer.mapping().copy_in(0, from)?;
        self.copy_to_device(stream, BufferPart { buffer: &buffer, offset: 0 }, to, from.len() as u64)
    }
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

#[test]
fn a_backend_that_is_always_late_keeps_the_contract() {
    crate::contract::check(&LazyBackend::default());
}
