//! CUDA virtual memory management: address ranges without memory (`AddressRange`), memory without an address (`Slab`), and mapping one in
//! the other (`AddressRange::map`). Also host memory registered with a device (`Registration`).
//!
//! Invariants  A slab is unmapped before another is mapped at its address, and before the range is freed. Memory that a copy under way uses
//!             stays mapped: callers keep the pool until the completion says so (backend.rs).

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
/// CU_MEMHOSTREGISTER_PORTABLE: for all contexts; CU_MEMHOSTREGISTER_DEVICEMAP: with a device address.
const REGISTER_FLAGS: c_uint = 1 | 2;
/// CU_MEMHOSTREGISTER_READ_ONLY: for pages mapped read-only.
const REGISTER_READ_ONLY: c_uint = 8;

/// File descriptors that the driver may need to import memory.
const SPARE_FDS: usize = 8;

const READ_WRITE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// A device's access to mapped memory.
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
            // A pool's slabs are alike, so that one export may comprise several.
            gpuDirectRDMACapable: device.home().gpu_direct.is_ok().into(),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Granularity of physical memory on a device, in bytes; never 0.
pub(crate) fn granularity(device: &Device) -> Result<u64, DriverError> {
    let _entered = device.enter()?;
    let mut bytes = 0_usize;
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as c_uint;
    let prop = allocation(device);
    // SAFETY: reads one structure and stores one integer.
    unsafe { device.driver().granularity(&raw mut bytes, &raw const prop, option) }?;
    Ok((bytes as u64).max(1))
}

/// Physical device memory. The driver frees it once no process has a mapping, a handle or a file descriptor of it.
#[derive(Debug)]
pub(crate) struct Slab {
    device: Arc<Device>,
    handle: u64,
    bytes: u64,
    /// The file descriptor from which it was imported: `export` clones it, since the driver need not support exporting imported memory.
    came_as: Option<OwnedFd>,
}

impl Slab {
    /// Allocates `bytes`, a multiple of the granularity. The content is undefined; the driver clears bytes of other processes.
    pub(crate) fn create(device: &Arc<Device>, bytes: u64) -> Result<Self, DriverError> {
        let _entered = device.enter()?;
        let mut handle = 0;
        let prop = allocation(device);
        // SAFETY: reads one structure and stores one handle, which is released in `drop`.
        unsafe { device.driver().create(&raw mut handle, bytes as usize, &raw const prop, 0) }?;
        Ok(Self { device: device.clone(), handle, bytes, came_as: None })
    }

    /// Imports memory that another process allocated; an error if the file descriptor is anything else. `map` checks its length. With `to_hand_on`,
    /// it can be exported again.
    pub(crate) fn import(device: &Arc<Device>, fd: OwnedFd, bytes: u64, to_hand_on: bool) -> Result<Self, DeviceError> {
        let _entered = device.enter()?;
        let mut handle = 0;
        // The driver takes a POSIX file descriptor by value, cast to a pointer.
        let number = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the file descriptor is open; stores one handle, which is released in `drop`.
        let imported = unsafe { device.driver().import(&raw mut handle, number, POSIX_FD) };
        imported.map_err(|error| refused(&fd, bytes, error))?;
        Ok(Self { device: device.clone(), handle, bytes, came_as: to_hand_on.then_some(fd) })
    }

    /// A file descriptor for another process to import.
    pub(crate) fn export(&self) -> Result<OwnedFd, DeviceError> {
        if let Some(fd) = &self.came_as {
            let failed =
                |source| DeviceError::Create { name: "a slab's file descriptor".to_owned(), bytes: self.bytes, source };
            return fd.try_clone().map_err(failed);
        }
        let _entered = self.device.enter()?;
        let mut fd: c_int = -1;
        // SAFETY: stores one file descriptor; the handle is alive.
        unsafe { self.device.driver().export((&raw mut fd).cast(), self.handle, POSIX_FD, 0) }?;
        // SAFETY: the driver has just created the file descriptor, and we are its only owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: our own handle, released once. A failure only leaks it.
        let _ = unsafe { self.device.driver().release(self.handle) };
    }
}

