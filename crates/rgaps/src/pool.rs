//! Pools that publishers of several topics share.

use std::sync::Arc;

use rgaps_control::PublisherQos;

use crate::buffer::PoolBuffer;
use crate::endpoint::error::NodeError;
use crate::endpoint::publish_error::PublishError;
use crate::endpoint::publisher::PublisherInner;
use crate::endpoint::shared_pool::{BufferInner, PoolInner};
use crate::publisher::Publisher;
use crate::types::Meta;

/// A pool of which a buffer can be allocated before it is known on which topics it will be published. Created by `Node::pool`. Cheap to clone; every
/// clone is the same pool. Its memory is freed when the last pool, buffer and publisher of it is dropped, and subscribers have released the messages.
///
/// A plain publisher has a pool of its own instead, whose size its QoS limits: use that if each message goes to one topic.
///
/// ```
/// use rgaps::{Exhaustion, Node, types::Bytes};
///
/// # let _host = rgaps_testing::example_host();
/// let node = Node::new("camera")?;
/// let pool = node.pool(1 << 20, Exhaustion::within(std::time::Duration::from_millis(100)))?;
/// let buffer = pool.allocate(1000)?;
/// assert_eq!((buffer.len(), pool.used_bytes()), (1000, 1024)); // blocks are a little longer
/// drop(buffer);
/// assert_eq!(pool.used_bytes(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<PoolInner>,
}

impl Pool {
    pub(crate) fn new(inner: Arc<PoolInner>) -> Self {
        Self { inner }
    }

    /// Allocates a buffer of `bytes` bytes. They are not cleared: fill all of them.
    ///
    /// If the pool is full, the pool's `Exhaustion` decides. `DropOldest`, and `Wait` after its time-out (for subscribers that read nothing
    /// meanwhile; until they read again, the next allocation does not wait for them), give up messages of all topics in the pool: what keep-last
    /// subscribers have not read, oldest first, then history for late joiners.
    /// Never given up are buffers, held messages, what keep-all subscribers have not read, and unread messages of publishers that were dropped.
    /// Unlike a loan, an allocation that fails in the end may have given up others in vain.
    ///
    /// ```
    /// # use rgaps::{Exhaustion, LoanError, Node, PublishError};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// let pool = node.pool(1 << 20, Exhaustion::Refuse)?;
    /// let first = pool.allocate(600_000)?;
    /// let second = pool.allocate(600_000); // no room beside the first one
    /// assert!(matches!(second, Err(PublishError::NoSpace { source: LoanError::Pool(_), .. })));
    /// drop(first);
    /// assert!(pool.allocate(600_000).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate(&self, bytes: u64) -> Result<PoolBuffer, PublishError> {
        Ok(PoolBuffer { inner: BufferInner::new(&self.inner, bytes)? })
    }

    /// Creates a publisher in this pool, with ROS 2's default QoS.
    pub fn publisher<T: Meta>(&self, topic: &str) -> Result<Publisher<T>, NodeError> {
        self.publisher_with(topic, PublisherQos::default())
    }

    /// Creates a publisher in this pool, like `Node::publisher_with`; `pool_bytes` has no effect. Its loans and pushes use the pool, too. They
    /// give up messages of their own topic only.
    ///
    /// ```
    /// # use rgaps::{Durability, Exhaustion, Node, PublisherQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("planner")?;
    /// let pool = node.pool(1 << 20, Exhaustion::Refuse)?;
    /// let latched = PublisherQos { durability: Durability::TransientLocal, history_depth: 1, ..PublisherQos::default() };
    /// let map = pool.publisher_with::<Bytes>("map", latched)?;
    /// map.push(&Bytes::new(5), b"hello")?;
    /// assert_eq!(pool.used_bytes(), 256, "kept for late joiners");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publisher_with<T: Meta>(&self, topic: &str, qos: PublisherQos) -> Result<Publisher<T>, NodeError> {
        self.publisher_of(topic, T::TYPE_NAME, qos).map(Publisher::new)
    }

    pub(crate) fn publisher_of(
        &self,
        topic: &str,
        type_name: &str,
        qos: PublisherQos,
    ) -> Result<Arc<PublisherInner>, NodeError> {
        PublisherInner::make(self.inner.node(), topic, type_name, qos, Some(self.inner.share()))
    }

    /// Bytes of the blocks in use: of buffers, and of messages that are not released. A block is a multiple of 256 B, and up to 1/32 longer than
    /// requested. 0 in a forked child, where the pool is not mapped.
    pub fn used_bytes(&self) -> u64 {
        if !self.inner.node().is_owner() {
            return 0;
        }
        self.inner.share().reclaim();
        self.inner.share().blocks.stats().used_bytes
    }
}
