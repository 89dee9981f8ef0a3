//! Publisher and subscriber ports and the slot table together, on a real segment in one process.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use host::{Host, lost, sequences, take, write_ready, write_released};
use proptest::prelude::*;
use rgaps_os::{Access, Mapping, memfd};
use rgaps_shm::layout::{META_BYTES_MAX, SEGMENT_BYTES};
use rgaps_shm::notify::Wait;
use rgaps_shm::reader::port::TakeRefused;
use rgaps_shm::words::message::Readiness;
use rgaps_shm::{Exhaustion, Held, LoanError, MessageInfo, MessageSpec, ReaderPort, SubscriberSpec};

#[test]
fn every_subscriber_takes_messages_in_order_and_in_place() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut readers = [host.subscriber(10), host.subscriber(10)];
    for _ in 0..5 {
        publisher.publish(1000, Exhaustion::Refuse).unwrap();
    }
    for reader in &mut readers {
        for expected in 1..=5 {
            let held = take(reader).unwrap();
            assert_eq!(held.info().sequence, expected);
            assert!(publisher.content(&held).iter().all(|byte| *byte == expected as u8));
            let mut meta = [0; META_BYTES_MAX];
            assert_eq!(held.copy_meta(&mut meta), 8);
            assert_eq!(meta[..8], expected.to_le_bytes());
        }
        assert!(take(reader).is_none());
    }
    publisher.port.reclaim();
    assert_eq!(publisher.port.pool().used_bytes, 0);
    assert_eq!(host.slot_table.messages_in_use(), 0);
}

#[test]
fn a_held_message_stays_whatever_the_publisher_does() {
    let host = Host::new(8);
    let mut publisher = host.publisher(64 << 10, 0);
    let mut reader = host.subscriber(2);
    publisher.publish(1000, Exhaustion::DropOldest).unwrap();
    let held = take(&mut reader).unwrap();
    for _ in 0..1000 {
        publisher.publish(1000, Exhaustion::DropOldest).unwrap();
    }
    assert!(publisher.content(&held).iter().all(|byte| *byte == 1));
    assert_eq!(sequences(&mut reader), [1000, 1001]);
    assert_eq!(lost(&reader), 998);
}

#[test]
fn keep_all_loses_nothing_and_the_publisher_times_out() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    for _ in 0..8 {
        publisher.publish(10, Exhaustion::DropOldest).unwrap();
    }
    assert!(matches!(publisher.publish(10, Exhaustion::DropOldest), Err(LoanError::Messages(8))));
    let waited = publisher.publish(10, Exhaustion::within(Duration::from_millis(5)));
    let Err(LoanError::TimedOut { keeper: Some(keeper), .. }) = waited else { panic!("{waited:?}") };
    assert_eq!((keeper.pid, keeper.is_remote), (host::SUBSCRIBER_PID, false), "the error names the subscriber");
    assert_eq!(sequences(&mut reader), [1, 2, 3, 4, 5, 6, 7, 8]);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    assert_eq!(lost(&reader), 0);
}

#[test]
fn a_publisher_waits_for_no_idle_keep_last_subscriber_until_it_reads_again() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 0);
    let (mut idle, mut busy, mut keeps_all) = (host.subscriber(100), host.subscriber(100), host.subscriber(0));
    let wait = Exhaustion::within(Duration::ZERO);
    for _ in 0..8 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    assert_eq!(sequences(&mut keeps_all).len(), 8);
    let readers = publisher.port.taken_counts();
    take(&mut busy).unwrap();
    publisher.port.give_up_on(readers);
    publisher.publish(10, wait).unwrap();
    assert_eq!((lost(&idle), lost(&busy), lost(&keeps_all)), (1, 0, 0));
    assert!(
        matches!(publisher.publish(10, wait), Err(LoanError::TimedOut { .. })),
        "the publisher waits for the busy one"
    );
    assert_eq!(sequences(&mut busy), [2, 3, 4, 5, 6, 7, 8, 9]);
    assert!(publisher.publish(10, wait).is_ok(), "the idle one's next message is dropped");
    assert_eq!((sequences(&mut keeps_all), lost(&idle)), (vec![9, 10], 2));

    assert_eq!(sequences(&mut idle), [3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(sequences(&mut busy), [10]);
    for _ in 0..8 {
        publisher.publish(10, wait).unwrap();
        take(&mut keeps_all).unwrap();
        take(&mut busy).unwrap();
    }
    assert!(matches!(publisher.publish(10, wait), Err(LoanError::TimedOut { .. })), "it has read since");
    assert_eq!((lost(&idle), lost(&busy), lost(&keeps_all)), (2, 0, 0));
}

#[test]
fn a_subscriber_that_had_nothing_to_read_during_a_wait_is_not_idle() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 0);
    let (mut idle, mut busy) = (host.subscriber(100), host.subscriber(100));
    let wait = Exhaustion::within(Duration::ZERO);
    for _ in 0..8 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    assert_eq!(sequences(&mut busy).len(), 8);
    let readers = publisher.port.taken_counts();
    publisher.port.give_up_on(readers);
    for _ in 0..8 {
        publisher.publish(10, wait).unwrap();
    }
    assert!(
        matches!(publisher.publish(10, wait), Err(LoanError::TimedOut { .. })),
        "the busy one has not read them yet"
    );
    assert_eq!(sequences(&mut busy), [9, 10, 11, 12, 13, 14, 15, 16]);
    publisher.publish(10, wait).unwrap();
    assert_eq!((lost(&busy), sequences(&mut idle).len()), (0, 8));
}

