//! Messages that a host publishes while the manager of another host is stopped: each is taken there, or counted as lost.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{History, Node, Publisher, PublisherQos, Subscriber, SubscriberQos};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs, until};

const TOPIC: &str = "remote";
const LONG: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(10);
/// More messages of this size than fill sockets, ring and outbox.
const MANY: u64 = 150;
const BYTES: usize = 1 << 20;

/// A host of which messages are published, and a stopped one that subscribes.
struct Hosts {
    there: Node,
    stays: Publisher<Bytes>,
    subscribers: [Subscriber<Bytes>; 2],
    /// Messages that were taken or counted as lost before.
    before: [u64; 2],
    receiving: Child,
    payload: Vec<u8>,
    _sending: Child,
    _here: Node,
    _dirs: [RuntimeDir; 2],
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn rgapsd(dir: &RuntimeDir, own: u16, peer: u16) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_MULTICAST", "off").env("RGAPS_PEER_TIMEOUT_MS", "60000");
    command.env("RGAPS_LISTEN", format!("tcp/127.0.0.1:{own}")).env("RGAPS_PEERS", format!("tcp/127.0.0.1:{peer}"));
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

/// Messages that were taken or counted as lost.
fn sum(subscriber: &Subscriber<Bytes>) -> u64 {
    let statistics = subscriber.statistics();
    statistics.taken + statistics.lost
}

impl Hosts {
    /// Links the hosts, waits until nothing is on the way, and stops the subscribing one.
    fn new(name: &str) -> Self {
        let dirs = ["here", "there"].map(|host| RuntimeDir::new(&format!("{name}-{host}")).unwrap());
        let ports = [free_port(), free_port()];
        let (receiving, sending) = (rgapsd(&dirs[0], ports[0], ports[1]), rgapsd(&dirs[1], ports[1], ports[0]));
        let (here, there) = (node(&dirs[0]), node(&dirs[1]));
        let qos = SubscriberQos { history: History::KeepLast(2), ..SubscriberQos::default() };
        let subscribers = [(); 2].map(|()| here.subscriber_with::<Bytes>(TOPIC, qos).unwrap());
        let qos = PublisherQos { pool_bytes: Some(256 << 20), ..PublisherQos::default() };
        let stays = there.publisher_with::<Bytes>(TOPIC, qos).unwrap();
        until("the link", || {
            stays.push(&Bytes::new(1), &[0]).unwrap();
            subscribers.iter().all(|subscriber| subscriber.wait(TICK).unwrap().is_some())
        });
        let last = stays.push(&Bytes::new(1), &[0]).unwrap().sequence;
        for subscriber in &subscribers {
            while subscriber.wait(LONG).unwrap().unwrap().info().sequence < last {}
        }
        receiving.stop().unwrap();
        let before = subscribers.each_ref().map(sum);
        let payload = vec![1; BYTES];
        Self { there, stays, subscribers, before, receiving, payload, _sending: sending, _here: here, _dirs: dirs }
    }

    fn publisher(&self) -> Publisher<Bytes> {
        let qos = PublisherQos { pool_bytes: Some(64 << 20), ..PublisherQos::default() };
        self.there.publisher_with::<Bytes>(TOPIC, qos).unwrap()
    }

    fn push(&self, publisher: &Publisher<Bytes>, count: u64) -> u64 {
        for _ in 0..count {
            publisher.push(&Bytes::new(BYTES as u64), &self.payload).unwrap();
        }
        count
    }

    /// Lets the stopped manager go on. Each subscriber takes or counts each of `pushed` messages, and not one more.
    fn all_are_taken_or_counted(&self, pushed: u64) {
        self.receiving.go_on().unwrap();
        let account = |pushed: u64| {
            let counted = || {
                self.subscribers.each_ref().map(sum).iter().zip(self.before).all(|(now, before)| now - before >= pushed)
            };
            until("each message is taken or counted as lost", || {
                self.subscribers.iter().for_each(|subscriber| while subscriber.wait(TICK).unwrap().is_some() {});
                counted()
            });
            let got = [0, 1].map(|n| sum(&self.subscribers[n]) - self.before[n]);
            assert_eq!(got, [pushed; 2], "{:?}", self.subscribers.each_ref().map(Subscriber::statistics));
        };
        account(pushed);
        account(pushed + self.push(&self.stays, 1));
    }
}

#[test]
fn missing_first_messages_of_a_new_remote_publisher_are_counted() {
    let _watchdog = Watchdog::new(LONG * 2);
    let hosts = Hosts::new("first");
    let mut pushed = hosts.push(&hosts.stays, MANY);
    let new = hosts.publisher();
    pushed += hosts.push(&new, 30) + hosts.push(&hosts.stays, 1);
    hosts.all_are_taken_or_counted(pushed);
    assert!(hosts.subscribers[0].statistics().lost > 20, "none of the first ones is missing");
}

#[test]
fn messages_of_remote_publishers_that_left_unseen_are_counted() {
    let _watchdog = Watchdog::new(LONG * 2);
    let hosts = Hosts::new("left");
    let mut pushed = hosts.push(&hosts.stays, MANY);
    for round in 0..40 {
        pushed += hosts.push(&hosts.publisher(), 1 + round % 4);
    }
    pushed += hosts.push(&hosts.stays, 1);
    hosts.all_are_taken_or_counted(pushed);
}

#[test]
fn missing_last_messages_of_a_remote_publisher_that_falls_silent_are_counted() {
    let _watchdog = Watchdog::new(LONG * 2);
    let hosts = Hosts::new("silent");
    let mut pushed = hosts.push(&hosts.stays, MANY);
    let silent = hosts.publisher();
    pushed += hosts.push(&silent, 5) + hosts.push(&hosts.stays, MANY);
    hosts.all_are_taken_or_counted(pushed);
    hosts.all_are_taken_or_counted(pushed + 1 + hosts.push(&silent, 1));
}
