//! A sample without its type: the payload for the CPU or a device, and its release.

use std::sync::{Arc, OnceLock};

use rgaps_device::{Completion, DeviceError, DeviceRange, Original, PoolMemory, PoolPart, Stream, StreamWord};
use rgaps_shm::words::history::MessageRef;
use rgaps_shm::words::message::Readiness;
use rgaps_shm::{Held, MessageInfo};

use crate::endpoint::completions::{DEVICE_TIMEOUT, StreamPoint};
use crate::endpoint::loan::dl_device;
use crate::endpoint::node::NodeInner;
use crate::endpoint::subscriber::SubscriberInner;
use crate::endpoint::take_error::TakeError;
use crate::handle::MessageHandle;
use crate::raw;
use crate::types::ViewError;

/// A sample of any type.
#[derive(Debug)]
pub(crate) struct SampleInner {
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

impl Drop for SampleInner {
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

impl SampleInner {
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

    /// See `Sample::bytes`.
    pub(crate) fn bytes(&self) -> &[u8] {
        if !self.subscriber.node.is_owner() {
            return &[];
        }
        self.to_host().unwrap_or_else(|error| {
            tracing::error!(%error, "a payload could not be fetched");
            &[]
        })
    }

    /// See `Sample::to_host`.
    pub(crate) fn to_host(&self) -> Result<&[u8], TakeError> {
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
        if self.readiness() != Readiness::Ready {
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

    /// See `Sample::is_in_place`.
    pub(crate) fn is_in_place(&self) -> bool {
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

    /// See `Sample::device_address`.
    pub(crate) fn device_address(&self) -> Result<u64, TakeError> {
        let topic = || self.subscriber.topic.clone();
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: topic() });
        }
        let (offset, sequence, bytes) = (self.offset, self.info.sequence, self.info.bytes);
        self.pool.device_address(offset).map_err(|_| TakeError::OutOfBounds { topic: topic(), sequence, offset, bytes })
    }

    /// See `Sample::part`.
    pub(crate) fn part(&self) -> Result<PoolPart<'_>, TakeError> {
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: self.subscriber.topic.clone() });
        }
        Ok(PoolPart::to_read(self.pool.as_ref(), self.offset, self.info.bytes))
    }

    /// See `Sample::readiness`.
    pub(crate) fn readiness(&self) -> Readiness {
        if !self.subscriber.node.is_owner() {
            return Readiness::Poisoned;
        }
        // `held` is `None` only after a complete message was copied and released.
        self.held.as_ref().map_or(Readiness::Ready, Held::readiness)
    }

    /// Releases the message after the work that the stream has so far, and after the points `others` of other streams.
    pub(crate) fn release_behind(mut self, stream: &Stream, others: Vec<StreamPoint>) -> Result<(), TakeError> {
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: self.subscriber.topic.clone() });
        }
        self.stream = None;
        let released = self.finish_on(stream, others);
        released.map_err(|source| TakeError::Device { topic: self.subscriber.topic.clone(), source })
    }

    /// See `Sample::info`.
    pub(crate) fn info(&self) -> &MessageInfo {
        &self.info
    }

    /// See `Sample::handle`.
    pub(crate) fn handle(&self) -> MessageHandle {
        MessageHandle::new(self.subscriber.attachment.topic.0, self.message, &self.info)
    }

    /// See `Sample::taken_ns`.
    pub(crate) fn taken_ns(&self) -> u64 {
        self.taken
    }

    /// See `Sample::mapped_from`.
    pub(crate) fn mapped_from(&self) -> ((u64, u64), u64) {
        (self.pool.identity(), self.offset)
    }

    /// See `Sample::device_range`.
    pub(crate) fn device_range(&self) -> Result<DeviceRange, TakeError> {
        let bytes = self.info.bytes;
        let address = if bytes > 0 { self.device_address()? } else { 0 };
        let device = dl_device(self.subscriber.node.backend().as_ref());
        Ok(DeviceRange { address, bytes, device, is_read_only: true })
    }
}