#[test]
fn a_closed_reader_delays_no_publisher_while_its_message_is_held() {
    let host = Host::new(8);
    let mut publisher = host.publisher(64 << 10, 0);
    let mut reader = host.subscriber(0);
    publisher.publish(20_000, Exhaustion::Refuse).unwrap();
    publisher.publish(20_000, Exhaustion::Refuse).unwrap();
    let held = take(&mut reader).unwrap();
    reader.close();
    for _ in 0..20 {
        publisher.publish(30_000, Exhaustion::Refuse).unwrap();
    }
    assert!(publisher.content(&held).iter().all(|byte| *byte == 1));
    assert!(take(&mut reader).is_none(), "a closed reader gets nothing");
    drop(held);
    publisher.port.reclaim();
    assert_eq!(publisher.port.pool().used_bytes, 0);
    host.release(&reader);
}

#[test]
fn a_reader_that_lost_its_slot_changes_nothing_for_the_next_occupant() {
    let host = Host::new(8);
    let mut publisher = host.publisher(64 << 10, 0);
    let mut before = host.subscriber(0);
    host.release(&before);
    let mut next = host.subscriber(0);
    before.close();
    publisher.publish(100, Exhaustion::Refuse).unwrap();
    publisher.publish(100, Exhaustion::Refuse).unwrap();
    assert_eq!(sequences(&mut next), [1, 2], "all messages are kept for it");
}

#[test]
fn a_publisher_that_waits_goes_on_when_a_holder_releases() {
    let host = Host::new(4);
    let mut publisher = host.publisher(8192, 0);
    let mut reader = host.subscriber(0);
    publisher.publish(5000, Exhaustion::Refuse).unwrap();
    let held = take(&mut reader).unwrap();
    std::thread::scope(|scope| {
        let space = host.slot_table.segment().clone();
        let waiting = scope.spawn(move || publisher.publish(5000, Exhaustion::within(Duration::from_secs(60))));
        while space.header().space.0.sleepers.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
            std::thread::yield_now();
        }
        drop(held);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(take(&mut reader).unwrap().info().sequence, 2);
}

#[test]
fn a_message_without_its_bytes_delays_only_messages_of_its_publisher() {
    let host = Host::new(16);
    let (mut slow, mut quick) = (host.publisher(1 << 20, 0), host.publisher(1 << 20, 0));
    let mut reader = host.subscriber(10);
    let pending = [slow.publish_pending(), slow.publish_pending()];
    quick.sequence = 9;
    quick.publish(10, Exhaustion::Refuse).unwrap();
    assert_eq!(sequences(&mut reader), [10]);
    write_ready(&host, pending[1].word());
    assert!(take(&mut reader).is_none() && reader.awaits_bytes(), "the message before it has no bytes yet");
    write_ready(&host, pending[0].word());
    assert_eq!(sequences(&mut reader), [1, 2]);
    assert!(!reader.awaits_bytes());
    slow.port.reclaim();
    assert_eq!(slow.port.pool().used_bytes, 0);
}

#[test]
fn bytes_that_are_ready_before_publication_stay_ready() {
    let host = Host::new(1);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(10);
    for expected in 1..=3 {
        let told = publisher.publish_behind(|word| write_ready(&host, word));
        assert!(!told.poison());
        assert_eq!(sequences(&mut reader), [expected], "the entry is reused");
    }
}

#[test]
fn a_stream_that_waits_gets_messages_in_order_with_and_without_bytes() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(10);
    let pending = [publisher.publish_pending(), publisher.publish_pending(), publisher.publish_pending()];
    assert!(take(&mut reader).is_none());
    assert!(pending[1].poison() && !pending[1].poison());
    let first = reader.take_pending().unwrap().unwrap();
    assert_eq!((first.info().sequence, first.readiness()), (1, Readiness::Pending));
    assert_eq!(first.ready_word(), pending[0].word());
    let third = reader.take_pending().unwrap().unwrap();
    assert_eq!(third.info().sequence, 3);
    assert_eq!(reader.counters().poisoned, 1);
    for (held, pending) in [(first, &pending[0]), (third, &pending[2])] {
        publisher.port.reclaim();
        assert!(publisher.port.pool().used_bytes > 0, "pending, and not released");
        write_ready(&host, pending.word());
        assert_eq!(held.readiness(), Readiness::Ready);
        publisher.port.reclaim();
        assert!(publisher.port.pool().used_bytes > 0, "not released");
        write_released(&reader, held.release_word());
        drop(held);
    }
    assert_eq!(reader.counters().held, 0);
    publisher.port.reclaim();
    assert_eq!(publisher.port.pool().used_bytes, 0);
}

