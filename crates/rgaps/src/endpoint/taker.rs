//! A subscriber's takes, for types that are known at compile time or at run time.

use std::fmt::Debug;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use rgaps_device::{Stream, StreamWord};
use rgaps_os::clock;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::notify::Wait;
use rgaps_shm::words::message::Readiness;
use rgaps_shm::{Held, MessageInfo};

use crate::dynamic::{DynamicMeta, Kind};
use crate::endpoint::completions::READY_TICK;
use crate::endpoint::open_requests::Call;
use crate::endpoint::sample::SampleInner;
use crate::endpoint::subscriber::SubscriberInner;
use crate::endpoint::take_by_handle::TakeByHandleError;
use crate::endpoint::take_error::TakeError;
use crate::endpoint::tasks::Enlistment;
use crate::handle::MessageHandle;
use crate::statistics::SubscriberStatistics;
use crate::types::{Meta, MetaError};

/// Messages that follow each other within this time are awaited awake: to sleep and to be woken takes as long.
const BUSY: Duration = Duration::from_micros(20);

/// How to read the metadata of a topic's type.
pub(crate) trait Decoder: Clone + Debug {
    /// The metadata.
    type Meta;

    /// The code of the topic's type.
    fn code(&self) -> u32;

    /// Decodes metadata and compares it with the payload.
    fn decode(&self, encoded: &[u8], payload_bytes: u64) -> Result<Self::Meta, MetaError>;
}

/// Metadata of a type that is known at compile time.
#[derive(Debug)]
pub(crate) struct Static<T>(PhantomData<fn() -> T>);

impl<T> Clone for Static<T> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<T> Default for Static<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Meta> Decoder for Static<T> {
    type Meta = T;

    fn code(&self) -> u32 {
        T::KIND
    }

    fn decode(&self, encoded: &[u8], payload_bytes: u64) -> Result<T, MetaError> {
        let meta = T::decode(encoded)?;
        meta.check(payload_bytes)?;
        Ok(meta)
    }
}

impl Decoder for Kind {
    type Meta = DynamicMeta;

    fn code(&self) -> u32 {
        Kind::code(*self)
    }

    fn decode(&self, encoded: &[u8], payload_bytes: u64) -> Result<DynamicMeta, MetaError> {
        let meta = DynamicMeta::decode(*self, encoded)?;
        meta.check(payload_bytes)?;
        Ok(meta)
    }
}

/// Metadata and payload of a taken message.
pub(crate) type Taken<D> = (<D as Decoder>::Meta, SampleInner);

/// A subscriber and its type. Clones take from the same subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Taker<D> {
    inner: Arc<SubscriberInner>,
    _presence: Arc<Presence>,
    pub(crate) decoder: D,
}

/// Shared by all clones of a `Taker`. The last clone closes the reader, while samples may keep `SubscriberInner` alive.
#[derive(Debug)]
struct Presence(Arc<SubscriberInner>);

impl Drop for Presence {
    fn drop(&mut self) {
        if self.0.node.is_owner() {
            self.0.reader().close();
        }
    }
}

impl<D: Decoder> Taker<D> {
    pub(crate) fn new(inner: Arc<SubscriberInner>, decoder: D) -> Self {
        Self { _presence: Arc::new(Presence(inner.clone())), inner, decoder }
    }

    pub(crate) fn inner(&self) -> &Arc<SubscriberInner> {
        &self.inner
    }

    /// See `Subscriber::take`, and with a stream `Subscriber::take_on`.
    pub(crate) fn take(&self, stream: Option<&Stream>) -> Result<Option<Taken<D>>, TakeError> {
        stream.map_or(Ok(()), |stream| self.inner.check_stream(stream))?;
        self.take_next(|| self.inner.next_held(stream.is_some()), |held| self.sample_of(held, stream))
    }

    /// Takes the next message's description, without resetting the eventfd.
    pub(crate) fn take_described(&self) -> Result<Option<(D::Meta, Held)>, TakeError> {
        self.inner.check_attached()?;
        self.take_next(|| self.inner.take_held(false), |held| Ok((self.meta_of(&held)?, held)))
    }

