//! Streams and events of a device: our own, or borrowed from the caller.

use std::any::Any;
use std::ffi::{c_uint, c_void};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUevent, CUstream};

use rgaps_os::Mapping;

use super::device::{Device, Entered};
use super::driver::DriverError;
use super::memory::Registration;
use crate::error::DeviceError;
use crate::stream::{Event, EventBody, StreamBody, StreamMemory, StreamWord};

/// CU_STREAM_NON_BLOCKING: no order with the null stream.
const NON_BLOCKING: c_uint = 1;
/// CU_EVENT_DISABLE_TIMING: cheaper to record.
const NO_TIMING: c_uint = 2;
/// Most events that a stream keeps for reuse.
const SPARE_EVENTS_MAX: usize = 64;
/// The driver has no wait with a time-out, so a waiting thread polls: for `SPIN` without sleeping, about the time of a chunk, then with
/// pauses that double from `LOOK_MIN` to `LOOK_MAX`.
const SPIN: Duration = Duration::from_micros(50);
const LOOK_MIN: Duration = Duration::from_micros(20);
const LOOK_MAX: Duration = Duration::from_millis(1);

/// A stream of the device.
#[derive(Debug)]
pub(crate) struct CudaStream {
    device: Arc<Device>,
    handle: CUstream,
    /// Whether `drop` destroys it.
    is_ours: bool,
    /// Whether the caller has the handle too, and so may capture the stream.
    is_shared: AtomicBool,
    events: Arc<Events>,
}

// SAFETY: stream handles may be used from any thread; the driver locks them.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// Creates a stream.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, DriverError> {
        let _entered = device.enter()?;
        let mut handle: CUstream = std::ptr::null_mut();
        // SAFETY: stores one handle; destroyed in `drop`.
        unsafe { device.driver().create_stream(&raw mut handle, NON_BLOCKING) }?;
        Ok(Self::from_handle(device, handle, true))
    }

    /// Wraps the caller's stream.
    ///
    /// # Safety
    /// The handle is a stream of this device's primary context, and outlives this and all its events.
    pub(crate) unsafe fn borrowed(device: &Arc<Device>, handle: CUstream) -> Self {
        Self::from_handle(device, handle, false)
    }

    fn from_handle(device: &Arc<Device>, handle: CUstream, is_ours: bool) -> Self {
        let is_shared = AtomicBool::new(!is_ours);
        Self { device: device.clone(), handle, is_ours, is_shared, events: Events::of(device) }
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.handle
    }

    /// The handle, for the caller's own work.
    pub(crate) fn share_handle(&self) -> CUstream {
        self.is_shared.store(true, Ordering::Relaxed);
        self.handle
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Enters the device to enqueue work. An error while the caller captures the stream into a graph: messages cannot be part of a graph.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DriverError> {
        let entered = self.device.enter()?;
        if self.is_shared.load(Ordering::Relaxed) {
            // SAFETY: ours, or borrowed while this is used; of this context.
            unsafe { self.device.driver().check_capture(self.handle) }?;
        }
        Ok(entered)
    }

    fn try_record(&self) -> Result<CudaEvent, DriverError> {
        let _entered = self.enter()?;
        let event = self.events.take()?;
        // SAFETY: both are alive and of one context.
        match unsafe { self.device.driver().record_event(event.0, self.handle) } {
            Ok(()) => Ok(CudaEvent { handle: event, events: self.events.clone() }),
            Err(error) => {
                self.events.keep(event);
                Err(error)
            }
        }
    }

    fn wait_for(&self, event: &CudaEvent) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        // SAFETY: both are alive.
        unsafe { self.device.driver().stream_wait_event(self.handle, event.handle.0, 0) }
    }

    fn is_done(&self) -> Result<bool, DriverError> {
        let _entered = self.enter()?;
        // SAFETY: alive until `drop`, or borrowed until then.
        unsafe { self.device.driver().is_done(self.handle) }
    }
}

impl StreamBody for CudaStream {
    fn check(&self) -> Result<(), DeviceError> {
        if self.is_shared.load(Ordering::Relaxed) { Ok(self.enter().map(drop)?) } else { Ok(()) }
    }

    fn record(self: Arc<Self>) -> Arc<dyn EventBody> {
        match self.try_record() {
            Ok(event) => Arc::new(event),
            Err(refusal) => Arc::new(Unmarked { stream: self, refusal, mark: Mutex::new(Mark::None) }),
        }
    }

    fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        let Some(body) = event.body() else { return Ok(()) };
        if let Some(event) = body.as_any().downcast_ref::<CudaEvent>() {
            return Ok(self.wait_for(event)?);
        }
        match body.as_any().downcast_ref::<Unmarked>() {
            Some(unmarked) => Ok(unmarked.precede(self)?),
            // An event of another backend: this thread waits briefly.
            None => body.wait(Duration::from_secs(1)),
        }
    }

    fn write_value(&self, word: &StreamWord<'_>, value: u32) -> Result<(), DeviceError> {
        let at = place(word)?;
        let driver = self.device.driver();
        let _entered = self.enter()?;
        if self.device.properties().has_stream_words {
            // SAFETY: `place` found it inside registered memory, which its owner keeps until this write is done.
            return Ok(unsafe { driver.write_value(self.handle, at.1, value) }?);
        }
        let later = Box::into_raw(Box::new(LaterWrite { mapping: at.0.mapping().clone(), offset: word.offset, value }));
        // SAFETY: the function frees its argument; if the driver never calls it, the argument is leaked.
        let launched = unsafe { driver.host_function(self.handle, write_later, later.cast()) };
        if launched.is_err() {
            // SAFETY: the call was refused, so we still own it.
            drop(unsafe { Box::from_raw(later) });
        }
        Ok(launched?)
    }

    fn can_wait_for(&self, word: &StreamWord<'_>) -> bool {
        self.device.can_wait_for(word)
    }

    fn wait_value(&self, word: &StreamWord<'_>, value: u32, timeout: Duration) -> Result<(), DeviceError> {
        if !self.device.can_wait_for(word) {
            return word.wait(value, timeout);
        }
        let at = place(word)?;
        let _entered = self.enter()?;
        // SAFETY: `place` found it inside registered memory, which its owner keeps until this wait is done.
        Ok(unsafe { self.device.driver().wait_value(self.handle, at.1, value) }?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: our own, destroyed once; pending work still runs.
        let _ = unsafe { self.device.driver().destroy_stream(self.handle) };
    }
}

/// Checks a word, and returns its registration and its device address.
fn place<'a>(word: &'a StreamWord<'_>) -> Result<(&'a Registration, u64), DeviceError> {
    word.check()?;
    let registration = word.memory.as_any().downcast_ref::<Registration>();
    let registration =
        registration.ok_or_else(|| DeviceError::Failed("the word is not registered with this device".to_owned()))?;
    Ok((registration, registration.device_address() + word.offset))
}

impl Device {
    /// Whether its streams can wait for the word; else the CPU waits.
    pub(crate) fn can_wait_for(&self, word: &StreamWord<'_>) -> bool {
        self.properties().has_stream_words && !word.memory.as_any().is::<Unregistered>()
    }
}

/// Words that this process may only read, on a device that cannot register read-only memory.
#[derive(Debug)]
pub(crate) struct Unregistered(pub(crate) Arc<Mapping>);

impl StreamMemory for Unregistered {
    fn mapping(&self) -> &Mapping {
        &self.0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl StreamMemory for Registration {
    fn mapping(&self) -> &Mapping {
        self.mapping()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The argument of `write_later`. It holds the mapping and not its registration, because a host function may not call the driver, not even
/// by a drop.
struct LaterWrite {
    mapping: Arc<Mapping>,
    offset: u64,
    value: u32,
}

/// The host function that a stream without stream memory operations calls to write a word.
unsafe extern "C" fn write_later(argument: *mut c_void) {
    // SAFETY: made by `write_value`, called once.
    let later = unsafe { Box::from_raw(argument.cast::<LaterWrite>()) };
    if let Ok(word) = later.mapping.atomic_u32(later.offset) {
        word.store(later.value, Ordering::Release);
    }
}

#[derive(Clone, Copy, Debug)]
struct EventHandle(CUevent);

// SAFETY: event handles may be used from any thread.
unsafe impl Send for EventHandle {}
// SAFETY: as above.
unsafe impl Sync for EventHandle {}

/// Events for reuse: creating one takes the driver longer than recording it.
#[derive(Debug)]
struct Events {
    device: Arc<Device>,
    spare: Mutex<Vec<EventHandle>>,
}

impl Events {
    fn of(device: &Arc<Device>) -> Arc<Self> {
        Arc::new(Self { device: device.clone(), spare: Mutex::default() })
    }

    /// The caller has entered the context.
    fn take(&self) -> Result<EventHandle, DriverError> {
        if let Some(spare) = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(spare);
        }
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: stores one handle; destroyed by `destroy`.
        unsafe { self.device.driver().create_event(&raw mut event, NO_TIMING) }?;
        Ok(EventHandle(event))
    }

    fn keep(&self, event: EventHandle) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_EVENTS_MAX {
            return spare.push(event);
        }
        drop(spare);
        self.destroy(event);
    }

    fn destroy(&self, event: EventHandle) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: our own, destroyed once, and no longer queried; streams that wait for it are not affected.
        let _ = unsafe { self.device.driver().destroy_event(event.0) };
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in std::mem::take(self.spare.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            self.destroy(event);
        }
    }
}

/// A recorded event.
#[derive(Debug)]
struct CudaEvent {
    handle: EventHandle,
    events: Arc<Events>,
}

impl EventBody for CudaEvent {
    fn query(&self) -> Result<bool, DeviceError> {
        let device = &self.events.device;
        let _entered = device.enter()?;
        // SAFETY: alive until `drop`.
        Ok(unsafe { device.driver().is_there(self.handle.0) }?)
    }

