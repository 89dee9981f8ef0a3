//! Subscribing: take what is ready. What was taken is read where it lies, and dropped to release it (`sample`).

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
use crate::pools::{Asked, Call};
use crate::sample::Sample;
use crate::statistics::SubscriberStatistics;
use crate::take_by_handle::{Absent, Early};
use crate::tasks::{self, Tasks};
use crate::types::{Meta, MetaError, ViewError};

/// A message could not be taken. It is released, and the next take goes on with the next message, unless its pool cannot be mapped now.
///
/// Who takes what comes next never gets `OutOfBounds` and `Metadata`: such messages are counted (`SubscriberStatistics::malformed`), the first
/// is named in the log, and what comes behind them is taken. Who asks for one message (`take_by_handle`) is told of it.
#[derive(thiserror::Error)]
pub enum TakeError {
    /// The publisher's pool could not be mapped. The message is the next one to be taken; it is lost only where nobody has the pool any more.
    #[error("{topic}: the pool of publisher slot {slot} could not be mapped: {source}")]
    Pool {
        /// The topic.
        topic: String,
        /// The publisher slot.
        slot: u16,
        /// Why.
        source: NodeError,
    },
    /// A message names bytes outside its pool: its publisher lied, or the segment was tampered with.
    #[error("{topic}: message {sequence} lies at {offset} + {bytes} B, outside its pool; it is dropped")]
    OutOfBounds {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// Offset taken.
        offset: u64,
        /// Length taken.
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
    /// The device refused or failed.
    #[error("{topic}: {source}")]
    Device {
        /// The topic.
        topic: String,
        /// What happened.
        source: DeviceError,
    },
    /// The bytes never came: the message's producer died, or its device failed.
    #[error("{topic}: message {sequence} was never completed: its producer died, or its device failed")]
    Poisoned {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
    },
    /// The payload cannot be seen as asked; unless the sample was consumed, it is as good as before.
    #[error("{topic}: message {sequence}: {source}")]
    View {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// Why not.
        source: ViewError,
    },
    /// The wait itself failed.
    #[error("{topic}: waiting failed: {source}")]
    Wait {
        /// The topic.
        topic: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The subscriber holds half of what a publisher can have, and the others would have to go without. Nothing is lost.
    #[error(
        "{topic}: {held} messages of one publisher are held, which is half of all that it has; drop some before the next take"
    )]
    TooManyHeld {
        /// The topic.
        topic: String,
        /// How many.
        held: u32,
    },
    /// The subscriber has lost its place in the topic: the manager that followed one that died did not take its slot back.
    #[error("{topic}: the subscriber was cut off from its topic: make it anew")]
    CutOff {
        /// The topic.
        topic: String,
    },
    /// This process was forked from the one that made the subscriber.
    #[error("{topic}: the subscriber belongs to the parent process; make a node after fork")]
    Forked {
        /// The topic.
        topic: String,
    },
}

/// Takes messages of one type from one topic. Cheap to clone; every clone is the same subscriber.
#[derive(Debug)]
pub struct Subscriber<T> {
    inner: Arc<SubscriberInner>,
    presence: Arc<Presence>,
    kind: PhantomData<fn() -> T>,
}

/// That there is somebody who takes: samples, which have the inner part too, outlive it.
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
    /// Apart from the reader, so that its waiters can be woken while it is in use.
    pub(crate) waiter: FutexWait,
    pub(crate) pages: Arc<SubscriberPages>,
    pub(crate) completions: Arc<Completions<Releasing>>,
    pub(crate) tended: Arc<Tended>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) asked: Asked,
    pub(crate) absent: Mutex<Absent>,
    pub(crate) early: Mutex<Early>,
}

/// What the node's thread looks after for a subscriber.
#[derive(Debug, Default)]
pub(crate) struct Tended {
    pub(crate) pools: Mutex<HashMap<PublisherSlot, Arc<dyn PoolMemory>>>,
    pub(crate) event: OnceLock<Arc<EventFd>>,
    /// Messages were passed by whose bytes a device has still to bring; it rings nobody when it has.
    pub(crate) awaits_bytes: AtomicBool,
}

impl Tended {
    /// Who sleeps on the descriptor looks again. True if this should be called again soon.
    pub(crate) fn ring_while_bytes_are_awaited(&self) -> bool {
        let Some(event) = self.event.get().filter(|_| self.awaits_bytes.load(Ordering::Acquire)) else { return false };
        let _ = event.signal();
        true
    }
}

