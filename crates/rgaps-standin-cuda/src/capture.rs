//! Streams that are being captured into graphs. There are no graphs here: what is given to such a stream is refused, and so is every call of a
//! thread that has not said that its calls are none of the graphs' business. Either spoils the captures, as with the driver.
//!
//! It is stricter than the driver, which refuses only calls that may wait or allocate, and for captures of mode GLOBAL only.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::abi::{CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, Status};
use crate::guard::locked;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, the last of the modes.
pub(crate) const RELAXED: u32 = 2;
/// What a thread may call whatever is captured.
const HARMLESS: [&str; 7] = [
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuGetErrorName",
];

/// Whether each is spoilt, by the stream's handle.
static CAPTURES: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(0) };
}

/// Sets what captures mean for this thread; returns what they meant before.
pub(crate) fn exchange(mode: u32) -> u32 {
    MODE.replace(mode)
}

/// Begins a capture; false if the stream is captured already.
pub(crate) fn begin(stream: u64) -> bool {
    locked(&CAPTURES).insert(stream, false).is_none()
}

/// Ends it: whether it was spoilt, if there was one.
pub(crate) fn end(stream: u64) -> Option<bool> {
    locked(&CAPTURES).remove(&stream)
}

/// `CUstreamCaptureStatus`: none, under way, spoilt.
pub(crate) fn status(stream: u64, is_null: bool) -> Status<u32> {
    let captures = locked(&CAPTURES);
    match captures.get(&stream) {
        _ if is_null && !captures.is_empty() => Err(CAPTURE_IMPLICIT),
        None => Ok(0),
        Some(false) => Ok(1),
        Some(true) => Ok(2),
    }
}

/// What a call of the driver passes first.
pub(crate) fn check_call(name: &str) -> Status {
    if MODE.get() == RELAXED || HARMLESS.contains(&name) { Ok(()) } else { spoil(|_| true) }
}

/// What work for a stream passes first.
pub(crate) fn check_work(stream: u64) -> Status {
    spoil(|captured| captured == stream)
}

fn spoil(which: impl Fn(u64) -> bool) -> Status {
    let mut captures = locked(&CAPTURES);
    let spoilt = captures.iter_mut().filter(|(stream, _)| which(**stream)).map(|(_, is_spoilt)| *is_spoilt = true);
    if spoilt.count() == 0 { Ok(()) } else { Err(CAPTURE_UNSUPPORTED) }
}
