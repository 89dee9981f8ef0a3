//! Publishing: loan a block of the pool and fill it in place, or push a buffer from elsewhere.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use rgaps_device::{DevicePart, PoolMemory, PoolPart, Stream};
use rgaps_shm::{LoanedMessage, Origin};

use crate::endpoint::node::NodeInner;
use crate::endpoint::publish_error::PublishError;
use crate::endpoint::publisher::{Filled, PublisherInner};
use crate::handle::Handle;
use crate::statistics::PublisherStatistics;
use crate::types::{Meta, MetaError, ViewError};

/// Publishes messages of one type on one topic. Cheap to clone; every clone is the same publisher.
///
/// ```no_run
/// use rgaps::types::Bytes;
///
/// let publisher = rgaps::Node::new("camera")?.publisher::<Bytes>("raw")?;
/// publisher.push(&Bytes::new(5), b"hello")?;
/// let mut loan = publisher.loan(Bytes::new(5))?;
/// loan.copy_from_slice(b"world");
/// loan.publish()?;
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
    pub fn loan(&self, meta: T) -> Result<Loan<T>, PublishError> {
        self.inner.check_attached()?;
        let bytes = meta.payload_bytes();
        meta.check(bytes).map_err(|source| self.metadata(source))?;
        let message = self.inner.loan(bytes)?;
        let publisher = self.inner.clone();
        let (beside, scratch) = (OnceLock::new(), OnceLock::new());
        Ok(Loan { publisher, message: Some(message), meta, bytes, beside, scratch, is_scratch_written: false })
    }

    /// Publishes a copy of `bytes`: one copy into the pool, whatever the number of subscribers.
    pub fn push(&self, meta: &T, bytes: &[u8]) -> Result<Handle, PublishError> {
        self.inner.check_attached()?;
        let described = meta.payload_bytes();
        meta.check(described).map_err(|source| self.metadata(source))?;
        if described != bytes.len() as u64 {
            return Err(PublishError::Length { topic: self.inner.topic.clone(), described, given: bytes.len() as u64 });
        }
        let mut message = self.inner.loan(described)?;
        if let Err(error) = self.inner.fill(&mut message, bytes, None) {
            return Err(self.inner.not_filled(message, None, error));
        }
        self.inner.publish(message, meta, Filled { bytes: described, origin: Origin::Pushed }, None)
    }

    /// Publishes what `fill` writes into the block, for sources in several pieces: one copy, like `push`. The block has as many bytes as `meta`
    /// describes. Bytes that `fill` does not write keep the block's old content.
    ///
    /// ```no_run
    /// # use rgaps::{Publisher, PublishError, types::Bytes};
    /// fn publish(publisher: &Publisher<Bytes>, head: &[u8; 8], body: &[u8; 56]) -> Result<(), PublishError> {
    ///     publisher.push_with(&Bytes::new(64), |block| {
    ///         block[..8].copy_from_slice(head);
    ///         block[8..].copy_from_slice(body);
    ///     })?;
    ///     Ok(())
    /// }
    /// ```
    pub fn push_with(&self, meta: &T, fill: impl FnOnce(&mut [u8])) -> Result<Handle, PublishError> {
        let mut loan = self.loan(meta.clone())?;
        fill(&mut loan);
        let (message, outcome) = loan.complete(None)?;
        self.inner.publish(message, meta, Filled { origin: Origin::Pushed, ..outcome }, None)
    }

    /// Publishes a copy of the caller's device memory in stream order: one copy on the device, after the work that the stream has so far. The call
    /// does not wait for the device, whatever the size. Subscribers get the message when the copy is complete.
    ///
    /// If the device fails before that, subscribers skip the message (`SubscriberStatistics::poisoned`).
    pub fn push_on(&self, meta: &T, from: &DevicePart, stream: &Stream) -> Result<Handle, PublishError> {
        let inner = &self.inner;
        inner.check_attached()?;
        let described = meta.payload_bytes();
        meta.check(described).map_err(|source| self.metadata(source))?;
        if described != from.bytes() {
            return Err(PublishError::Length { topic: inner.topic.clone(), described, given: from.bytes() });
        }
        inner.check_order()?;
        let message = inner.loan(described)?;
        let place = PoolPart::to_fill(inner.pool.as_ref(), message.offset(), described);
        if let Err(source) = inner.node.backend().copy_within(stream, from, place) {
            inner.port().give_back(message);
            return Err(inner.device(source));
        }
        inner.publish(message, meta, Filled { bytes: described, origin: Origin::Pushed }, Some(stream))
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.inner.topic
    }

    /// Counters of this publisher and its pool. All zero in a forked child, where neither is mapped.
    pub fn statistics(&self) -> PublisherStatistics {
        if !self.inner.node.is_owner() {
            return PublisherStatistics::default();
        }
        let mut port = self.inner.port();
        // Messages that were released since the last loan count as free; only loans reclaim them otherwise.
        port.reclaim();
        PublisherStatistics::of(&port)
    }

    /// The number of subscribers on this host, plus one for each remote host that subscribes. 0 in a forked child.
    pub fn subscriber_count(&self) -> usize {
        if !self.inner.node.is_owner() {
            return 0;
        }
        self.inner.port().subscriber_count()
    }

    fn metadata(&self, source: MetaError) -> PublishError {
        PublishError::Metadata { topic: self.inner.topic.clone(), source }
    }
}

