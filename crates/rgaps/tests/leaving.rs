//! Dropping a node, or its publishers and subscribers, while a manager does not answer.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rgaps::Node;
use rgaps::types::Bytes;
use rgaps_control::local::{Listener, Request};
use rgaps_testing::{RuntimeDir, Watchdog, manager, programs};

#[test]
fn dropping_many_subscribers_waits_for_a_silent_manager_only_once() {
    const MANY: usize = 200;
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("ends").unwrap();
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    let manager = manager::start(&dir, command).unwrap();
    let node = || Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let (leaves, stays) = (node(), node());
    let subscribers: Vec<_> = (0..MANY).map(|_| leaves.subscriber::<Bytes>("a").unwrap()).collect();
    manager.stop().unwrap();
    let (ended, end) = channel();
    let thread = std::thread::spawn(move || {
        drop(subscribers);
        ended.send(()).unwrap();
        leaves
    });
    // One waits two seconds; if each waited, this would take minutes.
    let has_ended = end.recv_timeout(Duration::from_secs(60));
    manager.go_on().unwrap();
    has_ended.expect("they leave one after the other");
    // The manager gets the detach requests that were not sent before.
    let leaves = thread.join().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while stays.topics().unwrap().iter().any(|topic| topic.subscribers > 0) {
        assert!(Instant::now() < deadline, "{:?}", stays.topics().unwrap());
        std::thread::park_timeout(Duration::from_millis(10));
    }
    drop(leaves);
}

#[test]
fn dropping_a_node_does_not_wait_for_a_successor_that_answers_nothing() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("mute").unwrap();
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    let mut first = manager::start(&dir, command).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    first.kill().unwrap();
    let listener = Listener::bind(&rgaps_control::RuntimeDir::open(dir.path()).unwrap().socket()).unwrap();
    let mute = std::iter::repeat_with(|| listener.accept().unwrap()).flatten().next().unwrap();
    assert!(mute.receive::<Request>(Duration::from_secs(20)).unwrap().is_some(), "hello");
    let (ended, end) = channel();
    std::thread::spawn(move || {
        drop((publisher, node));
        ended.send(())
    });
    // Half of the time that a manager has for its answer.
    end.recv_timeout(Duration::from_secs(5)).expect("it waits for the answer to its hello");
}
