//! Loads libcuda at run time, finds each function by name, and names each call's error.
//!
//! The types of handles and structures, and the search for the library, are cudarc's (`cudarc::driver::sys`). Its functions are not used:
//! they panic if a symbol is missing, and they return a Rust enum, for which a code of a newer driver is undefined behaviour. Here a
//! result stays an integer.
//!
//! Source      CUDA driver API, cuda.h of 12.8.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;

use cudarc::driver::sys;
use sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemAccessDesc, CUmemAllocationProp, CUstream, CUuuid};

/// A driver call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} ({code}){hint}")]
pub struct DriverError {
    /// The function of the driver API.
    pub call: &'static str,
    /// Its CUresult.
    pub code: i32,
    /// The code's name, such as CUDA_ERROR_OUT_OF_MEMORY.
    pub name: String,
    /// What to do about it, if known; else empty.
    pub hint: &'static str,
}

impl DriverError {
    /// The driver does not accept an argument (CUDA_ERROR_INVALID_VALUE).
    pub fn is_invalid_value(&self) -> bool {
        self.code == INVALID_VALUE
    }

    /// The driver does not support the operation.
    pub fn is_not_offered(&self) -> bool {
        matches!(self.code, INVALID_VALUE | NOT_SUPPORTED)
    }

    /// The error that the driver would return in a forked child. It is not called there: it could deadlock on a lock that was held at the fork.
    pub(crate) fn forked() -> Self {
        let name = "CUDA_ERROR_NOT_INITIALIZED".to_owned();
        let hint = "; this process was forked from one that uses the GPU: start a new process instead (Python: multiprocessing's spawn)";
        Self { call: "cuCtxPushCurrent_v2", code: 3, name, hint }
    }

    /// The driver refused the call because a CUDA graph is being captured. The error says nothing about the work itself.
    pub fn is_of_capture(&self) -> bool {
        CAPTURE.contains(&self.code)
    }

    /// The device or the host has no memory left.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }
}

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NOT_READY: c_int = 600;
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.
const CAPTURE: std::ops::RangeInclusive<c_int> = 900..=908;
/// CU_STREAM_CAPTURE_MODE_RELAXED.
const CAPTURE_RELAXED: c_uint = 2;

/// What the user can do about an error.
fn hint(code: c_int) -> &'static str {
    match code {
        2 => {
            "; the device or the host has no memory left: lower pool_bytes, or see nvidia-smi and free for what uses it"
        }
        34 => "; this is the toolkit's stub, not a driver: remove its folder from LD_LIBRARY_PATH",
        46 => "; another process uses the device exclusively (nvidia-smi: compute mode)",
        100 => "; no device is visible: see CUDA_VISIBLE_DEVICES",
        700 | 710 | 714..=719 => {
            "; an earlier kernel or copy of this process failed and broke its context: restart the process"
        }
        803 | 804 => "; driver and kernel module are of different versions: reboot, or reinstall the driver",
        code if CAPTURE.contains(&code) => {
            "; a stream is being captured into a graph: publish, take and release on other streams"
        }
        999 => "; the kernel's log (dmesg) may say more",
        _ => "",
    }
}

/// Declares the driver functions in use, with a checked call for each.
macro_rules! driver {
    ($($(#[$doc:meta])* $call:ident = $symbol:literal ($($name:ident: $type:ty),*);)*) => {
        /// The functions of libcuda in use.
        #[derive(Debug)]
        pub(crate) struct Driver {
            $($call: unsafe extern "C" fn($($type),*) -> c_int,)*
            error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
            /// Absent before CUDA 11.7.
            stream_words: Option<CudaStreamMemory>,
            /// Absent before CUDA 11.7.
            gpu_direct: Option<GpuDirectCalls>,
        }

        impl Driver {
            fn find(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($call: symbol(library, $symbol)?,)*
                    error_name: symbol(library, "cuGetErrorName")?,
                    stream_words: CudaStreamMemory::find(library),
                    gpu_direct: GpuDirectCalls::find(library),
                })
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// The driver API's requirements: pointers are valid for what it reads and writes, handles are alive.
                pub(crate) unsafe fn $call(&self, $($name: $type),*) -> Result<(), DriverError> {
                    // SAFETY: the symbol has this signature in cuda.h; the arguments are the caller's promise.
                    let code = unsafe { (self.$call)($($name),*) };
                    self.check($symbol, code)
                }
            )*
        }
    };
}

