//! Page advice and pinning, DLPack's structures, and a counting allocator for tests: the only unsafe code of this crate outside the
//! backend `cuda`. None of it changes the bytes in memory.

#[cfg(feature = "testing")]
pub mod allocations;
pub mod dlpack;

use std::ffi::c_void;
use std::sync::Arc;

use rgaps_os::{Access, Mapping, OutOfRange, SharedBytes};
use rustix::mm::{Advice, madvise, mlock};

use crate::pool::PoolMemory;

/// Requests huge pages. /sys/kernel/mm/transparent_hugepage/shmem_enabled decides.
pub(crate) fn advise_huge_pages(mapping: &Mapping) -> rustix::io::Result<()> {
    let (start, bytes) = whole(mapping);
    // SAFETY: exactly the pages of a live mapping; MADV_HUGEPAGE changes neither contents nor protection.
    unsafe { madvise(start, bytes, Advice::LinuxHugepage) }
}

/// Faults in every page of a part, as if this process had touched it.
pub(crate) fn populate(mapping: &Mapping, pages: Pages) -> rustix::io::Result<()> {
    let advice = match mapping.access() {
        Access::ReadOnly => Advice::LinuxPopulateRead,
        Access::ReadWrite => Advice::LinuxPopulateWrite,
    };
    let start = (mapping.address() + pages.start) as *mut c_void;
    // SAFETY: `Pages` are inside this live mapping; populating faults pages in and changes no byte.
    unsafe { madvise(start, pages.bytes, advice) }
}

/// Locks all pages in memory, for a NIC or a GPU to read. Unmapping undoes it.
pub(crate) fn pin(mapping: &Mapping) -> rustix::io::Result<()> {
    let (start, bytes) = whole(mapping);
    // SAFETY: exactly the pages of a live mapping; locking changes neither contents nor protection.
    unsafe { mlock(start, bytes) }
}

fn whole(mapping: &Mapping) -> (*mut c_void, usize) {
    (mapping.address() as *mut c_void, mapping.bytes() as usize)
}

/// The whole pages that overlap a part of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    start: u64,
    bytes: usize,
}

impl Pages {
    /// The pages of `bytes` bytes at `offset`; an error if they leave the mapping.
    pub(crate) fn of(mapping: &Mapping, offset: u64, bytes: u64) -> Result<Self, OutOfRange> {
        let outside = OutOfRange { offset, bytes, mapped: mapping.bytes() };
        let end = offset.checked_add(bytes).filter(|&end| end <= mapping.bytes()).ok_or(outside)?;
        let start = offset - offset % rgaps_os::page_bytes();
        Ok(Self { start, bytes: (end - start) as usize })
    }
}

/// Device memory outside a pool: the caller's buffer, to push.
#[derive(Debug)]
pub struct DevicePart {
    address: u64,
    bytes: u64,
    /// The pool that it is part of, if any.
    _pool: Option<Arc<dyn PoolMemory>>,
}

impl DevicePart {
    /// `bytes` bytes from device address `address` on; on the host backend, a pointer.
    ///
    /// # Safety
    /// The device can read the bytes, and nothing writes them, until the stream that copies them has done so.
    pub unsafe fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes, _pool: None }
    }

    /// Part of a pool, which it keeps alive. For tests; they keep it until the stream has copied it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_pool(pool: &Arc<dyn PoolMemory>, offset: u64, bytes: u64) -> Result<Self, OutOfRange> {
        let outside = OutOfRange { offset, bytes, mapped: pool.bytes() };
        offset.checked_add(bytes).filter(|end| *end <= pool.bytes()).ok_or(outside)?;
        Ok(Self { address: pool.device_address(offset)?, bytes, _pool: Some(pool.clone()) })
    }

    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its bytes, on the host backend, where a device address is a pointer.
    pub(crate) fn as_host_bytes(&self) -> SharedBytes<'_> {
        // SAFETY: on the host backend the caller of `new` promised memory of this process; `of_pool` keeps its pool alive.
        unsafe { SharedBytes::from_raw(self.address as *const u8, self.bytes as usize) }
    }
}
