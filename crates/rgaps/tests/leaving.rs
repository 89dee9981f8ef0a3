//! Dropping a node's subscribers while the manager does not answer.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rgaps::Node;
use rgaps::types::Bytes;
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
