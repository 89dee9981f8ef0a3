//! A payload that does not change any more, and the subscriptions from which received ones are taken.
//!
//! Middleware hands descriptors to a subscription almost in order: samples of several publishers of a process, or of one that is resent, change places, and
//! several threads may take at once. So a take skips nothing; only what is `WINDOW` messages behind it is released.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rgaps::device::{DeviceError, PoolPart, Stream};
use rgaps::dlpack::DLDevice;
use rgaps::types::Bytes;
use rgaps::{
    FrozenBuffer, LoanError, MessageHandle, NodeError, PublishError, Publisher, Readiness, Sample, Subscriber,
    TakeByHandleError, TakeError,
};

use super::gid::{Gid, lock};
use super::joins::Join;
use super::lane::Lane;
use super::shared::{Shared, count, has_timed_out};

/// The longest payload that a descriptor can name: a serialized message has no more bytes.
pub(super) const BYTES_MAX: u64 = u32::MAX as u64;

/// How long a read waits for a payload that is later than its descriptor.
pub const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(1);

/// How many messages of a publisher may be taken before an older one of it, which the middleware has delayed.
const WINDOW: u64 = 64;

/// How many payloads that are later than their descriptors, and were dropped since, a subscription tries to take.
const COMING_MAX: usize = 64;

/// How many publishers are remembered by a subscription. Descriptors may name any.
const PUBLISHERS_KEPT: usize = 256;

/// Why a buffer cannot be allocated, written or read.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// The pool cannot be made.
    #[error("the pool for buffers cannot be made: {0}")]
    Pool(NodeError),
    /// The pool has no free block for so many bytes.
    #[error("the pool of this process's buffers: {source}; RGAPS_POOL_BYTES in its environment sets pool_bytes")]
    Full {
        /// What was missing.
        source: LoanError,
    },
    /// It cannot be filled or published.
    #[error(transparent)]
    Publish(PublishError),
    /// The device failed.
    #[error("the device failed while it worked on a buffer: {0}")]
    Device(#[from] DeviceError),
    /// The payload cannot be read.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The payload was dropped, was never completed, or its descriptor is invalid.
    #[error("the bytes of this message cannot be read: {0}")]
    Lost(String),
    /// It is published while it is written.
    #[error("a write of this message's bytes has not ended; destroy its handle before you publish the message")]
    BeingWritten,
    /// No message has so many bytes.
    #[error("{wanted} B are too many for a message; it has at most {} B", BYTES_MAX)]
    TooLong {
        /// Bytes of the caller.
        wanted: u64,
    },
    /// The caller's length differs from the buffer's.
    #[error("{found} B were given for a buffer of {wanted} B; pass all of them")]
    Length {
        /// Bytes of the caller.
        found: u64,
        /// Bytes of the buffer.
        wanted: u64,
    },
}

impl BufferError {
    /// The pool's topic is the core's own affair.
    pub(super) fn of_pool(error: PublishError) -> Self {
        match error {
            PublishError::NoSpace { source, .. } => Self::Full { source },
            other => Self::Publish(other),
        }
    }
}

/// A payload that does not change any more. Clones of a buffer share it.
#[derive(Debug)]
pub(super) struct Payload {
    of: Arc<Shared>,
    /// Of a received payload.
    handle: MessageHandle,
    /// What its message asks the subscription to join, and the process that asks; once it is taken.
    asks: Option<(u64, Join)>,
    source: Mutex<Source>,
    /// The last message of it on each topic.
    sent: Mutex<HashMap<Gid, Sent>>,
    /// Whether it cannot be read.
    is_lost: AtomicBool,
    /// Whether it is here: of this process, or taken, or known to be lost.
    has_come: AtomicBool,
    /// Whether somebody has waited for it in vain.
    was_awaited: AtomicBool,
    lane: Arc<Lane>,
}

/// A message of a payload.
#[derive(Debug)]
struct Sent {
    handle: MessageHandle,
    /// How many joins the process had noted by then.
    joins: u64,
    /// Which subscriptions have had it.
    had: HashSet<Gid>,
}

#[derive(Debug)]
enum Source {
    Own(FrozenBuffer),
    Taken(Box<Sample<Bytes>>),
    /// Its descriptor was here first, or its publisher's pool is not mapped yet.
    Coming(Arc<Receiver>),
    Lost(String),
    /// While it is dropped.
    Gone,
}

impl Payload {
    /// Of a block of the process's own pool, filled by the work of its lane.
    pub(super) fn own(of: Arc<Shared>, block: FrozenBuffer, lane: Arc<Lane>) -> Self {
        Self::new(of, MessageHandle::default(), None, Source::Own(block), lane)
    }

