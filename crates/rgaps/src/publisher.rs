//! Publishing: loan a block of the pool and fill it in place, or push a buffer from elsewhere.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rgaps_device::{DevicePart, PoolPart, Stream};

use crate::buffer::FrozenBuffer;
use crate::endpoint::batch::{AnyLoan, publish_all};
use crate::endpoint::encode::Encode;
use crate::endpoint::loan::LoanInner;
use crate::endpoint::publish_error::{PublishAllError, PublishError};
use crate::endpoint::publisher::PublisherInner;
use crate::handle::MessageHandle;
use crate::statistics::PublisherStatistics;
use crate::types::Meta;

/// Publishes messages of one type on one topic. Cheap to clone; every clone is the same publisher.
///
/// ```
/// use rgaps::types::Bytes;
///
/// # let _host = rgaps_testing::example_host();
/// let publisher = rgaps::Node::new("camera")?.publisher::<Bytes>("raw")?;
/// publisher.push(&Bytes::new(5), b"hello")?;
/// let mut loan = publisher.loan(Bytes::new(5))?;
/// loan.copy_from_slice(b"world");
/// loan.publish()?;
/// assert_eq!(publisher.statistics().published, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Publisher<T> {
    inner: Arc<PublisherInner>,
    kind: PhantomData<fn(T)>,
}

impl<T> Clone for Publisher<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), kind: PhantomData }
    }
}

impl<T: Meta> Publisher<T> {
    pub(crate) fn new(inner: Arc<PublisherInner>) -> Self {
        Self { inner, kind: PhantomData }
    }

