//! Publishing: loan a block of the pool and fill it in place, or push a buffer from elsewhere.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rgaps_control::PublisherSlot;
use rgaps_control::qos;
use rgaps_device::{DeviceError, DeviceKind, DevicePart, PoolMemory, PoolPart, Stream};
use rgaps_os::clock;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::queue::Position;
use rgaps_shm::space::{CutOff, loan_within};
use rgaps_shm::writer;
use rgaps_shm::{
    Copies, Exhaustion, LoanError, LoanedMessage, MessageInfo, MessageSpec, Origin, Stamps, WhyNot, WriterPort,
};

use crate::attachment::Attachment;
use crate::completions::{Completions, Filling};
use crate::handle::Handle;
use crate::node::{DEVICE_TIMEOUT, NodeInner, STREAM_TIMEOUT};
use crate::publish_error::PublishError;
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

#[derive(Debug)]
pub(crate) struct PublisherInner {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) topic: String,
    pub(crate) attachment: Attachment<PublisherSlot>,
    pub(crate) port: Arc<Mutex<WriterPort>>,
    pub(crate) pool: Arc<dyn PoolMemory>,
    pub(crate) completions: Arc<Completions<Filling>>,
    pub(crate) publisher: u64,
    pub(crate) sequence: AtomicU64,
    pub(crate) qos: qos::PublisherQos,
}

