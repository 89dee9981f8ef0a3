//! Dynamic messages: holders, and the order of releases. Each test has its own manager.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::time::Duration;

use rgaps::dynamic::{DynamicMeta, DynamicPublisher, DynamicSubscriber, Kind};
use rgaps::types::{Bytes, Datatype, PointCloud};
use rgaps::{Node, PublisherQos, Readiness, SubscriberQos};
use rgaps_standin_cuda::{Control, link_into};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};

const LONG: Duration = Duration::from_secs(60);

/// Runs the test again in a new process with these settings and, if requested, the stand-in for libcuda.
fn again(on_standin: bool) -> bool {
    let rgapsd = programs::find("rgapsd");
    let device = if on_standin { "cuda:0" } else { "host" };
    let settings = [("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", device)];
    again_with(&settings, link_into)
}

struct Bench {
    node: Node,
    publisher: DynamicPublisher,
    subscriber: DynamicSubscriber,
    // Last: dropping it ends the manager.
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let _dir = RuntimeDir::new("any").unwrap();
        let node = Node::builder().runtime_dir(_dir.path()).build().unwrap();
        let publisher = DynamicPublisher::new(&node, "any", kind, PublisherQos::default()).unwrap();
        let subscriber = DynamicSubscriber::new(&node, "any", kind, SubscriberQos::default()).unwrap();
        Self { node, publisher, subscriber, _dir, _watchdog }
    }

    fn publish(&self, meta: impl Into<DynamicMeta>, byte: u8) {
        let mut loan = self.publisher.loan(&meta.into()).unwrap();
        loan.bytes_mut().fill(byte);
        loan.publish().unwrap();
    }

    fn held(&self) -> u64 {
        self.subscriber.statistics().held
    }
}

/// Waits until the condition holds; the watchdog ends an endless wait.
fn until(what: impl Fn() -> bool) {
    while !what() {
        rgaps_testing::pause();
    }
}

#[test]
fn a_message_is_released_when_its_last_holder_releases_it() {
    if !again(false) {
        return;
    }
    let bench = Bench::new(Kind::PointCloud);
    let cloud = PointCloud::packed(5, &[("x", Datatype::Float32), ("ring", Datatype::Uint16)]).unwrap();
    bench.publish(cloud, 9);
    let message = bench.subscriber.take().unwrap().unwrap();
    assert_eq!(
        (message.kind(), message.meta(), message.to_host().unwrap()),
        (Kind::PointCloud, cloud.into(), &[9; 30][..])
    );
    let other = message.clone();
    let field =
        message.to_dlpack(&message.describe_field("ring").unwrap_or(message.describe().unwrap()), None).unwrap();
    drop(message);
    assert_eq!(bench.held(), 1);
    other.release_on(&bench.node.stream().unwrap()).unwrap();
    assert_eq!(bench.held(), 1, "an array library has it");
    std::thread::spawn(move || drop(field)).join().unwrap();
    assert_eq!(bench.held(), 0);
}

#[test]
fn ready_messages_are_counted_without_being_taken() {
    if !again(false) {
        return;
    }
    let bench = Bench::new(Kind::Bytes);
    assert_eq!(bench.subscriber.ready_count(10), 0);
    (1..=3).for_each(|byte| bench.publish(Bytes::new(8), byte));
    assert_eq!((bench.subscriber.ready_count(10), bench.subscriber.ready_count(2)), (3, 2));
    let first = bench.subscriber.take().unwrap().unwrap();
    assert_eq!((first.to_host().unwrap()[0], bench.subscriber.ready_count(10)), (1, 2));
    (0..20).for_each(|byte| bench.publish(Bytes::new(8), byte));
    assert_eq!((bench.subscriber.ready_count(100), bench.subscriber.statistics().lost), (10, 12), "keep-last 10");
}

#[test]
fn metadata_and_calls_of_another_kind_are_refused_with_both_names() {
    if !again(false) {
        return;
    }
    let bench = Bench::new(Kind::Bytes);
    let cloud = PointCloud::packed(5, &[("x", Datatype::Float32)]).unwrap();
    let said = "/any: the metadata is of rgaps/PointCloud, where rgaps/Bytes is needed";
    assert_eq!(bench.publisher.loan(&cloud.into()).unwrap_err().to_string(), said);
    assert_eq!(bench.publisher.push(&cloud.into(), &[0; 20]).unwrap_err().to_string(), said);
    let mut loan = bench.publisher.loan(&Bytes::new(20).into()).unwrap();
    assert_eq!(loan.set_meta(&cloud.into()).unwrap_err().to_string(), said);
    assert!(loan.describe_field("x").is_err());
    loan.publish().unwrap();
    let said = "/any: message 1: the metadata is of rgaps/Bytes, where rgaps/PointCloud is needed";
    let message = bench.subscriber.wait(LONG).unwrap().unwrap();
    assert_eq!(message.describe_field("x").unwrap_err().to_string(), said);
}

#[test]
fn an_array_of_a_loan_keeps_the_pool_mapped_and_nothing_else() {
    if !again(false) {
        return;
    }
    let bench = Bench::new(Kind::Bytes);
    let loan = bench.publisher.loan(&Bytes::new(64).into()).unwrap();
    let tensor = loan.to_dlpack(&loan.describe().unwrap());
    assert_eq!((tensor.as_raw().flags, tensor.as_raw().dl_tensor.data as u64), (0, loan.device_address().unwrap()));
    drop(loan);
    assert_eq!(bench.publisher.statistics().outstanding, 0, "given back");
    let Bench { node, publisher, subscriber, .. } = bench;
    drop((node, publisher, subscriber));
    drop(tensor);
}

#[test]
fn a_view_on_another_stream_waits_for_the_bytes_and_is_released_behind_its_work() {
    if !again(true) {
        return;
    }
    let bench = Bench::new(Kind::Bytes);
    let gpu = Control::load();
    let (maker, taker, viewer) =
        (bench.node.stream().unwrap(), bench.node.stream().unwrap(), bench.node.stream().unwrap());
    // The pool gets its memory with the first message.
    bench.publish(Bytes::new(1000), 1);
    drop(bench.subscriber.wait(LONG).unwrap().unwrap());
    gpu.hold();
    let loan = bench.publisher.loan(&Bytes::new(1000).into()).unwrap();
    loan.publish_on(&maker).unwrap();
    let message = bench.subscriber.take_on(&taker).unwrap().unwrap();
    let view = message.to_dlpack(&message.describe().unwrap(), Some(&viewer)).unwrap();
    let seen = viewer.record();
    assert_eq!((message.readiness(), seen.query().unwrap()), (Readiness::Pending, false));
    message.release_on(&taker).unwrap();
    drop(view);
    assert_eq!(bench.held(), 1, "streams that may read it have not got there");
    gpu.go();
    until(|| bench.held() == 0);
    assert!(seen.query().unwrap(), "released behind the viewer's work");
}