driver! {
    /// Initialises the driver.
    init = "cuInit"(flags: c_uint);
    /// 12080 is CUDA 12.8.
    driver_version = "cuDriverGetVersion"(version: *mut c_int);
    /// The number of visible devices.
    device_count = "cuDeviceGetCount"(count: *mut c_int);
    /// A device by ordinal.
    device = "cuDeviceGet"(device: *mut CUdevice, ordinal: c_int);
    /// Its name.
    device_name = "cuDeviceGetName"(name: *mut c_char, bytes: c_int, device: CUdevice);
    /// Its UUID; for a MIG instance, the UUID of the instance.
    device_uuid = "cuDeviceGetUuid_v2"(uuid: *mut CUuuid, device: CUdevice);
    /// One of its attributes.
    device_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_uint, device: CUdevice);
    /// Its bytes of memory.
    device_memory = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: CUdevice);
    /// Whether one device has peer access to another.
    can_access_peer = "cuDeviceCanAccessPeer"(can: *mut c_int, device: CUdevice, peer: CUdevice);
    /// The primary context, which the runtime API and cudarc use too.
    retain_context = "cuDevicePrimaryCtxRetain"(context: *mut CUcontext, device: CUdevice);
    /// Releases it.
    release_context = "cuDevicePrimaryCtxRelease_v2"(device: CUdevice);
    /// Makes a context current in this thread.
    push_context = "cuCtxPushCurrent_v2"(context: CUcontext);
    /// Restores the previous context.
    pop_context = "cuCtxPopCurrent_v2"(context: *mut CUcontext);
    /// Sets this thread's capture mode and returns the previous one.
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_uint);
    /// Free and total memory of the current context's device.
    memory_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    /// The granularity of physical memory.
    granularity = "cuMemGetAllocationGranularity"(bytes: *mut usize, prop: *const CUmemAllocationProp, option: c_uint);
    /// Reserves an address range without memory.
    reserve = "cuMemAddressReserve"(start: *mut CUdeviceptr, bytes: usize, align: usize, at: CUdeviceptr, flags: c_ulonglong);
    /// Frees an address range.
    free_range = "cuMemAddressFree"(start: CUdeviceptr, bytes: usize);
    /// Allocates physical memory without an address.
    create = "cuMemCreate"(handle: *mut c_ulonglong, bytes: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong);
    /// Releases a memory handle; the memory is freed once it is mapped nowhere.
    release = "cuMemRelease"(handle: c_ulonglong);
    /// Maps memory at an address.
    map = "cuMemMap"(at: CUdeviceptr, bytes: usize, offset: usize, handle: c_ulonglong, flags: c_ulonglong);
    /// Unmaps it.
    unmap = "cuMemUnmap"(at: CUdeviceptr, bytes: usize);
    /// Sets a device's access to mapped memory.
    set_access = "cuMemSetAccess"(at: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    /// Exports memory as a file descriptor.
    export = "cuMemExportToShareableHandle"(fd: *mut c_void, handle: c_ulonglong, kind: c_uint, flags: c_ulonglong);
    /// Imports memory from a file descriptor.
    import = "cuMemImportFromShareableHandle"(handle: *mut c_ulonglong, fd: *mut c_void, kind: c_uint);
    /// Pins host memory for the device.
    register_host = "cuMemHostRegister_v2"(start: *mut c_void, bytes: usize, flags: c_uint);
    /// Unpins it.
    unregister_host = "cuMemHostUnregister"(start: *mut c_void);
    /// The device address of pinned host memory.
    host_address = "cuMemHostGetDevicePointer_v2"(at: *mut CUdeviceptr, start: *mut c_void, flags: c_uint);
    /// Device to host.
    copy_to_host = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// Host to device.
    copy_to_device = "cuMemcpyHtoDAsync_v2"(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    /// Device to device.
    copy_device = "cuMemcpyDtoDAsync_v2"(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// Device to device without peer access; the driver copies through the host if it must.
    copy_peer = "cuMemcpyPeerAsync"(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream);
    /// Allocates memory of the stream's device, in stream order.
    allocate = "cuMemAllocAsync"(at: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    /// Frees it, in stream order.
    free = "cuMemFreeAsync"(at: CUdeviceptr, stream: CUstream);
    /// Creates a stream of the current context.
    create_stream = "cuStreamCreate"(stream: *mut CUstream, flags: c_uint);
    /// Destroys a stream; its pending work still runs.
    destroy_stream = "cuStreamDestroy_v2"(stream: CUstream);
    /// Whether a stream is being captured into a graph: 0 if not.
    stream_is_capturing = "cuStreamIsCapturing"(stream: CUstream, status: *mut c_uint);
    /// Whether all its work is done; returns `NOT_READY` as an error, see `is_done`.
    query_stream = "cuStreamQuery"(stream: CUstream);
    /// Makes later work of the stream wait for an event.
    stream_wait_event = "cuStreamWaitEvent"(stream: CUstream, event: CUevent, flags: c_uint);
    /// Calls a host function, in stream order.
    host_function = "cuLaunchHostFunc"(stream: CUstream, function: HostFunction, argument: *mut c_void);
    /// Creates an event of the current context.
    create_event = "cuEventCreate"(event: *mut CUevent, flags: c_uint);
    /// Destroys an event; streams that wait for it are not affected.
    destroy_event = "cuEventDestroy_v2"(event: CUevent);
    /// Records an event in a stream.
    record_event = "cuEventRecord"(event: CUevent, stream: CUstream);
    /// Whether the stream has reached the event; returns `NOT_READY` as an error, see `is_there`.
    query_event = "cuEventQuery"(event: CUevent);
}

const LIBRARY: &str = "libcuda.so.1";

/// A function that a stream calls.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

type WordCall = unsafe extern "C" fn(CUstream, CUdeviceptr, u32, c_uint) -> c_int;

#[derive(Debug)]
struct CudaStreamMemory {
    write: WordCall,
    wait: WordCall,
}

impl CudaStreamMemory {
    fn find(library: &libloading::Library) -> Option<Self> {
        let write = symbol(library, "cuStreamWriteValue32_v2").ok()?;
        Some(Self { write, wait: symbol(library, "cuStreamWaitValue32_v2").ok()? })
    }
}

/// What network cards that access device memory need.
#[derive(Debug)]
struct GpuDirectCalls {
    export: unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize, c_uint, c_ulonglong) -> c_int,
    flush: unsafe extern "C" fn(c_uint, c_uint) -> c_int,
}

impl GpuDirectCalls {
    fn find(library: &libloading::Library) -> Option<Self> {
        let export = symbol(library, "cuMemGetHandleForAddressRange").ok()?;
        Some(Self { export, flush: symbol(library, "cuFlushGPUDirectRDMAWrites").ok()? })
    }
}

/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
const DMA_BUF: c_uint = 1;
/// CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX and CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES.
const FLUSH_FOR_ALL: (c_uint, c_uint) = (0, 200);

/// Why a process has no driver.
#[derive(Debug)]
enum NoDriver {
    /// None is installed, which is normal on a machine without a GPU.
    Absent,
    /// The installed driver does not work, and why.
    Broken(String),
}

impl std::fmt::Display for NoDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => {
                write!(f, "{LIBRARY} is not there: no NVIDIA driver is installed, or not inside this container")
            }
            Self::Broken(reason) => f.write_str(reason),
        }
    }
}

