//! Samples: a taken message's metadata, its payload for the CPU or a device, and its release.

use rgaps_device::{PoolPart, Stream};
use rgaps_shm::MessageInfo;
use rgaps_shm::words::message::Readiness;

use crate::endpoint::sample::SampleInner;
use crate::endpoint::take_error::TakeError;
use crate::handle::MessageHandle;
use crate::types::Meta;

/// A taken message, in the memory where its publisher wrote it (or the manager, for a message from another host). If the node's device has no peer
/// access to that memory (`NodeBuilder::device`), the sample is a copy on that device.
///
/// A sample stays valid however many messages the publisher publishes, and may outlive its subscriber. Dropping it releases the message.
///
/// ```
/// # use rgaps::{Node, Subscriber, TakeError, types::{Encoding, Image}};
/// fn brightness(subscriber: &Subscriber<Image>) -> Result<Option<u8>, TakeError> {
///     let Some(sample) = subscriber.take()? else { return Ok(None) };
///     Ok(sample.bytes().iter().copied().max()) // read in place
/// } // releases the message
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("meter")?;
/// # let (publisher, subscriber) = (node.publisher::<Image>("camera")?, node.subscriber::<Image>("camera")?);
/// # let mut loan = publisher.loan(Image::new(64, 48, Encoding::Mono8)?)?;
/// # loan.fill(7);
/// # loan.publish()?;
/// assert_eq!(brightness(&subscriber)?, Some(7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Sample<T> {
    meta: T,
    pub(crate) inner: SampleInner,
}

impl<T: Meta> Sample<T> {
    pub(crate) fn new((meta, inner): (T, SampleInner)) -> Self {
        Self { meta, inner }
    }

