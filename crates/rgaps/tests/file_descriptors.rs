//! File descriptors: how many a topic uses, what the error says on the side that runs out of them, and how many file descriptors and topics one
//! client may have.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::Command;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Node, NodeError, Subscriber};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, manager, programs};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Starts `rgapsd` with a limit on its file descriptors, set by the shell's ulimit.
fn manager(dir: &RuntimeDir, limit: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit} && exec \"$0\"")]).arg(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

/// Subscribes to one topic after another. Returns the subscribers and the error that ended it.
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
fn a_client_out_of_file_descriptors_gets_an_error_with_its_own_limit() {
    // The limit applies to the whole process.
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
    let said = error.expect("64 file descriptors are too few").to_string();
    assert!(said.contains("this process may have 64 file descriptors open") && said.contains("ulimit -n"), "{said}");
    assert!(made.len() > 30, "{} topics fit", made.len());
    assert_eq!(node.topics().unwrap().len(), made.len(), "the one that failed has left nothing behind");
    drop(made);
    assert!(node.subscriber::<Bytes>("after").is_ok(), "it goes on");
}

#[test]
fn a_topic_takes_one_fd_of_a_subscriber_two_of_a_publisher_and_two_of_rgapsd() {
    // In its own process, so that no other test's file descriptors count.
    if !again_with(&[("RGAPS_DEVICE", "host")], |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("count-fds").unwrap();
    let mut rgapsd = manager(&dir, "-n 1024");
    let rgapsd = rgapsd.std().id();
    let (node, observing) = (node(&dir), node(&dir));
    let open = |process| std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    // What the reply to a question came after is over; the client's file comes with its first subscriber, and
    // what publishers get of it with the first of them.
    let counts = || (observing.topics().unwrap().len(), open(std::process::id()), open(rgapsd));
    let first = node.subscriber::<Bytes>("first").unwrap();
    drop(node.publisher::<Bytes>("first").unwrap());
    let (_, client, host) = counts();
    let topics: Vec<String> = (0..20).map(|number| format!("t{number}")).collect();
    let subscribers: Vec<_> = topics.iter().map(|topic| node.subscriber::<Bytes>(topic).unwrap()).collect();
    assert_eq!(counts(), (21, client + 20, host + 20), "a segment each");
    let publishers: Vec<_> = topics.iter().map(|topic| node.publisher::<Bytes>(topic).unwrap()).collect();
    assert_eq!(
        counts(),
        (21, client + 60, host + 40),
        "and a pool each; the client's publishers have the segment for writing"
    );
    drop((subscribers, publishers));
    assert_eq!(counts(), (1, client, host));
    drop(first);
    assert_eq!(counts(), (0, client - 2, host - 3), "the client's file goes with its last subscriber");
}

#[test]
fn rgapsd_raises_its_file_descriptor_limit_and_names_it_when_it_is_used_up() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("manager-fds").unwrap();
    let soft = manager(&dir, "-Sn 128");
    let (made, error) = subscribe(&node(&dir), 300);
    assert!(error.is_none(), "it raises its own limit: {error:?}");
    drop((made, soft));

    let dir = RuntimeDir::new("manager-fds-hard").unwrap();
    let _hard = manager(&dir, "-n 128");
    let (_made, error) = subscribe(&node(&dir), 300);
    let said = error.expect("128 file descriptors are too few").to_string();
    assert!(said.contains("rgapsd may have 128 file descriptors open"), "{said}");
}

#[test]
fn a_client_with_too_many_endpoints_is_refused_by_name_and_others_go_on() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("client-endpoints").unwrap();
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_CLIENT_ENDPOINTS_MAX", "50");
    let _manager = manager::start(&dir, command).unwrap();
    let (greedy, other) = (node(&dir), node(&dir));
    let (mut made, error) = subscribe(&greedy, 300);
    let said = error.expect("50 are all that it may have").to_string();
    assert!(said.contains("client_endpoints_max = 50"), "{said}");
    assert_eq!((made.len(), other.topics().unwrap().len()), (50, 50), "what was refused left no topic behind");
    let (of_other, error) = subscribe(&other, 50);
    assert!(error.is_none() && of_other.len() == 50, "{error:?}");
    made.pop();
    assert!(greedy.publisher::<Bytes>("again").is_ok(), "it may have another one for one that it gave up");
}

#[test]
fn one_program_that_uses_up_file_descriptors_leaves_some_to_others() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("spare-fds").unwrap();
    let _manager = manager(&dir, "-n 256");
    // The limit counts the whole process, whatever the number of its nodes.
    let nodes: Vec<Node> = (0..4).map(|_| node(&dir)).collect();
    let mut made = Vec::new();
    let mut said = String::new();
    for (number, node) in nodes.iter().cycle().take(400).enumerate() {
        match node.subscriber::<Bytes>(&format!("t{number}")) {
            Ok(subscriber) => made.push(subscriber),
            Err(error) => said = error.to_string(),
        }
    }
    assert!(said.contains("rgapsd may have 256 file descriptors open") && said.contains("spare_fds_percent"), "{said}");
    let mut other = Command::new(programs::find("rgaps"));
    dir.apply(&mut other);
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/ramp.npy");
    let output = other.env("RGAPS_AUTOSTART", "0").args(["pub", "array", "--input", image]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