    /// Loans a block of the pool for the bytes that `meta` describes. Fill it in place and publish it without a copy.
    ///
    /// If the pool is full, the publisher's QoS decides what happens (`Exhaustion`).
    ///
    /// ```
    /// # use rgaps::{Node, types::{Encoding, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let (publisher, subscriber) = (node.publisher::<Image>("camera")?, node.subscriber::<Image>("camera")?);
    /// let mut loan = publisher.loan(Image::new(64, 48, Encoding::Mono8)?)?;
    /// assert_eq!(loan.len(), 64 * 48); // as many bytes as the metadata describes
    /// for (place, pixel) in loan.iter_mut().enumerate() {
    ///     *pixel = (place % 64) as u8;
    /// }
    /// loan.publish()?;
    /// # assert_eq!(subscriber.take()?.ok_or("no message")?.bytes()[63..65], [63, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn loan(&self, meta: T) -> Result<Loan<T>, PublishError> {
        Ok(Loan { inner: LoanInner::new(&self.inner, &meta)?, meta })
    }

    /// Publishes a copy of `bytes`: one copy into the pool, whatever the number of subscribers.
    ///
    /// ```
    /// # use rgaps::{Node, PublishError, types::{Encoding, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// # let publisher = Node::new("camera")?.publisher::<Image>("camera")?;
    /// let image = Image::new(2, 2, Encoding::Mono8)?;
    /// let handle = publisher.push(&image, &[1, 2, 3, 4])?;
    /// assert_eq!((handle.sequence, handle.payload_bytes), (1, 4));
    /// // A buffer of another length is refused.
    /// assert!(matches!(publisher.push(&image, &[1, 2, 3]), Err(PublishError::Length { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push(&self, meta: &T, bytes: &[u8]) -> Result<MessageHandle, PublishError> {
        self.inner.push(meta, bytes)
    }

    /// Publishes what `fill` writes into the block, for sources in several pieces: one copy, like `push`. The block has as many bytes as `meta`
    /// describes. Bytes that `fill` does not write keep the block's old content.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("packets")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let (head, body) = ([1; 8], [2; 56]);
    /// publisher.push_with(&Bytes::new(64), |block| {
    ///     block[..8].copy_from_slice(&head);
    ///     block[8..].copy_from_slice(&body);
    /// })?;
    /// # let sample = subscriber.take()?.ok_or("no message")?;
    /// # assert_eq!((&sample.bytes()[..8], &sample.bytes()[8..]), (&head[..], &body[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push_with(&self, meta: &T, fill: impl FnOnce(&mut [u8])) -> Result<MessageHandle, PublishError> {
        let mut loan = LoanInner::new(&self.inner, meta)?;
        fill(loan.bytes_mut());
        loan.push(meta)
    }

    /// Publishes a copy of the caller's device memory in stream order: one copy on the device, after the work that the stream has so far. The call
    /// does not wait for the device, whatever the size. Subscribers get the message when the copy is complete.
    ///
    /// If the device fails before that, subscribers skip the message (`SubscriberStatistics::poisoned`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{Node, device::DevicePart, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let buffer = vec![7_u8; 64]; // on a GPU: device memory
    /// let stream = node.stream()?;
    /// // SAFETY: nothing writes the buffer before the stream has copied it.
    /// let part = unsafe { DevicePart::new(buffer.as_ptr() as u64, 64) };
    /// publisher.push_on(&Bytes::new(64), &part, &stream)?;
    /// stream.synchronize(Duration::from_secs(1))?; // now the buffer may change
    /// # assert_eq!(subscriber.take()?.ok_or("no message")?.bytes(), buffer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push_on(&self, meta: &T, from: &DevicePart, stream: &Stream) -> Result<MessageHandle, PublishError> {
        self.inner.push_on(meta, from, stream)
    }

    /// Publishes a buffer of the pool that this publisher was created in (`Pool::publisher`), without a copy. The same buffer may be published again,
    /// on this topic and on others: subscribers of all of them read the same bytes.
    ///
    /// Returns an error if the buffer is of another pool (`AnotherPool`), if `meta` describes another number of bytes (`Length`), and if all messages
    /// that the publisher may have (`message_count`) are in use and its `Exhaustion` makes no room (`NoSpace`). It needs no free bytes.
    ///
    /// ```
    /// # use rgaps::{Exhaustion, Node, types::{Encoding, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// let pool = node.pool(64 << 20, Exhaustion::DropOldest)?;
    /// let image = Image::new(640, 480, Encoding::Mono8)?;
    /// let (raw, debug) = (pool.publisher::<Image>("raw")?, pool.publisher::<Image>("debug")?);
    /// # let subscribers = (node.subscriber::<Image>("raw")?, node.subscriber::<Image>("debug")?);
    /// let mut buffer = pool.allocate(640 * 480)?;
    /// buffer.fill(7);
    /// let buffer = buffer.freeze()?;
    /// for publisher in [&raw, &debug] {
    ///     publisher.publish_buffer(&image, &buffer)?;
    /// }
    /// # let samples = (subscribers.0.take()?.ok_or("no message")?, subscribers.1.take()?.ok_or("no message")?);
    /// # assert_eq!((samples.0.bytes()[9], samples.1.bytes()[9]), (7, 7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_buffer(&self, meta: &T, buffer: &FrozenBuffer) -> Result<MessageHandle, PublishError> {
        self.inner.publish_frozen(meta, &buffer.inner.block, buffer.inner.filled, None)
    }

    /// Like `publish_buffer`, for a buffer that the work which `stream` has so far fills: subscribers get the message when that work is complete.
    /// Until then, publish the buffer only by this call, and on the same stream or one that waits for it: `publish_buffer` would hand out unfinished
    /// bytes. If the device fails, subscribers skip the message (`SubscriberStatistics::poisoned`).
    pub fn publish_buffer_on(
        &self,
        meta: &T,
        buffer: &FrozenBuffer,
        stream: &Stream,
    ) -> Result<MessageHandle, PublishError> {
        self.inner.publish_frozen(meta, &buffer.inner.block, buffer.inner.filled, Some(stream))
    }

    /// Publishes several loans of this publisher, in their order, and wakes each sleeping subscriber once for all of them. Subscribers that are
    /// awake may take the first messages before the last ones are published. A subscriber gets the batch by `Subscriber::take_all`.
    ///
    /// Each message is published as by `Loan::publish`: with its own sequence, and with the same effect of every QoS. All loans of a batch
    /// are in use at the same time, so the pool must have room for the whole batch besides what subscribers still need. The bytes must be
    /// complete: for stream order, publish each loan with `Loan::publish_on`.
    ///
    /// If a loan is of another publisher, or cannot be filled by its device, nothing is published. Only a lost slot or a damaged topic can end the
    /// batch in the middle: then the loans before that are published. The error names the loan that failed, and returns all others that are not
    /// published.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("imu")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let mut loans = Vec::new();
    /// for reading in 0..8_u64 {
    ///     let mut loan = publisher.loan(Bytes::new(8))?;
    ///     loan.copy_from_slice(&reading.to_le_bytes());
    ///     loans.push(loan);
    /// }
    /// let handles = publisher.publish_all(loans)?;
    /// assert_eq!((handles.len(), handles[7].sequence), (8, 8));
    /// # assert!(subscriber.take_all()?.iter().zip(0_u64..).all(|(sample, at)| sample.bytes() == at.to_le_bytes()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_all(&self, loans: Vec<Loan<T>>) -> Result<Vec<MessageHandle>, PublishAllError<Loan<T>>> {
        publish_all(&self.inner, loans)
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.inner.topic
    }

    /// Counters of this publisher and its pool. All zero in a forked child, where neither is mapped.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let publisher = Node::new("camera")?.publisher::<Bytes>("raw")?;
    /// publisher.push(&Bytes::new(5), b"hello")?;
    /// let statistics = publisher.statistics();
    /// assert_eq!((statistics.published, statistics.published_bytes, statistics.refused), (1, 5, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics(&self) -> PublisherStatistics {
        self.inner.statistics()
    }

    /// The number of subscribers on this host, plus one for each remote host that subscribes. 0 in a forked child.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// let publisher = node.publisher::<Bytes>("raw")?;
    /// assert_eq!(publisher.subscriber_count(), 0); // nobody would read a message now
    /// let subscriber = node.subscriber::<Bytes>("raw")?;
    /// assert_eq!(publisher.subscriber_count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscriber_count(&self) -> usize {
        self.inner.subscriber_count()
    }

    /// Whether every publication fails with `PublishError::CutOff`. Create it again then. Never waits.
    pub fn is_cut_off(&self) -> bool {
        self.inner.is_cut_off()
    }

    /// Those of them that messages reach now: all on this host, and each remote host that is connected. What is published for another host meanwhile is
    /// sent once it is connected, if it is still within the publisher's depth.
    pub fn linked_subscriber_count(&self) -> usize {
        self.inner.linked_subscriber_count()
    }
}

