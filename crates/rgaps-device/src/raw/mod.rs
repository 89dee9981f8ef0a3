//! Advice about pages and pinning, DLPack's structures, and for tests a counting allocator: the only unsafe code of this crate outside the
//! backend `cuda`. None of it changes what the memory holds.

#[cfg(feature = "deferred")]
pub mod allocations;
pub mod dlpack;

use std::ffi::c_void;
use std::sync::Arc;

use rgaps_os::{Access, Mapping, OutOfRange, SharedBytes};
use rustix::mm::{Advice, madvise, mlock};

use crate::pool::PoolMemory;

/// Asks for huge pages. The kernel does as /sys/kernel/mm/transparent_hugepage/shmem_enabled allows.
pub(crate) fn advise_huge_pages(mapping: &Mapping) -> rustix::io::Result<()> {
    let (start, bytes) = whole(mapping);
    // SAFETY: exactly the pages of a live mapping; MADV_HUGEPAGE changes neither contents nor protection.
    unsafe { madvise(start, bytes, Advice::LinuxHugepage) }
}

/// Gives every page of a part its memory and its place in this process's page table, as if each had been touched.
pub(crate) fn populate(mapping: &Mapping, pages: Pages) -> rustix::io::Result<()> {
    let advice = match mapping.access() {
        Access::ReadOnly => Advice::LinuxPopulateRead,
        Access::ReadWrite => Advice::LinuxPopulateWrite,
    };
    let start = (mapping.address() + pages.start) as *mut c_void;
    // SAFETY: `Pages` lie inside this live mapping; populating faults pages in and changes no byte of them.
    unsafe { madvise(start, pages.bytes, advice) }
}

/// Pins all pages, as memory that a NIC or a GPU reads must be. Unmapping undoes it.
pub(crate) fn pin(mapping: &Mapping) -> rustix::io::Result<()> {
    let (start, bytes) = whole(mapping);
    // SAFETY: exactly the pages of a live mapping; locking changes neither contents nor protection.
    unsafe { mlock(start, bytes) }
}

fn whole(mapping: &Mapping) -> (*mut c_void, usize) {
    (mapping.address() as *mut c_void, mapping.bytes() as usize)
}

/// The whole pages that a part of a mapping touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    start: u64,
    bytes: usize,
}

impl Pages {
    /// Of `bytes` at `offset`, which must lie inside the mapping.
    pub(crate) fn of(mapping: &Mapping, offset: u64, bytes: u64) -> Result<Self, OutOfRange> {
        let outside = OutOfRange { offset, bytes, mapped: mapping.bytes() };
        let end = offset.checked_add(bytes).filter(|&end| end <= mapping.bytes()).ok_or(outside)?;
        let start = offset - offset % rustix::param::page_size() as u64;
        Ok(Self { start, bytes: (end - start) as usize })
    }
}

/// Memory that a device reads and that is no pool's: a buffer of the caller's, to be pushed.
#[derive(Debug)]
pub struct DevicePart {
    address: u64,
    bytes: u64,
    /// What it is part of, where that is known.
    _pool: Option<Arc<dyn PoolMemory>>,
}

impl DevicePart {
    /// `bytes` bytes from the device's address `address` on; on the host backend, a pointer.
    ///
    /// # Safety
    /// They are there for the device to read, and nobody writes them, until the stream that they are given to has got there.
    pub unsafe fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes, _pool: None }
    }

    /// Part of a pool, which it keeps: for tests that keep it until the stream has got there.
    pub(crate) fn of_pool(pool: &Arc<dyn PoolMemory>, offset: u64, bytes: u64) -> Result<Self, OutOfRange> {
        let outside = OutOfRange { offset, bytes, mapped: pool.bytes() };
        offset.checked_add(bytes).filter(|end| *end <= pool.bytes()).ok_or(outside)?;
        Ok(Self { address: pool.device_address(offset)?, bytes, _pool: Some(pool.clone()) })
    }

    /// The device's address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it holds, where a device address is a pointer.
    pub(crate) fn as_host_bytes(&self) -> SharedBytes<'_> {
        // SAFETY: on the host backend `new` was promised memory of this process, or it is a pool's that is kept.
        unsafe { SharedBytes::from_raw(self.address as *const u8, self.bytes as usize) }
    }
}
