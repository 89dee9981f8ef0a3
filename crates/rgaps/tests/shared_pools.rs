//! Pools that publishers of several topics share, with real managers and processes.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{
    Durability, Exhaustion, History, LoanError, Node, Origin, Pool, PublishError, Publisher, PublisherQos, Sample,
    Subscriber, SubscriberQos,
};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, kill_9, manager, programs, until};

const LONG: Duration = Duration::from_secs(20);
/// Where a test that starts itself again tells the other process the runtime directory.
const DIR: &str = "SHARED_POOLS_DIR";
const BYTES: u64 = 100_000;
/// Room for eight buffers.
const POOL_BYTES: u64 = 8 * (100_352 + 2048);

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local").env("RGAPS_IDLE_TIMEOUT_MS", "600000");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

/// A pool with publishers on two topics.
struct Source {
    pool: Pool,
    publishers: [Publisher<Bytes>; 2],
    fill: u8,
}

impl Source {
    fn new(node: &Node, exhaustion: Exhaustion) -> Self {
        let pool = node.pool(POOL_BYTES, exhaustion).unwrap();
        let qos = PublisherQos { exhaustion, ..PublisherQos::default() };
        let publishers = ["left", "right"].map(|topic| pool.publisher_with::<Bytes>(topic, qos).unwrap());
        Self { pool, publishers, fill: 0 }
    }

    /// Publishes one buffer on these topics.
    fn publish(&mut self, on: &[usize]) -> Result<u8, PublishError> {
        let mut buffer = self.pool.allocate(BYTES)?;
        self.fill += 1;
        buffer.fill(self.fill);
        let buffer = buffer.freeze()?;
        for of in on {
            self.publishers[*of].publish_buffer(&Bytes::new(BYTES), &buffer)?;
        }
        Ok(self.fill)
    }
}

fn is_filled(sample: &Sample<Bytes>, fill: u8) -> bool {
    sample.bytes().len() as u64 == BYTES && sample.bytes().iter().all(|byte| *byte == fill)
}

fn subscriber(node: &Node, topic: &str, depth: u32) -> Subscriber<Bytes> {
    let qos = SubscriberQos { history: History::KeepLast(depth), ..SubscriberQos::default() };
    node.subscriber_with(topic, qos).unwrap()
}

#[test]
fn subscribers_of_two_topics_read_one_block_and_it_is_freed_after_the_last() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("shared").unwrap();
    let _manager = rgapsd(&dir);
    let mut source = Source::new(&node(&dir), Exhaustion::Refuse);
    let reading = node(&dir);
    let subscribers = ["left", "right"].map(|topic| subscriber(&reading, topic, 10));
    for _ in 0..100 {
        let fill = source.publish(&[0, 1]).unwrap();
        let samples = [0, 1].map(|of: usize| subscribers[of].wait(LONG).unwrap().unwrap());
        assert!(samples.iter().all(|sample| is_filled(sample, fill)));
        assert!(samples.iter().all(|sample| sample.info().origin == Origin::Loaned));
        until("one block is in use", || source.pool.used_bytes() == 100_352);
        drop(samples);
        until("no block is in use", || source.pool.used_bytes() == 0);
        source.fill %= 200;
    }
    // What a publisher of the pool loans and pushes is in it, too.
    source.publishers[0].push(&Bytes::new(3), b"abc").unwrap();
    assert_eq!(subscribers[0].wait(LONG).unwrap().unwrap().bytes(), b"abc");
    assert_eq!(source.publishers[1].statistics().pool_bytes, source.publishers[0].statistics().pool_bytes);
}

#[test]
fn a_buffer_is_refused_by_publishers_of_another_pool_and_with_another_length() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("foreign").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let (source, other) = (Source::new(&node, Exhaustion::Refuse), node.pool(1 << 20, Exhaustion::Refuse).unwrap());
    let own = node.publisher::<Bytes>("left").unwrap();
    let foreign = other.allocate(BYTES).unwrap().freeze().unwrap();
    for publisher in [&own, &source.publishers[0]] {
        let refused = publisher.publish_buffer(&Bytes::new(BYTES), &foreign).unwrap_err();
        assert!(matches!(refused, PublishError::AnotherPool { .. }), "{refused}");
    }
    let buffer = source.pool.allocate(BYTES).unwrap().freeze().unwrap();
    let refused = source.publishers[0].publish_buffer(&Bytes::new(BYTES - 1), &buffer).unwrap_err();
    assert!(matches!(refused, PublishError::Length { .. }), "{refused}");
    let too_large = source.pool.allocate(POOL_BYTES + 1).unwrap_err();
    assert!(matches!(too_large, PublishError::NoSpace { source: LoanError::TooLarge { .. }, .. }), "{too_large}");
}

