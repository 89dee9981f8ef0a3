//! A taken message of any kind, shared by several holders: clones, and tensors that array libraries have.
//!
//! Invariants  DS1 the message is released once, when the last holder has released it. DS2 it is released after the work of every stream that a holder
//!             released it on, in whatever order the holders do so.

use std::sync::{Arc, Mutex, PoisonError};

use rgaps_device::dlpack::ManagedTensor;
use rgaps_device::{DeviceRange, Stream};
use rgaps_shm::MessageInfo;
use rgaps_shm::words::message::Readiness;

use super::{DynamicMeta, Kind};
use crate::dlpack::UnmanagedTensor;
use crate::endpoint::completions::{DEVICE_TIMEOUT, StreamPoint};
use crate::endpoint::sample::SampleInner;
use crate::endpoint::take_error::TakeError;
use crate::handle::MessageHandle;

/// What the holders of a message share.
#[derive(Debug)]
struct Shared {
    meta: DynamicMeta,
    /// `None` once it is released.
    sample: Option<SampleInner>,
    /// Points of the streams on which earlier holders released it.
    behind: Mutex<Vec<StreamPoint>>,
}

impl Shared {
    fn finish_behind(&self, stream: &Stream) {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).push(StreamPoint::of(stream));
    }

    /// The last holder's release: on the given stream, else on the stream that the sample was taken on, else on any.
    fn give_up(&mut self, stream: Option<&Stream>) -> Result<(), TakeError> {
        let Some(sample) = self.sample.take() else { return Ok(()) };
        let behind = std::mem::take(self.behind.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A forked child has neither streams nor the segment; the sample's own drop handles that.
        if !sample.node().is_owner() || (behind.is_empty() && stream.is_none()) {
            return Ok(());
        }
        let stream = stream.or(sample.taken_on()).cloned().or_else(|| sample.node().own_stream().ok());
        let stream = stream.or_else(|| behind.last().map(|place| place.stream().clone()));
        stream.map_or(Ok(()), |stream| sample.release_behind(&stream, behind))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = self.give_up(None) {
            tracing::error!(%error, "a message could not be released in stream order");
        }
    }
}

/// A taken message of any kind. Cheap to clone; it is released when the last clone and the last tensor made of it are gone.
///
/// The release follows the work of each stream that a holder released it on, and, if the last holder is dropped, the work of the stream that it was
/// taken on. Dropping an earlier clone waits for no stream: if a stream reads through that clone, use `release_on` instead.
///
/// ```
/// # use rgaps::dynamic::{DynamicSubscriber, Kind};
/// # use rgaps::{Node, SubscriberQos, types::Bytes};
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("bridge")?;
/// # let publisher = node.publisher::<Bytes>("raw")?;
/// # let subscriber = DynamicSubscriber::new(&node, "raw", Kind::Bytes, SubscriberQos::default())?;
/// # publisher.push(&Bytes::new(5), b"hello")?;
/// let sample = subscriber.take()?.ok_or("no message")?;
/// let shared = sample.clone();
/// drop(sample); // `shared` still holds the message
/// assert_eq!(shared.to_host()?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DynamicSample(Arc<Shared>);

impl DynamicSample {
    pub(super) fn new((meta, sample): (DynamicMeta, SampleInner)) -> Self {
        Self(Arc::new(Shared { meta, sample: Some(sample), behind: Mutex::default() }))
    }

    fn sample(&self) -> &SampleInner {
        match &self.0.sample {
            Some(sample) => sample,
            None => unreachable!("only the last holder's release empties it"),
        }
    }

    /// The kind of message.
    pub fn kind(&self) -> Kind {
        self.0.meta.kind()
    }

    /// The typed metadata.
    pub fn meta(&self) -> DynamicMeta {
        self.0.meta
    }

    /// Like `Sample::to_host`.
    pub fn to_host(&self) -> Result<&[u8], TakeError> {
        self.sample().to_host()
    }

    /// Like `Sample::is_in_place`.
    pub fn is_in_place(&self) -> bool {
        self.sample().is_in_place()
    }

    /// Like `Sample::device_range`.
    pub fn device_range(&self) -> Result<DeviceRange, TakeError> {
        self.sample().device_range()
    }

    /// Like `Sample::readiness`.
    pub fn readiness(&self) -> Readiness {
        self.sample().readiness()
    }

