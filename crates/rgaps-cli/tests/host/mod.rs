//! A host for a test of commands.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rgaps_testing::{RuntimeDir, Watchdog};

/// A runtime directory for one test, and so a manager of its own.
pub struct Host {
    pub dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Host {
    pub fn new(name: &str) -> Self {
        Self { dir: RuntimeDir::new(name).unwrap(), _watchdog: Watchdog::new(Duration::from_secs(120)) }
    }

    /// Runs `rgaps`; a manager that it starts stays until the test ends.
    pub fn rgaps(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps"));
        self.dir.apply(&mut command);
        command.env("RGAPSD", rgaps_testing::programs::find("rgapsd"));
        command.env("RGAPS_NETWORK", "loopback");
        command.env("RGAPS_IDLE_TIMEOUT_MS", "600000").env_remove("RGAPS_LOG");
        command.args(arguments).stdin(Stdio::null());
        command
    }
}

/// Whether a command succeeded, its standard output, its standard error.
pub fn outcome(command: &mut Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}
