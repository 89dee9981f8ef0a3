//! Why a manager could not start, or had to end.

use rgaps_control::config::ConfigError;
use rgaps_control::local::LocalError;
use rgaps_control::network::NetworkError;
use rgaps_control::runtime::RuntimeError;
use rgaps_control::spawn::StartOutcome;
use rgaps_device::DeviceError;

/// The manager could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The device is not there.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Clients of a manager that died have pools on a device that this one cannot open.
    #[error(
        "this rgapsd cannot open {device}: {source}. Programs have pools there from the previous rgapsd. This one exits, so that they keep their \
         slots, and one of them starts the next. Make the device usable, or end these programs: {programs}"
    )]
    NotedDevice {
        /// The device.
        device: String,
        /// Why it cannot be opened.
        source: DeviceError,
        /// The ids of their processes.
        programs: String,
    },
    /// The socket cannot be made.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// Other hosts cannot be reached.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Data connections cannot be accepted.
    #[error(transparent)]
    Accept(#[from] rgaps_link::tcp::AcceptError),
    /// The kernel refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl DaemonError {
    /// What a client that has started this manager should know.
    pub fn outcome(&self) -> StartOutcome {
        match self {
            Self::Runtime(RuntimeError::Locked { .. }) => StartOutcome::Taken,
            error => StartOutcome::Failed(error.to_string()),
        }
    }
}
