//! Device memory in three parts, as the driver has it: addresses without memory (`AddressRange`), memory without an address (`Slab`), and
//! the one at the other (`AddressRange::map`). And host memory that a device knows (`Registration`).
//!
//! Invariants  A slab is unmapped before its place is mapped again, and all are unmapped before their range goes. What a copy under way
//!             reads or writes stays mapped: callers keep the pool until the completion says so (backend.rs).

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use rgaps_os::{Access, Mapping};

use super::device::{Device, Properties};
use super::driver::DriverError;
use crate::error::DeviceError;

const POSIX_FD: c_uint = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
/// CU_MEMHOSTREGISTER_PORTABLE: for all contexts; CU_MEMHOSTREGISTER_DEVICEMAP: the device has an address for it.
const REGISTER_FLAGS: c_uint = 1 | 2;
/// CU_MEMHOSTREGISTER_READ_ONLY: for pages that may not be written.
const REGISTER_READ_ONLY: c_uint = 8;

const READ_WRITE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// What a device may do with memory that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceAccess {
    Read,
    ReadWrite,
}

fn location(device: &Properties) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.ordinal as c_int }
}

fn allocation(device: &Device) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(device.home()),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Unit of physical memory on a device, in bytes; never 0.
pub(crate) fn granularity(device: &Device) -> Result<u64, DriverError> {
    let _entered = device.enter()?;
    let mut bytes = 0_usize;
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as c_uint;
    let prop = allocation(device);
    // SAFETY: reads one structure and stores one integer.
    unsafe { device.driver().granularity(&raw mut bytes, &raw const prop, option) }?;
    Ok((bytes as u64).max(1))
}

/// Physical memory. It lives until the last process that has it mapped, or holds this or a descriptor of it, releases it.
#[derive(Debug)]
pub(crate) struct Slab {
    device: Arc<Device>,
    handle: u64,
    bytes: u64,
    /// As it came from its maker. The driver need not export anew what was imported, and a descriptor may be handed on as often as one likes.
    came_as: Option<OwnedFd>,
}

impl Slab {
    /// New memory, `bytes` a multiple of the granularity. It holds what it held before: another process's bytes are cleared by the driver.
    pub(crate) fn create(device: &Arc<Device>, bytes: u64) -> Result<Self, DriverError> {
        let _entered = device.enter()?;
        let mut handle = 0;
        let prop = allocation(device);
        // SAFETY: reads one structure and stores one handle, which is released in `drop`.
        unsafe { device.driver().create(&raw mut handle, bytes as usize, &raw const prop, 0) }?;
        Ok(Self { device: device.clone(), handle, bytes, came_as: None })
    }

    /// Memory that another process made. A descriptor of something else is an error. How long it is shows when it is mapped.
    /// With `to_hand_on`, it can be exported again.
    pub(crate) fn import(device: &Arc<Device>, fd: OwnedFd, bytes: u64, to_hand_on: bool) -> Result<Self, DriverError> {
        let _entered = device.enter()?;
        let mut handle = 0;
        // The driver takes a POSIX descriptor by value, in the place of a pointer.
        let number = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the descriptor is open; stores one handle, which is released in `drop`.
        unsafe { device.driver().import(&raw mut handle, number, POSIX_FD) }?;
        Ok(Self { device: device.clone(), handle, bytes, came_as: to_hand_on.then_some(fd) })
    }

    /// A descriptor of it, for another process.
    pub(crate) fn export(&self) -> Result<OwnedFd, DeviceError> {
        if let Some(fd) = &self.came_as {
            let failed =
                |source| DeviceError::Create { name: "a slab's descriptor".to_owned(), bytes: self.bytes, source };
            return fd.try_clone().map_err(failed);
        }
        let _entered = self.device.enter()?;
        let mut fd: c_int = -1;
        // SAFETY: stores one descriptor; the handle is alive.
        unsafe { self.device.driver().export((&raw mut fd).cast(), self.handle, POSIX_FD, 0) }?;
        // SAFETY: the driver has just made it for us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: our own handle, once. A failure could only leak it.
        let _ = unsafe { self.device.driver().release(self.handle) };
    }
}

/// Device addresses, of which slabs take places.
#[derive(Debug)]
pub(crate) struct AddressRange {
    device: Arc<Device>,
    start: CUdeviceptr,
    bytes: u64,
}

