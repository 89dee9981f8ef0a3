//! What the node's thread maintains for a subscriber.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rgaps_control::PublisherSlot;
use rgaps_device::PoolMemory;
use rgaps_os::EventFd;
use rgaps_shm::Segment;
use rgaps_shm::layout::SlotState;

/// The mapped pools of a subscriber, and its eventfd.
#[derive(Debug, Default)]
pub(crate) struct Maintained {
    pub(crate) pools: Mutex<HashMap<PublisherSlot, Arc<dyn PoolMemory>>>,
    /// The eventfd, made when it is first needed. A hand-back brings it to the next manager.
    pub(crate) event: OnceLock<Arc<EventFd>>,
    /// Whether a manager has answered that it knows the eventfd.
    pub(crate) is_event_registered: AtomicBool,
    /// Whether a take skipped messages whose bytes a device still has to write. The device wakes no waiter when it has written them.
    pub(crate) awaits_bytes: AtomicBool,
    /// Whether the last wait for a message was so short that the next one is better awaited awake.
    pub(crate) is_busy: AtomicBool,
}

impl Maintained {
    /// Makes the eventfd readable while there is no manager: publishers that do not know it can learn of it only from a manager.
    pub(crate) fn signal_while_there_is_no_manager(&self) {
        if let Some(event) = self.event.get() {
            let _ = event.signal();
        }
    }

    /// Makes the eventfd readable, so that its waiters take again. Returns true if this should be called again soon.
    pub(crate) fn signal_while_bytes_are_awaited(&self) -> bool {
        let Some(event) = self.event.get().filter(|_| self.awaits_bytes.load(Ordering::Acquire)) else { return false };
        let _ = event.signal();
        true
    }

    /// Unmaps memory that publishers have given back, and pools whose publishers are gone.
    pub(crate) fn trim(&self, segment: &Segment) {
        // The holder of the lock is about to use a pool: trim next time.
        let Ok(mut pools) = self.pools.try_lock() else { return };
        pools.values().for_each(|pool| pool.trim());
        let gone: Vec<_> = pools.extract_if(|pool, _| !is_occupied(segment, *pool)).collect();
        drop(pools);
        drop(gone);
    }
}

/// Whether the pool's publisher still has its slot, or is gone while some of its messages remain (draining).
pub(crate) fn is_occupied(segment: &Segment, pool: PublisherSlot) -> bool {
    let state = segment.publisher(pool.index).map_or(0, |slot| slot.state.load(Ordering::Acquire));
    let (generation, state) = SlotState::decode(state);
    generation == pool.generation && matches!(state, Some(SlotState::Active | SlotState::Draining))
}
