//! Mappings of shared memory, and the few ways to access them.
//!
//! Memory that another process can write is accessed only by atomics and copies (`atomic_u64`, `copy_in`, `copy_out`, `shared`). Slices are only
//! for a block that its owner alone may write (`OwnedRange`: `owned_bytes`, `bytes_mut`), and for bytes that the caller knows to be unchanging
//! (`SharedBytes::as_slice`, unsafe). Every offset is checked against the mapping's length.
//!
//! Invariants  A mapping lies within its file, whose size is sealed, so an access never faults. A forked child does not inherit it.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::fork::ProcessNumber;
use crate::memfd::{self, SealError, Seals};
use crate::range::{AllocationRight, OwnedRange};
use crate::shared::SharedBytes;

/// How a mapping may be used. The kernel enforces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A write faults.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// A range is outside the mapping, or an atomic is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} B at offset {offset} are outside a mapping of {mapped} B, or not aligned")]
pub struct OutOfRange {
    /// The requested offset.
    pub offset: u64,
    /// The requested length.
    pub bytes: u64,
    /// The mapping's length.
    pub mapped: u64,
}

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The file is not the one that was announced: its size or seals differ.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The kernel refused.
    #[error("{bytes} B of shared memory could not be mapped: {source}")]
    Os {
        /// Bytes requested.
        bytes: u64,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    bytes: u64,
    access: Access,
    id: NonZeroU64,
    right_given: AtomicBool,
    /// The process that mapped it. In a forked child these addresses are unmapped, or belong to another mapping.
    process: ProcessNumber,
}

// SAFETY: the mapping is plain memory that lives until drop; every method that accesses it handles concurrent access itself.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&self` methods are atomics, checked copies, or hand out slices under the rules in the module's header.
unsafe impl Sync for Mapping {}

/// Numbers the mappings of this process, so that a range of one mapping is never used with another.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_id() -> NonZeroU64 {
    NonZeroU64::new(NEXT_ID.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX)
}

impl Mapping {
    /// Maps all `bytes` of a memfd whose size is sealed. Checks size and seal first, so a file descriptor from an untrusted process is safe.
    pub fn map(fd: impl AsFd, bytes: u64, access: Access) -> Result<Self, MapError> {
        Self::map_part(fd, bytes, 0, bytes, access)
    }