impl AddressRange {
    /// `bytes` addresses, a multiple of the granularity.
    pub(crate) fn reserve(device: &Arc<Device>, bytes: u64) -> Result<Self, DriverError> {
        let _entered = device.enter()?;
        let mut start: CUdeviceptr = 0;
        // SAFETY: stores one address; freed in `drop`.
        unsafe { device.driver().reserve(&raw mut start, bytes as usize, 0, 0, 0) }?;
        Ok(Self { device: device.clone(), start, bytes })
    }

    pub(crate) fn start(&self) -> CUdeviceptr {
        self.start
    }

    /// Puts a slab at an offset where none is.
    pub(crate) fn map(&self, offset: u64, slab: &Slab, access: DeviceAccess) -> Result<(), DriverError> {
        debug_assert!(offset.checked_add(slab.bytes).is_some_and(|end| end <= self.bytes));
        let driver = self.device.driver();
        let _entered = self.device.enter()?;
        let (at, bytes) = (self.start + offset, slab.bytes as usize);
        // SAFETY: the place is in our range; the driver refuses it if it is taken, or if the slab is shorter.
        unsafe { driver.map(at, bytes, 0, slab.handle, 0) }?;
        let flags = match access {
            DeviceAccess::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            DeviceAccess::ReadWrite => READ_WRITE,
        };
        let mut access = CUmemAccessDesc { location: location(self.device.properties()), flags };
        // SAFETY: just mapped; reads one structure.
        let mut allowed = unsafe { driver.set_access(at, bytes, &raw const access, 1) };
        if flags != READ_WRITE && allowed.as_ref().is_err_and(DriverError::is_not_offered) {
            // A driver that knows no mapping for reading only: then nothing guards against mistakes, as for malice anyway.
            access.flags = READ_WRITE;
            // SAFETY: as above.
            allowed = unsafe { driver.set_access(at, bytes, &raw const access, 1) };
        }
        if allowed.is_err() {
            // SAFETY: just mapped, and nobody knows of it yet.
            let _ = unsafe { driver.unmap(at, bytes) };
        }
        allowed
    }

    /// Takes a slab away that was mapped there, and that no work under way touches.
    pub(crate) fn unmap(&self, offset: u64, slab: &Slab) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: mapped there by `map`, once. A failure could only keep the memory.
        let _ = unsafe { self.device.driver().unmap(self.start + offset, slab.bytes as usize) };
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: our own range; its owner has unmapped every slab. A failure could only leak addresses.
        let _ = unsafe { self.device.driver().free_range(self.start, self.bytes as usize) };
    }
}

/// Host memory that the device reads and writes by itself: pinned, with an address on the device, until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    device: Arc<Device>,
    mapping: Arc<Mapping>,
    device_address: CUdeviceptr,
}

impl Registration {
    /// Registers all of a mapping; once a mapping.
    pub(crate) fn of(device: &Arc<Device>, mapping: &Arc<Mapping>) -> Result<Self, DriverError> {
        let driver = device.driver();
        let _entered = device.enter()?;
        let start = mapping.address() as *mut c_void;
        let read_only = if mapping.access() == Access::ReadOnly { REGISTER_READ_ONLY } else { 0 };
        // SAFETY: mapped while `self` lives, which holds the mapping.
        unsafe { driver.register_host(start, mapping.bytes() as usize, REGISTER_FLAGS | read_only) }?;
        let mut device_address: CUdeviceptr = 0;
        // SAFETY: just registered; stores one address.
        if let Err(error) = unsafe { driver.host_address(&raw mut device_address, start, 0) } {
            // SAFETY: registered above, and used by nobody yet.
            let _ = unsafe { driver.unregister_host(start) };
            return Err(error);
        }
        Ok(Self { device: device.clone(), mapping: mapping.clone(), device_address })
    }

    /// The device's address of the first byte.
    pub(crate) fn device_address(&self) -> CUdeviceptr {
        self.device_address
    }

    /// The memory.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let unregistered = self.device.enter().and_then(|_entered| {
            // SAFETY: registered by `of`, once; the mapping is still there, and its owner has seen all work on it done.
            unsafe { self.device.driver().unregister_host(self.mapping.address() as *mut c_void) }
        });
        if unregistered.is_err() {
            // The driver may still know these addresses: nothing else may come to lie there.
            std::mem::forget(self.mapping.clone());
        }
    }
}
