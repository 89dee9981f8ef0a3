//! Subscribing: take messages that are ready. A taken message is read in place; dropping its sample releases it (`sample`).

use std::collections::HashMap;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use rgaps_control::{PublisherSlot, SubscriberSlot};
use rgaps_device::{DeviceError, PoolMemory, Stream};
use rgaps_os::{EventFd, clock};
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::message::Readiness;
use rgaps_shm::notify::{FutexWait, Wait};
use rgaps_shm::reader::TakeRefused;
use rgaps_shm::{Held, ReaderPort, SubscriberPages};

use crate::attachment::Attachment;
use crate::completions::{Completions, Releasing, StreamPoint};
use crate::node::{DEVICE_TIMEOUT, NodeError, NodeInner, READY_TICK, STREAM_TIMEOUT};
use crate::pools::{Call, OpenRequests};
use crate::sample::Sample;
use crate::statistics::SubscriberStatistics;
use crate::take_by_handle::{Absent, Early};
use crate::tasks::{self, Tasks};
use crate::types::{Meta, MetaError, ViewError};

/// Why a message could not be taken. The message is released, and the next take continues with the next message; after `Pool` it tries the same
/// message again.
///
/// Takes in order never return `OutOfBounds` or `Metadata`: they skip and count such messages (`SubscriberStatistics::malformed`) and log the
/// first. Only `take_by_handle` returns these errors.
#[derive(thiserror::Error)]
pub enum TakeError {
    /// The publisher's pool could not be mapped. The next take tries the same message again; it is lost only if the pool no longer exists.
    #[error("{topic}: the pool of publisher slot {slot} could not be mapped: {source}")]
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
    #[error("{topic}: message {sequence} was never completed: its publisher died, or its device failed")]
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
        "{topic}: {held} messages of one publisher are held, half of all that it can have; drop some before the next take"
    )]
    TooManyHeld {
        /// The topic.
        topic: String,
        /// Messages held.
        held: u32,
    },
    /// The subscriber has lost its slot: the manager died, and its successor did not take the slot back.
    #[error("{topic}: the subscriber was cut off from its topic: create it again")]
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

/// Takes messages of one type from one topic. Cheap to clone; every clone is the same subscriber.
///
/// ```no_run
/// use std::time::Duration;
/// use rgaps::types::Bytes;
///
/// let subscriber = rgaps::Node::new("logger")?.subscriber::<Bytes>("raw")?;
/// while let Some(sample) = subscriber.wait(Duration::from_secs(1))? {
///     println!("{} B", sample.bytes().len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Subscriber<T> {
    inner: Arc<SubscriberInner>,
    presence: Arc<Presence>,
    kind: PhantomData<fn() -> T>,
}

/// Shared by all clones of a `Subscriber`. The last clone closes the reader, while samples may keep `SubscriberInner` alive.
#[derive(Debug)]
struct Presence(Arc<SubscriberInner>);

impl Drop for Presence {
    fn drop(&mut self) {
        if self.0.node.is_owner() {
            self.0.reader().close();
        }
    }
}

impl<T> Clone for Subscriber<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), presence: self.presence.clone(), kind: PhantomData }
    }
}

#[derive(Debug)]
pub(crate) struct SubscriberInner {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) topic: String,
    pub(crate) attachment: Attachment<SubscriberSlot>,
    pub(crate) reader: Mutex<ReaderPort>,
    /// Outside the reader's lock, so that waiting threads can be woken while a take holds it.
    pub(crate) waiter: FutexWait,
    pub(crate) pages: Arc<SubscriberPages>,
    pub(crate) completions: Arc<Completions<Releasing>>,
    pub(crate) maintained: Arc<Maintained>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) open_requests: OpenRequests,
    pub(crate) absent: Mutex<Absent>,
    pub(crate) early: Mutex<Early>,
}

