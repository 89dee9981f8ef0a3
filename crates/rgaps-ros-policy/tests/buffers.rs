//! The contract of the `rosidl::Buffer` backend, with a real manager and without ROS: the test is the middleware, which carries descriptors.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{MessageHandle, Node, Publisher};
use rgaps_ros_policy::buffers::{Buffer, BufferError, Buffers, Descriptor, Gid, NotDescribed, Statistics};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs};

const BYTES: u64 = 100_000;
/// Room for eight buffers.
const POOL_BYTES: &str = "819200";

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local").env("RGAPS_IDLE_TIMEOUT_MS", "600000");
    command.env("RGAPS_POOL_BYTES", POOL_BYTES);
    manager::start(dir, command).unwrap()
}

fn process(dir: &RuntimeDir) -> Buffers {
    Buffers::new(Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap())
}

/// A subscription of a process.
fn gid(number: u8) -> Gid {
    Gid([number; 16])
}

/// Lets the middleware of `from` discover subscriptions of `to`.
fn connect(from: &Buffers, to: &Buffers, gids: impl IntoIterator<Item = u8>, depth: Option<u32>) {
    let mut others = Vec::new();
    for number in gids {
        to.subscription_created(gid(number), depth).unwrap();
        assert!(from.subscription_discovered(gid(number), &to.metadata(), &others));
        others.push(gid(number));
    }
}

fn filled(from: &Buffers, fill: u8) -> Buffer {
    let buffer = from.allocate(BYTES).unwrap();
    buffer.copy_in(&[fill; BYTES as usize]).unwrap();
    buffer
}

fn is_filled(buffer: &Buffer, fill: u8) -> bool {
    buffer.to_vec().unwrap() == [fill; BYTES as usize]
}

