//! Taking the message that a handle names.
//!
//! Trusts      nothing in a handle: it may be of another run, topic or kind, replayed or made up. A take succeeds only if the subscriber's own slot
//!             has, or gets, a message of that name.
//!
//! Bounds      A handle whose message can no longer arrive is an error at once. A message that may still arrive is waited for. After a time-out,
//!             messages of that publisher are not waited for again until any message of it arrives. What is remembered of publishers is bounded by
//!             `SEEN_MAX`, the number that a topic can have. Handles of more publishers are made up: then all is forgotten, which costs each
//!             publisher one more wait, and as many early handles as before.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_device::{DeviceError, StreamWord};
use rgaps_shm::notify::Wait;
use rgaps_shm::reader::seen_publishers::TakenByName;
use rgaps_shm::words::message::Readiness;
use rgaps_shm::words::queue::MessageIndex;
use rgaps_shm::{Held, ReaderPort};

use crate::dynamic::Kind;
use crate::endpoint::by_publisher::Absent;
use crate::endpoint::subscriber::SubscriberInner;
use crate::endpoint::take_error::TakeError;
use crate::handle::MessageHandle;

/// How often a waiting take calls `is_over`.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Handles of one publisher that are answered with `Early`, at most.
const EARLY_EACH_MAX: u64 = 64;

/// Why a handle's message cannot be taken. No other message is lost.
///
/// ```
/// # use std::time::Duration;
/// # use rgaps::{MessageHandle, Node, TakeByHandleError, types::{Bytes, Image}};
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("relay")?;
/// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Image>("camera")?);
/// let handle: MessageHandle = publisher.push(&Bytes::new(5), b"hello")?;
/// let refused = subscriber.take_by_handle(&handle, Duration::from_secs(1)).map(drop);
/// assert!(matches!(refused, Err(TakeByHandleError::Kind { .. })), "the topic has images");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
pub enum TakeByHandleError {
    /// The handle has another layout version, or is no handle.
    #[error(
        "{topic}: a handle has layout version {found}, this program speaks {}; was it filled by RGAPS?",
        MessageHandle::LAYOUT_VERSION
    )]
    Layout {
        /// The topic.
        topic: String,
        /// The handle's layout version.
        found: u32,
    },
    /// The handle names another kind of message.
    #[error("{topic}: the handle is of kind {found}, the topic of {wanted}; take it with a subscriber of its own kind")]
    Kind {
        /// The topic.
        topic: String,
        /// The handle's kind, as a code.
        found: u32,
        /// The topic's kind.
        wanted: Kind,
    },
    /// The publisher's host was restarted since.
    #[error(
        "{topic}: the handle of message {sequence} is of an earlier run: its host started at {found} ns, the present run at {now} ns; a \
         replayed handle names no memory, record and play the pictures instead (rgaps_ros converter)"
    )]
    EarlierRun {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// The handle's epoch, in ns since 1970.
        found: u64,
        /// The host's epoch.
        now: u64,
    },
    /// All subscribers have released the message, and its entry has another one now.
    #[error(
        "{topic}: message {sequence} of publisher {publisher:#x} is over: its entry is in generation {now}, the handle names {found}; take \
         sooner, or raise the subscription's depth"
    )]
    Stale {
        /// The topic.
        topic: String,
        /// The publisher.
        publisher: u64,
        /// Its count.
        sequence: u64,
        /// The handle's generation.
        found: u32,
        /// The entry's generation.
        now: u32,
    },
    /// The message was published before the subscriber joined. The middleware that carries handles may have kept some: as many a publisher as the
    /// subscriber's depth (64 at most) are answered with `Early`. Further ones must be replayed, and are `Gone`.
    #[error(
        "{topic}: message {sequence} of publisher {publisher:#x} was published before this subscriber joined; subscribe earlier, or use transient_local on both sides"
    )]
    Early {
        /// The topic.
        topic: String,
        /// The publisher.
        publisher: u64,
        /// Its count.
        sequence: u64,
    },
    /// This subscriber does not have the message and will not get it.
    #[error(
        "{topic}: message {sequence} of publisher {publisher:#x} is not this subscriber's: it was taken already, was published before the \
         subscription, or was lost because the depth is too small; or its handle is replayed, or of another topic"
    )]
    Gone {
        /// The topic.
        topic: String,
        /// The publisher.
        publisher: u64,
        /// Its count.
        sequence: u64,
    },
    /// The message has not arrived in time.
    #[error(
        "{topic}: message {sequence} of publisher {publisher:#x} has not come within {waited_ms} ms: its handle is replayed, or the hosts' \
         managers cannot reach each other (rgaps topic info)"
    )]
    NotHere {
        /// The topic.
        topic: String,
        /// The publisher.
        publisher: u64,
        /// Its count.
        sequence: u64,
        /// How long the take waited.
        waited_ms: u128,
    },
    /// The message is here but cannot be taken.
    #[error(transparent)]
    Take(#[from] TakeError),
}

