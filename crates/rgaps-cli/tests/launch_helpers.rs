//! The commands that launch files use: `rgaps ready`, `rgaps two-hosts` and `rgaps sub --expect`, without ROS.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rgaps_control::local::Connection;
use rgaps_testing::{Child, Ended, RuntimeDir, Watchdog, programs};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

fn rgaps() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps"));
    command.stdin(Stdio::null()).env("RGAPSD", programs::find("rgapsd")).env_remove("RGAPS_LOG");
    command
}

/// `rgaps two-hosts` on loopback addresses, which need no root.
struct TwoHosts {
    child: Child,
    hosts: Vec<Value>,
}

impl TwoHosts {
    fn new() -> Self {
        let mut command = rgaps();
        command.args(["two-hosts", "--loopback"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Child::spawn(&mut command).unwrap();
        let mut line = String::new();
        BufReader::new(child.std().stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        assert!(said["about"].as_str().unwrap().contains("loopback"), "{said}");
        Self { child, hosts: said["hosts"].as_array().unwrap().clone() }
    }

    /// A program of the project on one of the hosts.
    fn command(&self, host: usize, program: &str) -> Command {
        self.on_host(host, Command::new(programs::find(program)))
    }

    /// A command on one of the hosts, with the prefix and environment that `two-hosts` gave.
    fn on_host(&self, host: usize, mut command: Command) -> Command {
        assert_eq!(self.hosts[host]["prefix"], serde_json::json!([]), "loopback addresses need no namespace");
        for pair in self.hosts[host]["environment"].as_array().unwrap() {
            command.env(pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).env("RGAPS_AUTOSTART", "0");
        command
    }

    fn dir(&self, host: usize) -> PathBuf {
        let environment = self.hosts[host]["environment"].as_array().unwrap();
        let pair = environment.iter().find(|pair| pair[0] == "RGAPS_RUNTIME_DIR").unwrap();
        PathBuf::from(pair[1].as_str().unwrap())
    }

    /// Starts a manager that serves a host.
    fn manager(&self, host: usize) -> Child {
        let manager = Child::spawn(self.command(host, "rgapsd").args(["--set", "idle_timeout_ms=600000"])).unwrap();
        let ready = self.command(host, "rgaps").args(["ready", "--timeout", "60"]).status().unwrap();
        assert!(ready.success());
        manager
    }
}

fn has_ended(child: &mut Child) -> bool {
    matches!(child.wait_within(LIMIT).unwrap(), Ended::Exited(_))
}

fn await_gone(path: &Path) {
    let deadline = Instant::now() + LIMIT;
    while path.exists() {
        assert!(Instant::now() < deadline, "{} is still there", path.display());
        std::thread::sleep(LOOK);
    }
}

#[test]
fn a_host_is_ready_when_any_manager_answers() {
    let _watchdog = Watchdog::new(2 * LIMIT);
    let dir = RuntimeDir::new("ready").unwrap();
    let ready = |timeout: &str| {
        let mut command = rgaps();
        dir.apply(&mut command);
        let output = command.args(["--json", "ready", "--timeout", timeout]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (good, said, errors) = ready("0");
    assert!(!good && said.is_empty() && errors.contains("no rgapsd runs in"), "{errors}");
    let mut manager = Command::new(programs::find("rgapsd"));
    dir.apply(&mut manager);
    manager.env("RGAPS_NETWORK", "local").stderr(Stdio::null());
    let manager = Child::spawn(&mut manager).unwrap();
    let (good, said, errors) = ready("60");
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}{errors}"));
    assert!(good && said["pid"] == manager.id(), "{said}");
    let gone = |timeout: &str| {
        let mut command = rgaps();
        dir.apply(&mut command);
        command.args(["ready", "--gone", "--timeout", timeout]).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(!gone("0"));
    // The connections that a stopped manager has not taken fill its queue, until it takes no more; it is not gone.
    manager.stop().unwrap();
    let socket = dir.path().join("rgapsd.sock");
    let waiting: Vec<_> = std::iter::from_fn(|| Connection::connect(&socket).ok()).collect();
    assert!(!waiting.is_empty() && !gone("0"));
    manager.go_on().unwrap();
    drop(waiting);
    manager.terminate().unwrap();
    assert!(gone("60"));
}

#[test]
fn a_manager_reports_peers_that_do_not_answer_and_no_others() {
    let _watchdog = Watchdog::new(3 * LIMIT);
    // The log of an idle manager, with a peer address where another manager listens, or none does; both wait long enough.
    let said = |peer_listens: bool, peer_timeout_ms: u32| {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("tcp/127.0.0.1:{port}");
        let manager = |dir: &RuntimeDir, settings: &[&str]| {
            let mut command = Command::new(programs::find("rgapsd"));
            dir.apply(&mut command);
            command.env("RGAPS_NETWORK", "loopback").env_remove("RGAPS_LOG");
            command.args(settings.iter().flat_map(|setting| ["--set", setting])).stderr(Stdio::piped());
            command
        };
        let dirs = [RuntimeDir::new("peer").unwrap(), RuntimeDir::new("peer").unwrap()];
        let listen = format!("listen={address}");
        let listener = peer_listens.then(|| {
            let listener = Child::spawn(manager(&dirs[0], &[&listen, "idle_timeout_ms=600000"]).stderr(Stdio::null()));
            let mut ready = rgaps();
            dirs[0].apply(&mut ready);
            assert!(ready.args(["ready", "--timeout", "60"]).status().unwrap().success());
            listener.unwrap()
        });
        let timeouts = [("peer", peer_timeout_ms), ("idle", peer_timeout_ms + 2000)];
        let [peer_timeout, idle_timeout] = timeouts.map(|(what, ms)| format!("{what}_timeout_ms={ms}"));
        let settings = ["listen=tcp/127.0.0.1:0", &format!("peers={address}"), &peer_timeout, &idle_timeout];
        let output = manager(&dirs[1], &settings).output().unwrap();
        drop(listener);
        (address, String::from_utf8(output.stderr).unwrap())
    };
    let (address, alone) = said(false, 1000);
    assert!(alone.contains(&format!("no host has answered yet at {address}")), "{alone}");
    let (_, together) = said(true, 10_000);
    assert!(together.contains("a host has appeared") && !together.contains("no host has answered"), "{together}");
}

#[test]
fn two_hosts_end_with_their_input_and_so_do_their_processes() {
    let _watchdog = Watchdog::new(3 * LIMIT);
    let mut two = TwoHosts::new();
    let dirs = [two.dir(0), two.dir(1)];
    let mut managers = [two.manager(0), two.manager(1)];
    // It is stopped, so it cannot react to a request to end.
    let mut stopped = Child::spawn(two.command(1, "rgaps").args(["sub", "a", "--type", "bytes"])).unwrap();
    stopped.stop().unwrap();
    drop(two.child.std().stdin.take());
    assert!(has_ended(&mut two.child) && managers.iter_mut().all(has_ended) && has_ended(&mut stopped));
    assert!(!dirs.iter().any(|dir| dir.exists()));
}

#[test]
fn two_hosts_that_are_told_to_end_give_their_processes_time_to_end() {
    let _watchdog = Watchdog::new(3 * LIMIT);
    let mut two = TwoHosts::new();
    // Like a recorder that writes what it has; the launch has told it to end, so nobody else must.
    let mut slow = Child::spawn(two.on_host(1, Command::new("sh")).args(["-c", "sleep 5; exit 7"])).unwrap();
    two.child.terminate().unwrap();
    assert_eq!(slow.std().wait().unwrap().code(), Some(7), "it was ended");
    assert!(has_ended(&mut two.child) && !two.dir(1).exists());
}

#[test]
fn two_hosts_removes_what_a_killed_one_left_but_not_what_another_holds() {
    let _watchdog = Watchdog::new(3 * LIMIT);
    let (mut killed, held) = (TwoHosts::new(), TwoHosts::new());
    let mut manager = killed.manager(0);
    killed.child.kill().unwrap();
    assert!(killed.dir(0).exists());
    let next = TwoHosts::new();
    assert!(has_ended(&mut manager));
    // Another test's `two-hosts` may have removed it first.
    await_gone(&killed.dir(0));
    await_gone(&killed.dir(1));
    assert!(held.dir(0).exists() && next.dir(0).exists());
}

#[test]
fn messages_are_compared_with_the_published_files_and_another_is_a_mismatch() {
    let _watchdog = Watchdog::new(2 * LIMIT);
    let dir = RuntimeDir::new("expect").unwrap();
    let example = |file: &str| format!("{}/../../examples/data/{file}", env!("CARGO_MANIFEST_DIR"));
    let run = |arguments: &[&str]| {
        let mut command = rgaps();
        dir.apply(&mut command);
        command.env("RGAPS_NETWORK", "local").args(arguments);
        command
    };
    // A folder: its pictures in turn.
    let input = example("");
    let mut publish = run(&[
        "pub",
        "camera",
        "--input",
        &input,
        "--rate",
        "200",
        "--loop",
        "--wait-for",
        "1",
        "--exhaustion",
        "drop_oldest",
    ]);
    let _publisher = Child::spawn(publish.stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
    let subscribe = |expected: &str| {
        let arguments = ["--json", "sub", "camera", "--type", "image", "--count", "12", "--expect", expected];
        let output = run(&arguments).output().unwrap();
        let said = serde_json::from_slice::<Value>(&output.stdout).ok();
        (output.status.success(), said, String::from_utf8(output.stderr).unwrap())
    };
    let (good, said, errors) = subscribe(&input);
    assert!(good && said.unwrap()["mismatched"] == 0, "{errors}");
    let (good, said, errors) = subscribe(&example("rocket.jpg"));
    let mismatched = said.unwrap()["mismatched"].as_u64().unwrap();
    assert!(!good && (1..12).contains(&mismatched) && errors.contains("were wrong or missing"), "{mismatched}{errors}");
    let (good, said, errors) = subscribe(&example("ramp.npy"));
    assert!(!good && said.is_none() && errors.contains("holds nothing of type rgaps/Image"), "{errors}");
}
