//! The trait that a kind of device memory implements.
//!
//! A call starts a copy on a stream; the copy is over when its completion says so, on the host backend at once. The memory that a copy
//! reads and writes must live until then: `StagingCopy` and `PoolingCopy` (copy) track the copies under way.

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

/// Whether a link may read and write payload in the pool itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadAccess {
    /// The pool is host memory: the link sends from it, and what arrives lands in it.
    Direct,
    /// The pool is device memory: chunks are copied into staging before they are sent, and from the ring when they have arrived.
    Staged,
}

/// Part of a pool, as source or target of a device copy: its range and its access right. It gives no access to the rest of the pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolPart<'a> {
    pub(crate) pool: &'a dyn PoolMemory,
    pub(crate) offset: u64,
    bytes: u64,
    may_fill: bool,
}

impl<'a> PoolPart<'a> {
    /// `bytes` bytes that may be written and read.
    pub fn to_fill(pool: &'a dyn PoolMemory, offset: u64, bytes: u64) -> Self {
        Self { pool, offset, bytes, may_fill: true }
    }

    /// `bytes` bytes that may be read.
    pub fn to_read(pool: &'a dyn PoolMemory, offset: u64, bytes: u64) -> Self {
        Self { pool, offset, bytes, may_fill: false }
    }

    /// Everything from `offset` to the pool's end, to write and read: a caller that has the pool has all rights to it.
    pub fn of(pool: &'a dyn PoolMemory, offset: u64) -> Self {
        Self::to_fill(pool, offset, pool.bytes().saturating_sub(offset))
    }

    /// The part without its first `bytes` bytes.
    ///
    /// ```
    /// use rgaps_device::{Backend, Choice, PoolPart, PoolSpec, open};
    ///
    /// let pool = open(Choice::Host)?.backend.create_pool(&PoolSpec { name: "camera".to_owned(), bytes: 4096 })?;
    /// let chunk = PoolPart::to_fill(&*pool, 0, 1000).skip(400)?;
    /// assert_eq!(chunk.bytes(), 600);
    /// assert!(chunk.skip(601).is_err());
    /// # Ok::<(), rgaps_device::DeviceError>(())
    /// ```
    pub fn skip(self, bytes: u64) -> Result<Self, OutOfRange> {
        let left = self.bytes.checked_sub(bytes).ok_or_else(|| self.outside(bytes))?;
        Ok(Self { offset: self.offset + bytes, bytes: left, ..self })
    }

    /// Bytes of the part.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks that `bytes` bytes may be copied out of it.
    pub(crate) fn check_read(&self, bytes: u64) -> Result<(), OutOfRange> {
        if bytes <= self.bytes { Ok(()) } else { Err(self.outside(bytes)) }
    }

    /// Checks that `bytes` bytes may be copied into it.
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

/// A message to copy to a device that has no peer access to the message's pool.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// The pool.
    pub pool: &'a Arc<dyn PoolMemory>,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its position in its topic, which distinguishes it from earlier messages in the same block.
    pub position: u64,
    /// The word to wait for before the copy, and the value that it must reach; `None`: the bytes are ready.
    pub awaited: Option<(StreamWord<'a>, u32)>,
    /// How long the caller waits for that word if the device cannot.
    pub timeout: Duration,
}

/// A copy of a message on the device. All callers that need it while it lives share it.
#[derive(Debug)]
pub struct Mirror {
    /// The memory of the copy, from its first byte on. Keep it until all work on it is over.
    pub memory: Arc<dyn PoolMemory>,
    /// Complete when the copy is made. The original must stay until then.
    pub copied: Completion,
    /// Another caller had it already: this call copied nothing.
    pub is_shared: bool,
}

/// A kind of device memory.
pub trait Backend: Debug + Send + Sync {
    /// Kind of device.
    fn kind(&self) -> DeviceKind;

    /// Identity of the device.
    fn device(&self) -> DeviceId;

    /// Whether links may read payload directly from a pool.
    fn payload_access(&self) -> PayloadAccess;

    /// Creates a pool and maps it. The manager calls it.
    ///
    /// ```
    /// use rgaps_device::{Backend, Choice, PoolSpec, open};
    ///
    /// let backend = open(Choice::Host)?.backend;
    /// let pool = backend.create_pool(&PoolSpec { name: "camera".to_owned(), bytes: 1 << 20 })?;
    /// assert_eq!((pool.bytes(), pool.kind()), (1 << 20, backend.kind()));
    /// # Ok::<(), rgaps_device::DeviceError>(())
    /// ```
    fn create_pool(&self, spec: &PoolSpec) -> Result<Arc<dyn PoolMemory>, DeviceError>;

