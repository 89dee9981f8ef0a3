//! Errors of device memory. Each text has the numbers and the next step.

use std::time::Duration;

use rgaps_os::{MapError, OutOfRange};
use rustix::io::Errno;

use crate::pool::DeviceKind;

/// An operation on device memory failed. Existing memory is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The kernel refused the memory or its file descriptor.
    #[error("{bytes} B for {name} could not be allocated: {source}; lower pool_bytes or free memory")]
    Create {
        /// What the memory was for.
        name: String,
        /// Bytes requested.
        bytes: u64,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The request exceeds the device's memory.
    #[error("{bytes} B for {name} exceed the device's {memory} B of memory; lower pool_bytes")]
    TooLarge {
        /// What the memory was for.
        name: String,
        /// Bytes requested.
        bytes: u64,
        /// Bytes of memory of the device.
        memory: u64,
    },
    /// Memory from another process does not match its description, or cannot be mapped.
    #[error("{name} cannot be mapped: {source}")]
    Map {
        /// What was to be mapped.
        name: String,
        /// Why not.
        source: MapError,
    },
    /// Sealing failed.
    #[error("{name} could not be sealed against writers: {source}")]
    Seal {
        /// What was to be sealed.
        name: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The device has too little free memory.
    #[error(
        "{bytes} B of device memory for {name} are not to be had: {free} of {total} B are free; lower pool_bytes, or see \
         nvidia-smi for who holds the rest"
    )]
    OutOfMemory {
        /// What the memory was for.
        name: String,
        /// Bytes requested.
        bytes: u64,
        /// Bytes free on the device.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// A part of a pool is not mapped in this process.
    #[error(
        "{bytes} B at offset {offset} of {name} are not mapped in this process: slab {slab} is missing; call PoolMemory::missing and map \
    what it returns"
    )]
    Absent {
        /// Which pool.
        name: String,
        /// The missing slab.
        slab: usize,
        /// First byte of the part.
        offset: u64,
        /// Bytes of the part.
        bytes: u64,
    },
    /// A CUDA driver call failed.
    #[error(transparent)]
    Driver(#[from] crate::cuda::DriverError),
    /// A pool description could not be parsed.
    #[error("the description of a pool is refused: {0}")]
    Description(String),
    /// A pool description contradicts itself, this machine, or the file descriptors sent with it.
    #[error("the description of a pool is refused: {0}")]
    Refused(#[from] DescriptionError),
    /// Network cards cannot access device memory.
    #[error("network cards cannot access the memory of this device: {0}")]
    NoGpuDirect(&'static str),
    /// A copy would exceed a pool or a buffer.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Memory of one backend was passed to another.
    #[error("memory of backend {found:?} was passed to backend {wanted:?}")]
    Foreign {
        /// The backend that was called.
        wanted: DeviceKind,
        /// The backend that owns the memory.
        found: DeviceKind,
    },
    /// The requested device is not available.
    #[error(
        "device {asked} is not available: {reason}; set RGAPS_DEVICE=host, or use --device host where there is that flag"
    )]
    Unavailable {
        /// The requested device.
        asked: String,
        /// What is missing.
        reason: String,
    },
    /// The text is no device name.
    #[error(
        "no device is named {asked:?}: they are auto, host, cuda, cuda:N and cuda:GPU-<uuid>, as nvidia-smi -L lists them"
    )]
    Unnamed {
        /// The text.
        asked: String,
    },
    /// The host's pools are on a device that this process cannot use. The manager chose the device.
    #[error(
        "the pools of this host are on {pools}, the device of the rgapsd that runs, and this process cannot use it: {reason}; give this \
    process access to that device, or stop rgapsd and start again with RGAPS_DEVICE=host"
    )]
    Pools {
        /// Their device.
        pools: String,
        /// What is missing.
        reason: String,
    },
    /// A node's device cannot use its host's pools: it has no peer access to their memory, and messages cannot be copied to it either.
    #[error(
        "{asked} cannot work on the pools of this host, which lie on {pools}: {reason}; leave the node's device out to use that of the \
         pools, or start rgapsd with another --device"
    )]
    Elsewhere {
        /// The node's device.
        asked: String,
        /// The device of the pools.
        pools: String,
        /// What is missing.
        reason: String,
    },
    /// Memory could not be pinned because of the limit on locked memory.
    #[error(
        "{name} needs {bytes} B of locked memory, but the limit is {limit} B, shared with other buffers of this process; raise it: \
         ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, or memlock in /etc/security/limits.conf"
    )]
    Memlock {
        /// What was to be pinned.
        name: String,
        /// Bytes to be pinned.
        bytes: u64,
        /// RLIMIT_MEMLOCK of this process.
        limit: u64,
    },
    /// Pages could not be faulted in, pinned or freed.
    #[error("{bytes} B at offset {offset} of {name} could not be {what}: {source}")]
    Pages {
        /// Whose pages.
        name: String,
        /// The operation, as a participle.
        what: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Memory cannot be freed while a copy uses it.
    #[error("memory of {name} cannot be freed while a copy from or to it is under way; try again later")]
    Busy {
        /// Which pool.
        name: String,
    },
    /// A pool keeps its pages until it is dropped: they are sealed, or pinned by a device.
    #[error(
        "{bytes} B of {name} cannot be freed: a sealed or pinned pool keeps its touched pages until it is dropped; \
    lower pool_bytes or close the publisher"
    )]
    Kept {
        /// Which pool.
        name: String,
        /// Bytes that were to be freed.
        bytes: u64,
    },
    /// Work on a device did not finish in time. It continues, so the memory that it reads and writes must stay.
    #[error("work on the device was not done within {} ms; the device is stuck or badly overloaded", .0.as_millis())]
    TimedOut(Duration),
    /// The device reported a failure of work that was started.
    #[error("the device failed: {0}; see rgaps doctor")]
    Failed(String),
    /// Too many copies are under way, or a chunk contradicts its message.
    #[error(transparent)]
    Chunk(#[from] crate::copy::ChunkError),
}

