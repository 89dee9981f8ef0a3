//! A watchdog: if a test hangs, it ends the test process and its children, and names the test.

use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Exit status of a process that its watchdog ended.
pub const EXIT_STATUS: i32 = 86;

/// A running watchdog. Dropping it stops it.
#[derive(Debug)]
pub struct Watchdog {
    // Nothing is sent: dropping it ends the thread.
    alive: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watchdog {
    /// After `limit`, kills the children of this process and ends it with `EXIT_STATUS`, unless it is dropped before. Call it on the test's own
    /// thread,
    /// whose name is the test's.
    pub fn new(limit: Duration) -> Self {
        let test = thread::current().name().unwrap_or("unnamed").to_owned();
        let (alive, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = writeln!(std::io::stderr(), "watchdog: {test} has not ended after {} s", limit.as_secs_f64());
                kill_children();
                std::process::exit(EXIT_STATUS);
            }
        });
        Self { alive: Some(alive), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            // The thread ends at once, since its channel is closed.
            let _ = thread.join();
        }
    }
}

/// Kills all children, since the guards of the hanging test will not be dropped. Children that cannot be read or killed have ended.
fn kill_children() {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Hangs, but only when the test below runs it.
    #[test]
    fn hangs_when_asked_to() {
        if std::env::var_os("WATCHDOG_TEST_HANGS").is_none() {
            return;
        }
        let _watchdog = Watchdog::new(Duration::from_millis(50));
        // This child keeps the output open: if it outlived the watchdog, the test below would hang.
        let _child = crate::child::Child::spawn(Command::new("cat").stdin(Stdio::piped())).unwrap();
        loop {
            thread::park();
        }
    }

    #[test]
    fn a_hanging_test_is_ended_and_named() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "watchdog::tests::hangs_when_asked_to"])
            .env("WATCHDOG_TEST_HANGS", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(EXIT_STATUS));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("watchdog: watchdog::tests::hangs_when_asked_to"), "{text}");
    }
}
