//! Publishers that missed a subscriber's announcement learn of it later, so that no message stays in their pools for it.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::fs::File;
use std::io::{BufRead, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, PublisherQos, Subscriber};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, manager, programs};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const TOPIC: &str = "unknown";
const LONG: Duration = Duration::from_secs(20);
/// Two such payloads fit into a pool.
static PAYLOAD: [u8; 20_000] = [1; 20_000];

/// `rgapsd`, with a limit on its file descriptors if there is one.
fn manager(dir: &RuntimeDir, limit: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit} exec \"$0\"")]).arg(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

fn qos_of_a_small_pool() -> PublisherQos {
    PublisherQos { pool_bytes: Some(1 << 16), ..PublisherQos::default() }
}

fn publisher(node: &Node) -> Publisher<Bytes> {
    let qos = PublisherQos { exhaustion: Exhaustion::Refuse, ..qos_of_a_small_pool() };
    node.publisher_with(TOPIC, qos).unwrap()
}

/// All subscribers take and drop each message, so the pool is never full for long if the publisher knows the subscribers.
fn assert_knows(publisher: &Publisher<Bytes>, subscribers: &[Subscriber<Bytes>]) {
    for round in 0..5 {
        let deadline = Instant::now() + LONG;
        loop {
            for subscriber in subscribers {
                while subscriber.take().unwrap().is_some() {}
            }
            match publisher.push(&Bytes::new(PAYLOAD.len() as u64), &PAYLOAD) {
                Ok(_) => break,
                Err(error) => assert!(Instant::now() < deadline, "message {round}, of which all were dropped: {error}"),
            }
            rgaps_testing::pause();
        }
    }
}

#[test]
fn publishers_and_subscribers_that_join_at_once_know_each_other() {
    let _watchdog = Watchdog::new(Duration::from_secs(150));
    let dir = RuntimeDir::new("unknown-race").unwrap();
    let _manager = manager(&dir, "");
    let (publishing, subscribing) = (node(&dir), node(&dir));
    let busy = publisher(&publishing);
    let (turn, over, made) = (Barrier::new(2), AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|scope| {
        // This keeps the node's thread waiting for the port.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = busy.push(&Bytes::new(8000), &PAYLOAD[..8000]);
            }
        });
        scope.spawn(|| {
            loop {
                turn.wait();
                if over.load(Ordering::Relaxed) {
                    return;
                }
                *made.lock().unwrap() = Some(subscribing.subscriber::<Bytes>(TOPIC).unwrap());
                turn.wait();
            }
        });
        for _ in 0..300 {
            turn.wait();
            let publisher = publisher(&publishing);
            turn.wait();
            let subscriber = made.lock().unwrap().take().unwrap();
            assert_knows(&publisher, &[subscriber]);
        }
        over.store(true, Ordering::Relaxed);
        turn.wait();
    });
}

#[test]
fn no_publication_that_drops_the_oldest_fails_since_a_subscriber_has_just_joined() {
    let _watchdog = Watchdog::new(Duration::from_secs(150));
    let dir = RuntimeDir::new("unknown-oldest").unwrap();
    let _manager = manager(&dir, "");
    let (publishing, subscribing) = (node(&dir), node(&dir));
    for _ in 0..200 {
        let qos = PublisherQos { exhaustion: Exhaustion::DropOldest, ..qos_of_a_small_pool() };
        let publisher = publishing.publisher_with::<Bytes>(TOPIC, qos).unwrap();
        let _subscriber = subscribing.subscriber::<Bytes>(TOPIC).unwrap();
        for message in 0..5 {
            let pushed = publisher.push(&Bytes::new(PAYLOAD.len() as u64), &PAYLOAD);
            pushed.unwrap_or_else(|error| panic!("message {message}: {error}"));
        }
    }
}

#[test]
#[ignore = "the subscriber's program, started by the tests of this file"]
fn role_of_a_subscriber() {
    let Ok(role) = std::env::var("RGAPS_TEST_UNKNOWN") else { return };
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let node = Node::builder().no_autostart().build().unwrap();
    println!("node");
    std::io::stdin().lock().lines().next();
    let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
    let event = (role != "words").then(|| subscriber.event_fd().unwrap());
    println!("joined");
    let wanted = if role == "one" { 1 } else { 5 };
    let mut taken = 0;
    while taken < wanted {
        if let Some(event) = event {
            assert!(rgaps_os::poll::readable(event, LONG).unwrap(), "the eventfd was not signalled");
        }
        while subscriber.take().unwrap().is_some() {
            taken += 1;
        }
        rgaps_testing::pause();
    }
    println!("taken");
    std::thread::park();
}

