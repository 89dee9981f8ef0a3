//! Stream captures. There are no graphs here: work for a captured stream is refused, and so is, during a capture, every driver call of a
//! thread whose capture mode is not RELAXED. Either invalidates the capture, like with the driver.
//!
//! This is stricter than the driver, which refuses only calls that may wait or allocate, and only for captures of mode GLOBAL.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::abi::{CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, Status};
use crate::lock::locked;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, the last of the modes.
pub(crate) const RELAXED: u32 = 2;
/// Calls that are allowed during a capture.
const HARMLESS: [&str; 7] = [
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuGetErrorName",
];

/// Captures by the stream's handle, and whether each is invalidated.
static CAPTURES: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(0) };
}

/// Sets this thread's capture mode; returns the previous one.
pub(crate) fn exchange(mode: u32) -> u32 {
    MODE.replace(mode)
}

/// Begins a capture; false if the stream is already being captured.
pub(crate) fn begin(stream: u64) -> bool {
    locked(&CAPTURES).insert(stream, false).is_none()
}

/// Ends a capture; returns whether it was invalidated, or `None` if there was none.
pub(crate) fn end(stream: u64) -> Option<bool> {
    locked(&CAPTURES).remove(&stream)
}

/// `CUstreamCaptureStatus`: none, active, invalidated.
pub(crate) fn status(stream: u64, is_null: bool) -> Status<u32> {
    let captures = locked(&CAPTURES);
    match captures.get(&stream) {
        _ if is_null && !captures.is_empty() => Err(CAPTURE_IMPLICIT),
        None => Ok(0),
        Some(false) => Ok(1),
        Some(true) => Ok(2),
    }
}

/// Checks a driver call against the captures.
pub(crate) fn check_call(name: &str) -> Status {
    if MODE.get() == RELAXED || HARMLESS.contains(&name) { Ok(()) } else { spoil(|_| true) }
}

/// Checks work for a stream against the captures.
pub(crate) fn check_work(stream: u64) -> Status {
    spoil(|captured| captured == stream)
}

fn spoil(which: impl Fn(u64) -> bool) -> Status {
    let mut captures = locked(&CAPTURES);
    let spoilt = captures.iter_mut().filter(|(stream, _)| which(**stream)).map(|(_, is_spoilt)| *is_spoilt = true);
    if spoilt.count() == 0 { Ok(()) } else { Err(CAPTURE_UNSUPPORTED) }
}
