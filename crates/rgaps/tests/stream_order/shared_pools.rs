//! Buffers of a shared pool that streams fill.

use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Pool, Publisher, Readiness, Subscriber};
use rustix::process::{Signal, kill_process};

use crate::bench::{Bench, LONG, MIB, Source, on_standin, until};
use crate::{log, the_manager};

/// A pool with publishers on two topics, and their subscribers in another node.
struct Topics {
    pool: Pool,
    publishers: [Publisher<Bytes>; 2],
    subscribers: [Subscriber<Bytes>; 2],
    other: Node,
}

impl Topics {
    fn new(bench: &Bench, pool_bytes: u64) -> Self {
        let pool = bench.node.pool(pool_bytes, Exhaustion::Refuse).unwrap();
        let other = Node::builder().runtime_dir(bench.dir.path()).build().unwrap();
        let publishers = ["left", "right"].map(|topic| pool.publisher(topic).unwrap());
        let subscribers = ["left", "right"].map(|topic| other.subscriber(topic).unwrap());
        Self { pool, publishers, subscribers, other }
    }

    /// Publishes on both topics what a copy on the bench's stream fills.
    fn publish(&self, bench: &Bench, source: &Source) {
        let bytes = source.part.bytes();
        let mut buffer = self.pool.allocate(bytes).unwrap();
        bench.node.device().copy_within(&bench.stream, &source.part, buffer.part().unwrap()).unwrap();
        let buffer = buffer.freeze_on(&bench.stream).unwrap();
        for publisher in &self.publishers {
            publisher.publish_buffer_on(&Bytes::new(bytes), &buffer, &bench.stream).unwrap();
        }
    }

    fn both_read(&self, source: &Source) {
        for subscriber in &self.subscribers {
            assert!(subscriber.wait(LONG).unwrap().unwrap().to_host().unwrap() == source.content, "another content");
        }
    }

    fn nothing_is_used(&self) {
        until(|| self.pool.used_bytes() == 0);
    }
}

/// Topics after their first message, which allocates memory and registers segments, and what was published.
fn warm() -> (Bench, Topics, Source) {
    let bench = Bench::new(8 * MIB);
    let topics = Topics::new(&bench, 8 * MIB);
    let source = bench.source(MIB);
    topics.publish(&bench, &source);
    topics.both_read(&source);
    (bench, topics, source)
}

#[test]
fn a_buffer_that_a_stream_fills_is_read_on_both_topics_when_it_is_full() {
    if !on_standin(&[]) {
        return;
    }
    let (bench, topics, source) = warm();
    bench.gpu.hold();
    topics.publish(&bench, &source);
    let stream = topics.other.stream().unwrap();
    for subscriber in &topics.subscribers {
        assert!(subscriber.take().unwrap().is_none(), "its bytes are not there");
        let sample = subscriber.take_on(&stream).unwrap().unwrap();
        assert_eq!(sample.readiness(), Readiness::Pending);
        sample.release_on(&stream).unwrap();
    }
    assert!(topics.pool.used_bytes() > 0, "a stream fills it, and others read it");
    bench.gpu.go();
    topics.nothing_is_used();
}

#[test]
fn a_buffer_that_a_device_refuses_to_publish_can_be_published_again() {
    if !on_standin(&[]) {
        return;
    }
    let (bench, topics, _source) = warm();
    // Each first publication fails before it is in a queue.
    let buffer = topics.pool.allocate(MIB).unwrap().freeze_on(&bench.stream).unwrap();
    for publisher in &topics.publishers {
        bench.gpu.fail("cuStreamWriteValue32_v2", 1, 2);
        publisher.publish_buffer_on(&Bytes::new(MIB), &buffer, &bench.stream).unwrap_err();
        publisher.publish_buffer_on(&Bytes::new(MIB), &buffer, &bench.stream).unwrap();
    }
    drop(buffer);
    for subscriber in &topics.subscribers {
        drop(subscriber.wait(LONG).unwrap().unwrap());
    }
    topics.nothing_is_used();
}

#[test]
fn slabs_that_a_successor_adds_to_a_shared_pool_are_read_on_both_topics() {
    if !on_standin(&[]) {
        return;
    }
    // Slabs of 16 MiB.
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let topics = Topics::new(&bench, 64 * MIB);
    let (small, large) = (bench.source(MIB), bench.source(20 * MIB));
    topics.publish(&bench, &small);
    topics.both_read(&small);
    kill_process(manager, Signal::KILL).unwrap();
    until(|| log(&bench).matches("rgapsd serves").count() == 2);
    topics.publish(&bench, &large);
    topics.both_read(&large);
    // Another node reads the pool as the successor has it.
    let late = Node::builder().runtime_dir(bench.dir.path()).build().unwrap();
    let late = ["left", "right"].map(|topic| late.subscriber::<Bytes>(topic).unwrap());
    topics.publish(&bench, &large);
    for subscriber in late.iter().chain(&topics.subscribers) {
        assert!(subscriber.wait(LONG).unwrap().unwrap().to_host().unwrap() == large.content, "another content");
    }
    topics.nothing_is_used();
}
