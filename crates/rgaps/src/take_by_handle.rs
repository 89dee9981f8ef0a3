//! Taking the message that a handle names.
//!
//! Trusts      nothing in a handle: it may be of another run, another topic or another kind, replayed or made up. What decides is whether the
//!             subscriber's own slot has, or gets, a message of that name.
//!
//! Bounds      A handle that can name nothing any more is refused at once. One that may still come is waited for, once a publisher: a publisher
//!             of whom nothing came within a time-out is not waited for again until something has, be it another message.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_device::{DeviceError, Stream, StreamWord};
use rgaps_shm::message::Readiness;
use rgaps_shm::notify::Wait;
use rgaps_shm::queue::MessageIndex;
use rgaps_shm::sightings::TakenByName;
use rgaps_shm::{Held, ReaderPort};

use crate::dynamic::Kind;
use crate::handle::Handle;
use crate::sample::Sample;
use crate::subscriber::{Subscriber, TakeError};
use crate::types::Meta;

/// How often who waits is asked whether it still wants to.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Publishers remembered of whom nothing came.
const ABSENT_MAX: usize = 16;
/// Publishers remembered of whom messages were taken by handle that came too early.
const EARLY_MAX: usize = 64;
/// Of each of them so many at most.
const EARLY_EACH_MAX: u64 = 64;

/// A handle names no message that this subscriber can have. Nothing else is lost.
#[derive(thiserror::Error)]
pub enum TakeByHandleError {
    /// It is of another version of RGAPS, or no handle.
    #[error(
        "{topic}: a descriptor has layout version {found}, this program speaks {}; was it filled by RGAPS?",
        Handle::LAYOUT_VERSION
    )]
    Layout {
        /// The topic.
        topic: String,
        /// Its version.
        found: u32,
    },
    /// It names another kind of message.
    #[error("{topic}: a descriptor of kind {found} on a topic of {wanted}")]
    Kind {
        /// The topic.
        topic: String,
        /// Its kind, by code.
        found: u32,
        /// The topic's.
        wanted: Kind,
    },
    /// Its host has been started anew since.
    #[error(
        "{topic}: a descriptor of message {sequence} is of an earlier run: its host came to life at {found} ns, and runs since {now} ns now; a \
         replayed descriptor names no memory, record and play the pictures instead (rgaps_ros converter)"
    )]
    AnotherRun {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// The handle's epoch, in ns since 1970.
        found: u64,
        /// The host's.
        now: u64,
    },
    /// Everybody has released it, and its entry has another message.
    #[error(
        "{topic}: message {sequence} of publisher {publisher:#x} is over: its entry is in generation {now}, the descriptor is of {found}; take \
         earlier, or raise the subscription's depth"
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
        /// The entry's.
        now: u32,
    },
    /// It was published before the subscriber was there, which is said of as many of a publisher as the subscriber is deep (64 at most): whoever
    /// passes descriptors on may have kept so many. More than those are replayed, and `Gone`.
    #[error("{topic}: message {sequence} of publisher {publisher:#x} was published before this subscriber was there")]
    Early {
        /// The topic.
        topic: String,
        /// The publisher.
        publisher: u64,
        /// Its count.
        sequence: u64,
    },
    /// This subscriber does not have it and will not get it.
    #[error(
        "{topic}: message {sequence} of publisher {publisher:#x} is not this subscriber's: it was taken before, was published before the \
         subscription, or was lost to a depth that is too small; or its descriptor is replayed, or of another topic"
    )]
    Gone {
        /// The topic.
        topic: String,
        /// The publisher.
        publisher: u64,
        /// Its count.
        sequence: u64,
    },
    /// It has not come.
    #[error(
        "{topic}: message {sequence} of publisher {publisher:#x} has not come within {waited_ms} ms: its descriptor is replayed, or the hosts' \
         managers do not reach each other (rgaps topic info)"
    )]
    NotHere {
        /// The topic.
        topic: String,
        /// The publisher.
        publisher: u64,
        /// Its count.
        sequence: u64,
        /// How long it was waited for.
        waited_ms: u128,
    },
    /// It is here and cannot be read.
    #[error(transparent)]
    Take(#[from] TakeError),
}