    /// Of a message that a descriptor names.
    pub(super) fn received(
        of: Arc<Shared>,
        handle: MessageHandle,
        asks: Option<(u64, Join)>,
        receiver: &Arc<Receiver>,
        lane: Arc<Lane>,
    ) -> Arc<Self> {
        receiver.forget_dropped(&handle);
        receiver.take_coming();
        let payload = Arc::new(Self::new(of, handle, asks, Source::Coming(receiver.clone()), lane));
        receiver.expect(handle, &payload);
        // Otherwise the first read takes it, or the next message of the subscription.
        if !payload.is_still_to_come() {
            receiver.forget(&handle);
        }
        payload
    }

    fn new(of: Arc<Shared>, handle: MessageHandle, asks: Option<(u64, Join)>, source: Source, lane: Arc<Lane>) -> Self {
        let has_come = AtomicBool::new(!matches!(source, Source::Coming(_)));
        let (source, sent) = (Mutex::new(source), Mutex::default());
        Self {
            of,
            handle,
            asks,
            source,
            sent,
            is_lost: AtomicBool::new(false),
            has_come,
            was_awaited: AtomicBool::new(false),
            lane,
        }
    }

    /// Whether it cannot be read. Does not wait for a read that waits.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether it is in the process's own pool.
    pub(super) fn is_own(&self) -> bool {
        matches!(*lock(&self.source), Source::Own(_))
    }

    /// Publishes it on a topic, for one of the subscriptions that read this topic. These share one message. It is published again only if `subscription` has had
    /// it, or joined the topic after that publication. `joined`: how many joins this process had noted when it joined.
    pub(super) fn publish_for(
        &self,
        topic: Gid,
        subscription: Gid,
        joined: u64,
        publisher: &Publisher<Bytes>,
    ) -> Result<MessageHandle, BufferError> {
        let mut sent = lock(&self.sent);
        if let Some(last) = sent.get_mut(&topic)
            && last.joins >= joined
            && last.had.insert(subscription)
        {
            return Ok(last.handle);
        }
        let source = lock(&self.source);
        let Source::Own(block) = &*source else { return Err(BufferError::Lost("it is not in this pool".to_owned())) };
        let meta = Bytes::new(block.len() as u64);
        // Before the publication: one that joins meanwhile may not have got it.
        let joins = self.of.joins_noted.load(Ordering::Acquire);
        let handle = publisher.publish_buffer_on(&meta, block, self.lane().stream()).map_err(BufferError::Publish)?;
        sent.insert(topic, Sent { handle, joins, had: HashSet::from([subscription]) });
        Ok(handle)
    }

    /// The address for reads by work of `stream`, which follows the work that fills it, and the device that has it.
    pub(super) fn read_on(&self, stream: Option<&Stream>) -> Result<(u64, DLDevice), BufferError> {
        let place = self.with_source(|source| match source {
            Source::Own(block) => Ok(block.device_range().map_err(BufferError::Publish)?),
            Source::Taken(sample) => Ok(sample.device_range()?),
            _ => Err(still_to_come()),
        })?;
        match stream {
            Some(stream) => self.lane().delay_stream(stream)?,
            None => {
                self.lane().synchronize()?;
                self.check_completed()?;
            }
        }
        Ok((place.address, place.device))
    }

