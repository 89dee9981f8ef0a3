//! The trait that a kind of device memory implements.
//!
//! Copies are started on a stream and are over when their completion says so; the host backend's are over at once. Whatever a copy
//! reads and writes must live until then: `StagingCopy` and `PoolingCopy` (copy) keep count of what is under way.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rgaps_os::Mapping;

use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::raw::DevicePart;
use crate::stream::{Completion, Stream, Words};

/// Whether a link may read payload where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadAccess {
    /// The pool is host memory: it is sent from directly.
    Direct,
    /// The pool is device memory: it is copied into staging first.
    Staged,
}

/// Part of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolPart<'a> {
    /// The pool.
    pub pool: &'a dyn PoolMemory,
    /// First byte.
    pub offset: u64,
}

/// Part of a host buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferPart<'a> {
    /// The buffer.
    pub buffer: &'a HostBuffer,
    /// First byte.
    pub offset: u64,
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
    fn words(&self, mapping: &Arc<Mapping>) -> Result<Arc<dyn Words>, DeviceError>;

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

    /// The cuda backend's own view of it.
    fn as_cuda(&self) -> Option<&crate::cuda::CudaBackend> {
        None
    }
}