    /// The typed metadata.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Encoding, Image, Meta, Stamp}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("viewer")?;
    /// # let (publisher, subscriber) = (node.publisher::<Image>("camera")?, node.subscriber::<Image>("camera")?);
    /// # publisher.push(&Image::new(2, 2, Encoding::Mono8)?.stamped(Stamp::now()).in_frame("front")?, &[1, 2, 3, 4])?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let image = sample.meta();
    /// println!("{} x {} {} of {}", image.width, image.height, image.encoding, image.header.frame_id);
    /// let age_ns = sample.taken_ns() as i64 - image.header.stamp.to_ns();
    /// # assert!(age_ns >= 0 && image.header.frame_id.as_str() == "front");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn meta(&self) -> &T {
        &self.meta
    }

    /// The payload for the CPU: in place if the CPU can read it there, else a copy that the first call makes and counts
    /// (`SubscriberStatistics::copied_bytes`). If the copy fails, this logs the error and returns an empty slice; `to_host` returns the error. Empty
    /// in a forked child, where the pool is not mapped.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Encoding, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("meter")?;
    /// # let (publisher, subscriber) = (node.publisher::<Image>("camera")?, node.subscriber::<Image>("camera")?);
    /// # publisher.push(&Image::new(2, 2, Encoding::Mono8)?, &[1, 2, 3, 4])?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let rows: Vec<&[u8]> = sample.bytes().chunks(sample.meta().step as usize).collect();
    /// assert_eq!(rows, [[1, 2], [3, 4]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bytes(&self) -> &[u8] {
        self.inner.bytes()
    }

    /// Like `bytes`, but returns errors. Waits at most 10 s for bytes that a device still has to write.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// assert_eq!(sample.to_host()?, b"hello");
    /// if !sample.is_in_place() {
    ///     println!("{} B copied from the GPU", subscriber.statistics().copied_bytes);
    /// }
    /// # assert!(sample.is_in_place());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_host(&self) -> Result<&[u8], TakeError> {
        self.inner.to_host()
    }

    /// Whether `bytes` reads the payload in place.
    pub fn is_in_place(&self) -> bool {
        self.inner.is_in_place()
    }

    /// The payload's address on the device, for a kernel or a copy to read it; a pointer on the host backend.
    ///
    /// All reads must be complete before the sample is dropped. Reads in the stream of `release_on`, or in the stream of `take_on` if the sample is
    /// dropped, may still be running.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # fn launch(address: u64, bytes: u64, stream: &rgaps::device::Stream) { assert!(address > 0 && bytes == 5) }
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let stream = node.stream()?;
    /// let sample = subscriber.take_on(&stream)?.ok_or("no message")?;
    /// launch(sample.device_address()?, sample.info().bytes, &stream);
    /// sample.release_on(&stream)?; // after the kernel
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn device_address(&self) -> Result<u64, TakeError> {
        self.inner.device_address()
    }

    /// The payload as the source of copies on the device (`Backend::copy_to_host`, `copy_out`). The rule of `device_address` applies to them. Returns
    /// an error in a forked child, where the pool is not mapped.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(10), b"helloworld")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let mut tail = [0; 5];
    /// node.device().copy_out(&node.stream()?, sample.part()?.skip(5)?, &mut tail)?; // only these bytes leave the GPU
    /// assert_eq!(&tail, b"world");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn part(&self) -> Result<PoolPart<'_>, TakeError> {
        self.inner.part()
    }

    /// Whether the bytes are written. Only a sample of `take_on` can be `Pending`.
    ///
    /// ```
    /// # use rgaps::{Node, Readiness, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take_on(&node.stream()?)?.ok_or("no message")?;
    /// match sample.readiness() {
    ///     Readiness::Ready => println!("{} B", sample.bytes().len()),
    ///     Readiness::Pending => println!("the publisher's kernel still runs"),
    ///     Readiness::Poisoned => println!("the publisher died or its device failed"),
    /// }
    /// # assert_eq!(sample.readiness(), Readiness::Ready);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn readiness(&self) -> Readiness {
        self.inner.readiness()
    }

    /// Releases the message after the work that the stream has so far. The call does not wait for that work.
    ///
    /// ```no_run
    /// # // It needs a GPU.
    /// # use rgaps::{Node, Subscriber, types::Image};
    /// # fn launch(image: rgaps::device::ImageView, stream: &rgaps::device::Stream) {}
    /// # fn example(node: &Node, subscriber: &Subscriber<Image>) -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = node.stream()?;
    /// if let Some(sample) = subscriber.take_on(&stream)? {
    ///     launch(sample.view()?, &stream); // a kernel that reads the image
    ///     sample.release_on(&stream)?; // after the kernel
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_on(self, stream: &Stream) -> Result<(), TakeError> {
        self.inner.release_behind(stream, Vec::new())
    }

    /// The message's origin, its route and the time of each stage.
    ///
    /// ```
    /// # use rgaps::{Node, Origin, Route, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let info = sample.info();
    /// assert_eq!((info.sequence, info.origin, info.route), (1, Origin::Pushed, Route::Local));
    /// // Saturating: another host's clock may be ahead.
    /// let latency_ns = sample.taken_ns().saturating_sub(info.stamps.published);
    /// # assert!(latency_ns < 60_000_000_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn info(&self) -> &MessageInfo {
        self.inner.info()
    }

    /// The handle that names this message outside RGAPS.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("relay")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// # let (relay, reader) = (node.subscriber::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = relay.take()?.ok_or("no message")?;
    /// let handle = sample.handle(); // to a program that has the same topic
    /// assert_eq!(reader.take_by_handle(&handle, Duration::from_secs(1))?.bytes(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn handle(&self) -> MessageHandle {
        self.inner.handle()
    }

    /// When it was taken, in ns since 1970 on this host's clock.
    pub fn taken_ns(&self) -> u64 {
        self.inner.taken_ns()
    }

    /// The memory that the payload is mapped from: (device, inode) of the pool's file, and the offset in it. The same for every subscriber. Without
    /// peer access, the same for every sample of the node that shares a copy.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// let (one, other) = (node.subscriber::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// publisher.push(&Bytes::new(5), b"hello")?;
    /// let (first, second) = (one.take()?.ok_or("no message")?, other.take()?.ok_or("no message")?);
    /// assert_eq!(first.mapped_from(), second.mapped_from(), "both read one copy");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mapped_from(&self) -> ((u64, u64), u64) {
        self.inner.mapped_from()
    }
}
