//! A subscriber that may hold no more of a publisher: batches are given out, and what is said to wait can be taken.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{History, Node, Subscriber, SubscriberQos, TakeError};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};

const MESSAGES: u8 = 200;

/// More messages than a subscriber may hold wait for one that loses none.
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
fn a_batch_that_holds_all_it_may_is_given_out_and_nothing_is_lost() {
    with_more_than_may_be_held("batches", |subscriber| {
        let mut given = Vec::new();
        loop {
            let batch = subscriber.take_all().unwrap();
            if batch.is_empty() {
                break;
            }
            given.extend(batch.iter().map(|sample| sample.bytes()[0]));
            // While they are held, the reason why there are no more is told.
            if given.len() < usize::from(MESSAGES) {
                assert!(matches!(subscriber.take_all(), Err(TakeError::TooManyHeld { .. })));
            }
        }
        assert_eq!(given, (0..MESSAGES).collect::<Vec<u8>>(), "{:?}", subscriber.statistics());
    });
}

#[test]
fn what_is_said_to_wait_can_be_taken() {
    with_more_than_may_be_held("unread", |subscriber| {
        assert_eq!(subscriber.ready_count(1000), usize::from(MESSAGES), "each dropped before the next");
        let mut held: Vec<_> = std::iter::from_fn(|| subscriber.take().ok().flatten()).collect();
        assert_eq!(subscriber.ready_count(1000), 0, "take gives out none, since {} are held", held.len());
        held.pop();
        assert!(subscriber.ready_count(1) == 1 && subscriber.take().unwrap().is_some());
    });
}