fn why(buffer: &Buffer) -> String {
    match buffer.to_vec() {
        Err(error @ BufferError::Lost(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn start(name: &str) -> (Watchdog, RuntimeDir, Child) {
    let dir = RuntimeDir::new(name).unwrap();
    let manager = rgapsd(&dir);
    (Watchdog::new(Duration::from_secs(100)), dir, manager)
}

#[test]
fn subscriptions_of_several_topics_and_processes_read_one_block() {
    let (_watchdog, dir, _manager) = start("buffers");
    let (camera, viewer, detector) = (process(&dir), process(&dir), process(&dir));
    connect(&camera, &viewer, [1, 2], None);
    connect(&camera, &detector, [3], Some(5));
    connect(&camera, &camera, [4], Some(5));
    let buffer = filled(&camera, 7);
    let used = camera.used_bytes();
    let described = [1, 2, 3, 4].map(|number| camera.describe(&buffer, gid(number)).unwrap());
    drop(buffer);
    let receivers = [&viewer, &viewer, &detector, &camera];
    let received: Vec<_> = described.iter().zip(receivers).map(|(descriptor, of)| of.receive(descriptor)).collect();
    assert!(received.iter().all(|buffer| is_filled(buffer, 7)));
    assert_eq!(camera.used_bytes(), used, "one block");
    assert_eq!([&camera, &viewer, &detector].map(|of| of.statistics().copied), [0, 0, 0]);
    let Statistics { allocated, published, as_bytes, reached, .. } = camera.statistics();
    assert_eq!((allocated, published, as_bytes, reached), (1, 4, 0, 4));
    drop(received);
    assert_eq!(camera.used_bytes(), 0);
}

#[test]
fn a_write_after_the_publication_changes_nothing_for_subscribers_and_clones() {
    let (_watchdog, dir, _manager) = start("written");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1, 2], None);
    let buffer = filled(&camera, 1);
    let first = viewer.receive(&camera.describe(&buffer, gid(1)).unwrap());
    let clone = buffer.duplicate().unwrap();
    assert_eq!(camera.statistics().copied, 0, "clones share what is published");
    let (written, read) = (buffer.begin_write(None).unwrap(), clone.begin_read(None).unwrap());
    assert_ne!(written.address, read.address);
    written.end(None).unwrap();
    read.end(None).unwrap();
    assert!(is_filled(&buffer, 1), "a write begins with the bytes that were there");
    buffer.copy_in(&[2; BYTES as usize]).unwrap();
    let second = viewer.receive(&camera.describe(&buffer, gid(1)).unwrap());
    let of_clone = viewer.receive(&camera.describe(&clone, gid(2)).unwrap());
    assert!(is_filled(&first, 1) && is_filled(&second, 2) && is_filled(&of_clone, 1));
    assert_eq!(camera.statistics().copied, 1);
    // A subscriber cannot write what others read either.
    first.copy_in(&[3; BYTES as usize]).unwrap();
    assert!(is_filled(&first, 3) && is_filled(&of_clone, 1));
    assert_eq!(viewer.statistics().copied, 1);
}

#[test]
fn a_clone_of_what_is_being_filled_is_a_copy() {
    let (_watchdog, dir, _manager) = start("cloned");
    let camera = process(&dir);
    let buffer = filled(&camera, 1);
    let clone = buffer.duplicate().unwrap();
    buffer.copy_in(&[2; BYTES as usize]).unwrap();
    assert!(is_filled(&buffer, 2) && is_filled(&clone, 1));
    assert_eq!(camera.statistics().copied, 1);
}

#[test]
fn what_a_process_received_is_copied_once_to_be_published_again() {
    let (_watchdog, dir, _manager) = start("relay");
    let (camera, relay, viewer) = (process(&dir), process(&dir), process(&dir));
    connect(&camera, &relay, [1], None);
    connect(&relay, &viewer, [2, 3], None);
    let received = relay.receive(&camera.describe(&filled(&camera, 9), gid(1)).unwrap());
    for number in [2, 3, 2] {
        assert!(is_filled(&viewer.receive(&relay.describe(&received, gid(number)).unwrap()), 9));
    }
    assert_eq!((relay.statistics().copied, relay.statistics().published), (1, 3));
    assert_eq!(camera.used_bytes(), 0, "the copy has replaced the original");
}

#[test]
fn what_a_subscription_never_reads_does_not_stay() {
    let (_watchdog, dir, _manager) = start("unread");
    let (camera, viewer) = (process(&dir), process(&dir));
    // More subscriptions than the pool has room for. Each gets one message, and drops it before its process has mapped the pool.
    for number in 1..=20 {
        connect(&camera, &viewer, [number], None);
        drop(viewer.receive(&camera.describe(&filled(&camera, number), gid(number)).unwrap()));
        assert_eq!(camera.used_bytes(), 0);
    }
    let kept = viewer.receive(&camera.describe(&filled(&camera, 21), gid(1)).unwrap());
    assert!(is_filled(&kept, 21));
}

#[test]
fn what_is_never_published_is_given_back() {
    let (_watchdog, dir, _manager) = start("unpublished");
    let camera = process(&dir);
    for fill in 0..100 {
        drop(filled(&camera, fill));
    }
    assert_eq!((camera.used_bytes(), camera.statistics().allocated), (0, 100));
    let empty = camera.allocate(0).unwrap();
    assert!(empty.is_empty() && empty.to_vec().unwrap().is_empty());
    assert!(matches!(empty.copy_in(b"x"), Err(BufferError::Length { found: 1, wanted: 0 })));
}

#[test]
fn a_subscription_that_is_not_reached_gets_bytes_and_one_that_left_costs_none() {
    let (_watchdog, dir, _manager) = start("reached");
    let (camera, viewer) = (process(&dir), process(&dir));
    let buffer = filled(&camera, 1);
    let refused = |number| camera.describe(&buffer, gid(number)).unwrap_err();
    assert!(matches!(refused(1), NotDescribed::Unknown(of) if of == gid(1)));
    for unknown in ["", "2:00112233445566778899aabbccddeeff:host:", "1", "cpu"] {
        assert!(!camera.subscription_discovered(gid(1), unknown, &[]));
    }
    assert!(matches!(refused(1), NotDescribed::Unknown(_)));
    // Discovered before its process has a subscriber in the core.
    assert!(camera.subscription_discovered(gid(1), &viewer.metadata(), &[]));
    assert!(refused(1).to_string().contains("is not reached"));
    viewer.subscription_created(gid(1), None).unwrap();
    assert!(is_filled(&viewer.receive(&camera.describe(&buffer, gid(1)).unwrap()), 1));
    assert_eq!((camera.statistics().published, camera.statistics().as_bytes), (1, 1));
    drop(viewer);
    rgaps_testing::until("the subscription has left", || camera.statistics().reached == 0);
    let viewer = process(&dir);
    let descriptor = camera.describe(&buffer, gid(1)).unwrap();
    let received = viewer.receive(&descriptor);
    assert!(received.is_lost() && received.is_empty());
    assert!(why(&received).contains("does not reach subscription 0101"), "{}", why(&received));
}

/// Two hosts that know each other by these ports of loopback, once both are started.
struct Hosts {
    dirs: [RuntimeDir; 2],
    ports: [u16; 2],
}

impl Hosts {
    fn new(name: &str) -> Self {
        let dirs = [name.to_owned(), format!("{name}-peer")].map(|host| RuntimeDir::new(&host).unwrap());
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
        Self { dirs, ports }
    }

    /// If one host has the transport `rdma`, and no device for it, no connection for messages is possible.
    fn start(&self, host: usize, transport: &str) -> Child {
        let mut command = Self::manager();
        command.env("RGAPS_TRANSPORT", transport);
        command.env("RGAPS_LISTEN", format!("tcp/127.0.0.1:{}", self.ports[host]));
        command.env("RGAPS_PEERS", format!("tcp/127.0.0.1:{}", self.ports[1 - host]));
        manager::start(&self.dirs[host], command).unwrap()
    }

    /// It does not find the other host, and is not found.
    fn start_alone(&self, host: usize) -> Child {
        let mut command = Self::manager();
        command.env("RGAPS_LISTEN", "tcp/127.0.0.1:0");
        manager::start(&self.dirs[host], command).unwrap()
    }

    fn manager() -> Command {
        let mut command = Command::new(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_MULTICAST", "off");
        command
    }

    /// Another publisher on the topic of the first subscription.
    fn beside(&self) -> Publisher<Bytes> {
        let node = Node::builder().runtime_dir(self.dirs[0].path()).no_autostart().build().unwrap();
        node.publisher(&format!("/_rgaps/buffers_of_{}", "01".repeat(16))).unwrap()
    }
}

#[test]
fn a_subscription_on_a_host_that_is_not_linked_yet_gets_bytes() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let hosts = Hosts::new("unlinked");
    let _managers = [hosts.start(0, "rdma"), hosts.start(1, "tcp")];
    let [camera, viewer] = hosts.dirs.each_ref().map(process);
    connect(&camera, &viewer, [1], None);
    let buffer = filled(&camera, 1);
    let beside = hosts.beside();
    rgaps_testing::until("the other host wants the topic", || beside.subscriber_count() == 1);
    assert_eq!((beside.linked_subscriber_count(), camera.statistics().reached), (0, 0));
    assert!(matches!(camera.describe(&buffer, gid(1)).unwrap_err(), NotDescribed::Unreached(of) if of == gid(1)));
}

#[test]
fn a_subscription_whose_host_was_away_gets_bytes_until_it_is_linked_again() {
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let hosts = Hosts::new("away");
    let (_here, mut there) = (hosts.start(0, "tcp"), hosts.start(1, "tcp"));
    let [camera, viewer] = hosts.dirs.each_ref().map(process);
    connect(&camera, &viewer, [1], None);
    let buffer = filled(&camera, 1);
    let is_read = || {
        let described = camera.describe(&buffer, gid(1));
        described.is_ok_and(|descriptor| viewer.receive(&descriptor).to_vec().is_ok())
    };
    rgaps_testing::until("it is reached", is_read);
    there.kill().unwrap();
    rgaps_testing::until("it is no longer reached", || camera.statistics().reached == 0);
    let has_payload = || camera.describe(&buffer, gid(1)).is_ok_and(|descriptor| descriptor.handle.sequence != 0);
    rgaps_testing::until("its host counts as gone", || {
        assert!(!has_payload());
        // Others come and go meanwhile.
        assert!(camera.subscription_discovered(gid(2), &camera.metadata(), &[]));
        camera.describe(&buffer, gid(1)).is_ok()
    });
    // It comes back, and wants the topic, but no message can get there.
    there = hosts.start(1, "rdma");
    rgaps_testing::until("it gets bytes", || camera.describe(&buffer, gid(1)).is_err());
    assert!((0..1000).all(|_| camera.describe(&buffer, gid(1)).is_err()));
    there.kill().unwrap();
    let _there = hosts.start(1, "tcp");
    rgaps_testing::until("it is reached again", is_read);
}

#[test]
fn a_subscription_that_a_new_manager_has_not_found_yet_gets_bytes() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let hosts = Hosts::new("replaced");
    let (mut here, _there) = (hosts.start(0, "tcp"), hosts.start(1, "tcp"));
    let [camera, viewer] = hosts.dirs.each_ref().map(process);
    connect(&camera, &viewer, [1, 2], None);
    let buffer = filled(&camera, 1);
    rgaps_testing::until("one is reached, and the other has joined its topic", || {
        let described = [1, 2].map(|number| camera.describe(&buffer, gid(number)));
        let is_read = |descriptor: &Descriptor| viewer.receive(descriptor).to_vec().is_ok();
        let read: Vec<_> = described.into_iter().flatten().filter(is_read).collect();
        matches!(read[..], [first, second] if first.topic == second.topic)
    });
    here.kill().unwrap();
    let _here = hosts.start_alone(0);
    rgaps_testing::until("the new manager serves", || camera.node().manager_number() == 1);
    rgaps_testing::until("it is no longer reached", || camera.statistics().reached == 0);
    assert!((0..1000).all(|_| [1, 2].iter().all(|number| camera.describe(&buffer, gid(*number)).is_err())));
}

#[test]
fn a_subscription_joins_a_bounded_number_of_topics_and_keeps_those() {
    let (_watchdog, dir, _manager) = start("bounded");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let joined = || {
        let topics = node.topics().unwrap().into_iter().filter(|topic| topic.subscribers > 0);
        let mut topics: Vec<_> = topics.map(|topic| topic.key.name().to_owned()).collect();
        topics.retain(|topic| topic.contains("buffers_of_") && !topic.ends_with(&gid(1).to_string()));
        topics.sort();
        topics
    };
    let ask = |others: std::ops::Range<u8>| {
        for other in others {
            let descriptor = camera.describe(&filled(&camera, other), gid(1)).unwrap();
            assert!(is_filled(&viewer.receive(&Descriptor { join: gid(other), process: 7, ..descriptor }), other));
        }
    };
    ask(50..70);
    rgaps_testing::until("some are joined", || joined().len() == 8);
    let first = joined();
    for _ in 0..10 {
        ask(70..90);
        assert_eq!(joined(), first);
    }
    // What was not used for long makes room, and is joined again when a publisher relies on it.
    let descriptor = camera.describe(&filled(&camera, 1), gid(1)).unwrap();
    for _ in 0..1024 {
        drop(viewer.receive(&descriptor));
    }
    rgaps_testing::until("another one is joined", || {
        ask(90..91);
        joined().contains(&topic_of(90))
    });
    assert_eq!(joined().len(), 8);
    let given_up = (50..70).find(|other| first.contains(&topic_of(*other)) && !joined().contains(&topic_of(*other)));
    let leader = gid(given_up.unwrap());
    assert!(viewer.receive(&Descriptor { topic: leader, ..descriptor }).is_lost());
    rgaps_testing::until("it is joined again", || joined().contains(&format!("/_rgaps/buffers_of_{leader}")));
}

fn topic_of(number: u8) -> String {
    format!("/_rgaps/buffers_of_{}", gid(number))
}

#[test]
fn a_subscription_on_its_leaders_topic_needs_no_publisher_of_its_own() {
    let (_watchdog, dir, _manager) = start("joined");
    let (camera, viewer) = (process(&dir), process(&dir));
    let buffer = filled(&camera, 1);
    for number in [1, 2] {
        viewer.subscription_created(gid(number), None).unwrap();
        // As if it were of another host: those of one host share a topic.
        assert!(camera.subscription_discovered(gid(number), "1:00112233445566778899aabbccddeeff:host:", &[gid(1)]));
    }
    let reads_from = |number| {
        let descriptor = camera.describe(&buffer, gid(number)).unwrap();
        assert!(is_filled(&viewer.receive(&descriptor), 1));
        descriptor.topic
    };
    rgaps_testing::until("the second one has joined", || {
        let described = camera.describe(&buffer, gid(1)).and_then(|_| camera.describe(&buffer, gid(2)));
        described.is_ok_and(|descriptor| {
            assert!(viewer.receive(&descriptor).to_vec().is_ok());
            descriptor.topic == gid(1)
        })
    });
    // Its process gives up many others.
    for number in 0..256_u16 {
        viewer.subscription_created(Gid(std::array::from_fn(|at| number.to_le_bytes()[at % 2] ^ 0x80)), None).unwrap();
        if number % 50 == 0 {
            assert_eq!([1, 2].map(&reads_from), [gid(1); 2]);
        }
    }
    // Discoveries of others give up the camera's oldest publishers that reach nobody.
    for others in 100..200 {
        assert!(camera.subscription_discovered(gid(others), &camera.metadata(), &[]));
        assert_eq!([1, 2].map(&reads_from), [gid(1); 2]);
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn descriptors_that_lie_are_errors_of_the_reads() {
    let (_watchdog, dir, _manager) = start("lies");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1, 2], None);
    let buffer = filled(&camera, 5);
    let good = camera.describe(&buffer, gid(1)).unwrap();
    let lie = |change: &dyn Fn(&mut Descriptor)| {
        let mut descriptor = good;
        change(&mut descriptor);
        let received = viewer.receive(&descriptor);
        assert_eq!(received.begin_read(None).unwrap_err().to_string(), why(&received));
        assert!(matches!(received.duplicate().unwrap().begin_write(None), Err(BufferError::Lost(_))));
        why(&received)
    };
    assert!(lie(&|of| of.subscription = gid(9)).contains("no subscription 0909"));
    assert!(lie(&|of| of.topic = gid(2)).contains("no subscription 0101"));
    assert!(lie(&|of| (of.subscription, of.topic) = (gid(2), gid(2))).contains("is not this subscriber's"));
    assert!(lie(&|of| of.handle.kind = 1).contains("of kind 1"));
    assert!(lie(&|of| of.handle.layout_version = 77).contains("layout version 77"));
    assert!(lie(&|of| of.handle.sequence = 99).contains("is not this subscriber's"));
    assert!(lie(&|of| of.handle.host_epoch = 1).contains("earlier run"));
    assert!(lie(&|of| of.handle.payload_bytes = 1 << 33).contains("no message has so many"));
    assert!(matches!(camera.allocate(1 << 33), Err(BufferError::TooLong { wanted: 0x2_0000_0000 })));
    assert!(lie(&|of| of.handle.payload_bytes = 77).contains("but the payload has 100000 B"), "and releases it");
    let again = viewer.receive(&good);
    assert!(why(&again).contains("taken already"));
    let any = Descriptor::from_bytes(&[0xa5; Descriptor::BYTES]);
    assert!(viewer.receive(&any).is_lost() && viewer.receive(&any).is_empty());
    assert!(is_filled(&viewer.receive(&camera.describe(&buffer, gid(1)).unwrap()), 5), "the subscription goes on");
    assert_eq!(viewer.statistics().refused, 12);
}

#[test]
fn a_descriptor_without_a_payload_has_no_more_bytes_than_one_with_a_payload_had() {
    let (_watchdog, dir, _manager) = start("lengths");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let descriptor = camera.describe(&filled(&camera, 1), gid(1)).unwrap();
    let lie = |bytes| {
        let handle = MessageHandle { payload_bytes: bytes, sequence: 0, ..descriptor.handle };
        viewer.receive(&Descriptor { handle, ..descriptor }).len()
    };
    assert_eq!(lie(u32::MAX.into()), 0);
    assert!(is_filled(&viewer.receive(&descriptor), 1));
    assert_eq!((lie(u32::MAX.into()), lie(BYTES), lie(10)), (BYTES, BYTES, 10));
}

#[test]
fn a_payload_is_for_its_descriptor_though_others_named_it_before_it_was_published() {
    let (_watchdog, dir, _manager) = start("predicted");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let mut descriptor = camera.describe(&filled(&camera, 0), gid(1)).unwrap();
    assert!(is_filled(&viewer.receive(&descriptor), 0));
    for fill in (2..20).step_by(2) {
        for ahead in 1..=64 {
            let sequence = descriptor.handle.sequence + ahead;
            // As if it were of another host, from which it may still come.
            let handle = MessageHandle { sequence, source_host: [9; 16], ..descriptor.handle };
            drop(viewer.receive(&Descriptor { handle, ..descriptor }));
        }
        // Two are under way.
        let first = camera.describe(&filled(&camera, fill), gid(1)).unwrap();
        descriptor = camera.describe(&filled(&camera, fill + 1), gid(1)).unwrap();
        for (descriptor, fill) in [(first, fill), (descriptor, fill + 1)] {
            assert!(is_filled(&viewer.receive(&descriptor), fill));
        }
    }
}

#[test]
fn a_subscription_that_the_core_has_cut_off_is_made_again() {
    let (_watchdog, dir, mut manager) = start("cut-off");
    let viewer = process(&dir);
    for number in [1, 2] {
        viewer.subscription_created(gid(number), None).unwrap();
    }
    manager.kill().unwrap();
    // Without notes of the topic, the next manager takes nobody back.
    for entry in std::fs::read_dir(dir.path()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("topic-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let _next = rgapsd(&dir);
    let camera = process(&dir);
    assert!(camera.node().topics().unwrap().is_empty(), "the subscription is cut off");
    assert!(camera.subscription_discovered(gid(1), &viewer.metadata(), &[]));
    let buffer = filled(&camera, 1);
    let handle = MessageHandle { layout_version: MessageHandle::LAYOUT_VERSION, ..MessageHandle::default() };
    let without_payload = Descriptor { handle, subscription: gid(1), topic: gid(1), ..Descriptor::default() };
    rgaps_testing::until("it takes again", || {
        assert!(viewer.receive(&without_payload).is_lost());
        camera.describe(&buffer, gid(1)).is_ok_and(|descriptor| viewer.receive(&descriptor).to_vec().is_ok())
    });
    // No descriptor comes for the other one, which was never reached by this publisher. Its process makes it again when it allocates.
    assert!(camera.subscription_discovered(gid(2), &viewer.metadata(), &[gid(1)]));
    assert!(camera.describe(&buffer, gid(2)).is_err(), "it is cut off");
    rgaps_testing::until("it takes again", || {
        drop(viewer.allocate(1).unwrap());
        camera.describe(&buffer, gid(2)).is_ok_and(|descriptor| viewer.receive(&descriptor).to_vec().is_ok())
    });
}

#[test]
fn subscriptions_that_could_not_be_made_are_made_later() {
    let (_watchdog, dir, manager) = start("missing");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let buffer = filled(&camera, 1);
    rgaps_testing::until("the first is reached", || camera.statistics().reached == 1);
    manager.stop().unwrap();
    // One of them waits for the manager, which costs 10 s.
    assert!(viewer.subscription_created(gid(2), None).is_err());
    for number in 3..20 {
        viewer.subscription_created(gid(number), None).unwrap();
    }
    manager.go_on().unwrap();
    for number in 2..20 {
        assert!(camera.subscription_discovered(gid(number), &viewer.metadata(), &[gid(1)]));
    }
    rgaps_testing::until("all are made", || {
        drop(viewer.allocate(1).unwrap());
        camera.statistics().reached == 19
    });
    assert!((1..20).all(|number| is_filled(&viewer.receive(&camera.describe(&buffer, gid(number)).unwrap()), 1)));
}

#[test]
fn a_stopped_manager_delays_the_publication_of_a_received_message_once() {
    let (_watchdog, dir, manager) = start("relays");
    let (camera, relay, viewer) = (process(&dir), process(&dir), process(&dir));
    connect(&camera, &relay, [1], None);
    connect(&relay, &viewer, 2..20, None);
    drop(filled(&relay, 0));
    rgaps_testing::until("all are reached", || relay.statistics().reached == 18);
    let publish = |fill: u8| {
        let buffer = camera.allocate(1).unwrap();
        buffer.copy_in(&[fill]).unwrap();
        camera.describe(&buffer, gid(1)).unwrap()
    };
    let descriptors: Vec<_> = (1..20).map(publish).collect();
    manager.stop().unwrap();
    let received: Vec<_> = descriptors.iter().map(|descriptor| relay.receive(descriptor)).collect();
    // The manager maps the camera's pool. One of them waits for that, which costs 10 s.
    for (number, received) in (2..20).flat_map(|number| received.iter().map(move |received| (number, received))) {
        assert!(viewer.receive(&relay.describe(received, gid(number)).unwrap()).is_lost());
    }
    // Bytes of this process are published as ever.
    let own = viewer.receive(&relay.describe(&filled(&relay, 6), gid(2)).unwrap());
    manager.go_on().unwrap();
    assert!(is_filled(&own, 6));
    rgaps_testing::until("it is mapped", || received[0].to_vec().is_ok());
    for (received, fill) in received.iter().zip(1..) {
        assert_eq!(viewer.receive(&relay.describe(received, gid(2)).unwrap()).to_vec().unwrap(), [fill]);
    }
}

#[test]
fn a_subscription_that_reads_too_many_topics_gets_payloads_on_its_own() {
    let (_watchdog, dir, _manager) = start("unjoins");
    let (camera, viewer) = (process(&dir), process(&dir));
    let buffer = filled(&camera, 1);
    for number in [1, 2] {
        viewer.subscription_created(gid(number), None).unwrap();
        // As if it were of another host: those of one host share a topic.
        assert!(camera.subscription_discovered(gid(number), "1:00112233445566778899aabbccddeeff:host:", &[gid(1)]));
    }
    let topic_of_second = || {
        drop(camera.describe(&buffer, gid(1)));
        let descriptor = camera.describe(&buffer, gid(2)).ok()?;
        viewer.receive(&descriptor).to_vec().is_ok().then_some(descriptor.topic)
    };
    rgaps_testing::until("it has joined", || topic_of_second() == Some(gid(1)));
    // Seven others take the place of that topic, while it is not used, and are in use then.
    let own = Descriptor { topic: gid(2), ..Descriptor { subscription: gid(2), ..Descriptor::default() } };
    let other = process(&dir);
    assert!(other.subscription_discovered(gid(2), &viewer.metadata(), &[]));
    let ask = |leaders: std::ops::Range<u8>| {
        for leader in leaders {
            let descriptor = other.describe(&filled(&other, leader), gid(2)).unwrap();
            assert!(is_filled(&viewer.receive(&Descriptor { join: gid(leader), process: 7, ..descriptor }), leader));
        }
    };
    ask(50..60);
    (0..2048).for_each(|_| drop(viewer.receive(&own)));
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let joined = || {
        let topics = node.topics().unwrap().into_iter().filter(|topic| topic.subscribers > 0);
        topics.filter(|topic| (60..80).any(|leader| topic.key.name() == topic_of(leader))).count()
    };
    rgaps_testing::until("eight others are joined", || {
        ask(60..80);
        joined() == 8
    });
    for leader in 60..80 {
        drop(viewer.receive(&Descriptor { topic: gid(leader), ..own }));
    }
    let descriptor = camera.describe(&buffer, gid(2)).unwrap();
    assert!(descriptor.topic == gid(1) && viewer.receive(&descriptor).is_lost(), "the publisher does not know yet");
    rgaps_testing::until("the publisher uses its own topic", || topic_of_second() == Some(gid(2)));
    assert!((0..10).all(|_| topic_of_second() == Some(gid(2))));
}

#[test]
fn messages_within_the_depth_are_read_however_late_and_skipped_ones_are_freed() {
    let (_watchdog, dir, _manager) = start("depth");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], Some(5));
    let publish = |fill| camera.describe(&filled(&camera, fill), gid(1)).unwrap();
    let descriptors: Vec<_> = (1..=5).map(publish).collect();
    for (fill, descriptor) in (1..=5).zip(&descriptors) {
        assert!(is_filled(&viewer.receive(descriptor), fill));
    }
    assert_eq!(camera.used_bytes(), 0);
    let descriptors: Vec<_> = (1..=4).map(publish).collect();
    // The middleware may hand out a later one first.
    for fill in [4, 2, 1, 3] {
        assert!(is_filled(&viewer.receive(&descriptors[fill - 1]), fill as u8));
    }
    assert_eq!(camera.used_bytes(), 0);
    // What the middleware drops is released when it is far behind.
    let skipped = publish(1);
    for fill in 0..100 {
        assert!(is_filled(&viewer.receive(&publish(fill)), fill));
    }
    assert!(viewer.receive(&skipped).is_lost());
    assert_eq!(camera.used_bytes(), 0);
}

#[test]
fn a_read_keeps_its_bytes_though_the_buffer_is_written_or_published_meanwhile() {
    let (_watchdog, dir, _manager) = start("read");
    let (camera, relay, viewer) = (process(&dir), process(&dir), process(&dir));
    connect(&camera, &relay, [1], None);
    connect(&relay, &viewer, [2], None);
    let receive = |fill| relay.receive(&camera.describe(&filled(&camera, fill), gid(1)).unwrap());
    for is_written in [true, false] {
        let received = receive(1);
        let read = received.begin_read(None).unwrap();
        if is_written {
            received.copy_in(&[2; BYTES as usize]).unwrap();
        } else {
            relay.describe(&received, gid(2)).unwrap();
        }
        assert_eq!(camera.used_bytes(), 100_352, "it is read");
        read.end(None).unwrap();
        assert_eq!(camera.used_bytes(), 0);
    }
}

#[test]
fn a_read_of_what_is_being_filled_keeps_its_block_after_its_publication() {
    let (_watchdog, dir, _manager) = start("read-early");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let buffer = filled(&camera, 1);
    let read = buffer.begin_read(None).unwrap();
    assert!(is_filled(&viewer.receive(&camera.describe(&buffer, gid(1)).unwrap()), 1));
    buffer.copy_in(&[2; BYTES as usize]).unwrap();
    drop(buffer);
    let block = camera.used_bytes();
    let others: Vec<_> = std::iter::from_fn(|| camera.allocate(BYTES).ok()).collect();
    let places = others.iter().map(|other| other.begin_write(None).unwrap().address);
    assert!(block > 0 && others.len() == 7 && !places.collect::<Vec<_>>().contains(&read.address));
    drop(others);
    read.end(None).unwrap();
    assert_eq!(camera.used_bytes(), 0);
}

#[test]
fn a_message_that_is_kept_unread_stays_while_many_others_come_and_go() {
    let (_watchdog, dir, _manager) = start("kept");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    // The first payload of a publisher: its pool is not mapped yet.
    let first = viewer.receive(&camera.describe(&filled(&camera, 1), gid(1)).unwrap());
    for fill in 0..200 {
        assert!(is_filled(&viewer.receive(&camera.describe(&filled(&camera, fill), gid(1)).unwrap()), fill));
    }
    assert!(is_filled(&first, 1));
}

#[test]
fn a_message_that_is_dropped_unread_before_its_pool_is_mapped_is_released() {
    let (_watchdog, dir, _manager) = start("unread");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    drop(viewer.receive(&camera.describe(&filled(&camera, 1), gid(1)).unwrap()));
    rgaps_testing::until("it is released with a later one", || {
        drop(viewer.receive(&camera.describe(&filled(&camera, 2), gid(1)).unwrap()));
        camera.used_bytes() == 0
    });
}

#[test]
fn bytes_that_are_being_written_are_not_published() {
    let (_watchdog, dir, _manager) = start("writing");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let buffer = filled(&camera, 1);
    let write = buffer.begin_write(None).unwrap();
    let refused = camera.describe(&buffer, gid(1)).unwrap_err();
    assert!(refused.to_string().contains("destroy its handle before you publish"), "{refused}");
    write.end(None).unwrap();
    assert!(is_filled(&viewer.receive(&camera.describe(&buffer, gid(1)).unwrap()), 1));
}

#[test]
fn a_payload_beyond_what_a_subscription_may_hold_is_read_once_others_are_dropped() {
    let (_watchdog, dir, _manager) = start("held");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], Some(5000));
    let mut held = Vec::new();
    let waiting = loop {
        let buffer = camera.allocate(1).unwrap();
        buffer.copy_in(&[7]).unwrap();
        let received = viewer.receive(&camera.describe(&buffer, gid(1)).unwrap());
        match received.to_vec() {
            Ok(_) => held.push(received),
            Err(error) => {
                assert!(error.to_string().contains("are held, half of all"), "{error}");
                break received;
            }
        }
        assert!(held.len() < 10_000);
    };
    assert!(!waiting.is_lost());
    held.clear();
    assert_eq!(waiting.to_vec().unwrap(), [7]);
}

