//! Ctrl-C: a flag that loops look at, so that every command ends in order and leaves nothing behind.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a loop may sleep before it looks again.
const LOOK: Duration = Duration::from_millis(100);

/// Set once SIGINT or SIGTERM has come.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the signals set the flag instead of ending the process.
    pub fn install() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Self(flag))
    }

    /// Whether to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps until `deadline`, less if interrupted.
    pub fn sleep_until(&self, deadline: Instant) {
        while !self.is_set() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// What a wait for a message may take before the flag is looked at.
    pub fn patience(&self) -> Duration {
        LOOK
    }
}
