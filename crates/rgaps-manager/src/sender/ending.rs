//! Why a sender's connection ended.

use rgaps_link::LinkError;

use crate::outbox::PostError;

/// Why a connection ended, or could not be made.
#[derive(Debug)]
pub(super) enum Ending {
    /// The other host says that it does not want the topic.
    Unwanted(String),
    /// The other host closed the link. If its last subscriber has left, this host learns so a moment later.
    Closed(String),
    /// Anything that the next attempt may overcome.
    Broken(String),
}

impl Ending {
    pub(super) fn why(&self) -> &str {
        let (Self::Unwanted(why) | Self::Closed(why) | Self::Broken(why)) = self;
        why
    }

    pub(super) fn of_link(error: &PostError) -> Self {
        match error {
            PostError::Link(LinkError::Closed { by_peer: true }) => Self::Closed(error.to_string()),
            error => Self::Broken(error.to_string()),
        }
    }
}

impl<E: std::fmt::Display> From<E> for Ending {
    fn from(error: E) -> Self {
        Self::Broken(error.to_string())
    }
}
