//! Waiting for what other processes do, where nothing tells when it is done.

use std::time::{Duration, Instant};

/// The longest wait: long enough for a busy machine, and less than every watchdog.
const LIMIT: Duration = Duration::from_secs(60);

/// Repeats `holds` until it returns true.
///
/// # Panics
///
/// After 60 s, with `what` was awaited.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "not within {} s: {what}", LIMIT.as_secs());
        pause();
    }
}

/// The pause between two looks. It leaves the processor to others: on Linux 6.18, loops of `sched_yield` keep a process that was killed from ending,
/// for seconds and sometimes minutes.
pub fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}
