//! Gives memory of a publisher's idle pool back to the system, and tells the manager.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use rgaps_device::{Idle, PoolMemory};
use rgaps_shm::{PoolStats, WriterPort};

/// Watches one pool.
#[derive(Debug)]
pub(crate) struct IdlePool {
    port: Weak<Mutex<WriterPort>>,
    pool: Weak<dyn PoolMemory>,
    idle: Idle,
}

impl IdlePool {
    pub(crate) fn new(port: &Arc<Mutex<WriterPort>>, pool: &Arc<dyn PoolMemory>) -> Self {
        Self { port: Arc::downgrade(port), pool: Arc::downgrade(pool), idle: Idle::default() }
    }

    /// Gives back memory that is due, and calls `tell` with its offset and length in bytes.
    pub(crate) fn release_memory(&mut self, tell: impl FnOnce(u64, u64)) {
        let (Some(port), Some(pool)) = (self.port.upgrade(), self.pool.upgrade()) else { return };
        if !Idle::has_memory(pool.as_ref()) {
            return;
        }
        // While the port is locked, no block can be loaned, so no loan requests this memory before the manager has released it too.
        let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
        port.reclaim();
        let idle = &mut self.idle;
        let release = |used: PoolStats| {
            if let Some((offset, bytes)) = idle.release_memory(pool.as_ref(), used.used_bytes, Instant::now()) {
                tell(offset, bytes);
            }
        };
        match port.shared_pool() {
            // Nor can another port loan one.
            Some(shared) => shared.while_unchanged(release),
            None => release(port.pool()),
        }
    }
}
