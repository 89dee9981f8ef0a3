//! Why a message was not published.

use rgaps_device::DeviceError;
use rgaps_shm::{LoanError, writer};

use crate::node::NodeError;
use crate::types::{MetaError, ViewError};

/// A message was not published. Nothing of it is left behind, and the publisher goes on.
#[derive(thiserror::Error)]
pub enum PublishError {
    /// There is no space, and the publisher's QoS does not make any.
    #[error("{topic}: {source}")]
    NoSpace {
        /// The topic.
        topic: String,
        /// What was missing.
        source: LoanError,
    },
    /// The metadata describes another number of bytes than there are, or contradicts itself.
    #[error("{topic}: {source}")]
    Metadata {
        /// The topic.
        topic: String,
        /// What is wrong.
        source: MetaError,
    },
    /// `push` was given another number of bytes than the metadata describes.
    #[error("{topic}: the metadata describes {described} B, the buffer has {given} B")]
    Length {
        /// The topic.
        topic: String,
        /// Bytes that the metadata describes.
        described: u64,
        /// Bytes given.
        given: u64,
    },
    /// The topic's segment is unusable.
    #[error("{topic}: {source}")]
    Topic {
        /// The topic.
        topic: String,
        /// What is wrong.
        source: writer::PublishError,
    },
    /// The block does not lie in the pool: the segment was tampered with.
    #[error("{topic}: {source}")]
    Block {
        /// The topic.
        topic: String,
        /// Where it lies.
        source: rgaps_os::OutOfRange,
    },
    /// The device refused or failed.
    #[error("{topic}: {source}")]
    Device {
        /// The topic.
        topic: String,
        /// What happened.
        source: DeviceError,
    },
    /// The block cannot be seen as asked; it is as good as before.
    #[error("{topic}: {source}")]
    View {
        /// The topic.
        topic: String,
        /// Why not.
        source: ViewError,
    },
    /// The manager has no memory for the block.
    #[error("{topic}: {source}")]
    Memory {
        /// The topic.
        topic: String,
        /// What it said.
        source: NodeError,
    },
    /// The publisher has lost its place in the topic: the manager that followed one that died did not take its slot back.
    #[error("{topic}: the publisher was cut off from its topic: make it anew")]
    CutOff {
        /// The topic.
        topic: String,
    },
    /// This process was forked from the one that made the publisher.
    #[error("{topic}: the publisher belongs to the parent process; make a node after fork")]
    Forked {
        /// The topic.
        topic: String,
    },
}
