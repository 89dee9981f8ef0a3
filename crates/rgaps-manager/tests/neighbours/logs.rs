//! A manager's log that a client floods, or that cannot be written.

use std::process::Stdio;

use rgaps_control::local::{Connection, LocalError, ToClient};
use rgaps_testing::Child;
use rustix::process::{Pid, Signal, kill_process};

use crate::{Host, LIMIT, outcome};

/// Makes the manager log a line with `word` in it.
fn provoke(host: &Host, word: &str) {
    let connection = Connection::connect(&host.path().join("rgapsd.sock")).unwrap().unwrap();
    connection.send(&serde_json::json!({ "id": 1, "body": { word: null } }), &[]).unwrap();
    let end = connection.receive::<ToClient>(LIMIT);
    assert!(matches!(end, Err(LocalError::Closed)), "{end:?}");
}

fn log_bytes(host: &Host, name: &str) -> u64 {
    std::fs::metadata(host.path().join(name)).map_or(0, |found| found.len())
}

#[test]
fn a_flooded_log_of_a_manager_started_on_demand_stays_within_two_files() {
    const MOST: u64 = 64 << 10;
    let host = Host::new("flood");
    assert!(outcome(host.rgaps(&["topic", "list"]).env("RGAPS_LOG_BYTES", MOST.to_string())).0);
    let long = "x".repeat(4000);
    for number in 0..100 {
        provoke(&host, &format!("{number}-{long}"));
    }
    let sizes = ["rgapsd.log", "rgapsd.log.1"].map(|name| log_bytes(&host, name));
    // A line begun below the bound is written whole.
    assert!(sizes.iter().all(|bytes| (1..MOST + (16 << 10)).contains(bytes)), "{sizes:?}");
    let log = std::fs::read_to_string(host.path().join("rgapsd.log")).unwrap();
    assert!(log.contains("99-xxx"), "the newest lines are in the first file");
}

#[test]
fn a_line_that_is_logged_again_and_again_is_written_once_and_counted() {
    let host = Host::new("again");
    let manager = host.program("rgapsd").stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    crate::until("it serves", || outcome(&mut host.rgaps(&["ready", "--timeout", "0"])).0.then_some(()));
    (0..50).for_each(|_| provoke(&host, "word"));
    kill_process(Pid::from_child(&manager), Signal::TERM).unwrap();
    let output = manager.wait_with_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(log.matches("`word`").count(), 2, "{log}");
    assert!(log.contains("said 49 more times"), "{log}");
}

#[test]
fn a_manager_whose_log_cannot_be_written_goes_on() {
    let host = Host::new("full-log");
    let mut command = host.program("rgapsd");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut manager = Child::spawn(command.stdout(Stdio::null()).stderr(full)).unwrap();
    crate::until("it serves", || outcome(&mut host.rgaps(&["ready", "--timeout", "0"])).0.then_some(()));
    provoke(&host, "word");
    let (good, _, errors) = outcome(host.rgaps(&["topic", "list"]).env("RGAPS_AUTOSTART", "0"));
    assert!(good, "{errors}");
    assert!(matches!(manager.std().try_wait(), Ok(None)), "the manager has ended");
}
