//! A manager's answer to a request.

use std::os::fd::OwnedFd;

use rgaps_control::local::Reply;
use rgaps_device::{DeviceError, PoolDescription};

use crate::endpoint::error::NodeError;
use crate::endpoint::hello::SessionError;

/// A reply and the file descriptors beside it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) fds: std::vec::IntoIter<OwnedFd>,
    /// The `Session::epoch` of the manager that answered.
    pub(crate) epoch: u64,
}

impl Answer {
    /// The next file descriptor.
    pub(crate) fn fd(&mut self) -> Result<OwnedFd, SessionError> {
        self.fds.next().ok_or(SessionError::Confused)
    }

    /// The description of a pool and its file descriptors, for mapping it.
    pub(crate) fn pool(self) -> Result<(PoolDescription, Vec<OwnedFd>), NodeError> {
        let Reply::Pool(description) = self.reply else { return Err(SessionError::Confused.into()) };
        Ok((pool_description(description)?, self.fds.collect()))
    }
}

/// The description of a pool, as a manager sends it.
pub(crate) fn pool_description(value: serde_json::Value) -> Result<PoolDescription, NodeError> {
    serde_json::from_value(value)
        .map_err(|error| DeviceError::Description(format!("it cannot be parsed: {error}")).into())
}
