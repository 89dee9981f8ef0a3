//! Publishing: loan a block and fill it in place, or push a buffer that lies elsewhere.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_control::qos;
use rgaps_device::PoolMemory;
use rgaps_os::clock;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::writer::loan_within;
use rgaps_shm::{
    Copies, Exhaustion, LoanError, LoanedMessage, MessageInfo, MessageSpec, Origin, Stamps, WhyNot, WriterPort,
};

use crate::node::NodeInner;
use crate::session::Seated;
use crate::statistics::PublisherStatistics;
use crate::types::{Meta, MetaError};

/// A message was not published. Nothing of it is left behind, and the publisher goes on.
#[derive(thiserror::Error)]
pub enum PublishError {
    /// There is no space, and the publisher's QoS does not make any.
    #[error("{topic}: {source}")]
    NoSpace {
        /// The topic.
        topic: String,
        /// What was missing.
        source: LoanError,
    },
    /// The metadata describes another number of bytes than there are, or contradicts itself.
    #[error("{topic}: {source}")]
    Metadata {
        /// The topic.
        topic: String,
        /// What is wrong.
        source: MetaError,
    },
    /// `push` was given another number of bytes than the metadata describes.
    #[error("{topic}: the metadata describes {described} B, the buffer has {given} B")]
    Length {
        /// The topic.
        topic: String,
        /// Bytes that the metadata describes.
        described: u64,
        /// Bytes given.
        given: u64,
    },
    /// The topic's segment is unusable.
    #[error("{topic}: {source}")]
    Topic {
        /// The topic.
        topic: String,
        /// What is wrong.
        source: rgaps_shm::writer::PublishError,
    },
    /// The block does not lie in the pool: the segment was tampered with.
    #[error("{topic}: {source}")]
    Block {
        /// The topic.
        topic: String,
        /// Where it lies.
        source: rgaps_os::OutOfRange,
    },
    /// This process was forked from the one that made the publisher.
    #[error("{topic}: the publisher belongs to the parent process; make a node after fork")]
    Forked {
        /// The topic.
        topic: String,
    },
}

/// What became of a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// This publisher's count of its messages, from 1.
    pub sequence: u64,
    /// Place in the order of the topic on this host.
    pub position: u64,
}

/// Publishes messages of one type on one topic. Cheap to clone; every clone is the same publisher.
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
    pub(crate) seated: Seated,
    pub(crate) port: Mutex<WriterPort>,
    pub(crate) pool: Arc<dyn PoolMemory>,
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
        let mut space = self.port().space();
        loan_within(&mut space, exhaustion, || self.port().try_loan(bytes, exhaustion)).map_err(|source| {
            self.port().count_refusal();
            PublishError::NoSpace { topic: self.topic.clone(), source }
        })
    }

    fn publish(&self, loan: LoanedMessage, meta: &dyn Encode, outcome: Outcome) -> Result<Receipt, PublishError> {
        let mut encoded = [0; META_BYTES_MAX];
        let meta_bytes = meta.encode_into(&mut encoded);
        // The port gives positions in the order in which it is called: number and publish under one lock.
        let mut port = self.port();
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let info = MessageInfo {
            publisher: self.publisher,
            sequence,
            source_host: self.node.host(),
            kind: meta.kind(),
            bytes: outcome.bytes,
            stamps: Stamps { published: clock::realtime_ns(), ..Stamps::default() },
            origin: outcome.origin,
            why_not: if outcome.origin == Origin::Pushed { WhyNot::ForeignBuffer } else { WhyNot::Best },
            copies: Copies { pushed: u8::from(outcome.origin == Origin::Pushed), ..Copies::default() },
            ..MessageInfo::default()
        };
        let spec = MessageSpec { info, meta: &encoded[..meta_bytes], history_depth: self.history_depth() };
        let position =
            port.publish(loan, &spec).map_err(|source| PublishError::Topic { topic: self.topic.clone(), source })?;
        Ok(Receipt { sequence, position: position.0 })
    }

    fn check_owner(&self) -> Result<(), PublishError> {
        if self.node.is_owner() { Ok(()) } else { Err(PublishError::Forked { topic: self.topic.clone() }) }
    }
}

impl Drop for PublisherInner {
    fn drop(&mut self) {
        self.node.leave(&self.seated);
    }
}

