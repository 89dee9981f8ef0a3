//! History: what late joiners get of it and keep, and what a loan without space may give up. On a real segment in one process.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::sync::atomic::Ordering;
use std::time::Duration;

use host::{Host, Publisher, lost, sequences, take};
use rgaps_shm::layout::QUEUE_SLOTS;
use rgaps_shm::words::queue::{MessageIndex, Named, Position};
use rgaps_shm::{Exhaustion, LoanError, ReaderPort, SlotTable, SubscriberPages};

/// Fills the queue with messages of another publisher, which has left by the end.
fn overrun(host: &Host) {
    let mut other = host.publisher(1 << 16, 0);
    for _ in 0..QUEUE_SLOTS {
        other.publish_unmet(10, Exhaustion::Refuse).unwrap();
    }
    let slot = other.port.slot();
    assert!(host.slot_table.drain_publisher(slot));
    assert_eq!(host.slot_table.finish_draining(slot), 0);
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
    let left = host.slot_table.finish_draining(slot);
    let held = take(late);
    let taken = held.as_ref().map(|held| held.info().sequence);
    assert_eq!((left, taken, lost(late) - lost_before), (1, Some(1), 0), "(left, taken, lost)");
    assert_eq!(host.slot_table.finish_draining(slot), 1, "it is held");
    drop(held);
    assert_eq!(host.slot_table.finish_draining(slot), 0);
}

#[test]
fn a_reader_has_passed_no_message_that_history_still_has_for_it() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 16, 3);
    for _ in 0..3 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    let mut late = host.subscriber_with(0, true);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    for taken in 0..4 {
        assert_eq!(late.passed(), Position(taken));
        assert_eq!(take(&mut late).map(|held| held.info().sequence), Some(taken + 1));
    }
    assert_eq!(late.passed(), Position(4));
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
    assert_eq!(successor.slot_table.finish_draining(slot), 1, "the subscriber may want it");
    let (own, topic) = (late.pages(), successor.slot_table.segment().topic());
    let handed_back = SubscriberPages::attach(own.file().unwrap().clone(), own.place(), topic, late.slot()).unwrap();
    successor.slot_table.adopt_pages(handed_back);
    takes_the_last(&successor, &old, &mut late);
}

const EACH: [Exhaustion; 3] = [Exhaustion::Refuse, Exhaustion::DropOldest, Exhaustion::within(Duration::ZERO)];

/// What a late joiner gets now. It leaves again.
fn kept(host: &Host) -> Vec<u64> {
    let mut late = host.subscriber_with(10, true);
    let kept = sequences(&mut late);
    host.release(&late);
    kept
}

#[test]
fn a_loan_that_a_held_large_block_makes_fail_costs_no_history() {
    for exhaustion in EACH {
        let host = Host::new(16);
        let mut publisher = host.publisher(1 << 20, 4);
        let mut holder = host.subscriber(10);
        publisher.publish(600_000, Exhaustion::Refuse).unwrap();
        let held = take(&mut holder).unwrap();
        for _ in 0..4 {
            publisher.publish(1000, Exhaustion::Refuse).unwrap();
        }
        assert_eq!(sequences(&mut holder), [2, 3, 4, 5]);
        assert!(publisher.publish(600_000, exhaustion).is_err());
        assert_eq!(kept(&host), [2, 3, 4, 5], "{exhaustion:?}");
        // A loan for which there is room without the held block gives up as much as it needs.
        publisher.publish(400_000, exhaustion).unwrap();
        assert_eq!(kept(&host), [3, 4, 5, 6], "{exhaustion:?}");
        drop(held);
        publisher.publish(600_000, exhaustion).unwrap();
        assert_eq!(kept(&host), [4, 5, 6, 7], "{exhaustion:?}");
    }
}

#[test]
fn a_drop_oldest_loan_that_fails_costs_no_unread_message() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut holder = host.subscriber(10);
    publisher.publish(600_000, Exhaustion::Refuse).unwrap();
    let held = take(&mut holder).unwrap();
    let mut reader = host.subscriber(10);
    for _ in 0..4 {
        publisher.publish(1000, Exhaustion::Refuse).unwrap();
    }
    let refused = publisher.publish(600_000, Exhaustion::DropOldest);
    assert!(matches!(refused, Err(LoanError::Pool(_))), "{refused:?}");
    assert_eq!((reader.ready_count(10).ready, lost(&reader)), (4, 0));
    drop(held);
    publisher.publish(600_000, Exhaustion::DropOldest).unwrap();
    assert_eq!((sequences(&mut reader), lost(&reader)), (vec![2, 3, 4, 5, 6], 0));
}

