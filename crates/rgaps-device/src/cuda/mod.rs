//! Backend `cuda`: pools in GPU memory, copies by the copy engines, work in stream order.
//!
//! `driver` loads libcuda and names its errors. `device` is a GPU and this process's context on it; `memory` and `stream` own driver objects.
//! `pool_header` and `pool` are a pool that several processes map, `integrated` is a pool on a GPU that shares host memory. `argument` passes
//! views to kernels. `gpu_direct` is about network cards that access a GPU's memory. `no_peer` and `scratch` serve a device without peer access to the pools. Nothing here panics if a driver, a device or a
//! symbol is missing; the error names it.
//!
//! Invariants  Every driver call runs with the device's primary context current, and restores the caller's context. Copies are
//!             asynchronous, from or to registered memory; only `copy_in` and `copy_out` of plain slices may block.

mod argument;
#[cfg(feature = "baseline")]
mod baseline;
mod bounce;
mod device;
mod driver;
mod gpu_direct;
mod integrated;
mod memory;
mod no_peer;
mod pool;
mod pool_header;
mod scratch;
mod stream;

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use device::{Device, Properties, parse_uuid, uuid_text};
pub use driver::DriverError;
pub use gpu_direct::Visibility;
pub use integrated::IntegratedPool;
pub use pool::CudaPool;
use rgaps_os::{Access, Mapping, OutOfRange};

use self::bounce::Bounce;
use self::memory::{DeviceAccess, Registration};
use self::no_peer::NoPeer;
use self::scratch::Scratch;
use self::stream::{CudaStream, Unregistered, refusal};
use crate::backend::{Backend, BufferPart, Mirror, Original, PayloadAccess, PoolPart, copy_by_way_of_host};
use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::raw::DevicePart;
use crate::stream::{Completion, Stream, StreamMemory};

/// How long to wait for a copy whose event the driver refused to record.
const UNMARKED_TIMEOUT: Duration = Duration::from_secs(10);

/// A GPU as a backend.
#[derive(Debug)]
pub struct CudaBackend {
    device: Arc<Device>,
    /// Set if this device has no peer access to the pools.
    no_peer: Option<NoPeer>,
    bounce: Mutex<Option<Bounce>>,
}

/// The address of a part of a pool.
#[derive(Clone, Copy, Debug)]
enum PoolAddress {
    /// This device can access it.
    Direct(u64),
    /// Only the pools' device can access it.
    NoPeer(u64),
}