/// What a look for a message found.
enum Found {
    Here(Held),
    /// It may still arrive. `newest`: the newest sequence seen of its publisher, 0 for none.
    NotYet {
        newest: u64,
    },
}

impl SubscriberInner {
    /// The message of a handle of this kind (`Meta::KIND`). Waits at most `timeout` for it and, unless it is `pending`, for its bytes.
    pub(crate) fn hold_by_handle(
        &self,
        handle: &MessageHandle,
        kind: u32,
        timeout: Duration,
        pending: bool,
        is_over: impl Fn() -> bool,
    ) -> Result<Held, TakeByHandleError> {
        self.check_handle(handle, kind)?;
        let deadline = Instant::now().checked_add(timeout);
        let held = self.find_within(handle, timeout, &is_over)?;
        if pending {
            return Ok(held);
        }
        while held.readiness() == Readiness::Pending {
            self.check_attached()?;
            let (offset, value) = held.ready_word();
            let words = self.completions.ready_words().map_err(|source| self.device_error(source))?;
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            match (StreamWord { memory: words.as_ref(), offset }).wait(value, left.min(ASK_EVERY)) {
                Ok(()) => {}
                Err(DeviceError::TimedOut(_)) if is_over() => return Err(self.not_here(handle, timeout)),
                Err(DeviceError::TimedOut(_)) if left > ASK_EVERY => {}
                Err(DeviceError::TimedOut(_)) => return Err(self.device_error(DeviceError::TimedOut(timeout)).into()),
                Err(source) => return Err(self.device_error(source).into()),
            }
        }
        if held.readiness() == Readiness::Poisoned {
            return Err(TakeError::Poisoned { topic: self.topic.clone(), sequence: handle.sequence }.into());
        }
        Ok(held)
    }

    fn find_within(
        &self,
        handle: &MessageHandle,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<Held, TakeByHandleError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut waiter = self.reader().waiter();
        loop {
            self.check_attached()?;
            waiter.arm().map_err(|source| self.wait_error(source))?;
            let newest = match self.find(handle)? {
                Found::Here(held) => {
                    waiter.disarm();
                    return Ok(held);
                }
                Found::NotYet { newest } => newest,
            };
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() || self.absent().has(handle.publisher, newest) {
                waiter.disarm();
                // A take with no time-out did not wait, so the publisher is not absent.
                if !timeout.is_zero() {
                    self.absent().add(handle.publisher, newest);
                }
                return Err(self.not_here(handle, timeout));
            }
            if is_over() {
                waiter.disarm();
                return Err(self.not_here(handle, timeout));
            }
            waiter.wait(left.min(ASK_EVERY)).map_err(|source| self.wait_error(source))?;
        }
    }

    fn not_here(&self, handle: &MessageHandle, timeout: Duration) -> TakeByHandleError {
        let (publisher, sequence, waited_ms) = (handle.publisher, handle.sequence, timeout.as_millis());
        TakeByHandleError::NotHere { topic: self.topic.clone(), publisher, sequence, waited_ms }
    }

