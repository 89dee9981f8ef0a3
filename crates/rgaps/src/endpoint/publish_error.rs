//! Why a message, or a batch of messages, was not published.

use rgaps_device::DeviceError;
use rgaps_shm::LoanError;
use rgaps_shm::writer::port::WriteError;

use crate::endpoint::error::NodeError;
use crate::handle::MessageHandle;
use crate::types::{MetaError, ViewError};

/// Why a message was not published. The block is free again, unless a device may still write into it. The publisher remains usable, except after
/// `CutOff` and `Forked`, and while its topic is damaged (`Topic`).
///
/// ```
/// # use rgaps::types::Bytes;
/// # use rgaps::{Exhaustion, Node, PublishError, PublisherQos, SubscriberQos};
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("logger")?;
/// let qos = PublisherQos { exhaustion: Exhaustion::Refuse, pool_bytes: Some(1 << 20), ..PublisherQos::default() };
/// let publisher = node.publisher_with::<Bytes>("raw", qos)?;
/// # let subscriber = node.subscriber::<Bytes>("raw")?;
/// let half = vec![0; 600_000];
/// publisher.push(&Bytes::new(600_000), &half)?; // unread, so its block is in use
/// match publisher.push(&Bytes::new(600_000), &half) {
///     Err(PublishError::NoSpace { source, .. }) => println!("message skipped: {source}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
pub enum PublishError {
    /// The pool or the message table is full, and the publisher's QoS makes no space (`Exhaustion`).
    #[error("{topic}: {source}")]
    NoSpace {
        /// The topic.
        topic: String,
        /// What was missing.
        source: LoanError,
    },
    /// The metadata contradicts itself, or describes a number of bytes other than the payload's.
    #[error("{topic}: {source}")]
    Metadata {
        /// The topic.
        topic: String,
        /// What is wrong.
        source: MetaError,
    },
    /// The buffer given to `push` does not have the number of bytes that the metadata describes.
    #[error("{topic}: the metadata describes {described} B, the buffer has {given} B; make them agree")]
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
        source: WriteError,
    },
    /// The block is outside the pool: the segment was tampered with.
    #[error("{topic}: {source}")]
    Block {
        /// The topic.
        topic: String,
        /// The block and the pool's bounds.
        source: rgaps_os::OutOfRange,
    },
    /// A device operation failed.
    #[error("{topic}: {source}")]
    Device {
        /// The topic.
        topic: String,
        /// What happened.
        source: DeviceError,
    },
    /// The block cannot be viewed as requested. The loan is unchanged.
    #[error("{topic}: {source}")]
    View {
        /// The topic.
        topic: String,
        /// The reason.
        source: ViewError,
    },
    /// The manager has no memory for the block.
    #[error("{topic}: {source}")]
    Memory {
        /// The topic.
        topic: String,
        /// The manager's error.
        source: NodeError,
    },
    /// The publisher has lost its slot: the manager died, and its successor did not take the slot back.
    #[error("{topic}: the publisher was cut off from its topic; create it again")]
    CutOff {
        /// The topic.
        topic: String,
    },
    /// The loan is of another publisher. It is unchanged.
    #[error("{topic}: the loan is of another publisher, of {other}; publish it there")]
    AnotherPublisher {
        /// The topic of the publisher that was to publish it.
        topic: String,
        /// The topic of its own publisher.
        other: String,
    },
    /// The buffer is of another pool than the publisher's, which its subscribers read.
    #[error(
        "{topic}: the buffer is of another pool than the publisher; publish it with a publisher of its own pool, or push a copy"
    )]
    AnotherPool {
        /// The topic.
        topic: String,
    },
    /// This process was forked from the one that created the publisher.
    #[error("{topic}: the publisher belongs to the parent process; make a node after fork")]
    Forked {
        /// The topic.
        topic: String,
    },
}

/// Why `publish_all` did not publish all of its loans. Each loan is published, or in `rest`, or is the one that failed and was given back, as by
/// `Loan::publish`.
///
/// ```
/// # use rgaps::{Node, PublishAllError, types::Bytes};
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("logger")?;
/// # let (publisher, other) = (node.publisher::<Bytes>("raw")?, node.publisher::<Bytes>("other")?);
/// let loans = vec![publisher.loan(Bytes::new(5))?, other.loan(Bytes::new(5))?];
/// let Err(PublishAllError { published, index, source, rest, .. }) = publisher.publish_all(loans) else { panic!() };
/// println!("loan {index}: {source}"); // it is of another publisher: that is found before anything is published
/// assert_eq!((published.len(), index, rest.len()), (0, 1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[error("loan {index} of the batch ({} are published): {source}", .published.len())]
pub struct PublishAllError<L> {
    /// The messages that were published, in the order of their loans: the first ones.
    pub published: Vec<MessageHandle>,
    /// The place in the batch, counted from 0, of the loan that failed.
    pub index: usize,
    /// Why it failed.
    pub source: Box<PublishError>,
    /// The loans that are neither published nor given back, in their order: publish them again, or drop them. The one that failed is among them if
    /// no loan was touched (`AnotherPublisher`, `CutOff` and `Forked` before the first publication).
    pub rest: Vec<L>,
}
