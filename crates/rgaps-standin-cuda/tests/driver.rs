//! Tests what the backend's tests rely on: order only where the program asks for it, errors at the right call, and counts that return to
//! zero.
//!
//! The tests call the functions directly. A process has one driver, so the tests run one after the other (`Gpu`).

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::ffi::{CStr, c_int, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_standin_cuda::abi::{self, AccessDesc, AllocationProp, Code, In, Location, Out};
use rgaps_standin_cuda::{calls, control};
use rgaps_testing::Watchdog;

const UNIT: usize = 2 << 20;
const WORDS: usize = 1024;
const BYTES: usize = 4 * WORDS;
/// Set in the child of `memory_is_shared_with_another_process`.
const CHILD_FD: &str = "RGAPS_TEST_STANDIN_FD";

/// Calls a driver function.
macro_rules! cu {
    ($file:ident::$call:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers are of locals or null; host memory is kept until it is unregistered.
        unsafe { calls::$file::$call($($argument),*) }
    };
}

/// The result of a call that must succeed.
fn made<T: Default>(call: impl FnOnce(Out<T>) -> Code) -> T {
    let mut result = T::default();
    assert_eq!(call(Out::from(&mut result)), 0);
    result
}

/// The driver, locked for one test; checks for leaks at its end.
struct Gpu {
    _watchdog: Watchdog,
    _alone: MutexGuard<'static, ()>,
}

impl Gpu {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(cu!(device::cuInit(0)), 0);
        let context = made(|out| cu!(context::cuDevicePrimaryCtxRetain(out, 0)));
        assert_eq!(cu!(context::cuCtxPushCurrent_v2(context)), 0);
        control::rgaps_standin_delay_us(200);
        Self { _watchdog: Watchdog::new(Duration::from_secs(60)), _alone: alone }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        control::rgaps_standin_go();
        control::rgaps_standin_fail_later(0, 0);
        cu!(context::cuCtxPopCurrent_v2(Out::null()));
        cu!(context::cuDevicePrimaryCtxRelease_v2(0));
        if !std::thread::panicking() {
            for what in [
                c"handles",
                c"ranges",
                c"mapped_bytes",
                c"allocated_bytes",
                c"registrations",
                c"streams",
                c"events",
                c"contexts",
                c"orphans",
            ] {
                assert_eq!(live(what), 0, "{what:?}");
            }
        }
    }
}

fn live(what: &CStr) -> u64 {
    // SAFETY: a C string.
    unsafe { control::rgaps_standin_live(In::from(what)) }
}

fn fail(name: &CStr, nth: u64, code: Code) {
    // SAFETY: a C string.
    assert!(unsafe { control::rgaps_standin_fail(In::from(name), nth, code) });
}

/// A stream, destroyed on drop.
struct Stream(u64);

impl Stream {
    fn new() -> Self {
        Self(made(|out| cu!(stream::cuStreamCreate(out, abi::STREAM_NON_BLOCKING))))
    }

    fn synchronize(&self) -> Code {
        cu!(stream::cuStreamSynchronize(self.0))
    }

    fn query(&self) -> Code {
        cu!(stream::cuStreamQuery(self.0))
    }

    fn to_device(&self, to: &DeviceMemory, from: &Pinned) {
        assert_eq!(cu!(stream::cuMemcpyHtoDAsync_v2(to.start, from.address(), BYTES, self.0)), 0);
    }

    fn to_host(&self, to: &Pinned, from: &DeviceMemory) {
        assert_eq!(cu!(stream::cuMemcpyDtoHAsync_v2(to.address(), from.start, BYTES, self.0)), 0);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        cu!(stream::cuStreamDestroy_v2(self.0));
    }
}

/// An event, destroyed on drop.
struct Event(u64);

impl Event {
    fn new() -> Self {
        Self(made(|out| cu!(event::cuEventCreate(out, 2))))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        cu!(event::cuEventDestroy_v2(self.0));
    }
}

/// `BYTES` of registered host memory.
struct Pinned {
    words: Box<[AtomicU32]>,
    device_address: u64,
}

impl Pinned {
    fn of(value: u32) -> Self {
        let words: Box<[AtomicU32]> = (0..WORDS).map(|_| AtomicU32::new(value)).collect();
        let start = words.as_ptr() as u64;
        assert_eq!(cu!(host::cuMemHostRegister_v2(start, BYTES, 3)), 0);
        let device_address = made(|out| cu!(host::cuMemHostGetDevicePointer_v2(out, start, 0)));
        Self { words, device_address }
    }

    fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    fn is_all(&self, value: u32) -> bool {
        self.words.iter().all(|word| word.load(Ordering::Relaxed) == value)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        cu!(host::cuMemHostUnregister(self.address()));
    }
}

fn allocation() -> AllocationProp {
    AllocationProp {
        kind: abi::ALLOCATION_PINNED,
        handle_types: abi::HANDLE_FD,
        location: Location { kind: abi::LOCATION_DEVICE, id: 0 },
        win32: std::ptr::null_mut(),
        compression: 0,
        rdma_capable: 0,
        rest: [0; 6],
    }
}

/// One granule of device memory with its address.
struct DeviceMemory {
    handle: u64,
    start: u64,
}

impl DeviceMemory {
    fn new() -> Self {
        Self::at_an_address(made(|out| cu!(memory::cuMemCreate(out, UNIT, In::from(&allocation()), 0))))
    }

    fn import(fd: c_int) -> Self {
        Self::at_an_address(made(|out| cu!(memory::cuMemImportFromShareableHandle(out, fd as usize, abi::HANDLE_FD))))
    }

    fn at_an_address(handle: u64) -> Self {
        let start = made(|out| cu!(memory::cuMemAddressReserve(out, UNIT, 0, 0, 0)));
        assert_eq!(cu!(memory::cuMemMap(start, UNIT, 0, handle, 0)), 0);
        let access = AccessDesc { location: allocation().location, flags: abi::PROT_READWRITE };
        assert_eq!(cu!(memory::cuMemSetAccess(start, UNIT, In::from(&access), 1)), 0);
        Self { handle, start }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        cu!(memory::cuMemUnmap(self.start, UNIT));
        cu!(memory::cuMemAddressFree(self.start, UNIT));
        cu!(memory::cuMemRelease(self.handle));
    }
}

#[test]
fn a_stream_runs_in_order_and_not_while_it_is_held() {
    let _gpu = Gpu::new();
    let (one, two, back) = (Pinned::of(1), Pinned::of(2), Pinned::of(0));
    let (memory, stream) = (DeviceMemory::new(), Stream::new());
    control::rgaps_standin_delay_us(0);
    control::rgaps_standin_hold();
    stream.to_device(&memory, &one);
    stream.to_device(&memory, &two);
    stream.to_host(&back, &memory);
    // Much longer than three copies take.
    assert!((0..100_000).all(|_| stream.query() == abi::NOT_READY));
    assert!(back.is_all(0), "held streams copy nothing");
    control::rgaps_standin_go();
    assert_eq!((stream.synchronize(), stream.query()), (0, 0));
    assert!(back.is_all(2));
}

#[test]
fn streams_wait_for_each_other_by_events_and_words_only() {
    let _gpu = Gpu::new();
    let (one, back, word) = (Pinned::of(1), Pinned::of(0), Pinned::of(u32::MAX));
    let (memory, event) = (DeviceMemory::new(), Event::new());
    let (first, second, third) = (Stream::new(), Stream::new(), Stream::new());
    // The word wraps, so it is before 1.
    assert_eq!(cu!(stream::cuStreamWaitValue32_v2(first.0, word.device_address, 1, 0)), 0);
    first.to_device(&memory, &one);
    assert_eq!(cu!(event::cuEventRecord(event.0, first.0)), 0);
    second.to_host(&back, &memory);
    assert_eq!(second.synchronize(), 0);
    assert!(back.is_all(0), "the second stream was not told to wait");
    assert_eq!(cu!(stream::cuStreamWaitEvent(second.0, event.0, 0)), 0);
    second.to_host(&back, &memory);
    assert_eq!((second.query(), cu!(event::cuEventQuery(event.0))), (abi::NOT_READY, abi::NOT_READY));
    assert_eq!(cu!(stream::cuStreamWriteValue32_v2(third.0, word.device_address, 2, 0)), 0);
    assert_eq!((second.synchronize(), cu!(event::cuEventQuery(event.0))), (0, 0));
    assert!(back.is_all(1));
}

#[test]
fn a_stream_calls_a_function_that_may_not_call_the_driver() {
    unsafe extern "C" fn call(code: *mut c_void) {
        // SAFETY: the test's local, which it keeps until the stream is done.
        let code = unsafe { AtomicU32::from_ptr(code.cast()) };
        code.store(cu!(context::cuCtxSynchronize()) as u32, Ordering::Release);
    }
    let _gpu = Gpu::new();
    let (stream, code) = (Stream::new(), AtomicU32::new(0));
    assert_eq!(cu!(stream::cuLaunchHostFunc(stream.0, Some(call), code.as_ptr().cast())), 0);
    assert_eq!(stream.synchronize(), 0);
    assert_eq!(code.load(Ordering::Acquire) as Code, abi::NOT_PERMITTED);
}