    /// Opens the next message, skipping malformed ones.
    fn take_next<M>(
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

    /// See `Subscriber::wait_unless`.
    pub(crate) fn wait_unless(
        &self,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<Taken<D>>, TakeError> {
        self.inner.check_attached()?;
        let deadline = Instant::now().checked_add(timeout);
        if let Some(sample) = self.take_soon(timeout)? {
            return Ok(Some(sample));
        }
        let mut waiter = self.inner.waiter.another();
        loop {
            waiter.arm().map_err(|source| self.inner.wait_error(source))?;
            if let Some(sample) = self.take(None)? {
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
            let asleep_at = Instant::now();
            waiter.wait(left).map_err(|source| self.inner.wait_error(source))?;
            self.inner.maintained.is_busy.store(asleep_at.elapsed() < BUSY, Ordering::Relaxed);
        }
    }

    /// The next message without an announcement that the publishers would have to read, if there is one or, while messages follow each other closely,
    /// if there is one soon. A subscriber that slept between two of them would cost its publisher a system call for each.
    fn take_soon(&self, timeout: Duration) -> Result<Option<Taken<D>>, TakeError> {
        // Each look that finds nothing resets the eventfd, which is a system call.
        if self.inner.maintained.event.get().is_some() {
            return Ok(None);
        }
        let mut since = None;
        loop {
            if let Some(sample) = self.take(None)? {
                return Ok(Some(sample));
            }
            let is_busy = &self.inner.maintained.is_busy;
            if !is_busy.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= timeout.min(BUSY) {
                is_busy.store(false, Ordering::Relaxed);
                return Ok(None);
            }
            std::thread::yield_now();
        }
    }

    /// See `Subscriber::wake_waiters`.
    pub(crate) fn wake_waiters(&self) {
        if self.inner.node.is_owner() {
            self.inner.waiter.wake_own();
        }
    }

    /// See `Subscriber::next`.
    pub(crate) async fn next(&self) -> Result<Taken<D>, TakeError> {
        let place = Enlistment::new(&self.inner.tasks, &self.inner.node, &self.inner.maintained.event);
        poll_fn(|context| {
            if let Some(Some(sample)) = self.poll_take()? {
                return Poll::Ready(Ok(sample));
            }
            // Enlist before looking again, so that any later message or answer wakes the task.
            place.enlist(context.waker());
            self.inner.event(Call::Polling).map_err(|source| self.inner.event_error(source))?;
            let mut taken = self.poll_take()?;
            if let (Some(None), Some(event)) = (&taken, self.inner.maintained.event.get()) {
                // The next message waits for the manager's answer. Messages that come after it may take its place, so the eventfd is reset, to be
                // watched for them; the answer signals it again (`WakeAll`).
                event.drain().map_err(|source| self.inner.wait_error(source))?;
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
    fn poll_take(&self) -> Result<Option<Option<Taken<D>>>, TakeError> {
        self.take_next(
            || self.inner.next_held(false),
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

    /// See `Subscriber::ready_count`.
    pub(crate) fn ready_count(&self, limit: usize) -> usize {
        // None of a subscriber that was cut off can be taken.
        if self.inner.check_attached().is_err() {
            return 0;
        }
        let reader = self.inner.reader();
        let count = reader.ready_count(limit);
        // Like `take`: no wake-up follows when a device has written awaited bytes.
        self.inner.note_awaited(count.awaits_bytes, count.ready < limit);
        count.ready
    }

    /// See `Subscriber::event_fd`.
    pub(crate) fn event_fd(&self) -> Result<BorrowedFd<'_>, TakeError> {
        self.inner.check_attached()?;
        match self.inner.event(Call::Blocking).map_err(|source| self.inner.event_error(source))? {
            Some(event) => Ok(event.as_fd()),
            None => unreachable!("a blocking call waits for the answer"),
        }
    }

    /// See `Subscriber::statistics`.
    pub(crate) fn statistics(&self) -> SubscriberStatistics {
        if !self.inner.node.is_owner() {
            return SubscriberStatistics::default();
        }
        SubscriberStatistics::of(&self.inner.reader())
    }

    /// See `Subscriber::expect_handles_in_order`.
    pub(crate) fn expect_handles_in_order(&self) {
        if self.inner.node.is_owner() {
            self.inner.reader().expect_handles_in_order();
        }
    }

    /// See `Subscriber::take_by_handle_unless`.
    pub(crate) fn take_by_handle_unless(
        &self,
        handle: &MessageHandle,
        timeout: Duration,
        stream: Option<&Stream>,
        is_over: impl Fn() -> bool,
    ) -> Result<Taken<D>, TakeByHandleError> {
        stream.map_or(Ok(()), |stream| self.inner.check_stream(stream))?;
        let held = self.inner.hold_by_handle(handle, self.decoder.code(), timeout, stream.is_some(), &is_over)?;
        Ok(self.sample_of(held, stream)?)
    }

    /// Whether the device waits for a message's bytes, so that the caller need not.
    fn can_await(&self, held: &Held, stream: &Stream) -> Result<bool, TakeError> {
        // Without access to the pools, the backend copies the message first.
        if self.inner.node.backend().as_cuda().is_some_and(|cuda| !cuda.reaches_pools()) {
            return Ok(false);
        }
        let (offset, _) = held.ready_word();
        let words = self.inner.completions.ready_words().map_err(|source| self.inner.device_error(source))?;
        Ok(stream.can_wait_for(&StreamWord { memory: words.as_ref(), offset }))
    }

    /// See `Subscriber::try_take_by_handle_on`.
    pub(crate) fn try_take_by_handle_on(
        &self,
        handle: &MessageHandle,
        stream: &Stream,
    ) -> Result<Option<Taken<D>>, TakeByHandleError> {
        self.inner.check_stream(stream)?;
        let held = match self.inner.hold_by_handle(handle, self.decoder.code(), Duration::ZERO, true, || false) {
            Err(TakeByHandleError::NotHere { .. }) => return Ok(None),
            held => held?,
        };
        if held.readiness() == Readiness::Pending && !self.can_await(&held, stream)? {
            self.inner.reader().put_back(held);
            return Ok(None);
        }
        match self.inner.memory_of(&held, Call::Polling) {
            Ok(None) => {
                self.inner.put_back_until_answered(held);
                Ok(None)
            }
            Ok(Some(_)) => Ok(Some(self.sample_of(held, Some(stream))?)),
            Err(error) => Err(self.inner.not_opened(held, error).into()),
        }
    }

    /// See `Subscriber::skip_by_handle`.
    pub(crate) fn skip_by_handle(&self, handle: &MessageHandle) -> Result<bool, TakeByHandleError> {
        match self.inner.hold_by_handle(handle, self.decoder.code(), Duration::ZERO, true, || false) {
            Err(TakeByHandleError::NotHere { .. }) => Ok(false),
            held => held.map(|_released| true),
        }
    }

    /// Opens a message for the node's device, with a copy if the device has no peer access. With a stream, the stream waits for the bytes.
    pub(crate) fn sample_of(&self, held: Held, stream: Option<&Stream>) -> Result<(D::Meta, SampleInner), TakeError> {
        let awaited = stream.filter(|_| held.readiness() == Readiness::Pending).map(|_| held.ready_word());
        let (meta, mut sample) = self.open(held)?;
        sample.bring(awaited, stream).map_err(|source| self.inner.device_error(source))?;
        sample.stream = stream.cloned();
        let (topic, MessageInfo { publisher, sequence, .. }) = (&self.inner.topic, sample.info);
        tracing::trace!(target: "rgaps::message", topic, publisher, sequence, "taken");
        Ok((meta, sample))
    }

    fn open(&self, held: Held) -> Result<(D::Meta, SampleInner), TakeError> {
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
        let (stream, copied) = (None, None);
        Ok((meta, SampleInner { offset, taken, info, message, held, stream, copied, pool, subscriber, fetched }))
    }

    pub(crate) fn meta_of(&self, held: &Held) -> Result<D::Meta, TakeError> {
        let info = held.info();
        let mut encoded = [0; META_BYTES_MAX];
        let meta_bytes = held.copy_meta(&mut encoded);
        let meta = self.decoder.decode(&encoded[..meta_bytes], info.bytes);
        let (topic, sequence) = (&self.inner.topic, info.sequence);
        let malformed = |source| TakeError::Metadata { topic: topic.clone(), sequence, source };
        meta.map_err(malformed).inspect_err(|error| self.inner.blame(error))
    }
}
