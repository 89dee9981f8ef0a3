//! A message that is being read: its metadata, its payload for the CPU or for a device, and how it is released.

use std::sync::{Arc, OnceLock};

use rgaps_device::{Completion, DeviceError, Original, PoolMemory, PoolPart, Stream, StreamWord};
use rgaps_shm::history::MessageRef;
use rgaps_shm::message::Readiness;
use rgaps_shm::{Held, MessageInfo};

use crate::completions::StreamPoint;
use crate::handle::Handle;
use crate::node::{DEVICE_TIMEOUT, NodeInner};
use crate::raw;
use crate::subscriber::{SubscriberInner, TakeError};
use crate::types::{Meta, ViewError};

/// A message that is being read, in the memory where its publisher (or, from another host, the manager) put it; where the node's device does
/// not reach that (`NodeBuilder::device`), in a copy on that device.
///
/// It stays valid however far the publisher runs ahead, and outlives its subscriber. Dropping it releases the message.
#[derive(Debug)]
pub struct Sample<T> {
    pub(crate) meta: T,
    pub(crate) offset: u64,
    pub(crate) taken: u64,
    pub(crate) info: MessageInfo,
    pub(crate) message: MessageRef,
    // Released in `drop`, before the pool may be unmapped and before the subscriber leaves.
    pub(crate) held: Option<Held>,
    /// Behind whose work it is released.
    pub(crate) stream: Option<Stream>,
    /// Where the node's device does not reach the message: the end of its copy, which is in the place of the pool then.
    pub(crate) copied: Option<Completion>,
    pub(crate) pool: Arc<dyn PoolMemory>,
    pub(crate) subscriber: Arc<SubscriberInner>,
    /// A copy for the CPU, of device memory.
    pub(crate) fetched: OnceLock<Vec<u8>>,
}

impl<T> Drop for Sample<T> {
    fn drop(&mut self) {
        if !self.subscriber.node.is_owner() {
            // In a forked child the segment is not mapped, and the message is the parent's to release.
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
    /// Makes the sample one that the node's device reaches: where it does not reach the pool, a copy takes its place, once a message and
    /// node. With a stream, its later work waits for the bytes; without, this waits, and releases the message.
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
            // What the copy reads and waits for stays until the process ends.
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

    /// Lets the message, and the copy if there is one, go once a stream has done the work that it was given so far, and these places of
    /// others have been reached.
    fn finish_on(&mut self, stream: &Stream, others: Vec<StreamPoint>) -> Result<(), DeviceError> {
        let is_copied = self.copied.as_ref().is_some_and(Completion::is_complete);
        // A message whose copy is made has no more to do with that work.
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

    /// The payload for the CPU: in place where it can read it, else a copy of its own, fetched at the first call and counted
    /// (`SubscriberStatistics::copied_bytes`). Empty if it cannot be fetched, which is logged, and which `to_host` tells; and in a forked
    /// child, where the pool is not mapped.
    pub fn bytes(&self) -> &[u8] {
        if !self.subscriber.node.is_owner() {
            return &[];
        }
        self.to_host().unwrap_or_else(|error| {
            tracing::error!(%error, "a payload could not be fetched");
            &[]
        })
    }

    /// As `bytes`, with the reason why not. Waits for bytes that a device has still to bring, at most 10 s.
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

    /// Whether `bytes` reads the payload where it lies.
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

    /// Where the payload lies on the device, for a kernel or a copy to read it; on the host backend, a pointer.
    ///
    /// What reads it must be done when the sample is dropped, or be in the stream that it is released on, or was taken on if it is dropped.
    pub fn device_address(&self) -> Result<u64, TakeError> {
        let topic = || self.subscriber.topic.clone();
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: topic() });
        }
        let (offset, sequence, bytes) = (self.offset, self.info.sequence, self.info.bytes);
        self.pool.device_address(offset).map_err(|_| TakeError::OutOfBounds { topic: topic(), sequence, offset, bytes })
    }

    /// The payload as part of its pool, for copies that the device makes out of it (`Backend::copy_to_host`, `copy_out`) and no others. They are
    /// over when the sample is dropped, or in the stream that it is released on, or was taken on if it is dropped. An error in a forked child, where the pool is not mapped.
    pub fn part(&self) -> Result<PoolPart<'_>, TakeError> {
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: self.subscriber.topic.clone() });
        }
        Ok(PoolPart::to_read(self.pool.as_ref(), self.offset, self.info.bytes))
    }

    /// Whether its bytes are there. `Pending` can only be the answer for a sample of `take_on`.
    pub fn status(&self) -> Readiness {
        if !self.subscriber.node.is_owner() {
            return Readiness::Poisoned;
        }
        // Only a message that was copied with its bytes there has been released.
        self.held.as_ref().map_or(Readiness::Ready, Held::readiness)
    }

    /// Lets the message go once a stream has done the work that it was given so far. The call does not wait for it.
    pub fn release_on(self, stream: &Stream) -> Result<(), TakeError> {
        self.release_behind(stream, Vec::new())
    }

    /// As `release_on`, and once these places of other streams have been reached.
    pub(crate) fn release_behind(mut self, stream: &Stream, others: Vec<StreamPoint>) -> Result<(), TakeError> {
        if !self.subscriber.node.is_owner() {
            return Err(TakeError::Forked { topic: self.subscriber.topic.clone() });
        }
        self.stream = None;
        let released = self.finish_on(stream, others);
        released.map_err(|source| TakeError::Device { topic: self.subscriber.topic.clone(), source })
    }

    /// Where it came from, the path that it took and when it passed each stage.
    pub fn info(&self) -> &MessageInfo {
        &self.info
    }

    /// What names it elsewhere.
    pub fn handle(&self) -> Handle {
        Handle::new(self.subscriber.attachment.topic.0, self.message, &self.info)
    }

    /// When it was taken, in ns since 1970 on this host's clock.
    pub fn taken_ns(&self) -> u64 {
        self.taken
    }

    /// What the payload is mapped from: (device, inode) of the pool's memory, and the offset in it. The same for every subscriber; where the
    /// node's device does not reach the pool, the same for every sample of the node that shares a copy.
    pub fn mapped_from(&self) -> ((u64, u64), u64) {
        (self.pool.identity(), self.offset)
    }
}
