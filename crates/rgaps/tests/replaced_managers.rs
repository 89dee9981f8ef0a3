//! Managers of both hosts are replaced while a host publishes: each message is taken on the other host, or counted as lost, once.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Durability, History, Node, Publisher, PublisherQos, Subscriber, SubscriberQos};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs, until};

const TOPIC: &str = "remote";
const LONG: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(10);

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn rgapsd(dir: &RuntimeDir, own: u16, peer: u16) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_MULTICAST", "off").env("RGAPS_PEER_TIMEOUT_MS", "60000");
    command.env("RGAPS_LISTEN", format!("tcp/127.0.0.1:{own}")).env("RGAPS_PEERS", format!("tcp/127.0.0.1:{peer}"));
    manager::start(dir, command).unwrap()
}

/// Linked hosts, a subscriber and two publishers. All is taken.
struct Hosts {
    dirs: [RuntimeDir; 2],
    ports: [u16; 2],
    managers: [Child; 2],
    subscriber: Subscriber<Bytes>,
    publishers: [Publisher<Bytes>; 2],
    /// Messages that were taken or counted as lost before, and those published since.
    before: u64,
    pushed: u64,
    here: Node,
    _there: Node,
}

impl Hosts {
    fn new(name: &str, qos: PublisherQos) -> Self {
        let dirs = ["here", "there"].map(|host| RuntimeDir::new(&format!("{name}-{host}")).unwrap());
        let ports = [free_port(), free_port()];
        let managers = [rgapsd(&dirs[0], ports[0], ports[1]), rgapsd(&dirs[1], ports[1], ports[0])];
        let node = |dir: &RuntimeDir| Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let (here, _there) = (node(&dirs[0]), node(&dirs[1]));
        let subscriber = joiner(&here, Durability::Volatile);
        let publishers = [(); 2].map(|()| _there.publisher_with::<Bytes>(TOPIC, qos).unwrap());
        let mut hosts = Self { dirs, ports, managers, subscriber, publishers, before: 0, pushed: 0, here, _there };
        hosts.take_to_last();
        (hosts.before, hosts.pushed) = (hosts.sum(), 0);
        hosts
    }

    /// Messages that were taken or counted as lost.
    fn sum(&self) -> u64 {
        let statistics = self.subscriber.statistics();
        statistics.taken + statistics.lost
    }

    fn push(&mut self, of: usize) -> u64 {
        self.pushed += 1;
        self.publishers[of].push(&Bytes::new(1), &[of as u8]).unwrap().sequence
    }

    /// Publishes until a message of each publisher comes, and then one more, and takes up to these.
    fn take_to_last(&mut self) {
        for of in 0..2 {
            until("the link", || {
                self.push(of);
                matches!(self.subscriber.wait(TICK), Ok(Some(sample)) if sample.bytes() == [of as u8])
            });
        }
        let mut last = [0, 1].map(|of| Some(self.push(of)));
        until("the last messages", || {
            while let Ok(Some(sample)) = self.subscriber.wait(TICK) {
                let last = &mut last[usize::from(sample.bytes()[0])];
                *last = last.filter(|last| *last != sample.info().sequence);
            }
            last == [None, None]
        });
    }

    /// Publishes messages, each of which is taken before the next one.
    fn pass(&mut self, of: usize, count: u64) {
        for _ in 0..count {
            self.push(of);
            self.subscriber.wait(LONG).unwrap().unwrap();
        }
    }

    fn kill(&mut self, host: usize) {
        self.managers[host].kill().unwrap();
    }

    fn start(&mut self, host: usize) {
        self.managers[host] = rgapsd(&self.dirs[host], self.ports[host], self.ports[1 - host]);
    }

    /// All messages before the last ones are taken or counted by the time that those are taken.
    fn all_are_taken_or_counted(&mut self) {
        self.take_to_last();
        assert_eq!(self.sum() - self.before, self.pushed, "{:?}", self.subscriber.statistics());
    }
}

fn joiner(here: &Node, durability: Durability) -> Subscriber<Bytes> {
    let qos = SubscriberQos { history: History::KeepLast(20), durability, ..SubscriberQos::default() };
    here.subscriber_with::<Bytes>(TOPIC, qos).unwrap()
}

#[test]
fn what_a_slow_publisher_published_while_both_managers_were_replaced_counts() {
    let _watchdog = Watchdog::new(LONG * 2);
    let mut hosts = Hosts::new("slow", PublisherQos::default());
    hosts.pass(0, 5);
    // They use all entries of the message table again that had the first publisher's.
    hosts.pass(1, 1000);
    (0..2).for_each(|host| hosts.kill(host));
    (0..20).for_each(|_| _ = hosts.push(0));
    (0..2).for_each(|host| hosts.start(host));
    hosts.all_are_taken_or_counted();
}

#[test]
fn what_was_published_while_managers_were_replaced_counts() {
    let _watchdog = Watchdog::new(LONG * 2);
    let mut hosts = Hosts::new("many", PublisherQos::default());
    hosts.pass(0, 1);
    for _ in 0..4 {
        hosts.kill(0);
        (0..30).for_each(|_| _ = hosts.push(0));
        hosts.start(0);
        // The sender has connected to this manager.
        let sends = |topics: Vec<rgaps::TopicSummary>| topics.iter().any(|topic| !topic.links.is_empty());
        until("the link", || hosts.here.topics().is_ok_and(sends));
    }
    hosts.all_are_taken_or_counted();
}

#[test]
fn a_late_joiner_takes_remote_latched_messages_once_though_its_manager_died() {
    let _watchdog = Watchdog::new(LONG * 2);
    let qos = PublisherQos { durability: Durability::TransientLocal, history_depth: 5, ..PublisherQos::default() };
    let mut hosts = Hosts::new("again", qos);
    hosts.pass(0, 8);
    let late = joiner(&hosts.here, Durability::TransientLocal);
    let mut taken = Vec::new();
    let mut take = |hosts: &mut Hosts| {
        hosts.take_to_last();
        while let Some(sample) = late.wait(TICK).unwrap() {
            taken.push((sample.bytes()[0], sample.info().sequence));
        }
    };
    take(&mut hosts);
    for _ in 0..2 {
        hosts.kill(0);
        hosts.start(0);
        take(&mut hosts);
    }
    let mut once = taken.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), taken.len(), "{taken:?}");
}
