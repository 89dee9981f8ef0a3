//! The publisher without its type: its slot, its pool, and the ways of a message into the topic.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_control::local::{Body, Reply};
use rgaps_control::{PublisherQos, PublisherSlot, TopicKey, qos};
use rgaps_device::{DeviceError, DeviceKind, DevicePart, PoolMemory, PoolPart, PoolRole, Stream};
use rgaps_os::clock;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::words::history::MessageRef;
use rgaps_shm::words::queue::Position;
use rgaps_shm::writer::batch::Batch;
use rgaps_shm::writer::port::WriteError;
use rgaps_shm::writer::space::{CutOff, PortError, loan_within};
use rgaps_shm::{
    Block, Copies, Exhaustion, FrozenBlock, LoanError, LoanedMessage, MessageInfo, MessageSpec, Origin, RouteReason,
    Segment, SharedPool, Stamps, WriterPort,
};

use crate::endpoint::answer::pool_description;
use crate::endpoint::attachment::Attachment;
use crate::endpoint::completions::{Completions, DEVICE_TIMEOUT, STREAM_TIMEOUT, StreamFill};
use crate::endpoint::encode::Encode;
use crate::endpoint::error::NodeError;
use crate::endpoint::hello::SessionError;
use crate::endpoint::idle::IdlePool;
use crate::endpoint::members::{Endpoint, Member, Parts, Upkeep};
use crate::endpoint::node::NodeInner;
use crate::endpoint::pool_share::PoolShare;
use crate::endpoint::publish_error::PublishError;
use crate::handle::MessageHandle;
use crate::statistics::PublisherStatistics;
use crate::types::{MetaError, ViewError};

/// How long a publication that drops the oldest messages waits for the words of a subscriber that has just joined. They come within
/// milliseconds, unless the manager has died meanwhile: its successor hands them out.
pub(crate) const WORDS_TIMEOUT: Duration = Duration::from_secs(1);

/// A publisher of any type.
#[derive(Debug)]
pub(crate) struct PublisherInner {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) topic: String,
    pub(crate) attachment: Attachment<PublisherSlot>,
    pub(crate) port: Arc<Mutex<WriterPort>>,
    pub(crate) pool: Arc<dyn PoolMemory>,
    /// The pool that it shares, if it does.
    shared: Option<Arc<PoolShare>>,
    pub(crate) completions: Arc<Completions<StreamFill>>,
    pub(crate) publisher: u64,
    pub(crate) sequence: AtomicU64,
    pub(crate) qos: qos::PublisherQos,
}

impl PublisherInner {
    /// A publisher in `shared`, or in a pool of its own. `None` if the manager died before its successor could learn of the publisher.
    pub(crate) fn join(
        node: &Arc<NodeInner>,
        key: &TopicKey,
        type_name: &str,
        qos: PublisherQos,
        shared: Option<&Arc<PoolShare>>,
    ) -> Result<Option<Arc<Self>>, NodeError> {
        let pool_of = shared.map(|shared| shared.place);
        let body = Body::Advertise { key: key.clone(), type_name: type_name.to_owned(), qos, pool_of };
        let mut answer = node.session.request(&body, &[])?;
        let Reply::Advertised(advertised) = answer.reply.clone() else { return Err(SessionError::Confused.into()) };
        let slot = advertised.slot;
        let granted = node.session.granted(advertised.topic, slot.into());
        let segment = Arc::new(Segment::attach(answer.fd()?, advertised.topic.0)?);
        let (pool, port) = match shared {
            Some(shared) => {
                (shared.memory.clone(), WriterPort::in_shared_pool(segment.clone(), slot, shared.blocks.clone())?)
            }
            None => {
                let description = pool_description(advertised.pool.ok_or(SessionError::Confused)?)?;
                let slabs = (0..advertised.pool_fds).map(|_| answer.fd()).collect::<Result<_, _>>()?;
                let pool = node.backend.import_pool(&description, slabs, PoolRole::Writer)?;
                node.session.request(&Body::PoolMapped { topic: advertised.topic, slot }, &[])?;
                let Some(right) = pool.allocation_right() else {
                    return Err(PortError::CutOff(CutOff(slot.into())).into());
                };
                let port = match key.is_pool() {
                    true => WriterPort::in_shared_pool(
                        segment.clone(),
                        slot,
                        SharedPool::new(right).map_err(PortError::Map)?,
                    )?,
                    false => WriterPort::new(segment.clone(), slot, right)?,
                };
                (pool, port)
            }
        };
        granted.attached();
        let topic_name = key.name().to_owned();
        let attachment = Attachment {
            key: key.clone(),
            topic: advertised.topic,
            type_name: type_name.to_owned(),
            slot,
            segment,
            cut_off: Arc::default(),
        };
        let completions = Arc::new(Completions::new(node.backend.clone(), attachment.segment.clone(), None));
        let publisher = Arc::new(Self {
            node: node.clone(),
            topic: topic_name,
            attachment,
            port: Arc::new(Mutex::new(port)),
            pool,
            shared: shared.cloned(),
            completions,
            publisher: advertised.publisher,
            sequence: AtomicU64::new(0),
            qos,
        });
        if !node.session.add_member(publisher.member(), answer.epoch) {
            return Ok(None);
        }
        node.session.meet_subscribers(publisher.attachment.topic, &publisher.port);
        shared.into_iter().for_each(|shared| shared.add(&publisher.port));
        Ok(Some(publisher))
    }

