//! A slot that a successor did not take back is kept while its client lives, also by the managers that follow.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, PublisherQos, Subscriber, TakeError, TopicSummary};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, manager, programs, until};

const PAYLOAD_BYTES: usize = 8 << 10;

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

fn push(publisher: &Publisher<Bytes>, byte: u8) {
    publisher.push(&Bytes::new(PAYLOAD_BYTES as u64), &[byte; PAYLOAD_BYTES]).unwrap();
}

/// Replaces this process's file of its subscribers' words by /dev/null, so that a successor does not take the subscriber's slot back.
fn spoil_words() {
    let null = std::fs::File::open("/dev/null").unwrap();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with("/memfd:rgaps-subscribers") {
            let number: i32 = entry.file_name().to_string_lossy().parse().unwrap();
            // SAFETY: replaces a file descriptor of this test's own process, which nothing else uses meanwhile.
            assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), number) }, number);
        }
    }
}

#[test]
fn a_sample_stays_though_several_successors_refuse_the_slot_of_its_reader() {
    // In a process of its own: the subscriber's words are the process's.
    if !again_with(&[], |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("refused").unwrap();
    let mut manager = rgapsd(&dir);
    let node = || Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let (publishing, subscribing) = (node(), node());
    let subscriber: Subscriber<Bytes> = subscribing.subscriber("a").unwrap();
    let qos = PublisherQos { exhaustion: Exhaustion::DropOldest, pool_bytes: Some(1 << 16), ..PublisherQos::default() };
    let publisher: Publisher<Bytes> = publishing.publisher_with("a", qos).unwrap();
    push(&publisher, 7);
    let sample = subscriber.wait(Duration::from_secs(20)).unwrap().unwrap();
    let bytes = sample.bytes();
    spoil_words();
    for _ in 0..3 {
        manager.kill().unwrap();
        manager = rgapsd(&dir);
        let has_publisher = |topic: &TopicSummary| topic.publishers == 1;
        until("the publisher is back", || publishing.topics().is_ok_and(|topics| topics.iter().any(has_publisher)));
        until("the subscriber is cut off", || matches!(subscriber.take(), Err(TakeError::CutOff { .. })));
        until("all is handed back", || subscribing.topics().is_ok());
        (0..100).for_each(|_| push(&publisher, 9));
        assert_eq!(std::hint::black_box(bytes), [7; PAYLOAD_BYTES], "the sample has changed while it was held");
    }
    drop(sample);
    drop(subscriber);
    until("the slot is free", || publishing.topics().is_ok_and(|topics| topics[0].subscribers == 0));
}
