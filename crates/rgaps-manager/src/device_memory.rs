//! The device-memory manager: makes a pool for each writer, seals it once the writer has mapped it, hands it to readers, and frees it when its last
//! message is released.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use rgaps_control::runtime::PoolNote;
use rgaps_device::{Backend, DeviceError, PoolDescription, PoolMemory, PoolRole, PoolSpec, SlabDescription};
use rgaps_os::memfd;
use rgaps_shm::{PublisherSlot, SlotTable};

use crate::arrival_budget::Charge;

/// The pools of one topic, shared with its workers. A pool of a former occupant of a slot is freed when the slot's next occupant gets its own pool.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    slot_table: SlotTable,
    by_slot: Arc<RwLock<HashMap<PublisherSlot, Pool>>>,
}

#[derive(Clone, Debug)]
struct Pool {
    memory: Arc<dyn PoolMemory>,
    sealed: bool,
    /// Whether another slot has the same memory, which counts there.
    is_counted_elsewhere: bool,
    /// For a pool of arriving messages; dropped with the pool.
    charge: Option<Arc<Charge>>,
}

/// A pool does not exist (yet), or cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    /// There is no pool for that slot.
    #[error("there is no pool for publisher slot {0}, generation {1}: the publisher has left")]
    Unknown(u16, u32),
    /// Its publisher has not mapped it yet.
    #[error("the pool of publisher slot {0} is not ready yet")]
    NotSealed(u16),
    /// Another one than its publisher was granted.
    #[error("a pool of {handed} B is handed back, and it is not the pool that the publisher was granted ({granted})")]
    NotGranted {
        /// Bytes of the one that was handed back.
        handed: u64,
        /// The other one.
        granted: String,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl PoolError {
    /// Whether memory or file descriptors ran out: a later attempt may succeed.
    pub(crate) fn is_lack(&self) -> bool {
        matches!(self, Self::Device(error) if error.is_lack())
    }
}

/// Pools by device and inode of their first file.
type ByIdentity = HashMap<(u64, u64), Weak<dyn PoolMemory>>;

/// Makes pools on the host's device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceMemoryManager {
    backend: Arc<dyn Backend>,
    /// Pools that were taken over from a predecessor, by identity: publishers that share one hand it back once each.
    adopted: Arc<Mutex<ByIdentity>>,
}

impl DeviceMemoryManager {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, adopted: Arc::default() }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Makes the pool of a slot.
    pub(crate) fn create(
        &self,
        pools: &Pools,
        slot: PublisherSlot,
        bytes: u64,
    ) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        let memory = self.backend.create_pool(&PoolSpec { name: "rgaps-pool".to_owned(), bytes })?;
        pools.insert(slot, Pool { memory: memory.clone(), sealed: false, is_counted_elsewhere: false, charge: None });
        Ok(memory)
    }

    /// Takes over a pool that a predecessor made: sealed, so it can be mapped for reading only. Any other than the one that the predecessor noted is
    /// refused before it is mapped: it could take all addresses of this process without using any memory.
    pub(crate) fn adopt(
        &self,
        pools: &Pools,
        slot: PublisherSlot,
        noted: Option<PoolNote>,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
    ) -> Result<(), PoolError> {
        let file = slabs.first().and_then(|first| memfd::sealed_identity(first).ok());
        let handed = file.map(|file| PoolNote { bytes: description.bytes, file });
        if noted.is_none() || handed != noted {
            let granted = noted.map_or("none is noted".to_owned(), |noted| format!("{} B", noted.bytes));
            return Err(PoolError::NotGranted { handed: description.bytes, granted });
        }
        let mut adopted = self.adopted.lock().unwrap_or_else(PoisonError::into_inner);
        adopted.retain(|_, memory| memory.strong_count() > 0);
        let shared = file.and_then(|file| adopted.get(&file)?.upgrade());
        let is_counted_elsewhere = shared.is_some();
        let memory = match shared {
            Some(memory) => memory,
            None => {
                let memory = self.backend.import_pool(description, slabs, PoolRole::Successor)?;
                adopted.insert(memory.identity(), Arc::downgrade(&memory));
                memory
            }
        };
        pools.insert(slot, Pool { memory, sealed: true, is_counted_elsewhere, charge: None });
        Ok(())
    }
}