    /// Passes its bytes as the source of a copy, which becomes a payload of its own. So they must be there: the copy cannot tell later that its original
    /// was never completed.
    pub(super) fn with_part<R>(
        &self,
        copy: impl FnOnce(PoolPart<'_>) -> Result<R, BufferError>,
    ) -> Result<R, BufferError> {
        self.arrive()?;
        if self.readiness() == Readiness::Pending {
            self.lane().synchronize()?;
            self.check_completed()?;
        }
        self.with_source(|source| match source {
            Source::Own(block) => copy(block.part().map_err(BufferError::Publish)?),
            Source::Taken(sample) => copy(sample.part()?),
            _ => Err(still_to_come()),
        })
    }

    fn readiness(&self) -> Readiness {
        match &*lock(&self.source) {
            Source::Taken(sample) => sample.readiness(),
            _ => Readiness::Ready,
        }
    }

    /// An error if its publisher died, or its device failed, before the bytes were complete.
    fn check_completed(&self) -> Result<(), BufferError> {
        if self.readiness() != Readiness::Poisoned {
            return Ok(());
        }
        let MessageHandle { publisher, sequence, .. } = self.handle;
        Err(BufferError::Lost(format!(
            "message {sequence} of publisher {publisher:#x} was never completed: its publisher died, or its device failed"
        )))
    }

    pub(super) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Takes it if it is still to come and is here within `timeout`.
    fn come_within(&self, timeout: Duration) -> Result<(), BufferError> {
        self.take_within(&mut lock(&self.source), timeout)
    }

    fn take_within(&self, source: &mut Source, timeout: Duration) -> Result<(), BufferError> {
        if let Source::Coming(receiver) = &*source {
            *source = receiver.clone().take(&self.handle, timeout, self.lane())?;
            self.has_come.store(!matches!(*source, Source::Coming(_)), Ordering::Relaxed);
            match *source {
                Source::Lost(_) => {
                    self.is_lost.store(true, Ordering::Relaxed);
                    count(&self.of.counters.refused);
                }
                Source::Taken(_) => self.asks.into_iter().for_each(|asks| self.of.note_asked(asks)),
                _ => {}
            }
        }
        match &*source {
            Source::Lost(why) => Err(BufferError::Lost(why.clone())),
            _ => Ok(()),
        }
    }

    /// Whether it is still to come, after a try to take it; also if somebody waits for it.
    fn is_still_to_come(&self) -> bool {
        let Ok(mut source) = self.source.try_lock() else { return true };
        let _ = self.take_within(&mut source, Duration::ZERO);
        matches!(*source, Source::Coming(_))
    }

    /// Takes the payload if it is still to come. An error if it cannot be read, or not now.
    pub(super) fn arrive(&self) -> Result<(), BufferError> {
        self.come_within(ARRIVAL_TIMEOUT)?;
        self.check_completed()
    }

    /// As `arrive`, for a publication, of which there is one for each subscription. Waits only if that was not in vain before: for this payload, or a moment
    /// ago for the manager.
    pub(super) fn arrive_to_publish(&self) -> Result<(), BufferError> {
        let may_wait = !self.was_awaited.load(Ordering::Relaxed) && !self.of.is_manager_silent();
        if !may_wait && !self.has_come.load(Ordering::Relaxed) && self.is_still_to_come() {
            return Err(still_to_come());
        }
        self.arrive().inspect_err(|error| {
            self.was_awaited.store(true, Ordering::Relaxed);
            if matches!(error, BufferError::Take(TakeError::Pool { source, .. }) if has_timed_out(source)) {
                self.of.note_silence();
            }
        })
    }

    fn with_source<R>(&self, body: impl FnOnce(&Source) -> Result<R, BufferError>) -> Result<R, BufferError> {
        self.arrive()?;
        body(&lock(&self.source))
    }

    pub(super) fn copy_out(&self, to: &mut [u8]) -> Result<(), BufferError> {
        let device = self.of.node.device();
        self.with_part(|part| Ok(device.copy_out(self.lane().stream(), part, to)?))?;
        self.check_completed()
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        match std::mem::replace(&mut *lock(&self.source), Source::Gone) {
            // It is released after the work of the lane, in which it was taken.
            Source::Taken(sample) => drop(sample),
            // Nobody reads it. If it is here, it must not wait for the subscription's next message, which may never come.
            Source::Coming(receiver) => {
                if !receiver.is_wanted(&self.handle) && receiver.release(&self.handle) {
                    receiver.forget_dropped(&self.handle);
                }
            }
            other => self.lane.keep(other),
        }
    }
}

/// A subscription of this process, at the topic of it or of another one.
#[derive(Debug)]
pub(super) struct Receiver {
    subscriber: Subscriber<Bytes>,
    /// Of each publisher: the newest sequence number that was taken. What is `WINDOW` before it is released.
    newest: Mutex<HashMap<u64, u64>>,
    /// What was not there when its descriptor was, oldest first. The next take tries again, also for what was dropped since.
    coming: Mutex<Vec<(MessageHandle, Weak<Payload>)>>,
    /// Bytes of the largest payload that was taken.
    largest: AtomicU64,
}

impl Receiver {
    pub(super) fn new(subscriber: Subscriber<Bytes>) -> Self {
        let (newest, coming, largest) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Self { subscriber, newest, coming, largest }
    }

    /// Whether the core has taken its topic away. It takes nothing any more.
    pub(super) fn is_cut_off(&self) -> bool {
        self.subscriber.is_cut_off()
    }

