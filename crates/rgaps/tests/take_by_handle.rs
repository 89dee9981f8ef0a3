//! Handles and takes by handle. Each host has its own manager.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::cell::Cell;
use std::process::{Command, Stdio};
use std::time::Duration;

use rgaps::types::{Bytes, Encoding, Image, Meta};
use rgaps::{
    Durability, Exhaustion, History, MessageHandle, Node, PublisherQos, Readiness, Subscriber, SubscriberQos,
    TakeByHandleError,
};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, programs};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

/// A host: a manager with its runtime directory.
struct Host {
    node: Node,
    _manager: Child,
    _dir: RuntimeDir,
}

impl Host {
    fn new(name: &str, address: &str, peer: &str) -> Self {
        let dir = RuntimeDir::new(name).unwrap();
        let mut command = Command::new(programs::find("rgapsd"));
        dir.apply(&mut command);
        command.env("RGAPS_NETWORK", "loopback").env("RGAPS_DEVICE", "host").env("RGAPS_PEER_TIMEOUT_MS", "60000");
        command.env("RGAPS_DATA_ADDRESS", address).env("RGAPS_LISTEN", format!("tcp/{address}:7467"));
        command.env("RGAPS_PEERS", format!("tcp/{peer}:7467")).stderr(Stdio::null());
        let manager = Child::spawn(&mut command).unwrap();
        Self { node: node(&dir), _manager: manager, _dir: dir }
    }
}

/// Connects once the manager serves; the watchdog ends an endless wait.
fn node(dir: &RuntimeDir) -> Node {
    loop {
        match Node::builder().runtime_dir(dir.path()).no_autostart().build() {
            Ok(node) => return node,
            Err(_) => rgaps_testing::pause(),
        }
    }
}

/// Runs the test again in a new process, whose nodes start their managers.
fn again() -> bool {
    let rgapsd = programs::find("rgapsd");
    again_with(
        &[("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")],
        |_| Ok(()),
    )
}

fn keep_all() -> SubscriberQos {
    SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() }
}

#[test]
fn the_handle_that_publish_returns_takes_that_message() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("handle").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    let subscriber = node.subscriber::<Bytes>("a").unwrap();
    let handles: Vec<MessageHandle> = (0..3).map(|n| publisher.push(&Bytes::new(4), &[n; 4]).unwrap()).collect();
    for n in [1, 0, 2] {
        let sample = subscriber.take_by_handle(&handles[n], Duration::ZERO).unwrap();
        assert_eq!((sample.bytes(), sample.handle()), (&[n as u8; 4][..], handles[n]));
    }
    // All are released, so the first one's entry is or will be reused.
    let again = subscriber.take_by_handle(&handles[0], LONG).unwrap_err();
    assert!(matches!(again, TakeByHandleError::Gone { sequence: 1, .. }), "{again}");
    let beyond = subscriber.take_by_handle(&MessageHandle { sequence: 9, ..handles[2] }, LONG).unwrap_err();
    assert!(matches!(beyond, TakeByHandleError::Gone { sequence: 9, .. }), "{beyond}");
    assert_eq!(subscriber.statistics().lost, 0);
}

#[test]
fn a_handle_of_another_kind_layout_run_or_generation_is_refused_at_once() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("refused").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    let subscriber = node.subscriber::<Bytes>("a").unwrap();
    let handle = publisher.push(&Bytes::new(1), &[1]).unwrap();
    let refused = |handle: MessageHandle| subscriber.take_by_handle(&handle, LONG).unwrap_err();
    let layout = refused(MessageHandle { layout_version: 7, ..handle });
    assert!(matches!(layout, TakeByHandleError::Layout { found: 7, .. }), "{layout}");
    let kind = refused(MessageHandle { kind: 1, ..handle });
    assert!(matches!(kind, TakeByHandleError::Kind { found: 1, .. }), "{kind}");
    let run = refused(MessageHandle { host_epoch: handle.host_epoch - 1, ..handle });
    assert!(matches!(run, TakeByHandleError::EarlierRun { .. }) && run.to_string().contains("earlier run"), "{run}");
    let life = refused(MessageHandle { generation: handle.generation.wrapping_sub(1), sequence: 2, ..handle });
    assert!(matches!(life, TakeByHandleError::Stale { .. }) && life.to_string().contains("generation"), "{life}");
    for nonsense in [
        MessageHandle::from_bytes(&[0; MessageHandle::BYTES]),
        MessageHandle::from_bytes(&[0xff; MessageHandle::BYTES]),
    ] {
        assert!(matches!(refused(nonsense), TakeByHandleError::Layout { .. }));
    }
    let nowhere = refused(MessageHandle { entry: u32::MAX, publisher: 5, ..handle });
    assert!(matches!(nowhere, TakeByHandleError::Gone { publisher: 5, .. }), "{nowhere}");
    assert_eq!(subscriber.take_by_handle(&handle, Duration::ZERO).unwrap().bytes(), [1], "lies have lost nothing");
}