/// A loaned block of the publisher's pool, to be filled. Dropping it without publishing gives the block back.
///
/// A block that was used before still has its old bytes: fill all of it. On a GPU, let a kernel fill it in place (`device_address`,
/// `publish_on`). If you use the loan as a slice there, you fill host memory, which `publish` copies into the block, as if pushed.
/// The slice is empty in a forked child, where the pool is not mapped.
///
/// ```no_run
/// # use rgaps::{Publisher, PublishError, types::{Image, Stamp, Meta}};
/// fn capture(publisher: &Publisher<Image>, image: Image) -> Result<(), PublishError> {
///     let mut loan = publisher.loan(image)?;
///     loan.fill(0);
///     loan.set_meta(image.stamped(Stamp::now()))?;
///     loan.publish()?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "a loan does nothing until it is published"]
pub struct Loan<T> {
    publisher: Arc<PublisherInner>,
    message: Option<LoanedMessage>,
    meta: T,
    bytes: u64,
    /// Device memory that kernels fill instead of the block, if the node's device has no peer access to it.
    beside: OnceLock<Arc<dyn PoolMemory>>,
    /// Host memory that the CPU fills instead of a block that it cannot map.
    scratch: OnceLock<Vec<u8>>,
    /// Whether the CPU may have written to `scratch`, so that publishing copies it into the block.
    is_scratch_written: bool,
}

impl<T: Meta> Loan<T> {
    /// Publishes the message without a copy.
    pub fn publish(mut self) -> Result<Handle, PublishError> {
        self.publisher.check_attached()?;
        let (message, outcome) = self.complete(None)?;
        self.publisher.publish(message, &self.meta, outcome, None)
    }

    /// Publishes the message in stream order: the work that the stream has so far fills the block. The call does not wait for that work, whatever
    /// the size. Subscribers get the message when it is complete.
    pub fn publish_on(mut self, stream: &Stream) -> Result<Handle, PublishError> {
        self.publisher.check_attached()?;
        self.publisher.check_order()?;
        let (message, outcome) = self.complete(Some(stream))?;
        self.publisher.publish(message, &self.meta, outcome, Some(stream))
    }

    /// The loaned message, after copying `beside` and `scratch` into its block.
    fn complete(&mut self, stream: Option<&Stream>) -> Result<(LoanedMessage, Filled), PublishError> {
        let Some(mut message) = self.message.take() else { unreachable!("only publish and drop take it") };
        let (scratch, beside) = (self.scratch.get().filter(|_| self.is_scratch_written), self.beside.get());
        if scratch.is_none() && beside.is_none() {
            return Ok((message, Filled { bytes: self.bytes, origin: Origin::Loaned }));
        }
        // In this order: the CPU's bytes win over the kernel's.
        let mut filled = Ok(());
        if let Some(beside) = beside {
            filled = self.publisher.fill_from(&message, beside.as_ref(), self.bytes, stream);
        }
        if let (Ok(()), Some(scratch)) = (&filled, scratch) {
            filled = self.publisher.fill(&mut message, scratch, stream);
        }
        let Err(error) = filled else {
            return Ok((message, Filled { bytes: self.bytes, origin: Origin::Pushed }));
        };
        Err(self.publisher.not_filled(message, stream, error))
    }