    /// Bytes of the largest payload that was taken.
    pub(super) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Relaxed)
    }

    fn expect(&self, handle: MessageHandle, payload: &Arc<Payload>) {
        let mut coming = lock(&self.coming);
        let mut dropped = coming.iter().filter(|(_, payload)| payload.strong_count() == 0).count();
        coming.retain(|(_, payload)| {
            let is_surplus = payload.strong_count() == 0 && dropped > COMING_MAX;
            dropped -= usize::from(is_surplus);
            !is_surplus
        });
        coming.push((handle, Arc::downgrade(payload)));
    }

    fn forget(&self, handle: &MessageHandle) {
        lock(&self.coming).retain(|(of, _)| of != handle);
    }

    /// Forgets what named this message earlier and was dropped: it is for the one who asks now.
    fn forget_dropped(&self, handle: &MessageHandle) {
        let names_it = |of: &MessageHandle| (of.publisher, of.sequence) == (handle.publisher, handle.sequence);
        lock(&self.coming).retain(|(of, payload)| payload.strong_count() > 0 || !names_it(of));
    }

    /// Whether another payload that still lives is to take this message: its descriptor came twice.
    fn is_wanted(&self, handle: &MessageHandle) -> bool {
        let names_it = |of: &MessageHandle| (of.publisher, of.sequence) == (handle.publisher, handle.sequence);
        lock(&self.coming).iter().any(|(of, payload)| names_it(of) && payload.strong_count() > 0)
    }

    fn is_expected(&self, publisher: u64, sequence: u64) -> bool {
        lock(&self.coming).iter().any(|(of, _)| (of.publisher, of.sequence) == (publisher, sequence))
    }

    /// Takes what has come since its descriptor.
    fn take_coming(&self) {
        let coming = lock(&self.coming).clone();
        for (handle, payload) in coming {
            let is_done = match payload.upgrade() {
                Some(payload) => !payload.is_still_to_come(),
                // Its own descriptor may be still to come, if this one was forged.
                None => self.newest_of(handle.publisher) > handle.sequence && self.release(&handle),
            };
            if is_done {
                self.forget(&handle);
            }
        }
    }

    fn newest_of(&self, publisher: u64) -> u64 {
        lock(&self.newest).get(&publisher).copied().unwrap_or(0)
    }

    /// Releases a message that nobody reads. False if that may succeed later.
    fn release(&self, handle: &MessageHandle) -> bool {
        self.subscriber.skip_by_handle(handle).unwrap_or_else(|error| !may_still_be_taken(&error))
    }

    /// One take. `Coming` if it needs more time than there is; an error if that was not 0, and the payload may come later.
    fn take(self: Arc<Self>, handle: &MessageHandle, timeout: Duration, lane: &Lane) -> Result<Source, BufferError> {
        let taken = match timeout.is_zero() {
            true => self.subscriber.try_take_by_handle_on(handle, lane.stream()),
            false => self.subscriber.take_by_handle_on(handle, timeout, lane.stream()).map(Some),
        };
        match taken {
            Ok(Some(sample)) if sample.info().bytes == handle.payload_bytes => {
                self.largest.fetch_max(handle.payload_bytes, Ordering::Relaxed);
                self.release_older(handle);
                Ok(Source::Taken(Box::new(sample)))
            }
            Ok(Some(sample)) => {
                let (found, wanted) = (sample.info().bytes, handle.payload_bytes);
                Ok(Source::Lost(format!("its descriptor names {wanted} B, but the payload has {found} B")))
            }
            Ok(None) => Ok(Source::Coming(self)),
            Err(error) if !may_still_be_taken(&error) => Ok(Source::Lost(error.to_string())),
            Err(_) if timeout.is_zero() => Ok(Source::Coming(self)),
            Err(TakeByHandleError::Take(error)) => Err(error.into()),
            Err(error) => Err(BufferError::Lost(error.to_string())),
        }
    }

    /// Releases what the middleware has dropped: messages of the publisher that are `WINDOW` behind.
    fn release_older(&self, handle: &MessageHandle) {
        let mut all = lock(&self.newest);
        if all.len() > PUBLISHERS_KEPT {
            all.clear();
        }
        let newest = all.entry(handle.publisher).or_insert(0);
        let before = std::mem::replace(newest, handle.sequence.max(*newest));
        let end = newest.saturating_sub(WINDOW);
        let begin = before.saturating_sub(WINDOW).max(end.saturating_sub(WINDOW));
        drop(all);
        for sequence in (begin + 1..=end).filter(|sequence| !self.is_expected(handle.publisher, *sequence)) {
            // Most of them were taken.
            self.release(&MessageHandle { sequence, ..*handle });
        }
    }
}

/// Whether a later take of the same message may succeed.
fn may_still_be_taken(error: &TakeByHandleError) -> bool {
    match error {
        TakeByHandleError::NotHere { .. } => true,
        TakeByHandleError::Take(error) => matches!(
            error,
            TakeError::Pool { .. } | TakeError::TooManyHeld { .. } | TakeError::Device { .. } | TakeError::Wait { .. }
        ),
        _ => false,
    }
}

fn still_to_come() -> BufferError {
    BufferError::Lost("they have not arrived yet".to_owned())
}
