//! Device memory: memfds. A shareable handle is a file descriptor of one.
//!
//! The stand-in accesses the bytes through its own mapping (`alias`). The program's device pointer is another address, which faults when a
//! CPU touches it (`reservation.rs`). The memfd's name identifies it as the stand-in's and contains the device.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{INVALID_VALUE, OPERATING_SYSTEM, OUT_OF_MEMORY, Status};

/// The granularity of sizes, addresses and offsets.
pub(crate) const GRANULARITY: u64 = 2 << 20;

const NAME: &str = "rgaps-standin-device-";
/// The end of the name of memory that was allocated for network cards too.
const RDMA_SUFFIX: &str = "-rdma";

/// Memory of a device, freed with its last handle and its last mapping.
#[derive(Debug)]
pub(crate) struct Memory {
    fd: OwnedFd,
    alias: *mut u8,
    pub bytes: u64,
    /// The device's ordinal.
    pub device: usize,
    /// Whether it was allocated for network cards too.
    pub is_rdma_capable: bool,
    /// The device's counter of used bytes; none if another process made the memory.
    account: Option<Arc<AtomicU64>>,
}

// SAFETY: the mapping is plain memory that lives until drop. It is accessed only by copies and atomics, which the program orders.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates memory of a device with `total` bytes, of which `used` are used.
    pub(crate) fn create(
        (device, is_rdma_capable): (usize, bool),
        bytes: u64,
        total: u64,
        used: &Arc<AtomicU64>,
    ) -> Status<Self> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= total);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(|_| OUT_OF_MEMORY)?;
        let made = memfd((device, is_rdma_capable), bytes).and_then(|fd| Ok((alias(&fd, bytes)?, fd)));
        if made.is_err() {
            used.fetch_sub(bytes, Ordering::Relaxed);
        }
        let (alias, fd) = made?;
        Ok(Self { fd, alias, bytes, device, is_rdma_capable, account: Some(used.clone()) })
    }

    /// Imports memory of this or another process by a file descriptor, which the caller keeps.
    pub(crate) fn import(fd: RawFd) -> Status<Self> {
        let fd = duplicate(fd)?;
        let (device, is_rdma_capable) = kind_of(&fd)?;
        // SAFETY: all zero is a value of this struct of numbers.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one `stat`; the file descriptor is open.
        let code = unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) };
        let bytes = u64::try_from(stat.st_size).map_err(|_| OPERATING_SYSTEM)?;
        if code != 0 || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let alias = alias(&fd, bytes)?;
        Ok(Self { fd, alias, bytes, device, is_rdma_capable, account: None })
    }

    /// A new file descriptor of it, with close-on-exec.
    pub(crate) fn export(&self) -> Status<OwnedFd> {
        duplicate(self.fd.as_raw_fd())
    }

    /// The address of the bytes from `offset` in this process; `offset` is at most the length.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.bytes, "offset {offset} of {} B", self.bytes);
        // SAFETY: inside the mapping or one past its end.
        unsafe { self.alias.add(offset as usize) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapped pages; every user of them holds an `Arc` of this.
        unsafe { libc::munmap(self.alias.cast(), self.bytes as usize) };
        if let Some(account) = &self.account {
            account.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

fn memfd((device, is_rdma_capable): (usize, bool), bytes: u64) -> Status<OwnedFd> {
    let suffix = if is_rdma_capable { RDMA_SUFFIX } else { "" };
    let name = CString::new(format!("{NAME}{device}{suffix}")).map_err(|_| OPERATING_SYSTEM)?;
    // SAFETY: the name is a C string; the call returns a new file descriptor or -1.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(OPERATING_SYSTEM);
    }
    // SAFETY: just opened, and exclusively ours.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(bytes).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: a system call on numbers.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), length) } != 0 {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: a system call on numbers.
    let sealed = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
    if sealed == 0 { Ok(fd) } else { Err(OPERATING_SYSTEM) }
}

fn alias(fd: &OwnedFd, bytes: u64) -> Status<*mut u8> {
    let length = usize::try_from(bytes).map_err(|_| OUT_OF_MEMORY)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(address.cast()) }
}

fn duplicate(fd: RawFd) -> Status<OwnedFd> {
    // SAFETY: a system call on numbers.
    let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if fd < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: just opened, and exclusively ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The device of the memory, and whether it is for network cards too; an error if it is no memory of a stand-in.
fn kind_of(fd: &OwnedFd) -> Status<(usize, bool)> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| OPERATING_SYSTEM)?;
    let name = path.to_str().and_then(|path| path.strip_prefix("/memfd:")?.strip_prefix(NAME)).ok_or(INVALID_VALUE)?;
    let kind = name.split(' ').next().unwrap_or(name);
    let number = kind.strip_suffix(RDMA_SUFFIX);
    Ok((number.unwrap_or(kind).parse().map_err(|_| INVALID_VALUE)?, number.is_some()))
}
