//! Memory of a GPU that the network card reads and writes itself (GPUDirect RDMA), registered by its dma-buf.
//!
//! A region is a whole dma-buf, at the addresses by which the GPU knows it. So requests name bytes of a GPU as they name bytes of this host.
//!
//! Windows     are bound to such regions although the kernel accepts no IBV_ACCESS_MW_BIND for them (ibv_reg_mr(3)): mlx5 checks that flag only in a debug
//!             build, and points a window at the key of its region. Untested on hardware. A device that refuses the binding ends the link, and the manager then
//!             goes back to the ring (`DeviceAccess`).
//! Source      ibv_reg_mr(3) of rdma-core 44 and later.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rgaps_os::DmaBuf;

use crate::error::LinkError;
use crate::payload::Data;
use crate::rdma::domain::{Domain, VerbsError, deregister, last_errno};
use crate::rdma::library::Missing;
use crate::rdma::sys;
use crate::record::{Record, RecordError};

impl Domain {
    /// Registers memory of a device and forgets it again: whether the network card of this domain can use it, or why not.
    pub fn try_device_memory(&self, memory: &DmaBuf) -> Result<(), VerbsError> {
        // As the receiver does, which needs more than the sender.
        let region = register(self, memory, sys::ACCESS_LOCAL_WRITE)?;
        deregister(self, region);
        Ok(())
    }
}

/// Registers all of it.
pub(super) fn register(domain: &Domain, memory: &DmaBuf, flags: i32) -> Result<NonNull<sys::MemoryRegion>, VerbsError> {
    #[cfg(test)]
    let raw = if double::is_in_place() {
        double::reg_mr(domain, memory, flags)
    } else {
        reg_dmabuf_mr(domain, memory, flags)?
    };
    #[cfg(not(test))]
    let raw = reg_dmabuf_mr(domain, memory, flags)?;
    let errno = last_errno();
    let refused =
        || VerbsError::DeviceMemory { device: domain.context().name().to_owned(), bytes: memory.bytes(), errno };
    NonNull::new(raw).ok_or_else(refused)
}

fn reg_dmabuf_mr(domain: &Domain, memory: &DmaBuf, flags: i32) -> Result<*mut sys::MemoryRegion, VerbsError> {
    let reg_dmabuf_mr = domain.context().library().reg_dmabuf_mr.ok_or(Missing::Symbol("ibv_reg_dmabuf_mr"))?;
    let (fd, bytes) = (memory.as_fd().as_raw_fd(), memory.bytes() as usize);
    // SAFETY: a live domain and an open file descriptor; the region keeps its memory, and the kernel checks that these bytes are in it. None of this
    // process's own memory becomes accessible.
    Ok(unsafe { reg_dmabuf_mr(domain.raw(), 0, bytes, memory.address(), fd, flags) })
}

struct DeviceRegion {
    raw: NonNull<sys::MemoryRegion>,
    memory: Arc<DmaBuf>,
    domain: Arc<Domain>,
}

// SAFETY: as `Context`; nothing of it changes.
unsafe impl Send for DeviceRegion {}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        deregister(&self.domain, self.raw);
    }
}

/// The memory of devices that a sender has registered, to send from it.
#[derive(Default)]
pub(super) struct DeviceRegions(Vec<DeviceRegion>);

impl DeviceRegions {
    pub(super) fn register(&mut self, domain: &Arc<Domain>, memory: &Arc<DmaBuf>) -> Result<(), VerbsError> {
        self.forget_retired();
        if self.key_of(memory).is_none() {
            let raw = register(domain, memory, 0)?;
            self.0.push(DeviceRegion { raw, memory: memory.clone(), domain: domain.clone() });
        }
        Ok(())
    }

    /// The local key of memory that is registered.
    fn key_of(&self, memory: &Arc<DmaBuf>) -> Option<u32> {
        let region = self.0.iter().find(|region| Arc::ptr_eq(&region.memory, memory))?;
        // SAFETY: the region lives as long as its entry.
        Some(unsafe { region.raw.as_ref() }.lkey)
    }

    /// The local key for data of a record that `check` has let pass; 0 for others, which no region has.
    pub(super) fn key_for(&self, data: Data<'_>) -> u32 {
        match data {
            Data::Host(_) => 0,
            Data::Device { memory, .. } => self.key_of(memory).unwrap_or(0),
        }
    }

    /// Refuses records whose data are in memory of a device that is not registered, or outside it.
    pub(super) fn check(&self, records: &[Record<'_>]) -> Result<(), LinkError> {
        let is_sendable = |record: &Record<'_>| match record.payload().1 {
            Data::Host(_) => true,
            Data::Device { memory, offset, bytes } => {
                self.key_of(memory).is_some() && memory.check(offset, bytes as u64).is_ok()
            }
        };
        if records.iter().all(is_sendable) { Ok(()) } else { Err(LinkError::Unsendable(RecordError::DeviceMemory)) }
    }

    /// Deregisters what its owner uses no more, so that its memory is freed.
    pub(super) fn forget_retired(&mut self) {
        self.0.retain(|region| !region.memory.is_retired());
    }
}

impl std::fmt::Debug for DeviceRegions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} regions of devices", self.0.len())
    }
}

/// A double of `ibv_reg_dmabuf_mr`, for devices that register no dma-buf, as rxe: the memory is that of a memfd, which this process maps and registers at
/// the dma-buf's addresses.
#[cfg(test)]
pub(super) mod double {
    use std::ffi::c_void;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rgaps_os::{Access, Mapping};

    use super::*;

    static IS_IN_PLACE: AtomicBool = AtomicBool::new(false);
    /// What is registered stays mapped.
    static MAPPINGS: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

    type RegMrIova =
        unsafe extern "C" fn(*mut sys::ProtectionDomain, *mut c_void, usize, u64, i32) -> *mut sys::MemoryRegion;

    /// Takes the place of `ibv_reg_dmabuf_mr` in this process until it is told not to.
    pub(in crate::rdma) fn put_in_place(is_in_place: bool) {
        IS_IN_PLACE.store(is_in_place, Ordering::Release);
    }

    pub(super) fn is_in_place() -> bool {
        IS_IN_PLACE.load(Ordering::Acquire)
    }

    pub(super) fn reg_mr(domain: &Domain, memory: &DmaBuf, flags: i32) -> *mut sys::MemoryRegion {
        // rxe wants the flag that a dma-buf cannot have.
        let flags = if flags & sys::ACCESS_LOCAL_WRITE == 0 { flags } else { flags | sys::ACCESS_MW_BIND };
        let mapping = Mapping::map(memory, memory.bytes(), Access::ReadWrite).unwrap();
        let start = mapping.address() as *mut c_void;
        MAPPINGS.lock().unwrap().push(mapping);
        // SAFETY: a C string; the library is loaded, or there would be no domain.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
        // SAFETY: an open library and a C string.
        let symbol = unsafe { libc::dlsym(library, c"ibv_reg_mr_iova".as_ptr()) };
        assert!(!symbol.is_null());
        // SAFETY: the signature of <infiniband/verbs.h>.
        let reg_mr_iova: RegMrIova = unsafe { std::mem::transmute(symbol) };
        // SAFETY: pages of this process that stay mapped.
        unsafe { reg_mr_iova(domain.raw(), start, memory.bytes() as usize, memory.address(), flags) }
    }
}
