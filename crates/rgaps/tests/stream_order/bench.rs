//! The test bench: a manager, a node, a publisher and a subscriber on the stand-in.

use std::sync::Arc;
use std::time::Duration;

use rgaps::device::{DevicePart, PoolMemory, PoolPart, PoolSpec, Stream, testing::contract};
use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, PublisherQos, Subscriber};
use rgaps_standin_cuda::{Control, link_into};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};

pub const TOPIC: &str = "stream/order";
pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
/// Two GPUs without peer access to each other.
pub const APART: [(&str, &str); 2] = [("RGAPS_TEST_STANDIN_DEVICES", "2"), ("RGAPS_TEST_STANDIN_NO_PEER", "1")];
pub const LONG: Duration = Duration::from_secs(60);

/// Runs the test again in a new process in which the stand-in replaces libcuda, also for the manager.
pub fn on_standin(settings: &[(&str, &str)]) -> bool {
    let rgapsd = programs::find("rgapsd");
    let mut all = vec![("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local")];
    all.extend_from_slice(settings);
    again_with(&all, link_into)
}

pub struct Bench {
    pub gpu: Control,
    pub node: Node,
    pub publisher: Publisher<Bytes>,
    pub subscriber: Subscriber<Bytes>,
    pub stream: Stream,
    // Last: dropping it ends the manager.
    pub dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    pub fn new(pool_bytes: u64) -> Self {
        Self::with(pool_bytes, Exhaustion::Wait { timeout_ms: 60_000 })
    }

    pub fn with(pool_bytes: u64, exhaustion: Exhaustion) -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let dir = RuntimeDir::new("stream-order").unwrap();
        let gpu = Control::load();
        let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
        let qos = PublisherQos { pool_bytes: Some(pool_bytes), exhaustion, ..PublisherQos::default() };
        let publisher = node.publisher_with(TOPIC, qos).unwrap();
        let subscriber = node.subscriber(TOPIC).unwrap();
        let stream = node.stream().unwrap();
        Self { gpu, node, publisher, subscriber, stream, dir, _watchdog }
    }

    pub fn source(&self, bytes: u64) -> Source {
        Source::new(&self.node, bytes)
    }

    pub fn push(&self, source: &Source) {
        self.publisher.push_on(&Bytes::new(source.part.bytes()), &source.part, &self.stream).unwrap();
    }
}

/// The caller's device memory, filled.
pub struct Source {
    pub part: DevicePart,
    pub content: Vec<u8>,
    pub pool: Arc<dyn PoolMemory>,
}

impl Source {
    pub fn new(node: &Node, bytes: u64) -> Self {
        // Without peer access to the pools, the device's streams cannot push from a pool.
        let own = node.device().scratch(bytes).unwrap();
        let make = || node.device().create_pool(&PoolSpec { name: "source".to_owned(), bytes }).unwrap();
        let pool = own.unwrap_or_else(make);
        let missing = pool.missing(0, bytes).unwrap();
        pool.commit(&missing).unwrap();
        let content: Vec<u8> = (0..bytes).map(|n| (n * 7 % 253) as u8).collect();
        let copy = node.device().copy_in(&node.stream().unwrap(), &content, PoolPart::of(pool.as_ref(), 0));
        copy.unwrap().wait(LONG).unwrap();
        Self { part: contract::part_of(&pool, 0, bytes).unwrap(), content, pool }
    }
}

/// Waits until the condition holds; the watchdog ends an endless wait.
pub fn until(what: impl Fn() -> bool) {
    while !what() {
        rgaps_testing::pause();
    }
}
