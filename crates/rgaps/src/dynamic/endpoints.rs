//! Publishers, loans and subscribers of any kind.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rgaps_device::dlpack::ManagedTensor;
use rgaps_device::{DevicePart, Stream};

use super::{DynamicMeta, DynamicSample, Kind, another_kind};
use crate::buffer::FrozenBuffer;
use crate::described::Described;
use crate::dlpack::UnmanagedTensor;
use crate::endpoint::batch::{AnyLoan, publish_all};
use crate::endpoint::encode::Encode;
use crate::endpoint::error::NodeError;
use crate::endpoint::loan::LoanInner;
use crate::endpoint::publish_error::{PublishAllError, PublishError};
use crate::endpoint::publisher::PublisherInner;
use crate::endpoint::take_by_handle::TakeByHandleError;
use crate::endpoint::take_error::TakeError;
use crate::endpoint::taker::Taker;
use crate::handle::MessageHandle;
use crate::node::Node;
use crate::pool::Pool;
use crate::statistics::{PublisherStatistics, SubscriberStatistics};
use crate::{PublisherQos, SubscriberQos};

/// A publisher whose kind is chosen at run time. Cheap to clone; every clone is the same publisher.
///
/// ```
/// # use rgaps::dynamic::{DynamicMeta, DynamicPublisher, Kind};
/// # use rgaps::types::{Bytes, Encoding, Image};
/// # use rgaps::{Node, PublisherQos};
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("bridge")?;
/// let publisher = DynamicPublisher::new(&node, "camera", Kind::Image, PublisherQos::default())?;
/// let mut loan = publisher.loan(&Image::new(64, 48, Encoding::Rgb8)?.into())?;
/// loan.bytes_mut().fill(128);
/// loan.publish()?;
/// // Metadata of another kind is refused.
/// assert!(publisher.push(&DynamicMeta::Bytes(Bytes::new(5)), b"hello").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DynamicPublisher {
    inner: Arc<PublisherInner>,
    kind: Kind,
}

