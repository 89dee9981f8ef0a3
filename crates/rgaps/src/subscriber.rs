//! Subscribing: take what is ready, read it where it lies, drop it to let it go.

use std::collections::HashMap;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rgaps_device::PoolMemory;
use rgaps_os::{EventFd, clock};
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::notify::Wait;
use rgaps_shm::reader::PoolRef;
use rgaps_shm::{Held, MessageInfo, ReaderPort};

use crate::node::{NodeError, NodeInner};
use crate::session::Seated;
use crate::statistics::SubscriberStatistics;
use crate::types::{Meta, MetaError};

/// A message could not be taken. It is let go; the next take goes on with the next message.
#[derive(thiserror::Error)]
pub enum TakeError {
    /// The publisher's pool could not be mapped.
    #[error("{topic}: the pool of publisher slot {slot} could not be mapped: {source}")]
    Pool {
        /// The topic.
        topic: String,
        /// The publisher slot.
        slot: u8,
        /// Why.
        source: NodeError,
    },
    /// A message names bytes outside its pool: its publisher lied, or the segment was tampered with.
    #[error("{topic}: message {sequence} lies at {offset} + {bytes} B, outside its pool; it is dropped")]
    OutOfBounds {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// Offset claimed.
        offset: u64,
        /// Length claimed.
        bytes: u64,
    },
    /// The typed metadata is malformed or does not fit the payload.
    #[error("{topic}: message {sequence}: {source}")]
    Metadata {
        /// The topic.
        topic: String,
        /// The publisher's count.
        sequence: u64,
        /// What is wrong.
        source: MetaError,
    },
    /// The wait itself failed.
    #[error("{topic}: waiting failed: {source}")]
    Wait {
        /// The topic.
        topic: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// This process was forked from the one that made the subscriber.
    #[error("{topic}: the subscriber belongs to the parent process; make a node after fork")]
    Forked {
        /// The topic.
        topic: String,
    },
}

/// Takes messages of one type from one topic. Cheap to clone; every clone is the same subscriber.
#[derive(Debug)]
pub struct Subscriber<T> {
    inner: Arc<SubscriberInner>,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Subscriber<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), kind: PhantomData }
    }
}

#[derive(Debug)]
pub(crate) struct SubscriberInner {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) topic: String,
    pub(crate) seated: Seated,
    pub(crate) reader: Mutex<ReaderPort>,
    pub(crate) pools: Mutex<HashMap<PoolRef, Arc<dyn PoolMemory>>>,
    pub(crate) event: OnceLock<Arc<EventFd>>,
}

impl SubscriberInner {
    pub(crate) fn reader(&self) -> MutexGuard<'_, ReaderPort> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self, pool: PoolRef) -> Result<Arc<dyn PoolMemory>, TakeError> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = pools.get(&pool) {
            return Ok(memory.clone());
        }
        let memory = self.node.import_pool(&self.seated, pool).map_err(|source| TakeError::Pool {
            topic: self.topic.clone(),
            slot: pool.slot,
            source,
        })?;
        // A slot has one pool at a time: what an earlier tenant left there is unmapped once its last frame is gone.
        pools.retain(|known, _| known.slot != pool.slot);
        pools.insert(pool, memory.clone());
        Ok(memory)
    }
}

impl Drop for SubscriberInner {
    fn drop(&mut self) {
        self.node.leave(&self.seated);
    }
}

impl<T: Meta> Subscriber<T> {
    pub(crate) fn inner(&self) -> &Arc<SubscriberInner> {
        &self.inner
    }

    pub(crate) fn new(inner: SubscriberInner) -> Self {
        Self { inner: Arc::new(inner), kind: PhantomData }
    }

    /// The next message if one is ready.
    pub fn take(&self) -> Result<Option<Frame<T>>, TakeError> {
        self.check_owner()?;
        let held = self.inner.reader().take();
        if let Some(held) = held {
            return self.open(held).map(Some);
        }
        let Some(event) = self.inner.event.get() else { return Ok(None) };
        // Nothing left: the descriptor falls silent, and a message that came meanwhile is looked for once more.
        event.drain().map_err(|source| self.wait_error(source))?;
        let held = self.inner.reader().take();
        held.map(|held| self.open(held)).transpose()
    }

    /// Everything that is ready, as one batch, oldest first.
    pub fn take_all(&self) -> Result<Vec<Frame<T>>, TakeError> {
        let mut batch = Vec::new();
        while let Some(frame) = self.take()? {
            batch.push(frame);
        }
        Ok(batch)
    }