#[test]
fn take_described_does_not_map_the_pool() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("described").unwrap();
    let node = || Node::builder().runtime_dir(dir.path()).build().unwrap();
    let (publishing, taking) = (node(), node());
    let publisher = publishing.publisher::<Image>("a").unwrap();
    let [subscriber, other] = [0, 1].map(|_| taking.subscriber::<Image>("a").unwrap());
    let (image, mapped) = (Image::new(4, 2, Encoding::Rgb8).unwrap(), || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:rgaps-pool")).count()
    });
    let handle = publisher.push(&image, &[5; 24]).unwrap();
    let before = mapped();
    let described = subscriber.take_described().unwrap().unwrap();
    assert_eq!((described.handle, described.meta, described.info.sequence), (handle, image, 1));
    assert!(described.taken_ns >= described.info.stamps.published);
    assert!(subscriber.take_described().unwrap().is_none());
    assert_eq!((mapped(), subscriber.statistics().held), (before, 1));
    drop(described);
    assert_eq!(subscriber.statistics().held, 0);
    assert_eq!(other.take_by_handle(&handle, LONG).unwrap().bytes(), [5; 24]);
    assert_eq!(mapped(), before + 1, "who takes the payload by its handle maps the pool");
}

#[test]
fn a_take_by_handle_that_its_caller_ends_does_not_mark_the_publisher_absent() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("ended").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    let subscriber = node.subscriber::<Bytes>("a").unwrap();
    let here = publisher.push(&Bytes::new(1), &[1]).unwrap();
    // Of another host, so that it may still arrive.
    let elsewhere = MessageHandle { source_host: [7; 16], sequence: 9, ..here };
    for _ in 0..2 {
        let asked = Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) == 1;
        let ended = subscriber.take_by_handle_unless(&elsewhere, LONG, None, is_over).unwrap_err();
        assert!(matches!(ended, TakeByHandleError::NotHere { sequence: 9, .. }), "{ended}");
        // The second take waits again.
        assert_eq!(asked.get(), 2);
    }
    assert_eq!(subscriber.take_by_handle(&here, Duration::ZERO).unwrap().bytes(), [1], "and nothing is lost by it");
}

#[test]
fn a_late_joiner_takes_history_by_handle_and_the_skipped_messages_in_order() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("late").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let qos = PublisherQos { durability: Durability::TransientLocal, ..PublisherQos::default() };
    let publisher = node.publisher_with::<Bytes>("a", qos).unwrap();
    let handles: Vec<MessageHandle> = (0..3).map(|n| publisher.push(&Bytes::new(1), &[n]).unwrap()).collect();
    let qos = SubscriberQos { durability: Durability::TransientLocal, ..SubscriberQos::default() };
    let late = node.subscriber_with::<Bytes>("a", qos).unwrap();
    assert_eq!(late.take_by_handle(&handles[2], Duration::ZERO).unwrap().bytes(), [2]);
    let rest: Vec<u8> = late.take_all().unwrap().iter().map(|sample| sample.bytes()[0]).collect();
    assert_eq!(rest, [0, 1]);
}

#[test]
fn handles_from_before_the_join_are_early_up_to_the_depth_and_then_gone() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("early").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    let push = || publisher.push(&Bytes::new(1), &[1]).unwrap();
    let before: Vec<MessageHandle> = (0..20).map(|_| push()).collect();
    let subscriber =
        node.subscriber_with::<Bytes>("a", SubscriberQos { history: History::KeepLast(8), ..SubscriberQos::default() });
    let subscriber = subscriber.unwrap();
    subscriber.expect_handles_in_order();
    let refused = |handle: &MessageHandle| subscriber.take_by_handle(handle, LONG).unwrap_err();
    for handle in &before[..4] {
        let early = refused(handle);
        assert!(matches!(early, TakeByHandleError::Early { sequence, .. } if sequence == handle.sequence), "{early}");
    }
    let run = refused(&MessageHandle { host_epoch: before[0].host_epoch - 1, ..before[0] });
    assert!(matches!(run, TakeByHandleError::EarlierRun { .. }), "{run}");
    // The first take by handle releases the messages before it.
    let unseen = push();
    let first = push();
    assert_eq!(subscriber.take_by_handle(&first, Duration::ZERO).unwrap().handle(), first);
    assert_eq!((subscriber.statistics().held, subscriber.statistics().lost), (0, 0));
    assert!(matches!(refused(&unseen), TakeByHandleError::Early { .. }));
    for handle in &before[4..7] {
        assert!(matches!(refused(handle), TakeByHandleError::Early { .. }));
    }
    // More handles than any middleware keeps: they must be replayed.
    let replayed = refused(&before[7]);
    assert!(matches!(replayed, TakeByHandleError::Gone { .. } | TakeByHandleError::Stale { .. }), "{replayed}");
    let again = refused(&first);
    assert!(matches!(again, TakeByHandleError::Gone { .. } | TakeByHandleError::Stale { .. }), "{again}");
}