impl DynamicPublisher {
    /// Creates a publisher, like `Node::publisher_with`.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::{Node, PublisherQos};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// let recorded = "rgaps/Tensor"; // the type that a recording names
    /// let publisher = DynamicPublisher::new(&node, "activations", recorded.parse()?, PublisherQos::default())?;
    /// assert_eq!(publisher.kind(), Kind::Tensor);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(node: &Node, topic: &str, kind: Kind, qos: PublisherQos) -> Result<Self, NodeError> {
        Ok(Self { inner: node.publisher_of(topic, kind.type_name(), qos)?, kind })
    }

    /// Creates a publisher in a shared pool, like `Pool::publisher_with`.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::{Exhaustion, Node, PublisherQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// let pool = node.pool(1 << 20, Exhaustion::DropOldest)?;
    /// let publisher = DynamicPublisher::in_pool(&pool, "raw", Kind::Bytes, PublisherQos::default())?;
    /// let buffer = pool.allocate(5)?.freeze()?;
    /// publisher.publish_buffer(&Bytes::new(5).into(), &buffer)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_pool(pool: &Pool, topic: &str, kind: Kind, qos: PublisherQos) -> Result<Self, NodeError> {
        Ok(Self { inner: pool.publisher_of(topic, kind.type_name(), qos)?, kind })
    }

    /// Like `Publisher::publish_buffer`. Returns an error if the metadata is of another kind.
    pub fn publish_buffer(&self, meta: &DynamicMeta, buffer: &FrozenBuffer) -> Result<MessageHandle, PublishError> {
        self.check_kind(meta)?;
        self.inner.publish_frozen(meta, &buffer.inner.block, buffer.inner.filled, None)
    }

    /// Like `Publisher::publish_buffer_on`. Returns an error if the metadata is of another kind.
    pub fn publish_buffer_on(
        &self,
        meta: &DynamicMeta,
        buffer: &FrozenBuffer,
        stream: &Stream,
    ) -> Result<MessageHandle, PublishError> {
        self.check_kind(meta)?;
        self.inner.publish_frozen(meta, &buffer.inner.block, buffer.inner.filled, Some(stream))
    }

    /// The kind of message.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Like `Publisher::loan`. Returns an error if the metadata is of another kind.
    pub fn loan(&self, meta: &DynamicMeta) -> Result<DynamicLoan, PublishError> {
        self.check_kind(meta)?;
        Ok(DynamicLoan { inner: LoanInner::new(&self.inner, meta)?, meta: *meta })
    }

    /// Like `Publisher::push`. Returns an error if the metadata is of another kind.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::types::{Encoding, Image};
    /// # use rgaps::{Node, PublisherQos};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// # let publisher = DynamicPublisher::new(&node, "camera", Kind::Image, PublisherQos::default())?;
    /// let meta = Image::new(2, 2, Encoding::Mono8)?.into();
    /// let handle = publisher.push(&meta, &[1, 2, 3, 4])?;
    /// assert_eq!((handle.kind, handle.payload_bytes), (Kind::Image.code(), 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push(&self, meta: &DynamicMeta, bytes: &[u8]) -> Result<MessageHandle, PublishError> {
        self.check_kind(meta)?;
        self.inner.push(meta, bytes)
    }

    /// Like `Publisher::push_with`. Returns an error if the metadata is of another kind.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::{Node, PublisherQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// # let publisher = DynamicPublisher::new(&node, "raw", Kind::Bytes, PublisherQos::default())?;
    /// publisher.push_with(&Bytes::new(64).into(), |block| {
    ///     block[..32].fill(1);
    ///     block[32..].fill(2);
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push_with(&self, meta: &DynamicMeta, fill: impl FnOnce(&mut [u8])) -> Result<MessageHandle, PublishError> {
        self.check_kind(meta)?;
        let mut loan = LoanInner::new(&self.inner, meta)?;
        fill(loan.bytes_mut());
        loan.push(meta)
    }

    /// Like `Publisher::push_on`. Returns an error if the metadata is of another kind.
    pub fn push_on(
        &self,
        meta: &DynamicMeta,
        from: &DevicePart,
        stream: &Stream,
    ) -> Result<MessageHandle, PublishError> {
        self.check_kind(meta)?;
        self.inner.push_on(meta, from, stream)
    }

    /// Like `Publisher::publish_all`.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::{Node, PublisherQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// # let publisher = DynamicPublisher::new(&node, "raw", Kind::Bytes, PublisherQos::default())?;
    /// let mut loans = Vec::new();
    /// for byte in 0..3 {
    ///     let mut loan = publisher.loan(&Bytes::new(64).into())?;
    ///     loan.bytes_mut().fill(byte);
    ///     loans.push(loan);
    /// }
    /// assert_eq!(publisher.publish_all(loans)?.len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_all(&self, loans: Vec<DynamicLoan>) -> Result<Vec<MessageHandle>, PublishAllError<DynamicLoan>> {
        publish_all(&self.inner, loans)
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.inner.topic
    }

    /// Like `Publisher::statistics`.
    pub fn statistics(&self) -> PublisherStatistics {
        self.inner.statistics()
    }

    /// Like `Publisher::subscriber_count`.
    pub fn subscriber_count(&self) -> usize {
        self.inner.subscriber_count()
    }

    fn check_kind(&self, meta: &DynamicMeta) -> Result<(), PublishError> {
        match meta.kind() {
            kind if kind == self.kind => Ok(()),
            kind => Err(self.inner.metadata(another_kind(self.kind, kind))),
        }
    }
}

/// A loan of a [`DynamicPublisher`], which has an example. Fill it with `bytes_mut` or on the device, and publish it.
#[derive(Debug)]
#[must_use = "a loan does nothing until it is published"]
pub struct DynamicLoan {
    inner: LoanInner,
    meta: DynamicMeta,
}

impl AnyLoan for DynamicLoan {
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

impl DynamicLoan {
    /// Like `Loan::publish`.
    pub fn publish(self) -> Result<MessageHandle, PublishError> {
        self.inner.publish(&self.meta, None)
    }

    /// Like `Loan::publish_on`.
    pub fn publish_on(self, stream: &Stream) -> Result<MessageHandle, PublishError> {
        self.inner.publish(&self.meta, Some(stream))
    }

    /// The block for the CPU, read-only.
    pub fn bytes(&self) -> &[u8] {
        self.inner.bytes()
    }

    /// The block for the CPU to fill: in place if the CPU can map it, else host memory that `publish` copies into the block.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.inner.bytes_mut()
    }

    /// Like `Loan::device_address`.
    pub fn device_address(&self) -> Result<u64, PublishError> {
        self.inner.device_address()
    }

