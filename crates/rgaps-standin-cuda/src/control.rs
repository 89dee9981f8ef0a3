//! The stand-in's controls for tests: exported C functions, which `Control` finds in the loaded library.

use std::ffi::c_char;
use std::sync::Mutex;

use crate::abi::{Code, In};
use crate::lock::locked;
use crate::state::{LIVE, driver};
use crate::{calls, faults, gate};

/// The answer for an unknown name.
pub const UNKNOWN_NAME: u64 = u64::MAX;

/// Makes the `nth` call of a function from now return `code` and do nothing, 1 being the next; 0 for every call. Code 0 cancels the faults
/// of this function. False if there is no such function.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_standin_fail(name: In<c_char>, nth: u64, code: Code) -> bool {
    let Some(name) = name.text().filter(|name| calls::is_known(name)) else { return false };
    faults::fail(name, nth, code);
    true
}

/// Makes the `nth` operation of any stream from now fail, 1 being the next; each later call with its context returns `code`. Code 0 cancels
/// that.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_standin_fail_later(nth: u64, code: Code) {
    gate::fail_later(nth, code);
}

/// Sets the delay before each operation.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_standin_delay_us(us: u64) {
    gate::set_delay(us);
}

/// Stops all streams before their next operation; returns when copies and writes under way are over.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_standin_hold() {
    gate::hold();
}

/// Resumes all streams.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_standin_go() {
    gate::go();
}

/// Calls of a function since the last reset, failed ones included.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_standin_calls(name: In<c_char>) -> u64 {
    name.text().filter(|name| calls::is_known(name)).map_or(UNKNOWN_NAME, faults::calls)
}

/// Resets the counts of calls. Faults stay.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_standin_reset_calls() {
    faults::reset();
}

/// What each flush of network cards' writes calls.
static AT_FLUSH: Mutex<Option<extern "C" fn()>> = Mutex::new(None);

/// Sets what each flush of network cards' writes calls, before it returns; null for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_standin_at_flush(hook: Option<extern "C" fn()>) {
    *locked(&AT_FLUSH) = hook;
}

pub(crate) fn flushed() {
    let hook = *locked(&AT_FLUSH);
    hook.into_iter().for_each(|hook| hook());
}

/// The number of live objects of a kind: "handles" of device memory, "ranges" of addresses, "mapped_bytes", "allocated_bytes",
/// "registrations", "streams", "events", "contexts" (retains), "orphans" (all streams, events, registrations and stream-ordered memory that
/// ever outlived their context).
///
/// # Safety
/// `what` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_standin_live(what: In<c_char>) -> u64 {
    let Some(what) = what.text().filter(|what| LIVE.contains(what)) else { return UNKNOWN_NAME };
    // Before cuInit there are no objects.
    driver().map_or(0, |driver| driver.live(what).unwrap_or(UNKNOWN_NAME))
}