impl TakeError {
    /// Whether the message itself is to blame, and no other will meet the same.
    fn is_malformed(&self) -> bool {
        matches!(self, Self::OutOfBounds { .. } | Self::Metadata { .. })
    }
}

impl SubscriberInner {
    pub(crate) fn reader(&self) -> MutexGuard<'_, ReaderPort> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message: for a stream that waits for its bytes, or with its bytes there.
    pub(crate) fn next_held(&self, pending: bool) -> Result<Option<Held>, TakeError> {
        let mut reader = self.reader();
        let held = if pending { reader.take_pending() } else { reader.take() };
        let held = held.map_err(|refused| self.refused(refused))?;
        // What lies behind a message that is given out was not looked at.
        self.note_awaited(reader.awaits_bytes(), held.is_none());
        Ok(held)
    }

    /// A message cannot be taken: if it is to blame itself, it is counted, and the first one is named.
    pub(crate) fn blame(&self, error: &TakeError) {
        if error.is_malformed() && self.reader().count_malformed() == 0 {
            tracing::warn!("{error}; it is passed by, and so is every other one like it, counted");
        }
    }

    pub(crate) fn refused(&self, refused: TakeRefused) -> TakeError {
        let topic = self.topic.clone();
        match refused {
            TakeRefused::CutOff(_) => TakeError::CutOff { topic },
            TakeRefused::TooManyHeld { held, .. } => TakeError::TooManyHeld { topic, held },
        }
    }

    /// Whether bytes are awaited, of all that is there or of what was seen of it.
    fn note_awaited(&self, awaits: bool, of_all: bool) {
        if !awaits && !of_all {
            return;
        }
        if self.tended.awaits_bytes.swap(awaits, Ordering::AcqRel) != awaits && awaits {
            self.node.look_again();
        }
    }

    /// Lets a message go once a stream has done the work that it was given so far, and these places of others have been reached.
    pub(crate) fn release_on(
        &self,
        held: Option<Held>,
        pool: Arc<dyn PoolMemory>,
        stream: &Stream,
        mut others: Vec<StreamPoint>,
    ) -> Result<(), DeviceError> {
        // Those that the stream cannot wait for are looked at by the node.
        others.retain(|place| place.precedes(stream, DEVICE_TIMEOUT).is_err());
        let written = match held.as_ref().map(Held::release_word) {
            Some(word) if others.is_empty() => self.completions.write(stream, word),
            Some(_) => stream.check(),
            None => Ok(()),
        };
        // A stream that cannot be told is followed all the same: the message is released behind its work.
        self.completions.add_behind(stream, others, Releasing { _held: held, _pool: pool });
        written
    }
}

