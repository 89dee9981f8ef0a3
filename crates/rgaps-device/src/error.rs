//! What can go wrong with device memory. Each text has the numbers and the next step.

use std::time::Duration;

use rgaps_os::{MapError, OutOfRange};

use crate::pool::DeviceKind;

/// An operation on device memory failed. Nothing that existed before is touched.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The memory could not be had.
    #[error("{bytes} B for {name} could not be made: {source}; lower pool_bytes or free memory")]
    Create {
        /// What it was for.
        name: String,
        /// Bytes asked for.
        bytes: u64,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// More than the device has.
    #[error("{bytes} B for {name} exceed the {memory} B of memory that there are; lower pool_bytes")]
    TooLarge {
        /// What it was for.
        name: String,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of memory of the device.
        memory: u64,
    },
    /// Memory from another process is not what was announced, or could not be mapped.
    #[error("{name} cannot be mapped: {source}")]
    Map {
        /// What it is.
        name: String,
        /// Why.
        source: MapError,
    },
    /// Sealing failed.
    #[error("{name} could not be sealed against writers: {source}")]
    Seal {
        /// What it is.
        name: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The device's memory is used up.
    #[error(
        "{bytes} B of device memory for {name} are not to be had: {free} of {total} B are free; lower pool_bytes, or see \
         nvidia-smi for who holds the rest"
    )]
    OutOfMemory {
        /// What it was for.
        name: String,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes free on the device.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// A part of a pool has no memory in this process.
    #[error(
        "{bytes} B at offset {offset} of {name} have no memory here: slab {slab} was not asked for (PoolMemory::missing)"
    )]
    Absent {
        /// Which pool.
        name: String,
        /// The slab.
        slab: usize,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A call of the GPU's driver failed.
    #[error(transparent)]
    Driver(#[from] crate::cuda::DriverError),
    /// A description of a pool could not be read at all.
    #[error("the description of a pool is refused: {0}")]
    Description(String),
    /// A description of a pool contradicts itself, this machine, or what came with it.
    #[error("the description of a pool is refused: {0}")]
    Refused(#[from] DescriptionError),
    /// A copy would leave a pool or a buffer.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Memory of one backend was given to another.
    #[error("memory of backend {found:?} was given to backend {wanted:?}")]
    Foreign {
        /// The backend that was called.
        wanted: DeviceKind,
        /// Whose memory it is.
        found: DeviceKind,
    },
    /// The asked-for device is not there.
    #[error(
        "device {asked} is not available: {reason}; set RGAPS_DEVICE=host, or use --device host where there is that flag"
    )]
    Unavailable {
        /// What was asked for.
        asked: String,
        /// What is missing.
        reason: String,
    },
    /// No device has such a name.
    #[error(
        "no device is named {asked:?}: they are auto, host, cuda, cuda:N and cuda:GPU-<uuid>, as nvidia-smi -L lists them"
    )]
    Unnamed {
        /// What was asked for.
        asked: String,
    },
    /// The host's pools lie on a device that this process cannot use. Which one that is was the manager's choice.
    #[error(
        "the pools of this host lie on {pools}, the device of the rgapsd that runs, and this process cannot use it: {reason}; give it \
         that device, or end rgapsd and begin again with RGAPS_DEVICE=host"
    )]
    Pools {
        /// Their device.
        pools: String,
        /// What is missing.
        reason: String,
    },
    /// A node cannot work on its host's pools by the device that it was told to use: it neither reaches their memory nor can messages be copied
    /// to it.
    #[error(
        "{asked} cannot work on the pools of this host, which lie on {pools}: {reason}; leave the node's device out to use that of the \
         pools, or start rgapsd with another --device"
    )]
    Elsewhere {
        /// The node's device.
        asked: String,
        /// That of the pools.
        pools: String,
        /// What is missing.
        reason: String,
    },
    /// Memory could not be pinned because of the limit on locked memory.
    #[error(
        "{name} needs {bytes} B of locked memory and the limit is {limit} B (of which other buffers may hold a part); raise it: \
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
    /// Pages could not be prepared, pinned or given back.
    #[error("{bytes} B at offset {offset} of {name} could not be {what}: {source}")]
    Pages {
        /// Whose pages.
        name: String,
        /// What was asked for, as a participle.
        what: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Memory cannot be given back while a copy uses it.
    #[error("{name} is being copied from or to: its memory stays")]
    Busy {
        /// Which pool.
        name: String,
    },
    /// Pages of a sealed pool stay until the pool goes: the seal against writers covers giving back too.
    #[error(
        "{bytes} B of {name} cannot be given back: a sealed pool keeps the pages that were touched until it is dropped; \
         lower pool_bytes or close the publisher"
    )]
    Kept {
        /// Which pool.
        name: String,
        /// Bytes that were to be given back.
        bytes: u64,
    },
    /// Work on a device has not come to its end in time. It goes on: what it reads and writes must stay.
    #[error("work on the device was not done within {} ms; the device is stuck or badly overloaded", .0.as_millis())]
    TimedOut(Duration),
    /// The device reported a failure of work that had been started.
    #[error("the device failed: {0}")]
    Failed(String),
    /// Too many copies are under way, or a chunk contradicts its message.
    #[error(transparent)]
    Chunk(#[from] crate::copy::ChunkError),
}

/// How a description of a pool lies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// It lies on another device than this process uses.
    #[error("it lies on a {found:?} device, this process uses {wanted:?}; start both with the same --device")]
    Device {
        /// What this process uses.
        wanted: DeviceKind,
        /// What was described.
        found: DeviceKind,
    },
    /// The number of slabs is not possible.
    #[error("it has {described} slabs, a pool of this device has 1 to {most}")]
    Slabs {
        /// Slabs described.
        described: usize,
        /// Slabs possible.
        most: usize,
    },
    /// Descriptors and slabs differ in number.
    #[error("{described} slabs were described and {came} descriptors came")]
    Descriptors {
        /// Slabs described.
        described: usize,
        /// Descriptors that came beside it.
        came: usize,
    },
    /// Slabs are not numbered in order.
    #[error("slab {index} is described in place {place}")]
    Order {
        /// The place in the list.
        place: usize,
        /// What it says.
        index: u32,
    },
    /// A slab is not as long as the pool is cut.
    #[error("its slab {slab} has {bytes} B where the pool is cut every {cut} B")]
    Cut {
        /// Which slab.
        slab: usize,
        /// Bytes described.
        bytes: u64,
        /// Bytes that it must have.
        cut: u64,
    },
    /// The slabs do not add up.
    #[error("its slabs have {slabs} B, the pool {pool} B")]
    Bytes {
        /// Bytes of the pool.
        pool: u64,
        /// Bytes of all slabs.
        slabs: u64,
    },
    /// A size that no pool has.
    #[error("{0} B is no size of a pool: 1 to {most} B", most = crate::pool::POOL_BYTES_MAX)]
    Absurd(u64),
}