impl DeviceError {
    /// Whether the device's memory, this process's memory or its file descriptors ran out: a later attempt may succeed.
    pub fn is_lack(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } => true,
            Self::Driver(error) => error.is_out_of_memory(),
            Self::Create { source, .. } | Self::Seal { source, .. } | Self::Pages { source, .. } => is_lack(source),
            Self::Map { source: MapError::Os { source, .. }, .. } => is_lack(source),
            _ => false,
        }
    }
}

/// Whether file descriptors or memory ran out: EMFILE, ENFILE and ENOMEM, or the driver's error that it passes on.
fn is_lack(error: &std::io::Error) -> bool {
    let of_driver = || error.get_ref()?.downcast_ref::<crate::cuda::DriverError>();
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
        || of_driver().is_some_and(crate::cuda::DriverError::is_out_of_memory)
}

/// Why a pool description is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// The pool is on another device than this process uses.
    #[error("it is on a {found:?} device, but this process uses {wanted:?}; start both with the same --device")]
    Device {
        /// The kind that this process uses.
        wanted: DeviceKind,
        /// The described kind.
        found: DeviceKind,
    },
    /// The number of slabs is impossible.
    #[error("it has {described} slabs, but a pool of this device has 1 to {most}")]
    Slabs {
        /// Slabs described.
        described: usize,
        /// The most slabs that a pool can have.
        most: usize,
    },
    /// File descriptors and slabs differ in number.
    #[error("it describes {described} slabs, but {came} file descriptors were sent with it")]
    FileDescriptors {
        /// Slabs described.
        described: usize,
        /// File descriptors sent with the description.
        came: usize,
    },
    /// Slabs are not numbered in order.
    #[error("entry {place} of its slab list has index {index}")]
    Order {
        /// The position in the list.
        place: usize,
        /// The index that it states.
        index: u32,
    },
    /// A slab's length does not match the pool's header.
    #[error("its slab {slab} has {bytes} B, but the pool's header says {cut} B")]
    Cut {
        /// Which slab.
        slab: usize,
        /// Bytes described.
        bytes: u64,
        /// Bytes that it must have.
        cut: u64,
    },
    /// The slabs do not add up to the pool.
    #[error("its slabs have {slabs} B in total, but the pool has {pool} B")]
    Bytes {
        /// Bytes of the pool.
        pool: u64,
        /// Bytes of all slabs.
        slabs: u64,
    },
    /// The size is impossible.
    #[error("a pool cannot have {0} B; it has 1 to {most} B", most = crate::pool::POOL_BYTES_MAX)]
    ImpossibleSize(u64),
}
