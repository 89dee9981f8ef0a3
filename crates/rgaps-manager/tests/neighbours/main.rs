//! Terminals, logs, budgets and the runtime directory, with hostile neighbours, long logs and full disks.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod floods;
mod logs;
mod members;
mod places;
mod strangers;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rgaps_testing::{RuntimeDir, Watchdog, programs};

/// How long to wait for something that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// A runtime directory, and so a manager of its own.
struct Host {
    dir: RuntimeDir,
    listen: String,
    _watchdog: Watchdog,
}

impl Host {
    fn new(name: &str) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listen = format!("tcp/127.0.0.1:{free}");
        Self { dir: RuntimeDir::new(name).unwrap(), listen, _watchdog: Watchdog::new(LIMIT * 3) }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A program of the workspace, with this host's directory and without multicast.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(programs::find(name));
        self.dir.apply(&mut command);
        command.env("RGAPSD", programs::find("rgapsd")).env("RGAPS_DEVICE", "host");
        command.env("RGAPS_MULTICAST", "off").env("RGAPS_LISTEN", &self.listen);
        command.env("RGAPS_IDLE_TIMEOUT_MS", "600000").env_remove("RGAPS_LOG").stdin(Stdio::null());
        command
    }

    fn rgaps(&self, arguments: &[&str]) -> Command {
        let mut command = self.program("rgaps");
        command.args(arguments);
        command
    }
}

/// Whether it succeeded, and what it printed.
fn outcome(command: &mut Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.success(), text(stdout), text(stderr))
}

/// Repeats `look` until it finds something.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        rgaps_testing::pause();
    }
}