    /// Like `Sample::info`.
    pub fn info(&self) -> &MessageInfo {
        self.sample().info()
    }

    /// Like `Sample::handle`.
    pub fn handle(&self) -> MessageHandle {
        self.sample().handle()
    }

    /// Like `Sample::taken_ns`.
    pub fn taken_ns(&self) -> u64 {
        self.sample().taken_ns()
    }

    /// Like `Sample::mapped_from`.
    pub fn mapped_from(&self) -> ((u64, u64), u64) {
        self.sample().mapped_from()
    }

    /// Like `Sample::describe`.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicSubscriber, Kind};
    /// # use rgaps::types::{Encoding, Image};
    /// # use rgaps::{Node, SubscriberQos};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("bridge")?;
    /// # let publisher = node.publisher::<Image>("camera")?;
    /// # let subscriber = DynamicSubscriber::new(&node, "camera", Kind::Image, SubscriberQos::default())?;
    /// # publisher.push(&Image::new(4, 2, Encoding::Rgb8)?, &[7; 24])?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// assert_eq!(sample.describe()?.shape(), [2, 4, 3]); // rows, columns, channels
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn describe(&self) -> Result<UnmanagedTensor, TakeError> {
        let described = self.0.meta.describe(&self.sample().device_range()?);
        described.map_err(|source| self.sample().view_error(source))
    }

    /// Like `Sample::describe_field`. Returns an error if the message is not a point cloud.
    pub fn describe_field(&self, name: &str) -> Result<UnmanagedTensor, TakeError> {
        let described = self.0.meta.describe_field(name, &self.sample().device_range()?);
        described.map_err(|source| self.sample().view_error(source))
    }

    /// A tensor of `described` (from `describe` or `describe_field`) for an array library that works on `stream`. If the message was taken on another
    /// stream, `stream` waits for that one. The tensor holds the message; its deleter releases it after the work that `stream` has by then. So
    /// `stream` must exist until then.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicSubscriber, Kind};
    /// # use rgaps::{Node, SubscriberQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("bridge")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// # let subscriber = DynamicSubscriber::new(&node, "raw", Kind::Bytes, SubscriberQos::default())?;
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let tensor = sample.to_dlpack(&sample.describe()?, Some(&node.stream()?))?;
    /// drop(sample);
    /// assert_eq!(subscriber.statistics().held, 1, "the tensor holds the message");
    /// drop(tensor);
    /// assert_eq!(subscriber.statistics().held, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_dlpack(&self, described: &UnmanagedTensor, stream: Option<&Stream>) -> Result<ManagedTensor, TakeError> {
        if let (Some(taken), Some(stream)) = (self.sample().taken_on(), stream) {
            let waiting = stream.wait(&taken.record(), DEVICE_TIMEOUT);
            waiting.map_err(|source| self.sample().device_error(source))?;
        }
        Ok(described.manage(Viewer { message: Some(self.clone()), stream: stream.cloned() }))
    }

    /// Releases this clone after the work that the stream has so far. The call does not wait for that work.
    ///
    /// ```
    /// # use rgaps::dynamic::{DynamicSubscriber, Kind};
    /// # use rgaps::{Node, SubscriberQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("bridge")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// # let subscriber = DynamicSubscriber::new(&node, "raw", Kind::Bytes, SubscriberQos::default())?;
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let (left, right) = (node.stream()?, node.stream()?);
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let shared = sample.clone();
    /// sample.release_on(&left)?; // `shared` still holds the message
    /// shared.release_on(&right)?; // released after the work of both streams
    /// assert_eq!(subscriber.statistics().held, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release_on(self, stream: &Stream) -> Result<(), TakeError> {
        match Arc::try_unwrap(self.0) {
            Ok(mut shared) => shared.give_up(Some(stream)),
            Err(shared) => {
                shared.finish_behind(stream);
                Ok(())
            }
        }
    }
}

/// The owner of an array library's tensor: holds the message until the deleter runs.
#[derive(Debug)]
struct Viewer {
    message: Option<DynamicSample>,
    stream: Option<Stream>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let (Some(message), Some(stream)) = (self.message.take(), &self.stream) else { return };
        if !message.sample().node().is_owner() {
            return;
        }
        if let Err(error) = message.release_on(stream) {
            tracing::error!(%error, "a view could not be released in stream order");
        }
    }
}
