//! What can keep a publisher or a subscription from being made, or a message from being sent.

/// There is no publisher or subscription, or the message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The core cannot make its part: no manager, another type on the topic, a name that breaks a rule.
    #[error(transparent)]
    Node(#[from] rgaps::NodeError),
    /// The core did not publish the message.
    #[error(transparent)]
    Publish(#[from] rgaps::PublishError),
    /// The ROS client refused. If it was to send a descriptor, its message is in the core and nobody takes it.
    #[error("{what}: {reason}")]
    Ros {
        /// What was asked of it.
        what: String,
        /// Its own words.
        reason: String,
    },
    /// A parameter has a value that means nothing.
    #[error("parameter {name} is {value}; it may be {allowed}")]
    Parameter {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// The type support of rgaps_msgs is not there.
    #[error("the type support of {message} is missing ({reason}): source a workspace in which rgaps_msgs is built")]
    TypeSupport {
        /// The message.
        message: &'static str,
        /// What the loader says.
        reason: String,
    },
}

impl Error {
    /// Of a ROS client.
    pub fn ros(what: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Ros { what: what.into(), reason: reason.to_string() }
    }
}
