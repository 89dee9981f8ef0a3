//! Subscribing: take messages that are ready. A taken message is read in place; dropping its sample releases it (`sample`).

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rgaps_device::Stream;

use crate::endpoint::subscriber::SubscriberInner;
use crate::endpoint::take_by_handle::TakeByHandleError;
use crate::endpoint::take_error::TakeError;
use crate::endpoint::taker::{Static, Taker};
use crate::handle::MessageHandle;
use crate::sample::Sample;
use crate::statistics::SubscriberStatistics;
use crate::types::Meta;

/// Takes messages of one type from one topic. Cheap to clone; every clone is the same subscriber.
///
/// ```
/// use std::time::Duration;
/// use rgaps::types::Bytes;
///
/// # let _host = rgaps_testing::example_host();
/// let node = rgaps::Node::new("logger")?;
/// let subscriber = node.subscriber::<Bytes>("raw")?;
/// # node.publisher::<Bytes>("raw")?.push(&Bytes::new(5), b"hello")?;
/// while let Some(sample) = subscriber.wait(Duration::from_millis(100))? {
///     assert_eq!(sample.bytes(), b"hello");
/// }
/// assert_eq!(subscriber.statistics().taken, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Subscriber<T> {
    pub(crate) taker: Taker<Static<T>>,
}

impl<T> Clone for Subscriber<T> {
    fn clone(&self) -> Self {
        Self { taker: self.taker.clone() }
    }
}

impl<T: Meta> Subscriber<T> {
    pub(crate) fn new(inner: Arc<SubscriberInner>) -> Self {
        Self { taker: Taker::new(inner, Static::default()) }
    }