    /// Like `Loan::describe`.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::types::{DType, Tensor};
    /// # use rgaps::{Node, PublisherQos};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// # let publisher = DynamicPublisher::new(&node, "activations", Kind::Tensor, PublisherQos::default())?;
    /// let loan = publisher.loan(&Tensor::new(DType::FLOAT32, &[2, 3])?.into())?;
    /// let described = loan.describe()?;
    /// assert_eq!((described.shape(), described.dtype()), (&[2, 3][..], DType::FLOAT32));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn describe(&self) -> Result<UnmanagedTensor, PublishError> {
        let described = self.meta.describe(&self.inner.device_range()?);
        described.map_err(|source| self.inner.publisher.view_error(source))
    }

    /// Like `Loan::describe_field`. Returns an error if the loan is not a point cloud.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::types::{Datatype, PointCloud};
    /// # use rgaps::{Node, PublisherQos};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// # let publisher = DynamicPublisher::new(&node, "points", Kind::PointCloud, PublisherQos::default())?;
    /// let cloud = PointCloud::packed(1000, &[("x", Datatype::Float32), ("y", Datatype::Float32)])?;
    /// let loan = publisher.loan(&cloud.into())?;
    /// assert_eq!(loan.describe_field("y")?.strides(), [2]); // elements from one y to the next
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn describe_field(&self, name: &str) -> Result<UnmanagedTensor, PublishError> {
        let described = self.meta.describe_field(name, &self.inner.device_range()?);
        described.map_err(|source| self.inner.publisher.view_error(source))
    }

    /// The block as a tensor for an array library to fill. The tensor keeps only the pool mapped. Do not write to it after the loan is published or
    /// dropped: subscribers or later messages use that memory then.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::types::{DType, Tensor};
    /// # use rgaps::{Node, PublisherQos};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// # let publisher = DynamicPublisher::new(&node, "activations", Kind::Tensor, PublisherQos::default())?;
    /// let loan = publisher.loan(&Tensor::new(DType::FLOAT32, &[2, 3])?.into())?;
    /// let tensor = loan.to_dlpack(&loan.describe()?);
    /// assert_eq!(tensor.as_raw().dl_tensor.data as u64, loan.device_address()?);
    /// drop(tensor); // the library has filled the block
    /// loan.publish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_dlpack(&self, described: &UnmanagedTensor) -> ManagedTensor {
        described.manage(self.inner.memory())
    }

    /// Like `Loan::set_meta`. Returns an error if the metadata is of another kind.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicPublisher, Kind};
    /// # use rgaps::types::{Bytes, Meta, Stamp};
    /// # use rgaps::{Node, PublisherQos};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("player")?;
    /// # let publisher = DynamicPublisher::new(&node, "raw", Kind::Bytes, PublisherQos::default())?;
    /// let mut loan = publisher.loan(&Bytes::new(64).into())?;
    /// loan.set_meta(&Bytes::new(64).stamped(Stamp::now()).into())?; // when the data is complete
    /// loan.publish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_meta(&mut self, meta: &DynamicMeta) -> Result<(), PublishError> {
        let (own, other) = (self.meta.kind(), meta.kind());
        if own != other {
            return Err(self.inner.publisher.view_error(another_kind(own, other).into()));
        }
        self.inner.check(meta)?;
        self.meta = *meta;
        Ok(())
    }

    /// The metadata.
    pub fn meta(&self) -> DynamicMeta {
        self.meta
    }
}

/// A subscriber whose kind is chosen at run time. Cheap to clone; every clone is the same subscriber.
///
/// ```
/// # use rgaps::dynamic::{DynamicSubscriber, Kind};
/// # use rgaps::types::{Encoding, Image};
/// # use rgaps::{Node, SubscriberQos};
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("recorder")?;
/// let subscriber = DynamicSubscriber::new(&node, "camera", Kind::Image, SubscriberQos::default())?;
/// # let publisher = node.publisher::<Image>("camera")?;
/// # publisher.loan(Image::new(64, 48, Encoding::Rgb8)?)?.publish()?;
/// let sample = subscriber.wait(std::time::Duration::from_secs(1))?.ok_or("no message within a second")?;
/// assert_eq!((sample.kind(), sample.to_host()?.len()), (Kind::Image, 64 * 48 * 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DynamicSubscriber {
    taker: Taker<Kind>,
}