impl CudaBackend {
    /// Opens a device by ordinal; the error says what is missing.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        let missing = |reason| DeviceError::Unavailable { asked: format!("cuda:{ordinal}"), reason };
        let device = Device::open(ordinal).map_err(missing)?;
        let found = device.properties();
        if !found.is_integrated && !found.has_slabs {
            let name = &found.name;
            return Err(missing(format!(
                "{name} cannot share memory between processes (no VMM with POSIX file descriptors)"
            )));
        }
        if !found.has_registration {
            let name = &found.name;
            return Err(missing(format!("{name} cannot use memory of the host by itself (cuMemHostRegister)")));
        }
        Ok(Self { device, no_peer: None, bounce: Mutex::new(None) })
    }

    /// Opens device `ordinal` to work on pools of device `home`: in place if it has peer access to them, else on copies.
    pub fn open_beside(ordinal: u32, home: u32) -> Result<Self, String> {
        let (device, reaches) = Device::open_beside(ordinal, home)?;
        let no_peer = if reaches { None } else { Some(NoPeer::new(&device, Device::open(home)?)?) };
        Ok(Self { device, no_peer, bounce: Mutex::new(None) })
    }

    /// The device of the pools.
    pub fn home(&self) -> &Properties {
        self.pools_on().home()
    }

    /// Whether it has access to the pools. If not, it works on copies of messages (`Backend::mirror`) and of blocks (`Backend::scratch`).
    pub fn reaches_pools(&self) -> bool {
        self.no_peer.is_none()
    }

    /// The device on which pools are created and mapped.
    fn pools_on(&self) -> &Arc<Device> {
        self.no_peer.as_ref().map_or(&self.device, NoPeer::home)
    }

    /// The device that does the work.
    pub fn gpu(&self) -> &Arc<Device> {
        &self.device
    }

    /// Wraps the caller's stream, such as cudarc's `CudaStream::cu_stream` or PyTorch's `cuda_stream`. 0 is the null stream.
    ///
    /// # Safety
    /// `handle` is a CUstream of this device's primary context. The caller destroys it only after the returned stream, all its events, and all
    /// messages published, taken or released on it are dropped.
    pub unsafe fn borrow_stream(&self, handle: u64) -> Stream {
        // SAFETY: the caller's promise.
        let stream = unsafe { CudaStream::borrowed(&self.device, handle as *mut c_void as _) };
        Stream::new(Arc::new(stream))
    }

    /// The CUstream of a stream of this backend, for the caller's own work; `None` for a stream of another backend.
    pub fn raw_stream(&self, stream: &Stream) -> Option<u64> {
        self.own_stream(stream).ok().map(|stream| stream.share_handle() as u64)
    }

    fn own_stream<'a>(&self, stream: &'a Stream) -> Result<&'a CudaStream, DeviceError> {
        let own = stream.body().and_then(|body| body.as_any().downcast_ref::<CudaStream>());
        let own = own.filter(|own| own.device().properties().id == self.device.properties().id);
        own.ok_or_else(|| DeviceError::Failed("the stream is not one of this device".to_owned()))
    }

    /// Checks a part of a pool and returns its address.
    fn address(&self, part: PoolPart<'_>, bytes: u64, access: DeviceAccess) -> Result<PoolAddress, DeviceError> {
        match access {
            DeviceAccess::Read => part.check_read(bytes)?,
            DeviceAccess::ReadWrite => part.check_fill(bytes)?,
        }
        let any = part.pool.as_any();
        if let Some(pool) = any.downcast_ref::<CudaPool>() {
            let at = pool.address_for(part.offset, bytes, access)?;
            return Ok(if self.no_peer.is_some() { PoolAddress::NoPeer(at) } else { PoolAddress::Direct(at) });
        }
        if let Some(scratch) = any.downcast_ref::<Scratch>() {
            return Ok(PoolAddress::Direct(scratch.address_for(part.offset, bytes)?));
        }
        match any.downcast_ref::<IntegratedPool>() {
            Some(pool) => {
                Ok(PoolAddress::Direct(pool.address_for(part.offset, bytes, access == DeviceAccess::ReadWrite)?))
            }
            None => Err(DeviceError::Foreign { wanted: DeviceKind::Cuda, found: part.pool.kind() }),
        }
    }

    /// Enqueues a copy to host memory.
    fn to_host(&self, stream: &Stream, from: u64, to: u64, bytes: u64) -> Result<(), DeviceError> {
        let own = self.own_stream(stream)?;
        let (handle, _entered) = (own.handle(), own.enter()?);
        // SAFETY: both ends were checked to be inside memory that the caller keeps until the completion says so.
        Ok(unsafe { self.device.driver().copy_to_host(to as *mut c_void, from, bytes as usize, handle) }?)
    }

    /// Enqueues a copy from host memory.
    fn to_device(&self, stream: &Stream, from: u64, to: u64, bytes: u64) -> Result<(), DeviceError> {
        let own = self.own_stream(stream)?;
        let (handle, _entered) = (own.handle(), own.enter()?);
        // SAFETY: both ends were checked to be inside memory that the caller keeps until the completion says so.
        Ok(unsafe { self.device.driver().copy_to_device(to, from as *const c_void, bytes as usize, handle) }?)
    }

    fn bounce<T>(&self, copy: impl FnOnce(&mut Bounce) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        if bounce.is_none() {
            *bounce = Some(Bounce::new(self)?);
        }
        match bounce.as_mut() {
            Some(bounce) => copy(bounce),
            None => unreachable!("it was made above"),
        }
    }

    fn register(&self, buffer: HostBuffer) -> Result<HostBuffer, DeviceError> {
        let registration = Registration::of(&self.device, buffer.shared_mapping())?;
        Ok(buffer.kept_by(Arc::new(registration)))
    }
}

impl Backend for CudaBackend {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn device(&self) -> DeviceId {
        self.home().id
    }

    fn payload_access(&self) -> PayloadAccess {
        if self.pools_on().properties().is_integrated { PayloadAccess::Direct } else { PayloadAccess::Staged }
    }