/// What the node's thread maintains for a subscriber.
#[derive(Debug, Default)]
pub(crate) struct Maintained {
    pub(crate) pools: Mutex<HashMap<PublisherSlot, Arc<dyn PoolMemory>>>,
    /// The eventfd, made when it is first needed. A hand-back brings it to the next manager.
    pub(crate) event: OnceLock<Arc<EventFd>>,
    /// Whether a manager has answered that it knows the eventfd.
    pub(crate) is_event_registered: AtomicBool,
    /// Whether a take skipped messages whose bytes a device still has to write. The device wakes no waiter when it has written them.
    pub(crate) awaits_bytes: AtomicBool,
}

impl Maintained {
    /// Makes the eventfd readable while there is no manager: publishers that do not know it can learn of it only from a manager.
    pub(crate) fn signal_while_there_is_no_manager(&self) {
        if let Some(event) = self.event.get() {
            let _ = event.signal();
        }
    }

    /// Makes the eventfd readable, so that its waiters take again. Returns true if this should be called again soon.
    pub(crate) fn signal_while_bytes_are_awaited(&self) -> bool {
        let Some(event) = self.event.get().filter(|_| self.awaits_bytes.load(Ordering::Acquire)) else { return false };
        let _ = event.signal();
        true
    }
}

impl TakeError {
    /// Whether the message itself is malformed, so that other messages are not affected.
    fn is_malformed(&self) -> bool {
        matches!(self, Self::OutOfBounds { .. } | Self::Metadata { .. })
    }
}

impl SubscriberInner {
    pub(crate) fn reader(&self) -> MutexGuard<'_, ReaderPort> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message: with `pending`, one whose bytes a stream will wait for; else one whose bytes are complete.
    pub(crate) fn next_held(&self, pending: bool) -> Result<Option<Held>, TakeError> {
        let mut reader = self.reader();
        let held = if pending { reader.take_pending() } else { reader.take() };
        let held = held.map_err(|refused| self.refused(refused))?;
        // A successful take did not look at later messages.
        self.note_awaited(reader.awaits_bytes(), held.is_none());
        Ok(held)
    }

    /// Counts a malformed message, and logs the first one.
    pub(crate) fn blame(&self, error: &TakeError) {
        if error.is_malformed() && self.reader().count_malformed() == 0 {
            tracing::warn!("{error}; it is skipped and counted, like every other malformed message from now on");
        }
    }

    pub(crate) fn refused(&self, refused: TakeRefused) -> TakeError {
        let topic = self.topic.clone();
        match refused {
            TakeRefused::CutOff(_) => TakeError::CutOff { topic },
            TakeRefused::TooManyHeld { held, .. } => TakeError::TooManyHeld { topic, held },
        }
    }

    /// Notes whether bytes are awaited. `of_all`: the take looked at all messages, so that `awaits == false` is conclusive.
    fn note_awaited(&self, awaits: bool, of_all: bool) {
        if !awaits && !of_all {
            return;
        }
        if self.maintained.awaits_bytes.swap(awaits, Ordering::AcqRel) != awaits && awaits {
            self.node.look_again();
        }
    }

    /// Releases a message after the stream's work so far and after the points `others` of other streams.
    pub(crate) fn release_on(
        &self,
        held: Option<Held>,
        pool: Arc<dyn PoolMemory>,
        stream: &Stream,
        mut others: Vec<StreamPoint>,
    ) -> Result<(), DeviceError> {
        // The node's thread polls the points that the stream cannot wait for.
        others.retain(|place| place.precedes(stream, DEVICE_TIMEOUT).is_err());
        let written = match held.as_ref().map(Held::release_word) {
            Some(word) if others.is_empty() => self.completions.write(stream, word),
            Some(_) => stream.check(),
            None => Ok(()),
        };
        // Even if the stream takes no write, its work so far is awaited before the message is released.
        self.completions.add_behind(stream, others, Releasing { _held: held, _pool: pool });
        written
    }
}

