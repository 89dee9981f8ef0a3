//! Pools: the memory that a topic's messages lie in. The manager makes one for each writer, the writer maps it, the manager seals it,
//! and from then on everybody else can only read it.
//!
//!   manager: create ──export──▶ writer: import(Writer) ──mapped──▶ manager: seal ──export──▶ readers: import(Reader)
//!
//! Trusts      nothing in a description: `PoolDescription::check` first, then size and seals of each descriptor, then the mapping.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rgaps_os::{AllocationRight, Mapping, OutOfRange, OwnedRange, SharedBytes};
use serde::{Deserialize, Serialize};

use crate::error::{DescriptionError, DeviceError};

/// The largest pool: 64 TiB. Beyond it a number is a lie or a slip.
pub const POOL_BYTES_MAX: u64 = 1 << 46;

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Host memory.
    Host,
    /// NVIDIA GPU memory.
    Cuda,
}

/// A device of a host, by UUID; all zero for host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceId(pub [u8; 16]);

/// A piece of a pool that is exported by one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabDescription {
    /// Place in the pool, in order.
    pub index: u32,
    /// Which memory the place has, never the same twice in a pool; 0: none yet, and no descriptor travels for it.
    pub generation: u32,
    /// Bytes.
    pub bytes: u64,
}

impl SlabDescription {
    /// Whether there is memory, and a descriptor for it.
    pub fn is_present(&self) -> bool {
        self.generation != 0
    }
}

/// What an importer must know of a pool; one descriptor for each slab that is present travels beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDescription {
    /// The backend.
    pub kind: DeviceKind,
    /// The device.
    pub device: DeviceId,
    /// Bytes of address range.
    pub bytes: u64,
    /// Its slabs, in order.
    pub slabs: Vec<SlabDescription>,
}

impl PoolDescription {
    /// Checks a description and the number of descriptors beside it, before any of them is used.
    pub fn check(
        &self,
        wanted: (DeviceKind, DeviceId),
        slabs_max: usize,
        descriptors: usize,
    ) -> Result<(), DescriptionError> {
        if (self.kind, self.device) != wanted {
            return Err(DescriptionError::Device { wanted: wanted.0, found: self.kind });
        }
        let count = self.slabs.len();
        if count == 0 || count > slabs_max {
            return Err(DescriptionError::Slabs { described: count, most: slabs_max });
        }
        let described = self.slabs.iter().filter(|slab| slab.is_present()).count();
        if described != descriptors {
            return Err(DescriptionError::Descriptors { described, came: descriptors });
        }
        if self.bytes == 0 || self.bytes > POOL_BYTES_MAX {
            return Err(DescriptionError::Absurd(self.bytes));
        }
        let mut slabs = 0_u64;
        for (place, slab) in self.slabs.iter().enumerate() {
            if usize::try_from(slab.index) != Ok(place) {
                return Err(DescriptionError::Order { place, index: slab.index });
            }
            slabs = slabs.saturating_add(slab.bytes);
        }
        if slabs != self.bytes {
            return Err(DescriptionError::Bytes { pool: self.bytes, slabs });
        }
        Ok(())
    }
}

/// A pool to be made.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Shows in /proc/PID/maps, for people.
    pub name: String,
    /// Bytes; rounded up to whole pages.
    pub bytes: u64,
}

/// What an importer will do with a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRole {
    /// It is the pool's writer, and maps it before the seal.
    Writer,
    /// It reads; the kernel enforces that.
    Reader,
    /// It reads, and hands the pool on (`export`): a manager that takes over from one that died.
    Keeper,
}

/// A pool's memory in this process.
pub trait PoolMemory: Debug + Send + Sync {
    /// The backend that it belongs to.
    fn kind(&self) -> DeviceKind;

    /// Bytes of the pool.
    fn bytes(&self) -> u64;

    /// Its mapping where it is host memory that a network card can read by itself; else `None`.
    fn host_mapping(&self) -> Option<Arc<Mapping>> {
        None
    }

    /// What importers need, and the descriptors that go with it.
    fn export(&self) -> Result<(PoolDescription, Vec<OwnedFd>), DeviceError>;

