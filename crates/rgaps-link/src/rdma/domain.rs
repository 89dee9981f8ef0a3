//! An open device, its protection domain, and memory registered in it.
//!
//! Invariants  A domain serves one peer: a remote key of one peer gives no access to another peer's memory. A region outlives every queue
//!             pair that may access it: queue pairs hold the domain, and a link drops its queue pair before its regions.
//!             A mapping is registered once in each domain.

use std::collections::HashMap;
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rgaps_os::{Mapping, SharedBytes};
use rustix::io::Errno;

use crate::rdma::RECEIVES_MAX;
use crate::rdma::library::{Library, Missing, library};
use crate::rdma::sys;

/// A verbs call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// The library is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// There is no device of that name.
    #[error("there is no RDMA device {0}; `rgaps doctor` lists the devices of this host")]
    NoDevice(String),
    /// The kernel or the driver refused.
    #[error("{device}: {call} failed: {errno}")]
    Call {
        /// The device.
        device: String,
        /// The call.
        call: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// The registration would exceed RLIMIT_MEMLOCK; checked before the call.
    #[error("memory for RDMA: {0}")]
    Memlock(#[from] rgaps_os::memlock::MemlockError),
    /// Memory could not be registered.
    #[error("{device}: {bytes} B could not be registered: {errno}{}", remedy(*errno))]
    Register {
        /// The device.
        device: String,
        /// Bytes to register.
        bytes: u64,
        /// The error number.
        errno: Errno,
    },
    /// Memory of a GPU could not be registered.
    #[error("{device} cannot use memory of the GPU: ibv_reg_dmabuf_mr of {bytes} B failed: {errno}{}", meaning(*errno))]
    DeviceMemory {
        /// The device.
        device: String,
        /// Bytes to register.
        bytes: u64,
        /// The error number.
        errno: Errno,
    },
}

/// What to do about a failed registration.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOMEM | Errno::AGAIN | Errno::PERM => {
            "; raise the locked-memory limit (ulimit -l, LimitMEMLOCK= in a systemd unit, or memlock in /etc/security/limits.d)"
        }
        _ => "",
    }
}

/// What a refusal by `ibv_reg_dmabuf_mr` means.
fn meaning(errno: Errno) -> &'static str {
    match errno {
        Errno::OPNOTSUPP => ": its driver registers no memory of other devices",
        Errno::NOMEM => ": the GPU's window on the bus (BAR1) is full, or the kernel has no memory left",
        Errno::INVAL | Errno::IO | Errno::BADF => ": the GPU's driver does not let it; see the kernel's log (dmesg)",
        _ => "",
    }
}

/// The error number of the last call.
pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Names of this host's devices.
pub(super) fn device_names() -> Result<Vec<String>, VerbsError> {
    with_devices(|devices| devices.iter().map(|(name, _)| name.clone()).collect())
}

