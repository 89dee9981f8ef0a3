//! A new sending manager, to which a publisher has not handed its pool back yet.

use rgaps_shm::PublisherSlot;

use super::unsent::Newcomer;
use super::*;
use crate::device_memory::Pools;

const LATE: u64 = 8;

/// Linked hosts, and a publisher whose pool the dead manager had (`Pools`), not yet the present one.
fn with_late_publisher(depth: u32, messages: u32) -> (Pair, Subscriber, Newcomer, Pools) {
    let mut pair = Pair::new(host(), depth, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(1);
    assert_eq!(subscriber.sequences_to(1), [1]);
    let pools = Pools::new(pair.topic.slot_table.clone());
    let spec = PublisherSpec { publisher: LATE, messages, ..Default::default() };
    let late = Newcomer::join_with(&pair, &spec, &pools);
    (pair, subscriber, late, pools)
}

fn hand_back(pair: &Pair, pools: &Pools, slot: PublisherSlot) {
    let (description, slabs) = pools.export(slot).unwrap();
    let memory = DeviceMemoryManager::new(host());
    memory.adopt(&pair.topic.pools, slot, pools.note(slot), &description, slabs).unwrap();
    pair.topic.outbound.values().for_each(|outbound| outbound.control.event().signal().unwrap());
}

#[test]
fn messages_of_a_publisher_that_hands_its_pool_back_late_are_sent_once_it_has() {
    let (mut pair, mut subscriber, mut late, pools) = with_late_publisher(20, 256);
    late.send(&pair, 3);
    // Messages of other publishers do not wait for that.
    pair.send(1);
    assert_eq!(subscriber.take().info().publisher, PUBLISHER);
    late.send(&pair, 1);
    hand_back(&pair, &pools, late.slot());
    assert_eq!(subscriber.sequences_to(4), [1, 2, 3, 4]);
    late.send(&pair, 1);
    assert_eq!((subscriber.sequences_to(5), subscriber.lost()), (vec![5], 0));
}

#[test]
fn messages_of_a_publisher_that_dies_before_it_hands_its_pool_back_are_counted() {
    let (mut pair, mut subscriber, mut late, _pools) = with_late_publisher(20, 256);
    late.send(&pair, 3);
    pair.send(1);
    assert_eq!(subscriber.take().info().publisher, PUBLISHER);
    assert_eq!(subscriber.lost(), 0, "it may still hand the pool back");
    late.leave(&pair);
    until("the gap notice", || subscriber.lost() == 3);
}

#[test]
fn a_sender_keeps_as_many_messages_without_a_pool_as_its_depth_and_counts_others() {
    let (mut pair, mut subscriber, mut late, pools) = with_late_publisher(2, 256);
    for sent in 1..=5 {
        late.send(&pair, 1);
        // One after the other, so that none is too old before the sender has seen it.
        pair.send(1);
        assert_eq!(subscriber.sequences_to(1 + sent), [1 + sent]);
    }
    hand_back(&pair, &pools, late.slot());
    assert_eq!((subscriber.sequences_to(5), subscriber.lost()), (vec![4, 5], 3));
}

#[test]
fn the_oldest_message_is_first_though_its_pool_is_handed_back_during_a_look() {
    let (pair, _subscriber, mut late, _pools) = with_late_publisher(20, 256);
    let file = SubscriberFile::create().unwrap();
    let slot =
        pair.topic.slot_table.admit_subscriber(&SubscriberSpec { depth: 20, ..Default::default() }, &file).unwrap();
    let pages = pair.topic.slot_table.pages(slot).unwrap();
    let mut reader = ReaderPort::new(pair.topic.segment.clone(), pages, false).unwrap();
    late.send(&pair, 2);
    let mut kept = crate::without_pool::WithoutPool::default();
    for _ in 0..2 {
        kept.keep(reader.take().unwrap().unwrap(), crate::envelope::Source::Queue);
    }
    let looks = std::cell::Cell::new(0);
    let from_the_second_look_on = |_| looks.replace(looks.get() + 1) > 0;
    let (first, _) = kept.take_first(from_the_second_look_on).unwrap();
    assert_eq!(first.info().sequence, 1);
}

#[test]
fn a_publisher_with_few_messages_and_without_a_pool_delays_no_other() {
    let (mut pair, mut subscriber, mut late, pools) = with_late_publisher(20, 4);
    for sent in 1..=3 {
        late.send(&pair, 1);
        pair.send(1);
        assert_eq!(subscriber.sequences_to(1 + sent), [1 + sent]);
    }
    hand_back(&pair, &pools, late.slot());
    assert_eq!((subscriber.sequences_to(3), subscriber.lost()), (vec![2, 3], 1));
}

#[test]
fn a_message_outside_its_pool_is_counted_though_its_publisher_then_falls_silent() {
    let (pair, mut subscriber, mut late, _pools) = with_late_publisher(20, 256);
    late.send(&pair, 20);
    // Another pool, which has the bytes of the first messages only.
    let memory = DeviceMemoryManager::new(host());
    memory.create(&pair.topic.pools, late.slot(), 1).unwrap();
    pair.topic.outbound.values().for_each(|outbound| outbound.control.event().signal().unwrap());
    let mut taken = 0;
    until("the gap notice", || {
        taken += u64::from(subscriber.reader.take().unwrap().is_some());
        subscriber.lost() > 0 && taken + subscriber.lost() == 20
    });
}
