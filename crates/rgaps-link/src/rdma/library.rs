//! Loads libibverbs at run time: one table of functions for the process, or the reason why there is none.
//!
//! The library is never unloaded, because its providers run threads and handlers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::rdma::sys;

/// Why this machine cannot use verbs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No such library.
    #[error("libibverbs.so.1 could not be loaded ({0}); install rdma-core (Debian: libibverbs1 ibverbs-providers)")]
    Library(String),
    /// The library lacks a function.
    #[error("libibverbs.so.1 has no {0}; install a newer rdma-core")]
    Symbol(&'static str),
}

/// Domain, offset in the dma-buf, bytes, address for keys, file descriptor, access.
pub(super) type RegDmabufMr =
    unsafe extern "C" fn(*mut sys::ProtectionDomain, u64, usize, u64, c_int, c_int) -> *mut sys::MemoryRegion;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that the library exports by name.
        pub(super) struct Library {
            $($(#[$doc])* pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Absent before rdma-core 34.
            pub(super) reg_dmabuf_mr: Option<RegDmabufMr>,
        }

        impl Library {
            fn load() -> Result<Self, Missing> {
                let handle = open(c"libibverbs.so.1")?;
                Ok(Self {
                    $($name: {
                        let address = symbol(handle, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the symbol's default version has this signature: IBVERBS_1.1 or 1.0, which rdma-core keeps.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address) }
                    },)*
                    reg_dmabuf_mr: symbol(handle, "ibv_reg_dmabuf_mr\0").ok().map(|address| {
                        // SAFETY: the symbol's only version, IBVERBS_1.12, has this signature.
                        unsafe { std::mem::transmute::<*mut c_void, RegDmabufMr>(address) }
                    }),
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut sys::Device;
    ibv_free_device_list: fn(*mut *mut sys::Device);
    ibv_get_device_name: fn(*mut sys::Device) -> *const c_char;
    ibv_open_device: fn(*mut sys::Device) -> *mut sys::Context;
    ibv_close_device: fn(*mut sys::Context) -> c_int;
    ibv_query_device: fn(*mut sys::Context, *mut sys::DeviceAttributes) -> c_int;
    ibv_query_port: fn(*mut sys::Context, u8, *mut sys::PortAttributes) -> c_int;
    ibv_query_gid: fn(*mut sys::Context, u8, c_int, *mut sys::Gid) -> c_int;
    ibv_alloc_pd: fn(*mut sys::Context) -> *mut sys::ProtectionDomain;
    ibv_dealloc_pd: fn(*mut sys::ProtectionDomain) -> c_int;
    ibv_reg_mr: fn(*mut sys::ProtectionDomain, *mut c_void, usize, c_int) -> *mut sys::MemoryRegion;
    ibv_dereg_mr: fn(*mut sys::MemoryRegion) -> c_int;
    ibv_create_comp_channel: fn(*mut sys::Context) -> *mut sys::CompletionChannel;
    ibv_destroy_comp_channel: fn(*mut sys::CompletionChannel) -> c_int;
    ibv_create_cq: fn(*mut sys::Context, c_int, *mut c_void, *mut sys::CompletionChannel, c_int) -> *mut sys::CompletionQueue;
    ibv_destroy_cq: fn(*mut sys::CompletionQueue) -> c_int;
    ibv_get_cq_event: fn(*mut sys::CompletionChannel, *mut *mut sys::CompletionQueue, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut sys::CompletionQueue, c_uint);
    ibv_create_qp: fn(*mut sys::ProtectionDomain, *mut sys::QueuePairInit) -> *mut sys::QueuePair;
    ibv_modify_qp: fn(*mut sys::QueuePair, *mut sys::QueuePairAttributes, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut sys::QueuePair) -> c_int;
}

/// The library of this process.
pub(super) fn library() -> Result<&'static Library, Missing> {
    static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

fn open(name: &CStr) -> Result<*mut c_void, Missing> {
    // SAFETY: a system library, whose initialisers are trusted like those of a linked library; RTLD_LOCAL keeps its symbols private.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: reads the message of this thread's last call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return Err(Missing::Library("no reason given".to_owned()));
    }
    // SAFETY: dlerror(3) returns a string that is valid until this thread's next call.
    let text = unsafe { CStr::from_ptr(message) };
    Err(Missing::Library(text.to_string_lossy().into_owned()))
}

/// `name` ends in a zero byte.
fn symbol(handle: *mut c_void, name: &'static str) -> Result<*mut c_void, Missing> {
    // SAFETY: an open library and a string that ends in zero.
    let address = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
    if address.is_null() { Err(Missing::Symbol(name.trim_end_matches('\0'))) } else { Ok(address) }
}
