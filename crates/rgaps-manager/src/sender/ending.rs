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
    /// The configuration of one of the hosts rules a link out.
    Misconfigured(String),
    /// Anything that the next attempt may overcome.
    Broken(String),
}

impl Ending {
    pub(super) fn why(&self) -> &str {
        let (Self::Unwanted(why) | Self::Closed(why) | Self::Misconfigured(why) | Self::Broken(why)) = self;
        why
    }

    /// Logs why no connection could be made. `was_closed`: the other host had closed the last one. `has_warned`: since the last one a warning was logged.
    pub(super) fn log_failed_connect(&self, was_closed: bool, has_warned: &mut bool) {
        match self {
            Self::Misconfigured(why) if !std::mem::replace(has_warned, true) => {
                tracing::warn!(why, "the other host does not get the topic: there is no link");
            }
            Self::Broken(why) if was_closed => tracing::warn!(why, "the link was closed; connecting again"),
            ending => tracing::debug!(why = ending.why(), "no link yet"),
        }
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
