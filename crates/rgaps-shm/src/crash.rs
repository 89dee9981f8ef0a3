//! Named crash points, at which the kill -9 tests stop or kill a process. They exist only in builds with debug assertions.
//!
//! `RGAPS_CRASH_POINT=name[:count][:kill|stop]` makes the process kill itself (SIGKILL, the default) or stop itself (SIGSTOP) when it passes the
//! point for the `count`-th time.

/// Every point, so that a test can try all of them.
pub const POINTS: &[&str] = &[
    "loan.entry",
    "loan.block",
    "publish.described",
    "publish.complete",
    "publish.reserved",
    "publish.woken",
    "reclaim.won",
    "take.held",
    "release.done",
    "link.begin",
    "link.chunk",
    "link.sent",
    "arrival.begin",
    "arrival.granted",
    "arrival.chunk",
    "arrival.published",
];

/// Passes a point.
#[inline]
pub fn point(name: &'static str) {
    #[cfg(debug_assertions)]
    armed::pass(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Armed {
        name: String,
        remaining: AtomicU32,
        stop: bool,
    }

    pub(super) fn pass(name: &'static str) {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let Some(armed) = ARMED.get_or_init(|| parse(&std::env::var("RGAPS_CRASH_POINT").ok()?)) else { return };
        if armed.name == name && armed.remaining.fetch_sub(1, Ordering::Relaxed) == 1 {
            end(armed.stop);
        }
    }

    fn parse(text: &str) -> Option<Armed> {
        let mut parts = text.split(':');
        let name = parts.next()?.to_owned();
        let (mut count, mut stop) = (1, false);
        for part in parts {
            match part {
                "stop" => stop = true,
                "kill" => stop = false,
                number => count = number.parse().ok()?,
            }
        }
        Some(Armed { name, remaining: AtomicU32::new(count), stop })
    }

    fn end(stop: bool) {
        let signal = if stop { rgaps_os::pidfd::Signal::STOP } else { rgaps_os::pidfd::Signal::KILL };
        let _ = rgaps_os::pidfd::signal_here(signal);
    }
}