/// Reports a file descriptor that could not be imported as a mapping error, for any error code of the driver. The driver has no code for a lack of
/// file descriptors, so that is the error if few are left.
fn refused(fd: &OwnedFd, bytes: u64, error: DriverError) -> DeviceError {
    let spare: Result<Vec<OwnedFd>, _> = (0..SPARE_FDS).map(|_| fd.try_clone()).collect();
    let source = spare.err().unwrap_or_else(|| std::io::Error::other(error));
    DeviceError::Map { name: "a slab of a pool".to_owned(), source: rgaps_os::MapError::Os { bytes, source } }
}

/// A range of device addresses in which slabs are mapped.
#[derive(Debug)]
pub(crate) struct AddressRange {
    device: Arc<Device>,
    start: CUdeviceptr,
    bytes: u64,
}

impl AddressRange {
    /// Reserves `bytes` addresses, a multiple of the granularity.
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

    /// Maps a slab at an offset where none is mapped.
    pub(crate) fn map(&self, offset: u64, slab: &Slab, access: DeviceAccess) -> Result<(), DriverError> {
        debug_assert!(offset.checked_add(slab.bytes).is_some_and(|end| end <= self.bytes));
        let driver = self.device.driver();
        let _entered = self.device.enter()?;
        let (at, bytes) = (self.start + offset, slab.bytes as usize);
        // SAFETY: the address is in our range; the driver fails if a slab is mapped there, or if this slab is shorter.
        unsafe { driver.map(at, bytes, 0, slab.handle, 0) }?;
        let flags = match access {
            DeviceAccess::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            DeviceAccess::ReadWrite => READ_WRITE,
        };
        let mut access = CUmemAccessDesc { location: location(self.device.properties()), flags };
        // SAFETY: just mapped; reads one structure.
        let mut allowed = unsafe { driver.set_access(at, bytes, &raw const access, 1) };
        if flags != READ_WRITE && allowed.as_ref().is_err_and(DriverError::is_not_offered) {
            // This driver has no read-only mappings. They protect against mistakes only, so map for writing too.
            access.flags = READ_WRITE;
            // SAFETY: as above.
            allowed = unsafe { driver.set_access(at, bytes, &raw const access, 1) };
        }
        if allowed.is_err() {
            // SAFETY: just mapped, and not yet used.
            let _ = unsafe { driver.unmap(at, bytes) };
        }
        allowed
    }

    /// Unmaps a slab that is mapped at this offset and that no work under way uses.
    pub(crate) fn unmap(&self, offset: u64, slab: &Slab) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: mapped there by `map`, once. A failure only leaks the memory.
        let _ = unsafe { self.device.driver().unmap(self.start + offset, slab.bytes as usize) };
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: our own range; its owner has unmapped every slab. A failure only leaks addresses.
        let _ = unsafe { self.device.driver().free_range(self.start, self.bytes as usize) };
    }
}

/// Host memory registered with the device (cuMemHostRegister): pinned, with a device address, until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    device: Arc<Device>,
    mapping: Arc<Mapping>,
    device_address: CUdeviceptr,
}

impl Registration {
    /// Registers a whole mapping. Call it once for each mapping.
    pub(crate) fn of(device: &Arc<Device>, mapping: &Arc<Mapping>) -> Result<Self, DriverError> {
        let driver = device.driver();
        let _entered = device.enter()?;
        let start = mapping.address() as *mut c_void;
        let read_only = if mapping.access() == Access::ReadOnly { REGISTER_READ_ONLY } else { 0 };
        // SAFETY: the result holds the mapping, so the memory stays mapped while registered.
        unsafe { driver.register_host(start, mapping.bytes() as usize, REGISTER_FLAGS | read_only) }?;
        let mut device_address: CUdeviceptr = 0;
        // SAFETY: just registered; stores one address.
        if let Err(error) = unsafe { driver.host_address(&raw mut device_address, start, 0) } {
            // SAFETY: registered above, and not yet used.
            let _ = unsafe { driver.unregister_host(start) };
            return Err(error);
        }
        Ok(Self { device: device.clone(), mapping: mapping.clone(), device_address })
    }

    /// Device address of the first byte.
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
            // SAFETY: registered by `of`, once; the mapping still exists, and its owner has waited for all work on it.
            unsafe { self.device.driver().unregister_host(self.mapping.address() as *mut c_void) }
        });
        if unregistered.is_err() {
            // The driver may still use these addresses: leak the mapping, so that nothing else is mapped there.
            std::mem::forget(self.mapping.clone());
        }
    }
}
