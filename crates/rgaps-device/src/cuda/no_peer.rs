//! A backend whose device has no peer access to the device of the pools: it works on copies in its own memory.
//!
//! ```text
//!   pools' device    message ─┐                       ┌─▶ block          ┌─▶ block
//!                      peer copy, on the pool's lane  │ push_on          │ after the work that filled it
//!   own device                └─▶ mirror ──▶ samples  buffer             scratch of a loan
//! ```
//!
//! The driver makes these copies (cuMemcpyPeerAsync), through host memory if it must. The call names the context of each end, so pools are
//! mapped for their own device only.
//!
//! Invariants  NP1 a message has at most one mirror in a backend: all samples of a process share it while one of them lives. NP2 each pool has
//!             a stream for its mirrors (its lane): a message whose bytes are late delays only messages of the same publisher, and no
//!             subscriber's stream waits for another subscriber's. NP3 a pool stays mapped while a copy from or to it may be under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;

use super::device::Device;
use super::memory::DeviceAccess;
use super::pool::CudaPool;
use super::scratch::Scratch;
use super::stream::refusal;
use super::{CudaBackend, PoolAddress, started};
use crate::backend::{Backend, Mirror, Original, PoolPart};
use crate::error::DeviceError;
use crate::pool::{DeviceKind, PoolMemory};
use crate::stream::{Completion, Stream};

/// How long to wait for copies that were started before an error, and for an allocation.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Identifies a message while its pool is mapped: identity of the pool, offset, position in the topic.
type Key = ((u64, u64), u64, u64);

#[derive(Debug)]
struct Made {
    memory: Weak<Scratch>,
    copied: Completion,
}

/// The state of such a backend beside its own device.
#[derive(Debug)]
pub(super) struct NoPeer {
    /// The device of the pools.
    home: Arc<Device>,
    mirrors: Mutex<HashMap<Key, Made>>,
    /// A stream for allocations only, so that no allocation waits for other work.
    allocating: Mutex<Option<Stream>>,
}

impl NoPeer {
    /// Fails with the reason if the pair of devices cannot copy.
    pub(super) fn new(device: &Device, home: Arc<Device>) -> Result<Self, String> {
        let (own, pools) = (device.properties(), home.properties());
        if pools.is_integrated || !pools.has_slabs {
            return Err(format!("it does not reach the memory of {}, whose pools cannot be copied", pools.name));
        }
        if !own.has_memory_pools {
            return Err(format!(
                "it does not reach the memory of {}, and has no stream-ordered memory for copies (CUDA memory pools)",
                pools.name
            ));
        }
        Ok(Self { home, mirrors: Mutex::default(), allocating: Mutex::default() })
    }

    pub(super) fn home(&self) -> &Arc<Device> {
        &self.home
    }
}

/// Direction of a copy between the devices.
#[derive(Clone, Copy, Debug)]
enum Way {
    FromPools,
    ToPools,
}

impl CudaBackend {
    fn no_peer(&self) -> Result<&NoPeer, DeviceError> {
        self.no_peer.as_ref().ok_or_else(|| DeviceError::Failed("the pool is on another device".to_owned()))
    }

    /// Enqueues a copy between the devices.
    fn copy_between(
        &self,
        stream: &Stream,
        way: Way,
        to: CUdeviceptr,
        from: CUdeviceptr,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let stream = self.own_stream(stream)?;
        let (own, home) = (self.device.context(), self.no_peer()?.home.context());
        let (to_context, from_context) = match way {
            Way::FromPools => (own, home),
            Way::ToPools => (home, own),
        };
        let _entered = stream.enter()?;
        let driver = self.device.driver();
        // SAFETY: both contexts are retained; both ends were checked, and stay until the stream has made the copy (NP3, scratch.rs).
        Ok(unsafe { driver.copy_peer(to, to_context, from, from_context, bytes as usize, stream.handle()) }?)
    }

    /// Copies a part of a pool to this device, for work of this stream. Dropping the copy frees it after the work that the stream has then.
    pub(super) fn fetched(&self, stream: &Stream, from: CUdeviceptr, bytes: u64) -> Result<Scratch, DeviceError> {
        let scratch = Scratch::new(&self.device, stream, bytes, None)?;
        self.copy_between(stream, Way::FromPools, scratch.address(), from, bytes)?;
        Ok(scratch)
    }

