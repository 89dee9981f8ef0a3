//! Batches: several loans published with one wake-up.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::fs::File;
use std::io::Read;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{
    Exhaustion, History, Loan, LoanError, Node, PublishAllError, PublishError, Publisher, PublisherQos, Subscriber,
    SubscriberQos,
};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs, until};

const TOPIC: &str = "batches";
const LONG: Duration = Duration::from_secs(60);
const MANY: u8 = 100;

struct Bench {
    node: Node,
    _manager: Child,
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    fn new(name: &str) -> Self {
        let _watchdog = Watchdog::new(LONG);
        let _dir = RuntimeDir::new(name).unwrap();
        let mut command = Command::new(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
        let _manager = manager::start(&_dir, command).unwrap();
        Self { node: node(&_dir), _manager, _dir, _watchdog }
    }

    fn publisher(&self) -> Publisher<Bytes> {
        self.node.publisher(TOPIC).unwrap()
    }

    fn subscriber(&self, history: History) -> Subscriber<Bytes> {
        self.node.subscriber_with(TOPIC, SubscriberQos { history, ..SubscriberQos::default() }).unwrap()
    }

    /// Publishes and takes a message, so that the subscriber has mapped the pool and the publisher knows the subscriber. The wake-ups that this causes
    /// are over when this returns: the node's thread handles what the manager sends in order, and here it has handled a later answer.
    fn settle(&self, publisher: &Publisher<Bytes>, subscriber: &Subscriber<Bytes>) {
        publisher.publish_all(loans(publisher, 0..1)).unwrap();
        assert_eq!(take_all(subscriber), [0]);
        drop(self.node.publisher::<Bytes>("another").unwrap());
        publisher.publish_all(loans(publisher, 0..1)).unwrap();
        assert_eq!(take_all(subscriber), [0]);
    }
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

fn loan(publisher: &Publisher<Bytes>, byte: u8) -> Loan<Bytes> {
    let mut loan = publisher.loan(Bytes::new(64)).unwrap();
    loan.fill(byte);
    loan
}

fn loans(publisher: &Publisher<Bytes>, bytes: std::ops::Range<u8>) -> Vec<Loan<Bytes>> {
    bytes.map(|byte| loan(publisher, byte)).collect()
}

/// The first bytes of all messages that are ready; each message must have that byte only.
fn take_all(subscriber: &Subscriber<Bytes>) -> Vec<u8> {
    let content = |sample: &rgaps::Sample<Bytes>| {
        let bytes = sample.bytes();
        assert_eq!(bytes, [bytes[0]; 64]);
        bytes[0]
    };
    subscriber.take_all().unwrap().iter().map(content).collect()
}

#[test]
fn a_sleeping_subscriber_takes_a_whole_batch_after_one_wake_up() {
    let bench = Bench::new("batch-sleep");
    let (publisher, subscriber) = (bench.publisher(), bench.subscriber(History::KeepAll));
    bench.settle(&publisher, &subscriber);
    let looked = AtomicU32::new(0);
    let (give, sleeps) = channel();
    let (first, rest) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let is_over = || {
                looked.fetch_add(1, Ordering::Relaxed);
                give.send(()).unwrap();
                false
            };
            let first = subscriber.wait_unless(LONG, is_over).unwrap().unwrap();
            (first.bytes()[0], take_all(&subscriber))
        });
        let loans = loans(&publisher, 0..MANY);
        // From now on it does not look again before it is woken.
        sleeps.recv().unwrap();
        publisher.publish_all(loans).unwrap();
        reader.join().unwrap()
    });
    assert_eq!((first, rest), (0, (1..MANY).collect()));
    assert_eq!(looked.into_inner(), 1, "it slept once");
}

