//! Virtual memory management: address ranges, memory handles, mappings, and memory of other processes.
//!
//! Calls that free something do so in a failed context too, and then return its error, so that tests can count leaks after errors.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use crate::abi::{
    ALLOCATION_PINNED, AccessDesc, AllocationProp, HANDLE_FD, INVALID_VALUE, In, LOCATION_DEVICE, NOT_SUPPORTED, Out,
    PEER_ACCESS_UNSUPPORTED, PROT_READ, PROT_READWRITE, Status,
};
use crate::config::config;
use crate::current::check_current;
use crate::memory::{GRANULARITY, Memory};
use crate::range::{Piece, Range};
use crate::reservation::Reservation;
use crate::state::{Handle, ObjectKind, driver, new_handle};

calls! {
    /// The granularity of memory, the same for every option.
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, prop: In<AllocationProp>, option: u32) {
        begin()?;
        device_of(&prop.get()?)?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        bytes.set(GRANULARITY as usize)
    }

    /// Reserves addresses; ignores the requested address, which is only a hint.
    fn cuMemAddressReserve(start: Out<u64>, bytes: usize, alignment: usize, _at: u64, flags: u64) {
        begin()?;
        start.give(|| {
            let bytes = whole(bytes)?;
            if flags != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
                return Err(INVALID_VALUE);
            }
            let reservation = Reservation::new(bytes, GRANULARITY.max(alignment as u64))?;
            let start = reservation.base;
            driver()?.ranges.0.insert(start, Range { reservation, pieces: BTreeMap::new() });
            Ok(start)
        })
    }

    /// Frees a whole range of addresses, in which nothing may be mapped.
    fn cuMemAddressFree(start: u64, bytes: usize) {
        let mut driver = driver()?;
        let range = driver.ranges.0.get(&start).ok_or(INVALID_VALUE)?;
        if range.reservation.bytes != bytes as u64 || !range.pieces.is_empty() {
            return Err(INVALID_VALUE);
        }
        driver.ranges.0.remove(&start);
        drop(driver);
        check_current()
    }

    /// Allocates memory.
    fn cuMemCreate(handle: Out<u64>, bytes: usize, prop: In<AllocationProp>, flags: u64) {
        begin()?;
        handle.give(|| {
            let (prop, bytes) = (prop.get()?, whole(bytes)?);
            let index = device_of(&prop)?;
            if flags != 0 {
                return Err(INVALID_VALUE);
            }
            let used = driver()?.device(prop.location.id)?.1.used.clone();
            let is_rdma_capable = prop.rdma_capable != 0;
            if is_rdma_capable && !config().gpu_direct {
                return Err(NOT_SUPPORTED);
            }
            let memory = Arc::new(Memory::create((index, is_rdma_capable), bytes, config().memory, &used)?);
            keep(Handle { memory, handle_types: prop.handle_types })
        })
    }

    /// Releases a handle; the memory is freed once it is mapped nowhere.
    fn cuMemRelease(handle: u64) {
        driver()?.handles.remove(&handle).ok_or(INVALID_VALUE)?;
        check_current()
    }

    /// Maps memory from its start; no device may access it yet.
    fn cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        begin()?;
        let bytes = whole(bytes)?;
        if offset != 0 || flags != 0 || !at.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        let mut driver = driver()?;
        let memory = driver.handles.get(&handle).ok_or(INVALID_VALUE)?.memory.clone();
        let access = vec![0; driver.devices.len()];
        driver.ranges.map(at, Piece { bytes, memory, access })
    }

    /// Unmaps memory. Queued operations on these addresses fail.
    fn cuMemUnmap(at: u64, bytes: usize) {
        let unmapped = driver()?.ranges.unmap(at, bytes as u64)?;
        drop(unmapped);
        check_current()
    }

    /// Sets a device's access to mapped memory.
    fn cuMemSetAccess(at: u64, bytes: usize, access: In<AccessDesc>, count: usize) {
        begin()?;
        for index in 0..count {
            let access = access.at(index)?;
            if access.location.kind != LOCATION_DEVICE || ![0, PROT_READ, PROT_READWRITE].contains(&access.flags) {
                return Err(INVALID_VALUE);
            }
            let mut driver = driver()?;
            let (device, _) = driver.device(access.location.id)?;
            let foreign = driver.ranges.pieces_in(at, bytes as u64).any(|piece| piece.memory.device != device);
            if foreign && !config().peer {
                return Err(PEER_ACCESS_UNSUPPORTED);
            }
            driver.ranges.set_access(at, bytes as u64, device, access.flags)?;
        }
        Ok(())
    }

    /// A new file descriptor of memory, also of imported memory.
    fn cuMemExportToShareableHandle(fd: Out<c_int>, handle: u64, kind: u32, flags: u64) {
        begin()?;
        fd.give(|| {
            let driver = driver()?;
            let handle = driver.handles.get(&handle).ok_or(INVALID_VALUE)?;
            if flags != 0 || kind != HANDLE_FD || handle.handle_types & HANDLE_FD == 0 {
                return Err(INVALID_VALUE);
            }
            Ok(handle.memory.export()?.into_raw_fd())
        })
    }

    /// Imports memory from a file descriptor, which is passed in place of a pointer and stays the caller's.
    fn cuMemImportFromShareableHandle(handle: Out<u64>, fd: usize, kind: u32) {
        begin()?;
        handle.give(|| {
            let fd = c_int::try_from(fd).map_err(|_| INVALID_VALUE)?;
            if kind != HANDLE_FD {
                return Err(INVALID_VALUE);
            }
            let memory = Memory::import(fd)?;
            driver()?.device(memory.device as c_int)?;
            keep(Handle { memory: Arc::new(memory), handle_types: HANDLE_FD })
        })
    }
}

/// The check at the start of every call here that frees nothing.
fn begin() -> Status {
    drop(driver()?);
    check_current()?;
    if config().vmm { Ok(()) } else { Err(NOT_SUPPORTED) }
}

fn keep(handle: Handle) -> Status<u64> {
    let id = new_handle(ObjectKind::Memory);
    driver()?.handles.insert(id, handle);
    Ok(id)
}

/// Checks that a length is a multiple of the granularity, and not 0.
fn whole(bytes: usize) -> Status<u64> {
    let bytes = bytes as u64;
    if bytes > 0 && bytes.is_multiple_of(GRANULARITY) { Ok(bytes) } else { Err(INVALID_VALUE) }
}

fn device_of(prop: &AllocationProp) -> Status<usize> {
    let known = prop.kind == ALLOCATION_PINNED
        && prop.location.kind == LOCATION_DEVICE
        && prop.handle_types & !HANDLE_FD == 0
        && prop.win32.is_null();
    if !known {
        return Err(INVALID_VALUE);
    }
    Ok(driver()?.device(prop.location.id)?.0)
}
