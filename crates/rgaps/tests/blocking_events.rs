//! A program may make its subscriber's eventfd blocking (fcntl(2); `os.set_blocking` in Python does that): it loses neither slot nor samples,
//! and no publisher waits for it.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::Command;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Exhaustion, History, Node, Publisher, PublisherQos, Subscriber, SubscriberQos};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs, until};
use rustix::fs::{OFlags, fcntl_setfl};

const PAYLOAD_BYTES: usize = 8 << 10;
const LONG: Duration = Duration::from_secs(20);

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

/// A publisher and a keep-last subscriber in two nodes.
struct Topic {
    publisher: Publisher<Bytes>,
    subscriber: Subscriber<Bytes>,
    publishing: Node,
    subscribing: Node,
    manager: Child,
    dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Topic {
    fn new(name: &str, exhaustion: Exhaustion) -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(60));
        let dir = RuntimeDir::new(name).unwrap();
        let manager = rgapsd(&dir);
        let node = || Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let (publishing, subscribing) = (node(), node());
        let qos = SubscriberQos { history: History::KeepLast(1), ..SubscriberQos::default() };
        let subscriber = subscribing.subscriber_with("a", qos).unwrap();
        let publisher = Self::publisher(&publishing, exhaustion);
        Self { publisher, subscriber, publishing, subscribing, manager, dir, _watchdog }
    }

    fn publisher(node: &Node, exhaustion: Exhaustion) -> Publisher<Bytes> {
        let qos = PublisherQos { exhaustion, pool_bytes: Some(1 << 16), ..PublisherQos::default() };
        node.publisher_with("a", qos).unwrap()
    }

    fn make_blocking(&self) {
        fcntl_setfl(self.subscriber.event_fd().unwrap(), OFlags::empty()).unwrap();
    }

    /// The manager dies, and both nodes hand their slots to the next one.
    fn next_manager(&mut self) {
        self.manager.kill().unwrap();
        self.manager = rgapsd(&self.dir);
        let is_back = |topic: &rgaps::TopicSummary| topic.publishers == 1;
        until("the publisher is back", || self.publishing.topics().is_ok_and(|topics| topics.iter().any(is_back)));
        self.subscribing.topics().unwrap();
    }
}

fn push(publisher: &Publisher<Bytes>, byte: u8) -> Result<(), rgaps::PublishError> {
    publisher.push(&Bytes::new(PAYLOAD_BYTES as u64), &[byte; PAYLOAD_BYTES]).map(drop)
}

#[test]
fn a_subscriber_with_a_blocking_eventfd_delays_no_later_publisher() {
    let topic = Topic::new("blocking-later", Exhaustion::Refuse);
    topic.make_blocking();
    let later = Topic::publisher(&topic.publishing, Exhaustion::Wait { timeout_ms: 2000 });
    // It keeps the last message only, so it delays a publisher by one time-out at most.
    for number in 0..20 {
        push(&later, number).unwrap_or_else(|error| panic!("message {number}: {error}"));
    }
}

#[test]
fn a_subscriber_with_a_blocking_eventfd_keeps_its_slot_when_its_manager_dies() {
    let mut topic = Topic::new("blocking-slot", Exhaustion::DropOldest);
    topic.make_blocking();
    topic.next_manager();
    push(&topic.publisher, 1).unwrap();
    let sample = topic.subscriber.wait(LONG).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(sample.unwrap().bytes()[0], 1);
}

#[test]
fn a_sample_whose_readers_eventfd_blocks_stays_when_the_manager_dies() {
    let mut topic = Topic::new("blocking-sample", Exhaustion::DropOldest);
    push(&topic.publisher, 7).unwrap();
    let sample = topic.subscriber.wait(LONG).unwrap().unwrap();
    let bytes = sample.bytes();
    topic.make_blocking();
    topic.next_manager();
    // A publisher that does not know the words of a subscriber may refuse a message.
    (0..100).for_each(|_| drop(push(&topic.publisher, 9)));
    assert_eq!(std::hint::black_box(bytes)[0], 7, "the sample has changed while it was held");
}