impl Drop for SubscriberInner {
    fn drop(&mut self) {
        // Until it is detached, the slot is handed back (`Member`). A stream that may still write keeps it until the process ends.
        if !self.node.is_owner() || self.completions.end(STREAM_TIMEOUT) {
            self.node.detach(&self.attachment);
        }
    }
}

impl<T: Meta> Subscriber<T> {
    pub(crate) fn inner(&self) -> &Arc<SubscriberInner> {
        &self.inner
    }

    pub(crate) fn new(inner: SubscriberInner) -> Self {
        let inner = Arc::new(inner);
        Self { presence: Arc::new(Presence(inner.clone())), inner, kind: PhantomData }
    }

    /// Takes the next message if one is ready. The call does not wait, unless the node's device has no peer access to the message: then it waits for
    /// a copy, at most 10 s.
    pub fn take(&self) -> Result<Option<Sample<T>>, TakeError> {
        self.take_next(|| self.next_held(false), |held| self.sample_of(held, None))
    }

    /// Takes the next message in stream order: its bytes may not be written yet, and later work of `stream` waits for them. The call does not wait
    /// for the device, whatever the size. (A device that cannot wait for a word in memory is the exception: the call then waits for the bytes, at
    /// most 10 s.)
    ///
    /// After synchronising the stream, `Sample::status` tells whether the bytes were written. Dropping the sample releases it after the work that
    /// the stream has by then.
    pub fn take_on(&self, stream: &Stream) -> Result<Option<Sample<T>>, TakeError> {
        self.check_stream(stream)?;
        self.take_next(|| self.next_held(true), |held| self.sample_of(held, Some(stream)))
    }

    /// Opens the next message, skipping malformed ones.
    pub(crate) fn take_next<M>(
        &self,
        next: impl Fn() -> Result<Option<Held>, TakeError>,
        open: impl Fn(Held) -> Result<M, TakeError>,
    ) -> Result<Option<M>, TakeError> {
        loop {
            let Some(held) = next()? else { return Ok(None) };
            match open(held) {
                Err(error) if error.is_malformed() => {}
                opened => return opened.map(Some),
            }
        }
    }

    /// Takes all messages that are ready, oldest first. An error ends the batch and is returned only if the batch is empty. An error that lasts
    /// (`TooManyHeld` while the batch is held) is therefore returned by the next call.
    pub fn take_all(&self) -> Result<Vec<Sample<T>>, TakeError> {
        let mut batch = Vec::new();
        loop {
            match self.take() {
                Ok(Some(sample)) => batch.push(sample),
                Err(error) if batch.is_empty() => return Err(error),
                Err(error) => {
                    tracing::debug!(taken = batch.len(), "a batch ends: {error}");
                    return Ok(batch);
                }
                Ok(None) => return Ok(batch),
            }
        }
    }

