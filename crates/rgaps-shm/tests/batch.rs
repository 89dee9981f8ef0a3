//! Batches: what subscribers get is what single publications would give them, and each sleeper is woken once.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use host::{Host, Publisher, lost, sequences, take};
use rgaps_os::EventFd;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::notify::Wait;
use rgaps_shm::words::queue::Position;
use rgaps_shm::writer::batch::Batch;
use rgaps_shm::writer::port::WriteError;
use rgaps_shm::{Exhaustion, LoanError, LoanedMessage, MessageInfo, MessageSpec};
use rgaps_testing::system_calls::makes_no_system_call;

const BYTES: u64 = 64;
const MANY: u64 = 100;

/// Loans of the next messages, filled with the low byte of their sequence.
fn loans(publisher: &mut Publisher, count: u64) -> Vec<(u64, LoanedMessage)> {
    publisher.meet();
    let loan = |_| {
        let mut loan = publisher.port.loan(BYTES, Exhaustion::Refuse).unwrap();
        publisher.sequence += 1;
        let fill = publisher.sequence as u8;
        publisher.pool.bytes_mut(loan.block_mut().unwrap().range_mut()).unwrap()[..BYTES as usize].fill(fill);
        (publisher.sequence, loan)
    };
    (0..count).map(loan).collect()
}

fn publish_in(batch: &mut Batch<'_>, loan: LoanedMessage, sequence: u64, meta: &[u8]) -> Result<Position, WriteError> {
    let info = MessageInfo { publisher: 77, sequence, bytes: BYTES, ..Default::default() };
    batch.publish(loan, &MessageSpec { info, meta, history_depth: 3 })
}

fn publish(publisher: &mut Publisher, count: u64) {
    let loans = loans(publisher, count);
    let mut batch = publisher.port.batch();
    for (sequence, loan) in loans {
        publish_in(&mut batch, loan, sequence, &[]).unwrap();
    }
}

/// How often the topic's futex was woken: the count goes up with each system call.
fn wake_ups(host: &Host) -> u32 {
    host.slot_table.segment().header().publications.0.load(Ordering::Relaxed)
}

#[test]
fn every_subscriber_takes_a_batch_in_order_and_in_place() {
    let host = Host::new(32);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut readers = [host.subscriber(0), host.subscriber(20), host.subscriber(20)];
    publish(&mut publisher, 5);
    publish(&mut publisher, 7);
    for reader in &mut readers {
        for expected in 1..=12 {
            let held = take(reader).unwrap();
            assert_eq!((held.info().sequence, held.info().position), (expected, expected - 1));
            assert_eq!(publisher.content(&held), [expected as u8; BYTES as usize]);
        }
        assert!(take(reader).is_none());
        assert_eq!(lost(reader), 0);
    }
    let record = host.slot_table.segment().publisher(publisher.port.slot().index).unwrap();
    assert_eq!(record.published.load(Ordering::Relaxed), 12);
    assert_eq!(record.published_bytes.load(Ordering::Relaxed), 12 * BYTES);
}

#[test]
fn a_batch_wakes_all_sleepers_with_one_system_call() {
    let host = Host::new(2 * MANY as u32);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut readers = [host.subscriber(0), host.subscriber(0)];
    let mut waiters = readers.each_ref().map(|reader| reader.waiter());
    waiters.iter_mut().for_each(|waiter| waiter.arm().unwrap());
    let before = wake_ups(&host);
    publish(&mut publisher, MANY);
    assert_eq!(wake_ups(&host) - before, 1);
    for (reader, waiter) in readers.iter_mut().zip(&mut waiters) {
        assert!(waiter.wait(Duration::from_secs(60)).unwrap(), "it does not sleep");
        assert_eq!(sequences(reader), (1..=MANY).collect::<Vec<_>>());
    }
    // The same messages one by one, each while both sleep.
    for _ in 0..MANY {
        waiters.iter_mut().for_each(|waiter| waiter.arm().unwrap());
        assert!(publisher.publish(BYTES, Exhaustion::Refuse).is_ok());
    }
    assert_eq!(wake_ups(&host) - before, 1 + MANY as u32);
}

