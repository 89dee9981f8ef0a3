//! The error of a command if the manager that it starts does not come up.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use host::{Host, outcome};
use rgaps_control::RuntimeDir;
use rgaps_testing::{Child, Ended};

const LIMIT: Duration = Duration::from_secs(60);

/// A host with the stand-in for libcuda and this device in the configuration.
fn on(host: &Host, device: &str, arguments: &[&str]) -> Command {
    let mut command = host.rgaps(arguments);
    command.env("RGAPS_DEVICE", device).env("LD_LIBRARY_PATH", host.dir.path());
    command
}

/// A script that replaces rgapsd.
fn script(host: &Host, text: &str) -> PathBuf {
    let path = host.dir.path().join("instead-of-rgapsd");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn a_manager_without_its_device_fails_at_once_and_every_client_is_told_why() {
    let host = Host::new("no-device");
    rgaps_standin_cuda::link_into(host.dir.path()).unwrap();
    let ramp = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/ramp.npy");
    let commands = [
        &["pub", "a", "--input", ramp][..],
        &["sub", "a", "--type", "tensor", "--count", "1"],
        &["sub", "a", "--count", "1"],
        &["topic", "list"],
    ];
    // An older text in the log is not taken for the reason.
    std::fs::write(host.dir.path().join("rgapsd.log"), "rgapsd: an old reason\n").unwrap();
    for (device, reason) in [
        ("cuda:99", "device cuda:99 is not available: there is no device 99"),
        ("cuda:GPU-00000000-0000-0000-0000-000000000009", "is not among the 1 that this process sees"),
    ] {
        // All at once: each waits for its turn to start a manager, and gets the same reason.
        let start = |arguments: &&[&str]| {
            let mut command = on(&host, device, arguments);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let children: Vec<_> = commands.iter().map(start).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            let (said, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
            assert!(!output.status.success() && said.is_empty(), "{said}{errors}");
            assert!(
                errors.starts_with("rgaps: rgapsd did not start: device cuda:") && errors.contains(reason),
                "{errors}"
            );
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }
    // Nothing of the failures stands in the way of the next one.
    let (good, _, errors) = outcome(&mut on(&host, "host", &["topic", "list"]));
    assert!(good && errors.is_empty(), "{errors}");
}

#[test]
fn a_manager_that_dies_before_it_listens_is_reported_with_its_log() {
    let host = Host::new("dies");
    std::fs::write(host.dir.path().join("rgapsd.log"), "rgapsd: an old reason\n").unwrap();
    let list = |program: &str| outcome(host.rgaps(&["topic", "list"]).env("RGAPSD", script(&host, program)));
    let (good, _, errors) = list("echo 'starting'; echo 'no such library' >&2; exit 127");
    assert!(!good && errors.contains("instead-of-rgapsd ended before it listened; its log, "), "{errors}");
    assert!(errors.trim_end().ends_with("ends with: no such library"), "{errors}");
    let (good, _, errors) = list("kill -9 $$");
    assert!(!good && errors.trim_end().ends_with("ends with: (nothing)"), "{errors}");
}

#[test]
fn a_client_that_finds_the_directory_taken_waits_for_its_manager() {
    let host = Host::new("taken");
    // Another manager that holds the directory, but does not listen yet, or no longer.
    let lock = RuntimeDir::open(host.dir.path()).unwrap().lock().unwrap();
    let mut list = host.rgaps(&["topic", "list"]);
    let mut list = Child::spawn(list.stdout(Stdio::null())).unwrap();
    let log = host.dir.path().join("rgapsd.log");
    let deadline = Instant::now() + LIMIT;
    while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("a manager already runs")) {
        assert!(Instant::now() < deadline, "no manager was started");
        rgaps_testing::pause();
    }
    assert_eq!(list.wait_within(Duration::ZERO).unwrap(), Ended::StillRunning);
    drop(lock);
    assert!(matches!(list.wait_within(LIMIT).unwrap(), Ended::Exited(status) if status.success()));
}

#[test]
fn a_manager_outlives_the_client_that_started_it_and_was_killed_meanwhile() {
    let host = Host::new("killed");
    let gate = host.dir.path().join("gate");
    let mut made = Command::new("mkfifo");
    assert!(made.arg(&gate).status().unwrap().success());
    // Starts the manager only once the test opens the gate.
    let rgapsd = rgaps_testing::programs::find("rgapsd");
    let program = script(&host, &format!("read _ <'{}'; exec '{}' \"$@\"", gate.display(), rgapsd.display()));
    let mut list = host.rgaps(&["topic", "list"]);
    let mut list = Child::spawn(list.env("RGAPSD", program).stdout(Stdio::null())).unwrap();
    // Opens once the script has the other end; the client has started it by then.
    let mut opened = std::fs::File::options().write(true).open(&gate).unwrap();
    list.kill().unwrap();
    std::io::Write::write_all(&mut opened, b"go\n").unwrap();
    let (good, said, errors) = outcome(&mut host.rgaps(&["ready", "--timeout", "60"]));
    assert!(good && said.contains("serves"), "{said}{errors}");
}

#[test]
fn rgapsd_on_demand_closes_the_output_after_reporting_its_start() {
    let host = Host::new("by-hand");
    let rgapsd = || {
        let mut command = Command::new(rgaps_testing::programs::find("rgapsd"));
        host.dir.apply(&mut command);
        command.arg("--on-demand").env("RGAPS_NETWORK", "local");
        command
    };
    // Reads to the end of the output; the manager itself stays, so only its closing the output ends it.
    let (good, said, errors) = outcome(rgapsd().args(["--set", "idle_timeout_ms=600000"]).stderr(Stdio::null()));
    assert!(good && said == "\"listens\"\n", "{said}{errors}");
    let (_, said, _) = outcome(&mut rgapsd());
    assert_eq!(said, "\"taken\"\n");
}

#[test]
fn a_bench_whose_manager_ends_at_once_does_not_wait_for_it() {
    let host = Host::new("bench-start");
    let program = script(&host, "echo out of luck >&2; exit 3");
    let (good, _, errors) = outcome(host.rgaps(&["bench", "fanout", "--quick"]).env("RGAPSD", program));
    let said = "rgapsd ended (exit status: 3); its log ends with: out of luck";
    assert!(!good && errors.contains(said), "{errors}");
}
