//! Advice about pages and pinning, and for tests a counting allocator: the only unsafe code of this crate. None of it changes what the
//! memory holds.

#[cfg(feature = "lazy")]
pub mod allocations;

use std::ffi::c_void;

use rgaps_os::{Access, Mapping, OutOfRange};
use rustix::mm::{Advice, madvise, mlock};

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
