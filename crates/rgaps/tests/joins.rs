//! A subscriber that joins while a publisher is stopped at any step of a publication gets the message or does not, and pins no message.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Durability, History, Node, PublisherQos, Subscriber, SubscriberQos};
use rgaps_testing::{Action, Child, CrashPoint, Ended, RuntimeDir, Watchdog, again_with};

const TOPIC: &str = "joins";
const LONG: Duration = Duration::from_secs(20);
/// The steps of a publication, in order.
const STEPS: [&str; 5] = ["loan.block", "publish.described", "publish.complete", "publish.reserved", "publish.woken"];

fn publisher_qos(durability: Durability) -> PublisherQos {
    PublisherQos { durability, history_depth: 1, ..PublisherQos::default() }
}

fn subscriber(node: &Node, durability: Durability) -> Subscriber<Bytes> {
    let qos = SubscriberQos { history: History::KeepAll, durability, ..SubscriberQos::default() };
    node.subscriber_with(TOPIC, qos).unwrap()
}

/// How many messages a publisher publishes.
fn messages(role: &str) -> u8 {
    if role == "latched twice" { 2 } else { 1 }
}

#[test]
#[ignore = "the publisher's program, started by the tests of this file"]
fn role_of_a_publisher() {
    let Ok(role) = std::env::var("RGAPS_TEST_JOINS") else { return };
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let durability = if role == "volatile" { Durability::Volatile } else { Durability::TransientLocal };
    let node = Node::builder().no_autostart().build().unwrap();
    let publisher = node.publisher_with::<Bytes>(TOPIC, publisher_qos(durability)).unwrap();
    for number in 1..=messages(&role) {
        publisher.push(&Bytes::new(1), &[number]).unwrap();
    }
    println!("published");
    // It loans nothing more, and prints the bytes in use in its pool for each line of input.
    for line in std::io::stdin().lines().map_while(Result::ok) {
        println!("{line} {}", publisher.statistics().used_bytes);
    }
}

/// A publisher in a new process, which stops at a step of its last publication.
struct Publisher {
    child: Child,
}

impl Publisher {
    fn stopped_at(step: &str, role: &str, dir: &RuntimeDir) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role_of_a_publisher", "--ignored", "--nocapture"]);
        command.env("RGAPS_TEST_JOINS", role).env("RGAPS_RUNTIME_DIR", dir.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        CrashPoint::new(step).at_passage(messages(role).into()).doing(Action::Stop).arm(&mut command);
        let mut child = Child::spawn(&mut command).unwrap();
        let outcome = child.wait_end_or_stop_within(LONG).unwrap();
        assert!(matches!(outcome, Ended::Stopped), "{outcome:?} at {step}");
        Self { child }
    }

    fn go_on(&mut self) {
        self.child.go_on().unwrap();
        self.hear("published");
    }

    fn used_bytes(&mut self) -> u64 {
        self.child.std().stdin.as_mut().unwrap().write_all(b"used\n").unwrap();
        self.hear("used ").parse().unwrap()
    }

    /// The rest of the next output line that contains the word.
    fn hear(&mut self, word: &str) -> String {
        self.child.output_after(word).unwrap_or_else(|| panic!("the publisher ended without {word:?}"))
    }
}

fn is_isolated() -> bool {
    again_with(&[("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")], |_| Ok(()))
}

#[test]
fn a_subscriber_that_joins_at_any_step_of_a_publication_pins_no_message() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    for step in STEPS {
        let dir = RuntimeDir::new("joins").unwrap();
        let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
        let mut publisher = Publisher::stopped_at(step, "volatile", &dir);
        let joined = subscriber(&node, Durability::Volatile);
        publisher.go_on();
        let taken = joined.take().unwrap().map(|sample| sample.bytes().to_vec());
        let statistics = joined.statistics();
        // A subscriber that joins before the message has its position gets it; a later one does not.
        let is_before = matches!(step, "loan.block" | "publish.described" | "publish.complete");
        assert_eq!((taken, statistics.lost), (is_before.then(|| vec![1]), 0), "joined at {step}");
        let deadline = Instant::now() + LONG;
        while publisher.used_bytes() > 0 {
            assert!(Instant::now() < deadline, "a message that no subscriber needs is kept after a join at {step}");
        }
    }
}

#[test]
fn a_late_joiner_at_any_step_of_a_publication_gets_the_latched_message() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    for step in STEPS {
        let dir = RuntimeDir::new("joins_late").unwrap();
        let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
        let mut publisher = Publisher::stopped_at(step, "latched", &dir);
        let late = subscriber(&node, Durability::TransientLocal);
        publisher.go_on();
        let taken = late.wait(LONG).unwrap().map(|sample| sample.bytes().to_vec());
        assert_eq!((taken, late.statistics().lost), (Some(vec![1]), 0), "joined at {step}");
        assert!(late.take().unwrap().is_none(), "once");
    }
}

#[test]
fn a_late_joiner_gets_no_more_than_the_last_k_of_a_stopped_publisher() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let values = |subscriber: &Subscriber<Bytes>| -> Vec<u8> {
        subscriber.take_all().unwrap().iter().map(|sample| sample.bytes().to_vec()).collect::<Vec<_>>().concat()
    };
    for step in STEPS {
        let dir = RuntimeDir::new("joins_last").unwrap();
        let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
        let mut publisher = Publisher::stopped_at(step, "latched twice", &dir);
        let late = subscriber(&node, Durability::TransientLocal);
        let first = values(&late);
        publisher.go_on();
        let is_before = matches!(step, "loan.block" | "publish.described" | "publish.complete");
        let expected = if is_before { (vec![1], vec![2]) } else { (vec![2], vec![]) };
        assert_eq!((first, values(&late)), expected, "joined at {step}: its history_depth is 1");
        assert_eq!(late.statistics().lost, 0);
    }
}