    pub(crate) fn node(&self) -> &NodeInner {
        &self.publisher.node
    }

    /// The block's pool, or the memory that is filled instead of it (`device_address`).
    pub(crate) fn memory(&self) -> Arc<dyn PoolMemory> {
        self.beside.get().unwrap_or(&self.publisher.pool).clone()
    }

    pub(crate) fn view_error(&self, source: ViewError) -> PublishError {
        PublishError::View { topic: self.publisher.topic.clone(), source }
    }

    /// The block's address on the device, for a kernel or a copy to fill it; a pointer on the host backend. If the node's device has no peer access
    /// to the block, this is the address of other device memory, which publishing copies into the block, as if pushed.
    ///
    /// All writes there must be complete before the loan is dropped or published, or be in the stream that it is published on.
    pub fn device_address(&self) -> Result<u64, PublishError> {
        let (pool, offset) = self.place()?;
        let failed = |source| PublishError::Block { topic: self.publisher.topic.clone(), source };
        pool.device_address(offset).map_err(failed)
    }

    /// The block as the target of copies on the device (`Backend::copy_to_device`, `copy_within`). Like `device_address`, it may be other memory of
    /// the node's device. The copies must be complete before the loan is dropped or published, or be in the stream that it is published on. Returns
    /// an error in a forked child, where the pool is not mapped.
    pub fn part(&mut self) -> Result<PoolPart<'_>, PublishError> {
        let (pool, offset) = self.place()?;
        Ok(PoolPart::to_fill(pool, offset, self.bytes))
    }

    /// The memory that kernels and copies fill: the block, or memory of the node's device (`beside`), and the offset in it.
    fn place(&self) -> Result<(&dyn PoolMemory, u64), PublishError> {
        self.publisher.check_attached()?;
        if let Some(beside) = self.beside.get() {
            return Ok((beside.as_ref(), 0));
        }
        let scratch = self.publisher.node.backend().scratch(self.bytes);
        if let Some(made) = scratch.map_err(|source| self.publisher.device(source))? {
            return Ok((self.beside.get_or_init(|| made).as_ref(), 0));
        }
        let offset = self.message.as_ref().map_or(0, LoanedMessage::offset);
        Ok((self.publisher.pool.as_ref(), offset))
    }

    /// Replaces the metadata before publishing. The new one must describe the same number of bytes.
    pub fn set_meta(&mut self, meta: T) -> Result<(), PublishError> {
        meta.check(self.bytes)
            .map_err(|source| PublishError::Metadata { topic: self.publisher.topic.clone(), source })?;
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
        if !self.publisher.node.is_owner() {
            return &[];
        }
        let Some(message) = &self.message else { return &[] };
        match self.publisher.pool.block(message.block().range()) {
            Ok(block) => &block[..self.bytes as usize],
            Err(_) => self.scratch.get_or_init(|| vec![0; self.bytes as usize]),
        }
    }
}

impl<T> DerefMut for Loan<T> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(message) = self.message.as_mut().filter(|_| self.publisher.node.is_owner()) else { return &mut [] };
        match self.publisher.pool.block_mut(message.block_mut().range_mut()) {
            Ok(block) => &mut block[..self.bytes as usize],
            Err(_) => {
                self.is_scratch_written = true;
                self.scratch.get_or_init(|| vec![0; self.bytes as usize]);
                self.scratch.get_mut().map_or(&mut [], Vec::as_mut_slice)
            }
        }
    }
}

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        // In a forked child nothing is mapped, and only the parent may give the block back.
        if let Some(message) = self.message.take().filter(|_| self.publisher.node.is_owner()) {
            self.publisher.port().give_back(message);
        }
    }
}
