//! An API client on a host: this test program again, which executes the commands on its input lines and answers each with a line.

use std::io::Write;
use std::process::Stdio;

use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, PublisherQos, Sample, Subscriber};
use rgaps_testing::Watchdog;

use crate::world::{LIMIT, Program, World};

/// Set only for the client program. (Variables that begin with RGAPS_ are configuration.)
const VARIABLE: &str = "HOSTS_TEST_CLIENT";

/// A client on a host.
pub struct Client {
    program: Program,
    orders: usize,
}

impl Client {
    /// Starts it.
    pub fn new(world: &World, host: usize) -> Self {
        let mut command = world.command(host, &std::env::current_exe().unwrap());
        command.args(["--exact", "client::role_of_a_client", "--ignored", "--nocapture"]).env(VARIABLE, "1");
        let program = world.spawn(host, "client", command.stdin(Stdio::piped()));
        Self { program, orders: 0 }
    }

    /// Makes publishers of `topic`0, `topic`1 and so on, with pools of this size.
    pub fn publishers(&mut self, world: &World, topic: &str, count: usize, pool_bytes: u64) {
        self.order(world, &format!("publishers {topic} {count} {pool_bytes}"));
    }

    /// Makes subscribers of these topics.
    pub fn subscribers(&mut self, world: &World, topic: &str, count: usize) {
        self.order(world, &format!("subscribers {topic} {count}"));
    }

    /// Waits until each publisher has this many subscribers; a remote host counts as one.
    pub fn await_subscribers(&mut self, world: &World, count: usize) {
        self.order(world, &format!("await {count}"));
    }

    /// Each publisher sends this many messages of this size.
    pub fn publish(&mut self, world: &World, messages: u64, bytes: u64) {
        self.order(world, &format!("publish {messages} {bytes}"));
    }

    /// Each subscriber takes this many messages and checks every word of them.
    pub fn take(&mut self, world: &World, messages: u64) {
        self.order(world, &format!("take {messages}"));
    }

    fn order(&mut self, world: &World, line: &str) {
        writeln!(self.program.child.std().stdin.as_mut().unwrap(), "{line}").unwrap();
        self.orders += 1;
        self.program.await_lines(world, self.orders);
    }
}

#[test]
#[ignore = "a program, started by the tests of this folder"]
fn role_of_a_client() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let _watchdog = Watchdog::new(4 * LIMIT);
    let node = Node::new("client").unwrap();
    let (mut publishers, mut subscribers) = (Vec::new(), Vec::new());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["publishers", topic, count, pool_bytes] => {
                let exhaustion = Exhaustion::Wait { timeout_ms: 20_000 };
                let qos = PublisherQos { pool_bytes: Some(number(pool_bytes)), exhaustion, ..PublisherQos::default() };
                publishers.extend((0..number(count)).map(|n| {
                    let publisher: Publisher<Bytes> = node.publisher_with(&format!("{topic}{n}"), qos).unwrap();
                    publisher
                }));
            }
            ["subscribers", topic, count] => subscribers.extend((0..number(count)).map(|n| {
                let subscriber: Subscriber<Bytes> = node.subscriber(&format!("{topic}{n}")).unwrap();
                subscriber
            })),
            ["await", count] => {
                let all = || publishers.iter().all(|publisher| publisher.subscriber_count() as u64 == number(count));
                assert!(crate::world::within_limit(|| all().then_some(())).is_some(), "{line}");
            }
            ["publish", messages, bytes] => {
                for _ in 0..number(messages) {
                    publishers.iter().for_each(|publisher| publish(publisher, number(bytes)));
                }
            }
            ["take", messages] => subscribers.iter().for_each(|subscriber| {
                for _ in 0..number(messages) {
                    let sample = subscriber.wait(LIMIT).unwrap();
                    check(&sample.unwrap_or_else(|| panic!("{line}: {:?}", subscriber.statistics())));
                }
            }),
            other => panic!("{other:?}"),
        }
        // On a line of its own, after any output of the test harness.
        println!("\n{{\"done\":\"{line}\"}}");
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap()
}

/// The word at each offset of a message: all words differ, within a message and between messages.
fn word(message: u64, place: u64) -> u64 {
    (message << 40 | place).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn publish(publisher: &Publisher<Bytes>, bytes: u64) {
    // The sequence number that the message will get.
    let message = publisher.statistics().published + 1;
    let mut loan = publisher.loan(Bytes::new(bytes)).unwrap();
    for (place, bytes) in (0..).zip(loan.as_chunks_mut::<8>().0) {
        *bytes = word(message, place).to_le_bytes();
    }
    loan.publish().unwrap();
}

/// A message's sequence number determines its content.
fn check(sample: &Sample<Bytes>) {
    let words = sample.bytes().as_chunks::<8>().0;
    let message = sample.info().sequence;
    let wrong = (0..).zip(words).find(|(place, bytes)| **bytes != word(message, *place).to_le_bytes());
    assert_eq!(wrong, None, "message {message} of {} B", sample.bytes().len());
}

/// Bytes of available memory.
pub fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