#[test]
fn only_the_chosen_call_fails() {
    let _gpu = Gpu::new();
    fail(c"cuStreamCreate", 2, abi::OUT_OF_MEMORY);
    let first = Stream::new();
    let mut untouched = 7;
    assert_eq!(cu!(stream::cuStreamCreate(Out::from(&mut untouched), 0)), abi::OUT_OF_MEMORY);
    assert_eq!(untouched, 7, "results are written on success only");
    let third = Stream::new();
    assert_eq!(live(c"streams"), 2);
    assert_eq!((first.query(), third.query()), (0, 0));
    fail(c"cuStreamQuery", 0, abi::UNKNOWN);
    assert_eq!((first.query(), first.query()), (abi::UNKNOWN, abi::UNKNOWN));
    fail(c"cuStreamQuery", 0, 0);
    assert_eq!(first.query(), 0);
    // SAFETY: a C string.
    assert!(!unsafe { control::rgaps_standin_fail(In::from(c"cuStreamQuerry"), 1, 1) });
}

#[test]
fn a_failed_operation_fails_its_context_permanently() {
    let gpu = Gpu::new();
    let (one, back, event) = (Pinned::of(1), Pinned::of(0), Event::new());
    let (memory, stream, other) = (DeviceMemory::new(), Stream::new(), Stream::new());
    control::rgaps_standin_fail_later(2, 719);
    stream.to_device(&memory, &one);
    stream.to_host(&back, &memory);
    cu!(event::cuEventRecord(event.0, stream.0));
    assert_eq!(stream.synchronize(), 719);
    assert!(back.is_all(0), "the second copy failed");
    assert_eq!((cu!(event::cuEventQuery(event.0)), other.query()), (719, 719));
    assert_eq!(cu!(stream::cuStreamCreate(Out::from(&mut 0), 0)), 719);
    // Calls that free still free, and return the error again.
    assert_eq!(cu!(event::cuEventDestroy_v2(event.0)), 719);
    assert_eq!(cu!(event::cuEventDestroy_v2(event.0)), abi::INVALID_HANDLE);
    drop((event, one, back, memory, stream, other, gpu));
    let _gpu = Gpu::new();
    assert_eq!(Stream::new().synchronize(), 0, "a new context is in order");
}

#[test]
fn a_copy_to_memory_not_mapped_when_it_runs_is_an_illegal_address() {
    for past_the_end in [true, false] {
        let _gpu = Gpu::new();
        let (one, memory, stream) = (Pinned::of(1), DeviceMemory::new(), Stream::new());
        if past_the_end {
            let at = memory.start + (UNIT - BYTES + 1) as u64;
            assert_eq!(cu!(stream::cuMemcpyHtoDAsync_v2(at, one.address(), BYTES, stream.0)), 0);
        } else {
            control::rgaps_standin_hold();
            stream.to_device(&memory, &one);
            drop(memory);
            control::rgaps_standin_go();
        }
        assert_eq!(stream.synchronize(), abi::ILLEGAL_ADDRESS);
        assert_eq!(cu!(context::cuCtxSynchronize()), abi::ILLEGAL_ADDRESS);
    }
}

#[test]
fn stream_ordered_memory_is_allocated_and_freed_in_order() {
    let _gpu = Gpu::new();
    let (one, back, stream) = (Pinned::of(1), Pinned::of(0), Stream::new());
    let context = made(|out| cu!(context::cuCtxGetCurrent(out)));
    let allocate = |bytes| made(|out| cu!(ordered::cuMemAllocAsync(out, bytes, stream.0)));
    let (memory, other) = (allocate(BYTES), allocate(UNIT + 1));
    assert_eq!(cu!(stream::cuMemcpyHtoDAsync_v2(memory, one.address(), BYTES, stream.0)), 0);
    assert_eq!(cu!(stream::cuMemcpyPeerAsync(other, context, memory, context, BYTES, stream.0)), 0);
    assert_eq!(cu!(stream::cuMemcpyDtoHAsync_v2(back.address(), other, BYTES, stream.0)), 0);
    for memory in [memory, other] {
        assert_eq!(cu!(ordered::cuMemFreeAsync(memory, stream.0)), 0);
        assert_eq!(cu!(ordered::cuMemFreeAsync(memory, stream.0)), abi::INVALID_VALUE);
    }
    assert_eq!(stream.synchronize(), 0);
    assert!(back.is_all(1), "memory freed after the copies was accessible to them");
    assert_eq!(live(c"allocated_bytes"), 0);
    assert_eq!(cu!(stream::cuMemcpyPeerAsync(other, 1, memory, context, BYTES, stream.0)), abi::INVALID_CONTEXT);
}

