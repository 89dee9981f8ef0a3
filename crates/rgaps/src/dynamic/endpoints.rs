//! Publishers, loans and subscribers of any kind.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rgaps_device::dlpack::ManagedTensor;
use rgaps_device::{DevicePart, Stream};

use super::sample::{DynamicSample, TypedSample};
use super::{DynamicMeta, Kind, another_kind, by_kind};
use crate::described::Described;
use crate::dlpack::UnmanagedTensor;
use crate::endpoint::error::NodeError;
use crate::endpoint::publish_error::PublishError;
use crate::endpoint::take_by_handle::TakeByHandleError;
use crate::endpoint::take_error::TakeError;
use crate::handle::Handle;
use crate::node::Node;
use crate::publisher::{Loan, Publisher};
use crate::statistics::{PublisherStatistics, SubscriberStatistics};
use crate::subscriber::Subscriber;
use crate::types::{Bytes, Image, PointCloud, Tensor, ViewError};
use crate::{PublisherQos, SubscriberQos};

/// A publisher whose kind is chosen at run time. Cheap to clone; every clone is the same publisher.
#[derive(Clone, Debug)]
pub enum DynamicPublisher {
    /// Publishes raw bytes.
    Bytes(Publisher<Bytes>),
    /// Publishes images.
    Image(Publisher<Image>),
    /// Publishes point clouds.
    PointCloud(Publisher<PointCloud>),
    /// Publishes tensors.
    Tensor(Publisher<Tensor>),
}

impl DynamicPublisher {
    /// Creates a publisher, like `Node::publisher_with`.
    pub fn new(node: &Node, topic: &str, kind: Kind, qos: PublisherQos) -> Result<Self, NodeError> {
        match kind {
            Kind::Bytes => node.publisher_with(topic, qos).map(Self::Bytes),
            Kind::Image => node.publisher_with(topic, qos).map(Self::Image),
            Kind::PointCloud => node.publisher_with(topic, qos).map(Self::PointCloud),
            Kind::Tensor => node.publisher_with(topic, qos).map(Self::Tensor),
        }
    }

    /// The kind of message.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Bytes(_) => Kind::Bytes,
            Self::Image(_) => Kind::Image,
            Self::PointCloud(_) => Kind::PointCloud,
            Self::Tensor(_) => Kind::Tensor,
        }
    }

    /// Like `Publisher::loan`. Returns an error if the metadata is of another kind.
    pub fn loan(&self, meta: &DynamicMeta) -> Result<DynamicLoan, PublishError> {
        match (self, meta) {
            (Self::Bytes(publisher), DynamicMeta::Bytes(meta)) => publisher.loan(*meta).map(DynamicLoan::Bytes),
            (Self::Image(publisher), DynamicMeta::Image(meta)) => publisher.loan(*meta).map(DynamicLoan::Image),
            (Self::PointCloud(publisher), DynamicMeta::PointCloud(meta)) => {
                publisher.loan(*meta).map(DynamicLoan::PointCloud)
            }
            (Self::Tensor(publisher), DynamicMeta::Tensor(meta)) => publisher.loan(*meta).map(DynamicLoan::Tensor),
            _ => Err(self.refuse(meta)),
        }
    }

    /// Like `Publisher::push`. Returns an error if the metadata is of another kind.
    pub fn push(&self, meta: &DynamicMeta, bytes: &[u8]) -> Result<Handle, PublishError> {
        match (self, meta) {
            (Self::Bytes(publisher), DynamicMeta::Bytes(meta)) => publisher.push(meta, bytes),
            (Self::Image(publisher), DynamicMeta::Image(meta)) => publisher.push(meta, bytes),
            (Self::PointCloud(publisher), DynamicMeta::PointCloud(meta)) => publisher.push(meta, bytes),
            (Self::Tensor(publisher), DynamicMeta::Tensor(meta)) => publisher.push(meta, bytes),
            _ => Err(self.refuse(meta)),
        }
    }

    /// Like `Publisher::push_with`. Returns an error if the metadata is of another kind.
    pub fn push_with(&self, meta: &DynamicMeta, fill: impl FnOnce(&mut [u8])) -> Result<Handle, PublishError> {
        match (self, meta) {
            (Self::Bytes(publisher), DynamicMeta::Bytes(meta)) => publisher.push_with(meta, fill),
            (Self::Image(publisher), DynamicMeta::Image(meta)) => publisher.push_with(meta, fill),
            (Self::PointCloud(publisher), DynamicMeta::PointCloud(meta)) => publisher.push_with(meta, fill),
            (Self::Tensor(publisher), DynamicMeta::Tensor(meta)) => publisher.push_with(meta, fill),
            _ => Err(self.refuse(meta)),
        }
    }

    /// Like `Publisher::push_on`. Returns an error if the metadata is of another kind.
    pub fn push_on(&self, meta: &DynamicMeta, from: &DevicePart, stream: &Stream) -> Result<Handle, PublishError> {
        match (self, meta) {
            (Self::Bytes(publisher), DynamicMeta::Bytes(meta)) => publisher.push_on(meta, from, stream),
            (Self::Image(publisher), DynamicMeta::Image(meta)) => publisher.push_on(meta, from, stream),
            (Self::PointCloud(publisher), DynamicMeta::PointCloud(meta)) => publisher.push_on(meta, from, stream),
            (Self::Tensor(publisher), DynamicMeta::Tensor(meta)) => publisher.push_on(meta, from, stream),
            _ => Err(self.refuse(meta)),
        }
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        by_kind!(Self, self, publisher => publisher.topic())
    }

    /// Like `Publisher::statistics`.
    pub fn statistics(&self) -> PublisherStatistics {
        by_kind!(Self, self, publisher => publisher.statistics())
    }

    /// Like `Publisher::subscriber_count`.
    pub fn subscriber_count(&self) -> usize {
        by_kind!(Self, self, publisher => publisher.subscriber_count())
    }

    fn refuse(&self, meta: &DynamicMeta) -> PublishError {
        PublishError::Metadata { topic: self.topic().to_owned(), source: another_kind(self.kind(), meta.kind()) }
    }
}

