//! Memory windows: each gives the peer the right to write to one part of registered memory, until this side takes it away.
//!
//! A window of type 2B belongs to one queue pair. A request of that queue pair binds it to its part, under a new key, and another one invalidates the
//! key. Neither pins or unpins pages, so a window costs microseconds where a registration costs milliseconds.
//!
//! Invariants  A window is bound only while its key is invalid. A window is freed before its queue pair, and a region after the windows that are bound
//!             to it: rxe counts both as users, and frees a used queue pair all the same.
//! Source      InfiniBand Architecture Specification 1.6, chapter 10.6.

use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

use crate::payload::PayloadMemory;
use crate::rdma::domain::{Domain, VerbsError, deregister, last_errno, register};
use crate::rdma::{device_memory, sys};

/// Whether the device has windows of type 2B.
pub(super) fn are_supported(domain: &Domain) -> bool {
    let (attributes, ops) = (domain.context().attributes(), domain.context().ops());
    let has_type = attributes.is_ok_and(|found| found.device_cap_flags & sys::DEVICE_MEM_WINDOW_TYPE_2B != 0);
    has_type && ops.alloc_mw.is_some() && ops.dealloc_mw.is_some()
}

/// A memory window.
pub(super) struct Window {
    raw: NonNull<sys::MemoryWindow>,
    domain: Arc<Domain>,
}

// SAFETY: as `Context`; only its owner changes the key.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn new(domain: &Arc<Domain>) -> Result<Self, VerbsError> {
        let context = domain.context();
        let alloc_mw = context.ops().alloc_mw.ok_or_else(|| context.failed("ibv_alloc_mw", Errno::NOSYS))?;
        // SAFETY: a live domain.
        let raw = unsafe { alloc_mw(domain.raw(), sys::MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(|| context.failed("ibv_alloc_mw", last_errno()))?;
        Ok(Self { raw, domain: domain.clone() })
    }

    pub(super) fn raw(&self) -> *mut sys::MemoryWindow {
        self.raw.as_ptr()
    }

    /// The key of the last binding.
    pub(super) fn key(&self) -> u32 {
        // SAFETY: the window lives as long as `self`.
        unsafe { self.raw.as_ref() }.rkey
    }

    /// The key for the next binding: the device chose the upper 24 bits, its user chooses the lowest 8 (`ibv_inc_rkey`).
    pub(super) fn next_key(&self) -> u32 {
        let key = self.key();
        (key & !0xff) | (key.wrapping_add(1) & 0xff)
    }

    /// Notes the key of a binding that was posted.
    pub(super) fn set_key(&mut self, key: u32) {
        // SAFETY: the window lives as long as `self`. Only a call that posts a binding reads the key, and `&mut self` excludes it.
        unsafe { self.raw.as_mut() }.rkey = key;
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let context = self.domain.context();
        let Some(dealloc_mw) = context.ops().dealloc_mw else { return };
        // SAFETY: only `drop` frees it; its queue pair is idle, or has failed.
        let status = unsafe { dealloc_mw(self.raw.as_ptr()) };
        if status != 0 {
            tracing::error!(device = context.name(), status, "a memory window could not be freed");
        }
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window {:#x}", self.key())
    }
}

/// A part of a mapping, or memory of a device, registered for windows. The peer may write it only through a window.
pub(super) struct WindowRegion {
    raw: NonNull<sys::MemoryRegion>,
    memory: PayloadMemory,
    offset: u64,
    bytes: u64,
    domain: Arc<Domain>,
}

// SAFETY: as `Context`; nothing of it changes.
unsafe impl Send for WindowRegion {}
// SAFETY: as above.
unsafe impl Sync for WindowRegion {}

impl WindowRegion {
    /// Registers that part; its pages are pinned until this is dropped. Memory of a device is registered whole.
    pub(super) fn new(
        domain: &Arc<Domain>,
        memory: &PayloadMemory,
        (offset, bytes): (u64, u64),
    ) -> Result<Self, VerbsError> {
        let (raw, offset, bytes) = match memory {
            PayloadMemory::Host(mapping) => {
                let part = mapping.shared(offset, bytes);
                let part =
                    part.map_err(|_| domain.context().failed("registering memory outside its mapping", Errno::INVAL))?;
                let flags = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_MW_BIND;
                (register(domain, part.address(), bytes, flags)?, offset, bytes)
            }
            PayloadMemory::Device(of) => (device_memory::register(domain, of, sys::ACCESS_LOCAL_WRITE)?, 0, of.bytes()),
        };
        Ok(Self { raw, memory: memory.clone(), offset, bytes, domain: domain.clone() })
    }

    pub(super) fn raw(&self) -> *mut sys::MemoryRegion {
        self.raw.as_ptr()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is for that part: of a mapping, exactly that one, since rxe checks a window's bounds by those of its region.
    pub(super) fn is(&self, memory: &PayloadMemory, part: (u64, u64)) -> bool {
        let is_whole = matches!(memory, PayloadMemory::Device(_));
        memory.is(&self.memory) && (is_whole || part == (self.offset, self.bytes))
    }

    /// The address of an offset in the memory.
    pub(super) fn address(&self, offset: u64) -> u64 {
        self.memory.address(offset)
    }
}

impl Drop for WindowRegion {
    fn drop(&mut self) {
        deregister(&self.domain, self.raw);
    }
}

impl std::fmt::Debug for WindowRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WindowRegion of {} B", self.bytes)
    }
}