    /// Waits for the next message. Returns `None` if none arrives within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Sample<T>>, TakeError> {
        self.wait_unless(timeout, || false)
    }

    /// Like `wait`, and returns `None` also when there is no message and `is_over` returns true. `is_over` is called before each sleep;
    /// `wake_waiters` makes waiting threads call it again.
    pub fn wait_unless(&self, timeout: Duration, is_over: impl Fn() -> bool) -> Result<Option<Sample<T>>, TakeError> {
        self.check_attached()?;
        let deadline = Instant::now().checked_add(timeout);
        let mut waiter = self.inner.waiter.another();
        loop {
            waiter.arm().map_err(|source| self.wait_error(source))?;
            if let Some(sample) = self.take()? {
                waiter.disarm();
                return Ok(Some(sample));
            }
            let mut left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() || is_over() {
                waiter.disarm();
                return Ok(None);
            }
            if self.inner.maintained.awaits_bytes.load(Ordering::Acquire) {
                left = left.min(READY_TICK);
            }
            waiter.wait(left).map_err(|source| self.wait_error(source))?;
        }
    }

    /// Wakes the threads that wait on this subscriber. Each looks for a message again, and `wait_unless` calls its `is_over` again.
    pub fn wake_waiters(&self) {
        if self.inner.node.is_owner() {
            self.inner.waiter.wake_own();
        }
    }

    /// Waits for the next message in async code, with any runtime. The node's thread wakes all tasks that wait on this subscriber; a task that finds
    /// no message waits again. Cancelling a task loses no message. Polling never waits for the manager, and waits for the device only if the message
    /// must be copied for lack of peer access.
    ///
    /// ```no_run
    /// # use rgaps::{Subscriber, TakeError, types::Image};
    /// async fn display(subscriber: Subscriber<Image>) -> Result<(), TakeError> {
    ///     loop {
    ///         let sample = subscriber.next().await?;
    ///         println!("{} x {}", sample.meta().width, sample.meta().height);
    ///     }
    /// }
    /// ```
    pub async fn next(&self) -> Result<Sample<T>, TakeError> {
        let place = tasks::Enlistment::new(&self.inner.tasks, &self.inner.node, &self.inner.maintained.event);
        poll_fn(|context| {
            if let Some(Some(sample)) = self.poll_take()? {
                return Poll::Ready(Ok(sample));
            }
            // Enlist before looking again, so that any later message or answer wakes the task.
            place.enlist(context.waker());
            self.inner.event(Call::Polling).map_err(|source| self.event_error(source))?;
            let mut taken = self.poll_take()?;
            if let (Some(None), Some(event)) = (&taken, self.inner.maintained.event.get()) {
                // The next message waits for the manager's answer. Messages that come after it may take its place, so the eventfd is reset, to be
                // watched for them; the answer signals it again (`Ring`).
                event.drain().map_err(|source| self.wait_error(source))?;
                taken = self.poll_take()?;
            }
            if let Some(Some(sample)) = taken {
                return Poll::Ready(Ok(sample));
            }
            place.watch();
            Poll::Pending
        })
        .await
    }

    /// Like `take`, without waiting for the manager: `Some(None)` if the manager must answer first.
    fn poll_take(&self) -> Result<Option<Option<Sample<T>>>, TakeError> {
        self.take_next(
            || self.next_held(false),
            |held| match self.inner.memory_of(&held, Call::Polling) {
                Ok(Some(_)) => self.sample_of(held, None).map(Some),
                Ok(None) => {
                    self.inner.put_back_until_answered(held);
                    Ok(None)
                }
                Err(error) => Err(self.inner.not_opened(held, error)),
            },
        )
    }

    /// The number of messages, up to `limit`, that `take` would return now if each were dropped before the next take. Takes nothing. The count ends
    /// at a message for which `take` would return `TooManyHeld`.
    pub fn ready_count(&self, limit: usize) -> usize {
        if !self.inner.node.is_owner() {
            return 0;
        }
        let reader = self.inner.reader();
        let count = reader.ready_count(limit);
        // Like `take`: no wake-up follows when a device has written awaited bytes.
        self.inner.note_awaited(count.awaits_bytes, count.ready < limit);
        count.ready
    }

    /// An eventfd that is readable while a message may be ready, for epoll, select and wait sets. Do not read it. Call `take` until it returns
    /// `None`, which resets it.
    ///
    /// The first call requests it from the manager. From then on, each publication costs its publisher one system call for this subscriber.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, TakeError> {
        self.check_attached()?;
        match self.inner.event(Call::Blocking).map_err(|source| self.event_error(source))? {
            Some(event) => Ok(event.as_fd()),
            None => unreachable!("a blocking call waits for the answer"),
        }
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.inner.topic
    }

    /// Counters of this subscriber. All zero in a forked child, where the segment is not mapped.
    pub fn statistics(&self) -> SubscriberStatistics {
        if !self.inner.node.is_owner() {
            return SubscriberStatistics::default();
        }
        SubscriberStatistics::of(&self.inner.reader())
    }

    fn event_error(&self, source: NodeError) -> TakeError {
        // The manager may have died, and its successor may not have taken the slot back: that error says more.
        self.check_attached().err().unwrap_or_else(|| self.wait_error(std::io::Error::other(source)))
    }

    pub(crate) fn next_held(&self, pending: bool) -> Result<Option<Held>, TakeError> {
        self.check_attached()?;
        let held = self.inner.next_held(pending)?;
        let Some(event) = self.inner.maintained.event.get().filter(|_| held.is_none()) else { return Ok(held) };
        // Nothing left: reset the eventfd, then look once more for a message that arrived before the reset.
        event.drain().map_err(|source| self.wait_error(source))?;
        let looked = self.inner.next_held(pending);
        // More messages may have arrived before the reset, and other threads may sleep on the eventfd. It is readable until a take finds nothing.
        if !matches!(looked, Ok(None))
            && let Err(error) = event.signal()
        {
            tracing::warn!(topic = self.inner.topic, %error, "other waiting threads could not be woken; they wait until the next message");
        }
        looked
    }

    /// Opens a message for the node's device, with a copy if the device has no peer access. With a stream, the stream waits for the bytes.
    pub(crate) fn sample_of(&self, held: Held, stream: Option<&Stream>) -> Result<Sample<T>, TakeError> {
        let awaited = stream.filter(|_| held.readiness() == Readiness::Pending).map(|_| held.ready_word());
        let mut sample = self.open(held)?;
        sample.bring(awaited, stream).map_err(|source| self.device_error(source))?;
        sample.stream = stream.cloned();
        Ok(sample)
    }

    fn open(&self, held: Held) -> Result<Sample<T>, TakeError> {
        let info = *held.info();
        let (pool, offset) = match self.inner.memory_of(&held, Call::Blocking) {
            Ok(Some(found)) => found,
            Ok(None) => unreachable!("a blocking call waits for the answer"),
            Err(error) => return Err(self.inner.not_opened(held, error)),
        };
        let meta = self.meta_of(&held)?;
        let taken = clock::realtime_ns();
        let subscriber = self.inner.clone();
        let (message, held, fetched) = (held.message(), Some(held), OnceLock::new());
        Ok(Sample { meta, offset, taken, info, message, held, stream: None, copied: None, pool, subscriber, fetched })
    }

    pub(crate) fn meta_of(&self, held: &Held) -> Result<T, TakeError> {
        let info = held.info();
        let mut encoded = [0; META_BYTES_MAX];
        let meta_bytes = held.copy_meta(&mut encoded);
        let meta = T::decode(&encoded[..meta_bytes]).and_then(|meta| meta.check(info.bytes).map(|()| meta));
        let (topic, sequence) = (&self.inner.topic, info.sequence);
        let malformed = |source| TakeError::Metadata { topic: topic.clone(), sequence, source };
        meta.map_err(malformed).inspect_err(|error| self.inner.blame(error))
    }

    pub(crate) fn check_attached(&self) -> Result<(), TakeError> {
        match (self.inner.node.is_owner(), self.inner.attachment.is_cut_off()) {
            (false, _) => Err(TakeError::Forked { topic: self.inner.topic.clone() }),
            (_, true) => Err(TakeError::CutOff { topic: self.inner.topic.clone() }),
            _ => Ok(()),
        }
    }

    /// Checks the stream before a message is taken, so that a stream that takes no work costs no message.
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<(), TakeError> {
        self.check_attached()?;
        stream.check().map_err(|source| self.device_error(source))
    }

    pub(crate) fn device_error(&self, source: DeviceError) -> TakeError {
        TakeError::Device { topic: self.inner.topic.clone(), source }
    }

    pub(crate) fn wait_error(&self, source: std::io::Error) -> TakeError {
        TakeError::Wait { topic: self.inner.topic.clone(), source }
    }
}
