//! Messages that are put back, on a real segment in one process.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use host::{Host, sequences};
use rgaps_shm::Exhaustion;
use rgaps_shm::claim::{Claimed, MessageName};

#[test]
fn what_is_put_back_comes_next_and_is_counted_once() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    for _ in 0..3 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    let (first, second) = (reader.take().unwrap().unwrap(), reader.take().unwrap().unwrap());
    // In another order than they were taken.
    reader.put_back(second);
    reader.put_back(first);
    assert_eq!((reader.counters().taken, reader.unread(10).ready), (0, 3));
    assert_eq!(sequences(&mut reader), [1, 2, 3]);
    let counters = reader.counters();
    assert_eq!((counters.taken, counters.lost, counters.held), (3, 0, 0));
}

#[test]
fn what_is_put_back_goes_with_the_depth_and_with_claims_in_order() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(2);
    let mut claims = host.subscriber(10);
    claims.expect_claims_in_order();
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let held = reader.take().unwrap().unwrap();
    let first = MessageName::of(held.info());
    reader.put_back(held);
    let Claimed::Here(held) = claims.claim(first).unwrap() else { panic!("it is there") };
    claims.put_back(held);
    for _ in 0..2 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    assert_eq!(sequences(&mut reader), [2, 3]);
    assert_eq!((reader.counters().taken, reader.counters().lost, reader.counters().held), (2, 1, 0));
    let second = MessageName { sequence: first.sequence + 1, ..first };
    assert!(matches!(claims.claim(second).unwrap(), Claimed::Here(_)));
    assert_eq!((claims.counters().taken, claims.counters().lost, claims.counters().held), (1, 1, 0));
}

#[test]
fn what_is_put_back_and_then_poisoned_is_counted_as_taken() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    for is_on_stream in [false, true] {
        let mut reader = host.subscriber(0);
        let bytes = publisher.publish_unready();
        let held = reader.take_unready().unwrap().unwrap();
        reader.put_back(held);
        assert!(bytes.poison());
        let taken = if is_on_stream { reader.take_unready() } else { reader.take() };
        assert!(taken.unwrap().is_none());
        let counters = reader.counters();
        assert_eq!((counters.taken, counters.poisoned, counters.lost, counters.held), (1, 1, 0, 0), "{is_on_stream}");
    }
}
