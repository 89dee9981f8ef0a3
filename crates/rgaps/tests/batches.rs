//! A subscriber at its limit of held messages: what batches and `ready_count` return.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{History, Node, Subscriber, SubscriberQos, TakeError};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};

const MESSAGES: u8 = 200;

/// Runs a test with a keep-all subscriber that has more unread messages than it may hold.
fn with_more_than_may_be_held(name: &str, test: impl FnOnce(&Subscriber<Bytes>)) {
    let rgapsd = programs::find("rgapsd");
    let settings = [("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")];
    if !again_with(&settings, |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new(name).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
    let subscriber = node.subscriber_with::<Bytes>("a", qos).unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    for byte in 0..MESSAGES {
        publisher.push(&Bytes::new(1), &[byte]).unwrap();
    }
    test(&subscriber);
}

#[test]
fn a_batch_ends_at_the_limit_of_held_messages_and_loses_none() {
    with_more_than_may_be_held("batches", |subscriber| {
        let mut given = Vec::new();
        loop {
            let batch = subscriber.take_all().unwrap();
            if batch.is_empty() {
                break;
            }
            given.extend(batch.iter().map(|sample| sample.bytes()[0]));
            // While the batch is held, the next call returns the reason.
            if given.len() < usize::from(MESSAGES) {
                assert!(matches!(subscriber.take_all(), Err(TakeError::TooManyHeld { .. })));
            }
        }
        assert_eq!(given, (0..MESSAGES).collect::<Vec<u8>>(), "{:?}", subscriber.statistics());
    });
}

#[test]
fn ready_count_counts_what_take_would_return() {
    with_more_than_may_be_held("unread", |subscriber| {
        assert_eq!(subscriber.ready_count(1000), usize::from(MESSAGES), "each dropped before the next");
        let mut held: Vec<_> = std::iter::from_fn(|| subscriber.take().ok().flatten()).collect();
        assert_eq!(subscriber.ready_count(1000), 0, "take gives out none, since {} are held", held.len());
        held.pop();
        assert!(subscriber.ready_count(1) == 1 && subscriber.take().unwrap().is_some());
    });
}