#[test]
fn a_publisher_finds_a_message_that_a_stream_released_without_a_wake_up() {
    let host = Host::new(4);
    let mut publisher = host.publisher(8192, 0);
    let mut reader = host.subscriber(0);
    publisher.publish(5000, Exhaustion::Refuse).unwrap();
    let held = take(&mut reader).unwrap();
    let sleepers = host.slot_table.segment().clone();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || publisher.publish(5000, Exhaustion::within(Duration::from_secs(60))));
        while sleepers.header().space.0.sleepers.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
            std::thread::yield_now();
        }
        write_released(&reader, held.release_word());
        waiting.join().unwrap().unwrap();
    });
    drop(held);
}

#[test]
fn a_message_whose_producer_died_before_its_bytes_came_is_poisoned() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(10);
    let _pending = publisher.publish_pending();
    let held = reader.take_pending().unwrap().unwrap();
    let slot = publisher.port.slot();
    assert!(host.slot_table.drain_publisher(slot));
    assert_eq!(held.readiness(), Readiness::Poisoned);
    assert!(take(&mut reader).is_none());
    drop(held);
    assert_eq!(host.slot_table.finish_draining(slot), 0);
}

#[test]
fn a_dead_publishers_slot_is_freed_whatever_it_left_in_its_words() {
    // Every combination of flags and state in the life words, with generation and owner unchanged. Some do not decode.
    for flags in 0..=u8::MAX {
        let host = Host::new(16);
        let mut publisher = host.publisher(1 << 20, 3);
        for _ in 0..5 {
            publisher.publish(10, Exhaustion::Refuse).unwrap();
        }
        let slot = publisher.port.slot();
        let segment = host.slot_table.segment();
        for index in segment.used_entries(slot.index) {
            let life = &segment.message(index).life;
            life.store(life.load(Ordering::Relaxed) & !0xff | u64::from(flags), Ordering::Relaxed);
        }
        assert!(host.slot_table.drain_publisher(slot));
        assert_eq!(host.slot_table.finish_draining(slot), 0, "{flags:#x}");
        assert_eq!(host.slot_table.draining().count(), 0);
    }
}

#[test]
fn late_joiners_get_the_last_k_and_others_nothing() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 3);
    for _ in 0..6 {
        publisher.publish(100, Exhaustion::Refuse).unwrap();
    }
    assert_eq!(sequences(&mut host.subscriber_with(10, true)), [4, 5, 6]);
    assert_eq!(sequences(&mut host.subscriber_with(2, true)), [5, 6]);
    assert_eq!(sequences(&mut host.subscriber_with(10, false)), [0_u64; 0]);
}