fn with_devices<T>(look: impl FnOnce(&[(String, NonNull<sys::Device>)]) -> T) -> Result<T, VerbsError> {
    let library = library()?;
    let mut count = 0;
    // SAFETY: `count` is written; the list is freed below.
    let list = unsafe { (library.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        return match last_errno() {
            // A kernel without RDMA has no devices; that is no error.
            Errno::NOSYS | Errno::NOENT => Ok(look(&[])),
            errno => Err(VerbsError::Call { device: "verbs".to_owned(), call: "ibv_get_device_list", errno }),
        };
    }
    let mut devices = Vec::new();
    // SAFETY: the library's array of `count` entries, freed only at the end of this function.
    let entries = unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
    for device in entries.iter().copied().filter_map(NonNull::new) {
        devices.push((name_of(library, device), device));
    }
    let result = look(&devices);
    // SAFETY: the list from above, no longer used; opened devices stay valid.
    unsafe { (library.ibv_free_device_list)(list) };
    Ok(result)
}

fn name_of(library: &Library, device: NonNull<sys::Device>) -> String {
    // SAFETY: a device of a list that is not freed yet.
    let name = unsafe { (library.ibv_get_device_name)(device.as_ptr()) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the library's own string, which ends in zero.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// An open device.
pub(super) struct Context {
    raw: NonNull<sys::Context>,
    name: String,
    library: &'static Library,
}

// SAFETY: verbs objects may be used from any thread, since libibverbs is thread-safe; the last owner closes this one, once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let library = library()?;
        let opened = with_devices(|devices| {
            let (_, device) = devices.iter().find(|(found, _)| found == name)?;
            // SAFETY: a device of a list that is not freed yet.
            let raw = unsafe { (library.ibv_open_device)(device.as_ptr()) };
            Some(NonNull::new(raw).ok_or_else(last_errno))
        })?;
        match opened {
            None => Err(VerbsError::NoDevice(name.to_owned())),
            Some(Ok(raw)) => Ok(Arc::new(Self { raw, name: name.to_owned(), library })),
            Some(Err(errno)) => Err(VerbsError::Call { device: name.to_owned(), call: "ibv_open_device", errno }),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn raw(&self) -> *mut sys::Context {
        self.raw.as_ptr()
    }

    pub(super) fn failed(&self, call: &'static str, errno: Errno) -> VerbsError {
        VerbsError::Call { device: self.name.clone(), call, errno }
    }

    /// The functions in the context's table.
    pub(super) fn ops(&self) -> &sys::ContextOps {
        // SAFETY: the context lives as long as `self`; its table is filled in when it is opened and not changed afterwards.
        let context = unsafe { self.raw.as_ref() };
        &context.ops
    }

    pub(super) fn attributes(&self) -> Result<sys::DeviceAttributes, VerbsError> {
        let mut attributes = std::mem::MaybeUninit::<sys::DeviceAttributes>::zeroed();
        // SAFETY: an open context, and room for the answer.
        let status = unsafe { (self.library.ibv_query_device)(self.raw(), attributes.as_mut_ptr()) };
        self.check("ibv_query_device", status)?;
        // SAFETY: zero is a value of every field, and the call has filled them in.
        Ok(unsafe { attributes.assume_init() })
    }

    pub(super) fn port(&self, port: u8) -> Result<sys::PortAttributes, VerbsError> {
        let mut attributes = sys::PortAttributes::default();
        // SAFETY: an open context, and room for the answer.
        let status = unsafe { (self.library.ibv_query_port)(self.raw(), port, &mut attributes) };
        self.check("ibv_query_port", status)?;
        Ok(attributes)
    }

    pub(super) fn gid(&self, port: u8, index: u32) -> Result<sys::Gid, VerbsError> {
        let mut gid = sys::Gid::default();
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        // SAFETY: an open context, and room for the answer; the library checks port and index.
        let status = unsafe { (self.library.ibv_query_gid)(self.raw(), port, index, &mut gid) };
        self.check("ibv_query_gid", status)?;
        Ok(gid)
    }

    /// Calls return 0, an error number, or -1 with errno set.
    pub(super) fn check(&self, call: &'static str, status: i32) -> Result<(), VerbsError> {
        match status {
            0 => Ok(()),
            -1 => Err(self.failed(call, last_errno())),
            errno => Err(self.failed(call, Errno::from_raw_os_error(errno))),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all objects made from it hold it, so they are dropped.
        let status = unsafe { (self.library.ibv_close_device)(self.raw()) };
        tracing::trace!(device = self.name, status, "device closed");
    }
}

/// A protection domain: only its queue pairs may use memory registered in it.
pub struct Domain {
    raw: NonNull<sys::ProtectionDomain>,
    context: Arc<Context>,
    /// Regions by the address of their mapping.
    regions: Mutex<HashMap<u64, Weak<Region>>>,
}

// SAFETY: as `Context`.
unsafe impl Send for Domain {}
// SAFETY: as `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens a device and creates a protection domain for one peer.
    pub fn open(device: &str) -> Result<Arc<Self>, VerbsError> {
        let context = Context::open(device)?;
        // SAFETY: an open context.
        let raw = unsafe { (context.library().ibv_alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| context.failed("ibv_alloc_pd", last_errno()))?;
        Ok(Arc::new(Self { raw, context, regions: Mutex::default() }))
    }

    /// The most receives that a ring can use on this device: its limit, and at most RECEIVES_MAX.
    pub fn receives_max(&self) -> Result<u64, VerbsError> {
        let most = u64::try_from(self.context.attributes()?.max_qp_wr).unwrap_or(0);
        Ok(most.saturating_sub(16).min(RECEIVES_MAX))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut sys::ProtectionDomain {
        self.raw.as_ptr()
    }

    /// Registers a mapping once; a second call returns the same region.
    pub(super) fn register(
        self: &Arc<Self>,
        mapping: &Arc<Mapping>,
        access: RemoteAccess,
    ) -> Result<Arc<Region>, VerbsError> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = mapping.address();
        if let Some(region) = regions.get(&key).and_then(Weak::upgrade)
            && Arc::ptr_eq(&region.mapping, mapping)
            && region.access == access
        {
            return Ok(region);
        }
        regions.retain(|_, region| region.strong_count() > 0);
        let region = Arc::new(Region::new(self, mapping, access)?);
        regions.insert(key, Arc::downgrade(&region));
        Ok(region)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs hold the domain, so they are dropped.
        let status = unsafe { (self.context.library().ibv_dealloc_pd)(self.raw()) };
        if status != 0 {
            tracing::error!(device = self.context.name(), status, "a protection domain could not be freed");
        }
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Domain of {}", self.context.name())
    }
}

/// The peer's access to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoteAccess {
    /// None: this side only sends from it.
    None,
    /// The peer may write it.
    Write,
}

/// Registered memory.
pub(super) struct Region {
    raw: NonNull<sys::MemoryRegion>,
    mapping: Arc<Mapping>,
    access: RemoteAccess,
    domain: Arc<Domain>,
}

/// The caller's memory, registered for one transfer. Its pages are pinned until this is dropped. The caller does not change them until then
/// (`LinkSender::post`), or the peer gets the changed bytes.
#[derive(Debug)]
pub(super) struct TransferRegion {
    raw: NonNull<sys::MemoryRegion>,
    domain: Arc<Domain>,
}

// SAFETY: as `Context`.
unsafe impl Send for TransferRegion {}

impl TransferRegion {
    pub(super) fn new(domain: &Arc<Domain>, bytes: &SharedBytes<'_>) -> Result<Self, VerbsError> {
        let raw = register(domain, bytes.address(), bytes.len() as u64, 0)?;
        Ok(Self { raw, domain: domain.clone() })
    }

    /// For gather entries.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region lives as long as `self`.
        unsafe { self.raw.as_ref() }.lkey
    }
}

impl Drop for TransferRegion {
    fn drop(&mut self) {
        deregister(&self.domain, self.raw);
    }
}

pub(super) fn register(
    domain: &Domain,
    address: u64,
    bytes: u64,
    flags: i32,
) -> Result<NonNull<sys::MemoryRegion>, VerbsError> {
    rgaps_os::memlock::check(bytes)?;
    let context = &domain.context;
    let start = address as *mut std::ffi::c_void;
    // SAFETY: pages of this process, which the call pins; a peer may write only shared mappings (`RemoteAccess::Write`).
    let raw = unsafe { (context.library().ibv_reg_mr)(domain.raw(), start, bytes as usize, flags) };
    let errno = last_errno();
    NonNull::new(raw).ok_or_else(|| VerbsError::Register { device: context.name().to_owned(), bytes, errno })
}

pub(super) fn deregister(domain: &Domain, region: NonNull<sys::MemoryRegion>) {
    // SAFETY: made by `register`, deregistered once, after the queue pairs that used it.
    let status = unsafe { (domain.context.library().ibv_dereg_mr)(region.as_ptr()) };
    if status != 0 {
        tracing::error!(
            device = domain.context.name(),
            status,
            "memory could not be deregistered; its pages stay pinned"
        );
    }
}

// SAFETY: as `Context`; the keys never change.
unsafe impl Send for Region {}
// SAFETY: as `Context`.
unsafe impl Sync for Region {}

impl Region {
    fn new(domain: &Arc<Domain>, mapping: &Arc<Mapping>, access: RemoteAccess) -> Result<Self, VerbsError> {
        let flags = match access {
            RemoteAccess::None => 0,
            RemoteAccess::Write => sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE,
        };
        let raw = register(domain, mapping.address(), mapping.bytes(), flags)?;
        Ok(Self { raw, mapping: mapping.clone(), access, domain: domain.clone() })
    }

    /// For gather entries.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region lives as long as `self`.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// For the peer.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the region lives as long as `self`.
        unsafe { self.raw.as_ref() }.rkey
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Whether all of these bytes are inside it.
    pub(super) fn contains(&self, bytes: &SharedBytes<'_>) -> bool {
        let (start, end) = (self.mapping.address(), self.mapping.address() + self.mapping.bytes());
        let at = bytes.address();
        at >= start && at + bytes.len() as u64 <= end
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        deregister(&self.domain, self.raw);
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region of {} B", self.mapping.bytes())
    }
}