impl DynamicSubscriber {
    /// Creates a subscriber, like `Node::subscriber_with`.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicSubscriber, Kind};
    /// # use rgaps::{Node, SubscriberQos, types::Image};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("recorder")?;
    /// # let publisher = node.publisher::<Image>("camera")?;
    /// let mut subscribers = Vec::new();
    /// for topic in node.topics()? {
    ///     let kind: Kind = topic.type_name.parse()?; // "rgaps/Image"
    ///     subscribers.push(DynamicSubscriber::new(&node, topic.key.name(), kind, SubscriberQos::default())?);
    /// }
    /// assert_eq!((subscribers.len(), subscribers[0].kind()), (1, Kind::Image));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(node: &Node, topic: &str, kind: Kind, qos: SubscriberQos) -> Result<Self, NodeError> {
        Ok(Self { taker: Taker::new(node.subscriber_of(topic, kind.type_name(), qos)?, kind) })
    }

    /// The kind of message.
    pub fn kind(&self) -> Kind {
        self.taker.decoder
    }

    /// Like `Subscriber::take`.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicMeta, DynamicSubscriber, Kind};
    /// # use rgaps::{Node, SubscriberQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("recorder")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// # let subscriber = DynamicSubscriber::new(&node, "raw", Kind::Bytes, SubscriberQos::default())?;
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// while let Some(sample) = subscriber.take()? {
    ///     match sample.meta() {
    ///         DynamicMeta::Image(image) => println!("{} x {}", image.width, image.height),
    ///         other => println!("{}, {} B", other.kind(), other.payload_bytes()),
    ///     }
    /// }
    /// # assert_eq!(subscriber.statistics().taken, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take(&self) -> Result<Option<DynamicSample>, TakeError> {
        Ok(self.taker.take(None)?.map(DynamicSample::new))
    }

    /// Like `Subscriber::take_on`.
    pub fn take_on(&self, stream: &Stream) -> Result<Option<DynamicSample>, TakeError> {
        Ok(self.taker.take(Some(stream))?.map(DynamicSample::new))
    }

    /// Like `Subscriber::take_described`.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicSubscriber, Kind};
    /// # use rgaps::{MessageHandle, Node, SubscriberQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("recorder")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// # let subscriber = DynamicSubscriber::new(&node, "raw", Kind::Bytes, SubscriberQos::default())?;
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let described = subscriber.take_described()?.ok_or("no message")?;
    /// let (name, meta): ([u8; MessageHandle::BYTES], _) = (described.handle.to_bytes(), described.meta); // to record
    /// assert_eq!((meta.payload_bytes(), MessageHandle::from_bytes(&name).sequence), (5, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_described(&self) -> Result<Option<Described<DynamicMeta>>, TakeError> {
        Ok(self.taker.take_described()?.map(|described| Described::new(described, self.taker.inner())))
    }

    /// Like `Subscriber::expect_handles_in_order`.
    pub fn expect_handles_in_order(&self) {
        self.taker.expect_handles_in_order();
    }

    /// Like `Subscriber::take_by_handle`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::dynamic::{DynamicSubscriber, Kind};
    /// # use rgaps::{Node, SubscriberQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("bridge")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// # let subscriber = DynamicSubscriber::new(&node, "raw", Kind::Bytes, SubscriberQos::default())?;
    /// let handle = publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take_by_handle(&handle, Duration::from_secs(1))?;
    /// assert_eq!(sample.to_host()?, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_by_handle(
        &self,
        handle: &MessageHandle,
        timeout: Duration,
    ) -> Result<DynamicSample, TakeByHandleError> {
        self.take_by_handle_unless(handle, timeout, None, || false)
    }

    /// Like `Subscriber::take_by_handle_on`.
    pub fn take_by_handle_on(
        &self,
        handle: &MessageHandle,
        timeout: Duration,
        stream: &Stream,
    ) -> Result<DynamicSample, TakeByHandleError> {
        self.take_by_handle_unless(handle, timeout, Some(stream), || false)
    }

    /// Like `Subscriber::take_by_handle_unless`.
    pub fn take_by_handle_unless(
        &self,
        handle: &MessageHandle,
        timeout: Duration,
        stream: Option<&Stream>,
        is_over: impl Fn() -> bool,
    ) -> Result<DynamicSample, TakeByHandleError> {
        self.taker.take_by_handle_unless(handle, timeout, stream, is_over).map(DynamicSample::new)
    }

    /// Like `Subscriber::wait`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::dynamic::{DynamicSubscriber, Kind};
    /// # use rgaps::{Node, SubscriberQos};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("recorder")?;
    /// # let subscriber = DynamicSubscriber::new(&node, "raw", Kind::Bytes, SubscriberQos::default())?;
    /// if subscriber.wait(Duration::from_millis(1))?.is_none() {
    ///     println!("no message within 1 ms");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(&self, timeout: Duration) -> Result<Option<DynamicSample>, TakeError> {
        self.wait_unless(timeout, || false)
    }

    /// Like `Subscriber::wait_unless`.
    pub fn wait_unless(
        &self,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<DynamicSample>, TakeError> {
        Ok(self.taker.wait_unless(timeout, is_over)?.map(DynamicSample::new))
    }

    /// Like `Subscriber::wake_waiters`.
    pub fn wake_waiters(&self) {
        self.taker.wake_waiters();
    }

    /// Like `Subscriber::ready_count`.
    pub fn ready_count(&self, limit: usize) -> usize {
        self.taker.ready_count(limit)
    }

    /// Like `Subscriber::event_fd`.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, TakeError> {
        self.taker.event_fd()
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.taker.inner().topic
    }

    /// Like `Subscriber::statistics`.
    pub fn statistics(&self) -> SubscriberStatistics {
        self.taker.statistics()
    }
}