/// A loaned block of the publisher's pool, to be filled. Dropping it without publishing gives the block back.
///
/// A block that was used before still has its old bytes: fill all of it. On a GPU, let a kernel fill it in place (`device_address`,
/// `publish_on`). If you use the loan as a slice there, you fill host memory, which `publish` copies into the block, as if pushed.
/// The slice is empty in a forked child, where the pool is not mapped.
///
/// ```
/// # use rgaps::{Node, types::{Encoding, Image, Meta, Stamp}};
/// # let _host = rgaps_testing::example_host();
/// # let publisher = Node::new("camera")?.publisher::<Image>("camera/front")?;
/// let image = Image::new(640, 480, Encoding::Rgb8)?;
/// let mut loan = publisher.loan(image)?;
/// loan.fill(0); // here the camera writes its pixels
/// loan.set_meta(image.stamped(Stamp::now()))?; // the time of the exposure's end
/// let handle = loan.publish()?;
/// assert_eq!(handle.sequence, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a loan does nothing until it is published"]
pub struct Loan<T> {
    pub(crate) inner: LoanInner,
    meta: T,
}

impl<T: Meta> AnyLoan for Loan<T> {
    fn inner(&self) -> &LoanInner {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut LoanInner {
        &mut self.inner
    }

    fn encode(&self) -> &dyn Encode {
        &self.meta
    }
}

impl<T: Meta> Loan<T> {
    /// Publishes the message without a copy.
    ///
    /// ```
    /// # use rgaps::{Node, Origin, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let mut loan = publisher.loan(Bytes::new(5))?;
    /// loan.copy_from_slice(b"hello");
    /// let handle = loan.publish()?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// assert_eq!((sample.handle(), sample.info().origin), (handle, Origin::Loaned));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish(self) -> Result<MessageHandle, PublishError> {
        self.inner.publish(&self.meta, None)
    }

