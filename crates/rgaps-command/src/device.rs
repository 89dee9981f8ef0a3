//! The device of a command that starts its own hosts: from its flag, else from the configuration.

use std::collections::BTreeMap;

use rgaps::NodeError;
use rgaps::device::{Choice, Chosen, open};
use rgaps_control::Config;
use rgaps_control::config::ConfigError;

/// The device of a command cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no such device.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// The device in the flag, else in the configuration (file, environment).
pub fn asked_for(flag: Option<Choice>) -> Result<Choice, DeviceError> {
    if let Some(choice) = flag {
        return Ok(choice);
    }
    let config = Config::load(&BTreeMap::new())?;
    Ok(config.device.parse().map_err(NodeError::from)?)
}

/// Opens the device. A command does this first, so that an unavailable device is reported once.
pub fn opened(flag: Option<Choice>) -> Result<Chosen, DeviceError> {
    Ok(open(asked_for(flag)?).map_err(NodeError::from)?)
}
