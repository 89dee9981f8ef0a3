//! The pools that a subscriber maps: it maps later what it cannot map now, and unmaps pools that are no longer needed.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::Command;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{History, Node, Publisher, Subscriber, SubscriberQos};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, manager, programs};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LONG: Duration = Duration::from_secs(30);

/// Runs the test again in a new process, whose limits it may change.
fn again() -> bool {
    again_with(&[], |_| Ok(()))
}

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

/// A keep-all subscriber, and a publisher whose pool it has not mapped yet.
struct Topic {
    manager: Child,
    subscriber: Subscriber<Bytes>,
    publisher: Publisher<Bytes>,
    dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Topic {
    fn new(name: &str) -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(150));
        let dir = RuntimeDir::new(name).unwrap();
        let manager = rgapsd(&dir);
        let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
        let subscriber = node(&dir).subscriber_with("a", qos).unwrap();
        let publisher = node(&dir).publisher("a").unwrap();
        Self { manager, subscriber, publisher, dir, _watchdog }
    }

    fn push_three(&self) {
        for byte in 1..=3 {
            self.publisher.push(&Bytes::new(1), &[byte]).unwrap();
        }
    }

    /// Checks that the first message cannot be opened: the take returns an error, keeps the message, and counts it neither as taken nor as lost.
    fn fails_to_take(&self) {
        let error = self.subscriber.take().unwrap_err();
        let counted = self.subscriber.statistics();
        assert_eq!((counted.taken, counted.lost), (0, 0), "{error}");
        assert_eq!(self.subscriber.ready_count(10), 3, "{error}");
    }

    /// Checks that all three messages are taken in order.
    fn takes_three(&self) {
        let (deadline, mut taken, mut errors) = (Instant::now() + LONG, Vec::new(), Vec::new());
        while taken.len() < 3 && Instant::now() < deadline {
            match self.subscriber.wait(Duration::from_secs(1)) {
                Ok(sample) => taken.extend(sample.map(|sample| sample.bytes()[0])),
                Err(error) => errors.push(error.to_string()),
            }
        }
        let counted = self.subscriber.statistics();
        errors.dedup();
        assert_eq!((taken, counted.taken, counted.lost), (vec![1, 2, 3], 3, 0), "{errors:?}");
    }
}

#[test]
fn a_message_that_cannot_be_mapped_while_the_manager_is_stopped_is_kept() {
    let topic = Topic::new("stopped");
    topic.manager.stop().unwrap();
    topic.push_three();
    topic.fails_to_take();
    topic.manager.go_on().unwrap();
    topic.takes_three();
}

#[test]
fn a_message_that_cannot_be_mapped_without_a_manager_is_kept() {
    let mut topic = Topic::new("gone");
    topic.manager.kill().unwrap();
    topic.push_three();
    topic.fails_to_take();
    let _next = rgapsd(&topic.dir);
    topic.takes_three();
}

#[test]
fn a_message_that_cannot_be_mapped_for_lack_of_file_descriptors_is_kept() {
    if !again() {
        return;
    }
    let topic = Topic::new("fds");
    topic.push_three();
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum }).unwrap();
    topic.fails_to_take();
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    topic.takes_three();
}

#[test]
fn a_message_taken_by_handle_that_cannot_be_mapped_is_taken_again() {
    if !again() {
        return;
    }
    let topic = Topic::new("handles");
    let push = |byte| topic.publisher.push(&Bytes::new(1), &[byte]).unwrap();
    let (_one, second, _three) = (push(1), push(2), push(3));
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum }).unwrap();
    topic.subscriber.take_by_handle(&second, LONG).unwrap_err();
    topic.fails_to_take();
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let sample = topic.subscriber.take_by_handle(&second, LONG).unwrap();
    assert_eq!((sample.bytes(), topic.subscriber.statistics().taken), (&[2][..], 1));
    let rest: Vec<u8> = topic.subscriber.take_all().unwrap().iter().map(|sample| sample.bytes()[0]).collect();
    assert_eq!(rest, [1, 3]);
}

#[test]
fn a_message_that_a_take_by_handle_could_not_map_is_taken_in_order() {
    if !again() {
        return;
    }
    let topic = Topic::new("order");
    let push = |byte| topic.publisher.push(&Bytes::new(1), &[byte]).unwrap();
    let (_one, second, _three) = (push(1), push(2), push(3));
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum }).unwrap();
    topic.subscriber.take_by_handle(&second, LONG).unwrap_err();
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    topic.takes_three();
}

#[test]
fn a_message_in_a_mapped_pool_is_taken_while_the_manager_is_stopped() {
    let topic = Topic::new("mapped");
    topic.publisher.push(&Bytes::new(1), &[0]).unwrap();
    drop(topic.subscriber.wait(LONG).unwrap().unwrap());
    topic.manager.stop().unwrap();
    topic.push_three();
    let taken: Vec<u8> = topic.subscriber.take_all().unwrap().iter().map(|sample| sample.bytes()[0]).collect();
    topic.manager.go_on().unwrap();
    assert_eq!(taken, [1, 2, 3]);
}

/// The number of pool mappings in this process.
fn pools_mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("rgaps-pool")).count()
}

#[test]
fn a_subscriber_unmaps_the_pools_of_publishers_that_are_gone() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("memory").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let subscriber = node.subscriber::<Bytes>("a").unwrap();
    let publishers: Vec<_> = (0..8).map(|_| node.publisher::<Bytes>("a").unwrap()).collect();
    let mut samples = Vec::new();
    for publisher in &publishers {
        publisher.push(&Bytes::new(1), &[7]).unwrap();
        samples.push(subscriber.wait(LONG).unwrap().unwrap());
    }
    drop(publishers);
    let last = samples.pop().unwrap();
    drop(samples);
    let becomes = |count: usize| {
        let deadline = Instant::now() + LONG;
        while pools_mapped() != count {
            assert!(Instant::now() < deadline, "{} pools are mapped, and {count} are needed", pools_mapped());
            std::thread::park_timeout(Duration::from_millis(10));
        }
    };
    becomes(1);
    assert_eq!(last.bytes(), [7], "a sample keeps its pool");
    drop(last);
    becomes(0);
}