#[test]
fn a_stopped_manager_delays_no_discovery_and_no_publication() {
    let (_watchdog, dir, manager) = start("delays");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let buffer = filled(&camera, 1);
    drop(viewer.receive(&camera.describe(&buffer, gid(1)).unwrap()));
    viewer.subscription_created(gid(2), None).unwrap();
    manager.stop().unwrap();
    // The manager does not go on before all this is done.
    for number in 2..50 {
        assert!(camera.subscription_discovered(gid(number), &viewer.metadata(), &[gid(1)]));
    }
    // One of them waits for the manager, which costs 10 s.
    assert!((2..50).all(|number| camera.describe(&buffer, gid(number)).is_err()));
    assert_eq!(camera.statistics().reached, 1);
    let received = viewer.receive(&camera.describe(&buffer, gid(1)).unwrap());
    manager.go_on().unwrap();
    assert!(is_filled(&received, 1));
    rgaps_testing::until("the other is reached", || camera.statistics().reached == 2);
}

#[test]
fn subscriptions_that_come_and_go_use_up_nothing() {
    let (_watchdog, dir, _manager) = start("come-and-go");
    let (camera, viewer) = (process(&dir), process(&dir));
    let many = |number: u16| Gid(std::array::from_fn(|at| number.to_le_bytes()[at % 2]));
    let buffer = filled(&camera, 1);
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    let reach = |number| {
        rgaps_testing::until("it is reached", || {
            let described = camera.describe(&buffer, many(number));
            described.is_ok_and(|descriptor| viewer.receive(&descriptor).to_vec().is_ok())
        });
    };
    for number in 1000..1600 {
        // None is ever reported as ended. Every second one never was in the core.
        if number % 2 == 0 {
            viewer.subscription_created(many(number), None).unwrap();
        }
        assert!(camera.subscription_discovered(many(number), &viewer.metadata(), &[]));
        if number == 1000 {
            reach(number);
        }
    }
    // The middleware asks for all of them, for ever. At most 256 take, and 64 others have a publisher.
    for _ in 0..3 {
        (1000..1600).for_each(|number| drop(camera.describe(&buffer, many(number))));
    }
    let topics = camera.node().topics().unwrap();
    let published = topics.iter().filter(|topic| topic.publishers > 0).count();
    assert!(published < 400, "{published} topics");
    assert!(open_files() < before + 700, "{} files", open_files() - before);
    reach(1598);
    // One that was given up before it was reached gets bytes. One that was reached before is made again.
    assert!(camera.describe(&buffer, many(1003)).is_err());
    let lost = viewer.receive(&camera.describe(&buffer, many(1000)).unwrap());
    assert!(lost.is_lost());
    reach(1000);
}