    /// Takes the next message if one is ready. The call does not wait for a message. It waits in two cases, at most 10 s each. If this subscriber has
    /// not mapped the message's memory yet, as with a publisher's first message, it waits for the manager's answer. If the node's device has no peer
    /// access to the message, it waits for a copy. `next` awaits the manager's answer and never blocks the thread for it.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// while let Some(sample) = subscriber.take()? {
    ///     assert_eq!(sample.bytes(), b"hello");
    /// } // each sample is released before the next take
    /// # assert_eq!(subscriber.statistics().taken, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take(&self) -> Result<Option<Sample<T>>, TakeError> {
        Ok(self.taker.take(None)?.map(Sample::new))
    }

    /// Takes the next message in stream order: its bytes may not be written yet, and later work of `stream` waits for them. The call does not wait
    /// for the device, whatever the size. (A device that cannot wait for a word in memory is the exception: the call then waits for the bytes, at
    /// most 10 s.)
    ///
    /// After synchronising the stream, `Sample::readiness` tells whether the bytes were written. Dropping the sample releases it after the work that
    /// the stream has by then.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{Node, Readiness, types::Bytes};
    /// # fn launch(address: u64, stream: &rgaps::device::Stream) { assert!(address > 0) }
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let stream = node.stream()?;
    /// if let Some(sample) = subscriber.take_on(&stream)? {
    ///     launch(sample.device_address()?, &stream); // runs once the bytes are written
    ///     stream.synchronize(Duration::from_secs(1))?;
    ///     assert_eq!(sample.readiness(), Readiness::Ready);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_on(&self, stream: &Stream) -> Result<Option<Sample<T>>, TakeError> {
        Ok(self.taker.take(Some(stream))?.map(Sample::new))
    }

    /// Takes all messages that are ready, oldest first. An error ends the batch and is returned only if the batch is empty. An error that lasts
    /// (`TooManyHeld` while the batch is held) is therefore returned by the next call.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// publisher.push(&Bytes::new(5), b"first")?;
    /// publisher.push(&Bytes::new(6), b"second")?;
    /// let batch = subscriber.take_all()?;
    /// let sequences: Vec<u64> = batch.iter().map(|sample| sample.info().sequence).collect();
    /// assert_eq!(sequences, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// match subscriber.wait(Duration::from_millis(100))? {
    ///     Some(sample) => println!("{} B", sample.bytes().len()),
    ///     None => println!("no message within 100 ms"),
    /// }
    /// # assert_eq!(subscriber.statistics().taken, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(&self, timeout: Duration) -> Result<Option<Sample<T>>, TakeError> {
        self.wait_unless(timeout, || false)
    }

    /// Like `wait`, and returns `None` also when there is no message and `is_over` returns true. `is_over` is called before each sleep;
    /// `wake_waiters` makes waiting threads call it again.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// # use std::time::Duration;
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let subscriber = Node::new("logger")?.subscriber::<Bytes>("raw")?;
    /// let is_over = AtomicBool::new(false);
    /// let waited = std::thread::scope(|scope| {
    ///     let reader = scope.spawn(|| subscriber.wait_unless(Duration::from_secs(60), || is_over.load(Ordering::Acquire)));
    ///     is_over.store(true, Ordering::Release);
    ///     subscriber.wake_waiters(); // the reader ends now, not after a minute
    ///     reader.join()
    /// });
    /// assert!(matches!(waited, Ok(Ok(None))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_unless(&self, timeout: Duration, is_over: impl Fn() -> bool) -> Result<Option<Sample<T>>, TakeError> {
        Ok(self.taker.wait_unless(timeout, is_over)?.map(Sample::new))
    }

    /// Wakes the threads that wait on this subscriber. Each looks for a message again, and `wait_unless` calls its `is_over` again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let subscriber = Node::new("logger")?.subscriber::<Bytes>("raw")?;
    /// let over = std::sync::OnceLock::new();
    /// std::thread::scope(|scope| {
    ///     let reader = scope.spawn(|| subscriber.wait_unless(Duration::MAX, || over.get().is_some()));
    ///     let _ = over.set(()); // first the reason, then the wake-up
    ///     subscriber.wake_waiters();
    ///     assert!(matches!(reader.join(), Ok(Ok(None))));
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wake_waiters(&self) {
        self.taker.wake_waiters();
    }

    /// Waits for the next message in async code, with any runtime. The node's thread wakes all tasks that wait on this subscriber; a task that finds
    /// no message waits again. Cancelling a task loses no message. Polling never waits for the manager, and waits for the device only if the message
    /// must be copied for lack of peer access.
    ///
    /// ```
    /// # use rgaps::{Node, Subscriber, TakeError, types::{Encoding, Image}};
    /// async fn size(subscriber: &Subscriber<Image>) -> Result<(u32, u32), TakeError> {
    ///     let sample = subscriber.next().await?;
    ///     Ok((sample.meta().width, sample.meta().height))
    /// }
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("display")?;
    /// # let (publisher, subscriber) = (node.publisher::<Image>("camera")?, node.subscriber::<Image>("camera")?);
    /// # publisher.loan(Image::new(64, 48, Encoding::Rgb8)?)?.publish()?;
    /// # struct Unpark(std::thread::Thread);
    /// # impl std::task::Wake for Unpark {
    /// #     fn wake(self: std::sync::Arc<Self>) {
    /// #         self.0.unpark();
    /// #     }
    /// # }
    /// # let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    /// # let mut context = std::task::Context::from_waker(&waker);
    /// # let mut future = std::pin::pin!(size(&subscriber));
    /// # let found = loop {
    /// #     if let std::task::Poll::Ready(found) = future.as_mut().poll(&mut context) {
    /// #         break found?;
    /// #     }
    /// #     std::thread::park();
    /// # };
    /// # assert_eq!(found, (64, 48));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn next(&self) -> Result<Sample<T>, TakeError> {
        self.taker.next().await.map(Sample::new)
    }

    /// The number of messages, up to `limit`, that `take` would return now if each were dropped before the next take. Takes nothing. The count ends
    /// at a message for which `take` would return `TooManyHeld`. 0 once it was cut off from its topic, which the next take says.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// for _ in 0..3 {
    ///     publisher.push(&Bytes::new(5), b"hello")?;
    /// }
    /// assert_eq!((subscriber.ready_count(100), subscriber.ready_count(2)), (3, 2));
    /// assert!(subscriber.ready_count(1) > 0, "a message is ready");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ready_count(&self, limit: usize) -> usize {
        self.taker.ready_count(limit)
    }

    /// Whether every take fails with `TakeError::CutOff`. Create it again then. Never waits.
    pub fn is_cut_off(&self) -> bool {
        matches!(self.taker.inner().check_attached(), Err(TakeError::CutOff { .. }))
    }

    /// An eventfd that is readable while a message may be ready, for epoll, select and wait sets. Do not read it. Call `take` until it returns
    /// `None`, which resets it.
    ///
    /// The first call requests it from the manager. From then on, each publication or batch costs its publisher two system calls for this
    /// subscriber.
    ///
    /// ```
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// # use rgaps::{Node, types::Bytes};
    ///
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let mut watched = [PollFd::from_borrowed_fd(subscriber.event_fd()?, PollFlags::IN)];
    /// publisher.push(&Bytes::new(5), b"hello")?;
    /// assert_eq!(poll(&mut watched, None)?, 1); // sleeps until a message may be ready
    /// while let Some(sample) = subscriber.take()? {
    ///     assert_eq!(sample.bytes(), b"hello");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, TakeError> {
        self.taker.event_fd()
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.taker.inner().topic
    }

    /// Counters of this subscriber. All zero in a forked child, where the segment is not mapped.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take()?;
    /// let statistics = subscriber.statistics();
    /// assert_eq!((statistics.taken, statistics.held, statistics.lost), (1, 1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics(&self) -> SubscriberStatistics {
        self.taker.statistics()
    }

    /// Promises that from now on takes by handle follow each publisher's order of publication, as when one thread handles all of them. Taking a
    /// message then releases that publisher's earlier untaken messages. They count as lost, except those before the first take by handle of that
    /// publisher.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("relay")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// subscriber.expect_handles_in_order();
    /// let first = publisher.push(&Bytes::new(5), b"first")?;
    /// publisher.push(&Bytes::new(6), b"second")?; // the other middleware loses this handle
    /// let third = publisher.push(&Bytes::new(5), b"third")?;
    /// for handle in [first, third] {
    ///     subscriber.take_by_handle(&handle, Duration::from_secs(1))?;
    /// }
    /// assert_eq!(subscriber.statistics().lost, 1); // taking the third released the second
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expect_handles_in_order(&self) {
        self.taker.expect_handles_in_order();
    }

    /// Takes the message that `handle` names, and waits at most `timeout` for it and its bytes. Earlier messages stay untaken, for `take` and for
    /// later takes by handle. A keep-all subscriber keeps the newest 64 of them, and of each publisher at most half as many as it may have messages;
    /// older ones count as lost. This bound counts messages, not bytes: a publisher whose pool holds fewer messages than that waits for them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rgaps::{MessageHandle, Node, types::Bytes};
    ///
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("relay")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// publisher.push(&Bytes::new(5), b"first")?;
    /// let handle = publisher.push(&Bytes::new(6), b"second")?;
    /// let bytes: [u8; MessageHandle::BYTES] = handle.to_bytes(); // carried by other middleware
    ///
    /// let sample = subscriber.take_by_handle(&MessageHandle::from_bytes(&bytes), Duration::from_secs(1))?;
    /// assert_eq!(sample.bytes(), b"second");
    /// assert_eq!(subscriber.take()?.ok_or("it is still there")?.bytes(), b"first");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_by_handle(&self, handle: &MessageHandle, timeout: Duration) -> Result<Sample<T>, TakeByHandleError> {
        self.take_by_handle_unless(handle, timeout, None, || false)
    }

    /// Like `take_by_handle`, in stream order: later work of `stream` waits for the bytes, as with `take_on`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{Node, types::Bytes};
    /// # fn launch(address: u64, stream: &rgaps::device::Stream) { assert!(address > 0) }
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # let handle = publisher.push(&Bytes::new(5), b"hello")?;
    /// let stream = node.stream()?;
    /// let sample = subscriber.take_by_handle_on(&handle, Duration::from_secs(1), &stream)?;
    /// launch(sample.device_address()?, &stream);
    /// sample.release_on(&stream)?; // after the kernel
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_by_handle_on(
        &self,
        handle: &MessageHandle,
        timeout: Duration,
        stream: &Stream,
    ) -> Result<Sample<T>, TakeByHandleError> {
        self.take_by_handle_unless(handle, timeout, Some(stream), || false)
    }

    /// Like `take_by_handle_on`, but only if that needs no waiting, also not for the manager, which must tell where the first message of a publisher is.
    /// `None`: it is still to come; take it later.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{MessageHandle, Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("relay")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let handle = publisher.push(&Bytes::new(5), b"hello")?;
    /// let stream = node.stream()?;
    /// let sample = match subscriber.try_take_by_handle_on(&handle, &stream)? {
    ///     Some(sample) => sample,
    ///     None => subscriber.take_by_handle_on(&handle, Duration::from_secs(1), &stream)?,
    /// };
    /// assert_eq!(sample.bytes(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_take_by_handle_on(
        &self,
        handle: &MessageHandle,
        stream: &Stream,
    ) -> Result<Option<Sample<T>>, TakeByHandleError> {
        Ok(self.taker.try_take_by_handle_on(handle, stream)?.map(Sample::new))
    }

    /// Releases the message that a handle names if it is here, without reading it: its block is free for others, and the subscriber does not get it. Never
    /// waits, and maps no pool. Whether it was here.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("relay")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let handle = publisher.push(&Bytes::new(5), b"hello")?;
    /// assert!(subscriber.skip_by_handle(&handle)?);
    /// assert!(subscriber.take()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn skip_by_handle(&self, handle: &MessageHandle) -> Result<bool, TakeByHandleError> {
        self.taker.skip_by_handle(handle)
    }

    /// Like `take_by_handle`, or `take_by_handle_on` with a stream, but stops waiting when `is_over` returns true. `is_over` is called ten times a
    /// second while the message or its bytes are missing, and at once after `wake_waiters`. The error is then `NotHere`, and a message that had
    /// arrived without its bytes is released.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// # use std::time::Duration;
    /// # use rgaps::{MessageHandle, Node, TakeByHandleError, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("relay")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # let handle = publisher.push(&Bytes::new(5), b"hello")?;
    /// # // A message of another host may still arrive.
    /// # let handle = MessageHandle { source_host: [7; 16], sequence: 9, ..handle };
    /// let is_over = AtomicBool::new(true); // a handler of SIGINT has set it
    /// let ended = subscriber.take_by_handle_unless(&handle, Duration::from_secs(60), None, || is_over.load(Ordering::Acquire));
    /// assert!(matches!(ended, Err(TakeByHandleError::NotHere { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_by_handle_unless(
        &self,
        handle: &MessageHandle,
        timeout: Duration,
        stream: Option<&Stream>,
        is_over: impl Fn() -> bool,
    ) -> Result<Sample<T>, TakeByHandleError> {
        self.taker.take_by_handle_unless(handle, timeout, stream, is_over).map(Sample::new)
    }
}
