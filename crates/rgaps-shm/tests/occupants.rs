//! Slots with one occupant after another.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use host::{Host, lost, take};
use rgaps_shm::layout::SlotState;
use rgaps_shm::notify::Wait;
use rgaps_shm::words::message::Readiness;
use rgaps_shm::words::queue::Position;
use rgaps_shm::{Exhaustion, SlotTable, SubscriberSpec};

#[test]
fn losses_of_a_slots_former_subscriber_are_not_those_of_the_next() {
    let host = Host::new(64);
    let first = host.subscriber(10);
    host.slot_table.count_lost(5, Position(0));
    assert_eq!(lost(&first), 5);
    host.release(&first);
    let second = host.subscriber(10);
    assert_eq!((second.slot().index, lost(&second)), (first.slot().index, 0));
}

#[test]
fn late_news_of_a_slots_former_subscriber_changes_nothing() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let admit = || host.slot_table.admit_subscriber(&SubscriberSpec::default(), &host.file).unwrap();
    let first = admit();
    let late = host.slot_table.pages(first).unwrap();
    assert!(host.slot_table.release_subscriber(first));
    let second = admit();
    assert_eq!(second.index, first.index);
    publisher.meet();
    publisher.port.add_subscriber(late, None);
    assert_eq!(publisher.port.unknown_subscribers(), []);
}

#[test]
fn a_message_lies_in_the_pool_of_the_publisher_that_has_the_slot_now() {
    let host = Host::new(64);
    let mut reader = host.subscriber(10);
    for _ in 0..2 {
        let mut publisher = host.publisher(1 << 20, 0);
        publisher.publish(10, Exhaustion::Refuse).unwrap();
        let held = take(&mut reader).unwrap();
        let slot = publisher.port.slot();
        assert_eq!(held.pool(), slot);
        drop(held);
        assert!(host.slot_table.drain_publisher(slot));
    }
}

/// A manager dies after the first step of a departure.
fn begin_departure(state: &AtomicU64, generation: u32, to: SlotState) {
    let active = SlotState::Active.word(generation);
    state.compare_exchange(active, to.word(generation), Ordering::AcqRel, Ordering::Relaxed).unwrap();
}

#[test]
fn a_successor_finishes_the_departure_of_a_subscriber() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let first = host.subscriber(10).slot();
    host.slot_table.mark_event_fd(first, true);
    let segment = host.slot_table.segment().clone();
    begin_departure(&segment.subscriber(first.index).unwrap().state, first.generation, SlotState::Free);
    SlotTable::new(segment).finish_departures();
    assert_eq!(host.subscriber(10).slot().index, first.index);
    publisher.meet();
    assert_eq!(publisher.port.unknown_subscribers(), [], "the slot's next occupant has no eventfd");
}

#[test]
fn a_successor_finishes_the_departure_of_a_publisher_and_wakes_subscribers() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(10);
    let _pending = publisher.publish_pending();
    let held = reader.take_pending().unwrap().unwrap();
    let mut waiter = reader.waiter();
    waiter.arm().unwrap();
    let slot = publisher.port.slot();
    let segment = host.slot_table.segment().clone();
    begin_departure(&segment.publisher(slot.index).unwrap().state, slot.generation, SlotState::Draining);
    SlotTable::new(segment.clone()).finish_departures();
    assert_eq!(held.readiness(), Readiness::Poisoned);
    assert!(waiter.wait(Duration::from_secs(60)).unwrap(), "it was woken");
    assert!(segment.header().publishers.0.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}
