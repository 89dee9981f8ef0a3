//! What all buffers of a process have in common.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rgaps::{Exhaustion, Node, NodeError, Pool};

use super::gid::lock;
use super::joins::Join;
use super::lane::Lanes;

/// How many requests to join wait to be looked at.
const ASKED_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) node: Node,
    pool: OnceLock<Pool>,
    /// Held while the pool is made, which waits for the manager.
    making: Mutex<()>,
    pub(super) lanes: Arc<Lanes>,
    /// Requests to join of payloads that were taken since, with the process that asks.
    asked: Mutex<Vec<(u64, Join)>>,
    /// How many joins of others this process has noted.
    pub(super) joins_noted: AtomicU64,
    pub(super) counters: Counters,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) allocated: AtomicU64,
    pub(super) published: AtomicU64,
    pub(super) as_bytes: AtomicU64,
    pub(super) copied: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) refused: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    pub(super) fn new(node: Node) -> Self {
        let lanes = Arc::new(Lanes::new(node.device().clone()));
        Self {
            node,
            pool: OnceLock::new(),
            making: Mutex::default(),
            lanes,
            asked: Mutex::default(),
            joins_noted: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Notes what a message asks for whose payload was taken: anybody may send descriptors, but not payloads.
    pub(super) fn note_asked(&self, asks: (u64, Join)) {
        let mut asked = lock(&self.asked);
        if asked.len() < ASKED_MAX {
            asked.push(asks);
        }
    }

    /// What was asked for since the last call.
    pub(super) fn take_asked(&self) -> Vec<(u64, Join)> {
        std::mem::take(&mut lock(&self.asked))
    }

    pub(super) fn made_pool(&self) -> Option<Pool> {
        self.pool.get().cloned()
    }

    /// The pool. The first call makes it.
    pub(super) fn pool(&self) -> Result<Pool, NodeError> {
        let _making = lock(&self.making);
        if let Some(pool) = self.pool.get() {
            return Ok(pool.clone());
        }
        let pool = self.node.default_pool(Exhaustion::DropOldest)?;
        Ok(self.pool.get_or_init(|| pool).clone())
    }
}