#[test]
fn history_makes_way_when_its_space_is_needed() {
    let host = Host::new(16);
    let mut publisher = host.publisher(16 << 10, 10);
    for _ in 0..20 {
        publisher.publish(4096, Exhaustion::Refuse).unwrap();
    }
    let last = sequences(&mut host.subscriber_with(10, true));
    assert_eq!(last.last(), Some(&20));
    assert!(last.len() < 10);
}

#[test]
fn refuse_says_what_was_missing_and_drop_oldest_takes_from_keep_last_only() {
    let host = Host::new(16);
    let mut publisher = host.publisher(16 << 10, 0);
    let mut slow = host.subscriber(10);
    for _ in 0..3 {
        publisher.publish(4096, Exhaustion::Refuse).unwrap();
    }
    assert!(matches!(publisher.publish(8192, Exhaustion::Refuse), Err(LoanError::Pool(_))));
    publisher.publish(8192, Exhaustion::DropOldest).unwrap();
    assert!(matches!(publisher.publish(1 << 20, Exhaustion::DropOldest), Err(LoanError::TooLarge { .. })));
    let got = sequences(&mut slow);
    assert_eq!(got.last(), Some(&4));
    assert_eq!(got.len() as u64 + lost(&slow), 4);
}

#[test]
fn a_message_too_large_for_the_empty_pool_is_refused_and_costs_no_other() {
    let host = Host::new(16);
    // 4300 granules: sizes from 4225 on have blocks of 4352.
    let mut publisher = host.publisher(4300 * 256, 2);
    let mut keeps = host.subscriber(10);
    for _ in 0..5 {
        publisher.publish(1, Exhaustion::DropOldest).unwrap();
    }
    for exhaustion in [Exhaustion::DropOldest, Exhaustion::within(Duration::from_secs(3600)), Exhaustion::Refuse] {
        let refused = publisher.publish(4225 * 256, exhaustion);
        assert!(matches!(refused, Err(LoanError::TooLarge { wanted: 1_081_600, .. })), "{refused:?}");
    }
    assert_eq!((sequences(&mut keeps), lost(&keeps)), ((1..=5).collect(), 0));
    assert_eq!(sequences(&mut host.subscriber_with(10, true)), [4, 5], "history is kept, too");
    assert!(publisher.publish(4224 * 256, Exhaustion::DropOldest).is_ok());
}

#[test]
fn a_dead_subscribers_holds_are_void_and_its_slot_serves_the_next() {
    let host = Host::new(4);
    let mut publisher = host.publisher(8192, 0);
    let mut dead = host.subscriber(0);
    publisher.publish(5000, Exhaustion::Refuse).unwrap();
    let held = take(&mut dead).unwrap();
    host.release(&dead);
    publisher.publish(5000, Exhaustion::Refuse).unwrap();
    let mut next = host.subscriber(0);
    assert_eq!(next.slot().index, dead.slot().index);
    publisher.publish(100, Exhaustion::Refuse).unwrap();
    drop(held);
    assert_eq!(sequences(&mut next), [3]);
}

#[test]
fn a_dead_publishers_messages_are_still_read_and_then_its_slot_is_free() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 20, 5);
    let mut reader = host.subscriber(10);
    publisher.publish(100, Exhaustion::Refuse).unwrap();
    publisher.publish(200, Exhaustion::Refuse).unwrap();
    let abandoned = publisher.port.try_loan(300, Exhaustion::Refuse).unwrap();
    drop(abandoned); // Neither published nor given back.
    let slot = publisher.port.slot();
    assert!(host.slot_table.drain_publisher(slot));
    assert_eq!(host.slot_table.finish_draining(slot), 2);
    let first = take(&mut reader).unwrap();
    assert_eq!(take(&mut reader).unwrap().info().sequence, 2);
    assert_eq!(host.slot_table.finish_draining(slot), 1);
    drop(first);
    assert_eq!(host.slot_table.finish_draining(slot), 0);
    assert_eq!(host.slot_table.messages_in_use(), 0);
    assert_eq!(host.slot_table.draining().count(), 0);
}

