//! Malformed messages: every take counts and skips them, and the log names the first.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rgaps::types::{Encoding, Header, Image, Meta, MetaError};
use rgaps::{MessageHandle, Node, Publisher, Subscriber, TakeByHandleError, TakeError};
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_testing::{RuntimeDir, Watchdog};

const TOPIC: &str = "camera";
const LONG: Duration = Duration::from_secs(20);

/// Has the type name of an image, but describes a number of bytes other than its payload's.
#[derive(Clone, Debug, PartialEq)]
struct Lie(Image);

impl Meta for Lie {
    const KIND: u32 = Image::KIND;
    const TYPE_NAME: &'static str = Image::TYPE_NAME;
    const ENCODED_BYTES: usize = Image::ENCODED_BYTES;

    fn encode(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        self.0.encode(to)
    }

    fn decode(bytes: &[u8]) -> Result<Self, MetaError> {
        Image::decode(bytes).map(Self)
    }

    fn payload_bytes(&self) -> u64 {
        self.0.payload_bytes() - 1
    }

    fn check_shape(&self) -> Result<(), MetaError> {
        Ok(())
    }

    fn header(&self) -> &Header {
        self.0.header()
    }

    fn header_mut(&mut self) -> &mut Header {
        self.0.header_mut()
    }
}

struct Bench {
    good: Publisher<Image>,
    bad: Publisher<Lie>,
    subscriber: Subscriber<Image>,
    node: Node,
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    fn new(name: &str) -> Self {
        let dir = RuntimeDir::new(name).unwrap();
        let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
        let (good, bad) = (node.publisher(TOPIC).unwrap(), node.publisher(TOPIC).unwrap());
        let subscriber = node.subscriber(TOPIC).unwrap();
        Self { good, bad, subscriber, node, _dir: dir, _watchdog: Watchdog::new(Duration::from_secs(100)) }
    }

    fn image() -> Image {
        Image::new(4, 4, Encoding::Rgb8).unwrap()
    }

    fn lie(&self) -> MessageHandle {
        self.bad.loan(Lie(Self::image())).unwrap().publish().unwrap()
    }

    /// Publishes two malformed messages and a good one.
    fn publish(&self) {
        self.lie();
        self.lie();
        self.good.loan(Self::image()).unwrap().publish().unwrap();
    }
}

#[test]
fn every_take_in_order_counts_and_skips_a_malformed_message() {
    let bench = Bench::new("malformed");
    let subscriber = &bench.subscriber;
    let mut passed = 0;
    let mut passes = |taken: usize| {
        passed += 2;
        let statistics = subscriber.statistics();
        assert_eq!((taken, statistics.malformed, statistics.lost), (1, passed, 0));
    };
    bench.publish();
    passes(subscriber.take().unwrap().into_iter().count());
    bench.publish();
    passes(subscriber.wait(LONG).unwrap().into_iter().count());
    bench.publish();
    passes(subscriber.take_all().unwrap().len());
    bench.publish();
    passes(subscriber.take_described().unwrap().into_iter().count());
    let stream = bench.node.stream().unwrap();
    bench.publish();
    passes(subscriber.take_on(&stream).unwrap().into_iter().count());
    bench.publish();
    let next = match pin!(subscriber.next()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(next) => next.into_iter().count(),
        Poll::Pending => 0,
    };
    passes(next);
    assert!(subscriber.take().unwrap().is_none());
    assert_eq!(subscriber.statistics().held, 0, "skipped messages are released");
}

#[test]
fn a_take_by_handle_returns_the_error_of_a_malformed_message() {
    let bench = Bench::new("malformed-handle");
    let handle = bench.lie();
    let refused = bench.subscriber.take_by_handle(&handle, LONG).unwrap_err();
    assert!(matches!(refused, TakeByHandleError::Take(TakeError::Metadata { .. })), "{refused}");
    assert_eq!(bench.subscriber.statistics().malformed, 1);
    let handle = bench.good.loan(Bench::image()).unwrap().publish().unwrap();
    assert!(bench.subscriber.take_by_handle(&handle, LONG).is_ok());
}
