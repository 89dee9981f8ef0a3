//! A successor's driver fails once, so that it does not take a publisher's slot back; then that successor dies, too. The publisher's stream may still
//! write.

use std::process::{Command, Stdio};

use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, PublishError, Publisher, PublisherQos, Subscriber};
use rgaps_standin_cuda::Control;
use rgaps_testing::{Child, RuntimeDir, Watchdog, is_again, manager, programs};

use super::bench::{Bench, LONG, MIB, Source, TOPIC, on_standin, until};

/// Bytes of the message of the publisher that is refused, and of the messages of another one.
const OWN: u64 = 1000;
const OTHERS: u64 = 2000;

fn rgapsd(dir: &RuntimeDir, fails: &str) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_NETWORK", "local").env("RGAPS_DEVICE", "cuda").env("RGAPS_TEST_STANDIN_FAIL", fails);
    manager::start(dir, command).unwrap()
}

fn publisher(node: &Node) -> Publisher<Bytes> {
    let qos = PublisherQos { pool_bytes: Some(4 * MIB), exhaustion: Exhaustion::DropOldest, ..PublisherQos::default() };
    node.publisher_with(TOPIC, qos).unwrap()
}

#[test]
#[ignore = "another publisher, started by the tests of this file"]
fn role_of_another_publisher() {
    if std::env::var_os("RGAPS_TEST_ANOTHER").is_none() {
        return;
    }
    assert!(is_again());
    let _watchdog = Watchdog::new(LONG);
    let node = Node::builder().no_autostart().build().unwrap();
    let publisher = publisher(&node);
    let (source, stream) = (Source::new(&node, OTHERS), node.stream().unwrap());
    for _ in 0..3 {
        publisher.push_on(&Bytes::new(OTHERS), &source.part, &stream).unwrap();
    }
    stream.synchronize(LONG).unwrap();
    println!("ready");
    // It is killed.
    loop {
        std::thread::park();
    }
}

/// A publisher whose stream is held while managers die, of which the first does not take the slot back.
struct Refused {
    gpu: Control,
    publishing: Node,
    publisher: Publisher<Bytes>,
    stream: rgaps::device::Stream,
    manager: Child,
    dir: RuntimeDir,
    _source: Source,
    _watchdog: Watchdog,
}

impl Refused {
    fn new(begin: impl FnOnce(&RuntimeDir, &Publisher<Bytes>)) -> Self {
        let _watchdog = Watchdog::new(2 * LONG);
        let (dir, gpu) = (RuntimeDir::new("refused").unwrap(), Control::load());
        let mut manager = rgapsd(&dir, "");
        let publishing = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let publisher = publisher(&publishing);
        begin(&dir, &publisher);
        let (_source, stream) = (Source::new(&publishing, OWN), publishing.stream().unwrap());
        gpu.hold();
        publisher.push_on(&Bytes::new(OWN), &_source.part, &stream).unwrap();
        manager.kill().unwrap();
        manager = rgapsd(&dir, "cuMemMap#1=999");
        until(|| matches!(publisher.loan(Bytes::new(1)), Err(PublishError::CutOff { .. })));
        until(|| publishing.topics().is_ok());
        Self { gpu, publishing, publisher, stream, manager, dir, _source, _watchdog }
    }

    fn next_manager(&mut self) {
        self.manager.kill().unwrap();
        self.manager = rgapsd(&self.dir, "");
    }

    fn let_go(&self) {
        self.gpu.go();
        self.stream.synchronize(LONG).unwrap();
    }
}

#[test]
fn a_stream_of_a_refused_publisher_writes_into_no_other_publishers_words() {
    if !on_standin(&[]) {
        return;
    }
    let mut subscriber = None;
    let mut refused = Refused::new(|dir, publisher| {
        let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let first: Subscriber<Bytes> = node.subscriber(TOPIC).unwrap();
        publisher.push(&Bytes::new(1), &[1]).unwrap();
        drop(first.wait(LONG).unwrap().expect("the pool is mapped"));
        subscriber = Some((first, node));
    });
    let (subscriber, subscribing) = subscriber.unwrap();
    refused.next_manager();
    until(|| refused.publishing.topics().is_ok() && subscribing.topics().is_ok());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "refused::role_of_another_publisher", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_ANOTHER", "1").stdin(Stdio::null()).stdout(Stdio::piped());
    refused.dir.apply(&mut command);
    let mut another = Child::spawn(&mut command).unwrap();
    another.output_after("ready").expect("it publishes");
    refused.let_go();
    let mut lengths: Vec<u64> = (0..4).map(|_| subscriber.wait(LONG).unwrap().unwrap().info().bytes).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [OWN, OTHERS, OTHERS, OTHERS]);
}

#[test]
fn the_topic_of_a_refused_slot_is_open_though_its_node_is_gone() {
    if !on_standin(&[]) {
        return;
    }
    let mut refused = Refused::new(|_, publisher| drop(publisher.loan(Bytes::new(1)).unwrap()));
    let node = || Node::builder().runtime_dir(refused.dir.path()).no_autostart().build().unwrap();
    let other = node();
    let _keeps_the_manager = other.subscriber::<Bytes>("another/topic").unwrap();
    let Refused { gpu, publishing, publisher, stream, ref mut manager, ref dir, .. } = refused;
    drop(publisher);
    drop(publishing);
    manager.kill().unwrap();
    *manager = rgapsd(dir, "");
    until(|| other.subscriber::<Bytes>(TOPIC).is_ok());
    gpu.go();
    stream.synchronize(LONG).unwrap();
}

#[test]
fn a_message_whose_pool_the_driver_cannot_map_once_is_taken_later() {
    if !on_standin(&[]) {
        return;
    }
    // CUDA_ERROR_OUT_OF_MEMORY and CUDA_ERROR_UNKNOWN.
    for code in [2, 999] {
        for call in ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
            let bench = Bench::new(8 * MIB);
            let node = Node::builder().runtime_dir(bench.dir.path()).build().unwrap();
            let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
            bench.publisher.push(&Bytes::new(1), &[7]).unwrap();
            bench.publisher.push(&Bytes::new(1), &[8]).unwrap();
            bench.gpu.fail(call, 1, code);
            let first = subscriber.take().map(|sample| sample.map(|sample| sample.bytes()[0]));
            bench.gpu.fail(call, 1, 0);
            let mut taken: Vec<u8> = first.ok().flatten().into_iter().collect();
            while taken.len() < 2 {
                taken.extend(subscriber.wait(LONG).unwrap().map(|sample| sample.bytes()[0]));
            }
            assert_eq!((taken, subscriber.statistics().lost), (vec![7, 8], 0), "{call} {code}");
        }
    }
}
