//! Why a node, publisher or subscriber could not be created.

use rgaps_control::NameError;
use rgaps_control::runtime::RuntimeError;
use rgaps_device::DeviceError;
use rgaps_shm::segment::AttachError;
use rgaps_shm::writer::space::PortError;

use crate::endpoint::hello::SessionError;

/// The largest ROS domain id: larger ids map to DDS ports above 65535 ("The ROS_DOMAIN_ID", ROS 2 documentation).
pub(crate) const DOMAIN_MAX: u32 = 232;

/// Why a node, publisher or subscriber could not be created. Nothing is left behind.
///
/// ```
/// # use rgaps::{Node, NodeError, types::Bytes};
/// # let _host = rgaps_testing::example_host();
/// let node = Node::new("logger")?;
/// let refused = node.publisher::<Bytes>("1raw").map(drop);
/// assert!(matches!(refused, Err(NodeError::Name(_))), "a name does not begin with a digit");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
pub enum NodeError {
    /// The topic's name breaks a rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The domain is not a ROS domain id.
    #[error("{found:?} is not a ROS domain id: {origin} must be from 0 to {DOMAIN_MAX}")]
    Domain {
        /// The value found.
        found: String,
        /// Its origin: "ROS_DOMAIN_ID" or "the node's domain".
        origin: &'static str,
    },
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The manager could not be reached, refused the request, or did not answer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The topic's segment cannot be used.
    #[error(transparent)]
    Segment(#[from] AttachError),
    /// The slot does not belong to this publisher or subscriber.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The pool cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// This process was forked from the one that created the node.
    #[error("the node belongs to the parent process; make a node after fork")]
    Forked,
}