#[test]
fn lies_about_joins_hide_no_payload_and_do_not_keep_others_from_joining() {
    let (_watchdog, dir, _manager) = start("liars");
    let (camera, viewer) = (process(&dir), process(&dir));
    // So that the camera believes in another host.
    let elsewhere = "1:00112233445566778899aabbccddeeff:host:";
    for number in [1, 2] {
        viewer.subscription_created(gid(number), None).unwrap();
        assert!(camera.subscription_discovered(gid(number), elsewhere, &[gid(1)]));
    }
    connect(&camera, &viewer, [3], None);
    let buffer = filled(&camera, 1);
    let first = camera.describe(&buffer, gid(1)).unwrap();
    assert!(is_filled(&viewer.receive(&first), 1));
    for process in 0..1000_u64 {
        let join = Gid(std::array::from_fn(|at| process.to_le_bytes()[at % 8]));
        drop(viewer.receive(&Descriptor { join, process, ..first }));
    }
    let mut asks = None;
    rgaps_testing::until("the second one has joined the first one's topic", || {
        drop(viewer.receive(&camera.describe(&filled(&camera, 1), gid(1)).unwrap()));
        let descriptor = camera.describe(&filled(&camera, 2), gid(2)).unwrap();
        assert!(is_filled(&viewer.receive(&descriptor), 2));
        if descriptor.process != 0 {
            asks = Some(descriptor.process);
        }
        descriptor.topic == gid(1)
    });
    // What is said of others is not believed.
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    // Each has subscribers on its own topic, and none on another one.
    let topics = node.topics().unwrap().into_iter().filter(|topic| topic.subscribers > 0);
    let mut taken_from: Vec<_> =
        topics.filter_map(|topic| topic.key.name().strip_prefix("/_rgaps/buffers_of_").map(str::to_owned)).collect();
    taken_from.sort();
    assert_eq!(taken_from, [1, 2, 3].map(|own| gid(own).to_string()));
    let liar = node.publisher::<Bytes>(&format!("/_rgaps/joins_of_{:x}", asks.unwrap())).unwrap();
    for leader in 0..100 {
        liar.push(&Bytes::new(32), &[gid(2).0, gid(leader).0].concat()).unwrap();
    }
    for fill in 0..100 {
        let buffer = filled(&camera, fill);
        for number in [1, 2] {
            let descriptor = camera.describe(&buffer, gid(number)).unwrap();
            assert_eq!(descriptor.topic, gid(1));
            assert!(is_filled(&viewer.receive(&descriptor), fill));
        }
    }
}

