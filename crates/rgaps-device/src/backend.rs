//! The trait that a kind of device memory implements.
//!
//! Copies are started on a stream and are over when their completion says so; the host backend's are over at once. Whatever a copy
//! reads and writes must live until then: `StagingCopy` and `PoolingCopy` (copy) keep count of what is under way.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rgaps_os::{Mapping, OutOfRange};

use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::raw::DevicePart;
use crate::stream::{Completion, Stream, StreamMemory, StreamWord};

/// Whether a link may read payload where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadAccess {
    /// The pool is host memory: it is sent from directly.
    Direct,
    /// The pool is device memory: it is copied into staging first.
    Staged,
}

/// Part of a pool, for copies of a device: where it lies, and what may be done there. It leads to nothing else of the pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolPart<'a> {
    pub(crate) pool: &'a dyn PoolMemory,
    pub(crate) offset: u64,
    bytes: u64,
    may_fill: bool,
}

impl<'a> PoolPart<'a> {
    /// `bytes` bytes that are the caller's to fill, and to read.
    pub fn to_fill(pool: &'a dyn PoolMemory, offset: u64, bytes: u64) -> Self {
        Self { pool, offset, bytes, may_fill: true }
    }

    /// `bytes` bytes to be read.
    pub fn to_read(pool: &'a dyn PoolMemory, offset: u64, bytes: u64) -> Self {
        Self { pool, offset, bytes, may_fill: false }
    }

    /// Everything from `offset` to the pool's end: who has the pool may do with it what he likes.
    pub fn of(pool: &'a dyn PoolMemory, offset: u64) -> Self {
        Self::to_fill(pool, offset, pool.bytes().saturating_sub(offset))
    }

    /// What is left behind its first `bytes` bytes.
    pub fn skip(self, bytes: u64) -> Result<Self, OutOfRange> {
        let left = self.bytes.checked_sub(bytes).ok_or_else(|| self.outside(bytes))?;
        Ok(Self { offset: self.offset + bytes, bytes: left, ..self })
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether that many bytes may be copied out of it.
    pub(crate) fn check_read(&self, bytes: u64) -> Result<(), OutOfRange> {
        if bytes <= self.bytes { Ok(()) } else { Err(self.outside(bytes)) }
    }

    /// Whether that many bytes may be copied into it.
    pub(crate) fn check_fill(&self, bytes: u64) -> Result<(), OutOfRange> {
        if self.may_fill { self.check_read(bytes) } else { Err(self.outside(bytes)) }
    }

    fn outside(&self, bytes: u64) -> OutOfRange {
        OutOfRange { offset: self.offset, bytes, mapped: self.pool.bytes() }
    }
}

/// Part of a host buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferPart<'a> {
    /// The buffer.
    pub buffer: &'a HostBuffer,
    /// First byte.
    pub offset: u64,
}

/// A message in a pool, to be copied to a device that does not reach the pool.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// The pool.
    pub pool: &'a Arc<dyn PoolMemory>,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its place in the order of its topic, which tells it from what lay there before.
    pub position: u64,
    /// The word that says that its bytes are there, and from which value on; `None`: they are.
    pub awaited: Option<(StreamWord<'a>, u32)>,
    /// How long the caller waits for that word, where the device cannot.
    pub timeout: Duration,
}

/// A copy of a message on the device. All who ask for it while it lives share it.
#[derive(Debug)]
pub struct Mirror {
    /// The copy, from its first byte on. Kept until work on it is over.
    pub memory: Arc<dyn PoolMemory>,
    /// Its bytes are there. The original must stay until then.
    pub copied: Completion,
    /// Somebody had it already: nothing was copied for this call.
    pub is_shared: bool,
}

/// A kind of device memory.
pub trait Backend: Debug + Send + Sync {
    /// Which kind.
    fn kind(&self) -> DeviceKind;

    /// Which device.
    fn device(&self) -> DeviceId;

    /// Whether links read payload directly.
    fn payload_access(&self) -> PayloadAccess;

    /// Makes a pool and maps it. The manager does.
    fn create_pool(&self, spec: &PoolSpec) -> Result<Arc<dyn PoolMemory>, DeviceError>;

    /// Maps a pool that another process made. Everything about it is checked before it is mapped.
    fn import_pool(
        &self,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Arc<dyn PoolMemory>, DeviceError>;

    /// Makes a host buffer that this device copies to and from.
    fn host_buffer(&self, spec: &BufferSpec) -> Result<HostBuffer, DeviceError>;

    /// Makes a host buffer of memory that exists: a memfd of exactly `spec.bytes` whose size is sealed.
    fn host_buffer_from_fd(&self, spec: &BufferSpec, fd: OwnedFd) -> Result<HostBuffer, DeviceError>;

    /// Makes the words of shared memory known to this device's streams. Once a mapping.
    fn stream_memory(&self, mapping: &Arc<Mapping>) -> Result<Arc<dyn StreamMemory>, DeviceError>;

    /// A new stream.
    fn stream(&self) -> Result<Stream, DeviceError>;

    /// Starts a copy out of a pool: path 1.
    fn copy_to_host(
        &self,
        stream: &Stream,
        from: PoolPart<'_>,
        to: BufferPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError>;

    /// Starts a copy into a pool: path 3.
    fn copy_to_device(
        &self,
        stream: &Stream,
        from: BufferPart<'_>,
        to: PoolPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError>;

    /// Starts a copy of ordinary memory into a pool: the one copy of `push`. `from` may be reused when the call returns; the bytes are
    /// in the pool when the completion says so.
    fn copy_in(&self, stream: &Stream, from: &[u8], to: PoolPart<'_>) -> Result<Completion, DeviceError>;

    /// Copies part of a pool into ordinary memory, behind the work given so far, and waits for it.
    fn copy_out(&self, stream: &Stream, from: PoolPart<'_>, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Stream order: copies device memory of the caller's into a pool, behind the work given so far: the one copy of `push`. One call of
    /// the driver, whatever the size.
    fn copy_within(&self, stream: &Stream, from: &DevicePart, to: PoolPart<'_>) -> Result<(), DeviceError>;

    /// Memory of the device's own, in which kernels fill a block of a pool that the device does not reach. `None`: it does, and they work in
    /// place. It is dropped when no work but that of the stream of `copy_scratch` touches it.
    fn scratch(&self, bytes: u64) -> Result<Option<Arc<dyn PoolMemory>>, DeviceError> {
        let _ = bytes;
        Ok(None)
    }

    /// Starts the copy of such memory into its block, behind the work given so far. It may be dropped at once.
    fn copy_scratch(
        &self,
        stream: &Stream,
        from: &dyn PoolMemory,
        to: PoolPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        let _ = (stream, from, to, bytes);
        Err(DeviceError::Failed("this device works in place".to_owned()))
    }

    /// A message of a pool that the device does not reach, as a copy in memory of its own: one for all who ask while it lives. `None`: the
    /// device reaches it, and reads it in place. The call does not wait for the device, unless `awaited` says so.
    fn mirror(&self, of: &Original<'_>) -> Result<Option<Mirror>, DeviceError> {
        let _ = of;
        Ok(None)
    }

    /// The cuda backend's own view of it.
    fn as_cuda(&self) -> Option<&crate::cuda::CudaBackend> {
        None
    }
}
