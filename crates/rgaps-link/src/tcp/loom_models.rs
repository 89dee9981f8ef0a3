//! Loom models of the state shared by socket reader and arrivals: `RUSTFLAGS="--cfg loom" cargo test -p rgaps-link --lib --release loom`.
//!
//! Under loom no wait times out, so a missing wake-up is a deadlock. Where concurrent access is forbidden, the ring's bytes are a loom cell;
//! where a torn read is allowed but must be detected, they are an atomic word.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::error::LinkError;
use crate::geometry::{FlowControl, RingGeometry, RingOptions, Watermark};
use crate::link::RingRecord;
use crate::position::{Position, RingSpan};
use crate::record::{Flags, MessageId, MessageName, RecordHeader, RecordSequence};
use crate::ring::Placement;
use crate::tcp::queue::{QUEUE_MAX, Shared};

const RING_BYTES: u64 = 4096;

/// Runs every interleaving with at most three preemptions, like the models of rgaps-shm. Each side is a thread.
fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

fn shared(flow_control: FlowControl) -> Arc<Shared> {
    let watermark = Watermark::Zero;
    let options =
        RingOptions { ring_bytes: RING_BYTES, chunk_bytes: 512, watermark, flow_control, ..RingOptions::default() };
    Arc::new(Shared::new(RingGeometry::new(options).unwrap()))
}

/// The `n`-th record, each as long as the ring.
fn record(n: u64) -> RingRecord {
    let header = RecordHeader {
        flags: Flags::default(),
        record: RecordSequence(n),
        message: MessageId(n),
        name: MessageName::default(),
        offset: 0,
        total: 0,
        payload_bytes: 0,
        envelope_bytes: 0,
    };
    let start = Position::new(n * RING_BYTES);
    let placement = Placement { start, end: start.forward(RING_BYTES), skip: 0 };
    RingRecord { header, placement, payload: RingSpan { offset: Default::default(), bytes: 0 } }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Takes until the queue has ended; returns the numbers of the records.
fn drain(shared: &Shared) -> Vec<u64> {
    let (mut batch, mut numbers) = (VecDeque::new(), Vec::new());
    loop {
        match shared.take(&mut batch, far()) {
            Ok(came) => assert!(came, "the deadline is far"),
            Err(LinkError::Closed { .. }) => return numbers,
            Err(error) => panic!("{error}"),
        }
        numbers.extend(batch.drain(..).map(|record: RingRecord| record.header.record.0));
    }
}

#[test]
fn loom_the_consumer_misses_no_record_and_no_end() {
    model(|| {
        let shared = shared(FlowControl::On);
        let socket_reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.publish(record(0), 1);
                shared.publish(record(1), 1);
                shared.end(LinkError::Closed { by_peer: true });
            })
        };
        let consumer = thread::spawn(move || assert_eq!(drain(&shared), [0, 1]));
        socket_reader.join().unwrap();
        consumer.join().unwrap();
    });
}

#[test]
fn loom_the_socket_reader_misses_no_space_in_the_queue() {
    model(|| {
        let shared = shared(FlowControl::On);
        let records = QUEUE_MAX as u64 + 1;
        let socket_reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                (0..records).for_each(|n| shared.publish(record(n), 1));
                shared.end(LinkError::Closed { by_peer: true });
            })
        };
        let consumer = thread::spawn(move || assert_eq!(drain(&shared), (0..records).collect::<Vec<_>>()));
        socket_reader.join().unwrap();
        consumer.join().unwrap();
    });
}

#[test]
fn loom_closing_wakes_both_halves() {
    model(|| {
        let shared = shared(FlowControl::On);
        let halves = [shared.clone(), shared.clone()];
        let [socket_reader, consumer] = halves;
        let socket_reader =
            thread::spawn(move || (0..=QUEUE_MAX as u64).for_each(|n| socket_reader.publish(record(n), 1)));
        let closer = thread::spawn(move || shared.close());
        socket_reader.join().unwrap();
        closer.join().unwrap();
        // The consumer still gets queued records, then the end.
        assert!(drain(&consumer).len() <= QUEUE_MAX);
    });
}

#[test]
fn loom_a_byte_is_not_overwritten_before_the_head_has_passed_it() {
    model(|| {
        let shared = shared(FlowControl::On);
        let bytes = Arc::new(UnsafeCell::new(()));
        let socket_reader = {
            let (shared, bytes) = (shared.clone(), bytes.clone());
            thread::spawn(move || {
                bytes.with_mut(|_| ());
                shared.publish(record(0), 1);
                // The second record has the place of the first: wait for the head, like the sender for credit.
                while shared.head() < record(0).placement.end {
                    thread::yield_now();
                }
                bytes.with_mut(|_| ());
            })
        };
        let consumer = thread::spawn(move || {
            let mut batch = VecDeque::new();
            assert!(shared.take(&mut batch, far()).unwrap());
            bytes.with(|_| ());
            shared.set_head(record(0).placement.end);
        });
        socket_reader.join().unwrap();
        consumer.join().unwrap();
    });
}

#[test]
fn loom_a_record_overwritten_while_it_is_read_is_reported_torn() {
    model(|| {
        let shared = shared(FlowControl::Off);
        let bytes = Arc::new(AtomicU64::new(0));
        let socket_reader = {
            let (shared, bytes) = (shared.clone(), bytes.clone());
            thread::spawn(move || {
                for n in 0..2 {
                    shared.announce(record(n).placement.end);
                    bytes.store(n + 1, Ordering::Relaxed);
                }
            })
        };
        let consumer = thread::spawn(move || {
            let read = bytes.load(Ordering::Relaxed);
            // As if the consumer had taken the first record from the queue; the second has the same place.
            if shared.is_intact(record(0).placement.start) {
                assert!(read <= 1, "bytes of the second record were used as the first one's");
            }
        });
        socket_reader.join().unwrap();
        consumer.join().unwrap();
    });
}