#[test]
fn a_full_pool_gives_up_unread_messages_of_all_topics_and_never_what_is_held() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("full").unwrap();
    let _manager = rgapsd(&dir);
    let mut source = Source::new(&node(&dir), Exhaustion::DropOldest);
    let reading = node(&dir);
    let subscribers = ["left", "right"].map(|topic| subscriber(&reading, topic, 100));
    let first = source.publish(&[0, 1]).unwrap();
    let held = subscribers[0].wait(LONG).unwrap().unwrap();
    for _ in 0..30 {
        source.publish(&[0, 1]).unwrap();
    }
    assert!(is_filled(&held, first));
    let taken = |subscriber: &Subscriber<Bytes>| -> Vec<u8> {
        std::iter::from_fn(|| subscriber.take().unwrap()).map(|sample| sample.bytes()[0]).collect()
    };
    // Eight blocks, of which one is held.
    assert_eq!(taken(&subscribers[0]), [25, 26, 27, 28, 29, 30, 31]);
    assert_eq!(taken(&subscribers[1]), [25, 26, 27, 28, 29, 30, 31]);
    assert_eq!((subscribers[0].statistics().lost, subscribers[1].statistics().lost), (23, 24));

    // A keep-all subscriber loses nothing: the next allocation is refused.
    let all = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
    let all = reading.subscriber_with::<Bytes>("right", all).unwrap();
    let refused = (0..8).find_map(|_| source.publish(&[1]).err()).unwrap();
    assert!(matches!(refused, PublishError::NoSpace { .. }), "{refused}");
    assert_eq!(taken(&all).len(), 7);
    source.publish(&[1]).unwrap();
}

#[test]
fn a_pool_that_waits_names_who_keeps_it_full_and_then_passes_over_idle_subscribers() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("waits").unwrap();
    let _manager = rgapsd(&dir);
    let mut source = Source::new(&node(&dir), Exhaustion::within(Duration::from_millis(50)));
    let reading = node(&dir);
    let idle = subscriber(&reading, "left", 100);
    for _ in 0..20 {
        source.publish(&[0]).unwrap();
    }
    let held: Vec<_> = std::iter::from_fn(|| idle.take().unwrap()).collect();
    assert!(held.iter().map(|sample| sample.bytes()[0]).eq(13..=20));
    let error = source.publish(&[0]).unwrap_err().to_string();
    let pid = std::process::id();
    assert!(error.contains(&format!("a subscriber of process {pid} keeps the oldest message")), "{error}");
    drop(held);
    source.publish(&[0]).unwrap();
}

#[test]
fn an_allocation_does_not_wait_for_a_subscriber_that_read_nothing_during_a_wait() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("idle").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let pool = node.pool(POOL_BYTES, Exhaustion::within(Duration::from_secs(3600))).unwrap();
    let qos = PublisherQos { exhaustion: Exhaustion::within(Duration::from_millis(50)), ..PublisherQos::default() };
    let publisher = pool.publisher_with::<Bytes>("left", qos).unwrap();
    let idle = subscriber(&node, "left", 100);
    // Eight blocks: the ninth message waits for the subscriber, and then takes the first one's.
    for _ in 0..9 {
        publisher.push(&Bytes::new(BYTES), &[1; BYTES as usize]).unwrap();
    }
    let buffers: Vec<_> = (0..8).map(|_| pool.allocate(BYTES).unwrap()).collect();
    assert_eq!((idle.take().unwrap().map(drop), idle.statistics().lost), (None, 9));
    drop(buffers);
}

#[test]
fn history_is_given_up_last() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("history").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let mut source = Source::new(&node, Exhaustion::DropOldest);
    let latched = PublisherQos { durability: Durability::TransientLocal, history_depth: 1, ..PublisherQos::default() };
    let map = source.pool.publisher_with::<Bytes>("map", latched).unwrap();
    map.push(&Bytes::new(3), b"map").unwrap();
    let slow = subscriber(&node, "left", 100);
    for _ in 0..30 {
        source.publish(&[0]).unwrap();
    }
    let late = SubscriberQos { durability: Durability::TransientLocal, ..SubscriberQos::default() };
    let late = node.subscriber_with::<Bytes>("map", late).unwrap();
    assert_eq!(late.wait(LONG).unwrap().unwrap().bytes(), b"map");
    // Buffers leave no other room.
    let buffers: Vec<_> = std::iter::from_fn(|| source.pool.allocate(BYTES).ok()).collect();
    assert_eq!(buffers.len(), 8);
    assert!(slow.take().unwrap().is_none());
}

