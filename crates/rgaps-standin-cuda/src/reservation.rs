//! Addresses without memory, which are the program's device pointers. A CPU that touches one faults, like with a GPU.

use crate::abi::{INVALID_VALUE, OUT_OF_MEMORY, Status};

/// Addresses reserved until drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub base: u64,
    pub bytes: u64,
}

impl Reservation {
    /// Reserves `bytes` at a multiple of `alignment`, which is a power of two.
    pub(crate) fn new(bytes: u64, alignment: u64) -> Status<Self> {
        if bytes == 0 || !alignment.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let whole =
            bytes.checked_add(alignment).and_then(|sum| sum.checked_next_multiple_of(PAGE)).ok_or(OUT_OF_MEMORY)?;
        let length = usize::try_from(whole).map_err(|_| OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let start = start as u64;
        let base = start.next_multiple_of(alignment.max(PAGE));
        let bytes_mapped = bytes.next_multiple_of(PAGE);
        unmap(start, base - start);
        unmap(base + bytes_mapped, start + whole - base - bytes_mapped);
        Ok(Self { base, bytes })
    }

    /// Whether it contains all of these bytes.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        address.checked_sub(self.base).and_then(|offset| offset.checked_add(bytes)).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unmap(self.base, self.bytes.next_multiple_of(PAGE));
    }
}

/// The assumed size of a page. Reservations are trimmed in multiples of it.
pub(crate) const PAGE: u64 = if cfg!(target_arch = "aarch64") { 64 << 10 } else { 4 << 10 };

fn unmap(address: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: part of a mapping of `Reservation::new` that is not in use. A failure only leaks addresses.
        unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
    }
}