/// Another process with a node, which subscribes when it is told to.
fn subscriber_process(dir: &RuntimeDir, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_a_subscriber", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_UNKNOWN", role).env("RGAPS_RUNTIME_DIR", dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = Child::spawn(&mut command).unwrap();
    child.output_after("node").expect("it has a node");
    child
}

fn join(child: &mut Child) {
    child.std().stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    child.output_after("joined").expect("it joins");
}

/// Calls `meanwhile` while this process has only `free` file descriptors left.
fn while_few_are_free(free: usize, meanwhile: impl FnOnce()) {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), maximum: before.maximum }).unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len() - free);
    meanwhile();
    drop(taken);
    setrlimit(Resource::Nofile, before).unwrap();
}

/// A subscriber joins while the publisher's process has only `free` file descriptors left for a moment.
fn joins_while_few_are_free(role: &str, free: usize) {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unknown-fds").unwrap();
    let _manager = manager(&dir, "");
    let node = node(&dir);
    let publisher = publisher(&node);
    let mut child = subscriber_process(&dir, role);
    while_few_are_free(free, || {
        join(&mut child);
        // Once the node's thread has read a later answer of the manager, it has read the announcement and requests the subscriber. It has
        // that answer soon after.
        (0..5).for_each(|_| drop(node.topics()));
    });
    assert_knows(&publisher, &[]);
    child.output_after("taken").expect("it takes");
}

#[test]
fn a_publisher_that_leaves_without_knowing_a_subscriber_signals_it() {
    if !again_with(&[], |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unknown-left").unwrap();
    let _manager = manager(&dir, "");
    let node = node(&dir);
    let publisher = publisher(&node);
    let mut child = subscriber_process(&dir, "one");
    while_few_are_free(0, || {
        join(&mut child);
        publisher.push(&Bytes::new(1), &[1]).unwrap();
        drop(publisher);
        // The manager has read the detach request before it answers this.
        drop(node.topics());
    });
    child.output_after("taken").expect("it takes");
}

#[test]
fn a_publisher_that_left_while_a_subscriber_was_stopped_signals_it() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unknown-stopped").unwrap();
    let first = manager(&dir, "");
    let node = node(&dir);
    // It hands the topic back to the second manager.
    let _stays = publisher(&node);
    let mut child = subscriber_process(&dir, "one");
    join(&mut child);
    child.stop().unwrap();
    drop(first);
    let _second = manager(&dir, "");
    // The second manager cannot tell this publisher of the subscriber.
    let publisher = publisher(&node);
    publisher.push(&Bytes::new(1), &[1]).unwrap();
    drop(publisher);
    drop(node.topics());
    child.go_on().unwrap();
    child.output_after("taken").expect("it takes");
}

#[test]
fn a_publisher_without_free_file_descriptors_learns_of_a_new_subscriber_later() {
    if again_with(&[], |_| Ok(())) {
        joins_while_few_are_free("words", 0);
    }
}

#[test]
fn a_publisher_with_one_free_file_descriptor_signals_a_new_subscriber_later() {
    if again_with(&[], |_| Ok(())) {
        joins_while_few_are_free("event", 1);
    }
}

#[test]
fn a_manager_short_of_file_descriptors_announces_all_subscribers_later() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unknown-few").unwrap();
    let _manager = manager(&dir, "ulimit -n 128 &&");
    let node = node(&dir);
    let subscribers: Vec<_> = (0..100).map(|_| node.subscriber::<Bytes>(TOPIC).unwrap()).collect();
    let others = (0..).map_while(|number| node.subscriber::<Bytes>(&format!("other{number}")).ok());
    let mut others: Vec<_> = others.collect();
    others.truncate(others.len() - 20);
    let publisher = publisher(&node);
    drop(others);
    assert_knows(&publisher, &subscribers);
}

#[test]
fn a_client_of_many_publishers_of_one_topic_is_back_after_a_managers_death() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unknown-many").unwrap();
    let first = manager(&dir, "");
    let (publishing, subscribing) = (node(&dir), node(&dir));
    let subscribers: Vec<Subscriber<Bytes>> = (0..500).map(|_| subscribing.subscriber(TOPIC).unwrap()).collect();
    let publishers: Vec<_> = (0..100).map(|_| publisher(&publishing)).collect();
    drop(first);
    let _second = manager(&dir, "");
    let is_back = |node: &Node| {
        let topics = node.topics().unwrap_or_default();
        topics.first().is_some_and(|topic| (topic.publishers, topic.subscribers) == (100, 500))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_back(&publishing) {
        assert!(Instant::now() < deadline, "not all are back: {:?}", publishing.topics());
        rgaps_testing::pause();
    }
    drop((publishers, subscribers));
}
