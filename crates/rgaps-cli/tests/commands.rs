//! What commands say, and how they end: each run as a user would run it, on a host of its own.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rgaps_testing::{RuntimeDir, Watchdog};

/// A runtime directory, and so a manager, of its own.
struct Host {
    dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Host {
    fn new(name: &str) -> Self {
        Self { dir: RuntimeDir::new(name).unwrap(), _watchdog: Watchdog::new(Duration::from_secs(120)) }
    }

    /// `rgaps`; the manager that it may start stays until the test ends.
    fn rgaps(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps"));
        self.dir.apply(&mut command);
        command.env("RGAPSD", rgaps_testing::programs::find("rgapsd"));
        command.env("RGAPS_MULTICAST", "off").env("RGAPS_LISTEN", "tcp/127.0.0.1:0");
        command.env("RGAPS_IDLE_TIMEOUT_MS", "600000").env_remove("RGAPS_LOG");
        command.args(arguments).stdin(Stdio::null());
        command
    }
}

/// How it ended, what it printed, what it complained of.
fn outcome(command: &mut Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn what_a_running_manager_was_not_started_with_is_said_once_and_bad_values_are_refused() {
    let host = Host::new("given");
    let list = || host.rgaps(&["topic", "list"]);
    let (good, _, errors) = outcome(&mut list());
    assert!(good && errors.is_empty(), "{errors}");
    let (good, _, errors) =
        outcome(list().env("RGAPS_PEERS", "tcp/127.0.0.9:7447").env("RGAPS_RING_BYTES", "67108864"));
    assert!(good, "{errors}");
    let said = "peers = [\"tcp/127.0.0.9:7447\"] (environment; the manager has [])";
    assert_eq!((errors.lines().count(), errors.matches(said).count()), (1, 1), "{errors}");
    assert!(!errors.contains("ring_bytes"), "{errors}");
    for arguments in [&["topic", "list"][..], &["sub", "a"], &["pub", "a", "--input", "nothing"], &["demo"]] {
        let (good, _, errors) = outcome(host.rgaps(arguments).env("RGAPS_PEERS", "junk"));
        assert!(!good && errors.starts_with("rgaps: environment: peers = junk: as tcp/10.0.0.2:7447"), "{errors}");
    }
}

#[test]
fn a_demo_of_one_frame_reads_it_everywhere_and_leaves_nothing_unread() {
    let host = Host::new("demo");
    let out = host.dir.path().join("out");
    let mut demo = host.rgaps(&["demo", "--frames", "1", "--local", "1", "--remote", "1", "--loopback", "--out"]);
    let (good, said, errors) = outcome(demo.arg(&out));
    // The publisher complains of what is unread when it gives up.
    assert!(good && errors.is_empty(), "{said}{errors}");
    assert!(said.contains("frames 1 subscribers 2 lost 0 mismatched 0 copies/subscriber 0"), "{said}");
}