    fn wait(&self, timeout: Duration) -> Result<(), DeviceError> {
        looking(timeout, || self.query())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // Reuse is safe: a stream that waits for this record keeps waiting for it, even if the event is recorded again.
        self.events.keep(self.handle);
    }
}

/// Polls until `is_so` returns true.
fn looking(timeout: Duration, is_so: impl Fn() -> Result<bool, DeviceError>) -> Result<(), DeviceError> {
    let start = Instant::now();
    let mut look = LOOK_MIN;
    while !is_so()? {
        let waited = start.elapsed();
        let left = timeout.saturating_sub(waited);
        if left.is_zero() {
            return Err(DeviceError::TimedOut(timeout));
        }
        if waited < SPIN {
            std::thread::yield_now();
            continue;
        }
        std::thread::sleep(look.min(left));
        look = (look * 2).min(LOOK_MAX);
    }
    Ok(())
}

/// Why the driver refused to record an event; `None` if it was recorded.
pub(crate) fn refusal(event: &Event) -> Option<&DriverError> {
    event.body()?.as_any().downcast_ref::<Unmarked>().map(|unmarked| &unmarked.refusal)
}

/// An event that the driver refused to record. Each query tries to record a later event instead; if that fails too, the event counts as
/// reached when the stream has no pending work.
///
/// If a capture caused the refusal, the work itself has not failed, and the event is reached normally. After any other refusal, the query
/// that finds the work done returns the refusal as its error.
#[derive(Debug)]
struct Unmarked {
    stream: Arc<CudaStream>,
    refusal: DriverError,
    mark: Mutex<Mark>,
}

#[derive(Debug)]
enum Mark {
    None,
    Later(CudaEvent),
    /// Reached: the stream is no longer queried.
    Over,
}

impl Unmarked {
    fn look(&self) -> MutexGuard<'_, Mark> {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*mark, Mark::None)
            && let Ok(event) = self.stream.try_record()
        {
            *mark = Mark::Later(event);
        }
        mark
    }

    /// Makes later work of another stream wait for this event.
    fn precede(&self, other: &CudaStream) -> Result<(), DriverError> {
        // The mark keeps the event until a query finds it reached.
        match &*self.look() {
            Mark::Later(event) => other.wait_for(event),
            Mark::Over if self.refusal.is_of_capture() => Ok(()),
            Mark::Over | Mark::None => Err(self.refusal.clone()),
        }
    }
}

impl EventBody for Unmarked {
    fn query(&self) -> Result<bool, DeviceError> {
        let is_of_capture = self.refusal.is_of_capture();
        let mut mark = self.look();
        let is_over = match &*mark {
            Mark::Over => true,
            Mark::Later(event) => event.query()?,
            Mark::None => match self.stream.is_done() {
                Ok(is_done) => is_done,
                Err(asked) if asked.is_of_capture() => false,
                Err(asked) if is_of_capture => return Err(asked.into()),
                // The stream cannot be queried either: its context has failed.
                Err(_) => true,
            },
        };
        if is_over {
            *mark = Mark::Over;
        }
        if is_over && !is_of_capture { Err(self.refusal.clone().into()) } else { Ok(is_over) }
    }

    fn wait(&self, timeout: Duration) -> Result<(), DeviceError> {
        looking(timeout, || self.query())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