    /// The next message, or `None` if none came within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Frame<T>>, TakeError> {
        self.check_owner()?;
        let deadline = Instant::now().checked_add(timeout);
        let mut waiter = self.inner.reader().waiter();
        loop {
            waiter.arm().map_err(|source| self.wait_error(source))?;
            if let Some(frame) = self.take()? {
                waiter.disarm();
                return Ok(Some(frame));
            }
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                waiter.disarm();
                return Ok(None);
            }
            waiter.wait(left).map_err(|source| self.wait_error(source))?;
        }
    }

    /// The next message, in async code of any runtime. The node's thread wakes the task.
    pub async fn next(&self) -> Result<Frame<T>, TakeError> {
        let event = self.event()?;
        poll_fn(|context| {
            self.inner.node.wake_when_readable(event, context.waker().clone());
            match self.take() {
                Ok(Some(frame)) => std::task::Poll::Ready(Ok(frame)),
                Ok(None) => std::task::Poll::Pending,
                Err(error) => std::task::Poll::Ready(Err(error)),
            }
        })
        .await
    }

    /// A descriptor that is readable while a message may be ready, for epoll, select and wait sets. Do not read it: `take` until it
    /// returns `None`, which silences it.
    ///
    /// The first call asks the manager for it; from then on each publication costs its publisher one system call for this subscriber.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, TakeError> {
        Ok(self.event()?.as_fd())
    }

    /// The topic's fully qualified name.
    pub fn topic(&self) -> &str {
        &self.inner.topic
    }

    /// Counters of this subscriber; zeros in a forked child, where the segment is not mapped.
    pub fn statistics(&self) -> SubscriberStatistics {
        if !self.inner.node.is_owner() {
            return SubscriberStatistics::default();
        }
        SubscriberStatistics::of(&self.inner.reader())
    }

    fn event(&self) -> Result<&Arc<EventFd>, TakeError> {
        self.check_owner()?;
        if let Some(event) = self.inner.event.get() {
            return Ok(event);
        }
        let event = self
            .inner
            .node
            .event_descriptor(&self.inner.seated)
            .map_err(|source| self.wait_error(std::io::Error::other(source)))?;
        Ok(self.inner.event.get_or_init(|| Arc::new(event)))
    }

    fn open(&self, held: Held) -> Result<Frame<T>, TakeError> {
        let info = *held.info();
        let pool = self.inner.pool(held.pool())?;
        let offset = held.offset();
        if pool.host_bytes(offset, info.bytes).is_err() {
            let topic = self.inner.topic.clone();
            return Err(TakeError::OutOfBounds { topic, sequence: info.sequence, offset, bytes: info.bytes });
        }
        let mut encoded = [0; META_BYTES_MAX];
        let meta_bytes = held.copy_meta(&mut encoded);
        let meta = T::decode(&encoded[..meta_bytes]).and_then(|meta| meta.check(info.bytes).map(|()| meta)).map_err(
            |source| TakeError::Metadata { topic: self.inner.topic.clone(), sequence: info.sequence, source },
        )?;
        let taken = clock::realtime_ns();
        Ok(Frame { meta, offset, taken, info, held: Some(held), pool, subscriber: self.inner.clone() })
    }

    fn check_owner(&self) -> Result<(), TakeError> {
        match self.inner.node.is_owner() {
            true => Ok(()),
            false => Err(TakeError::Forked { topic: self.inner.topic.clone() }),
        }
    }

    fn wait_error(&self, source: std::io::Error) -> TakeError {
        TakeError::Wait { topic: self.inner.topic.clone(), source }
    }
}

/// A message that is being read, in the memory where its publisher (or, from another host, the manager) put it.
///
/// It stays valid however far the publisher runs ahead, and outlives its subscriber. Dropping it lets the message go.
#[derive(Debug)]
pub struct Frame<T> {
    meta: T,
    offset: u64,
    taken: u64,
    info: MessageInfo,
    // Let go in `drop`, before the pool may be unmapped and before the subscriber leaves.
    held: Option<Held>,
    pool: Arc<dyn PoolMemory>,
    subscriber: Arc<SubscriberInner>,
}

impl<T> Drop for Frame<T> {
    fn drop(&mut self) {
        let held = self.held.take();
        if !self.subscriber.node.is_owner() {
            // In a forked child the segment is not mapped, and the message is the parent's to let go.
            std::mem::forget(held);
        }
    }
}

impl<T: Meta> Frame<T> {
    /// The typed metadata.
    pub fn meta(&self) -> &T {
        &self.meta
    }

    /// The payload. Empty in a forked child, where the pool is not mapped.
    pub fn bytes(&self) -> &[u8] {
        if !self.subscriber.node.is_owner() {
            return &[];
        }
        self.pool.host_bytes(self.offset, self.info.bytes).unwrap_or(&[])
    }

    /// Where it came from, the path that it took and when it passed each stage.
    pub fn info(&self) -> &MessageInfo {
        &self.info
    }

    /// When it was taken, in ns since 1970 on this host's clock.
    pub fn taken_ns(&self) -> u64 {
        self.taken
    }

    /// What the payload is mapped from: (device, inode) of the pool's memory, and the offset in it. The same for every subscriber.
    pub fn mapped_from(&self) -> ((u64, u64), u64) {
        (self.pool.identity(), self.offset)
    }
}
