//! A successor neither frees what streams still use nor gives readers other memory than the writer's.

use std::path::PathBuf;
use std::sync::mpsc::channel;

use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, PublishError, Readiness};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, LONG, MIB, TOPIC, on_standin, until};
use crate::{a_producer, log, the_manager};

/// How a node comes to hand its slots back.
#[derive(Clone, Copy, PartialEq)]
enum Why {
    ManagerDies,
    /// The node connects to the same manager again.
    LockFileRemoved,
}

/// What becomes of the streams that a dropped publisher or subscriber waits for.
#[derive(Clone, Copy, PartialEq)]
enum Streams {
    Stuck,
    End,
}

fn publishers_and_subscribers(bench: &Bench) -> Option<(u32, u32)> {
    let topics = bench.node.topics().ok()?;
    topics
        .iter()
        .find(|topic| topic.key.name() == format!("/{TOPIC}"))
        .map(|topic| (topic.publishers, topic.subscribers))
}

/// Makes the bench's node hand its slots back, and waits until it has.
fn hands_back(bench: &Bench, manager: Pid, why: Why) {
    match why {
        Why::ManagerDies => {
            kill_process(manager, Signal::KILL).unwrap();
            until(|| log(bench).matches("rgapsd serves").count() == 2);
        }
        Why::LockFileRemoved => {
            let files = || -> Vec<PathBuf> {
                let files = std::fs::read_dir(bench.dir.path()).unwrap().flatten().map(|file| file.path());
                files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("client-")).collect()
            };
            files().iter().for_each(|file| std::fs::remove_file(file).unwrap());
            until(|| !files().is_empty());
        }
    }
    // Answered once everything is handed back; then the manager has released what it releases.
    until(|| bench.node.topics().is_ok());
    bench.node.topics().unwrap();
}

/// A subscriber is dropped while a stream still reads a block that it released.
fn a_subscriber_is_dropped(why: Why, streams: Streams) {
    if !on_standin(&[]) {
        return;
    }
    // The pool has room for one message.
    let bench = Bench::with(3 * MIB, Exhaustion::Refuse);
    let manager = the_manager(&bench);
    let source = bench.source(2 * MIB);
    let reads = bench.node.subscriber::<Bytes>(TOPIC).unwrap();
    bench.push(&source);
    drop(bench.subscriber.take_on(&bench.stream).unwrap().unwrap());
    let reader = bench.node.stream().unwrap();
    let sample = reads.take_on(&reader).unwrap().unwrap();
    bench.stream.synchronize(LONG).unwrap();
    bench.gpu.hold();
    sample.release_on(&reader).unwrap();
    let again = || bench.publisher.push_on(&Bytes::new(2 * MIB), &source.part, &bench.stream);
    let is_refused = || matches!(again(), Err(PublishError::NoSpace { .. }));
    let (begins, has_begun) = channel();
    std::thread::scope(|scope| {
        let dropping = scope.spawn(move || {
            begins.send(()).unwrap();
            drop(reads);
        });
        has_begun.recv().unwrap();
        hands_back(&bench, manager, why);
        assert!(is_refused(), "a stream still reads the block, and its publisher uses it again\n{}", log(&bench));
        // After its time-out it is not detached any more.
        let is_in_time = streams == Streams::End && !dropping.is_finished();
        if streams == Streams::Stuck {
            dropping.join().unwrap();
            assert!(is_refused(), "the slot is not kept\n{}", log(&bench));
        }
        bench.gpu.go();
        if is_in_time {
            until(|| publishers_and_subscribers(&bench) == Some((1, 1)));
        }
    });
}

#[test]
fn a_subscriber_that_is_dropped_while_its_manager_dies_keeps_its_block() {
    a_subscriber_is_dropped(Why::ManagerDies, Streams::Stuck);
}

#[test]
fn a_subscriber_that_is_dropped_while_it_hands_back_keeps_its_block() {
    a_subscriber_is_dropped(Why::LockFileRemoved, Streams::End);
}