    /// Allocates scratch memory for work of this stream.
    pub(super) fn scratch_on(&self, stream: &Stream, bytes: u64) -> Result<Scratch, DeviceError> {
        Scratch::new(&self.device, stream, bytes, None)
    }

    /// Copies memory of this device into a pool.
    pub(super) fn send(
        &self,
        stream: &Stream,
        from: CUdeviceptr,
        to: CUdeviceptr,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.copy_between(stream, Way::ToPools, to, from, bytes)
    }

    /// Allocates scratch memory and waits for the allocation, so that any stream may use it.
    pub(super) fn new_scratch(&self, bytes: u64) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        let mut allocating = lock(&self.no_peer()?.allocating);
        let stream = match allocating.as_ref() {
            Some(stream) => stream.clone(),
            None => allocating.insert(self.stream()?).clone(),
        };
        drop(allocating);
        let scratch = Scratch::new(&self.device, &stream, bytes, None)?;
        stream.synchronize(TIMEOUT)?;
        Ok(Arc::new(scratch))
    }

    /// Enqueues the copy of filled scratch memory into a pool. Dropping the scratch memory frees it after the copy.
    pub(super) fn send_scratch(
        &self,
        stream: &Stream,
        from: &dyn PoolMemory,
        to: PoolPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        let Some(scratch) = from.as_any().downcast_ref::<Scratch>() else {
            return Err(DeviceError::Foreign { wanted: DeviceKind::Cuda, found: from.kind() });
        };
        let source = scratch.address_for(0, bytes)?;
        let target = match self.address(to, bytes, DeviceAccess::ReadWrite)? {
            PoolAddress::NoPeer(target) => target,
            PoolAddress::Direct(_) => return Err(DeviceError::Failed("the block is filled in place".to_owned())),
        };
        let sent = if bytes > 0 { self.send(stream, source, target, bytes) } else { Ok(()) };
        let copied = if sent.is_ok() { started(stream, to.pool) } else { Completion::of(stream) };
        // Even if the copy was refused, the work that fills the memory may be under way on this stream.
        scratch.give_back_behind(stream, &copied);
        sent.map(|()| copied)
    }

    /// The message's mirror on this device; makes it if there is none.
    pub(super) fn mirrored(&self, of: &Original<'_>) -> Result<Mirror, DeviceError> {
        let part = PoolPart::of(of.pool.as_ref(), of.offset);
        let (PoolAddress::NoPeer(from), Some(pool)) =
            (self.address(part, of.bytes, DeviceAccess::Read)?, of.pool.as_any().downcast_ref::<CudaPool>())
        else {
            return Err(DeviceError::Failed("the message is read in place".to_owned()));
        };
        let mut awaited = of.awaited;
        if let Some((word, value)) = awaited.take_if(|(word, _)| !self.device.can_wait_for(word)) {
            // Wait before the lock, so that other callers do not wait too.
            word.wait(value, of.timeout)?;
        }
        let key = (of.pool.identity(), of.offset, of.position);
        let mut mirrors = lock(&self.no_peer()?.mirrors);
        if let Some(found) = mirrors.get(&key)
            && let Some(memory) = found.memory.upgrade()
        {
            return Ok(Mirror { memory, copied: found.copied.clone(), is_shared: true });
        }
        mirrors.retain(|_, made| made.memory.strong_count() > 0);
        let lane = pool.lane(|| self.stream())?;
        let memory = Arc::new(Scratch::new(&self.device, &lane, of.bytes, Some(of.pool.clone()))?);
        if let Some((word, value)) = awaited {
            lane.wait_value(&word, value, of.timeout)?;
        }
        if of.bytes > 0 {
            let copied = self.copy_between(&lane, Way::FromPools, memory.address(), from, of.bytes);
            copied.inspect_err(|_| settle(&lane, part.pool))?;
        }
        let copied = started(&lane, part.pool);
        // Without an event, other callers cannot wait for the copy, so it is not shared. `started` has waited for it.
        if let Some(error) = refusal(copied.event()) {
            return Err(error.clone().into());
        }
        mirrors.insert(key, Made { memory: Arc::downgrade(&memory), copied: copied.clone() });
        Ok(Mirror { memory, copied, is_shared: false })
    }
}

/// Waits for work that was enqueued before an error and uses a pool, since no completion is returned to the caller.
pub(super) fn settle(stream: &Stream, pool: &dyn PoolMemory) {
    let _ = started(stream, pool).wait(TIMEOUT);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
