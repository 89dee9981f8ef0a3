//! History: what late joiners get of it and keep, on a real segment in one process.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::sync::atomic::Ordering;

use host::{Host, Publisher, lost, take};
use rgaps_shm::layout::QUEUE_SLOTS;
use rgaps_shm::queue::{MessageIndex, Named};
use rgaps_shm::{Exhaustion, ReaderPort, SlotTable, SubscriberPages};

/// Fills the queue with messages of another publisher, which has left by the end.
fn overrun(host: &Host) {
    let mut other = host.publisher(1 << 16, 0);
    for _ in 0..QUEUE_SLOTS {
        other.publish_unmet(10, Exhaustion::Refuse).unwrap();
    }
    let slot = other.port.slot();
    assert!(host.slot_table.drain_publisher(slot));
    assert_eq!(host.slot_table.reclaim(slot), 0);
}

/// A late joiner for which history has a message that is older than a lap of the queue.
fn late_joiner(host: &Host, old: &mut Publisher, depth: u32) -> ReaderPort {
    old.publish(10, Exhaustion::Refuse).unwrap();
    overrun(host);
    let late = host.subscriber_with(depth, true);
    assert_eq!(late.ready_count(10).ready, 1, "history has the message for it");
    late
}

/// Takes the one message of a publisher that has left. Its slot is free once the message is released.
fn takes_the_last(host: &Host, old: &Publisher, late: &mut ReaderPort) {
    let (slot, lost_before) = (old.port.slot(), lost(late));
    let left = host.slot_table.reclaim(slot);
    let held = take(late);
    let taken = held.as_ref().map(|held| held.info().sequence);
    assert_eq!((left, taken, lost(late) - lost_before), (1, Some(1), 0), "(left, taken, lost)");
    assert_eq!(host.slot_table.reclaim(slot), 1, "it is held");
    drop(held);
    assert_eq!(host.slot_table.reclaim(slot), 0);
}

#[test]
fn what_history_gave_outlives_its_publisher_though_it_is_older_than_a_lap() {
    for depth in [0, 10] {
        let host = Host::new(8);
        let mut old = host.publisher(1 << 16, 1);
        let mut late = late_joiner(&host, &mut old, depth);
        assert!(host.slot_table.drain_publisher(old.port.slot()));
        takes_the_last(&host, &old, &mut late);
    }
}

#[test]
fn what_history_gave_outlives_a_publisher_that_died_before_it_noted_its_position() {
    let host = Host::new(8);
    let mut old = host.publisher(1 << 16, 1);
    old.publish(10, Exhaustion::Refuse).unwrap();
    let segment = host.slot_table.segment();
    let entry = segment.used_entries(old.port.slot().index).next().unwrap();
    segment.message(entry).position.store(u64::MAX, Ordering::Relaxed);
    let mut late = host.subscriber_with(0, true);
    for _ in 0..QUEUE_SLOTS {
        segment.queue().publish(Named { message: MessageIndex(u16::MAX), generation: 1 }).unwrap();
    }
    assert!(host.slot_table.drain_publisher(old.port.slot()));
    takes_the_last(&host, &old, &mut late);
}

#[test]
fn a_successor_keeps_what_history_gave_to_subscribers_whose_words_it_lacks() {
    let host = Host::new(8);
    let mut old = host.publisher(1 << 16, 1);
    let mut late = late_joiner(&host, &mut old, 10);
    let successor = Host { slot_table: SlotTable::new(host.slot_table.segment().clone()), ..host };
    let slot = old.port.slot();
    assert!(successor.slot_table.drain_publisher(slot));
    assert_eq!(successor.slot_table.reclaim(slot), 1, "the subscriber may want it");
    let (own, topic) = (late.pages(), successor.slot_table.segment().topic());
    let handed_back = SubscriberPages::attach(own.file().unwrap().clone(), own.place(), topic, late.slot()).unwrap();
    successor.slot_table.adopt_pages(handed_back);
    takes_the_last(&successor, &old, &mut late);
}