    /// Creates a publisher, and the topic if it does not exist.
    pub(crate) fn make(
        node: &Arc<NodeInner>,
        topic: &str,
        type_name: &str,
        qos: PublisherQos,
        shared: Option<&Arc<PoolShare>>,
    ) -> Result<Arc<Self>, NodeError> {
        node.check_owner()?;
        let key = TopicKey::new(node.domain, topic)?;
        node.session.make(|| Self::join(node, &key, type_name, qos, shared))
    }

    /// The member of the session that this publisher is.
    fn member(self: &Arc<Self>) -> Member {
        let parts = Parts::Publisher {
            slot: self.attachment.slot,
            port: Arc::downgrade(&self.port),
            pool: self.pool.clone(),
            qos: self.qos,
        };
        let endpoint: Arc<dyn Endpoint> = self.clone();
        Member { attachment: self.attachment.of_either(), endpoint: Arc::downgrade(&endpoint), parts }
    }

    pub(crate) fn port(&self) -> MutexGuard<'_, WriterPort> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn history_depth(&self) -> u32 {
        match self.qos.durability {
            qos::Durability::TransientLocal => self.qos.history_depth,
            qos::Durability::Volatile => 0,
        }
    }

    /// Checks the metadata, and returns how many bytes of payload it describes.
    pub(crate) fn bytes_of(&self, meta: &dyn Encode) -> Result<u64, PublishError> {
        self.check_attached()?;
        let bytes = meta.described_bytes();
        meta.check_against(bytes).map_err(|source| self.metadata(source))?;
        Ok(bytes)
    }

    /// See `Publisher::push`.
    pub(crate) fn push(&self, meta: &dyn Encode, bytes: &[u8]) -> Result<MessageHandle, PublishError> {
        let described = self.bytes_of(meta)?;
        if described != bytes.len() as u64 {
            return Err(PublishError::Length { topic: self.topic.clone(), described, given: bytes.len() as u64 });
        }
        let mut message = self.loan(described)?;
        if let Some(block) = message.block_mut()
            && let Err(error) = self.fill(block, bytes, None)
        {
            return Err(self.not_filled(message, None, error));
        }
        self.publish(message, meta, Filled { bytes: described, origin: Origin::Pushed }, None)
    }

    /// See `Publisher::push_on`.
    pub(crate) fn push_on(
        &self,
        meta: &dyn Encode,
        from: &DevicePart,
        stream: &Stream,
    ) -> Result<MessageHandle, PublishError> {
        let described = self.bytes_of(meta)?;
        if described != from.bytes() {
            return Err(PublishError::Length { topic: self.topic.clone(), described, given: from.bytes() });
        }
        self.check_order()?;
        let message = self.loan(described)?;
        let place = PoolPart::to_fill(self.pool.as_ref(), message.offset(), described);
        if let Err(source) = self.node.backend().copy_within(stream, from, place) {
            self.port().give_back(message);
            return Err(self.device(source));
        }
        self.publish(message, meta, Filled { bytes: described, origin: Origin::Pushed }, Some(stream))
    }

    /// See `Publisher::publish_buffer`.
    pub(crate) fn publish_frozen(
        &self,
        meta: &dyn Encode,
        block: &Arc<FrozenBlock>,
        filled: Filled,
        stream: Option<&Stream>,
    ) -> Result<MessageHandle, PublishError> {
        let described = self.bytes_of(meta)?;
        if described != filled.bytes {
            return Err(PublishError::Length { topic: self.topic.clone(), described, given: filled.bytes });
        }
        if self.shared.as_ref().is_none_or(|shared| !block.pool().is(&shared.blocks)) {
            return Err(PublishError::AnotherPool { topic: self.topic.clone() });
        }
        if stream.is_some() {
            self.check_order()?;
        }
        let message = self.loan_frozen(block)?;
        self.publish(message, meta, filled, stream)
    }

    /// See `Publisher::statistics`.
    pub(crate) fn statistics(&self) -> PublisherStatistics {
        if !self.node.is_owner() {
            return PublisherStatistics::default();
        }
        let mut port = self.port();
        // Messages that were released since the last loan count as free.
        port.reclaim();
        PublisherStatistics::of(&port)
    }

    /// See `Publisher::subscriber_count`.
    pub(crate) fn subscriber_count(&self) -> usize {
        if self.node.is_owner() { self.port().subscriber_count() } else { 0 }
    }

    /// See `Publisher::is_cut_off`.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.attachment.is_cut_off()
    }

    /// See `Publisher::linked_subscriber_count`.
    pub(crate) fn linked_subscriber_count(&self) -> usize {
        if self.node.is_owner() { self.port().linked_subscriber_count() } else { 0 }
    }

    /// The error for metadata that contradicts itself, the payload or the topic's type.
    pub(crate) fn metadata(&self, source: MetaError) -> PublishError {
        PublishError::Metadata { topic: self.topic.clone(), source }
    }

    /// The error for a block that cannot be viewed as requested.
    pub(crate) fn view_error(&self, source: ViewError) -> PublishError {
        PublishError::View { topic: self.topic.clone(), source }
    }

    pub(crate) fn loan(&self, bytes: u64) -> Result<LoanedMessage, PublishError> {
        let loan = self.loan_as(self.qos.exhaustion, &|exhaustion| self.try_loan(bytes, exhaustion))?;
        match self.give_memory(loan.offset(), bytes) {
            Ok(()) => Ok(loan),
            Err(error) => {
                let mut port = self.port();
                port.count_refusal();
                port.give_back(loan);
                Err(error)
            }
        }
    }

    /// Loans an entry for a message whose payload is this block.
    pub(crate) fn loan_frozen(&self, block: &Arc<FrozenBlock>) -> Result<LoanedMessage, PublishError> {
        self.loan_as(self.qos.exhaustion, &|exhaustion| self.port().try_loan_frozen(block, exhaustion))
    }

    /// Loans by `attempt`, and makes space as `exhaustion` says.
    fn loan_as(&self, exhaustion: Exhaustion, attempt: Attempt<'_>) -> Result<LoanedMessage, PublishError> {
        let loan = match (attempt(exhaustion), exhaustion) {
            (Err(LoanError::Pool(_) | LoanError::Messages(_)), Exhaustion::Wait { .. }) => {
                self.wait_for_space(exhaustion, attempt)
            }
            (Err(LoanError::Pool(_) | LoanError::Messages(_)), Exhaustion::DropOldest) => self.drop_oldest(attempt),
            (done, _) => done,
        };
        loan.map_err(|source| {
            let topic = self.topic.clone();
            if let LoanError::CutOff(_) = source {
                return PublishError::CutOff { topic };
            }
            self.port().count_refusal();
            self.check_attached().err().unwrap_or(PublishError::NoSpace { topic, source })
        })
    }

    fn try_loan(&self, bytes: u64, exhaustion: Exhaustion) -> Result<LoanedMessage, LoanError> {
        if let Some(shared) = &self.shared {
            // Not matched in place: the port would stay locked, and `reclaim` locks it.
            let at_once = self.port().try_loan_unneeded(bytes);
            match at_once {
                // Before this publisher gives anything up: messages of others that nobody needs.
                Err(LoanError::Pool(_)) => shared.reclaim(),
                Err(LoanError::Messages(_)) => {}
                done => return done,
            }
        }
        self.port().try_loan(bytes, exhaustion)
    }

    /// Waits for space. After the time-out, subscribers that read nothing meanwhile no longer block this publisher.
    fn wait_for_space(&self, exhaustion: Exhaustion, attempt: Attempt<'_>) -> Result<LoanedMessage, LoanError> {
        let (readers, mut space) = {
            let port = self.port();
            (port.taken_counts(), port.space())
        };
        let unless_cut_off = || match self.attachment.is_cut_off() {
            true => Err(CutOff(self.attachment.slot.into()).into()),
            false => attempt(exhaustion),
        };
        let in_vain = match loan_within(&mut space, exhaustion, unless_cut_off) {
            Err(error @ LoanError::TimedOut { .. }) => error,
            done => return done,
        };
        self.port().give_up_on(readers);
        attempt(exhaustion).map_err(|_| in_vain.kept_by(self.port().keeper()))
    }

    /// Drops the oldest messages as soon as the port has the words of all subscribers. One that has just joined may hold what its words do not show
    /// yet, so nothing is dropped before.
    fn drop_oldest(&self, attempt: Attempt<'_>) -> Result<LoanedMessage, LoanError> {
        let mut space = self.port().space();
        let with_words = || {
            let lacked_words = self.port().lacks_words();
            match attempt(Exhaustion::DropOldest) {
                Err(full @ (LoanError::Pool(_) | LoanError::Messages(_))) if lacked_words => Err(full),
                done => Ok(done),
            }
        };
        let loan = loan_within(&mut space, Exhaustion::within(WORDS_TIMEOUT), with_words);
        loan.unwrap_or_else(|error| Err(error.kept_by(self.port().keeper())))
    }

    /// Requests memory that the block still lacks: a GPU pool gets its memory when a message first needs it.
    pub(crate) fn give_memory(&self, offset: u64, bytes: u64) -> Result<(), PublishError> {
        let missing = self.pool.missing(offset, bytes);
        let missing = missing.map_err(|source| PublishError::Block { topic: self.topic.clone(), source })?;
        if missing.is_empty() {
            return Ok(());
        }
        let added = self.node.add_memory(&self.attachment, self.pool.as_ref(), missing);
        added.map_err(|source| PublishError::Memory { topic: self.topic.clone(), source })
    }

    /// Copies host bytes into a block: in stream order, or without a stream before this returns.
    pub(crate) fn fill(&self, to: &mut Block, bytes: &[u8], stream: Option<&Stream>) -> Result<(), PublishError> {
        match self.pool.block_mut(to.range_mut()) {
            Ok(block) => {
                block[..bytes.len()].copy_from_slice(bytes);
                return Ok(());
            }
            Err(source) if self.pool.kind() == DeviceKind::Host => {
                return Err(PublishError::Block { topic: self.topic.clone(), source });
            }
            Err(_) => {}
        }
        let place = PoolPart::to_fill(self.pool.as_ref(), to.offset(), bytes.len() as u64);
        let backend = self.node.backend();
        let copied = match stream {
            Some(stream) => backend.copy_in(stream, bytes, place).map(drop),
            None => self.node.own_stream().and_then(|own| backend.copy_in(&own, bytes, place)?.wait(DEVICE_TIMEOUT)),
        };
        copied.map_err(|source| self.device(source))
    }

    /// Like `fill`, from memory of the node's device, which has no peer access to the block.
    pub(crate) fn fill_from(
        &self,
        offset: u64,
        from: &dyn PoolMemory,
        bytes: u64,
        stream: Option<&Stream>,
    ) -> Result<(), PublishError> {
        let place = PoolPart::to_fill(self.pool.as_ref(), offset, bytes);
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
    pub(crate) fn not_filled(
        &self,
        message: LoanedMessage,
        stream: Option<&Stream>,
        error: PublishError,
    ) -> PublishError {
        let is_under_way = matches!(&error, PublishError::Device { source: DeviceError::TimedOut(_), .. });
        match stream {
            Some(stream) => self.completions.add(stream, StreamFill::Block(message, self.port.clone())),
            None if is_under_way => {}
            None => self.port().give_back(message),
        }
        error
    }

    pub(crate) fn device(&self, source: DeviceError) -> PublishError {
        PublishError::Device { topic: self.topic.clone(), source }
    }

    /// Publishes a message whose bytes are complete, or, with a stream, will be complete after the stream's work so far.
    pub(crate) fn publish(
        &self,
        loan: LoanedMessage,
        meta: &dyn Encode,
        outcome: Filled,
        stream: Option<&Stream>,
    ) -> Result<MessageHandle, PublishError> {
        let mut encoded = [0; META_BYTES_MAX];
        let meta_bytes = meta.encode_into(&mut encoded);
        let described = Described { kind: meta.code(), meta: &encoded[..meta_bytes], outcome };
        if let Some(stream) = stream
            && let Err(source) = self.completions.write_ready(stream, loan.message())
        {
            return Err(self.not_filled(loan, Some(stream), self.device(source)));
        }
        let (message, mut port) = (loan.message(), self.port());
        let spec = self.next_spec(&described);
        let Some(stream) = stream else {
            let position = port.publish(loan, &spec);
            // A reader of the log may use the publisher.
            drop(port);
            return self.handle_of(message, &spec.info, position).inspect(|handle| self.log(handle));
        };
        let published = port.publish_pending(loan, &spec);
        drop(port);
        let (position, told) = match published {
            Ok((position, pending)) => (Ok(position), StreamFill::Message(pending)),
            Err(error) => (Err(error), StreamFill::Word),
        };
        self.completions.add(stream, told);
        self.handle_of(message, &spec.info, position).inspect(|handle| self.log(handle))
    }

    /// Publishes a message whose bytes are complete. The caller then drops the batch, which wakes the subscribers, and calls `log`.
    pub(crate) fn publish_in(
        &self,
        batch: &mut Batch<'_>,
        loan: LoanedMessage,
        described: &Described<'_>,
    ) -> Result<MessageHandle, PublishError> {
        let message = loan.message();
        let spec = self.next_spec(described);
        let position = batch.publish(loan, &spec);
        self.handle_of(message, &spec.info, position)
    }

    /// The next message's description. The caller has locked the port, which gives positions in the order in which it is called: so sequences have
    /// that order, too.
    fn next_spec<'a>(&self, described: &Described<'a>) -> MessageSpec<'a> {
        let Filled { bytes, origin } = described.outcome;
        let is_pushed = origin == Origin::Pushed;
        let info = MessageInfo {
            publisher: self.publisher,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            source_host: self.node.host(),
            host_epoch: self.node.host_epoch(),
            kind: described.kind,
            bytes,
            stamps: Stamps { published: clock::realtime_ns(), ..Stamps::default() },
            origin,
            route_reason: if is_pushed { RouteReason::ForeignBuffer } else { RouteReason::Best },
            copies: Copies { pushed: u8::from(is_pushed), ..Copies::default() },
            ..MessageInfo::default()
        };
        MessageSpec { info, meta: described.meta, history_depth: self.history_depth() }
    }

    fn handle_of(
        &self,
        message: MessageRef,
        info: &MessageInfo,
        position: Result<Position, WriteError>,
    ) -> Result<MessageHandle, PublishError> {
        let position = position.map_err(|source| match source {
            WriteError::CutOff(_) => PublishError::CutOff { topic: self.topic.clone() },
            source => PublishError::Topic { topic: self.topic.clone(), source },
        })?;
        Ok(MessageHandle::new(self.attachment.topic.0, message, &MessageInfo { position: position.0, ..*info }))
    }

    /// Logs a publication: after the wake-up, which a slow log must not delay.
    pub(crate) fn log(&self, handle: &MessageHandle) {
        let (topic, publisher, sequence) = (&self.topic, self.publisher, handle.sequence);
        tracing::trace!(target: "rgaps::message", topic, publisher, sequence, "published");
    }

    /// Finds what would make a publication in stream order fail, before a block is loaned.
    pub(crate) fn check_order(&self) -> Result<(), PublishError> {
        self.completions.ready_words().map(drop).map_err(|source| self.device(source))
    }

    pub(crate) fn check_attached(&self) -> Result<(), PublishError> {
        self.check_owner()?;
        match self.attachment.is_cut_off() {
            false => Ok(()),
            true => Err(PublishError::CutOff { topic: self.topic.clone() }),
        }
    }

    pub(crate) fn check_owner(&self) -> Result<(), PublishError> {
        match self.node.is_owner() {
            true => Ok(()),
            false => Err(PublishError::Forked { topic: self.topic.clone() }),
        }
    }
}