    /// Maps `bytes` at `offset`, a multiple of the page size, of a memfd of `file_bytes`. Checks like `map`.
    pub fn map_part(fd: impl AsFd, file_bytes: u64, offset: u64, bytes: u64, access: Access) -> Result<Self, MapError> {
        memfd::check(&fd, file_bytes, Seals::Size)?;
        if offset.checked_add(bytes).is_none_or(|end| end > file_bytes) {
            return Err(MapError::Os { bytes, source: io::ErrorKind::InvalidInput.into() });
        }
        let length = length(bytes)?;
        let process = this_process(bytes)?;
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let address = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, fd, offset) };
        Self::adopt(address, bytes, access, process)
    }

    /// Maps private zeroed memory.
    pub fn anonymous(bytes: u64) -> Result<Self, MapError> {
        let length = length(bytes)?;
        let process = this_process(bytes)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) };
        Self::adopt(address, bytes, Access::ReadWrite, process)
    }

    fn adopt(
        address: rustix::io::Result<*mut std::ffi::c_void>,
        bytes: u64,
        access: Access,
        process: ProcessNumber,
    ) -> Result<Self, MapError> {
        let os = |error: rustix::io::Errno| MapError::Os { bytes, source: error.into() };
        let address = address.map_err(os)?;
        let Some(start) = NonNull::new(address.cast::<u8>()) else {
            return Err(os(rustix::io::Errno::FAULT));
        };
        let mapping =
            Self { address: start, bytes, access, id: next_id(), right_given: AtomicBool::new(false), process };
        // Miri has neither madvise nor fork.
        if cfg!(not(miri)) {
            // SAFETY: exactly the pages mapped above; the advice only says what a fork does with them.
            match unsafe { madvise(address, bytes as usize, Advice::LinuxDontFork) } {
                // Only an emulator of another processor (qemu-user) does not know the advice. There, `ProcessNumber` alone keeps a forked child away.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(error) => return Err(os(error)),
            }
        }
        Ok(mapping)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it may be written.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The address of the first byte in this process. For registration with a device; do not dereference it.
    pub fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    /// A 64-bit word shared with other processes. On a read-only mapping only loads are allowed; a store faults.
    pub fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        let word = self.word(offset, 8)?;
        // SAFETY: in bounds, 8-aligned, mapped while `&self` lives, and every process accesses it only atomically.
        Ok(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    /// A 32-bit word shared with other processes. On a read-only mapping only loads are allowed; a store faults.
    pub fn atomic_u32(&self, offset: u64) -> Result<&AtomicU32, OutOfRange> {
        let word = self.word(offset, 4)?;
        // SAFETY: in bounds, 4-aligned, mapped while `&self` lives, and every process accesses it only atomically.
        Ok(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// `count` 64-bit words in a row.
    pub fn atomics_u64(&self, offset: u64, count: usize) -> Result<&[AtomicU64], OutOfRange> {
        let bytes = (count as u64).checked_mul(8).ok_or_else(|| self.out_of_range(offset, u64::MAX))?;
        self.check(offset, bytes)?;
        let first = self.word(offset, if count == 0 { 0 } else { 8 })?;
        // SAFETY: all of them in bounds, the first 8-aligned, so all are; every process accesses them only atomically.
        Ok(unsafe { std::slice::from_raw_parts(first.cast::<AtomicU64>(), count) })
    }

    /// Copies bytes out of the mapping. If another process writes them at the same time, the copy is torn, never worse.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.check(offset, to.len() as u64)?;
        // SAFETY: both ranges are valid for their length and disjoint. memcpy(3) is opaque to the compiler: a concurrent writer
        // can only change which bytes arrive.
        unsafe { libc::memcpy(to.as_mut_ptr().cast(), from.cast(), to.len()) };
        Ok(())
    }

    /// Copies bytes into the mapping, which must be writable.
    pub fn copy_in<'a>(&self, offset: u64, from: impl Into<SharedBytes<'a>>) -> Result<(), OutOfRange> {
        let from = from.into();
        let to = self.check_writable(offset, from.len() as u64)?;
        // SAFETY: both ranges are valid for their length; memmove(3) allows overlap and is opaque to the compiler.
        unsafe { libc::memmove(to.cast(), from.address() as *const _, from.len()) };
        Ok(())
    }

    /// Copies `bytes` from one mapping to another (or within one; ranges may overlap).
    pub fn copy_from(&self, offset: u64, source: &Mapping, source_offset: u64, bytes: u64) -> Result<(), OutOfRange> {
        let to = self.check_writable(offset, bytes)?;
        let from = source.check(source_offset, bytes)?;
        // SAFETY: both ranges are valid for `bytes`; memmove(3) allows overlap and is opaque to the compiler.
        unsafe { libc::memmove(to.cast(), from.cast(), bytes as usize) };
        Ok(())
    }

    /// Reads from a file descriptor straight into the mapping, and the bytes after that into `then`: one readv(2), which may be short; 0 is end of
    /// file.
    pub fn read_from(&self, fd: impl AsFd, offset: u64, bytes: u64, then: &mut [u8]) -> io::Result<usize> {
        let to = self.check_writable(offset, bytes).map_err(io::Error::other)?;
        let parts = [
            libc::iovec { iov_base: to.cast(), iov_len: bytes as usize },
            libc::iovec { iov_base: then.as_mut_ptr().cast(), iov_len: then.len() },
        ];
        // SAFETY: the kernel writes at most `bytes` bytes into a valid range of this mapping, to which no Rust reference is made, and at
        // most its length into `then`, which is borrowed mutably.
        let n = unsafe { libc::readv(fd.as_fd().as_raw_fd(), parts.as_ptr(), parts.len() as _) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// A part that other processes may write meanwhile, to be copied, sent, or read by a device.
    pub fn shared(&self, offset: u64, bytes: u64) -> Result<SharedBytes<'_>, OutOfRange> {
        Ok(SharedBytes::at(self.check(offset, bytes)?, bytes as usize))
    }

    /// The block of a range that the caller owns, for reading.
    pub fn owned_bytes<'a>(&'a self, range: &'a OwnedRange) -> Result<&'a [u8], OutOfRange> {
        if range.mapping != self.id {
            return Err(self.out_of_range(range.offset, range.bytes));
        }
        let start = self.check(range.offset, range.bytes)?;
        // SAFETY: in bounds, and `OwnedRange` is the only right to use these bytes; writing them borrows it mutably.
        Ok(unsafe { std::slice::from_raw_parts(start, range.bytes as usize) })
    }

    /// The block of a range that the caller owns, for filling.
    pub fn bytes_mut<'a>(&'a self, range: &'a mut OwnedRange) -> Result<&'a mut [u8], OutOfRange> {
        if range.mapping != self.id {
            return Err(self.out_of_range(range.offset, range.bytes));
        }
        let start = self.check_writable(range.offset, range.bytes)?;
        // SAFETY: in bounds, writable, and `OwnedRange` is the only right to use these bytes; the slice borrows it mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, range.bytes as usize) })
    }

    /// The right to carve ranges. Given once per mapping, and only if it is writable.
    pub fn allocation_right(&self) -> Option<AllocationRight> {
        if self.access == Access::ReadOnly || self.right_given.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(AllocationRight { mapping: self.id, bytes: self.bytes })
    }

    fn word(&self, offset: u64, size: u64) -> Result<*mut u8, OutOfRange> {
        let word = self.check(offset, size)?;
        if size != 0 && !offset.is_multiple_of(size) {
            return Err(self.out_of_range(offset, size));
        }
        Ok(word)
    }

    fn check_writable(&self, offset: u64, bytes: u64) -> Result<*mut u8, OutOfRange> {
        if self.access == Access::ReadOnly {
            return Err(self.out_of_range(offset, bytes));
        }
        self.check(offset, bytes)
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<*mut u8, OutOfRange> {
        match offset.checked_add(bytes) {
            // SAFETY: `offset` is at most the mapping's length, so the result is in it or one past its end.
            Some(end) if end <= self.bytes => Ok(unsafe { self.address.as_ptr().add(offset as usize) }),
            _ => Err(self.out_of_range(offset, bytes)),
        }
    }

    fn out_of_range(&self, offset: u64, bytes: u64) -> OutOfRange {
        OutOfRange { offset, bytes, mapped: self.bytes }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.process.is_own() {
            return;
        }
        // SAFETY: exactly the pages that were mapped; every reference into them borrowed `self`. A failure could only leak them.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.bytes as usize) };
    }
}

fn this_process(bytes: u64) -> Result<ProcessNumber, MapError> {
    ProcessNumber::own().map_err(|source| MapError::Os { bytes, source })
}

fn length(bytes: u64) -> Result<usize, MapError> {
    match usize::try_from(bytes) {
        Ok(length) if length > 0 && length <= isize::MAX as usize => Ok(length),
        _ => Err(MapError::Os { bytes, source: io::ErrorKind::InvalidInput.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: u64) -> std::os::fd::OwnedFd {
        memfd::create_to_be_sealed("test", bytes).unwrap()
    }

    #[test]
    fn two_mappings_of_one_file_show_the_same_words() {
        let fd = memory(4096);
        let a = Mapping::map(&fd, 4096, Access::ReadWrite).unwrap();
        let b = Mapping::map(&fd, 4096, Access::ReadOnly).unwrap();
        a.atomic_u64(8).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(b.atomic_u64(8).unwrap().load(Ordering::Relaxed), 7);
    }

    #[test]
    fn offsets_beyond_the_end_and_misaligned_words_are_refused() {
        let mapping = Mapping::map(memory(4096), 4096, Access::ReadWrite).unwrap();
        assert!(mapping.atomic_u64(4096).is_err());
        assert!(mapping.atomic_u64(u64::MAX).is_err());
        assert!(mapping.atomic_u64(4).is_err());
        assert!(mapping.atomic_u32(2).is_err());
        assert!(mapping.atomics_u64(0, 513).is_err());
        assert!(mapping.atomics_u64(8, usize::MAX).is_err());
        assert!(mapping.copy_in(4090, &[0; 7]).is_err());
        assert!(mapping.copy_out(u64::MAX, &mut [0; 2]).is_err());
        assert!(mapping.shared(4000, 97).is_err());
    }

    #[test]
    fn a_read_only_mapping_refuses_copies_and_rights() {
        let fd = memory(4096);
        let mapping = Mapping::map(&fd, 4096, Access::ReadOnly).unwrap();
        assert!(mapping.copy_in(0, &[1]).is_err());
        assert!(mapping.allocation_right().is_none());
    }

    #[test]
    fn after_the_seal_no_process_can_map_for_writing() {
        let fd = memory(4096);
        let owner = Mapping::map(&fd, 4096, Access::ReadWrite).unwrap();
        memfd::seal_future_write(&fd).unwrap();
        assert!(Mapping::map(&fd, 4096, Access::ReadWrite).is_err());
        let reader = Mapping::map(&fd, 4096, Access::ReadOnly).unwrap();
        owner.copy_in(0, b"still writable").unwrap();
        let mut found = [0; 5];
        reader.shared(0, 5).unwrap().copy_out(0, &mut found).unwrap();
        assert_eq!(&found, b"still");
    }

    #[test]
    fn a_range_opens_only_its_own_mapping_and_the_right_is_given_once() {
        let one = Mapping::map(memory(4096), 4096, Access::ReadWrite).unwrap();
        let two = Mapping::map(memory(4096), 4096, Access::ReadWrite).unwrap();
        let right = one.allocation_right().unwrap();
        assert!(one.allocation_right().is_none());
        // SAFETY: the only range carved.
        let mut range = unsafe { right.carve(64, 128) };
        one.bytes_mut(&mut range).unwrap().fill(9);
        assert!(two.bytes_mut(&mut range).is_err() && two.owned_bytes(&range).is_err());
        assert_eq!(one.owned_bytes(&range).unwrap(), &[9; 128]);
    }
}