struct Outcome {
    bytes: u64,
    origin: Origin,
}

/// What publishing needs of the metadata, so that it is compiled once for all types.
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

    /// A block of the pool for the bytes that `meta` describes, to be filled in place and published without a copy.
    ///
    /// What happens while the pool is full is the publisher's QoS (`Exhaustion`).
    pub fn loan(&self, meta: T) -> Result<Loan<T>, PublishError> {
        self.inner.check_owner()?;
        let bytes = meta.payload_bytes();
        meta.check(bytes).map_err(|source| self.metadata(source))?;
        let message = self.inner.loan(bytes)?;
        Ok(Loan { publisher: self.inner.clone(), message: Some(message), meta, bytes })
    }

    /// Publishes bytes that lie elsewhere: one copy into the pool, whatever the number of subscribers.
    pub fn push(&self, meta: &T, bytes: &[u8]) -> Result<Receipt, PublishError> {
        self.inner.check_owner()?;
        let described = meta.payload_bytes();
        meta.check(described).map_err(|source| self.metadata(source))?;
        if described != bytes.len() as u64 {
            return Err(PublishError::Length { topic: self.inner.topic.clone(), described, given: bytes.len() as u64 });
        }
        let mut message = self.inner.loan(described)?;
        match self.inner.pool.block_mut(message.block_mut().range_mut()) {
            Ok(block) => block[..bytes.len()].copy_from_slice(bytes),
            Err(source) => {
                self.inner.port().give_back(message);
                return Err(PublishError::Block { topic: self.inner.topic.clone(), source });
            }
        }
        self.inner.publish(message, meta, Outcome { bytes: described, origin: Origin::Pushed })
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.inner.topic
    }

    /// Counters of this publisher and its pool; zeros in a forked child, where neither is mapped.
    pub fn statistics(&self) -> PublisherStatistics {
        if !self.inner.node.is_owner() {
            return PublisherStatistics::default();
        }
        let mut port = self.inner.port();
        // What was read and let go since the last loan is free, though nobody has asked for its space yet.
        port.reclaim();
        PublisherStatistics::of(&port)
    }

    /// Subscribers on this host, remote hosts included: each remote host that wants the topic counts as one. None in a forked child.
    pub fn subscriber_count(&self) -> usize {
        if !self.inner.node.is_owner() {
            return 0;
        }
        let port = self.inner.port();
        port.segment().header().subscribers.0.load(Ordering::Acquire).count_ones() as usize
    }

    fn metadata(&self, source: MetaError) -> PublishError {
        PublishError::Metadata { topic: self.inner.topic.clone(), source }
    }
}

/// A block of the publisher's pool that is being filled. Dropping it gives the block back.
///
/// A block that has been used before still holds its old bytes: fill all of it. Empty in a forked child, where the pool is not mapped.
#[derive(Debug)]
#[must_use = "a loan does nothing until it is published"]
pub struct Loan<T> {
    publisher: Arc<PublisherInner>,
    message: Option<LoanedMessage>,
    meta: T,
    bytes: u64,
}

impl<T: Meta> Loan<T> {
    /// Publishes the message: zero copies.
    pub fn publish(mut self) -> Result<Receipt, PublishError> {
        self.publisher.check_owner()?;
        let Some(message) = self.message.take() else { unreachable!("only publish and drop take it") };
        self.publisher.publish(message, &self.meta, Outcome { bytes: self.bytes, origin: Origin::Loaned })
    }

    /// The metadata, to be completed before publishing. It keeps describing the same number of bytes.
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
        let offset = self.message.as_ref().map_or(0, LoanedMessage::offset);
        self.publisher.pool.host_bytes(offset, self.bytes).unwrap_or(&[])
    }
}

impl<T> DerefMut for Loan<T> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(message) = self.message.as_mut().filter(|_| self.publisher.node.is_owner()) else { return &mut [] };
        match self.publisher.pool.block_mut(message.block_mut().range_mut()) {
            Ok(block) => &mut block[..self.bytes as usize],
            Err(_) => &mut [],
        }
    }
}

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        // In a forked child nothing is mapped, and the block is the parent's to give back.
        if let Some(message) = self.message.take().filter(|_| self.publisher.node.is_owner()) {
            self.publisher.port().give_back(message);
        }
    }
}