impl Endpoint for PublisherInner {
    fn upkeep(&self) -> Upkeep {
        Upkeep::Publisher {
            topic: self.attachment.topic,
            slot: self.attachment.slot,
            completions: Arc::downgrade(&self.completions),
            idle: IdlePool::new(&self.port, &self.pool),
        }
    }

    fn wake_all(&self) {
        self.attachment.segment.wake_everybody();
    }
}

impl Drop for PublisherInner {
    fn drop(&mut self) {
        // Until it is detached, the slot is handed back (`Member`). A stream that may still write keeps slot and pool until the process ends.
        if !self.node.is_owner() || self.completions.end(STREAM_TIMEOUT) {
            // Before the manager frees them.
            if let Some(shared) = self.shared.as_ref().filter(|_| self.node.is_owner()) {
                shared.keep(self.port().leave());
            }
            self.node.detach(&self.attachment);
        } else {
            std::mem::forget((self.pool.clone(), self.shared.clone(), self.port.clone()));
        }
    }
}

/// Loans once.
type Attempt<'a> = &'a dyn Fn(Exhaustion) -> Result<LoanedMessage, LoanError>;

/// A filled loan's metadata, encoded: that runs the program's code (`Meta::encode`), so it comes before the port is locked.
pub(crate) struct Described<'a> {
    pub(crate) kind: u32,
    pub(crate) meta: &'a [u8],
    pub(crate) outcome: Filled,
}

/// The bytes of a filled block, and how they came there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    pub(crate) bytes: u64,
    pub(crate) origin: Origin,
}
