//! The order of the device work on one buffer, and how long its bytes stay. The program's streams may be destroyed at any time after their work was given, so each buffer that has
//! device work gets a stream of ours: its lane. A write or a read begins with the program's stream waiting for the lane, and ends with the lane waiting
//! for the program's stream.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rgaps::device::{Backend, Completion, DeviceError, Stream};

use super::gid::lock;

/// How long to wait where a device cannot wait by itself.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The lanes of a process.
#[derive(Debug)]
pub(super) struct Lanes {
    device: Arc<dyn Backend>,
    idle: Mutex<Vec<Stream>>,
    /// What was dropped while a device may still use it, by the work of this stream.
    dropped: Mutex<Vec<Dropped>>,
}

#[derive(Debug)]
struct Dropped {
    kept: Option<Box<dyn KeptUntilDone>>,
    work: Completion,
    stream: Stream,
}

/// What must not be dropped before a device has done with it.
pub(super) trait KeptUntilDone: std::fmt::Debug + Send {}

impl<T: std::fmt::Debug + Send> KeptUntilDone for T {}

/// A buffer's stream, shared by all that use the bytes: the buffer, and reads and writes that have begun. When the last of them drops it, what was left in
/// it (`keep`) is dropped after the stream's work.
#[derive(Debug)]
pub(super) struct Lane {
    of: Arc<Lanes>,
    /// `None` only while it is dropped.
    stream: Option<Stream>,
    kept: Mutex<Option<Box<dyn KeptUntilDone>>>,
}

impl Lanes {
    pub(super) fn new(device: Arc<dyn Backend>) -> Self {
        Self { device, idle: Mutex::default(), dropped: Mutex::default() }
    }

    pub(super) fn get(self: &Arc<Self>) -> Result<Arc<Lane>, DeviceError> {
        self.reap();
        let idle = lock(&self.idle).pop();
        let stream = idle.map_or_else(|| self.device.stream(), Ok)?;
        Ok(Arc::new(Lane { of: self.clone(), stream: Some(stream), kept: Mutex::default() }))
    }

    /// Drops what devices have done with.
    pub(super) fn reap(&self) {
        let mut dropped = lock(&self.dropped);
        let (over, busy): (Vec<_>, Vec<_>) = dropped.drain(..).partition(|one: &Dropped| one.work.is_over());
        *dropped = busy;
        drop(dropped);
        for Dropped { kept, stream, .. } in over {
            drop(kept);
            lock(&self.idle).push(stream);
        }
    }
}

impl Lane {
    pub(super) fn stream(&self) -> &Stream {
        self.stream.as_ref().unwrap_or_else(|| unreachable!("only `drop` takes it"))
    }

    /// Leaves what has the bytes here, for those that still use them.
    pub(super) fn keep(&self, kept: impl std::fmt::Debug + Send + 'static) {
        *lock(&self.kept) = Some(Box::new(kept));
    }

    /// Makes later work of a stream of the program follow the work on the buffer so far.
    pub(super) fn delay_stream(&self, stream: &Stream) -> Result<(), DeviceError> {
        stream.wait(&self.stream().record(), TIMEOUT)
    }

    /// Makes later work on the buffer follow the work that a stream of the program has so far.
    pub(super) fn wait_for_stream(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.stream().wait(&stream.record(), TIMEOUT)
    }

    pub(super) fn synchronize(&self) -> Result<(), DeviceError> {
        self.stream().synchronize(TIMEOUT)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let kept = lock(&self.kept).take();
        let work = Completion::of(&stream);
        if work.is_over() {
            drop(kept);
            lock(&self.of.idle).push(stream);
        } else {
            lock(&self.of.dropped).push(Dropped { kept, work, stream });
        }
    }
}