/// A loan of a `DynamicPublisher`. Fill it with `bytes_mut` or on the device, and publish it.
#[derive(Debug)]
#[must_use = "a loan does nothing until it is published"]
#[allow(clippy::large_enum_variant)] // A loan is moved twice at most: to the caller and to `publish`.
pub enum DynamicLoan {
    /// A loan of raw bytes.
    Bytes(Loan<Bytes>),
    /// A loan of an image.
    Image(Loan<Image>),
    /// A loan of a point cloud.
    PointCloud(Loan<PointCloud>),
    /// A loan of a tensor.
    Tensor(Loan<Tensor>),
}

impl DynamicLoan {
    /// Like `Loan::publish`.
    pub fn publish(self) -> Result<Handle, PublishError> {
        by_kind!(Self, self, loan => loan.publish())
    }

    /// Like `Loan::publish_on`.
    pub fn publish_on(self, stream: &Stream) -> Result<Handle, PublishError> {
        by_kind!(Self, self, loan => loan.publish_on(stream))
    }

    /// The block for the CPU, read-only.
    pub fn bytes(&self) -> &[u8] {
        by_kind!(Self, self, loan => loan)
    }

    /// The block for the CPU to fill: in place if the CPU can map it, else host memory that `publish` copies into the block.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        by_kind!(Self, self, loan => loan)
    }

    /// Like `Loan::device_address`.
    pub fn device_address(&self) -> Result<u64, PublishError> {
        by_kind!(Self, self, loan => loan.device_address())
    }

    /// Like `Loan::describe`.
    pub fn describe(&self) -> Result<UnmanagedTensor, PublishError> {
        by_kind!(Self, self, loan => loan.describe())
    }

    /// Like `Loan::describe_field`. Returns an error if the loan is not a point cloud.
    pub fn describe_field(&self, name: &str) -> Result<UnmanagedTensor, PublishError> {
        match self {
            Self::PointCloud(loan) => loan.describe_field(name),
            other => Err(other.view_error(another_kind(Kind::PointCloud, other.meta().kind()).into())),
        }
    }

    /// The block as a tensor for an array library to fill. The tensor keeps only the pool mapped. Do not write to it after the loan is published or
    /// dropped: subscribers or later messages use that memory then.
    pub fn to_dlpack(&self, described: &UnmanagedTensor) -> ManagedTensor {
        described.manage(by_kind!(Self, self, loan => loan.memory()))
    }

    /// Like `Loan::set_meta`. Returns an error if the metadata is of another kind.
    pub fn set_meta(&mut self, meta: &DynamicMeta) -> Result<(), PublishError> {
        match (self, meta) {
            (Self::Bytes(loan), DynamicMeta::Bytes(meta)) => loan.set_meta(*meta),
            (Self::Image(loan), DynamicMeta::Image(meta)) => loan.set_meta(*meta),
            (Self::PointCloud(loan), DynamicMeta::PointCloud(meta)) => loan.set_meta(*meta),
            (Self::Tensor(loan), DynamicMeta::Tensor(meta)) => loan.set_meta(*meta),
            (loan, meta) => Err(loan.view_error(another_kind(loan.meta().kind(), meta.kind()).into())),
        }
    }

    /// The metadata.
    pub fn meta(&self) -> DynamicMeta {
        by_kind!(Self, self, loan => (*loan.meta()).into())
    }

    fn view_error(&self, source: ViewError) -> PublishError {
        by_kind!(Self, self, loan => loan.view_error(source))
    }
}

