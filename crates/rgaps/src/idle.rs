//! Device memory of a pool that nobody uses: given back but for the first slab, some time after its last message was released.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rgaps_device::PoolMemory;
use rgaps_shm::WriterPort;

/// How long a pool keeps its memory after its last message.
const KEEP: Duration = Duration::from_secs(10);

/// Watches one pool.
#[derive(Debug)]
pub(crate) struct IdlePool {
    port: Weak<Mutex<WriterPort>>,
    pool: Weak<dyn PoolMemory>,
    /// Since when it has been empty.
    empty: Option<Instant>,
}

impl IdlePool {
    pub(crate) fn new(port: &Arc<Mutex<WriterPort>>, pool: &Arc<dyn PoolMemory>) -> Self {
        Self { port: Arc::downgrade(port), pool: Arc::downgrade(pool), empty: None }
    }

    /// Gives back what is due, and tells which part: first byte, bytes.
    pub(crate) fn look(&mut self, tell: impl FnOnce(u64, u64)) {
        let (Some(port), Some(pool)) = (self.port.upgrade(), self.pool.upgrade()) else { return };
        let Some(first) = pool.first_slab_bytes().filter(|first| pool.resident_bytes() > *first) else { return };
        // While the port is locked no block is given out, and nobody asks for memory before the manager has let go too.
        let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
        port.reclaim();
        if port.pool().used_bytes > 0 {
            self.empty = None;
        } else if self.empty.get_or_insert_with(Instant::now).elapsed() >= KEEP {
            let bytes = pool.bytes() - first;
            match pool.release_unused(first, bytes) {
                Ok(()) => tell(first, bytes),
                Err(error) => tracing::debug!(%error, "an idle pool keeps its memory"),
            }
        }
    }
}
