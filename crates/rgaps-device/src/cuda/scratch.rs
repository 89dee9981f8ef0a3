//! Memory of one process on its own device, from the driver's stream-ordered allocator: for copies of what lies on another device.
//!
//! Invariants  The memory is there for work behind its allocation: on the stream that it was made on, or on one that waits for an event
//!             behind that. It is given back in the order of that stream, and behind what `give_back_behind` named; whoever drops it knows
//!             that no other work touches it any more.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUdeviceptr;
use rgaps_os::{AllocationRight, OutOfRange, OwnedRange, SharedBytes};

use super::device::Device;
use super::stream::CudaStream;
use crate::error::DeviceError;
use crate::pool::{DeviceKind, PoolDescription, PoolMemory};
use crate::stream::{Completion, Stream};

/// Device memory that no other process knows.
#[derive(Debug)]
pub(super) struct Scratch {
    device: Arc<Device>,
    at: CUdeviceptr,
    bytes: u64,
    /// On which it was made.
    stream: Stream,
    /// Work of another stream, up to here.
    behind: Mutex<Option<(Stream, Completion)>>,
    /// What it is a copy of: mapped while this lives, and so for as long as the copy may be under way.
    _original: Option<Arc<dyn PoolMemory>>,
}

impl Scratch {
    /// Memory for work of this stream from now on.
    pub(super) fn new(
        device: &Arc<Device>,
        stream: &Stream,
        bytes: u64,
        original: Option<Arc<dyn PoolMemory>>,
    ) -> Result<Self, DeviceError> {
        let Some(own) = cuda(stream) else {
            return Err(DeviceError::Failed("the stream is not one of this device".to_owned()));
        };
        // The driver has no memory of no bytes, and an empty message has an address all the same.
        let bytes = bytes.max(1);
        let mut at: CUdeviceptr = 0;
        let entered = own.enter()?;
        // SAFETY: stores one address; given back in `drop`. The stream is alive.
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

    /// The device's address of the first byte.
    pub(super) fn address(&self) -> CUdeviceptr {
        self.at
    }

    /// Work of this stream touches it up to here.
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
        // Once that work is over, its stream may be gone: a caller's lives no longer.
        let behind = lock(&self.behind).take().filter(|(_, work)| !work.is_complete());
        let stream = behind.as_ref().map_or(&self.stream, |(stream, _)| stream);
        let Some(stream) = cuda(stream) else { return };
        let Ok(_entered) = stream.enter() else { return };
        // SAFETY: our own, once; work that touches it is over, or before this on the stream. A failure could only keep the memory.
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
        Err(DeviceError::Failed("this memory is one process's own, and not shared".to_owned()))
    }

    fn seal(&self) -> Result<(), DeviceError> {
        // No other process can map it at all.
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
        // No file is behind it: what no (device, inode) is, and the address, which is its own while it lives.
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