impl Pools {
    /// The pools of the topic with these slots.
    pub(crate) fn new(slot_table: SlotTable) -> Self {
        Self { slot_table, by_slot: Arc::default() }
    }

    /// Keeps the charge of a pool for arriving messages until the pool is freed.
    pub(crate) fn keep_charge(&self, slot: PublisherSlot, charge: Arc<Charge>) {
        let mut pools = self.by_slot.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get_mut(&slot) {
            pool.charge = Some(charge);
        }
    }

    /// Seals a pool that its writer has mapped, so that readers can get it.
    pub(crate) fn seal(&self, slot: PublisherSlot) -> Result<(), PoolError> {
        let mut pools = self.by_slot.write().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.get_mut(&slot).ok_or(PoolError::Unknown(slot.index, slot.generation))?;
        if !pool.sealed {
            pool.memory.seal()?;
            pool.sealed = true;
        }
        Ok(())
    }

    /// The memory of a sealed pool, for another publisher of its writer to share.
    pub(crate) fn sealed(&self, slot: PublisherSlot) -> Result<Arc<dyn PoolMemory>, PoolError> {
        let pools = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.get(&slot).ok_or(PoolError::Unknown(slot.index, slot.generation))?;
        if pool.sealed { Ok(pool.memory.clone()) } else { Err(PoolError::NotSealed(slot.index)) }
    }

    /// Gives a slot memory that is another slot's pool.
    pub(crate) fn share(&self, slot: PublisherSlot, memory: Arc<dyn PoolMemory>) {
        self.insert(slot, Pool { memory, sealed: true, is_counted_elsewhere: true, charge: None });
    }

    /// What a reader needs to map a pool.
    pub(crate) fn export(&self, slot: PublisherSlot) -> Result<(PoolDescription, Vec<OwnedFd>), PoolError> {
        let pools = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.get(&slot).ok_or(PoolError::Unknown(slot.index, slot.generation))?;
        if !pool.sealed {
            return Err(PoolError::NotSealed(slot.index));
        }
        Ok(pool.memory.export()?)
    }

    /// This process's mapping of a pool, for the senders.
    pub(crate) fn memory(&self, slot: PublisherSlot) -> Option<Arc<dyn PoolMemory>> {
        let pools = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        pools.get(&slot).map(|pool| pool.memory.clone())
    }

    /// What a successor must know of a pool.
    pub(crate) fn note(&self, slot: PublisherSlot) -> Option<PoolNote> {
        let memory = self.memory(slot)?;
        Some(PoolNote { bytes: memory.bytes(), file: memory.identity() })
    }

    /// Commits memory for slabs of a pool, for its writer to map.
    pub(crate) fn commit(
        &self,
        slot: PublisherSlot,
        slabs: &[u32],
    ) -> Result<(Vec<SlabDescription>, Vec<OwnedFd>), PoolError> {
        let memory = self.memory(slot).ok_or(PoolError::Unknown(slot.index, slot.generation))?;
        Ok(memory.commit(slabs)?)
    }

    /// Releases the memory that the writer has released.
    pub(crate) fn trim(&self, slot: PublisherSlot, offset: u64, bytes: u64) -> Result<(), PoolError> {
        let memory = self.memory(slot).ok_or(PoolError::Unknown(slot.index, slot.generation))?;
        Ok(memory.release_unused(offset, bytes)?)
    }

    /// Frees a pool whose last message is released.
    pub(crate) fn remove(&self, slot: PublisherSlot) {
        self.by_slot.write().unwrap_or_else(PoisonError::into_inner).remove(&slot);
    }

    /// Bytes of memory that the pools occupy.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let pools = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        let counted = pools.values().filter(|pool| !pool.is_counted_elsewhere);
        counted.map(|pool| pool.memory.resident_bytes()).sum()
    }

    fn insert(&self, slot: PublisherSlot, pool: Pool) {
        let mut pools = self.by_slot.write().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|slot, _| self.slot_table.is_taken(*slot));
        pools.insert(slot, pool);
    }
}
