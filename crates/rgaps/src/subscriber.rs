//! Subscribing: take messages that are ready. A taken message is read in place; dropping its sample releases it (`sample`).

use std::future::poll_fn;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use rgaps_device::Stream;
use rgaps_os::clock;
use rgaps_shm::Held;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::message::Readiness;
use rgaps_shm::notify::Wait;

use crate::endpoint::completions::READY_TICK;
use crate::endpoint::open_requests::Call;
use crate::endpoint::subscriber::SubscriberInner;
use crate::endpoint::take_by_handle::TakeByHandleError;
use crate::endpoint::take_error::TakeError;
use crate::endpoint::tasks::Enlistment;
use crate::handle::Handle;
use crate::sample::Sample;
use crate::statistics::SubscriberStatistics;
use crate::types::Meta;

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

impl<T: Meta> Subscriber<T> {
    pub(crate) fn inner(&self) -> &Arc<SubscriberInner> {
        &self.inner
    }

    pub(crate) fn new(inner: Arc<SubscriberInner>) -> Self {
        Self { presence: Arc::new(Presence(inner.clone())), inner, kind: PhantomData }
    }

    /// Takes the next message if one is ready. The call does not wait, unless the node's device has no peer access to the message: then it waits for
    /// a copy, at most 10 s.
    pub fn take(&self) -> Result<Option<Sample<T>>, TakeError> {
        self.take_next(|| self.inner.next_held(false), |held| self.sample_of(held, None))
    }

    /// Takes the next message in stream order: its bytes may not be written yet, and later work of `stream` waits for them. The call does not wait
    /// for the device, whatever the size. (A device that cannot wait for a word in memory is the exception: the call then waits for the bytes, at
    /// most 10 s.)
    ///
    /// After synchronising the stream, `Sample::status` tells whether the bytes were written. Dropping the sample releases it after the work that
    /// the stream has by then.
    pub fn take_on(&self, stream: &Stream) -> Result<Option<Sample<T>>, TakeError> {
        self.inner.check_stream(stream)?;
        self.take_next(|| self.inner.next_held(true), |held| self.sample_of(held, Some(stream)))
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
        self.inner.check_attached()?;
        let deadline = Instant::now().checked_add(timeout);
        let mut waiter = self.inner.waiter.another();
        loop {
            waiter.arm().map_err(|source| self.inner.wait_error(source))?;
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
            waiter.wait(left).map_err(|source| self.inner.wait_error(source))?;
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
                // watched for them; the answer signals it again (`Ring`).
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
    fn poll_take(&self) -> Result<Option<Option<Sample<T>>>, TakeError> {
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
        self.inner.check_attached()?;
        match self.inner.event(Call::Blocking).map_err(|source| self.inner.event_error(source))? {
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

    /// Opens a message for the node's device, with a copy if the device has no peer access. With a stream, the stream waits for the bytes.
    pub(crate) fn sample_of(&self, held: Held, stream: Option<&Stream>) -> Result<Sample<T>, TakeError> {
        let awaited = stream.filter(|_| held.readiness() == Readiness::Pending).map(|_| held.ready_word());
        let mut sample = self.open(held)?;
        sample.bring(awaited, stream).map_err(|source| self.inner.device_error(source))?;
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
}

impl<T: Meta> Subscriber<T> {
    /// Promises that from now on takes by handle follow each publisher's order of publication, as when one thread handles all of them. Taking a
    /// message then releases that publisher's earlier untaken messages. They count as lost, except those before the first take by handle of that
    /// publisher.
    pub fn expect_handles_in_order(&self) {
        if self.inner().node.is_owner() {
            self.inner().reader().expect_handles_in_order();
        }
    }

    /// Takes the message that `handle` names, and waits at most `timeout` for it and its bytes. Earlier messages stay untaken, for `take` and for
    /// later takes by handle. A keep-all subscriber keeps the newest 64 of them, and of each publisher at most half as many as it may have messages;
    /// older ones count as lost. The pool's bytes are not bounded so: a publisher whose pool holds fewer messages than that waits for them.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use rgaps::{Handle, Subscriber, TakeByHandleError, types::Image};
    /// fn on_handle(subscriber: &Subscriber<Image>, bytes: &[u8; Handle::BYTES]) -> Result<(), TakeByHandleError> {
    ///     let handle = Handle::from_bytes(bytes);
    ///     let sample = subscriber.take_by_handle(&handle, Duration::from_millis(100))?;
    ///     assert_eq!(sample.info().sequence, handle.sequence);
    ///     Ok(())
    /// }
    /// ```
    pub fn take_by_handle(&self, handle: &Handle, timeout: Duration) -> Result<Sample<T>, TakeByHandleError> {
        self.take_by_handle_unless(handle, timeout, None, || false)
    }

    /// Like `take_by_handle`, in stream order: later work of `stream` waits for the bytes, as with `take_on`.
    pub fn take_by_handle_on(
        &self,
        handle: &Handle,
        timeout: Duration,
        stream: &Stream,
    ) -> Result<Sample<T>, TakeByHandleError> {
        self.take_by_handle_unless(handle, timeout, Some(stream), || false)
    }

    /// Like `take_by_handle`, or `take_by_handle_on` with a stream, but stops waiting when `is_over` returns true. `is_over` is called ten times a
    /// second while the message or its bytes are missing, and at once after `wake_waiters`. The error is then `NotHere`, and a message that had
    /// arrived without its bytes is released.
    pub fn take_by_handle_unless(
        &self,
        handle: &Handle,
        timeout: Duration,
        stream: Option<&Stream>,
        is_over: impl Fn() -> bool,
    ) -> Result<Sample<T>, TakeByHandleError> {
        stream.map_or(Ok(()), |stream| self.inner().check_stream(stream))?;
        let held = self.inner().hold_by_handle(handle, T::KIND, timeout, stream.is_some(), &is_over)?;
        Ok(self.sample_of(held, stream)?)
    }
}
