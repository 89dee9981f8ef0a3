//! Why a publisher or subscription could not be made, or a message not be published.

/// A publisher or subscription could not be made, or a message was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The core could not make its half: no manager, another type on the topic, an invalid name.
    #[error(transparent)]
    Node(#[from] rgaps::NodeError),
    /// The core did not publish the message.
    #[error(transparent)]
    Publish(#[from] rgaps::PublishError),
    /// The ROS client failed. If it was publishing a descriptor, its message is in the core, but no subscriber will take it.
    #[error("{what}: {reason}")]
    Ros {
        /// The operation that failed.
        what: String,
        /// The client's error text.
        reason: String,
    },
    /// A parameter has an invalid value.
    #[error(transparent)]
    Parameter(#[from] rgaps_ros_policy::parameters::ParameterError),
    /// The type support of rgaps_msgs was not found.
    #[error("the type support of {message} is missing ({reason}): source a workspace in which rgaps_msgs is built")]
    TypeSupport {
        /// The message.
        message: &'static str,
        /// The loader's error text.
        reason: String,
    },
}

impl Error {
    /// An error of a ROS client.
    pub fn ros(what: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Ros { what: what.into(), reason: reason.to_string() }
    }
}
