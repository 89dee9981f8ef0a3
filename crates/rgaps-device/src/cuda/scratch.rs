//! Private device memory from the driver's stream-ordered allocator (cuMemAllocAsync), for copies of data on another device.
//!
//! Invariants  Only work ordered after the allocation uses the memory: work of its stream, or of a stream that waits for a later event of
//!             that stream. `drop` frees it in the order of its stream, or of the stream named by `give_back_behind` while that work is
//!             pending; the caller that drops it makes sure that no other work uses it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUdeviceptr;
use rgaps_os::{AllocationRight, OutOfRange, OwnedRange, SharedBytes};

use super::device::Device;
use super::stream::CudaStream;
use crate::error::DeviceError;
use crate::pool::{DeviceKind, PoolDescription, PoolMemory};
use crate::stream::{Completion, Stream};

/// Device memory that is not shared with other processes.
#[derive(Debug)]
pub(super) struct Scratch {
    device: Arc<Device>,
    at: CUdeviceptr,
    bytes: u64,
    /// The stream of the allocation.
    stream: Stream,
    /// Work of another stream after which it may be freed.
    behind: Mutex<Option<(Stream, Completion)>>,
    /// The pool of the copied message, kept mapped while the copy may be under way.
    _original: Option<Arc<dyn PoolMemory>>,
}

impl Scratch {
    /// Allocates memory for later work of this stream.
    pub(super) fn new(
        device: &Arc<Device>,
        stream: &Stream,
        bytes: u64,
        original: Option<Arc<dyn PoolMemory>>,
    ) -> Result<Self, DeviceError> {
        let Some(own) = cuda(stream) else {
            return Err(DeviceError::Failed("the stream is not one of this device".to_owned()));
        };
        // cuMemAllocAsync refuses 0 bytes, but an empty message needs an address.
        let bytes = bytes.max(1);
        let mut at: CUdeviceptr = 0;
        let entered = own.enter()?;
        // SAFETY: stores one address; freed in `drop`. The stream is alive.
        let allocated = unsafe { device.driver().allocate(&raw mut at, bytes as usize, own.handle()) };
        drop(entered);
        if let Err(error) = allocated {
            return Err(match device.memory() {
                Ok((free, total)) if error.is_out_of_memory() => {
                    let name = "a copy on the node's own device".to_owned();
                    DeviceError::OutOfMemory { name, bytes, free, total }
                }
                _ => error.into(),
            });
        }
        Ok(Self {
            device: device.clone(),
            at,
            bytes,
            stream: stream.clone(),
            behind: Mutex::default(),
            _original: original,
        })
    }

    /// Device address of the first byte.
    pub(super) fn address(&self) -> CUdeviceptr {
        self.at
    }

    /// Defers freeing until after `work`, which `stream` does.
    pub(super) fn give_back_behind(&self, stream: &Stream, work: &Completion) {
        *lock(&self.behind) = Some((stream.clone(), work.clone()));
    }

    /// The address of a part.
    pub(super) fn address_for(&self, offset: u64, bytes: u64) -> Result<CUdeviceptr, OutOfRange> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.at + offset),
            _ => Err(OutOfRange { offset, bytes, mapped: self.bytes }),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Use that stream only while its work is pending: a caller may destroy its stream afterwards.
        let behind = lock(&self.behind).take().filter(|(_, work)| !work.is_complete());
        let stream = behind.as_ref().map_or(&self.stream, |(stream, _)| stream);
        let Some(stream) = cuda(stream) else { return };
        let Ok(_entered) = stream.enter() else { return };
        // SAFETY: our own, freed once; all work that uses it is over, or precedes this on the stream. A failure only leaks the memory.
        let _ = unsafe { self.device.driver().free(self.at, stream.handle()) };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cuda(stream: &Stream) -> Option<&CudaStream> {
    stream.body()?.as_any().downcast_ref()
}

impl PoolMemory for Scratch {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self) -> Result<(PoolDescription, Vec<OwnedFd>), DeviceError> {
        Err(DeviceError::Failed("scratch memory is private to its process and cannot be exported".to_owned()))
    }

    fn seal(&self) -> Result<(), DeviceError> {
        // No other process can map it anyway.
        Ok(())
    }

    fn allocation_right(&self) -> Option<AllocationRight> {
        None
    }

    fn block_mut<'a>(&'a self, block: &'a mut OwnedRange) -> Result<&'a mut [u8], OutOfRange> {
        Err(OutOfRange { offset: block.offset(), bytes: block.bytes(), mapped: 0 })
    }

    fn block<'a>(&'a self, block: &'a OwnedRange) -> Result<&'a [u8], OutOfRange> {
        Err(OutOfRange { offset: block.offset(), bytes: block.bytes(), mapped: 0 })
    }

    fn shared(&self, offset: u64, bytes: u64) -> Result<SharedBytes<'_>, OutOfRange> {
        Err(OutOfRange { offset, bytes, mapped: 0 })
    }

    fn device_address(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.address_for(offset, 1)
    }

    fn advise_huge_pages(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn populate(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        Ok(self.address_for(offset, bytes).map(|_| ())?)
    }

    fn release_unused(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.address_for(offset, bytes)?;
        Err(DeviceError::Kept { name: "memory of one message".to_owned(), bytes })
    }

    fn identity(&self) -> (u64, u64) {
        // It has no inode: u64::MAX is no device number, and the address is unique while it lives.
        (u64::MAX, self.at)
    }

    fn resident_bytes(&self) -> u64 {
        self.bytes
    }

    fn as_host(&self) -> Option<&crate::host::HostPool> {
        None
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
