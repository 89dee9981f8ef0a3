//! Samples: a taken message's metadata, its payload for the CPU or a device, and its release.

use std::sync::{Arc, OnceLock};

use rgaps_device::{Completion, DeviceError, Original, PoolMemory, PoolPart, Stream, StreamWord};
use rgaps_shm::history::MessageRef;
use rgaps_shm::message::Readiness;
use rgaps_shm::{Held, MessageInfo};

use crate::endpoint::completions::{DEVICE_TIMEOUT, StreamPoint};
use crate::endpoint::node::NodeInner;
use crate::endpoint::subscriber::SubscriberInner;
use crate::endpoint::take_error::TakeError;
use crate::handle::Handle;
use crate::raw;
use crate::types::{Meta, ViewError};

/// A taken message, in the memory where its publisher wrote it (or the manager, for a message from another host). If the node's device has no peer
/// access to that memory (`NodeBuilder::device`), the sample is a copy on that device.
///
/// A sample stays valid however many messages the publisher publishes, and may outlive its subscriber. Dropping it releases the message.
///
/// ```no_run
/// # use rgaps::{Subscriber, TakeError, types::Image};
/// fn brightness(subscriber: &Subscriber<Image>) -> Result<Option<u8>, TakeError> {
///     let Some(sample) = subscriber.take()? else { return Ok(None) };
///     Ok(sample.bytes().iter().copied().max()) // read in place
/// } // releases the message
/// ```
#[derive(Debug)]
pub struct Sample<T> {
    pub(crate) meta: T,
    pub(crate) offset: u64,
    pub(crate) taken: u64,
    pub(crate) info: MessageInfo,
    pub(crate) message: MessageRef,
    // Declared before `pool` and `subscriber`: the message is released before the pool is unmapped and the subscriber detaches.
    pub(crate) held: Option<Held>,
    /// The stream that it was taken on; dropping the sample releases it after that stream's work.
    pub(crate) stream: Option<Stream>,
    /// Without peer access: the completion of the copy. `pool` is then the copy's memory.
    pub(crate) copied: Option<Completion>,
    pub(crate) pool: Arc<dyn PoolMemory>,
    pub(crate) subscriber: Arc<SubscriberInner>,
    /// The CPU's copy of device memory.
    pub(crate) fetched: OnceLock<Vec<u8>>,
}

impl<T> Drop for Sample<T> {
    fn drop(&mut self) {
        if !self.subscriber.node.is_owner() {
            // In a forked child the segment is not mapped, and only the parent may release the message.
            return std::mem::forget(self.held.take());
        }
        if let Some(stream) = self.stream.take()
            && let Err(error) = self.finish_on(&stream, Vec::new())
        {
            tracing::error!(topic = self.subscriber.topic, %error, "a message could not be released in stream order");
        }
    }
}

impl<T> Sample<T> {
    /// Makes the payload accessible to the node's device. Without peer access, a copy replaces the pool; all samples of a message in this node share
    /// it. With a stream, the stream's later work waits for the bytes. Without a stream, this call waits for the copy and releases the message.
    pub(crate) fn bring(&mut self, awaited: Option<(u64, u32)>, stream: Option<&Stream>) -> Result<(), DeviceError> {
        let inner = &self.subscriber;
        let words = awaited.is_some().then(|| inner.completions.ready_words()).transpose()?;
        let word = |(words, (offset, value))| (StreamWord { memory: Arc::as_ref(words), offset }, value);
        let awaited = words.as_ref().zip(awaited).map(word);
        let (pool, offset, position) = (&self.pool, self.offset, self.info.position);
        let original = Original { pool, offset, bytes: self.info.bytes, position, awaited, timeout: DEVICE_TIMEOUT };
        let Some(mirror) = inner.node.backend().mirror(&original)? else {
            let (Some((word, value)), Some(stream)) = (awaited, stream) else { return Ok(()) };
            return stream.wait_value(&word, value, DEVICE_TIMEOUT);
        };
        if !mirror.is_shared {
            inner.reader().count_copied(self.info.bytes);
        }
        let brought = match stream {
            Some(stream) => stream.wait(mirror.copied.event(), DEVICE_TIMEOUT),
            None => mirror.copied.wait(DEVICE_TIMEOUT),
        };
        let goes_on = match &brought {
            Ok(()) => false,
            Err(DeviceError::TimedOut(_)) => true,
            Err(_) => matches!(mirror.copied.wait(DEVICE_TIMEOUT), Err(DeviceError::TimedOut(_))),
        };
        if goes_on {
            // The copy still runs: keep what it reads and waits for until the process ends.
            std::mem::forget((self.held.take(), mirror, inner.clone()));
            return brought;
        }
        brought?;
        if stream.is_none() {
            self.held = None;
        }
        (self.pool, self.offset, self.copied) = (mirror.memory, 0, Some(mirror.copied));
        Ok(())
    }

    /// Releases the message, and the copy if there is one, after the stream's work so far and after the points `others` of other streams.
    fn finish_on(&mut self, stream: &Stream, others: Vec<StreamPoint>) -> Result<(), DeviceError> {
        let is_copied = self.copied.as_ref().is_some_and(Completion::is_complete);
        // Once the copy is complete, the stream's work no longer needs the original message.
        let held = self.held.take().filter(|_| !is_copied);
        if held.is_none() && self.copied.is_none() {
            return Ok(());
        }
        self.subscriber.release_on(held, self.pool.clone(), stream, others)
    }
}

impl<T: Meta> Sample<T> {
    /// The typed metadata.
    pub fn meta(&self) -> &T {
        &self.meta
    }

