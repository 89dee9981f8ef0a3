//! Pools: the memory that a topic's messages lie in. The manager makes one for each writer, the writer maps it, the manager seals it,
//! and from then on everybody else can only read it.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use rgaps_os::{AllocationRight, OutOfRange, OwnedRange};
use serde::{Deserialize, Serialize};

use crate::error::DeviceError;

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
    /// How often this place has been given memory.
    pub generation: u32,
    /// Bytes.
    pub bytes: u64,
}

/// What an importer must know of a pool; one descriptor a slab travels beside it.
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
}

/// A pool's memory in this process.
pub trait PoolMemory: Debug + Send + Sync {
    /// The backend that it belongs to.
    fn kind(&self) -> DeviceKind;

    /// Bytes of the pool.
    fn bytes(&self) -> u64;

    /// What importers need, and one descriptor a slab.
    fn export(&self) -> Result<(PoolDescription, Vec<OwnedFd>), DeviceError>;

    /// From now on no process can map the pool for writing; mappings that exist stay.
    fn seal(&self) -> Result<(), DeviceError>;

    /// The right to allocate in it; given once, to its writer.
    fn allocation_right(&self) -> Option<AllocationRight>;

    /// A block that the caller owns, to be filled.
    fn block_mut<'a>(&'a self, block: &'a mut OwnedRange) -> Result<&'a mut [u8], OutOfRange>;

    /// Payload that the caller holds; an error outside the pool, or where the CPU cannot read it.
    fn host_bytes(&self, offset: u64, bytes: u64) -> Result<&[u8], OutOfRange>;

    /// Identity of the memory, (device, inode) of its first slab: equal in all processes.
    fn identity(&self) -> (u64, u64);

    /// Bytes of memory that it occupies now.
    fn resident_bytes(&self) -> u64;

    /// The backend's own view of it.
    fn as_host(&self) -> Option<&crate::host::HostPool>;
}
