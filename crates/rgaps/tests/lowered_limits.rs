//! A program may lower its limit of descriptors (RLIMIT_NOFILE) below the number that it has open, as sandboxes do: what it has stays usable.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Node, Publisher};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

const LONG: Duration = Duration::from_secs(20);

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

fn limit(descriptors: u64) -> Rlimit {
    Rlimit { current: Some(descriptors), maximum: getrlimit(Resource::Nofile).maximum }
}

fn push(publisher: &Publisher<Bytes>, byte: u8) {
    publisher.push(&Bytes::new(1), &[byte]).unwrap();
}

#[test]
#[ignore = "the publisher's program, started by a test of this file"]
fn role_of_a_publisher() {
    if std::env::var("RGAPS_TEST_LOWERED_LIMITS").is_err() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let publisher = Node::builder().no_autostart().build().unwrap().publisher::<Bytes>("a").unwrap();
    println!("ready");
    for (number, _) in std::io::stdin().lines().enumerate() {
        push(&publisher, number as u8);
    }
}

#[test]
fn a_publisher_that_may_open_no_descriptor_wakes_its_subscribers() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("limit-publisher").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let subscriber = node.subscriber::<Bytes>("a").unwrap();
    let event = subscriber.descriptor().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_a_publisher", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_LOWERED_LIMITS", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    dir.apply(&mut command);
    let mut child = Child::spawn(&mut command).unwrap();
    child.output_after("ready").unwrap();
    for byte in 0..2 {
        // For the signal that says that it may have missed a message.
        assert!(subscriber.take().unwrap().is_none());
        writeln!(child.std().stdin.as_mut().unwrap()).unwrap();
        assert!(rgaps_os::poll::readable(event, LONG).unwrap(), "message {byte} wakes nobody");
        assert_eq!(subscriber.take().unwrap().expect("it was published").bytes(), [byte]);
        prlimit(Pid::from_raw(child.id() as i32), Resource::Nofile, limit(0)).unwrap();
    }
}