/// Publishers of whom nothing came, each with the newest message that had been seen of it by then (0 for none); the most recent first.
#[derive(Debug, Default)]
pub(crate) struct Absent(VecDeque<(u64, u64)>);

impl Absent {
    fn add(&mut self, publisher: u64, newest: u64) {
        self.0.retain(|(known, _)| *known != publisher);
        self.0.push_front((publisher, newest));
        self.0.truncate(ABSENT_MAX);
    }

    /// Whether nothing has come since, the message that was waited for or another one.
    fn has(&self, publisher: u64, newest: u64) -> bool {
        self.0.contains(&(publisher, newest))
    }
}

/// What a look for a message found.
enum Found {
    Here(Held),
    /// It may come still. The newest message that was seen of its publisher, 0 for none.
    NotYet {
        newest: u64,
    },
}

/// How many messages of a publisher were taken by handle that were published before the subscriber was there; the most recent first.
#[derive(Debug, Default)]
pub(crate) struct Early(VecDeque<(u64, u64)>);

impl Early {
    fn add(&mut self, publisher: u64) -> u64 {
        let place = self.0.iter().position(|(known, _)| *known == publisher);
        let count = place.and_then(|place| self.0.remove(place)).map_or(0, |(_, count)| count) + 1;
        self.0.push_front((publisher, count));
        self.0.truncate(EARLY_MAX);
        count
    }
}

impl<T: Meta> Subscriber<T> {
    /// From now on takes by handle come in the order in which each publisher has published, as those of descriptors do that one thread handles: what lies
    /// before a message that is taken, of its publisher, is released and does not wait on. It counts as lost, but for what came before the first take by handle
    /// of that publisher.
    pub fn expect_handles_in_order(&self) {
        if self.inner().node.is_owner() {
            self.inner().reader().expect_handles_in_order();
        }
    }

    /// The message that `handle` names, with its bytes there; waits at most `timeout` for it to come. Messages before it stay as if they had not
    /// been read, for takes by handle in another order and for `take`; of a keep-all subscriber, the newest 64 of them.
    pub fn take_by_handle(&self, handle: &Handle, timeout: Duration) -> Result<Sample<T>, TakeByHandleError> {
        self.take_by_handle_unless(handle, timeout, None, || false)
    }

    /// As `take_by_handle`, for a stream: later work of `stream` waits for the bytes, as for `take_on`.
    pub fn take_by_handle_on(
        &self,
        handle: &Handle,
        timeout: Duration,
        stream: &Stream,
    ) -> Result<Sample<T>, TakeByHandleError> {
        self.take_by_handle_unless(handle, timeout, Some(stream), || false)
    }

    /// As `take_by_handle`, or as `take_by_handle_on` with a stream, until `is_over` says so: it is asked ten times a second while the message has not come, or its
    /// bytes have not (then it is released), and the answer is `NotHere` then. `wake_waiters` has it asked at once.
    pub fn take_by_handle_unless(
        &self,
        handle: &Handle,
        timeout: Duration,
        stream: Option<&Stream>,
        is_over: impl Fn() -> bool,
    ) -> Result<Sample<T>, TakeByHandleError> {
        let deadline = Instant::now().checked_add(timeout);
        stream.map_or(Ok(()), |stream| self.check_stream(stream))?;
        let held = self.hold_by_handle(handle, timeout, &is_over)?;
        if stream.is_some() {
            return Ok(self.sample_of(held, stream)?);
        }
        while held.readiness() == Readiness::Pending {
            let (offset, value) = held.ready_word();
            let words = self.inner().completions.ready_words().map_err(|source| self.device_error(source))?;
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
            return Err(TakeError::Poisoned { topic: self.topic().to_owned(), sequence: handle.sequence }.into());
        }
        Ok(self.sample_of(held, None)?)
    }