#[test]
fn a_demoted_subscriber_no_longer_stalls_the_publisher() {
    let host = Host::new(4);
    let mut publisher = host.publisher(1 << 20, 0);
    let reader = host.subscriber(0);
    for _ in 0..4 {
        publisher.publish(10, Exhaustion::DropOldest).unwrap();
    }
    assert!(publisher.publish(10, Exhaustion::DropOldest).is_err());
    assert_eq!(publisher.port.stalled_by(), Some(reader.slot()));
    assert!(host.slot_table.demote(reader.slot(), 2));
    assert_eq!(publisher.port.stalled_by(), None);
    publisher.publish(10, Exhaustion::DropOldest).unwrap();
    assert!(lost(&reader) > 0);
}

#[test]
fn the_next_occupant_of_a_stalling_subscribers_slot_stays_keep_all() {
    let host = Host::new(4);
    let mut publisher = host.publisher(1 << 20, 0);
    let stalling = host.subscriber(0);
    for _ in 0..4 {
        publisher.publish(10, Exhaustion::DropOldest).unwrap();
    }
    let named = publisher.port.stalled_by().unwrap();
    let slot = stalling.slot();
    assert!(host.slot_table.release_subscriber(slot));
    let innocent = host.subscriber(0);
    assert_eq!((innocent.slot().index, named), (slot.index, slot));
    assert!(!host.slot_table.demote(named, 2), "the slot has another occupant by now");
    for _ in 0..4 {
        publisher.publish(10, Exhaustion::DropOldest).unwrap();
    }
    publisher.publish(10, Exhaustion::DropOldest).unwrap_err();
    assert_eq!(lost(&innocent), 0);
}

#[test]
fn a_keep_all_subscriber_that_blocks_no_publisher_is_not_named() {
    let host = Host::new(64);
    let (mut remote, mut local) = (host.remote_publisher(8192), host.publisher(1 << 20, 0));
    let (mut holder, mut keeps_all) = (host.subscriber(1), host.subscriber(0));
    remote.publish(5000, Exhaustion::Refuse).unwrap();
    let held = holder.take().unwrap().unwrap();
    for _ in 0..3 {
        local.publish(10, Exhaustion::Refuse).unwrap();
    }
    remote.publish(5000, Exhaustion::DropOldest).unwrap_err();
    assert_eq!(remote.port.stalled_by(), None, "the holder blocks the publisher first");
    assert_eq!(sequences(&mut keeps_all).len(), 4);
    remote.publish(5000, Exhaustion::DropOldest).unwrap_err();
    assert_eq!((remote.port.stalled_by(), local.port.stalled_by()), (None, None));
    drop(held);
    assert_eq!(remote.publish(5000, Exhaustion::DropOldest), Ok(2));
    assert_eq!(remote.port.stalled_by(), Some(keeps_all.slot()), "it has still to read it");
}

#[test]
fn a_loss_on_the_way_is_counted_for_subscribers_that_joined_before_it() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 16, 0);
    let early = host.subscriber(5);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let last = rgaps_shm::manager::last_received::last_received(host.slot_table.segment(), [0; 16])[&77].position;
    let late = host.subscriber(5);
    let slot = host
        .slot_table
        .admit_subscriber(&SubscriberSpec { depth: 5, remote: true, ..Default::default() }, &host.file)
        .unwrap();
    let sender = host.reader(slot, false);
    host.slot_table.count_lost(3, last);
    assert_eq!([&early, &late, &sender].map(lost), [3, 0, 0]);
    assert_eq!(host.slot_table.lost(), 3, "of the host's subscribers, without its senders");
}

#[test]
fn the_table_has_the_newest_message_of_a_host_after_its_writer_died() {
    let host = Host::new(4);
    let received = || rgaps_shm::manager::last_received::last_received(host.slot_table.segment(), [0; 16]);
    let mut publisher = host.remote_publisher(1 << 16);
    let mut reader = host.subscriber(10);
    assert!(received().is_empty());
    for expected in 1..=9 {
        publisher.publish(10, Exhaustion::DropOldest).unwrap();
        assert_eq!(received()[&77].sequence, expected);
    }
    // A message that was described and never queued does not count, even once its entry is free.
    sequences(&mut reader);
    let loan = publisher.port.loan(10, Exhaustion::Refuse).unwrap();
    publisher.port.give_back(loan);
    let slot = publisher.port.slot();
    host.slot_table.drain_publisher(slot);
    assert_eq!(host.slot_table.finish_draining(slot), 0);
    let found = received();
    assert_eq!((found[&77].sequence, found[&77].position.0), (9, 8));
    assert!(
        rgaps_shm::manager::last_received::last_received(host.slot_table.segment(), [1; 16]).is_empty(),
        "a message of another host"
    );
}