/// A publisher is dropped while a stream still writes a message of it.
fn a_publisher_is_dropped(why: Why, streams: Streams) {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let source = bench.source(MIB);
    let fills = bench.node.publisher::<Bytes>(TOPIC).unwrap();
    bench.gpu.hold();
    fills.push_on(&Bytes::new(MIB), &source.part, &bench.stream).unwrap();
    let reader = bench.node.stream().unwrap();
    let sample = bench.subscriber.take_on(&reader).unwrap().unwrap();
    let (begins, has_begun) = channel();
    std::thread::scope(|scope| {
        let dropping = scope.spawn(move || {
            begins.send(()).unwrap();
            drop(fills);
        });
        has_begun.recv().unwrap();
        hands_back(&bench, manager, why);
        assert_eq!(sample.readiness(), Readiness::Pending, "while it is dropped\n{}", log(&bench));
        // After its time-out it is not detached any more.
        let is_in_time = streams == Streams::End && !dropping.is_finished();
        if streams == Streams::Stuck {
            dropping.join().unwrap();
            assert_eq!(sample.readiness(), Readiness::Pending, "the slot is not kept\n{}", log(&bench));
        }
        bench.gpu.go();
        bench.stream.synchronize(LONG).unwrap();
        assert_eq!(sample.readiness(), Readiness::Ready);
        assert!(sample.to_host().unwrap() == source.content);
        drop(sample);
        if is_in_time {
            until(|| publishers_and_subscribers(&bench) == Some((1, 1)));
        }
    });
    // Its fellow was handed back as ever.
    bench.push(&source);
    assert!(bench.subscriber.wait(LONG).unwrap().unwrap().to_host().unwrap() == source.content);
}

#[test]
fn a_publisher_that_is_dropped_while_its_manager_dies_poisons_no_message() {
    a_publisher_is_dropped(Why::ManagerDies, Streams::End);
}

#[test]
fn a_publisher_that_is_dropped_while_it_hands_back_poisons_no_message() {
    a_publisher_is_dropped(Why::LockFileRemoved, Streams::Stuck);
}

#[test]
fn a_slab_that_its_publisher_never_got_is_mapped_anew_after_a_take_over() {
    if !on_standin(&[]) {
        return;
    }
    // Slabs of 16 MiB.
    let bench = Bench::new(64 * MIB);
    let manager = the_manager(&bench);
    let (small, large) = (bench.source(MIB), bench.source(20 * MIB));
    let other = Node::builder().runtime_dir(bench.dir.path()).build().unwrap();
    let reads = other.subscriber::<Bytes>(TOPIC).unwrap();
    bench.push(&small);
    bench.stream.synchronize(LONG).unwrap();
    // The manager has the second slab, and its publisher has not.
    bench.gpu.fail("cuMemImportFromShareableHandle", 1, 2);
    bench.publisher.push_on(&Bytes::new(20 * MIB), &large.part, &bench.stream).unwrap_err();
    // The reader maps the pool as the first manager has it.
    assert!(reads.take().unwrap().unwrap().to_host().unwrap() == small.content);
    kill_process(manager, Signal::KILL).unwrap();
    until(|| publishers_and_subscribers(&bench) == Some((1, 2)));
    bench.push(&large);
    bench.stream.synchronize(LONG).unwrap();
    assert!(reads.take().unwrap().unwrap().to_host().unwrap() == large.content, "it reads memory that nobody wrote");
}

#[test]
fn a_topic_whose_kept_slot_outlives_its_node_is_open_after_a_take_over() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let mut producer = a_producer(&bench, "drops also its node");
    kill_process(manager, Signal::KILL).unwrap();
    // Only the producer has the topic's segment.
    until(|| bench.node.topics().is_ok());
    let _publisher = bench.node.publisher::<Bytes>("alone").unwrap();
    let publishers = || {
        let topics = bench.node.topics().unwrap();
        topics.iter().find(|topic| topic.key.name() == "/alone").map(|topic| topic.publishers)
    };
    assert_eq!(publishers(), Some(2), "its stream may still write");
    producer.kill().unwrap();
    until(|| publishers() == Some(1));
}
