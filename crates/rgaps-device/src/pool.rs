//! Pools: the memory that holds a topic's messages. The manager creates one for each writer, the writer maps it, and the manager seals it.
//! After that every other process can only map it read-only.
//!
//!   manager: create ──export──▶ writer: import(Writer) ──mapped──▶ manager: seal ──export──▶ readers: import(Reader)
//!
//! Trusts      nothing in a description: `PoolDescription::check` comes first, then size and seals of each file descriptor, then the mapping.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rgaps_os::{AllocationRight, DmaBuf, Mapping, OutOfRange, OwnedRange, SharedBytes};
use serde::{Deserialize, Serialize};

use crate::error::{DescriptionError, DeviceError};

/// The largest pool: 64 TiB. A larger number is an error or an attack.
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

impl DeviceKind {
    /// Whether work that a process has enqueued may go on after its death, because a child that was forked from it still has the device open.
    pub fn work_outlives_process(self) -> bool {
        match self {
            Self::Host => false,
            Self::Cuda => true,
        }
    }
}

/// A device's UUID; all zero for host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceId(pub [u8; 16]);

/// A piece of a pool, exported by one file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabDescription {
    /// Index in the pool.
    pub index: u32,
    /// Identifies the memory at this index: a random number that no other memory of the pool has; 0: no memory yet, hence no file descriptor.
    pub generation: u64,
    /// Bytes.
    pub bytes: u64,
}

impl SlabDescription {
    /// Whether the slab has memory, and thus a file descriptor.
    pub fn is_present(&self) -> bool {
        self.generation != 0
    }
}

/// Describes a pool to an importer; one file descriptor for each present slab is sent with it.
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
    /// Checks a description and the number of file descriptors sent with it. Must pass before any file descriptor is used.
    pub fn check(&self, wanted: (DeviceKind, DeviceId), slabs_max: usize, fds: usize) -> Result<(), DescriptionError> {
        if (self.kind, self.device) != wanted {
            return Err(DescriptionError::Device { wanted: wanted.0, found: self.kind });
        }
        let count = self.slabs.len();
        if count == 0 || count > slabs_max {
            return Err(DescriptionError::Slabs { described: count, most: slabs_max });
        }
        let described = self.slabs.iter().filter(|slab| slab.is_present()).count();
        if described != fds {
            return Err(DescriptionError::FileDescriptors { described, came: fds });
        }
        if self.bytes == 0 || self.bytes > POOL_BYTES_MAX {
            return Err(DescriptionError::ImpossibleSize(self.bytes));
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

/// A pool to create.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// The name that /proc/PID/maps shows.
    pub name: String,
    /// Bytes; rounded up to whole pages.
    pub bytes: u64,
}

/// How an importer uses a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRole {
    /// Writes the pool; maps it before the seal.
    Writer,
    /// Only reads; the kernel enforces that.
    Reader,
    /// Reads and re-exports the pool (`export`): a manager that takes over from a dead one.
    Successor,
}

/// A pool's memory in this process.
pub trait PoolMemory: Debug + Send + Sync {
    /// Its backend.
    fn kind(&self) -> DeviceKind;

    /// Bytes of the pool.
    fn bytes(&self) -> u64;

    /// The mapping, if it is host memory that a NIC can read by DMA.
    fn host_mapping(&self) -> Option<Arc<Mapping>> {
        None
    }

    /// A part as device memory that a network card accesses itself (GPUDirect RDMA), and where the part begins in that memory: the same memory for all
    /// parts of a slab, until the slab is freed. The error says why not; memory of the host has `host_mapping`.
    fn dma_buf(&self, offset: u64, bytes: u64) -> Result<(Arc<DmaBuf>, u64), DeviceError> {
        let _ = (offset, bytes);
        Err(DeviceError::NoGpuDirect("its pools are memory of the host"))
    }

    /// Makes what network cards have written into the pool visible to every device. Call it before a message there is published.
    fn flush_dma(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The description and the file descriptors that importers need.
    fn export(&self) -> Result<(PoolDescription, Vec<OwnedFd>), DeviceError>;

    /// Slabs of this part that this process has not mapped yet. The writer gets them before it fills a block, a reader before it reads one.
    /// Always empty if the backend does not divide pools into slabs.
    fn missing(&self, offset: u64, bytes: u64) -> Result<Vec<u32>, OutOfRange> {
        let mapped = self.bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= mapped => Ok(Vec::new()),
            _ => Err(OutOfRange { offset, bytes, mapped }),
        }
    }