    /// Publishes the message in stream order: the work that the stream has so far fills the block. The call does not wait for that work, whatever
    /// the size. Subscribers get the message when it is complete.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let stream = node.stream()?;
    /// let mut loan = publisher.loan(Bytes::new(5))?;
    /// let copy = node.device().copy_in(&stream, b"hello", loan.part()?)?;
    /// loan.publish_on(&stream)?; // subscribers get it after the copy
    /// # copy.wait(std::time::Duration::from_secs(1))?;
    /// # assert_eq!(subscriber.take()?.ok_or("no message")?.bytes(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_on(self, stream: &Stream) -> Result<MessageHandle, PublishError> {
        self.inner.publish(&self.meta, Some(stream))
    }

    /// The block's address on the device, for a kernel or a copy to fill it; a pointer on the host backend. If the node's device has no peer access
    /// to the block, this is the address of other device memory, which publishing copies into the block, as if pushed.
    ///
    /// All writes there must be complete before the loan is dropped or published, or be in the stream that it is published on.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # fn launch_fill(address: u64, bytes: u64, stream: &rgaps::device::Stream) { assert!(address > 0 && bytes == 64) }
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// let stream = node.stream()?;
    /// let loan = publisher.loan(Bytes::new(64))?;
    /// launch_fill(loan.device_address()?, loan.meta().bytes, &stream);
    /// loan.publish_on(&stream)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn device_address(&self) -> Result<u64, PublishError> {
        self.inner.device_address()
    }

    /// The block as the target of copies on the device (`Backend::copy_to_device`, `copy_within`). Like `device_address`, it may be other memory of
    /// the node's device. The copies must be complete before the loan is dropped or published, or be in the stream that it is published on. Returns
    /// an error in a forked child, where the pool is not mapped.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let stream = node.stream()?;
    /// let mut loan = publisher.loan(Bytes::new(10))?;
    /// let head = node.device().copy_in(&stream, b"hello", loan.part()?)?;
    /// let tail = node.device().copy_in(&stream, b"world", loan.part()?.skip(5)?)?;
    /// loan.publish_on(&stream)?;
    /// # (head.wait(std::time::Duration::from_secs(1))?, tail.wait(std::time::Duration::from_secs(1))?);
    /// # assert_eq!(subscriber.take()?.ok_or("no message")?.bytes(), b"helloworld");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn part(&mut self) -> Result<PoolPart<'_>, PublishError> {
        self.inner.part()
    }

    /// Replaces the metadata before publishing. The new one must describe the same number of bytes.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Encoding, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// # let publisher = Node::new("camera")?.publisher::<Image>("camera")?;
    /// let mut loan = publisher.loan(Image::new(640, 480, Encoding::Rgb8)?)?;
    /// loan.set_meta(Image::new(480, 640, Encoding::Rgb8)?)?; // turned, with as many bytes
    /// assert!(loan.set_meta(Image::new(640, 480, Encoding::Mono8)?).is_err(), "fewer bytes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_meta(&mut self, meta: T) -> Result<(), PublishError> {
        self.inner.check(&meta)?;
        self.meta = meta;
        Ok(())
    }

    /// The metadata.
    pub fn meta(&self) -> &T {
        &self.meta
    }
}

impl<T> Deref for Loan<T> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inner.bytes()
    }
}

impl<T> DerefMut for Loan<T> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.inner.bytes_mut()
    }
}