#[test]
fn a_loan_beside_other_loans_that_fill_the_pool_costs_nothing() {
    for exhaustion in EACH {
        let host = Host::new(16);
        let mut publisher = host.publisher(64 << 10, 2);
        let mut reader = host.subscriber(10);
        publisher.publish(100, Exhaustion::Refuse).unwrap();
        publisher.publish(100, Exhaustion::Refuse).unwrap();
        let other = publisher.port.try_loan(32 << 10, Exhaustion::Refuse).unwrap();
        assert!(publisher.publish(40 << 10, exhaustion).is_err());
        assert_eq!(kept(&host), [1, 2], "{exhaustion:?}");
        assert_eq!((sequences(&mut reader), lost(&reader)), (vec![1, 2], 0));
        publisher.port.give_back(other);
        publisher.publish(40 << 10, exhaustion).unwrap();
    }
}

#[test]
fn a_loan_without_entries_costs_nothing_while_each_is_held() {
    for exhaustion in EACH {
        let host = Host::new(8);
        let mut publisher = host.publisher(1 << 20, 8);
        let (mut first, mut second) = (host.subscriber(8), host.subscriber(8));
        let mut publish = |count| (0..count).for_each(|_| assert!(publisher.publish(100, Exhaustion::Refuse).is_ok()));
        publish(4);
        let mut held = [(); 4].map(|()| take(&mut first));
        assert_eq!(sequences(&mut second), [1, 2, 3, 4]);
        publish(4);
        let held_too = [(); 4].map(|()| take(&mut second));
        assert_eq!(held.iter().chain(&held_too).flatten().count(), 8);
        assert!(publisher.publish(100, exhaustion).is_err());
        assert_eq!(kept(&host), [1, 2, 3, 4, 5, 6, 7, 8], "{exhaustion:?}");
        held[1] = None;
        publisher.publish(100, exhaustion).unwrap();
        assert_eq!(kept(&host), [3, 4, 5, 6, 7, 8, 9], "{exhaustion:?}");
    }
}

#[test]
fn a_loan_drops_unread_messages_before_history_that_is_unread_too() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 3);
    let mut reader = host.subscriber(20);
    for _ in 0..8 {
        publisher.publish(100, Exhaustion::Refuse).unwrap();
    }
    assert!(matches!(publisher.publish(100, Exhaustion::Refuse), Err(LoanError::Messages(8))));
    assert_eq!(kept(&host), [6, 7, 8]);
    publisher.publish(100, Exhaustion::DropOldest).unwrap();
    assert_eq!(kept(&host), [7, 8, 9]);
    assert_eq!((sequences(&mut reader), lost(&reader)), ((2..=9).collect(), 1));
}

#[test]
fn room_that_cannot_be_made_costs_nothing() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 2);
    let mut holder = host.subscriber(10);
    publisher.publish(100_000, Exhaustion::Refuse).unwrap();
    let held = take(&mut holder).unwrap();
    for _ in 0..4 {
        publisher.publish(1000, Exhaustion::Refuse).unwrap();
    }
    assert!(!publisher.port.make_room(90_000));
    assert_eq!((kept(&host), holder.ready_count(10).ready), (vec![4, 5], 4));
    assert!(publisher.port.make_room(publisher.port.pool().used_bytes - 1000));
    assert_eq!((kept(&host), holder.ready_count(10).ready), (vec![4, 5], 3), "the oldest unread message is enough");
    drop(held);
    assert!(publisher.port.make_room(0));
}

#[test]
fn who_keeps_a_loan_from_space_is_named_though_history_keeps_an_older_message() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 8);
    let mut holder = host.subscriber(10);
    for _ in 0..3 {
        publisher.publish(300_000, Exhaustion::Refuse).unwrap();
    }
    drop(take(&mut holder).unwrap());
    let held = [take(&mut holder).unwrap(), take(&mut holder).unwrap()];
    publisher.publish(900_000, Exhaustion::DropOldest).unwrap_err();
    assert_eq!(kept(&host), [1, 2, 3]);
    assert!(publisher.port.keeper().is_some());
    drop(held);
}