    /// The payload for the CPU: in place if the CPU can read it there, else a copy that the first call makes and counts
    /// (`SubscriberStatistics::copied_bytes`). If the copy fails, this logs the error and returns an empty slice; `to_host` returns the error. Empty
    /// in a forked child, where the pool is not mapped.
    pub fn bytes(&self) -> &[u8] {
        if !self.subscriber.node.is_owner() {
            return &[];
        }
        self.to_host().unwrap_or_else(|error| {
            tracing::error!(%error, "a payload could not be fetched");
            &[]
        })
    }

    /// Like `bytes`, but returns errors. Waits at most 10 s for bytes that a device still has to write.
    pub fn to_host(&self) -> Result<&[u8], TakeError> {
        let inner = &self.subscriber;
        if !inner.node.is_owner() {
            return Err(TakeError::Forked { topic: inner.topic.clone() });
        }
        let failed = |source| TakeError::Device { topic: inner.topic.clone(), source };
        if let Some(held) = self.held.as_ref().filter(|held| held.readiness() == Readiness::Pending) {
            let (offset, value) = held.ready_word();
            let words = inner.completions.ready_words().map_err(failed)?;
            StreamWord { memory: words.as_ref(), offset }.wait(value, DEVICE_TIMEOUT).map_err(failed)?;
        }
        if self.status() != Readiness::Ready {
            return Err(TakeError::Poisoned { topic: inner.topic.clone(), sequence: self.info.sequence });
        }
        if let Some(copied) = &self.copied {
            copied.wait(DEVICE_TIMEOUT).map_err(failed)?;
        }
        if let Some(bytes) = raw::payload(self) {
            return Ok(bytes);
        }
        if let Some(fetched) = self.fetched.get() {
            return Ok(fetched);
        }
        let mut bytes = vec![0; self.info.bytes as usize];
        let from = PoolPart::to_read(self.pool.as_ref(), self.offset, self.info.bytes);
        let copied = inner.node.own_stream().and_then(|own| inner.node.backend().copy_out(&own, from, &mut bytes));
        copied.map_err(failed)?;
        inner.reader().count_copied(self.info.bytes);
        Ok(self.fetched.get_or_init(|| bytes))
    }

    /// Whether `bytes` reads the payload in place.
    pub fn is_in_place(&self) -> bool {
        self.subscriber.node.is_owner() && self.pool.shared(self.offset, self.info.bytes).is_ok()
    }

    pub(crate) fn node(&self) -> &NodeInner {
        &self.subscriber.node
    }

    /// The stream that it was taken on.
    pub(crate) fn taken_on(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    pub(crate) fn device_error(&self, source: DeviceError) -> TakeError {
        TakeError::Device { topic: self.subscriber.topic.clone(), source }
    }

    pub(crate) fn view_error(&self, source: ViewError) -> TakeError {
        TakeError::View { topic: self.subscriber.topic.clone(), sequence: self.info.sequence, source }
    }

    /// The payload's address on the device, for a kernel or a copy to read it; a pointer on the host backend.
    ///
    /// All reads must be complete before the sample is dropped. Reads in the stream of `release_on`, or in the stream of `take_on` if the sample is
    /// dropped, may still be running.
    pub fn device_address(&self) -> Result<u64, TakeError> {
        let topic = || self.subscriber.topic.clone();
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: topic() });
        }
        let (offset, sequence, bytes) = (self.offset, self.info.sequence, self.info.bytes);
        self.pool.device_address(offset).map_err(|_| TakeError::OutOfBounds { topic: topic(), sequence, offset, bytes })
    }

    /// The payload as the source of copies on the device (`Backend::copy_to_host`, `copy_out`). The rule of `device_address` applies to them. Returns
    /// an error in a forked child, where the pool is not mapped.
    pub fn part(&self) -> Result<PoolPart<'_>, TakeError> {
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: self.subscriber.topic.clone() });
        }
        Ok(PoolPart::to_read(self.pool.as_ref(), self.offset, self.info.bytes))
    }

    /// Whether the bytes are written. Only a sample of `take_on` can be `Pending`.
    pub fn status(&self) -> Readiness {
        if !self.subscriber.node.is_owner() {
            return Readiness::Poisoned;
        }
        // `held` is `None` only after a complete message was copied and released.
        self.held.as_ref().map_or(Readiness::Ready, Held::readiness)
    }

    /// Releases the message after the work that the stream has so far. The call does not wait for that work.
    ///
    /// ```no_run
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
        self.release_behind(stream, Vec::new())
    }

    /// Like `release_on`, and also after the points `others` of other streams.
    pub(crate) fn release_behind(mut self, stream: &Stream, others: Vec<StreamPoint>) -> Result<(), TakeError> {
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: self.subscriber.topic.clone() });
        }
        self.stream = None;
        let released = self.finish_on(stream, others);
        released.map_err(|source| TakeError::Device { topic: self.subscriber.topic.clone(), source })
    }

    /// The message's origin, its route and the time of each stage.
    pub fn info(&self) -> &MessageInfo {
        &self.info
    }

    /// The handle that names this message outside RGAPS.
    pub fn handle(&self) -> Handle {
        Handle::new(self.subscriber.attachment.topic.0, self.message, &self.info)
    }

    /// When it was taken, in ns since 1970 on this host's clock.
    pub fn taken_ns(&self) -> u64 {
        self.taken
    }

    /// The memory that the payload is mapped from: (device, inode) of the pool's file, and the offset in it. The same for every subscriber. Without
    /// peer access, the same for every sample of the node that shares a copy.
    pub fn mapped_from(&self) -> ((u64, u64), u64) {
        (self.pool.identity(), self.offset)
    }
}