    /// Allocates memory for slabs that have none, and returns what importers need to map them (`add_slabs`). The manager calls it.
    fn commit(&self, slabs: &[u32]) -> Result<(Vec<SlabDescription>, Vec<OwnedFd>), DeviceError> {
        let _ = slabs;
        Ok((Vec::new(), Vec::new()))
    }

    /// Maps the slabs that a reader lacks, from a new export of the same pool.
    fn refresh(&self, description: &PoolDescription, fds: Vec<OwnedFd>) -> Result<(), DeviceError> {
        let _ = (description, fds);
        Ok(())
    }

    /// Bytes of the slab that an idle pool keeps; `None` if the backend does not divide pools into slabs, which then never shrink.
    fn first_slab_bytes(&self) -> Option<u64> {
        None
    }

    /// Unmaps slabs that the writer has freed (`release_unused`); readers call it.
    fn trim(&self) {}

    /// Maps slabs that another process committed, one file descriptor each.
    fn add_slabs(&self, slabs: &[SlabDescription], fds: Vec<OwnedFd>) -> Result<(), DeviceError> {
        let _ = (slabs, fds);
        Ok(())
    }

    /// Prevents new writable mappings of the pool, in any process. Existing mappings stay.
    fn seal(&self) -> Result<(), DeviceError>;

    /// The right to allocate in the pool. The writer gets it once.
    fn allocation_right(&self) -> Option<AllocationRight>;

    /// A block that the caller owns, for writing.
    fn block_mut<'a>(&'a self, block: &'a mut OwnedRange) -> Result<&'a mut [u8], OutOfRange>;

    /// A block that the caller owns, for reading.
    fn block<'a>(&'a self, block: &'a OwnedRange) -> Result<&'a [u8], OutOfRange>;

    /// A part to copy or send; the writer may write it at the same time. An error outside the pool, and always for a pool that the CPU cannot
    /// read.
    fn shared(&self, offset: u64, bytes: u64) -> Result<SharedBytes<'_>, OutOfRange>;

    /// The device address of a byte of the pool in this process, for kernels and libraries; on the host backend, a pointer.
    fn device_address(&self, offset: u64) -> Result<u64, OutOfRange>;

    /// Requests huge pages, which make first touches and copies of large pools cheaper. The machine's settings decide.
    fn advise_huge_pages(&self) -> Result<(), DeviceError>;

    /// Faults in a part in this process, so that no message pays for a first touch (which dominates a copy into fresh memory). It uses
    /// `bytes` of memory, and as much time as filling them with zeros.
    fn populate(&self, offset: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Frees the memory of a part; it reads as zero afterwards. The caller makes sure that the bytes are unused.
    ///
    /// Returns `DeviceError::Kept` if the backend cannot: Linux refuses it for a memfd that is sealed against writers (fallocate(2),
    /// madvise(2) MADV_REMOVE: EPERM), so a sealed host pool keeps every touched page until it is dropped.
    fn release_unused(&self, offset: u64, bytes: u64) -> Result<(), DeviceError>;

    /// (device, inode) of the first slab: the same in all processes.
    fn identity(&self) -> (u64, u64);

    /// Bytes of memory that the pool occupies now.
    fn resident_bytes(&self) -> u64;

    /// The host backend's type, if it is that.
    fn as_host(&self) -> Option<&crate::host::HostPool>;

    /// Lets the backend downcast its own pools.
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
    fn each_false_description_has_its_own_error() {
        let cases = [
            (description(8, &[]), 0, DescriptionError::Slabs { described: 0, most: 2 }),
            (description(9, &[3, 3, 3]), 3, DescriptionError::Slabs { described: 3, most: 2 }),
            (description(8, &[8]), 0, DescriptionError::FileDescriptors { described: 1, came: 0 }),
            (description(8, &[8]), 2, DescriptionError::FileDescriptors { described: 1, came: 2 }),
            (description(8, &[4, 5]), 2, DescriptionError::Bytes { pool: 8, slabs: 9 }),
            (description(8, &[u64::MAX, 9]), 2, DescriptionError::Bytes { pool: 8, slabs: u64::MAX }),
            (description(0, &[0]), 1, DescriptionError::ImpossibleSize(0)),
            (description(u64::MAX, &[u64::MAX]), 1, DescriptionError::ImpossibleSize(u64::MAX)),
        ];
        for (lie, fds, error) in cases {
            assert_eq!(lie.check(HERE, 2, fds), Err(error));
        }
        let mut inconsistent = description(8, &[4, 4]);
        inconsistent.slabs[1].index = 7;
        assert_eq!(inconsistent.check(HERE, 2, 2), Err(DescriptionError::Order { place: 1, index: 7 }));
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