#[test]
fn stream_ordered_memory_is_inaccessible_before_its_allocation_and_after_its_free() {
    for too_late in [false, true] {
        let _gpu = Gpu::new();
        let (one, word, stream, other) = (Pinned::of(1), Pinned::of(0), Stream::new(), Stream::new());
        if !too_late {
            assert_eq!(cu!(stream::cuStreamWaitValue32_v2(stream.0, word.device_address, 1, 0)), 0);
        }
        let memory = made(|out| cu!(ordered::cuMemAllocAsync(out, BYTES, stream.0)));
        if too_late {
            assert_eq!(cu!(ordered::cuMemFreeAsync(memory, stream.0)), 0);
            assert_eq!(stream.synchronize(), 0);
        }
        assert_eq!(cu!(stream::cuMemcpyHtoDAsync_v2(memory, one.address(), BYTES, other.0)), 0);
        assert_eq!(other.synchronize(), abi::ILLEGAL_ADDRESS);
        if !too_late {
            // Frees the memory although the context has failed, and returns its error again.
            assert_eq!(cu!(ordered::cuMemFreeAsync(memory, stream.0)), abi::ILLEGAL_ADDRESS);
        }
    }
}

#[test]
fn host_memory_that_is_not_registered_is_not_copied() {
    let _gpu = Gpu::new();
    let (memory, stream, pinned) = (DeviceMemory::new(), Stream::new(), Pinned::of(1));
    let pageable = [0_u32; WORDS];
    let copy = |from: u64| cu!(stream::cuMemcpyHtoDAsync_v2(memory.start, from, BYTES, stream.0));
    assert_eq!(copy(pageable.as_ptr() as u64), abi::INVALID_VALUE);
    assert_eq!(copy(pinned.address() + 4), abi::INVALID_VALUE);
    assert_eq!(copy(pinned.address()), 0);
    assert_eq!(stream.synchronize(), 0);
}

#[test]
fn a_cpu_does_not_reach_device_memory() {
    let _gpu = Gpu::new();
    let memory = DeviceMemory::new();
    // SAFETY: the kernel reads the address if it can, and returns an error otherwise.
    let written = unsafe { libc::write(pipe(), memory.start as *const c_void, 1) };
    assert_eq!((written, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
}

/// The write end; both ends stay open.
fn pipe() -> c_int {
    let mut ends = [-1; 2];
    // SAFETY: two file descriptors are written.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    ends[1]
}

#[test]
fn memory_is_shared_with_another_process() {
    let _gpu = Gpu::new();
    if let Ok(fd) = std::env::var(CHILD_FD) {
        let memory = DeviceMemory::import(fd.parse().unwrap());
        let (stream, found, answer) = (Stream::new(), Pinned::of(0), Pinned::of(2));
        stream.to_host(&found, &memory);
        stream.to_device(&memory, &answer);
        assert_eq!(stream.synchronize(), 0);
        assert!(found.is_all(1));
        return;
    }
    let (memory, stream, one) = (DeviceMemory::new(), Stream::new(), Pinned::of(1));
    stream.to_device(&memory, &one);
    assert_eq!(stream.synchronize(), 0);
    let exported: c_int = made(|out| cu!(memory::cuMemExportToShareableHandle(out, memory.handle, abi::HANDLE_FD, 0)));
    // SAFETY: a system call on numbers. The duplicate stays open across exec.
    let inherited = unsafe { libc::dup(exported) };
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "memory_is_shared_with_another_process"]).env(CHILD_FD, inherited.to_string());
    let ended = child.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    stream.to_host(&one, &memory);
    assert_eq!(stream.synchronize(), 0);
    assert!(one.is_all(2), "the child's bytes");
    // A file descriptor of anything else is refused.
    assert_ne!(cu!(memory::cuMemImportFromShareableHandle(Out::from(&mut 0), pipe() as usize, abi::HANDLE_FD)), 0);
}