#[test]
fn a_handle_may_arrive_before_its_message_and_a_replayed_one_waits_once() {
    let _watchdog = Watchdog::new(LONG * 2);
    let a = Host::new("handle-a", "127.0.0.61", "127.0.0.62");
    let b = Host::new("handle-b", "127.0.0.62", "127.0.0.61");
    let publisher = a.node.publisher::<Image>("camera").unwrap();
    let subscriber: Subscriber<Image> = b.node.subscriber_with("camera", keep_all()).unwrap();
    while publisher.subscriber_count() == 0 {
        rgaps_testing::pause();
    }
    let image = Image::new(640, 480, Encoding::Rgb8).unwrap();
    let mut first = None;
    for n in 0..20 {
        let handle = publisher.push(&image, &vec![n; 640 * 480 * 3]).unwrap();
        let sample = subscriber.take_by_handle(&handle, LONG).unwrap();
        assert!(sample.bytes().iter().all(|byte| *byte == n) && sample.readiness() == Readiness::Ready);
        // As written by another host: the same name, another entry.
        assert_eq!(sample.handle().name(), handle.name());
        assert_eq!(sample.handle().host_epoch, handle.host_epoch);
        assert_ne!(sample.handle().topic_id, handle.topic_id);
        first.get_or_insert(handle);
    }
    let known = first.unwrap();
    let gone = subscriber.take_by_handle(&known, LONG).unwrap_err();
    assert!(matches!(gone, TakeByHandleError::Gone { sequence: 1, .. }), "{gone}");
    let earlier = subscriber.take_by_handle(&MessageHandle { host_epoch: 1, publisher: 7, ..known }, LONG).unwrap_err();
    assert!(matches!(earlier, TakeByHandleError::EarlierRun { found: 1, .. }), "{earlier}");
    // A restarted host may have sent the handle of a message that is still to arrive.
    let later = MessageHandle { host_epoch: known.host_epoch + 1, publisher: 8, ..known };
    let waited = subscriber.take_by_handle(&later, SHORT).unwrap_err();
    assert!(matches!(waited, TakeByHandleError::NotHere { publisher: 8, .. }), "{waited}");
    // Of the same run, and of a publisher without any message.
    let unknown = MessageHandle { publisher: 7, ..known };
    let waited = subscriber.take_by_handle(&unknown, SHORT).unwrap_err();
    assert!(matches!(waited, TakeByHandleError::NotHere { publisher: 7, .. }), "{waited}");
    let at_once = subscriber.take_by_handle(&unknown, LONG * 60).unwrap_err();
    assert!(
        matches!(at_once, TakeByHandleError::NotHere { .. }),
        "the watchdog would have ended a second wait: {at_once}"
    );
}

#[test]
fn of_many_absent_publishers_a_take_by_handle_waits_once_for_each() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("absent").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let subscriber = node.subscriber::<Bytes>("a").unwrap();
    let take = |publisher, timeout| {
        let of_another_host = MessageHandle {
            source_host: [9; 16],
            publisher,
            sequence: 1,
            layout_version: MessageHandle::LAYOUT_VERSION,
            kind: Bytes::KIND,
            ..MessageHandle::default()
        };
        subscriber.take_by_handle(&of_another_host, timeout).unwrap_err()
    };
    for publisher in 0..300 {
        take(publisher, Duration::from_millis(1));
    }
    for publisher in 0..300 {
        let at_once = take(publisher, LONG * 60);
        assert!(matches!(at_once, TakeByHandleError::NotHere { .. }), "{at_once}");
    }
}

#[test]
fn replayed_early_handles_of_many_publishers_are_refused() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("early-many").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    let handle = publisher.push(&Bytes::new(1), &[1]).unwrap();
    let qos = SubscriberQos { history: History::KeepLast(1), ..SubscriberQos::default() };
    let subscriber = node.subscriber_with::<Bytes>("a", qos).unwrap();
    let early = || {
        let handles = (0..300).map(|publisher| MessageHandle { publisher, ..handle });
        let errors = handles.map(|handle| subscriber.take_by_handle(&handle, Duration::ZERO).unwrap_err());
        errors.filter(|error| matches!(error, TakeByHandleError::Early { .. })).count()
    };
    assert_eq!([early(), early()], [300, 0]);
}

