//! Frees the memory of an idle pool, except its first slab, some time after its last message was released.

use std::time::{Duration, Instant};

use crate::pool::PoolMemory;

/// How long a pool keeps its memory after its last message was released.
pub const KEEP: Duration = Duration::from_secs(10);

/// Tracks since when a pool is empty. The pool's writer calls it periodically.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle {
    empty: Option<Instant>,
}

impl Idle {
    /// Whether the pool has memory that could be freed.
    pub fn has_memory(pool: &dyn PoolMemory) -> bool {
        pool.first_slab_bytes().is_some_and(|first| pool.resident_bytes() > first)
    }

    /// Frees the pool's memory if it has been empty for `KEEP`, and returns the freed part: first byte, bytes. `used_bytes` counts the bytes in
    /// blocks; the caller allocates none during the call.
    pub fn release_memory(&mut self, pool: &dyn PoolMemory, used_bytes: u64, now: Instant) -> Option<(u64, u64)> {
        let first = pool.first_slab_bytes().filter(|first| pool.resident_bytes() > *first)?;
        if used_bytes > 0 {
            self.empty = None;
            return None;
        }
        if now.duration_since(*self.empty.get_or_insert(now)) < KEEP {
            return None;
        }
        self.empty = None;
        let bytes = pool.bytes() - first;
        // Fails while a copy is under way; a later call tries again.
        pool.release_unused(first, bytes).ok().map(|()| (first, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostBackend;
    use crate::{Backend, PoolSpec};

    #[test]
    fn a_pool_without_slabs_never_shrinks() {
        let pool = HostBackend::new().create_pool(&PoolSpec { name: "rgaps-test".to_owned(), bytes: 1 << 20 }).unwrap();
        assert!(!Idle::has_memory(pool.as_ref()));
        let mut idle = Idle::default();
        let now = Instant::now();
        assert_eq!(idle.release_memory(pool.as_ref(), 0, now), None);
        assert_eq!(idle.release_memory(pool.as_ref(), 0, now + KEEP), None);
    }
}