    /// Maps a pool that another process made. Checks description, size and seals before it maps anything.
    ///
    /// ```
    /// use rgaps_device::{Backend, Choice, PoolRole, PoolSpec, open};
    ///
    /// let backend = open(Choice::Host)?.backend;
    /// let pool = backend.create_pool(&PoolSpec { name: "camera".to_owned(), bytes: 4096 })?; // by the manager
    /// let (description, slabs) = pool.export()?;
    /// pool.seal()?; // from here on, others map it read-only
    /// let reader = backend.import_pool(&description, slabs, PoolRole::Reader)?; // by a subscriber
    /// assert_eq!(reader.identity(), pool.identity());
    /// # Ok::<(), rgaps_device::DeviceError>(())
    /// ```
    fn import_pool(
        &self,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Arc<dyn PoolMemory>, DeviceError>;

    /// Creates a host buffer that this device copies to and from.
    fn host_buffer(&self, spec: &BufferSpec) -> Result<HostBuffer, DeviceError>;

    /// Creates a host buffer from existing memory: a memfd of exactly `spec.bytes` whose size is sealed.
    fn host_buffer_from_fd(&self, spec: &BufferSpec, fd: OwnedFd) -> Result<HostBuffer, DeviceError>;

    /// Registers the words of shared memory with this device's streams. Call it once for each mapping.
    fn stream_memory(&self, mapping: &Arc<Mapping>) -> Result<Arc<dyn StreamMemory>, DeviceError>;

    /// Creates a stream.
    fn stream(&self) -> Result<Stream, DeviceError>;

    /// Starts a copy out of a pool: path 1.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rgaps_device::{Backend, BufferPart, BufferSpec, Choice, PoolPart, PoolSpec, open};
    ///
    /// let backend = open(Choice::Auto)?.backend;
    /// let pool = backend.create_pool(&PoolSpec { name: "camera".to_owned(), bytes: 1 << 20 })?;
    /// let buffer = backend.host_buffer(&BufferSpec { name: "staging".to_owned(), bytes: 4096 })?;
    /// let stream = backend.stream()?;
    /// let written = backend.copy_in(&stream, b"hello", PoolPart::of(&*pool, 0))?;
    /// let copied =
    ///     backend.copy_to_host(&stream, PoolPart::of(&*pool, 0), BufferPart { buffer: &buffer, offset: 0 }, 5)?;
    /// copied.wait(Duration::from_secs(1))?; // the stream has made both copies
    /// # assert!(written.is_complete());
    /// let mut found = [0; 5];
    /// buffer.mapping().copy_out(0, &mut found)?;
    /// assert_eq!(&found, b"hello");
    /// # Ok::<(), rgaps_device::DeviceError>(())
    /// ```
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

    /// Starts a copy of host memory into a pool: the one copy of `push`. The caller may reuse `from` when the call returns; the bytes are in
    /// the pool when the completion says so.
    fn copy_in(&self, stream: &Stream, from: &[u8], to: PoolPart<'_>) -> Result<Completion, DeviceError>;

    /// Copies part of a pool into host memory, after the work given so far, and waits for the copy.
    fn copy_out(&self, stream: &Stream, from: PoolPart<'_>, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Starts a copy of the caller's device memory into a pool, in stream order: the one copy of `push_on`. One driver call for any size.
    fn copy_within(&self, stream: &Stream, from: &DevicePart, to: PoolPart<'_>) -> Result<(), DeviceError>;

    /// Starts a copy of a part of one pool to the start of a part of another, or of the same one, in stream order. Both must stay until the
    /// completion says that it is made. A device that cannot copy from pool to pool copies by way of host memory, and the call waits for that.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rgaps_device::{Backend, Choice, PoolPart, PoolSpec, open};
    ///
    /// let backend = open(Choice::Auto)?.backend;
    /// let spec = PoolSpec { name: "camera".to_owned(), bytes: 1 << 20 };
    /// let (from, to) = (backend.create_pool(&spec)?, backend.create_pool(&spec)?);
    /// let stream = backend.stream()?;
    /// backend.copy_in(&stream, b"hello", PoolPart::of(&*from, 0))?;
    /// let copied = backend.copy_across(&stream, PoolPart::to_read(&*from, 0, 5), PoolPart::of(&*to, 256))?;
    /// copied.wait(Duration::from_secs(1))?;
    /// let mut found = [0; 5];
    /// backend.copy_out(&stream, PoolPart::of(&*to, 256), &mut found)?;
    /// assert_eq!(&found, b"hello");
    /// # Ok::<(), rgaps_device::DeviceError>(())
    /// ```
    fn copy_across(&self, stream: &Stream, from: PoolPart<'_>, to: PoolPart<'_>) -> Result<Completion, DeviceError>;

    /// Memory on the device in which kernels fill a block, if the device has no peer access to the pool. `None`: it has, and kernels work in
    /// place. Drop it only when no stream except that of `copy_scratch` still uses it.
    fn scratch(&self, bytes: u64) -> Result<Option<Arc<dyn PoolMemory>>, DeviceError> {
        let _ = bytes;
        Ok(None)
    }

    /// Starts the copy of scratch memory into its block, after the work given so far. The caller may drop the scratch memory at once.
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

    /// A copy of a message in the device's own memory, if the device has no peer access to the pool. All callers share it while it lives.
    /// `None`: the device has access and reads the message in place. The call waits only if the device cannot wait for the word `awaited`.
    fn mirror(&self, of: &Original<'_>) -> Result<Option<Mirror>, DeviceError> {
        let _ = of;
        Ok(None)
    }

    /// The cuda backend's type, if it is that.
    fn as_cuda(&self) -> Option<&crate::cuda::CudaBackend> {
        None
    }
}

/// Makes a copy between pools for a device that cannot: out to host memory, and in from there.
pub(crate) fn copy_by_way_of_host(
    backend: &dyn Backend,
    stream: &Stream,
    from: PoolPart<'_>,
    to: PoolPart<'_>,
) -> Result<Completion, DeviceError> {
    to.check_fill(from.bytes())?;
    let mut bytes = vec![0; from.bytes() as usize];
    backend.copy_out(stream, from, &mut bytes)?;
    backend.copy_in(stream, &bytes, to)
}