    /// Refuses a handle by its own fields and its host's epoch, without looking for the message.
    fn check_handle(&self, handle: &MessageHandle, kind: u32) -> Result<(), TakeByHandleError> {
        let topic = || self.topic.clone();
        if handle.layout_version != MessageHandle::LAYOUT_VERSION {
            return Err(TakeByHandleError::Layout { topic: topic(), found: handle.layout_version });
        }
        if handle.kind != kind {
            let wanted = Kind::from_code(kind).unwrap_or(Kind::Bytes);
            return Err(TakeByHandleError::Kind { topic: topic(), found: handle.kind, wanted });
        }
        let node = &self.node;
        if handle.source_host == node.host() && handle.host_epoch != node.host_epoch() {
            let (sequence, found, now) = (handle.sequence, handle.host_epoch, node.host_epoch());
            return Err(TakeByHandleError::EarlierRun { topic: topic(), sequence, found, now });
        }
        Ok(())
    }

    fn find(&self, handle: &MessageHandle) -> Result<Found, TakeByHandleError> {
        let mut reader = self.reader();
        let taken = reader.take_by_name(handle.name()).map_err(|refused| self.refused(refused))?;
        let (publisher, sequence) = (handle.publisher, handle.sequence);
        if let TakenByName::Here(held) = taken {
            return Ok(Found::Here(held));
        }
        let of_host = reader.seen().filter(|seen| seen.source_host == handle.source_host);
        // A handle with a later epoch than the latest seen may be of a new run's first message.
        let latest = of_host.max_by_key(|seen| seen.position).map(|seen| seen.host_epoch);
        if let Some(now) = latest.filter(|now| handle.host_epoch < *now) {
            let (topic, found) = (self.topic.clone(), handle.host_epoch);
            return Err(TakeByHandleError::EarlierRun { topic, sequence, found, now });
        }
        if self.is_early(&reader, handle) {
            return Err(TakeByHandleError::Early { topic: self.topic.clone(), publisher, sequence });
        }
        if let Some(now) = self.entry_generation(handle).filter(|now| *now != handle.generation) {
            let (topic, found) = (self.topic.clone(), handle.generation);
            return Err(TakeByHandleError::Stale { topic, publisher, sequence, found, now });
        }
        // A local publisher queues a message before it returns the handle, so a missing local message is gone.
        let is_local = handle.source_host == self.node.host();
        if is_local || matches!(taken, TakenByName::Passed) {
            return Err(TakeByHandleError::Gone { topic: self.topic.clone(), publisher, sequence });
        }
        Ok(Found::NotYet { newest: reader.seen_of(publisher).map_or(0, |seen| seen.name.sequence) })
    }

    /// Whether the message was published before this subscriber joined, within the number of handles that the middleware may have kept.
    fn is_early(&self, reader: &ReaderPort, handle: &MessageHandle) -> bool {
        let is_before = match reader.seen_of(handle.publisher) {
            Some(seen) => handle.sequence < seen.first,
            None => handle.topic_id == self.attachment.topic.0 && handle.position < reader.joined().0,
        };
        let depth = match reader.depth() {
            0 => EARLY_EACH_MAX, // keep-all
            depth => depth.min(EARLY_EACH_MAX),
        };
        is_before && self.early.lock().unwrap_or_else(PoisonError::into_inner).add(handle.publisher) <= depth
    }

    /// The present generation of the entry that the handle names, if the handle names this segment.
    fn entry_generation(&self, handle: &MessageHandle) -> Option<u32> {
        let attachment = &self.attachment;
        let index = u16::try_from(handle.entry).ok().filter(|_| handle.topic_id == attachment.topic.0)?;
        Some(attachment.segment.words(MessageIndex(index)).life()?.generation.0)
    }

    fn absent(&self) -> MutexGuard<'_, Absent> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
