//! A backend whose device does not reach the device that pools lie on: what it works on are copies in memory of its own.
//!
//! ```text
//!   pools' device    message ─┐                       ┌─▶ block          ┌─▶ block
//!                      peer copy, on the pool's lane  │ push_on          │ behind the work that filled it
//!   own device                └─▶ mirror ──▶ samples  buffer             scratch of a loan
//! ```
//!
//! The driver makes such copies by itself (cuMemcpyPeerAsync), through host memory where there is no better way. They are told the context
//! of each end, so that pools are mapped for their own device and never for this one.
//!
//! Invariants  A1 a message has one mirror a backend, for as long as somebody has it: all samples of a process share it. A2 mirrors are made
//!             on a stream of their pool's own (its lane): a message whose bytes are late holds up those of its own publisher only, and no
//!             stream of one subscriber waits for another's. A3 a pool stays mapped while a copy from or to it may be under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;

use super::device::Device;
use super::memory::DeviceAccess;
use super::pool::CudaPool;
use super::scratch::Scratch;
use super::stream::refusal;
use super::{CudaBackend, Target, started};
use crate::backend::{Backend, Mirror, Original, PoolPart};
use crate::error::DeviceError;
use crate::pool::{DeviceKind, PoolMemory};
use crate::stream::{Completion, Stream};

/// How long copies that were started before an error are waited for, and memory without work before it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A message, for as long as its pool is mapped: the pool's identity, its offset, its place in the order of the topic.
type Key = ((u64, u64), u64, u64);

#[derive(Debug)]
struct Made {
    memory: Weak<Scratch>,
    copied: Completion,
}

/// What such a backend has beside its own device.
#[derive(Debug)]
pub(super) struct NoPeer {
    /// The device of the pools.
    home: Arc<Device>,
    mirrors: Mutex<HashMap<Key, Made>>,
    /// Nothing but allocations are given to it, so that none waits.
    allocating: Mutex<Option<Stream>>,
}

impl NoPeer {
    /// An error says what the pair of devices lacks.
    pub(super) fn new(device: &Device, home: Arc<Device>) -> Result<Self, String> {
        let (own, pools) = (device.properties(), home.properties());
        if pools.is_integrated || !pools.has_slabs {
            return Err(format!(
                "it does not reach the memory of {}, which has no pools to be copied from",
                pools.name
            ));
        }
        if !own.has_memory_pools {
            return Err(format!(
                "it does not reach the memory of {}, and has no stream-ordered memory for copies (memory pools)",
                pools.name
            ));
        }
        Ok(Self { home, mirrors: Mutex::default(), allocating: Mutex::default() })
    }

    pub(super) fn home(&self) -> &Arc<Device> {
        &self.home
    }
}

/// Which way a copy between the devices goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    FromPools,
    ToPools,
}

impl CudaBackend {
    fn no_peer(&self) -> Result<&NoPeer, DeviceError> {
        self.no_peer.as_ref().ok_or_else(|| DeviceError::Failed("the pool is another device's".to_owned()))
    }

    /// Gives a stream a copy between the devices.
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
        // SAFETY: both contexts are retained; both ends were checked, and stay until the stream has got there (A3, scratch.rs).
        Ok(unsafe { driver.copy_peer(to, to_context, from, from_context, bytes as usize, stream.handle()) }?)
    }

    /// A part of a pool, copied to this device for work of this stream; given back behind the work that it has when this is dropped.
    pub(super) fn fetched(&self, stream: &Stream, from: CUdeviceptr, bytes: u64) -> Result<Scratch, DeviceError> {
        let scratch = Scratch::new(&self.device, stream, bytes, None)?;
        self.copy_between(stream, Way::FromPools, scratch.address(), from, bytes)?;
        Ok(scratch)
    }

    /// Memory for work of this stream.
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

    /// Memory without work before it: any stream may use it.
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

    /// Copies all of what was filled into a pool, and lets it be given back behind that.
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
            Target::NoPeer(target) => target,
            Target::Direct(_) => return Err(DeviceError::Failed("the block is filled in place".to_owned())),
        };
        let sent = if bytes > 0 { self.send(stream, source, target, bytes) } else { Ok(()) };
        let copied = if sent.is_ok() { started(stream, to.pool) } else { Completion::of(stream) };
        // What fills it may be under way there, also if the copy was refused.
        scratch.give_back_behind(stream, &copied);
        sent.map(|()| copied)
    }

    /// The one copy of a message on this device.
    pub(super) fn mirrored(&self, of: &Original<'_>) -> Result<Mirror, DeviceError> {
        let part = PoolPart::of(of.pool.as_ref(), of.offset);
        let (Target::NoPeer(from), Some(pool)) =
            (self.address(part, of.bytes, DeviceAccess::Read)?, of.pool.as_any().downcast_ref::<CudaPool>())
        else {
            return Err(DeviceError::Failed("the message is read in place".to_owned()));
        };
        let mut awaited = of.awaited;
        if let Some((word, value)) = awaited.take_if(|(word, _)| !self.device.can_wait_for(word)) {
            // Here and not below, where others would wait too.
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
        // What nobody can be told the end of is not shared: that was waited for.
        if let Some(error) = refusal(copied.event()) {
            return Err(error.clone().into());
        }
        mirrors.insert(key, Made { memory: Arc::downgrade(&memory), copied: copied.clone() });
        Ok(Mirror { memory, copied, is_shared: false })
    }
}

/// Work that was given to a stream before an error touches a pool: it is waited for, since nobody will hear when it is over.
pub(super) fn settle(stream: &Stream, pool: &dyn PoolMemory) {
    let _ = started(stream, pool).wait(TIMEOUT);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
