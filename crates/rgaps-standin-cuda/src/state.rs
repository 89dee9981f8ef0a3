//! The driver's state in this process: one table for each kind of object, behind one lock.
//!
//! Workers hold the lock while they look an address up, never while they copy, wait or sleep. Lock order: this lock, then a queue's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use crate::abi::{INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED, Status};
use crate::config::config;
use crate::context::Context;
use crate::event::Event;
use crate::host::Registrations;
use crate::lock::locked;
use crate::memory::Memory;
use crate::range::{Part, Ranges, Refusal, Use};
use crate::stream::Stream;

/// The tables.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    pub devices: Vec<Device>,
    pub handles: BTreeMap<u64, Handle>,
    pub ranges: Ranges,
    pub registrations: Registrations,
    pub streams: BTreeMap<u64, Arc<Stream>>,
    /// Destroyed streams that may have pending work; a context that ends waits for these too.
    pub closing: Vec<Arc<Stream>>,
    pub events: BTreeMap<u64, Event>,
    /// Stream-ordered memory by address; each is a range too.
    pub ordered: BTreeMap<u64, Ordered>,
    /// Objects that outlived their context.
    pub orphans: u64,
}

/// A device.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub primary: Option<Primary>,
    /// Bytes in use.
    pub used: Arc<AtomicU64>,
}

/// A retained primary context.
#[derive(Debug)]
pub(crate) struct Primary {
    pub context: Arc<Context>,
    pub retained: u64,
    pub null_stream: Arc<Stream>,
}

/// A handle of device memory.
#[derive(Debug)]
pub(crate) struct Handle {
    pub memory: Arc<Memory>,
    /// `CUmemAllocationHandleType` bits of its creation.
    pub handle_types: u32,
}

/// Memory that a stream allocated.
#[derive(Debug)]
pub(crate) struct Ordered {
    /// The stream's context; the memory is freed at the latest with it.
    pub context: u64,
    /// cuMemFreeAsync was called; the stream may not have freed it yet.
    pub is_freed: bool,
}

/// The kind of a handle's object. It is the handle's first byte, so that handles of different kinds differ and none is a valid address.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum ObjectKind {
    Context = 0xC0,
    Stream = 0x57,
    Event = 0xE0,
    Memory = 0xA0,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
    let devices = (0..config().devices).map(|_| Device::default()).collect();
    Mutex::new(Driver { devices, ..Driver::default() })
});
/// The process that called cuInit; a forked child has another id.
static READY_IN: AtomicU32 = AtomicU32::new(0);

/// `cuInit`.
pub(crate) fn start() -> Status {
    if config().devices == 0 {
        return Err(NO_DEVICE);
    }
    drop(locked(&DRIVER));
    READY_IN.store(std::process::id(), Ordering::Release);
    Ok(())
}

/// The tables, once cuInit was called.
pub(crate) fn driver() -> Status<MutexGuard<'static, Driver>> {
    if READY_IN.load(Ordering::Acquire) != std::process::id() {
        return Err(NOT_INITIALIZED);
    }
    Ok(locked(&DRIVER))
}

/// A new handle, never reused.
pub(crate) fn new_handle(kind: ObjectKind) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    (kind as u64) << 56 | NEXT.fetch_add(1, Ordering::Relaxed) << 4
}

impl Driver {
    /// The device with this ordinal.
    pub(crate) fn device(&mut self, ordinal: i32) -> Status<(usize, &mut Device)> {
        let index = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        Ok((index, self.devices.get_mut(index).ok_or(INVALID_DEVICE)?))
    }

    fn primaries(&self) -> impl Iterator<Item = &Primary> {
        self.devices.iter().filter_map(|device| device.primary.as_ref())
    }

    /// The primary context with this handle.
    pub(crate) fn primary(&self, id: u64) -> Option<&Primary> {
        self.primaries().find(|primary| primary.context.id == id)
    }

    /// The context with this handle.
    pub(crate) fn context(&self, id: u64) -> Option<Arc<Context>> {
        self.primary(id).map(|primary| primary.context.clone())
    }

    /// Streams of a context, the null stream first.
    pub(crate) fn streams_of(&self, context: u64) -> Vec<Arc<Stream>> {
        let null = self.primary(context).map(|primary| primary.null_stream.clone());
        let others = self.streams.values().filter(|stream| stream.context.id == context);
        null.into_iter().chain(others.cloned()).collect()
    }

    /// The memory at a device address, which may be registered host memory.
    pub(crate) fn parts(&self, address: u64, bytes: u64, device: usize, wanted: Use) -> Result<Vec<Part>, Refusal> {
        match self.registrations.host_address(address) {
            Some(address) => Ok(vec![self.registrations.part(address, bytes, wanted)?]),
            None => self.ranges.parts(address, bytes, device, wanted),
        }
    }

    /// Frees stream-ordered memory.
    pub(crate) fn free_ordered(&mut self, address: u64) {
        self.ordered.remove(&address);
        self.ranges.0.remove(&address);
    }

    /// The number of live objects of a kind, for leak checks.
    pub(crate) fn live(&self, what: &str) -> Option<u64> {
        Some(match what {
            "handles" => self.handles.len() as u64,
            "ranges" => self.ranges.0.len() as u64,
            "mapped_bytes" => self.ranges.mapped_bytes(),
            "allocated_bytes" => self.devices.iter().map(|device| device.used.load(Ordering::Relaxed)).sum(),
            "registrations" => self.registrations.0.len() as u64,
            "streams" => self.streams.len() as u64,
            "events" => self.events.len() as u64,
            "contexts" => self.primaries().map(|primary| primary.retained).sum(),
            "orphans" => self.orphans,
            _ => return None,
        })
    }
}

/// The kinds that `live` counts.
pub(crate) const LIVE: &[&str] = &[
    "handles",
    "ranges",
    "mapped_bytes",
    "allocated_bytes",
    "registrations",
    "streams",
    "events",
    "contexts",
    "orphans",
];