#[test]
fn a_loan_takes_what_another_topic_no_longer_needs_before_its_own_history() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unneeded").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let mut source = Source::new(&node, Exhaustion::DropOldest);
    let latched = PublisherQos { durability: Durability::TransientLocal, history_depth: 2, ..PublisherQos::default() };
    let map = source.pool.publisher_with::<Bytes>("map", latched).unwrap();
    for byte in [1, 2] {
        map.push(&Bytes::new(BYTES), &[byte; BYTES as usize]).unwrap();
    }
    // Nobody reads it, and its publisher loans nothing more.
    source.publish(&[0]).unwrap();
    let _buffers = [(); 5].map(|()| source.pool.allocate(BYTES).unwrap());
    drop(map.loan(Bytes::new(BYTES)).unwrap());
    let late = SubscriberQos { durability: Durability::TransientLocal, ..SubscriberQos::default() };
    let late = node.subscriber_with::<Bytes>("map", late).unwrap();
    let kept: Vec<u8> = std::iter::from_fn(|| late.take().unwrap()).map(|sample| sample.bytes()[0]).collect();
    assert_eq!(kept, [1, 2]);
}

#[test]
fn a_publisher_whose_entries_are_all_unread_drops_the_oldest() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("entries").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let source = Source::new(&node, Exhaustion::DropOldest);
    let slow = subscriber(&node, "left", 1000);
    for number in 0..600_u64 {
        source.publishers[0].push(&Bytes::new(8), &number.to_le_bytes()).unwrap();
    }
    let last = std::iter::from_fn(|| slow.take().unwrap()).last().unwrap();
    assert_eq!(last.bytes(), 599_u64.to_le_bytes());
    assert!(slow.statistics().lost > 0);
}

#[test]
fn what_a_publisher_left_behind_stays_until_it_is_read() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("left").unwrap();
    let _manager = rgapsd(&dir);
    let Source { pool, publishers, .. } = {
        let mut source = Source::new(&node(&dir), Exhaustion::Refuse);
        let reading = node(&dir);
        let subscriber = subscriber(&reading, "left", 10);
        let fills = [source.publish(&[0]).unwrap(), source.publish(&[0]).unwrap()];
        let held = subscriber.wait(LONG).unwrap().unwrap();
        let [left, right] = source.publishers;
        drop(left);
        // The others of the pool fill all that is free.
        let mut buffers: Vec<_> = std::iter::from_fn(|| source.pool.allocate(BYTES).ok()).collect();
        assert_eq!(buffers.len(), 6);
        buffers.iter_mut().for_each(|buffer| buffer.fill(255));
        assert!(is_filled(&held, fills[0]));
        drop(held);
        assert!(is_filled(&subscriber.wait(LONG).unwrap().unwrap(), fills[1]));
        drop(buffers);
        Source { pool: source.pool, publishers: [right.clone(), right], fill: 0 }
    };
    until("the manager has freed both", || pool.used_bytes() == 0);
    assert!(publishers[0].statistics().pool_bytes >= POOL_BYTES);
}

#[test]
fn publishers_that_come_and_go_in_a_pool_leave_nothing_open() {
    // It counts what the process has open.
    if !again_with(&[], |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("come-and-go").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    // It never fills, so nobody looks for space.
    let pool = node.pool(64 << 20, Exhaustion::Refuse).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let come_and_go = |number: u32| {
        let topic = format!("topic{number}");
        let subscriber = number.is_multiple_of(2).then(|| subscriber(&node, &topic, 1));
        pool.publisher::<Bytes>(&topic).unwrap().push(&Bytes::new(3), b"abc").unwrap();
        drop(subscriber);
    };
    come_and_go(0);
    let before = open();
    (1..100).for_each(come_and_go);
    let mut number = 100;
    until("the manager has freed what was not read", || {
        number += 1;
        come_and_go(number);
        open() <= before + 2
    });
}

#[test]
fn what_a_publisher_left_behind_is_freed_by_a_successor() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("left-over").unwrap();
    let mut manager = rgapsd(&dir);
    let mut source = Source::new(&node(&dir), Exhaustion::Refuse);
    let reading = node(&dir);
    let subscriber = subscriber(&reading, "left", 10);
    let fill = source.publish(&[0]).unwrap();
    let held = subscriber.wait(LONG).unwrap().unwrap();
    let [left, _right] = source.publishers;
    drop(left);
    manager.kill().unwrap();
    let _next = rgapsd(&dir);
    until("the subscriber has handed its slot back", || reading.topics().is_ok_and(|topics| !topics.is_empty()));
    assert!(is_filled(&held, fill) && source.pool.used_bytes() > 0);
    drop(held);
    until("the successor has freed the message", || source.pool.used_bytes() == 0);
}