    fn create_pool(&self, spec: &PoolSpec) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        let device = self.pools_on();
        if device.properties().is_integrated {
            return Ok(Arc::new(IntegratedPool::create(device, spec)?));
        }
        Ok(Arc::new(CudaPool::create(device, spec)?))
    }

    fn import_pool(
        &self,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        let device = self.pools_on();
        if device.properties().is_integrated {
            return Ok(Arc::new(IntegratedPool::import(device, description, slabs, role)?));
        }
        Ok(Arc::new(CudaPool::import(device, description, slabs, role)?))
    }

    fn host_buffer(&self, spec: &BufferSpec) -> Result<HostBuffer, DeviceError> {
        self.register(HostBuffer::new(spec)?)
    }

    fn host_buffer_from_fd(&self, spec: &BufferSpec, fd: OwnedFd) -> Result<HostBuffer, DeviceError> {
        self.register(HostBuffer::from_fd(spec, fd)?)
    }

    fn stream_memory(&self, mapping: &Arc<Mapping>) -> Result<Arc<dyn StreamMemory>, DeviceError> {
        if mapping.access() == Access::ReadOnly && !self.device.properties().has_read_only_registration {
            return Ok(Arc::new(Unregistered(mapping.clone())));
        }
        Ok(Arc::new(Registration::of(&self.device, mapping)?))
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        Ok(Stream::new(Arc::new(CudaStream::new(&self.device)?)))
    }

    fn copy_to_host(
        &self,
        stream: &Stream,
        from: PoolPart<'_>,
        to: BufferPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        self.own_stream(stream)?;
        let place = self.address(from, bytes, DeviceAccess::Read)?;
        let target = host_address(to, bytes)?;
        if bytes > 0 {
            match place {
                PoolAddress::Direct(at) => self.to_host(stream, at, target, bytes)?,
                PoolAddress::NoPeer(at) => {
                    let scratch = self.fetched(stream, at, bytes)?;
                    let copied = self.to_host(stream, scratch.address(), target, bytes);
                    copied.inspect_err(|_| no_peer::settle(stream, from.pool))?;
                }
            }
        }
        Ok(started(stream, from.pool))
    }

    fn copy_to_device(
        &self,
        stream: &Stream,
        from: BufferPart<'_>,
        to: PoolPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        self.own_stream(stream)?;
        let place = self.address(to, bytes, DeviceAccess::ReadWrite)?;
        let source = host_address(from, bytes)?;
        if bytes > 0 {
            match place {
                PoolAddress::Direct(at) => self.to_device(stream, source, at, bytes)?,
                PoolAddress::NoPeer(at) => {
                    let scratch = self.scratch_on(stream, bytes)?;
                    self.to_device(stream, source, scratch.address(), bytes)?;
                    let sent = self.send(stream, scratch.address(), at, bytes);
                    sent.inspect_err(|_| no_peer::settle(stream, to.pool))?;
                }
            }
        }
        Ok(started(stream, to.pool))
    }

    fn copy_in(&self, stream: &Stream, from: &[u8], to: PoolPart<'_>) -> Result<Completion, DeviceError> {
        // Check the whole range before the first part is copied.
        self.address(to, from.len() as u64, DeviceAccess::ReadWrite)?;
        self.own_stream(stream)?;
        self.bounce(|bounce| bounce.copy_in(self, stream, from, to))?;
        Ok(Completion::of(stream))
    }

    fn copy_out(&self, stream: &Stream, from: PoolPart<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        self.address(from, to.len() as u64, DeviceAccess::Read)?;
        self.own_stream(stream)?;
        self.bounce(|bounce| bounce.copy_out(self, stream, from, to))
    }

    fn copy_within(&self, stream: &Stream, from: &DevicePart, to: PoolPart<'_>) -> Result<(), DeviceError> {
        let own = self.own_stream(stream)?;
        let place = self.address(to, from.bytes(), DeviceAccess::ReadWrite)?;
        if from.bytes() == 0 {
            return Ok(());
        }
        match place {
            PoolAddress::Direct(at) => {
                let _entered = own.enter()?;
                // SAFETY: `DevicePart` promises the source until the stream has copied it; the pool part was checked.
                unsafe { self.device.driver().copy_device(at, from.address(), from.bytes() as usize, own.handle()) }?;
            }
            PoolAddress::NoPeer(at) => self.send(stream, from.address(), at, from.bytes())?,
        }
        Ok(())
    }

    fn copy_across(&self, stream: &Stream, from: PoolPart<'_>, to: PoolPart<'_>) -> Result<Completion, DeviceError> {
        let own = self.own_stream(stream)?;
        let bytes = from.bytes();
        let source = self.address(from, bytes, DeviceAccess::Read)?;
        let target = self.address(to, bytes, DeviceAccess::ReadWrite)?;
        let (PoolAddress::Direct(source), PoolAddress::Direct(target)) = (source, target) else {
            return copy_by_way_of_host(self, stream, from, to);
        };
        if bytes > 0 {
            let _entered = own.enter()?;
            // SAFETY: both ranges were checked, and by the contract of the call both parts stay until the copy is made.
            unsafe { self.device.driver().copy_device(target, source, bytes as usize, own.handle()) }?;
        }
        let _source_stays = started(stream, from.pool);
        Ok(started(stream, to.pool))
    }

    fn scratch(&self, bytes: u64) -> Result<Option<Arc<dyn PoolMemory>>, DeviceError> {
        if self.reaches_pools() { Ok(None) } else { self.new_scratch(bytes).map(Some) }
    }

    fn copy_scratch(
        &self,
        stream: &Stream,
        from: &dyn PoolMemory,
        to: PoolPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        self.send_scratch(stream, from, to, bytes)
    }

    fn mirror(&self, of: &Original<'_>) -> Result<Option<Mirror>, DeviceError> {
        if self.reaches_pools() { Ok(None) } else { self.mirrored(of).map(Some) }
    }

    fn as_cuda(&self) -> Option<&CudaBackend> {
        Some(self)
    }
}

/// Records the completion of a copy that was enqueued from or to a pool, and notes it at the pool.
fn started(stream: &Stream, pool: &dyn PoolMemory) -> Completion {
    let copy = Completion::of(stream);
    if refusal(copy.event()).is_some() {
        // Wait now: without an event, a later query would ask the stream, which its caller may have destroyed by then.
        let _ = copy.wait(UNMARKED_TIMEOUT);
    } else if let Some(pool) = pool.as_any().downcast_ref::<CudaPool>() {
        pool.note_copy(&copy);
    }
    copy
}

/// The address of a part of a host buffer in this process.
fn host_address(part: BufferPart<'_>, bytes: u64) -> Result<u64, OutOfRange> {
    Ok(part.buffer.mapping().shared(part.offset, bytes)?.address())
}
