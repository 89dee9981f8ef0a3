//! Why a message was not taken.

use rgaps_device::DeviceError;

use crate::endpoint::error::NodeError;
use crate::types::{MetaError, ViewError};

/// Why a message could not be taken. The message is released, and the next take continues with the next message. After `TooManyHeld`,
/// and after `Pool` if the pool may still be mapped, the message is kept, and the next take tries it again. After `CutOff` and `Forked` every take
/// fails.
///
/// Takes in order never return `OutOfBounds` or `Metadata`: they skip and count such messages (`SubscriberStatistics::malformed`) and log the
/// first. Only `take_by_handle` returns these errors.
///
/// ```
/// use rgaps::{Sample, Subscriber, TakeError, types::Bytes};
///
/// fn next(subscriber: &Subscriber<Bytes>, held: &mut Vec<Sample<Bytes>>) -> Result<(), TakeError> {
///     match subscriber.take() {
///         Err(TakeError::TooManyHeld { .. }) => held.clear(), // the message stays the next one
///         taken => held.extend(taken?),
///     }
///     Ok(())
/// }
/// # let _host = rgaps_testing::example_host();
/// # let node = rgaps::Node::new("logger")?;
/// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
/// # publisher.push(&Bytes::new(5), b"hello")?;
/// # let mut held = Vec::new();
/// # next(&subscriber, &mut held)?;
/// # assert_eq!(held.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
pub enum TakeError {
    /// The publisher's pool could not be mapped. The next take tries the same message again; it is lost only if this process can never map the pool.
    #[error("{topic}: the pool of publisher slot {slot} could not be mapped: {source}; take again")]
    Pool {
        /// The topic.
        topic: String,
        /// The publisher slot.
        slot: u16,
        /// The reason.
        source: NodeError,
    },
    /// A message names bytes outside its pool: its publisher is faulty, or the segment was tampered with.
    #[error("{topic}: message {sequence} has {bytes} B at offset {offset}, outside its pool; it is dropped")]
    OutOfBounds {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// Offset in the pool.
        offset: u64,
        /// Length.
        bytes: u64,
    },
    /// The typed metadata is malformed or does not fit the payload.
    #[error("{topic}: message {sequence}: {source}")]
    Metadata {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// What is wrong.
        source: MetaError,
    },
    /// A device operation failed.
    #[error("{topic}: {source}")]
    Device {
        /// The topic.
        topic: String,
        /// What failed.
        source: DeviceError,
    },
    /// The message's bytes were never written: its publisher died, or its device failed.
    #[error(
        "{topic}: message {sequence} was never completed: its publisher died, or its device failed; take the next one"
    )]
    Poisoned {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
    },
    /// The payload cannot be viewed as requested. The sample is unchanged, unless the call consumed it.
    #[error("{topic}: message {sequence}: {source}")]
    View {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// The reason.
        source: ViewError,
    },
    /// The wait failed.
    #[error("{topic}: waiting failed: {source}")]
    Wait {
        /// The topic.
        topic: String,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The subscriber holds half of the messages that a publisher can have; other subscribers need the rest. Nothing is lost.
    #[error(
        "{topic}: {held} messages of one publisher are held, half of all that it can have (message_count); drop some before the next take"
    )]
    TooManyHeld {
        /// The topic.
        topic: String,
        /// Messages held.
        held: u32,
    },
    /// The subscriber has lost its slot: the manager died, and its successor did not take the slot back.
    #[error("{topic}: the subscriber was cut off from its topic; create it again")]
    CutOff {
        /// The topic.
        topic: String,
    },
    /// This process was forked from the one that created the subscriber.
    #[error("{topic}: the subscriber belongs to the parent process; make a node after fork")]
    Forked {
        /// The topic.
        topic: String,
    },
}

impl TakeError {
    /// Whether the message itself is malformed, so that other messages are not affected.
    pub(crate) fn is_malformed(&self) -> bool {
        matches!(self, Self::OutOfBounds { .. } | Self::Metadata { .. })
    }
}
