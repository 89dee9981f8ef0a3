//! Ctrl-C: a flag that loops check, so that every command ends in order and leaves nothing behind.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a loop may sleep before it checks again.
const LOOK: Duration = Duration::from_millis(100);

/// Set once SIGINT or SIGTERM has arrived.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Makes the signals set the flag instead of ending the process.
    pub fn install() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Self(flag))
    }

    /// Whether the command should end.
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

    /// How long a wait for a message may take before the flag must be checked.
    pub fn patience(&self) -> Duration {
        LOOK
    }
}
