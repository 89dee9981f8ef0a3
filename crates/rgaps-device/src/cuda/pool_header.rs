//! A pool's header: a page of shared memory with the pool's slab size and the generation of each slab.
//!
//! ```text
//!   0        8       16           24   32                        32 + 64 × 8
//!   ┌────────┬───────┬────────────┬────┬─────────────────────────┐
//!   │ magic  │ bytes │ slab_bytes │ 0  │ generation of slab i, 64│
//!   └────────┴───────┴────────────┴────┴─────────────────────────┘
//! ```
//!
//! A GPU allocation has neither seals nor an identity that other processes can check. Its header has both: it is sealed like a host pool
//! (`PoolMemory::seal`), and its inode identifies the pool.
//!
//! Words       `generation[i]`: 0 while slab i has no memory. The manager and the writer store it when they map or free the slab.
//! Trusts      nothing: sizes are checked against the description; a false generation only makes a reader report the slab as missing.

use std::os::fd::{AsFd, OwnedFd};

use std::sync::atomic::{AtomicU64, Ordering};

use rgaps_os::memfd::{self, SealError};
use rgaps_os::{Access, MapError, Mapping, Seals};

use crate::error::DeviceError;

/// "RGAPSPOL" in memory order.
const MAGIC: u64 = u64::from_le_bytes(*b"RGAPSPOL");
const LABEL_BYTES: u64 = 4096;
/// Most slabs of a pool. The manager sends their file descriptors in one packet.
pub(crate) const SLABS_MAX: usize = 64;
const GENERATIONS: u64 = 32;

/// How a pool is divided into slabs: all have the same length, except the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) bytes: u64,
    pub(crate) slab_bytes: u64,
}

impl Cut {
    /// Number of slabs.
    pub(crate) fn count(&self) -> usize {
        self.bytes.div_ceil(self.slab_bytes) as usize
    }

    /// First byte of a slab.
    pub(crate) fn offset(&self, slab: usize) -> u64 {
        slab as u64 * self.slab_bytes
    }

    /// Bytes of the pool in a slab.
    pub(crate) fn bytes_of(&self, slab: usize) -> u64 {
        self.bytes.saturating_sub(self.offset(slab)).min(self.slab_bytes)
    }

    /// Slabs that overlap a part of the pool; the part must be inside the pool.
    pub(crate) fn touched(&self, offset: u64, bytes: u64) -> std::ops::Range<usize> {
        let first = (offset / self.slab_bytes) as usize;
        if bytes == 0 { first..first } else { first..((offset + bytes - 1) / self.slab_bytes) as usize + 1 }
    }
}

/// The header, mapped in this process.
#[derive(Debug)]
pub(crate) struct PoolHeader {
    fd: OwnedFd,
    mapping: Mapping,
    cut: Cut,
}

impl PoolHeader {
    pub(crate) fn create(name: &str, cut: Cut) -> Result<Self, DeviceError> {
        let create = |source| DeviceError::Create { name: name.to_owned(), bytes: LABEL_BYTES, source };
        let fd = memfd::create_to_be_sealed(name, LABEL_BYTES).map_err(create)?;
        let mapping = map(&fd, Access::ReadWrite)?;
        for (word, value) in mapping.atomics_u64(0, 3)?.iter().zip([MAGIC, cut.bytes, cut.slab_bytes]) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(Self { fd, mapping, cut })
    }

    /// Maps a header from another process. An error unless its sizes match `cut` and, for read-only access, it is sealed.
    pub(crate) fn import(fd: OwnedFd, cut: Cut, access: Access) -> Result<Self, DeviceError> {
        let refused = |source: SealError| DeviceError::Map { name: "a pool".to_owned(), source: source.into() };
        let seals = if access == Access::ReadOnly { Seals::SizeAndFutureWrite } else { Seals::Size };
        memfd::check(&fd, LABEL_BYTES, seals).map_err(refused)?;
        let mapping = map(&fd, access)?;
        let found: Vec<u64> = mapping.atomics_u64(0, 3)?.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        if found != [MAGIC, cut.bytes, cut.slab_bytes] {
            return Err(refused(SealError::Size { expected: cut.bytes, found: found.get(1).copied().unwrap_or(0) }));
        }
        Ok(Self { fd, mapping, cut })
    }

    pub(crate) fn cut(&self) -> Cut {
        self.cut
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.mapping.access() == Access::ReadWrite
    }

    pub(crate) fn generation(&self, slab: usize) -> u64 {
        self.word(slab).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Stores the generation of the slab's memory; 0: none. Does nothing if the header is mapped read-only.
    pub(crate) fn set_generation(&self, slab: usize, generation: u64) {
        if let Some(word) = self.word(slab).filter(|_| self.is_writable()) {
            word.store(generation, Ordering::Release);
        }
    }

    fn word(&self, slab: usize) -> Option<&AtomicU64> {
        (slab < SLABS_MAX).then(|| self.mapping.atomic_u64(GENERATIONS + slab as u64 * 8).ok()).flatten()
    }
}

fn map(fd: impl AsFd, access: Access) -> Result<Mapping, DeviceError> {
    let failed = |source: MapError| DeviceError::Map { name: "a pool's header".to_owned(), source };
    Mapping::map(fd, LABEL_BYTES, access).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { bytes: 100, slab_bytes: 40 };

    #[test]
    fn a_pool_is_cut_into_slabs_that_cover_it() {
        assert_eq!(CUT.count(), 3);
        assert_eq!([0, 1, 2, 3].map(|slab| CUT.bytes_of(slab)), [40, 40, 20, 0]);
        assert_eq!(CUT.touched(0, 40), 0..1);
        assert_eq!(CUT.touched(39, 2), 0..2);
        assert_eq!(CUT.touched(80, 20), 2..3);
        assert!(CUT.touched(80, 0).is_empty());
    }

    #[test]
    fn readers_see_the_writers_generations_and_cannot_change_them() {
        let made = PoolHeader::create("rgaps-test", CUT).unwrap();
        let writer = PoolHeader::import(made.fd().try_clone().unwrap(), CUT, Access::ReadWrite).unwrap();
        assert!(PoolHeader::import(made.fd().try_clone().unwrap(), CUT, Access::ReadOnly).is_err(), "not sealed yet");
        memfd::seal_future_write(made.fd()).unwrap();
        let reader = PoolHeader::import(made.fd().try_clone().unwrap(), CUT, Access::ReadOnly).unwrap();
        assert!(PoolHeader::import(made.fd().try_clone().unwrap(), CUT, Access::ReadWrite).is_err());
        writer.set_generation(1, 7);
        reader.set_generation(1, 9);
        assert_eq!([made.generation(1), reader.generation(1), reader.generation(SLABS_MAX)], [7, 7, 0]);
        let other = Cut { slab_bytes: 50, ..CUT };
        assert!(matches!(
            PoolHeader::import(made.fd().try_clone().unwrap(), other, Access::ReadOnly),
            Err(DeviceError::Map { .. })
        ));
    }
}