#[test]
fn a_message_published_again_reaches_later_subscribers_and_history() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 16, 5);
    let mut early = host.subscriber(5);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let seen = rgaps_shm::manager::last_received::last_received(host.slot_table.segment(), [0; 16])[&77].position;
    assert_eq!(sequences(&mut early), [1]);
    let slot = publisher.port.slot();
    host.slot_table.drain_publisher(slot);
    let mut late = host.subscriber_with(5, true);
    let mut volatile = host.subscriber(5);
    let mut again = host.publisher(1 << 16, 5);
    let loan = again.port.loan(10, Exhaustion::Refuse).unwrap();
    let info = MessageInfo { publisher: 77, sequence: 1, bytes: 10, ..Default::default() };
    again.port.publish_again(loan, &MessageSpec { info, meta: &[], history_depth: 5 }, seen, 0).unwrap();
    let mut later = host.subscriber_with(5, true);
    let readers = [&mut early, &mut late, &mut volatile, &mut later];
    assert_eq!(readers.map(sequences), [vec![], vec![1], vec![], vec![1]]);
    assert_eq!([&early, &late, &volatile, &later].map(lost), [0; 4]);
}

#[test]
fn history_of_another_host_is_for_those_who_want_it_and_never_lost() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 16, 5);
    let (mut shallow, mut deep) = (host.subscriber_with(1, true), host.subscriber_with(3, true));
    let mut volatile = host.subscriber(1);
    let mut publish = |sequence| {
        let loan = publisher.port.loan(10, Exhaustion::Refuse).unwrap();
        let info = MessageInfo { publisher: 77, sequence, bytes: 10, ..Default::default() };
        publisher.port.publish_history(loan, &MessageSpec { info, meta: &[], history_depth: 5 }).unwrap();
    };
    (1..=5).for_each(&mut publish);
    assert_eq!([&shallow, &deep, &volatile].map(lost), [0; 3]);
    let mut late = host.subscriber_with(1, true);
    let readers = [&mut shallow, &mut deep, &mut volatile, &mut late];
    assert_eq!(readers.map(sequences), [vec![5], vec![3, 4, 5], vec![], vec![5]]);
    assert_eq!([&shallow, &deep, &volatile, &late].map(lost), [0; 4]);
}

#[test]
fn a_message_that_may_be_from_before_a_subscriber_is_not_lost_for_it() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 16, 0);
    let mut early = host.subscriber(1);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let seen = rgaps_shm::words::queue::Position(0);
    let mut late = host.subscriber(1);
    for sequence in 2..=4 {
        let loan = publisher.port.loan(10, Exhaustion::Refuse).unwrap();
        let info = MessageInfo { publisher: 77, sequence, bytes: 10, ..Default::default() };
        publisher.port.publish_late(loan, &MessageSpec { info, meta: &[], history_depth: 5 }, seen).unwrap();
    }
    assert_eq!([&mut early, &mut late].map(sequences), [[4]; 2]);
    assert_eq!([&early, &late].map(lost), [3, 0]);
}

#[test]
fn a_sender_skips_no_message_that_history_keeps() {
    let host = Host::new(16);
    let mut first = host.publisher(1 << 16, 1);
    let mut volatile = host.publisher(1 << 16, 0);
    first.publish(10, Exhaustion::Refuse).unwrap();
    let spec = SubscriberSpec { depth: 2, remote: true, ..Default::default() };
    let slot = host.slot_table.admit_subscriber(&spec, &host.file).unwrap();
    let pages = host.slot_table.pages(slot).unwrap();
    let mut sender = ReaderPort::for_sender(host.slot_table.segment().clone(), pages).unwrap();
    let mut second = host.publisher(1 << 16, 2);
    // The two messages before the last one of this publisher, and all but two of the other's, are too old.
    for _ in 0..4 {
        second.publish(10, Exhaustion::Refuse).unwrap();
    }
    for _ in 0..5 {
        volatile.publish(10, Exhaustion::Refuse).unwrap();
    }
    let positions = |sender: &mut ReaderPort| -> Vec<u64> {
        std::iter::from_fn(|| take(sender)).map(|held| held.info().position).collect()
    };
    assert_eq!(positions(&mut sender), [0, 3, 4, 8, 9]);
    assert_eq!((lost(&sender), sender.passed().0), (2 + 3, 10));
    // It needs none of these any more, so none keeps its space.
    second.publish(10, Exhaustion::Refuse).unwrap();
    for _ in 0..5 {
        volatile.publish(10, Exhaustion::Refuse).unwrap();
    }
    // It has not passed a message that it still takes, although that is older than its depth.
    assert_eq!(sender.passed().0, 10);
    assert_eq!(positions(&mut sender), [10, 14, 15]);
}