impl Drop for SubscriberInner {
    fn drop(&mut self) {
        // A stream that may still write into the segment keeps the slot until the process ends.
        if !self.node.is_owner() || self.completions.end(STREAM_TIMEOUT) {
            self.node.detach(&self.attachment);
        } else {
            self.node.keep(&self.attachment, ());
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

    /// The next message if one is ready. The call does not wait, unless the node's device does not reach the message: then for a copy of it,
    /// at most 10 s.
    pub fn take(&self) -> Result<Option<Sample<T>>, TakeError> {
        self.take_next(|| self.next_held(false), |held| self.sample_of(held, None))
    }

    /// The next message, whose bytes a device may still have to bring: later work of `stream` waits for them. The call does not wait for
    /// the device, whatever the size (unless the device cannot wait for words; then for the bytes, at most 10 s).
    ///
    /// `Sample::status` tells, after the stream has been synchronised, whether they came. When the sample is dropped, it is released behind the
    /// work given to the stream by then.
    pub fn take_on(&self, stream: &Stream) -> Result<Option<Sample<T>>, TakeError> {
        self.check_stream(stream)?;
        self.take_next(|| self.next_held(true), |held| self.sample_of(held, Some(stream)))
    }

    /// The next message that is well-formed, as `open` makes it.
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

    /// Everything that can be taken now, as one batch, oldest first. An error ends a batch; it is told where nothing could be taken, and
    /// so by the next call if it lasts, as `TooManyHeld` does while the batch is held.
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

    /// The next message, or `None` if none came within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Sample<T>>, TakeError> {
        self.wait_unless(timeout, || false)
    }

    /// The next message, or `None` if none came within `timeout`, or if `is_over` when there is none. That is asked before each sleep;
    /// `wake_waiters` has it asked again.
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
            if self.inner.tended.awaits_bytes.load(Ordering::Acquire) {
                left = left.min(READY_TICK);
            }
            waiter.wait(left).map_err(|source| self.wait_error(source))?;
        }
    }

    /// Threads that wait look again: each for a message, and `wait_unless` whether it is over.
    pub fn wake_waiters(&self) {
        if self.inner.node.is_owner() {
            self.inner.waiter.wake_own();
        }
    }

    /// The next message, in async code of any runtime. The node's thread wakes the task, and every other one that waits on this subscriber:
    /// who finds nothing waits on. A task that is cancelled takes no message along. No poll waits for the manager; unless the node's device
    /// does not reach the message, none waits at all.
    pub async fn next(&self) -> Result<Sample<T>, TakeError> {
        let place = tasks::Enlistment::new(&self.inner.tasks, &self.inner.node, &self.inner.tended.event);
        poll_fn(|context| {
            // What is there is taken whoever else is there.
            if let Some(Some(sample)) = self.poll_take()? {
                return Poll::Ready(Ok(sample));
            }
            // On the list first: what comes after this look, be it an answer, wakes the task.
            place.enlist(context.waker());
            let event = self.inner.event(Call::Polling).map_err(|source| self.event_error(source))?;
            match self.poll_take()? {
                Some(Some(sample)) => return Poll::Ready(Ok(sample)),
                // The descriptor is readable, and says nothing new until the manager answers.
                Some(None) => {}
                None => event.into_iter().for_each(|_| place.watch()),
            }
            Poll::Pending
        })
        .await
    }

    /// As `take`, without waiting for the manager: `Some(None)` if it has to answer first.
    fn poll_take(&self) -> Result<Option<Option<Sample<T>>>, TakeError> {
        self.take_next(
            || self.next_held(false),
            |held| match self.inner.memory_of(&held, Call::Polling) {
                Ok(Some(_)) => self.sample_of(held, None).map(Some),
                Ok(None) => {
                    self.inner.reader().put_back(held);
                    Ok(None)
                }
                Err(error) => Err(self.inner.not_opened(held, error)),
            },
        )
    }

    /// How many messages `take` would give out now, each dropped before the next one is taken; `limit` at most. None is taken, and once as many
    /// of a publisher are held as may be, none waits (`TooManyHeld`).
    pub fn ready_count(&self, limit: usize) -> usize {
        if !self.inner.node.is_owner() {
            return 0;
        }
        let reader = self.inner.reader();
        let count = reader.ready_count(limit);
        // As for `take`: nobody rings when awaited bytes have come.
        self.inner.note_awaited(count.awaits_bytes, count.ready < limit);
        count.ready
    }

    /// A descriptor that is readable while a message may be ready, for epoll, select and wait sets. Do not read it: `take` until it
    /// returns `None`, which silences it.
    ///
    /// The first call asks the manager for it; from then on each publication costs its publisher one system call for this subscriber.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, TakeError> {
        self.check_attached()?;
        match self.inner.event(Call::Blocking).map_err(|source| self.event_error(source))? {
            Some(event) => Ok(event.as_fd()),
            None => unreachable!("the answer was waited for"),
        }
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.inner.topic
    }

    /// Counters of this subscriber; zeros in a forked child, where the segment is not mapped.
    pub fn statistics(&self) -> SubscriberStatistics {
        if !self.inner.node.is_owner() {
            return SubscriberStatistics::default();
        }
        SubscriberStatistics::of(&self.inner.reader())
    }

    fn event_error(&self, source: NodeError) -> TakeError {
        // The manager that was asked may have been followed by one that did not take the slot back.
        self.check_attached().err().unwrap_or_else(|| self.wait_error(std::io::Error::other(source)))
    }

    pub(crate) fn next_held(&self, pending: bool) -> Result<Option<Held>, TakeError> {
        self.check_attached()?;
        let held = self.inner.next_held(pending)?;
        let Some(event) = self.inner.tended.event.get().filter(|_| held.is_none()) else { return Ok(held) };
        // Nothing left: the descriptor falls silent, and a message that came meanwhile is looked for once more.
        event.drain().map_err(|source| self.wait_error(source))?;
        let looked = self.inner.next_held(pending);
        // What came beside it, or could not be taken, is for others, who may sleep on the descriptor: it is readable until somebody finds nothing.
        if !matches!(looked, Ok(None))
            && let Err(error) = event.signal()
        {
            tracing::warn!(topic = self.inner.topic, %error, "who else waits for messages may wait until the next one");
        }
        looked
    }

    /// A message as the node's device reaches it: its bytes there, or for a stream that waits for them.
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
            Ok(None) => unreachable!("the answer was waited for"),
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

    /// A stream that takes no work now costs no message.
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
