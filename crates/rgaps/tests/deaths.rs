//! Sudden death at every named step: kill -9 and SIGSTOP of publishers, subscribers and managers, with survivors that go on.
//!
//! RGAPS_TEST_DEATH_ROUNDS sets how many rounds the loop runs (default 120; `./dev test-deaths` runs 2,000).

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Durability, Exhaustion, Frame, History, Node, Publisher, PublisherQos, Subscriber, SubscriberQos};
use rgaps_testing::{Action, Child, CrashPoint, Ended, RuntimeDir, Watchdog};

const TOPIC: &str = "deaths";
const PAYLOAD_BYTES: u64 = 20_000;
const LONG: Duration = Duration::from_secs(20);
/// Steps of a publisher, in its order.
const PUBLISHER_STEPS: [&str; 8] = [
    "loan.entry",
    "loan.block",
    "publish.addressed",
    "publish.complete",
    "publish.claimed",
    "publish.offered",
    "publish.woken",
    "reclaim.won",
];
/// Steps of a subscriber.
const SUBSCRIBER_STEPS: [&str; 2] = ["take.held", "release.done"];
/// Steps of the manager that sends, and of the one that receives.
const SENDER_STEPS: [&str; 3] = ["link.begin", "link.chunk", "link.sent"];
const ARRIVAL_STEPS: [&str; 3] = ["arrival.begin", "arrival.chunk", "arrival.published"];

