//! The device of a command that runs hosts of its own: that of its flag, else the configuration's.

use std::collections::BTreeMap;

use rgaps::NodeError;
use rgaps::device::{Choice, Chosen, open};
use rgaps_control::Config;

use crate::CommandError;

/// What the flag says, else what the configuration (file, environment) does.
pub(crate) fn asked_for(flag: Option<Choice>) -> Result<Choice, CommandError> {
    if let Some(choice) = flag {
        return Ok(choice);
    }
    let config = Config::load(&BTreeMap::new()).map_err(|error| CommandError::Other(error.to_string()))?;
    Ok(config.device.parse().map_err(NodeError::from)?)
}

/// Opens it. A command does so before anything runs, so that it is said once if the device is not there.
pub(crate) fn opened(flag: Option<Choice>) -> Result<Chosen, CommandError> {
    Ok(open(asked_for(flag)?).map_err(NodeError::from)?)
}