    fn hold_by_handle(
        &self,
        handle: &Handle,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<Held, TakeByHandleError> {
        self.check_attached()?;
        self.check_handle(handle)?;
        let deadline = Instant::now().checked_add(timeout);
        let mut waiter = self.inner().reader().waiter();
        loop {
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
                // Who did not wait has not waited in vain.
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

    fn not_here(&self, handle: &Handle, timeout: Duration) -> TakeByHandleError {
        let (publisher, sequence, waited_ms) = (handle.publisher, handle.sequence, timeout.as_millis());
        TakeByHandleError::NotHere { topic: self.topic().to_owned(), publisher, sequence, waited_ms }
    }

    /// What can be said without looking for the message.
    fn check_handle(&self, handle: &Handle) -> Result<(), TakeByHandleError> {
        let topic = || self.topic().to_owned();
        if handle.layout_version != Handle::LAYOUT_VERSION {
            return Err(TakeByHandleError::Layout { topic: topic(), found: handle.layout_version });
        }
        if handle.kind != T::KIND {
            let wanted = Kind::from_code(T::KIND).unwrap_or(Kind::Bytes);
            return Err(TakeByHandleError::Kind { topic: topic(), found: handle.kind, wanted });
        }
        let node = &self.inner().node;
        if handle.source_host == node.host() && handle.host_epoch != node.host_epoch() {
            let (sequence, found, now) = (handle.sequence, handle.host_epoch, node.host_epoch());
            return Err(TakeByHandleError::AnotherRun { topic: topic(), sequence, found, now });
        }
        Ok(())
    }

    fn find(&self, handle: &Handle) -> Result<Found, TakeByHandleError> {
        let mut reader = self.inner().reader();
        let taken = reader.take_by_name(handle.name()).map_err(|refused| self.inner().refused(refused))?;
        let (publisher, sequence) = (handle.publisher, handle.sequence);
        if let TakenByName::Here(held) = taken {
            return Ok(Found::Here(held));
        }
        let of_host = reader.seen().filter(|seen| seen.source_host == handle.source_host);
        // Of a later run than any that was seen, it may be the first one of that.
        let latest = of_host.max_by_key(|seen| seen.position).map(|seen| seen.host_epoch);
        if let Some(now) = latest.filter(|now| handle.host_epoch < *now) {
            let (topic, found) = (self.topic().to_owned(), handle.host_epoch);
            return Err(TakeByHandleError::AnotherRun { topic, sequence, found, now });
        }
        if self.is_early(&reader, handle) {
            return Err(TakeByHandleError::Early { topic: self.topic().to_owned(), publisher, sequence });
        }
        if let Some(now) = self.entry_generation(handle).filter(|now| *now != handle.generation) {
            let (topic, found) = (self.topic().to_owned(), handle.generation);
            return Err(TakeByHandleError::Stale { topic, publisher, sequence, found, now });
        }
        // What is published on this host is in the queue before anybody has its handle.
        let is_local = handle.source_host == self.inner().node.host();
        if is_local || matches!(taken, TakenByName::Passed) {
            return Err(TakeByHandleError::Gone { topic: self.topic().to_owned(), publisher, sequence });
        }
        let mut seen = reader.seen().filter(|seen| seen.name.publisher == publisher);
        Ok(Found::NotYet { newest: seen.next().map_or(0, |seen| seen.name.sequence) })
    }

    /// Whether it is one of those before this subscriber that may still be on their way to it.
    fn is_early(&self, reader: &ReaderPort, handle: &Handle) -> bool {
        let is_before = match reader.seen().find(|seen| seen.name.publisher == handle.publisher) {
            Some(seen) => handle.sequence < seen.first,
            None => handle.topic_id == self.inner().attachment.topic.0 && handle.position < reader.joined().0,
        };
        let depth = match reader.depth() {
            0 => EARLY_EACH_MAX, // keep-all
            depth => depth.min(EARLY_EACH_MAX),
        };
        is_before && self.inner().early.lock().unwrap_or_else(PoisonError::into_inner).add(handle.publisher) <= depth
    }

    /// Which life the entry is in that the handle names, if it names one of this segment.
    fn entry_generation(&self, handle: &Handle) -> Option<u32> {
        let attachment = &self.inner().attachment;
        let index = u16::try_from(handle.slot).ok().filter(|_| handle.topic_id == attachment.topic.0)?;
        Some(attachment.segment.words(MessageIndex(index)).life()?.generation.0)
    }

    fn absent(&self) -> MutexGuard<'_, Absent> {
        self.inner().absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