#[test]
fn a_successor_serves_a_shared_pool_to_old_and_new_subscribers() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("successor").unwrap();
    let mut manager = rgapsd(&dir);
    let mut source = Source::new(&node(&dir), Exhaustion::DropOldest);
    let reading = node(&dir);
    let old = subscriber(&reading, "left", 10);
    let fill = source.publish(&[0, 1]).unwrap();
    let held = old.wait(LONG).unwrap().unwrap();
    // Every page is used.
    let buffers = std::iter::from_fn(|| source.pool.allocate(BYTES).ok());
    let mut buffers: Vec<_> = buffers.collect();
    buffers.iter_mut().for_each(|buffer| buffer.fill(255));
    drop(buffers);
    let resident = |node: &Node| node.topics().unwrap().iter().map(|topic| topic.resident_bytes).sum::<u64>();
    for round in 0..2 {
        manager.kill().unwrap();
        manager = rgapsd(&dir);
        assert!(is_filled(&held, fill));
        let late = [0, 1].map(|of: usize| subscriber(&node(&dir), ["left", "right"][of], 10));
        let fill = source.publish(&[0, 1]).unwrap();
        assert!(late.iter().all(|late| is_filled(&late.wait(LONG).unwrap().unwrap(), fill)));
        assert!(is_filled(&old.wait(LONG).unwrap().unwrap(), fill));
        // The pool counts once, and each of three segments and its words has a little.
        let once = POOL_BYTES..POOL_BYTES * 3 / 2;
        assert!(once.contains(&resident(&reading)), "round {round}: {} B", resident(&reading));
    }
    drop((source, held, old));
    let topics = || reading.topics().unwrap();
    until("nothing of the pool is left", || topics().is_empty());
}

/// In a process of its own: publishes two buffers on both topics, and kills itself.
fn publish_and_die() {
    let dir = std::env::var(DIR).unwrap();
    let node = Node::builder().runtime_dir(dir).no_autostart().build().unwrap();
    let mut source = Source::new(&node, Exhaustion::Refuse);
    for _ in 0..2 {
        source.publish(&[0, 1]).unwrap();
    }
    kill_9(std::process::id()).unwrap();
}

#[test]
fn a_killed_process_takes_no_message_from_its_readers() {
    if std::env::var_os(DIR).is_some() {
        return publish_and_die();
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("killed").unwrap();
    let _manager = rgapsd(&dir);
    let reading = node(&dir);
    let subscribers = ["left", "right"].map(|topic| subscriber(&reading, topic, 10));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_killed_process_takes_no_message_from_its_readers"]).env(DIR, dir.path());
    Child::spawn(&mut command).unwrap().wait_within(LONG).unwrap();
    for fill in [1, 2] {
        assert!(subscribers.iter().all(|subscriber| is_filled(&subscriber.wait(LONG).unwrap().unwrap(), fill)));
    }
    let topics = || reading.topics().unwrap();
    until("its pool is freed", || topics().len() == 2 && topics().iter().all(|topic| topic.publishers == 0));
    until("its memory is freed", || topics().iter().all(|topic| topic.resident_bytes < BYTES));
}

#[test]
fn another_host_gets_each_message_once_and_never_hears_of_the_pool() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    let dirs = ["here", "there"].map(|host| RuntimeDir::new(&format!("pools-{host}")).unwrap());
    let _managers = [0, 1].map(|of: usize| {
        let mut command = Command::new(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_MULTICAST", "off");
        command.env("RGAPS_LISTEN", format!("tcp/127.0.0.1:{}", ports[of]));
        command.env("RGAPS_PEERS", format!("tcp/127.0.0.1:{}", ports[1 - of]));
        manager::start(&dirs[of], command).unwrap()
    });
    let mut source = Source::new(&node(&dirs[0]), Exhaustion::DropOldest);
    let there = node(&dirs[1]);
    let subscribers = ["left", "right"].map(|topic| subscriber(&there, topic, 10));
    until("both topics are linked", || {
        let linked = |of: usize| source.publishers[of].linked_subscriber_count() == 1;
        linked(0) && linked(1)
    });
    for _ in 0..50 {
        let fill = source.publish(&[0, 1]).unwrap();
        assert!(subscribers.iter().all(|subscriber| is_filled(&subscriber.wait(LONG).unwrap().unwrap(), fill)));
    }
    assert!(subscribers.iter().all(|subscriber| subscriber.statistics().lost == 0));
    assert!(there.topics().unwrap().iter().all(|topic| !topic.key.is_pool()));
    drop(subscribers);
    until("the senders have left", || source.pool.used_bytes() == 0);
}

#[test]
fn a_buffer_is_filled_and_read_in_place() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("in-place").unwrap();
    let _manager = rgapsd(&dir);
    let pool = node(&dir).pool(1 << 20, Exhaustion::Refuse).unwrap();
    let buffer = pool.allocate(BYTES).unwrap();
    let filled = buffer.device_range().unwrap();
    let read = buffer.freeze().unwrap().device_range().unwrap();
    assert_eq!((filled.bytes, filled.is_read_only, read.is_read_only), (BYTES, false, true));
    assert_eq!(read.address, filled.address, "the same block");
}