    /// Slabs that must be had before this part is used here: the writer asks for them before it fills a block, a reader before it reads one.
    /// Always empty where a pool is one piece.
    fn missing(&self, offset: u64, bytes: u64) -> Result<Vec<u32>, OutOfRange> {
        let mapped = self.bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= mapped => Ok(Vec::new()),
            _ => Err(OutOfRange { offset, bytes, mapped }),
        }
    }

    /// Gives slabs memory that have none, and says what importers must know of them (`add_slabs`). The manager does. New ones get a
    /// generation beyond `newest`, the writer's `newest_generation`.
    fn commit(&self, slabs: &[u32], newest: u32) -> Result<(Vec<SlabDescription>, Vec<OwnedFd>), DeviceError> {
        let _ = (slabs, newest);
        Ok((Vec::new(), Vec::new()))
    }

    /// Maps what a reader is missing, from a new export of the same pool.
    fn refresh(&self, description: &PoolDescription, descriptors: Vec<OwnedFd>) -> Result<(), DeviceError> {
        let _ = (description, descriptors);
        Ok(())
    }

    /// The newest generation of a slab that was ever mapped here; 0 where a pool is one piece.
    fn newest_generation(&self) -> u32 {
        0
    }

    /// Bytes of the slab that an idle pool keeps; `None` where a pool is one piece, and gives nothing back.
    fn first_slab_bytes(&self) -> Option<u64> {
        None
    }

    /// A reader releases slabs that the writer has given back (`release_unused`).
    fn trim(&self) {}

    /// Maps slabs that were committed elsewhere, one descriptor each.
    fn add_slabs(&self, slabs: &[SlabDescription], descriptors: Vec<OwnedFd>) -> Result<(), DeviceError> {
        let _ = (slabs, descriptors);
        Ok(())
    }

    /// From now on no process can map the pool for writing; mappings that exist stay.
    fn seal(&self) -> Result<(), DeviceError>;

    /// The right to allocate in it; given once, to its writer.
    fn allocation_right(&self) -> Option<AllocationRight>;

    /// A block that the caller owns, to be filled.
    fn block_mut<'a>(&'a self, block: &'a mut OwnedRange) -> Result<&'a mut [u8], OutOfRange>;

    /// A block that the caller owns, to be read.
    fn block<'a>(&'a self, block: &'a OwnedRange) -> Result<&'a [u8], OutOfRange>;

    /// A part that its writer may write meanwhile, to be copied or sent; an error outside the pool, and everywhere in a pool that the CPU cannot
    /// read.
    fn shared(&self, offset: u64, bytes: u64) -> Result<SharedBytes<'_>, OutOfRange>;

    /// The device's address of a byte of the pool in this process, for a kernel or a library to work on; on the host backend, a pointer.
    fn device_address(&self, offset: u64) -> Result<u64, OutOfRange>;

    /// Asks for huge pages, which make first touches and copies of large pools cheaper. The machine's settings decide.
    fn advise_huge_pages(&self) -> Result<(), DeviceError>;

    /// Gives a part its memory now, in this process, so that no message pays for a first touch (which dominates a copy into fresh
    /// memory). It costs as much memory as it says and as much time as filling it with zeros.
    fn populate(&self, offset: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Gives the memory of a part back to the system; it reads as zero from then on. The caller knows that nobody needs the bytes.
    ///
    /// `DeviceError::Kept` where the backend cannot: Linux refuses it for a memfd that is sealed against writers (fallocate(2),
    /// madvise(2) MADV_REMOVE: EPERM), so a sealed host pool keeps the pages that were ever touched until it is dropped.
    fn release_unused(&self, offset: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Identity of the memory, (device, inode) of its first slab: equal in all processes.
    fn identity(&self) -> (u64, u64);

    /// Bytes of memory that it occupies now.
    fn resident_bytes(&self) -> u64;

    /// The host backend's own view of it.
    fn as_host(&self) -> Option<&crate::host::HostPool>;

    /// For the backend that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: (DeviceKind, DeviceId) = (DeviceKind::Host, DeviceId([0; 16]));

    fn description(bytes: u64, slabs: &[u64]) -> PoolDescription {
        let slab = |(index, &bytes): (usize, &u64)| SlabDescription { index: index as u32, generation: 1, bytes };
        let slabs = slabs.iter().enumerate().map(slab).collect();
        PoolDescription { kind: DeviceKind::Host, device: DeviceId::default(), bytes, slabs }
    }

    #[test]
    fn each_lie_in_a_description_has_its_name() {
        let cases = [
            (description(8, &[]), 0, DescriptionError::Slabs { described: 0, most: 2 }),
            (description(9, &[3, 3, 3]), 3, DescriptionError::Slabs { described: 3, most: 2 }),
            (description(8, &[8]), 0, DescriptionError::Descriptors { described: 1, came: 0 }),
            (description(8, &[8]), 2, DescriptionError::Descriptors { described: 1, came: 2 }),
            (description(8, &[4, 5]), 2, DescriptionError::Bytes { pool: 8, slabs: 9 }),
            (description(8, &[u64::MAX, 9]), 2, DescriptionError::Bytes { pool: 8, slabs: u64::MAX }),
            (description(0, &[0]), 1, DescriptionError::Absurd(0)),
            (description(u64::MAX, &[u64::MAX]), 1, DescriptionError::Absurd(u64::MAX)),
        ];
        for (lie, descriptors, error) in cases {
            assert_eq!(lie.check(HERE, 2, descriptors), Err(error));
        }
        let mut crooked = description(8, &[4, 4]);
        crooked.slabs[1].index = 7;
        assert_eq!(crooked.check(HERE, 2, 2), Err(DescriptionError::Order { place: 1, index: 7 }));
        let elsewhere = (DeviceKind::Cuda, DeviceId([1; 16]));
        let error = DescriptionError::Device { wanted: DeviceKind::Cuda, found: DeviceKind::Host };
        assert_eq!(description(8, &[8]).check(elsewhere, 2, 1), Err(error));
        assert_eq!(description(8, &[3, 5]).check(HERE, 2, 2), Ok(()));
    }

    proptest! {
        #[test]
        fn a_description_that_passes_adds_up(bytes: u64, slabs in proptest::collection::vec(0_u64..1 << 47, 0..4), came in 0_usize..5) {
            let whole = slabs.iter().sum::<u64>();
            for bytes in [bytes, whole] {
                if description(bytes, &slabs).check(HERE, 3, came).is_ok() {
                    prop_assert!(whole == bytes && bytes <= POOL_BYTES_MAX && came == slabs.len() && (1..=3).contains(&came));
                }
            }
        }
    }
}