/// A subscriber whose kind is chosen at run time. Cheap to clone; every clone is the same subscriber.
#[derive(Clone, Debug)]
pub enum DynamicSubscriber {
    /// Takes raw bytes.
    Bytes(Subscriber<Bytes>),
    /// Takes images.
    Image(Subscriber<Image>),
    /// Takes point clouds.
    PointCloud(Subscriber<PointCloud>),
    /// Takes tensors.
    Tensor(Subscriber<Tensor>),
}

impl DynamicSubscriber {
    /// Creates a subscriber, like `Node::subscriber_with`.
    pub fn new(node: &Node, topic: &str, kind: Kind, qos: SubscriberQos) -> Result<Self, NodeError> {
        match kind {
            Kind::Bytes => node.subscriber_with(topic, qos).map(Self::Bytes),
            Kind::Image => node.subscriber_with(topic, qos).map(Self::Image),
            Kind::PointCloud => node.subscriber_with(topic, qos).map(Self::PointCloud),
            Kind::Tensor => node.subscriber_with(topic, qos).map(Self::Tensor),
        }
    }

    /// The kind of message.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Bytes(_) => Kind::Bytes,
            Self::Image(_) => Kind::Image,
            Self::PointCloud(_) => Kind::PointCloud,
            Self::Tensor(_) => Kind::Tensor,
        }
    }

    /// Like `Subscriber::take`.
    pub fn take(&self) -> Result<Option<DynamicSample>, TakeError> {
        by_kind!(Self, self, subscriber => Ok(subscriber.take()?.map(TypedSample::from).map(DynamicSample::new)))
    }

    /// Like `Subscriber::take_on`.
    pub fn take_on(&self, stream: &Stream) -> Result<Option<DynamicSample>, TakeError> {
        by_kind!(Self, self, subscriber => Ok(subscriber.take_on(stream)?.map(TypedSample::from).map(DynamicSample::new)))
    }

    /// Like `Subscriber::take_described`.
    pub fn take_described(&self) -> Result<Option<Described<DynamicMeta>>, TakeError> {
        by_kind!(Self, self, subscriber => Ok(subscriber.take_described()?.map(Described::into_dynamic)))
    }

    /// Like `Subscriber::expect_handles_in_order`.
    pub fn expect_handles_in_order(&self) {
        by_kind!(Self, self, subscriber => subscriber.expect_handles_in_order());
    }

    /// Like `Subscriber::take_by_handle`.
    pub fn take_by_handle(&self, handle: &Handle, timeout: Duration) -> Result<DynamicSample, TakeByHandleError> {
        by_kind!(Self, self, subscriber => subscriber.take_by_handle(handle, timeout).map(TypedSample::from).map(DynamicSample::new))
    }

    /// Like `Subscriber::take_by_handle_on`.
    pub fn take_by_handle_on(
        &self,
        handle: &Handle,
        timeout: Duration,
        stream: &Stream,
    ) -> Result<DynamicSample, TakeByHandleError> {
        by_kind!(Self, self, subscriber => {
            subscriber.take_by_handle_on(handle, timeout, stream).map(TypedSample::from).map(DynamicSample::new)
        })
    }

    /// Like `Subscriber::take_by_handle_unless`.
    pub fn take_by_handle_unless(
        &self,
        handle: &Handle,
        timeout: Duration,
        stream: Option<&Stream>,
        is_over: impl Fn() -> bool,
    ) -> Result<DynamicSample, TakeByHandleError> {
        by_kind!(Self, self, subscriber => {
            subscriber.take_by_handle_unless(handle, timeout, stream, is_over).map(TypedSample::from).map(DynamicSample::new)
        })
    }

    /// Like `Subscriber::wait`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<DynamicSample>, TakeError> {
        by_kind!(Self, self, subscriber => Ok(subscriber.wait(timeout)?.map(TypedSample::from).map(DynamicSample::new)))
    }

    /// Like `Subscriber::wait_unless`.
    pub fn wait_unless(
        &self,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<DynamicSample>, TakeError> {
        by_kind!(Self, self, subscriber => {
            Ok(subscriber.wait_unless(timeout, is_over)?.map(TypedSample::from).map(DynamicSample::new))
        })
    }

    /// Like `Subscriber::wake_waiters`.
    pub fn wake_waiters(&self) {
        by_kind!(Self, self, subscriber => subscriber.wake_waiters());
    }

    /// Like `Subscriber::ready_count`.
    pub fn ready_count(&self, limit: usize) -> usize {
        by_kind!(Self, self, subscriber => subscriber.ready_count(limit))
    }

    /// Like `Subscriber::event_fd`.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, TakeError> {
        by_kind!(Self, self, subscriber => subscriber.event_fd())
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        by_kind!(Self, self, subscriber => subscriber.topic())
    }

    /// Like `Subscriber::statistics`.
    pub fn statistics(&self) -> SubscriberStatistics {
        by_kind!(Self, self, subscriber => subscriber.statistics())
    }
}
