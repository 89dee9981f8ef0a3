//! libcuda at run time: found once, each function by its name, each call with a named error.
//!
//! The shapes of handles and structures are cudarc's (`cudarc::driver::sys`), as is the search for the library. Its functions are not
//! used: they panic where a symbol is missing, and they return an enum, which a code that a newer driver made up would break. Here a
//! result is a number until it is understood.
//!
//! Source      CUDA driver API, cuda.h of 12.8.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys;
use sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemAccessDesc, CUmemAllocationProp, CUstream, CUuuid};

/// A call of the driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} ({code}){hint}")]
pub struct DriverError {
    /// The function of the driver API.
    pub call: &'static str,
    /// Its CUresult.
    pub code: i32,
    /// The code's name, such as CUDA_ERROR_OUT_OF_MEMORY.
    pub name: String,
    /// What to do about it, where that is known.
    pub hint: &'static str,
}

impl DriverError {
    /// An argument is unknown to the driver, or wrong.
    pub fn is_invalid_value(&self) -> bool {
        self.code == INVALID_VALUE
    }

    /// The driver does not offer what was asked for.
    pub fn is_not_offered(&self) -> bool {
        matches!(self.code, INVALID_VALUE | NOT_SUPPORTED)
    }

    /// What the driver says to a forked child, if it says anything: one of its locks may have been taken at that moment, for ever.
    pub(crate) fn forked() -> Self {
        let name = "CUDA_ERROR_NOT_INITIALIZED".to_owned();
        let hint = "; this process was forked from one that uses the GPU: start it anew instead (Python: multiprocessing's spawn)";
        Self { call: "cuCtxPushCurrent_v2", code: 3, name, hint }
    }

    /// A CUDA graph is being captured, in which the call has no place: it says nothing of the work that it was about.
    pub fn is_of_capture(&self) -> bool {
        CAPTURE.contains(&self.code)
    }

    /// The device has no memory left.
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

/// What people can do about some errors.
fn hint(code: c_int) -> &'static str {
    match code {
        2 => {
            "; memory is used up, of the device or of the host: lower pool_bytes, or see nvidia-smi and free for who holds it"
        }
        34 => "; this is the toolkit's stub, not a driver: take its folder out of LD_LIBRARY_PATH",
        46 => "; another process has the device to itself (compute mode)",
        100 => "; no device is visible: see CUDA_VISIBLE_DEVICES",
        700 | 710 | 714..=719 => {
            "; an earlier kernel or copy of this process failed, and its context with it: start the process anew"
        }
        803 | 804 => "; driver and kernel module are of different versions: reboot, or reinstall the driver",
        code if CAPTURE.contains(&code) => {
            "; a stream is being captured into a graph: publish, take and release on streams that are not"
        }
        999 => "; the kernel's log (dmesg) may say more",
        _ => "",
    }
}

