//! The device of a command that starts its own hosts: from its flag, else from the configuration.

use std::collections::BTreeMap;

use rgaps::NodeError;
use rgaps::device::{Choice, Chosen, open};
use rgaps_control::Config;

use crate::CommandError;

/// The device in the flag, else in the configuration (file, environment).
pub(crate) fn asked_for(flag: Option<Choice>) -> Result<Choice, CommandError> {
    if let Some(choice) = flag {
        return Ok(choice);
    }
    let config = Config::load(&BTreeMap::new()).map_err(|error| CommandError::Other(error.to_string()))?;
    Ok(config.device.parse().map_err(NodeError::from)?)
}

/// Opens the device. A command does this first, so that an unavailable device is reported once.
pub(crate) fn opened(flag: Option<Choice>) -> Result<Chosen, CommandError> {
    Ok(open(asked_for(flag)?).map_err(NodeError::from)?)
}
