//! zenoh: a publisher that listens, and subscribers that connect to it, without scouting and gossip. The publisher waits when a queue is full.
//!
//! The subscriber's callback runs in zenoh's own thread, which is its fastest way to receive.

use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::shm::{BlockOn, GarbageCollect, PosixShmProviderBackend, ShmProvider, ShmProviderBuilder, ZShmMut};
use zenoh::{Config, Session, Wait};

use crate::Failed;
use crate::protocol::{self, Reporter};

const KEY: &str = "rgaps/bench";
/// Room in the shared memory besides the messages under way: one that is filled and one whose release is not yet seen, and zenoh's own needs.
const SPARE_MESSAGES: usize = 2;
const SPARE_BYTES: usize = 1 << 20;

pub(crate) fn version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let found = lock.split_once("name = \"zenoh\"\nversion = \"");
    found.and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown")
}

fn session(listen: &[&str], connect: &[&str], shared_memory: bool) -> Result<Session, Failed> {
    let mut config = Config::default();
    let endpoints = |endpoints: &[&str]| format!("{endpoints:?}");
    for (key, value) in [
        ("mode", "\"peer\"".to_owned()),
        ("listen/endpoints", endpoints(listen)),
        ("connect/endpoints", endpoints(connect)),
        ("scouting/multicast/enabled", "false".to_owned()),
        ("scouting/gossip/enabled", "false".to_owned()),
        ("transport/shared_memory/enabled", shared_memory.to_string()),
    ] {
        config.insert_json5(key, &value)?;
    }
    zenoh::open(config).wait()
}

type Declared = zenoh::pubsub::Publisher<'static>;

fn declare(session: &Session) -> Result<Declared, Failed> {
    session.declare_publisher(KEY).congestion_control(CongestionControl::Block).wait()
}

/// A publisher whose messages lie in zenoh's shared memory.
pub(crate) struct ShmPublisher {
    publisher: Declared,
    provider: ShmProvider<PosixShmProviderBackend>,
    bytes: usize,
    _session: Session,
}

impl ShmPublisher {
    /// `depth`: messages that may be under way. With less room, a burst measures the 1 ms for which `BlockOn` sleeps when the memory is full.
    pub(crate) fn new(address: &str, bytes: usize, depth: usize) -> Result<Self, Failed> {
        let session = session(&[address], &[], true)?;
        let store_bytes = (depth + SPARE_MESSAGES) * bytes + SPARE_BYTES;
        let provider = ShmProviderBuilder::default_backend(store_bytes).wait()?;
        Ok(Self { publisher: declare(&session)?, provider, bytes, _session: session })
    }
}

impl protocol::Publisher for ShmPublisher {
    type Message = ZShmMut;

    fn loan(&mut self, fill: impl FnOnce(&mut [u8])) -> Result<ZShmMut, Failed> {
        let mut block = self.provider.alloc(self.bytes).with_policy::<BlockOn<GarbageCollect>>().wait()?;
        fill(&mut block);
        Ok(block)
    }

    fn publish(&mut self, message: ZShmMut) -> Result<(), Failed> {
        self.publisher.put(message).wait()
    }
}

/// A publisher whose messages go over TCP.
pub(crate) struct TcpPublisher {
    publisher: Declared,
    bytes: usize,
    _session: Session,
}

impl TcpPublisher {
    pub(crate) fn new(address: &str, bytes: usize) -> Result<Self, Failed> {
        let session = session(&[address], &[], false)?;
        Ok(Self { publisher: declare(&session)?, bytes, _session: session })
    }
}

impl protocol::Publisher for TcpPublisher {
    type Message = ZBytes;

    fn loan(&mut self, fill: impl FnOnce(&mut [u8])) -> Result<ZBytes, Failed> {
        let mut block = vec![0; self.bytes];
        fill(&mut block);
        Ok(block.into())
    }

    fn publish(&mut self, message: ZBytes) -> Result<(), Failed> {
        self.publisher.put(message).wait()
    }
}

/// Reports messages until standard input ends.
pub(crate) fn subscribe(address: &str, shared_memory: bool, reporter: Reporter) -> Result<(), Failed> {
    let session = session(&[], &[address], shared_memory)?;
    let report = move |sample: zenoh::sample::Sample| {
        let parts: Vec<&[u8]> = sample.payload().slices().collect();
        reporter.got(parts.into_iter());
    };
    let _subscriber = session.declare_subscriber(KEY).callback(report).wait()?;
    reporter.ready();
    protocol::wait_for_the_end();
    Ok(())
}