/// Declares the functions of the driver that are used, with a checked call for each.
macro_rules! driver {
    ($($(#[$doc:meta])* $call:ident = $symbol:literal ($($name:ident: $type:ty),*);)*) => {
        /// The functions of libcuda.
        #[derive(Debug)]
        pub(crate) struct Driver {
            $($call: unsafe extern "C" fn($($type),*) -> c_int,)*
            error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
            /// Absent before CUDA 11.7.
            stream_words: Option<CudaStreamMemory>,
        }

        impl Driver {
            fn find(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($call: symbol(library, $symbol)?,)*
                    error_name: symbol(library, "cuGetErrorName")?,
                    stream_words: CudaStreamMemory::find(library),
                })
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// What the driver API asks for: pointers are valid for what it reads and writes, handles are alive.
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
    /// Loads the kernel's part of the driver.
    init = "cuInit"(flags: c_uint);
    /// 12080 is CUDA 12.8.
    driver_version = "cuDriverGetVersion"(version: *mut c_int);
    /// Visible devices.
    device_count = "cuDeviceGetCount"(count: *mut c_int);
    /// A device by number.
    device = "cuDeviceGet"(device: *mut CUdevice, ordinal: c_int);
    /// Its name.
    device_name = "cuDeviceGetName"(name: *mut c_char, bytes: c_int, device: CUdevice);
    /// Its identity; of a MIG instance that of the instance.
    device_uuid = "cuDeviceGetUuid_v2"(uuid: *mut CUuuid, device: CUdevice);
    /// One of its properties.
    device_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_uint, device: CUdevice);
    /// Its memory.
    device_memory = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: CUdevice);
    /// Whether one device reaches another's memory.
    can_access_peer = "cuDeviceCanAccessPeer"(can: *mut c_int, device: CUdevice, peer: CUdevice);
    /// The context that the runtime API and cudarc use too.
    retain_context = "cuDevicePrimaryCtxRetain"(context: *mut CUcontext, device: CUdevice);
    /// Gives it back.
    release_context = "cuDevicePrimaryCtxRelease_v2"(device: CUdevice);
    /// Makes a context this thread's, for a while.
    push_context = "cuCtxPushCurrent_v2"(context: CUcontext);
    /// The reverse.
    pop_context = "cuCtxPopCurrent_v2"(context: *mut CUcontext);
    /// What a graph that is being captured elsewhere means for this thread's calls; swapped with what it meant.
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_uint);
    /// Of the current context's device.
    memory_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    /// Unit of physical memory.
    granularity = "cuMemGetAllocationGranularity"(bytes: *mut usize, prop: *const CUmemAllocationProp, option: c_uint);
    /// Addresses without memory.
    reserve = "cuMemAddressReserve"(start: *mut CUdeviceptr, bytes: usize, align: usize, at: CUdeviceptr, flags: c_ulonglong);
    /// Gives addresses back.
    free_range = "cuMemAddressFree"(start: CUdeviceptr, bytes: usize);
    /// Memory without an address.
    create = "cuMemCreate"(handle: *mut c_ulonglong, bytes: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong);
    /// The memory goes once it is mapped nowhere.
    release = "cuMemRelease"(handle: c_ulonglong);
    /// Puts memory at addresses.
    map = "cuMemMap"(at: CUdeviceptr, bytes: usize, offset: usize, handle: c_ulonglong, flags: c_ulonglong);
    /// Takes it away.
    unmap = "cuMemUnmap"(at: CUdeviceptr, bytes: usize);
    /// Says which device may do what there.
    set_access = "cuMemSetAccess"(at: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    /// Memory as a descriptor.
    export = "cuMemExportToShareableHandle"(fd: *mut c_void, handle: c_ulonglong, kind: c_uint, flags: c_ulonglong);
    /// A descriptor as memory.
    import = "cuMemImportFromShareableHandle"(handle: *mut c_ulonglong, fd: *mut c_void, kind: c_uint);
    /// Pins host memory for the device.
    register_host = "cuMemHostRegister_v2"(start: *mut c_void, bytes: usize, flags: c_uint);
    /// The reverse.
    unregister_host = "cuMemHostUnregister"(start: *mut c_void);
    /// Where the device sees pinned host memory.
    host_address = "cuMemHostGetDevicePointer_v2"(at: *mut CUdeviceptr, start: *mut c_void, flags: c_uint);
    /// Device to host.
    copy_to_host = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// Host to device.
    copy_to_device = "cuMemcpyHtoDAsync_v2"(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    /// Device to device.
    copy_device = "cuMemcpyDtoDAsync_v2"(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// Device to device, where neither need reach the other's memory: through the host if there is no other way.
    copy_peer = "cuMemcpyPeerAsync"(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream);
    /// Stream order: memory of the stream's device.
    allocate = "cuMemAllocAsync"(at: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    /// Stream order: gives it back.
    free = "cuMemFreeAsync"(at: CUdeviceptr, stream: CUstream);
    /// A stream of the current context.
    create_stream = "cuStreamCreate"(stream: *mut CUstream, flags: c_uint);
    /// Its work goes on.
    destroy_stream = "cuStreamDestroy_v2"(stream: CUstream);
    /// Whether its work goes into a graph instead of to the device: 0 if not.
    stream_is_capturing = "cuStreamIsCapturing"(stream: CUstream, status: *mut c_uint);
    /// Whether all its work is done: `NOT_READY` is an error here, see `is_done`.
    query_stream = "cuStreamQuery"(stream: CUstream);
    /// Later work of the stream waits for the event.
    stream_wait_event = "cuStreamWaitEvent"(stream: CUstream, event: CUevent, flags: c_uint);
    /// A function of the host, in stream order.
    host_function = "cuLaunchHostFunc"(stream: CUstream, function: HostFunction, argument: *mut c_void);
    /// An event of the current context.
    create_event = "cuEventCreate"(event: *mut CUevent, flags: c_uint);
    /// The reverse; work that waits for it goes on.
    destroy_event = "cuEventDestroy_v2"(event: CUevent);
    /// Marks a place in a stream.
    record_event = "cuEventRecord"(event: CUevent, stream: CUstream);
    /// Whether the stream has got there: `NOT_READY` is an error here, see `is_there`.
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

/// Why a process has no driver.
#[derive(Debug)]
enum NoDriver {
    /// None is installed, which is nobody's fault.
    Absent,
    /// There is one, of no use: why.
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

/// The driver of this process: loaded and initialised at the first call.
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
        // SAFETY: opens and closes libraries of fixed names, whose constructors are the driver's.
        if !unsafe { sys::is_culib_present() } {
            return Err(why_missing());
        }
        // SAFETY: as above; it is present, so this does not panic, and it stays loaded.
        let library = unsafe { sys::culib() };
        if symbol::<HostFunction>(library, "cuInit").is_err() {
            let reason = "the libcuda that was found is none of NVIDIA's: it has no cuInit; see LD_LIBRARY_PATH";
            return Err(NoDriver::Broken(reason.to_owned()));
        }
        let driver = Self::find(library)?;
        // SAFETY: no argument but zero.
        unsafe { driver.init(0) }.map_err(|error| NoDriver::Broken(error.to_string()))?;
        Ok(driver)
    }

    /// Whether the driver has stream memory operations at all; the device must say so too.
    pub(crate) fn has_stream_words(&self) -> bool {
        self.stream_words.is_some()
    }

    /// Stream order: then writes `value` to a 32-bit word, behind everything before it.
    ///
    /// # Safety
    /// `at` is a 4-aligned word that the device can write for as long as the stream may get there.
    pub(crate) unsafe fn write_value(&self, stream: CUstream, at: CUdeviceptr, value: u32) -> Result<(), DriverError> {
        let call = "cuStreamWriteValue32_v2";
        let Some(words) = &self.stream_words else { return Err(self.error(call, NOT_SUPPORTED)) };
        // SAFETY: the caller's promise. Flags 0: a barrier stands before the write.
        let code = unsafe { (words.write)(stream, at, value, 0) };
        self.check(call, code)
    }

    /// Stream order: later work waits until the word, seen as a wrapping count, is `value` or beyond.
    ///
    /// # Safety
    /// As for `write_value`.
    pub(crate) unsafe fn wait_value(&self, stream: CUstream, at: CUdeviceptr, value: u32) -> Result<(), DriverError> {
        let call = "cuStreamWaitValue32_v2";
        let Some(words) = &self.stream_words else { return Err(self.error(call, NOT_SUPPORTED)) };
        // SAFETY: the caller's promise. Flags 0 is CU_STREAM_WAIT_VALUE_GEQ, a signed comparison of the difference.
        let code = unsafe { (words.wait)(stream, at, value, 0) };
        self.check(call, code)
    }

    /// From here on, until it is set back, calls of this thread do no harm to graphs that other threads are capturing, and are not refused for
    /// them. Returns what it was before.
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

    /// Whether an event's place has been reached.
    ///
    /// # Safety
    /// The event is alive.
    pub(crate) unsafe fn is_there(&self, event: CUevent) -> Result<bool, DriverError> {
        // SAFETY: the caller's promise.
        ready(unsafe { self.query_event(event) })
    }

    /// Whether a stream has nothing left to do.
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
        // SAFETY: the driver stores a pointer to a string of its own that lives for ever, or null for a code that it does not know.
        let known = unsafe { (self.error_name)(code, &raw mut name) };
        let name = if known == SUCCESS && !name.is_null() {
            // SAFETY: as above; it ends with a zero.
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

/// Why there is no libcuda: none is installed, or what there is cannot be loaded.
fn why_missing() -> NoDriver {
    // SAFETY: as in `open`.
    let Err(error) = (unsafe { libloading::Library::new(LIBRARY) }) else { return NoDriver::Absent };
    let said = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
    // glibc's words for a file that is nowhere; for one that another library needs, it names that.
    if said.starts_with(&format!("{LIBRARY}: cannot open shared object file: No such file")) {
        return NoDriver::Absent;
    }
    NoDriver::Broken(format!("{LIBRARY} cannot be loaded: {said}"))
}

/// A function of the library.
pub(crate) fn symbol<F: Copy>(library: &libloading::Library, name: &str) -> Result<F, String> {
    // SAFETY: each caller names the signature that cuda.h has for this symbol.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found
        .map(|found| *found)
        .map_err(|_| format!("libcuda has no {name}: the driver is too old, CUDA 11.4 is the oldest that will do"))
}