#[test]
fn a_waiter_is_woken_by_a_publication() {
    let host = Host::new(4);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(10);
    std::thread::scope(|scope| {
        let taken = scope.spawn(move || {
            let mut waiter = reader.waiter();
            loop {
                waiter.arm().unwrap();
                if let Some(held) = take(&mut reader) {
                    return held.info().sequence;
                }
                waiter.wait(Duration::from_secs(60)).unwrap();
            }
        });
        publisher.publish(10, Exhaustion::Refuse).unwrap();
        assert_eq!(taken.join().unwrap(), 1);
    });
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u64),
    Take(usize),
    Release(usize),
    Join(u32),
    Leave(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1_u64..9000).prop_map(Step::Publish),
        4 => any::<usize>().prop_map(Step::Take),
        3 => any::<usize>().prop_map(Step::Release),
        1 => (1_u32..5).prop_map(Step::Join),
        1 => any::<usize>().prop_map(Step::Leave),
    ];
    proptest::collection::vec(step, 0..150)
}

/// A subscriber, and the plain list of the messages published to it.
struct Model {
    reader: ReaderPort,
    depth: u64,
    unread: VecDeque<u64>,
    skipped: u64,
}

impl Model {
    /// Takes one message. Messages before it in the list were dropped or are older than the depth.
    fn take(&mut self, newest: u64) -> Option<Held> {
        let message = match self.reader.take() {
            Ok(message) => message?,
            Err(TakeRefused::TooManyHeld { held, .. }) => {
                assert_eq!(held, 6, "half of the publisher's entries");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let sequence = message.info().sequence;
        while self.unread.pop_front().expect("the message was published to it") != sequence {
            self.skipped += 1;
        }
        assert!(newest - sequence < self.depth, "older than its depth");
        Some(message)
    }

    /// Reads the rest. Every message was then either taken or counted as lost.
    fn finish(mut self, host: &Host, newest: u64) {
        while self.take(newest).is_some() {}
        assert_eq!(self.skipped + self.unread.len() as u64, lost(&self.reader));
        host.release(&self.reader);
    }
}

proptest! {
    #[test]
    fn the_ports_agree_with_plain_lists(steps in steps()) {
        let host = Host::new(12);
        let mut publisher = host.publisher(64 << 10, 0);
        let mut models: Vec<Model> = Vec::new();
        let mut held: Vec<Held> = Vec::new();
        for step in steps {
            let count = models.len().max(1);
            match step {
                Step::Publish(bytes) => {
                    publisher.meet();
                    publisher.port.reclaim();
                    let needed = publisher.port.outstanding();
                    match publisher.publish(bytes, Exhaustion::DropOldest) {
                        Ok(sequence) => models.iter_mut().for_each(|model| model.unread.push_back(sequence)),
                        Err(error) => prop_assert_eq!(publisher.port.outstanding(), needed, "{} costs messages", error),
                    }
                }
                Step::Take(n) => held.extend(models.get_mut(n % count).and_then(|model| model.take(publisher.sequence))),
                Step::Release(n) if !held.is_empty() => drop(held.swap_remove(n % held.len())),
                Step::Join(depth) if models.len() < 6 => models.push(Model {
                    reader: host.subscriber(depth),
                    depth: u64::from(depth),
                    unread: VecDeque::new(),
                    skipped: 0,
                }),
                Step::Leave(n) if !models.is_empty() => {
                    // A subscriber leaves once it holds nothing; here all subscribers release everything.
                    held.clear();
                    models.swap_remove(n % count).finish(&host, publisher.sequence);
                }
                _ => {}
            }
            for message in &held {
                prop_assert!(publisher.content(message).iter().all(|byte| *byte == message.info().sequence as u8));
            }
        }
        drop(held);
        models.into_iter().for_each(|model| model.finish(&host, publisher.sequence));
        publisher.port.reclaim();
        prop_assert_eq!(publisher.port.pool().used_bytes, 0);
        prop_assert_eq!(host.slot_table.messages_in_use(), 0);
    }
}

#[test]
fn a_publisher_keeps_every_message_that_an_unknown_subscriber_could_have() {
    let host = Host::new(8);
    let (mut publisher, mut latched) = (host.publisher(1 << 20, 0), host.publisher(1 << 20, 1));
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    for _ in 0..2 {
        latched.publish(10, Exhaustion::Refuse).unwrap();
    }
    let reader = host.subscriber_with(2, true);
    publisher.port.reclaim();
    assert_eq!(publisher.port.outstanding(), 0, "the new subscriber can have none of its messages");
    publisher.publish_unmet(10, Exhaustion::Refuse).unwrap();
    for _ in 0..2 {
        latched.publish_unmet(10, Exhaustion::Refuse).unwrap();
    }
    publisher.port.reclaim();
    latched.port.reclaim();
    assert_eq!((publisher.port.outstanding(), latched.port.outstanding()), (1, 4));
    for _ in 0..7 {
        publisher.publish_unmet(10, Exhaustion::Refuse).unwrap();
    }
    let refused = publisher.publish_unmet(10, Exhaustion::DropOldest);
    assert!(matches!(refused, Err(LoanError::Messages(8))), "{refused:?}: it may hold any of them");
    assert_eq!(publisher.port.subscriber_count(), 1);
    publisher.publish(10, Exhaustion::DropOldest).unwrap();
    latched.meet();
    latched.port.reclaim();
    assert_eq!(latched.port.outstanding(), 1, "history keeps the last one; all others are older than the depth");
    assert_eq!(reader.counters().held, 0);
}

#[test]
fn a_subscriber_writes_nothing_that_other_subscribers_read() {
    let host = Host::new(8);
    let made = host.slot_table.segment();
    let reader = host.subscriber(10);
    // The kernel enforces this for each file descriptor and mapping of a subscriber.
    let segment = made.read_only().unwrap();
    for part in [0, SEGMENT_BYTES - 4096] {
        assert!(Mapping::map_part(&segment, SEGMENT_BYTES, part, 4096, Access::ReadWrite).is_err());
    }
    assert!(memfd::punch_hole(&segment, 0, 4096).is_err());
    assert!(memfd::seal_future_write(&segment).is_err());
    assert!(std::fs::File::from(segment).write_at(&[0], 0).is_err());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of = |address: &AtomicU64| {
        let address = std::ptr::from_ref(address).addr();
        let line = maps.lines().find(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(from)..number(to)).contains(&address)
        });
        line.unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(of(&reader.segment().header().tail.0), "r--s", "a subscriber's mapping of the segment");
    assert_eq!(of(&reader.pages().words().cursor), "rw-s", "its own words");
    // Whatever it writes into its own words, the other subscriber gets everything.
    let (mut publisher, mut other) = (host.publisher(1 << 20, 0), host.subscriber(10));
    let lies = reader.pages().words();
    for lie in [0, 1, u64::MAX - 1, u64::MAX] {
        [&lies.cursor, &lies.taken, &lies.held].into_iter().for_each(|word| word.store(lie, Ordering::Relaxed));
        publisher.publish(10, Exhaustion::DropOldest).unwrap();
        assert_eq!(sequences(&mut other).len(), 1);
    }
}

#[test]
fn a_loan_that_fails_costs_no_history() {
    let host = Host::new(16);
    let mut publisher = host.publisher(8192, 1);
    let mut holder = host.subscriber(1);
    publisher.publish(5000, Exhaustion::Refuse).unwrap();
    let held = holder.take().unwrap().unwrap();
    for exhaustion in [Exhaustion::Refuse, Exhaustion::DropOldest, Exhaustion::within(Duration::ZERO)] {
        publisher.publish(5000, exhaustion).unwrap_err();
    }
    let mut late = host.subscriber_with(1, true);
    assert_eq!(sequences(&mut late), [1], "the newest message");
    drop(held);
    publisher.publish(5000, Exhaustion::Refuse).unwrap();
    assert_eq!(sequences(&mut late), [2], "history gives up the first message, and the loan succeeds");
}