fn rounds() -> u32 {
    std::env::var("RGAPS_TEST_DEATH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(120)
}

fn publisher_qos() -> PublisherQos {
    PublisherQos { exhaustion: Exhaustion::DropOldest, pool_bytes: Some(1 << 20), ..PublisherQos::default() }
}

/// A payload that proves itself: its number, and bytes that follow from it.
fn publish(publisher: &Publisher<Bytes>, number: u64) -> Result<(), rgaps::PublishError> {
    let mut loan = publisher.loan(Bytes::new(PAYLOAD_BYTES))?;
    loan[..8].copy_from_slice(&number.to_le_bytes());
    let (head, body) = loan.split_at_mut(8);
    body.fill(head[0] ^ 0x5a);
    loan.publish().map(|_| ())
}

/// The number of a frame, after all of its bytes were checked.
fn proven(frame: &Frame<Bytes>) -> u64 {
    let (head, body) = frame.bytes().split_at(8);
    assert!(body.iter().all(|byte| *byte == head[0] ^ 0x5a), "a wrong frame: {:?}", frame.info());
    u64::from_le_bytes(head.try_into().unwrap())
}

/// This test program again, as a victim in a role.
fn victim(role: &str, dir: &RuntimeDir) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_a_victim", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_DEATH_ROLE", role).env("RGAPS_RUNTIME_DIR", dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

#[test]
#[ignore = "the victims' program, started by the tests of this file"]
fn role_of_a_victim() {
    let Ok(role) = std::env::var("RGAPS_TEST_DEATH_ROLE") else { return };
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let node = Node::new("victim").unwrap();
    match role.as_str() {
        "publisher" => {
            let publisher = node.publisher_with::<Bytes>(TOPIC, publisher_qos()).unwrap();
            println!("ready");
            for number in 1_000_000.. {
                // A full table is no reason to end: the survivor keeps all.
                match publish(&publisher, number) {
                    Ok(()) | Err(rgaps::PublishError::NoSpace { .. }) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        "subscriber" => {
            let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
            println!("ready");
            let mut held = Vec::new();
            loop {
                if let Some(frame) = subscriber.wait(LONG).unwrap() {
                    proven(&frame);
                    held.push(frame);
                }
                if held.len() > 3 {
                    held.remove(0);
                }
            }
        }
        other => panic!("no role {other}"),
    }
}

/// The manager of a runtime directory.
fn manager_of(dir: &RuntimeDir) -> u32 {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        let managers = dir.users().unwrap().into_iter().filter(|pid| {
            // Not the process that only starts it in a session of its own and leaves.
            std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--detached"))
        });
        if let Some(pid) = managers.max() {
            return pid;
        }
        std::thread::yield_now();
    }
    panic!("no manager in {}", dir.path().display());
}

/// What a process holds open and mapped of ours: grows only if something leaks.
fn holdings(pid: u32) -> (usize, usize) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    (descriptors, maps.lines().filter(|line| line.contains("memfd:rgaps")).count())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {} s: {what}", LONG.as_secs());
        std::thread::yield_now();
    }
}

/// A publisher and a subscriber that must not notice anybody's death.
struct Survivors {
    publisher: Publisher<Bytes>,
    subscriber: Subscriber<Bytes>,
    node: Node,
    number: u64,
}

impl Survivors {
    fn new(dir: &RuntimeDir) -> Self {
        let node = Node::builder().name("survivor").runtime_dir(dir.path()).build().unwrap();
        let qos = PublisherQos { exhaustion: Exhaustion::Refuse, ..publisher_qos() };
        let publisher = node.publisher_with::<Bytes>(TOPIC, qos).unwrap();
        // Keep-all: not one message may be missing, whatever victims flood the topic with.
        let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
        let subscriber = node.subscriber_with::<Bytes>(TOPIC, qos).unwrap();
        Self { publisher, subscriber, node, number: 0 }
    }

    /// Publishes some and takes them all; frames of victims come in between and must be whole too.
    fn go_on(&mut self) {
        for _ in 0..3 {
            self.number += 1;
            let wanted = self.number;
            until("there is space for the survivors' message", || {
                let published = publish(&self.publisher, wanted);
                // Full of victims' messages: take them, as a subscriber of its own process would.
                published.inspect_err(|_| self.drain()).is_ok()
            });
            loop {
                let frame = self.subscriber.wait(LONG).unwrap().expect("the survivors' own message comes");
                if proven(&frame) == wanted {
                    break;
                }
            }
        }
    }

    /// Takes what victims left.
    fn drain(&self) {
        while let Some(frame) = self.subscriber.take().unwrap() {
            proven(&frame);
        }
    }

    /// Nobody else is in the topic and nothing of the dead is left in it.
    fn are_alone(&self) -> bool {
        self.drain();
        let topics = self.node.topics().unwrap();
        let topic = topics.iter().find(|topic| topic.key.name() == format!("/{TOPIC}")).unwrap();
        topic.publishers == 1 && topic.subscribers == 1
    }
}

fn wait_until_ready(child: &mut Child) {
    let stdout = child.std().stdout.take().unwrap();
    let mut lines = BufReader::new(stdout).lines();
    // The pipe ends if the victim dies first, which at an early step it does.
    let _ = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ready")));
}

/// One round: a victim dies, or is stopped and goes on and dies, at a named step.
fn round(dir: &RuntimeDir, survivors: &mut Survivors, role: &str, step: &str, passage: u32, action: Action) {
    let mut command = victim(role, dir);
    let point = CrashPoint::new(step).at_passage(passage).doing(action);
    point.arm(&mut command);
    let mut child = Child::spawn(&mut command).unwrap();
    if role == "subscriber" {
        wait_until_ready(&mut child);
    }
    // A subscriber needs messages to get to its step.
    let deadline = Instant::now() + LONG;
    let ended = loop {
        survivors.go_on();
        match child.wait_end_or_stop_within(Duration::ZERO).unwrap() {
            Ended::StillRunning => assert!(Instant::now() < deadline, "{role} did not get to {step}"),
            ended => break ended,
        }
    };
    match (ended, action) {
        (Ended::Stopped, _) => {
            survivors.go_on();
            child.go_on().unwrap();
            survivors.go_on();
            child.kill().unwrap();
        }
        (Ended::Exited(status), Action::Kill) => assert!(status.code().is_none(), "{role} at {step}: {status}"),
        (ended, action) => panic!("{role} at {step}: {ended:?} after {action:?}"),
    }
    survivors.go_on();
}

#[test]
fn survivors_go_on_whatever_dies_and_nothing_is_leaked() {
    let _watchdog = Watchdog::new(Duration::from_secs(1800));
    let dir = RuntimeDir::new("deaths").unwrap();
    isolate();
    let mut survivors = Survivors::new(&dir);
    survivors.go_on();
    let mut manager = manager_of(&dir);
    let mut start = holdings(manager);
    for number in 0..rounds() {
        let n = number as usize;
        let action = if number % 3 == 2 { Action::Stop } else { Action::Kill };
        let passage = 1 + number % 7;
        match number % 10 {
            9 => {
                // The manager itself: local topics go on, its successor takes them over.
                kill_dead(manager);
                survivors.go_on();
                until("a successor", || manager_of(&dir) != manager);
                manager = manager_of(&dir);
                until("the topic is handed back", || survivors.are_alone());
                start = holdings(manager);
            }
            2 | 5 | 8 => {
                let step = SUBSCRIBER_STEPS[n / 10 % SUBSCRIBER_STEPS.len()];
                round(&dir, &mut survivors, "subscriber", step, passage, action);
            }
            _ => {
                let step = PUBLISHER_STEPS[n % PUBLISHER_STEPS.len()];
                round(&dir, &mut survivors, "publisher", step, passage, action);
            }
        }
        until("the dead have left the topic", || survivors.are_alone());
    }
    until("every block is free again", || {
        survivors.go_on();
        survivors.drain();
        survivors.publisher.statistics().outstanding <= 1
    });
    until("the manager holds what it held at the start", || holdings(manager) == start);
    let statistics = survivors.subscriber.statistics();
    assert_eq!((statistics.held, statistics.lost), (0, 0));
}

fn kill_dead(pid: u32) {
    let status = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Managers that this process starts look for nobody.
fn isolate() {
    // SAFETY: no other thread of this test program reads or writes the environment at this moment: tests that start managers do so
    // through commands of their own, and this is the only one that relies on inheritance.
    unsafe { std::env::set_var("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST") };
}

/// Two managers on loopback addresses.
struct TwoHosts {
    dirs: [RuntimeDir; 2],
    ports: [u16; 2],
}

impl TwoHosts {
    fn new(name: &str) -> Self {
        let dirs = [RuntimeDir::new(&format!("{name}a")).unwrap(), RuntimeDir::new(&format!("{name}b")).unwrap()];
        let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { dirs, ports: [port(), port()] }
    }

    fn manager(&self, host: usize) -> Command {
        let program = rgaps_testing::programs::find("rgapsd");
        let mut command = Command::new(program);
        self.dirs[host].apply(&mut command);
        command
            .env("RGAPS_HOST_NAME", format!("host{host}"))
            .env("RGAPS_MULTICAST", "off")
            .env("RGAPS_LISTEN", format!("tcp/127.0.0.1:{}", self.ports[host]))
            .env("RGAPS_PEERS", format!("tcp/127.0.0.1:{}", self.ports[1 - host]))
            .env("RGAPS_DATA_ADDRESS", format!("127.0.0.{}", host + 1))
            .env("RGAPS_CHUNK_BYTES", "4096")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn node(&self, host: usize) -> Node {
        until("the manager listens", || self.dirs[host].path().join("rgapsd.sock").exists());
        // The manager that takes over is the test's, which knows the other host, not one that the node would start.
        Node::builder().runtime_dir(self.dirs[host].path()).no_autostart().build().unwrap()
    }
}

/// A manager dies at a named step of a link; the other host gets whole frames only, and after the restart the newest ones.
fn a_manager_dies_at(step: &str, mortal: usize) {
    let hosts = TwoHosts::new("l");
    let mut managers = BTreeMap::new();
    for host in 0..2 {
        let mut command = hosts.manager(host);
        if host == mortal {
            CrashPoint::new(step).at_passage(5).arm(&mut command);
        }
        managers.insert(host, Child::spawn(&mut command).unwrap());
    }
    let (sending, receiving) = (hosts.node(0), hosts.node(1));
    let qos = PublisherQos { durability: Durability::Volatile, ..publisher_qos() };
    let publisher = sending.publisher_with::<Bytes>(TOPIC, qos).unwrap();
    let subscriber = receiving.subscriber::<Bytes>(TOPIC).unwrap();
    let mut number = 0;
    let mut newest = 0;
    let mut exchange = |publisher: &Publisher<Bytes>| {
        number += 1;
        publish(publisher, number).unwrap();
        while let Some(frame) = subscriber.wait(Duration::from_millis(2)).unwrap() {
            let found = proven(&frame);
            assert!(found > newest, "frame {found} after {newest}: a duplicate, or out of order");
            newest = found;
        }
        (number, newest)
    };
    let dead = managers.get_mut(&mortal).unwrap();
    until(&format!("the manager dies at {step}"), || {
        exchange(&publisher);
        dead.wait_within(Duration::ZERO).unwrap() != Ended::StillRunning
    });
    // The same command again, without the crash point: what a service manager would do.
    managers.insert(mortal, Child::spawn(&mut hosts.manager(mortal)).unwrap());
    let (at_restart, _) = exchange(&publisher);
    until("frames published after the restart arrive", || exchange(&publisher).1 > at_restart);
}

#[test]
fn a_sending_manager_may_die_at_every_step() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    SENDER_STEPS.iter().for_each(|step| a_manager_dies_at(step, 0));
}

#[test]
fn a_receiving_manager_may_die_at_every_step() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    ARRIVAL_STEPS.iter().for_each(|step| a_manager_dies_at(step, 1));
}
