//! Who has no descriptors left hears so, with the number, on the side where they are missing.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::Command;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Node, NodeError, Subscriber};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, manager, programs};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `rgapsd` with a limit on its descriptors, as the shell sets it.
fn manager(dir: &RuntimeDir, limit: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit} && exec \"$0\"")]).arg(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

/// Subscribes to one topic after the other, and what ends that.
fn subscribe(node: &Node, topics: usize) -> (Vec<Subscriber<Bytes>>, Option<NodeError>) {
    let mut made = Vec::new();
    for number in 0..topics {
        match node.subscriber(&format!("t{number}")) {
            Ok(subscriber) => made.push(subscriber),
            Err(error) => return (made, Some(error)),
        }
    }
    (made, None)
}

#[test]
fn a_client_that_may_have_no_more_descriptors_hears_its_own_limit() {
    // The limit is the whole process's.
    if !again_with(&[], |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("client-fds").unwrap();
    let _manager = manager(&dir, "-Sn 256");
    let node = node(&dir);
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let (made, error) = subscribe(&node, 100);
    let said = error.expect("64 descriptors are too few").to_string();
    assert!(said.contains("this process may have 64 descriptors open") && said.contains("ulimit -n"), "{said}");
    assert!(made.len() > 30, "{} topics fit", made.len());
    assert_eq!(node.topics().unwrap().len(), made.len(), "the one that failed has left nothing behind");
    drop(made);
    assert!(node.subscriber::<Bytes>("after").is_ok(), "it goes on");
}

#[test]
fn rgapsd_takes_what_descriptors_it_may_have_and_says_when_these_are_used_up() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("manager-fds").unwrap();
    let soft = manager(&dir, "-Sn 128");
    let (made, error) = subscribe(&node(&dir), 300);
    assert!(error.is_none(), "it raises its own limit: {error:?}");
    drop((made, soft));

    let dir = RuntimeDir::new("manager-fds-hard").unwrap();
    let _hard = manager(&dir, "-n 128");
    let (_made, error) = subscribe(&node(&dir), 300);
    let said = error.expect("128 descriptors are too few").to_string();
    assert!(said.contains("rgapsd may have 128 descriptors open"), "{said}");
}