#[test]
fn subscribers_take_a_batch_in_order_and_lose_what_exceeds_their_depth() {
    let bench = Bench::new("batch-order");
    let publisher = bench.publisher();
    let (all, four, other) = (
        bench.subscriber(History::KeepAll),
        bench.subscriber(History::KeepLast(4)),
        bench.subscriber(History::KeepAll),
    );
    let handles = publisher.publish_all(loans(&publisher, 0..10)).unwrap();
    assert_eq!(handles.iter().map(|handle| handle.sequence).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    let third = all.take_by_handle(&handles[2], LONG).unwrap();
    assert_eq!((third.bytes()[0], third.handle()), (2, handles[2]));
    assert_eq!(take_all(&all), [0, 1, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(take_all(&other), (0..10).collect::<Vec<_>>());
    assert_eq!((take_all(&four), four.statistics().lost), (vec![6, 7, 8, 9], 6));
    let statistics = publisher.statistics();
    assert_eq!((statistics.published, statistics.published_bytes, statistics.refused), (10, 640, 0));
}

#[test]
fn a_batch_signals_an_eventfd_once() {
    let bench = Bench::new("batch-eventfd");
    let (publisher, subscriber) = (bench.publisher(), bench.subscriber(History::KeepAll));
    let mut event = File::from(subscriber.event_fd().unwrap().try_clone_to_owned().unwrap());
    bench.settle(&publisher, &subscriber);
    publisher.publish_all(loans(&publisher, 0..MANY)).unwrap();
    let mut count = [0; 8];
    event.read_exact(&mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    assert_eq!(take_all(&subscriber), (0..MANY).collect::<Vec<_>>());
}

#[test]
fn a_loan_of_another_publisher_is_refused_and_no_loan_is_lost() {
    let bench = Bench::new("batch-foreign");
    let (publisher, other) = (bench.publisher(), bench.publisher());
    let subscriber = bench.subscriber(History::KeepAll);
    let mut batch = loans(&publisher, 0..3);
    batch.insert(1, loan(&other, 77));
    let PublishAllError { published, index, source, rest } = publisher.publish_all(batch).unwrap_err();
    assert!(matches!(*source, PublishError::AnotherPublisher { .. }), "{source}");
    assert_eq!((published.len(), index, rest.len()), (0, 1, 4));
    assert_eq!((take_all(&subscriber), publisher.statistics().published), (vec![], 0));
    let (own, foreign): (Vec<_>, Vec<_>) = rest.into_iter().partition(|loan| loan[0] != 77);
    publisher.publish_all(own).unwrap();
    other.publish_all(foreign).unwrap();
    assert_eq!(take_all(&subscriber), [0, 1, 2, 77]);
}

#[test]
fn a_batch_has_as_many_loans_as_the_pool_has_room_for() {
    let bench = Bench::new("batch-room");
    let qos = PublisherQos { exhaustion: Exhaustion::Refuse, pool_bytes: Some(1 << 20), ..PublisherQos::default() };
    let publisher = bench.node.publisher_with::<Bytes>(TOPIC, qos).unwrap();
    let subscriber = bench.subscriber(History::KeepAll);
    for _ in 0..3 {
        let mut batch = Vec::new();
        let refused = loop {
            match publisher.loan(Bytes::new(100_000)) {
                Ok(mut loan) => {
                    loan.fill(batch.len() as u8);
                    batch.push(loan);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, PublishError::NoSpace { source: LoanError::Pool(_), .. }), "{refused}");
        let count = batch.len() as u8;
        assert!(count >= 5, "{count} loans of 100,000 B in a pool of 1 MiB");
        publisher.publish_all(batch).unwrap();
        let taken: Vec<u8> = subscriber.take_all().unwrap().iter().map(|sample| sample.bytes()[0]).collect();
        assert_eq!(taken, (0..count).collect::<Vec<_>>());
        // The publisher may not have the words of the subscriber yet.
        until("the blocks are free again", || publisher.statistics().used_bytes == 0);
    }
}

#[test]
fn an_empty_batch_is_published_and_wakes_nobody() {
    let bench = Bench::new("batch-empty");
    let (publisher, subscriber) = (bench.publisher(), bench.subscriber(History::KeepAll));
    assert!(publisher.publish_all(Vec::new()).unwrap().is_empty());
    assert_eq!((take_all(&subscriber), publisher.statistics().published), (vec![], 0));
}

#[test]
fn a_batch_reaches_another_host_in_order() {
    let _watchdog = Watchdog::new(2 * LONG);
    let (here, there) = (RuntimeDir::new("batch-here").unwrap(), RuntimeDir::new("batch-there").unwrap());
    let free_port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (one, two) = (free_port(), free_port());
    let networked = |dir: &RuntimeDir, own: u16, peer: u16| {
        let mut command = Command::new(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_MULTICAST", "off");
        command.env("RGAPS_LISTEN", format!("tcp/127.0.0.1:{own}")).env("RGAPS_PEERS", format!("tcp/127.0.0.1:{peer}"));
        manager::start(dir, command).unwrap()
    };
    let _managers = [networked(&here, one, two), networked(&there, two, one)];
    let (publishing, subscribing) = (node(&here), node(&there));
    let publisher = publishing.publisher::<Bytes>(TOPIC).unwrap();
    let keep_all = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
    let subscriber = subscribing.subscriber_with::<Bytes>(TOPIC, keep_all).unwrap();
    until("the hosts are linked", || {
        publisher.publish_all(loans(&publisher, 0..1)).unwrap();
        subscriber.wait(Duration::from_millis(100)).unwrap().is_some()
    });
    publisher.publish_all(loans(&publisher, 1..MANY)).unwrap();
    let taken = std::iter::from_fn(|| subscriber.wait(LONG).unwrap().map(|sample| sample.bytes()[0]));
    let batch: Vec<u8> = taken.skip_while(|byte| *byte == 0).take(usize::from(MANY) - 1).collect();
    assert_eq!(batch, (1..MANY).collect::<Vec<_>>());
    assert_eq!(subscriber.statistics().lost, 0);
}