#[test]
fn a_publisher_whose_message_came_too_late_is_waited_for_again() {
    let _watchdog = Watchdog::new(LONG * 2);
    let a = Host::new("late-a", "127.0.0.63", "127.0.0.64");
    let b = Host::new("late-b", "127.0.0.64", "127.0.0.63");
    let publisher = a.node.publisher::<Bytes>("data").unwrap();
    let subscriber: Subscriber<Bytes> = b.node.subscriber_with("data", keep_all()).unwrap();
    while publisher.subscriber_count() == 0 {
        rgaps_testing::pause();
    }
    let push = |n| publisher.push(&Bytes::new(1), &[n]).unwrap();
    let first = push(0);
    subscriber.take_by_handle(&first, LONG).unwrap();
    let after = |handle: MessageHandle| MessageHandle { sequence: handle.sequence + 1, ..handle };
    // Each handle arrives before its message, which is sent once the take waits.
    let early = |handle: MessageHandle, n| {
        let is_sent = Cell::new(false);
        let send = || {
            if !is_sent.replace(true) {
                push(n);
            }
            false
        };
        subscriber.take_by_handle_unless(&after(handle), LONG, None, send).unwrap().handle()
    };
    let looked = subscriber.take_by_handle(&after(first), Duration::ZERO).unwrap_err();
    assert!(matches!(looked, TakeByHandleError::NotHere { .. }), "{looked}");
    let second = early(first, 1);
    // A take without a time-out marks nothing; one that timed out marks the publisher absent until a message arrives.
    let waited = subscriber.take_by_handle(&after(second), SHORT).unwrap_err();
    assert!(matches!(waited, TakeByHandleError::NotHere { .. }), "{waited}");
    let third = push(2);
    while subscriber.ready_count(1) == 0 {
        rgaps_testing::pause();
    }
    let fourth = early(third, 3);
    assert_eq!((third.sequence, fourth.sequence), (3, 4));
    assert_eq!(subscriber.take().unwrap().unwrap().bytes(), [2], "the late one is there still");
}

#[test]
fn programs_that_outlive_an_orderly_manager_take_what_is_published_under_the_next() {
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("restart").unwrap();
    let manager = || {
        let mut command = Command::new(programs::find("rgapsd"));
        dir.apply(&mut command);
        command.env("RGAPS_NETWORK", "local").env("RGAPS_DEVICE", "host").stderr(Stdio::null());
        Child::spawn(&mut command).unwrap()
    };
    let mut first = manager();
    let old = node(&dir);
    let (publisher, subscriber) = (old.publisher::<Bytes>("a").unwrap(), old.subscriber::<Bytes>("a").unwrap());
    first.terminate().unwrap();
    first.wait_within(LONG).unwrap();

    let _second = manager();
    let new = node(&dir);
    assert_eq!((new.host(), new.host_epoch()), (old.host(), old.host_epoch()));
    let (publisher_now, subscriber_now) = (new.publisher::<Bytes>("a").unwrap(), new.subscriber::<Bytes>("a").unwrap());
    for (n, publisher) in [publisher, publisher_now].into_iter().enumerate() {
        let handle = publisher.push(&Bytes::new(1), &[n as u8]).unwrap();
        for subscriber in [&subscriber, &subscriber_now] {
            assert_eq!(subscriber.take_by_handle(&handle, LONG).unwrap().bytes(), [n as u8]);
        }
    }
}

#[test]
fn a_keep_last_subscriber_that_takes_no_handles_blocks_no_publisher() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG * 2);
    let dir = RuntimeDir::new("untaken").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let exhaustion = Exhaustion::Wait { timeout_ms: 20 };
    let qos = PublisherQos { pool_bytes: Some(1 << 20), exhaustion, ..PublisherQos::default() };
    let publisher = node.publisher_with::<Bytes>("a", qos).unwrap();
    let deep = SubscriberQos { history: History::KeepLast(18), ..SubscriberQos::default() };
    let subscriber = node.subscriber_with::<Bytes>("a", deep).unwrap();
    subscriber.expect_handles_in_order();
    let handles: Vec<MessageHandle> =
        (0..50).map(|n| publisher.push(&Bytes::new(200_000), &[n; 200_000]).unwrap()).collect();
    assert_eq!(publisher.statistics().refused, 0);
    assert_eq!(subscriber.take_by_handle(&handles[49], Duration::ZERO).unwrap().bytes()[0], 49);
    let gone = subscriber.take_by_handle(&handles[3], Duration::ZERO).unwrap_err();
    assert!(matches!(gone, TakeByHandleError::Gone { .. } | TakeByHandleError::Early { .. }), "{gone}");
}
