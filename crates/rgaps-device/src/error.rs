//! What can go wrong with device memory.

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
    /// A description of a pool contradicts itself or this machine.
    #[error("the description of a pool is refused: {0}")]
    Description(String),
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
    #[error("device {asked} is not available: {reason}; use --device host")]
    Unavailable {
        /// What was asked for.
        asked: String,
        /// What is missing.
        reason: String,
    },
}