impl PublisherInner {
    pub(crate) fn port(&self) -> MutexGuard<'_, WriterPort> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exhaustion(&self) -> Exhaustion {
        match self.qos.exhaustion {
            qos::Exhaustion::Wait { timeout_ms } => Exhaustion::Wait(Duration::from_millis(timeout_ms)),
            qos::Exhaustion::DropOldest => Exhaustion::DropOldest,
            qos::Exhaustion::Refuse => Exhaustion::Refuse,
        }
    }

    fn history_depth(&self) -> u32 {
        match self.qos.durability {
            qos::Durability::TransientLocal => self.qos.history_depth,
            qos::Durability::Volatile => 0,
        }
    }

    fn loan(&self, bytes: u64) -> Result<LoanedMessage, PublishError> {
        let exhaustion = self.exhaustion();
        let at_once = self.port().try_loan(bytes, exhaustion);
        let loan = match (at_once, exhaustion) {
            (Err(LoanError::Pool(_) | LoanError::Messages(_)), Exhaustion::Wait(_)) => {
                self.wait_for_space(bytes, exhaustion)
            }
            (done, _) => done,
        };
        let loan = loan.map_err(|source| {
            let topic = self.topic.clone();
            if let LoanError::CutOff(_) = source {
                return PublishError::CutOff { topic };
            }
            self.port().count_refusal();
            self.check_attached().err().unwrap_or(PublishError::NoSpace { topic, source })
        })?;
        match self.give_memory(&loan, bytes) {
            Ok(()) => Ok(loan),
            Err(error) => {
                let mut port = self.port();
                port.count_refusal();
                port.give_back(loan);
                Err(error)
            }
        }
    }

    /// Waits for space. After the time-out, subscribers that read nothing meanwhile no longer block this publisher.
    fn wait_for_space(&self, bytes: u64, exhaustion: Exhaustion) -> Result<LoanedMessage, LoanError> {
        let (readers, mut space) = {
            let port = self.port();
            (port.readers(), port.space())
        };
        let attempt = || match self.attachment.is_cut_off() {
            true => Err(CutOff(self.attachment.slot.into()).into()),
            false => self.port().try_loan(bytes, exhaustion),
        };
        let in_vain = match loan_within(&mut space, exhaustion, attempt) {
            Err(error @ LoanError::TimedOut { .. }) => error,
            done => return done,
        };
        let mut port = self.port();
        port.give_up_on(readers);
        port.try_loan(bytes, exhaustion).map_err(|_| in_vain.kept_by(port.keeper()))
    }

    /// Requests memory that the block still lacks: a GPU pool gets its memory when a message first needs it.
    fn give_memory(&self, loan: &LoanedMessage, bytes: u64) -> Result<(), PublishError> {
        let missing = self.pool.missing(loan.offset(), bytes);
        let missing = missing.map_err(|source| PublishError::Block { topic: self.topic.clone(), source })?;
        if missing.is_empty() {
            return Ok(());
        }
        let added = self.node.add_memory(&self.attachment, self.pool.as_ref(), missing);
        added.map_err(|source| PublishError::Memory { topic: self.topic.clone(), source })
    }

    /// Copies host bytes into a block: in stream order, or without a stream before this returns.
    fn fill(&self, message: &mut LoanedMessage, bytes: &[u8], stream: Option<&Stream>) -> Result<(), PublishError> {
        match self.pool.block_mut(message.block_mut().range_mut()) {
            Ok(block) => {
                block[..bytes.len()].copy_from_slice(bytes);
                return Ok(());
            }
            Err(source) if self.pool.kind() == DeviceKind::Host => {
                return Err(PublishError::Block { topic: self.topic.clone(), source });
            }
            Err(_) => {}
        }
        let place = PoolPart::to_fill(self.pool.as_ref(), message.offset(), bytes.len() as u64);
        let backend = self.node.backend();
        let copied = match stream {
            Some(stream) => backend.copy_in(stream, bytes, place).map(drop),
            None => self.node.own_stream().and_then(|own| backend.copy_in(&own, bytes, place)?.wait(DEVICE_TIMEOUT)),
        };
        copied.map_err(|source| self.device(source))
    }

    /// Like `fill`, from memory of the node's device, which has no peer access to the block.
    fn fill_from(
        &self,
        message: &LoanedMessage,
        from: &dyn PoolMemory,
        bytes: u64,
        stream: Option<&Stream>,
    ) -> Result<(), PublishError> {
        let place = PoolPart::to_fill(self.pool.as_ref(), message.offset(), bytes);
        let backend = self.node.backend();
        let copied = match stream {
            Some(stream) => backend.copy_scratch(stream, from, place, bytes).map(drop),
            None => self
                .node
                .own_stream()
                .and_then(|own| backend.copy_scratch(&own, from, place, bytes)?.wait(DEVICE_TIMEOUT)),
        };
        copied.map_err(|source| self.device(source))
    }

    /// Gives back a message that could not be filled: after the stream's work so far, or now without a stream. After a time-out without a stream it
    /// is never given back, since the device may still write into the block.
    fn not_filled(&self, message: LoanedMessage, stream: Option<&Stream>, error: PublishError) -> PublishError {
        let is_under_way = matches!(&error, PublishError::Device { source: DeviceError::TimedOut(_), .. });
        match stream {
            Some(stream) => self.completions.add(stream, Filling::Block(message, self.port.clone())),
            None if is_under_way => {}
            None => self.port().give_back(message),
        }
        error
    }

    fn device(&self, source: DeviceError) -> PublishError {
        PublishError::Device { topic: self.topic.clone(), source }
    }

    /// Publishes a message whose bytes are complete, or, with a stream, will be complete after the stream's work so far.
    fn publish(
        &self,
        loan: LoanedMessage,
        meta: &dyn Encode,
        outcome: Filled,
        stream: Option<&Stream>,
    ) -> Result<Handle, PublishError> {
        let mut encoded = [0; META_BYTES_MAX];
        let meta_bytes = meta.encode_into(&mut encoded);
        if let Some(stream) = stream
            && let Err(source) = self.completions.write_ready(stream, loan.message())
        {
            return Err(self.not_filled(loan, Some(stream), self.device(source)));
        }
        // The port gives positions in the order in which it is called: number and publish under one lock.
        let mut port = self.port();
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let info = MessageInfo {
            publisher: self.publisher,
            sequence,
            source_host: self.node.host(),
            host_epoch: self.node.host_epoch(),
            kind: meta.kind(),
            bytes: outcome.bytes,
            stamps: Stamps { published: clock::realtime_ns(), ..Stamps::default() },
            origin: outcome.origin,
            why_not: if outcome.origin == Origin::Pushed { WhyNot::ForeignBuffer } else { WhyNot::Best },
            copies: Copies { pushed: u8::from(outcome.origin == Origin::Pushed), ..Copies::default() },
            ..MessageInfo::default()
        };
        let spec = MessageSpec { info, meta: &encoded[..meta_bytes], history_depth: self.history_depth() };
        let topic = |source| match source {
            writer::PublishError::CutOff(_) => PublishError::CutOff { topic: self.topic.clone() },
            source => PublishError::Topic { topic: self.topic.clone(), source },
        };
        let message = loan.message();
        let handle = |position: Position| {
            Handle::new(self.attachment.topic.0, message, &MessageInfo { position: position.0, ..info })
        };
        let Some(stream) = stream else {
            return port.publish(loan, &spec).map(handle).map_err(topic);
        };
        let published = port.publish_pending(loan, &spec);
        drop(port);
        let (position, told) = match published {
            Ok((position, pending)) => (Ok(position), Filling::Message(pending)),
            Err(error) => (Err(error), Filling::Word),
        };
        self.completions.add(stream, told);
        position.map(handle).map_err(topic)
    }

    /// Finds what would make a publication in stream order fail, before a block is loaned.
    fn check_order(&self) -> Result<(), PublishError> {
        self.completions.ready_words().map(drop).map_err(|source| self.device(source))
    }

    fn check_attached(&self) -> Result<(), PublishError> {
        match (self.node.is_owner(), self.attachment.is_cut_off()) {
            (true, false) => Ok(()),
            (true, true) => Err(PublishError::CutOff { topic: self.topic.clone() }),
            (false, _) => Err(PublishError::Forked { topic: self.topic.clone() }),
        }
    }
}

impl Drop for PublisherInner {
    fn drop(&mut self) {
        // Until it is detached, the slot is handed back (`Member`). A stream that may still write keeps slot and pool until the process ends.
        if !self.node.is_owner() || self.completions.end(STREAM_TIMEOUT) {
            self.node.detach(&self.attachment);
        } else {
            std::mem::forget(self.pool.clone());
        }
    }
}

struct Filled {
    bytes: u64,
    origin: Origin,
}

/// What `PublisherInner::publish` needs of the metadata. As a trait object it lets that function be compiled once for all types.
trait Encode {
    fn encode_into(&self, to: &mut [u8; META_BYTES_MAX]) -> usize;
    fn kind(&self) -> u32;
}

impl<T: Meta> Encode for T {
    fn encode_into(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        self.encode(to)
    }

    fn kind(&self) -> u32 {
        T::KIND
    }
}

impl<T: Meta> Publisher<T> {
    pub(crate) fn new(inner: PublisherInner) -> Self {
        Self { inner: Arc::new(inner), kind: PhantomData }
    }

    pub(crate) fn inner(&self) -> &Arc<PublisherInner> {
        &self.inner
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
