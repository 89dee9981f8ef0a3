//! What the publishers of a shared pool have in common (shared_pool.rs): its memory, its allocator, and each other's ports.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rgaps_control::{PublisherSlot, TopicId};
use rgaps_device::PoolMemory;
use rgaps_shm::{LeftMessages, SharedPool, WriterPort};

use crate::endpoint::members::Endpoint;

/// What all publishers of one shared pool use.
#[derive(Debug)]
pub(crate) struct PoolShare {
    /// The topic and slot of the publisher to which the memory belongs.
    pub(crate) place: (TopicId, PublisherSlot),
    pub(crate) memory: Arc<dyn PoolMemory>,
    pub(crate) blocks: SharedPool,
    /// The ports of the publishers that share it.
    ports: Mutex<Vec<Weak<Mutex<WriterPort>>>>,
    /// What publishers have left behind.
    left: Mutex<Vec<LeftMessages>>,
    /// That publisher, which lives as long as the share.
    _owner: Arc<dyn Endpoint>,
}

impl PoolShare {
    pub(crate) fn new(
        owner: Arc<dyn Endpoint>,
        place: (TopicId, PublisherSlot),
        memory: Arc<dyn PoolMemory>,
        blocks: SharedPool,
    ) -> Self {
        Self { place, memory, blocks, ports: Mutex::default(), left: Mutex::default(), _owner: owner }
    }

    /// Adds a publisher's port.
    pub(crate) fn add(&self, port: &Arc<Mutex<WriterPort>>) {
        let mut ports = lock(&self.ports);
        ports.retain(|port| port.strong_count() > 0);
        ports.push(Arc::downgrade(port));
    }

    /// Keeps the blocks of what a publisher leaves behind until the manager has freed the messages.
    pub(crate) fn keep(&self, left: LeftMessages) {
        let mut all = lock(&self.left);
        all.push(left);
        // Each keeps a topic's memory mapped. A pool that never fills would not reclaim them.
        all.retain_mut(|left| !left.reclaim());
    }

    /// Frees the blocks of messages that nobody needs, in all topics.
    pub(crate) fn reclaim(&self) {
        self.ports().iter().for_each(|port| lock(port).reclaim());
        lock(&self.left).retain_mut(|left| !left.reclaim());
    }

    /// The ports of its publishers.
    pub(crate) fn ports(&self) -> Vec<Arc<Mutex<WriterPort>>> {
        lock(&self.ports).iter().filter_map(Weak::upgrade).collect()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
