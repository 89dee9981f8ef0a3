//! Memory of one device that another device reads and writes, as a file descriptor that the first one's driver exports (a dma-buf).
//!
//! The processor cannot use it: nothing here maps it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::OutOfRange;

/// Memory of a device, exported for other devices. While this lives, or a device has registered it, the memory stays allocated.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    address: u64,
    bytes: u64,
    is_retired: AtomicBool,
}

impl DmaBuf {
    /// Memory of `bytes` bytes, which its owner knows by this address.
    pub fn new(fd: OwnedFd, address: u64, bytes: u64) -> Self {
        Self { fd, address, bytes, is_retired: AtomicBool::new(false) }
    }

    /// Its address for its owner. Other devices use the same numbers.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks that a part is inside it.
    pub fn check(&self, offset: u64, bytes: u64) -> Result<(), OutOfRange> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(OutOfRange { offset, bytes, mapped: self.bytes }),
        }
    }

    /// Its owner uses it no more, and may have other memory at the same address: whoever has registered it should forget it.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }

    /// Whether its owner uses it no more.
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_outside_the_memory_of_a_device_are_refused() {
        let memory = DmaBuf::new(crate::memfd::create("rgaps-test", 4096).unwrap(), 1 << 40, 4096);
        for inside in [(0, 4096), (4096, 0), (1, 4095)] {
            assert!(memory.check(inside.0, inside.1).is_ok(), "{inside:?}");
        }
        for outside in [(0, 4097), (4097, 0), (u64::MAX, 2)] {
            assert!(memory.check(outside.0, outside.1).is_err(), "{outside:?}");
        }
    }
}