impl From<String> for NoDriver {
    fn from(reason: String) -> Self {
        Self::Broken(reason)
    }
}

/// The driver of this process, loaded and initialised by the first call.
fn loaded() -> Result<&'static Driver, &'static NoDriver> {
    static DRIVER: OnceLock<Result<Driver, NoDriver>> = OnceLock::new();
    DRIVER.get_or_init(Driver::open).as_ref()
}

/// Whether no driver is installed at all.
pub(crate) fn is_absent() -> bool {
    matches!(loaded(), Err(NoDriver::Absent))
}

impl Driver {
    /// The driver of this process. An error says what is missing.
    pub(crate) fn load() -> Result<&'static Self, String> {
        loaded().map_err(ToString::to_string)
    }

    fn open() -> Result<Self, NoDriver> {
        // SAFETY: opens and closes libraries of fixed names; their constructors are the driver's.
        if !unsafe { sys::is_culib_present() } {
            return Err(why_missing());
        }
        // SAFETY: as above; it is present, so this does not panic, and it stays loaded.
        let library = unsafe { sys::culib() };
        if symbol::<HostFunction>(library, "cuInit").is_err() {
            let reason = "the libcuda that was found is not NVIDIA's: it has no cuInit; see LD_LIBRARY_PATH";
            return Err(NoDriver::Broken(reason.to_owned()));
        }
        let driver = Self::find(library)?;
        // SAFETY: no argument but zero.
        unsafe { driver.init(0) }.map_err(|error| NoDriver::Broken(error.to_string()))?;
        Ok(driver)
    }

    /// Whether the driver has stream memory operations; the device must support them too.
    pub(crate) fn has_stream_words(&self) -> bool {
        self.stream_words.is_some()
    }

    /// Enqueues a write of `value` to a 32-bit word, after all earlier work of the stream.
    ///
    /// # Safety
    /// `at` is a 4-aligned word that the device can write until the stream has done so.
    pub(crate) unsafe fn write_value(&self, stream: CUstream, at: CUdeviceptr, value: u32) -> Result<(), DriverError> {
        let call = "cuStreamWriteValue32_v2";
        let Some(words) = &self.stream_words else { return Err(self.error(call, NOT_SUPPORTED)) };
        // SAFETY: the caller's promise. Flags 0: a memory barrier precedes the write.
        let code = unsafe { (words.write)(stream, at, value, 0) };
        self.check(call, code)
    }

    /// Makes later work of the stream wait until the word, a wrapping counter, is at or past `value`.
    ///
    /// # Safety
    /// `at` is a 4-aligned word that the device can read until the stream has done so.
    pub(crate) unsafe fn wait_value(&self, stream: CUstream, at: CUdeviceptr, value: u32) -> Result<(), DriverError> {
        let call = "cuStreamWaitValue32_v2";
        let Some(words) = &self.stream_words else { return Err(self.error(call, NOT_SUPPORTED)) };
        // SAFETY: the caller's promise. Flags 0 is CU_STREAM_WAIT_VALUE_GEQ, a signed comparison of the difference.
        let code = unsafe { (words.wait)(stream, at, value, 0) };
        self.check(call, code)
    }

    /// Whether the driver has what network cards need; the device must support it too.
    pub(crate) fn has_gpu_direct(&self) -> bool {
        self.gpu_direct.is_some()
    }

    /// Exports mapped device memory for other devices, as a dma-buf. Address and length are whole pages.
    pub(crate) fn export_dma_buf(&self, at: CUdeviceptr, bytes: u64) -> Result<OwnedFd, DriverError> {
        let call = "cuMemGetHandleForAddressRange";
        let Some(calls) = &self.gpu_direct else { return Err(self.error(call, NOT_SUPPORTED)) };
        let mut fd: c_int = -1;
        // SAFETY: stores one file descriptor; the driver checks that the addresses are mapped memory of the current context's device.
        let code = unsafe { (calls.export)((&raw mut fd).cast(), at, bytes as usize, DMA_BUF, 0) };
        self.check(call, code)?;
        // SAFETY: the driver has just created the file descriptor, and we are its only owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits until every GPU sees what network cards have written to memory of the current context.
    pub(crate) fn flush_writes(&self) -> Result<(), DriverError> {
        let call = "cuFlushGPUDirectRDMAWrites";
        let Some(calls) = &self.gpu_direct else { return Err(self.error(call, NOT_SUPPORTED)) };
        // SAFETY: two constants of the driver API.
        let code = unsafe { (calls.flush)(FLUSH_FOR_ALL.0, FLUSH_FOR_ALL.1) };
        self.check(call, code)
    }

    /// Sets this thread's capture mode to relaxed and returns the previous mode. Until it is restored, this thread's calls neither invalidate
    /// captures of other threads nor fail because of them.
    pub(crate) fn relax_capture_mode(&self) -> Result<c_uint, DriverError> {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: reads and stores one integer.
        unsafe { self.exchange_capture_mode(&raw mut mode) }.map(|()| mode)
    }

    /// An error if the stream is being captured.
    ///
    /// # Safety
    /// The stream is alive, and its context current.
    pub(crate) unsafe fn check_capture(&self, stream: CUstream) -> Result<(), DriverError> {
        let mut status = 0;
        // SAFETY: the caller's promise; stores one integer.
        unsafe { self.stream_is_capturing(stream, &raw mut status) }?;
        if status == 0 { Ok(()) } else { Err(self.error("cuStreamIsCapturing", *CAPTURE.start())) }
    }

    /// Whether the stream has reached the event.
    ///
    /// # Safety
    /// The event is alive.
    pub(crate) unsafe fn is_there(&self, event: CUevent) -> Result<bool, DriverError> {
        // SAFETY: the caller's promise.
        ready(unsafe { self.query_event(event) })
    }

    /// Whether the stream has no pending work.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn is_done(&self, stream: CUstream) -> Result<bool, DriverError> {
        // SAFETY: the caller's promise.
        ready(unsafe { self.query_stream(stream) })
    }

    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<(), DriverError> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &'static str, code: c_int) -> DriverError {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the driver stores a pointer to a static string, or null for a code that it does not know.
        let known = unsafe { (self.error_name)(code, &raw mut name) };
        let name = if known == SUCCESS && !name.is_null() {
            // SAFETY: a static string of the driver, which ends with a zero.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "a code that the driver does not know".to_owned()
        };
        DriverError { call, code, name, hint: hint(code) }
    }
}

const NOT_SUPPORTED: c_int = 801;

fn ready(asked: Result<(), DriverError>) -> Result<bool, DriverError> {
    match asked {
        Ok(()) => Ok(true),
        Err(DriverError { code: NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Why there is no libcuda: none is installed, or the installed one cannot be loaded.
fn why_missing() -> NoDriver {
    // SAFETY: as in `open`.
    let Err(error) = (unsafe { libloading::Library::new(LIBRARY) }) else { return NoDriver::Absent };
    let said = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
    // glibc's text for a missing file; if a dependency is missing, the text names the dependency instead.
    if said.starts_with(&format!("{LIBRARY}: cannot open shared object file: No such file")) {
        return NoDriver::Absent;
    }
    NoDriver::Broken(format!("{LIBRARY} cannot be loaded: {said}"))
}

/// Finds a function of the library.
pub(crate) fn symbol<F: Copy>(library: &libloading::Library, name: &str) -> Result<F, String> {
    // SAFETY: each caller names the signature that cuda.h has for this symbol.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found
        .map(|found| *found)
        .map_err(|_| format!("libcuda has no {name}: the driver is too old; install one for CUDA 11.4 or newer"))
}
