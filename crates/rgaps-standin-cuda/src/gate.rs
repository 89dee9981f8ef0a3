//! The steps before an operation runs: the injected delay, the gate that a test can close, and an injected failure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::abi::{Code, Status};
use crate::config::config;
use crate::lock::locked;

struct Gate {
    held: bool,
    /// Operations under way, except those that wait.
    busy: u64,
    /// The number of the operation that fails, counted from now, and its code.
    later: Option<(u64, Code)>,
}

static GATE: Mutex<Gate> = Mutex::new(Gate { held: false, busy: 0, later: None });
static CHANGED: Condvar = Condvar::new();

/// An operation under way; `hold` waits until it is dropped.
pub(crate) struct Pass(());

impl Drop for Pass {
    fn drop(&mut self) {
        locked(&GATE).busy -= 1;
        CHANGED.notify_all();
    }
}

/// Waits until an operation may run; an error if it fails. `check` is the error of its context.
pub(crate) fn pass(check: impl Fn() -> Status) -> Status<Pass> {
    let delay = Duration::from_micros(delay().load(Ordering::Relaxed));
    let gate = locked(&GATE);
    let slept = CHANGED.wait_timeout_while(gate, delay, |_| check().is_ok());
    let (gate, _) = slept.unwrap_or_else(PoisonError::into_inner);
    let opened = CHANGED.wait_while(gate, |gate| gate.held && check().is_ok());
    let mut gate = opened.unwrap_or_else(PoisonError::into_inner);
    check()?;
    match gate.later.take() {
        Some((1, code)) => return Err(code),
        later => gate.later = later.map(|(left, code)| (left - 1, code)),
    }
    gate.busy += 1;
    Ok(Pass(()))
}

/// Wakes waiting workers to check their context again.
pub(crate) fn wake() {
    let _gate = locked(&GATE);
    CHANGED.notify_all();
}

/// Stops all streams before their next operation; returns when copies and writes under way are over.
pub(crate) fn hold() {
    let mut gate = locked(&GATE);
    gate.held = true;
    while gate.busy > 0 {
        gate = CHANGED.wait(gate).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Resumes all streams.
pub(crate) fn go() {
    locked(&GATE).held = false;
    CHANGED.notify_all();
}

/// Makes the `nth` operation from now fail, 1 being the next of any stream; code 0 cancels that.
pub(crate) fn fail_later(nth: u64, code: Code) {
    locked(&GATE).later = (code != 0).then_some((nth.max(1), code));
}

/// Sets the delay before each operation.
pub(crate) fn set_delay(us: u64) {
    delay().store(us, Ordering::Relaxed);
}

fn delay() -> &'static AtomicU64 {
    static DELAY_US: OnceLock<AtomicU64> = OnceLock::new();
    DELAY_US.get_or_init(|| AtomicU64::new(config().delay_us))
}