#[test]
fn a_batch_signals_each_eventfd_once() {
    let host = Host::new(2 * MANY as u32);
    let mut publisher = host.publisher(1 << 20, 0);
    let readers = [host.subscriber(0), host.subscriber(0)];
    let events = readers.each_ref().map(|reader| {
        host.slot_table.mark_event_fd(reader.slot(), true);
        let event = EventFd::new().unwrap();
        publisher.meet();
        publisher
            .port
            .add_subscriber(host.slot_table.pages(reader.slot()).unwrap(), Some(Arc::new(event.try_clone().unwrap())));
        event.drain().unwrap();
        std::fs::File::from(std::os::fd::OwnedFd::from(event))
    });
    publish(&mut publisher, MANY);
    for mut event in events {
        let mut count = [0; 8];
        event.read_exact(&mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}

#[test]
fn subscribers_that_are_awake_take_a_batch_that_has_not_ended() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    let mut waiter = reader.waiter();
    waiter.arm().unwrap();
    let [first, second] = <[_; 2]>::try_from(loans(&mut publisher, 2)).unwrap();
    let before = wake_ups(&host);
    let mut batch = publisher.port.batch();
    publish_in(&mut batch, first.1, first.0, &[]).unwrap();
    assert_eq!((sequences(&mut reader), wake_ups(&host)), (vec![1], before));
    publish_in(&mut batch, second.1, second.0, &[]).unwrap();
    drop(batch);
    assert_eq!((sequences(&mut reader), wake_ups(&host)), (vec![2], before + 1));
}

#[test]
fn a_batch_makes_no_system_call_before_it_ends() {
    let host = Host::new(MANY as u32 + 5);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    // The lists of history have their memory.
    publish(&mut publisher, 5);
    sequences(&mut reader);
    let mut waiter = reader.waiter();
    waiter.arm().unwrap();
    let loans = loans(&mut publisher, MANY);
    assert!(makes_no_system_call(move || {
        let (mut batch, mut loans) = (publisher.port.batch(), loans.into_iter());
        for (sequence, loan) in &mut loans {
            publish_in(&mut batch, loan, sequence, &[]).unwrap();
        }
        // Dropping the batch would wake, and dropping the others would unmap.
        std::mem::forget((batch, loans));
        std::mem::forget(publisher);
    }));
    assert_eq!(sequences(&mut reader).len() as u64, MANY);
}

#[test]
fn a_batch_that_publishes_nothing_wakes_nobody() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 0);
    let reader = host.subscriber(0);
    let mut waiter = reader.waiter();
    waiter.arm().unwrap();
    let before = wake_ups(&host);
    drop(publisher.port.batch());
    assert_eq!(wake_ups(&host), before);
}

#[test]
fn keep_last_loses_the_oldest_of_a_batch_as_of_single_messages() {
    let host = Host::new(32);
    let mut publisher = host.publisher(1 << 20, 3);
    let mut readers = [host.subscriber(4), host.subscriber(4)];
    let [batched, single] = &mut readers;
    publish(&mut publisher, 10);
    assert_eq!((sequences(batched), lost(batched)), (vec![7, 8, 9, 10], 6));
    assert_eq!((sequences(single), lost(single)), (vec![7, 8, 9, 10], 6));
    (0..10).for_each(|_| assert!(publisher.publish(BYTES, Exhaustion::Refuse).is_ok()));
    assert_eq!((sequences(batched), lost(batched)), (vec![17, 18, 19, 20], 12));
    // A late joiner gets the publisher's last three, and later messages.
    publish(&mut publisher, 5);
    let mut late = host.subscriber_with(10, true);
    assert_eq!((sequences(&mut late), lost(&late)), (vec![23, 24, 25], 0));
}

#[test]
fn a_batch_has_at_most_as_many_loans_as_its_publisher_has_messages() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 0);
    let (mut keeps_all, mut keeps_last) = (host.subscriber(0), host.subscriber(3));
    for round in 0..20 {
        let batch = loans(&mut publisher, 8);
        // Nothing of the batch is published yet, so nothing can be dropped for a ninth.
        let ninth = publisher.port.loan(BYTES, Exhaustion::DropOldest);
        assert!(matches!(ninth, Err(LoanError::Messages(8))), "{ninth:?}");
        let mut begun = publisher.port.batch();
        for (sequence, loan) in batch {
            publish_in(&mut begun, loan, sequence, &[]).unwrap();
        }
        drop(begun);
        let first = 8 * round + 1;
        assert_eq!(sequences(&mut keeps_all), (first..first + 8).collect::<Vec<_>>());
        assert_eq!(sequences(&mut keeps_last), [first + 5, first + 6, first + 7]);
        // History keeps three.
        publisher.port.make_room(0);
    }
    assert_eq!((lost(&keeps_all), lost(&keeps_last)), (0, 20 * 5));
}

#[test]
fn a_batch_goes_on_after_a_message_that_is_refused() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    let [first, second, third] = <[_; 3]>::try_from(loans(&mut publisher, 3)).unwrap();
    let mut batch = publisher.port.batch();
    publish_in(&mut batch, first.1, first.0, &[]).unwrap();
    let refused = publish_in(&mut batch, second.1, second.0, &[0; META_BYTES_MAX + 1]);
    assert_eq!(refused, Err(WriteError::Metadata(META_BYTES_MAX + 1)));
    publish_in(&mut batch, third.1, third.0, &[]).unwrap();
    drop(batch);
    assert_eq!(sequences(&mut reader), [1, 3]);
    publisher.port.make_room(0);
    assert_eq!(publisher.port.pool().used_bytes, 0, "the refused block is free again");
}

#[test]
fn what_a_batch_has_published_wakes_sleepers_though_its_slot_is_lost() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    let mut waiter = reader.waiter();
    let [first, second] = <[_; 2]>::try_from(loans(&mut publisher, 2)).unwrap();
    let slot = publisher.port.slot();
    let mut batch = publisher.port.batch();
    publish_in(&mut batch, first.1, first.0, &[]).unwrap();
    assert!(host.slot_table.drain_publisher(slot));
    waiter.arm().unwrap();
    let before = wake_ups(&host);
    assert!(matches!(publish_in(&mut batch, second.1, second.0, &[]), Err(WriteError::CutOff(_))));
    drop(batch);
    assert_eq!(wake_ups(&host), before + 1);
    assert_eq!(sequences(&mut reader), [1]);
}
