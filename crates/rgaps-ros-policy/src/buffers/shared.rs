//! What all buffers of a process have in common.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rgaps::{Exhaustion, Node, NodeError, Pool, SessionError};

use super::gid::lock;
use super::joins::Join;
use super::lane::Lanes;

/// The time between two rounds that make what is missing. For as long, nothing that middleware calls waits for the manager after that was in vain.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(5);

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
    /// When a publication has last waited in vain for the manager to map the pool of a received payload.
    silent: Mutex<Option<Instant>>,
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

/// Whether less than `RETRY_DELAY` has passed since.
pub(super) fn is_recent(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() < RETRY_DELAY)
}

/// Whether the manager has not answered.
pub(super) fn has_timed_out(error: &NodeError) -> bool {
    matches!(error, NodeError::Session(SessionError::TimedOut { .. }))
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
            silent: Mutex::default(),
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

    /// A publication has waited in vain for the manager.
    pub(super) fn note_silence(&self) {
        *lock(&self.silent) = Some(Instant::now());
    }

    /// Whether one has a moment ago.
    pub(super) fn is_manager_silent(&self) -> bool {
        is_recent(*lock(&self.silent))
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
