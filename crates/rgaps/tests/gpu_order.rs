//! Publishing, taking and releasing in stream order, without the stand-in's controls: to hold a stream, a test makes it wait for a word in
//! memory. `cargo test` runs it on the stand-in for libcuda, `./dev test-gpu` on a real GPU.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::sync::Arc;
use std::time::Duration;

use rgaps::device::{
    DeviceKind, DevicePart, PoolMemory, PoolPart, PoolSpec, Stream, StreamMemory, StreamWord, testing::contract,
};
use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, PublishError, Publisher, PublisherQos, Readiness, Subscriber};
use rgaps_os::{Access, Mapping, memfd};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs, skipped};

/// Set to require a real GPU.
const REQUIRED: &str = "RGAPS_TEST_GPU";
const TOPIC: &str = "gpu/order";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// Runs the test on a real GPU, or in a new process in which the stand-in replaces libcuda, also for the manager.
fn on_a_device() -> bool {
    if std::env::var_os(REQUIRED).is_some() {
        return true;
    }
    let rgapsd = programs::find("rgapsd");
    let settings = [("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local")];
    again_with(&settings, rgaps_standin_cuda::link_into)
}

struct Bench {
    node: Node,
    publisher: Publisher<Bytes>,
    subscriber: Subscriber<Bytes>,
    stream: Stream,
    reader: Stream,
    gate: Arc<dyn StreamMemory>,
    // Last: dropping it ends the manager.
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    /// `None`, with a note in the output, if streams cannot wait for words.
    fn new(pool_bytes: u64, exhaustion: Exhaustion) -> Option<Self> {
        let _watchdog = Watchdog::new(Duration::from_secs(240));
        let _dir = RuntimeDir::new("gpu-order").unwrap();
        let node = Node::builder().runtime_dir(_dir.path()).build().unwrap();
        assert_eq!(node.device().kind(), DeviceKind::Cuda, "no GPU was found");
        let found = node.device().as_cuda().unwrap().gpu().properties().clone();
        if std::env::var_os(REQUIRED).is_some() {
            assert_ne!(found.name, rgaps_standin_cuda::DEVICE_NAME, "this is to be a real GPU");
        }
        if !found.has_stream_words {
            skipped(format!("streams of {} do not wait for words", found.name));
            return None;
        }
        let qos = PublisherQos { pool_bytes: Some(pool_bytes), exhaustion, ..PublisherQos::default() };
        let publisher = node.publisher_with(TOPIC, qos).unwrap();
        let subscriber = node.subscriber(TOPIC).unwrap();
        let page = memfd::create("gate", 4096).unwrap();
        let page = Arc::new(Mapping::map(&page, 4096, Access::ReadWrite).unwrap());
        let gate = node.device().stream_memory(&page).unwrap();
        let (stream, reader) = (node.stream().unwrap(), node.stream().unwrap());
        Some(Self { node, publisher, subscriber, stream, reader, gate, _dir, _watchdog })
    }

    fn gate(&self) -> StreamWord<'_> {
        StreamWord { memory: self.gate.as_ref(), offset: 0 }
    }

    /// Holds a stream until `open`.
    fn hold(&self, stream: &Stream) {
        self.gate().write(0).unwrap();
        stream.wait_value(&self.gate(), 1, LONG).unwrap();
    }

    fn open(&self) {
        self.gate().write(1).unwrap();
    }

    /// Registers memory, words and streams with the driver, which may wait for the device meanwhile. With as many messages as the
    /// pool has room for, later messages need no new memory.
    fn warm_up(&self, source: &Source, messages: usize) {
        let samples: Vec<_> = (0..messages)
            .map(|_| {
                self.push(source).unwrap();
                self.subscriber.take_on(&self.reader).unwrap().unwrap()
            })
            .collect();
        samples.into_iter().for_each(|sample| sample.release_on(&self.reader).unwrap());
        self.reader.synchronize(LONG).unwrap();
    }

    fn push(&self, source: &Source) -> Result<rgaps::MessageHandle, PublishError> {
        self.publisher.push_on(&Bytes::new(source.part.bytes()), &source.part, &self.stream)
    }
}

/// The caller's device memory, filled.
struct Source {
    part: DevicePart,
    content: Vec<u8>,
    _pool: Arc<dyn PoolMemory>,
}

impl Source {
    fn new(node: &Node, bytes: u64) -> Self {
        let pool = node.device().create_pool(&PoolSpec { name: "source".to_owned(), bytes }).unwrap();
        pool.commit(&pool.missing(0, bytes).unwrap()).unwrap();
        let content: Vec<u8> = (0..bytes).map(|n| (n * 7 % 253) as u8).collect();
        let place = PoolPart::of(pool.as_ref(), 0);
        node.device().copy_in(&node.stream().unwrap(), &content, place).unwrap().wait(LONG).unwrap();
        Self { part: contract::part_of(&pool, 0, bytes).unwrap(), content, _pool: pool }
    }
}

#[test]
fn on_a_device_push_and_take_wait_for_nothing_and_the_bytes_come_in_stream_order() {
    if !on_a_device() {
        return;
    }
    let Some(bench) = Bench::new(100 * MIB, Exhaustion::Wait { timeout_ms: 60_000 }) else { return };
    for bytes in [KIB, 40 * MIB] {
        let source = Source::new(&bench.node, bytes);
        bench.warm_up(&source, 2);
        bench.hold(&bench.stream);
        bench.push(&source).unwrap();
        assert!(bench.subscriber.take().unwrap().is_none(), "its bytes are not there");
        let sample = bench.subscriber.take_on(&bench.reader).unwrap().unwrap();
        assert_eq!(sample.readiness(), Readiness::Pending);
        bench.open();
        bench.reader.synchronize(LONG).unwrap();
        assert_eq!(sample.readiness(), Readiness::Ready);
        assert!(sample.to_host().unwrap() == source.content, "{bytes} B arrived otherwise");
    }
}

#[test]
fn on_a_device_a_block_is_used_again_only_after_the_stream_that_reads_it() {
    if !on_a_device() {
        return;
    }
    // The pool has room for one message.
    let Some(bench) = Bench::new(3 * MIB, Exhaustion::Refuse) else { return };
    let source = Source::new(&bench.node, 2 * MIB);
    bench.warm_up(&source, 1);
    while bench.push(&source).is_err() {
        rgaps_testing::pause();
    }
    let sample = bench.subscriber.take_on(&bench.reader).unwrap().unwrap();
    bench.stream.synchronize(LONG).unwrap();
    bench.hold(&bench.reader);
    sample.release_on(&bench.reader).unwrap();
    assert!(matches!(bench.push(&source), Err(PublishError::NoSpace { .. })), "the reader's stream has not got there");
    bench.open();
    while bench.push(&source).is_err() {
        rgaps_testing::pause();
    }
    let sample = bench.subscriber.wait(LONG).unwrap().unwrap();
    assert!(sample.to_host().unwrap() == source.content);
}