#[test]
fn a_payload_that_cannot_be_had_is_published_as_such() {
    let (_watchdog, dir, _manager) = start("lost");
    let (camera, relay, viewer) = (process(&dir), process(&dir), process(&dir));
    connect(&camera, &relay, [1], None);
    connect(&relay, &viewer, [2], None);
    let descriptor = camera.describe(&filled(&camera, 1), gid(1)).unwrap();
    let (taken, lost) = (relay.receive(&descriptor), relay.receive(&descriptor));
    assert!(is_filled(&taken, 1) && why(&lost).contains("taken already"));
    let relayed = viewer.receive(&relay.describe(&lost, gid(2)).unwrap());
    assert!(relayed.is_lost() && why(&relayed).contains("could not read the message"));
    assert_eq!((relay.statistics().published, relay.statistics().as_bytes), (0, 0));
    // One that never comes is waited for once, not for each subscription: that costs 1 s.
    let handle = MessageHandle { sequence: 1000, ..descriptor.handle };
    let missing = relay.receive(&Descriptor { handle, ..descriptor });
    for _ in 0..200 {
        assert!(viewer.receive(&relay.describe(&missing, gid(2)).unwrap()).is_lost());
    }
}

#[test]
fn a_full_pool_gives_up_what_is_not_taken_and_never_what_is_held() {
    let (_watchdog, dir, _manager) = start("full");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let publish = |fill| camera.describe(&filled(&camera, fill), gid(1)).unwrap();
    let held = viewer.receive(&publish(1));
    let descriptors: Vec<_> = (2..=20).map(publish).collect();
    assert!(is_filled(&held, 1));
    assert!(why(&viewer.receive(&descriptors[0])).contains("is over") || viewer.receive(&descriptors[0]).is_lost());
    assert!(is_filled(&viewer.receive(&descriptors[18]), 20));
    let all: Vec<_> = std::iter::from_fn(|| camera.allocate(BYTES).ok()).collect();
    assert_eq!(all.len(), 7, "all but the held one");
    let error = camera.allocate(BYTES).unwrap_err();
    assert!(matches!(error, BufferError::Full { .. }));
    assert!(error.to_string().starts_with("the pool of this process's buffers: the pool is full"), "{error}");
}

#[test]
fn a_descriptor_is_received_while_the_manager_is_stopped() {
    let (_watchdog, dir, manager) = start("stopped");
    let (camera, viewer) = (process(&dir), process(&dir));
    connect(&camera, &viewer, [1], None);
    let descriptors = [6, 7, 8].map(|fill| camera.describe(&filled(&camera, fill), gid(1)).unwrap());
    // The first payloads of a publisher: the viewer has to map its pool.
    manager.stop().unwrap();
    let received = descriptors.map(|descriptor| viewer.receive(&descriptor));
    assert!(received.iter().all(|buffer| !buffer.is_lost() && buffer.len() == BYTES));
    manager.go_on().unwrap();
    // None is skipped, whichever is read first.
    assert!(is_filled(&received[1], 7) && is_filled(&received[2], 8) && is_filled(&received[0], 6));
}
