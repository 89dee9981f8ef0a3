//! Messages taken by name, on a real segment in one process.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use host::{Host, lost, sequences, take, take_by_name};
use proptest::prelude::*;
use rgaps_shm::layout::{PUBLISHERS_MAX, QUEUE_SLOTS};
use rgaps_shm::reader::seen_publishers::{MessageName, TakenByName};
use rgaps_shm::words::message::Readiness;
use rgaps_shm::{Exhaustion, SubscriberSpec};

fn named(sequence: u64) -> MessageName {
    MessageName { publisher: 77, sequence }
}

#[test]
fn messages_are_taken_by_name_in_any_order_and_skipped_ones_stay() {
    let host = Host::new(32);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    for _ in 0..6 {
        publisher.publish(100, Exhaustion::Refuse).unwrap();
    }
    let TakenByName::Here(third) = take_by_name(&mut reader, named(3)) else { panic!("it was published") };
    assert_eq!(publisher.content(&third), [3; 100]);
    let TakenByName::Here(first) = take_by_name(&mut reader, named(1)) else { panic!("it was skipped") };
    assert_eq!(publisher.content(&first), [1; 100]);
    for given_out in [1, 3] {
        assert!(matches!(take_by_name(&mut reader, named(given_out)), TakenByName::Passed), "{given_out} twice");
    }
    assert!(matches!(take_by_name(&mut reader, named(7)), TakenByName::NotYet));
    assert!(matches!(take_by_name(&mut reader, MessageName { publisher: 78, sequence: 1 }), TakenByName::NotYet));
    assert!(!reader.awaits_bytes(), "skipped messages are not set aside");
    assert_eq!(sequences(&mut reader), [2, 4, 5, 6]);
    assert_eq!(lost(&reader), 0);
    let seen: Vec<_> = reader.seen().map(|seen| seen.name).collect();
    assert_eq!(seen, [named(6)]);
}

#[test]
fn a_name_that_is_not_there_costs_no_message() {
    let host = Host::new(256);
    let mut publisher = host.publisher(1 << 20, 0);
    // Keep-all.
    let mut reader = host.subscriber(0);
    for _ in 0..100 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    let strange = MessageName { publisher: 78, sequence: 1 };
    for name in [strange, named(101), named(0), named(u64::MAX)] {
        assert!(!matches!(take_by_name(&mut reader, name), TakenByName::Here(_)), "{name:?}");
    }
    assert_eq!((lost(&reader), reader.counters().held), (0, 0));
    assert!(
        matches!(take_by_name(&mut reader, named(1)), TakenByName::Here(_)),
        "a message seen on the way does not count as passed"
    );
    assert_eq!(sequences(&mut reader), (2..=100).collect::<Vec<_>>());
}

#[test]
fn a_reader_far_behind_takes_by_name_all_that_its_depth_keeps() {
    for in_order in [true, false] {
        let host = Host::new(256);
        let mut publisher = host.publisher(1 << 20, 0);
        let mut reader = host.subscriber(210);
        if in_order {
            reader.expect_handles_in_order();
        }
        for _ in 0..200 {
            publisher.publish(10, Exhaustion::Refuse).unwrap();
        }
        for sequence in 1..=200 {
            assert!(matches!(take_by_name(&mut reader, named(sequence)), TakenByName::Here(_)), "{sequence}");
        }
        assert_eq!(lost(&reader), 0);
    }
}

#[test]
fn untaken_history_is_released_once_it_is_older_than_the_depth() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 8);
    for _ in 0..8 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    let mut late = host.subscriber_with(5, true);
    assert!(matches!(take_by_name(&mut late, named(7)), TakenByName::Here(_)));
    for sequence in 9..=13 {
        if sequence == 13 {
            assert!(matches!(take_by_name(&mut late, named(6)), TakenByName::Passed));
            assert!(matches!(take_by_name(&mut late, named(8)), TakenByName::Here(_)), "among the last five");
        }
        publisher.publish(10, Exhaustion::Refuse).unwrap();
        assert!(matches!(take_by_name(&mut late, named(sequence)), TakenByName::Here(_)));
    }
    for gone in [4, 5, 6, 8] {
        assert!(matches!(take_by_name(&mut late, named(gone)), TakenByName::Passed), "{gone}");
    }
    assert_eq!((lost(&late), sequences(&mut late)), (0, vec![]));
    // All but the messages that history keeps.
    publisher.port.reclaim();
    assert_eq!(host.slot_table.messages_in_use(), 8);
}

#[test]
fn leaving_history_does_not_release_the_entrys_next_message() {
    // One entry, so that the second message reuses the first one's.
    let host = Host::new(1);
    let mut publisher = host.publisher(1 << 16, 1);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let mut late = host.subscriber_with(2, true);
    publisher.publish(10, Exhaustion::DropOldest).unwrap();
    let TakenByName::Here(held) = take_by_name(&mut late, named(2)) else { panic!("the second message is there") };
    late.close();
    assert!(publisher.publish(10, Exhaustion::DropOldest).is_err(), "the only message is held");
    assert_eq!(publisher.content(&held), [2; 10]);
    drop(held);
    publisher.publish(10, Exhaustion::DropOldest).unwrap();
}

#[test]
fn taking_history_again_skips_messages_that_wait_or_are_held() {
    let host = Host::new(4);
    let mut publisher = host.publisher(1 << 16, 1);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let mut late = host.subscriber_with(2, true);
    assert!(late.take_history_again(|_| true).is_empty(), "it waits");
    let held = take(&mut late).unwrap();
    assert!(late.take_history_again(|_| true).is_empty(), "it is held");
    drop(held);
    assert_eq!(late.take_history_again(|_| true).len(), 1);
}

#[test]
fn a_message_older_than_the_depth_is_passed_and_later_ones_stay() {
    let host = Host::new(64);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(20);
    for _ in 0..50 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    assert!(matches!(take_by_name(&mut reader, named(30)), TakenByName::Passed));
    assert_eq!((lost(&reader), reader.counters().held), (30, 0));
    assert_eq!(sequences(&mut reader), (31..=50).collect::<Vec<_>>());
}

#[test]
fn messages_never_taken_by_handle_are_released_and_counted() {
    let host = Host::new(256);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(10);
    for sequence in 1..=100 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
        if sequence % 5 == 0 {
            assert!(matches!(take_by_name(&mut reader, named(sequence)), TakenByName::Here(_)));
        }
    }
    // Skipped messages count as unread: of the last ten, eight wait.
    assert_eq!((lost(&reader), reader.counters().held), (80 - 8, 0));
    let waiting: Vec<u64> = (91..100).filter(|sequence| sequence % 5 != 0).collect();
    assert_eq!(reader.ready_count(100).ready, waiting.len());
    assert_eq!(sequences(&mut reader), waiting);
}

#[test]
fn a_keep_all_subscriber_loses_only_skipped_messages_beyond_the_bound() {
    let host = Host::new(256);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    for sequence in 1..=400 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
        if sequence % 4 == 0 {
            assert!(matches!(take_by_name(&mut reader, named(sequence)), TakenByName::Here(_)));
        }
    }
    assert_eq!(lost(&reader), 300 - 64);
    let waiting: Vec<u64> = (1..=400).filter(|sequence| sequence % 4 != 0).collect();
    assert_eq!(sequences(&mut reader), waiting[300 - 64..]);
}

#[test]
fn skipped_messages_leave_each_publisher_half_of_its_entries_with_keep_all() {
    const ENTRIES: u32 = 16;
    let host = Host::new(ENTRIES);
    let mut publishers = [host.publisher(1 << 20, 0), host.publisher(1 << 20, 0)];
    let mut reader = host.subscriber(0);
    let mut published = 0;
    for round in 1..=50 {
        for publisher in &mut publishers {
            publisher.sequence = published;
            published = publisher.publish(10, Exhaustion::Refuse).expect("half of its entries are free");
        }
        if round % 4 == 0 {
            assert!(matches!(take_by_name(&mut reader, named(published)), TakenByName::Here(_)), "{published}");
        }
    }
    let (all, taken, of_both) = (100, 12, u64::from(ENTRIES));
    let after_the_last_take = 4;
    assert_eq!(lost(&reader), all - taken - of_both - after_the_last_take);
    let waiting = sequences(&mut reader);
    assert_eq!(waiting.len() as u64, of_both + after_the_last_take, "{waiting:?}");
}

#[test]
fn one_message_that_is_never_taken_is_released_before_the_queue_forgets_it() {
    for (depth, published) in [(0, QUEUE_SLOTS / 2), (4000, 4000)] {
        let host = Host::new(64);
        let mut publisher = host.publisher(1 << 20, 0);
        let mut reader = host.subscriber(depth);
        publisher.publish(10, Exhaustion::Refuse).unwrap();
        for _ in 0..published {
            let sequence = publisher.publish(10, Exhaustion::Refuse).unwrap();
            assert!(matches!(take_by_name(&mut reader, named(sequence)), TakenByName::Here(_)), "{sequence}");
        }
        assert_eq!((lost(&reader), reader.ready_count(10).ready), (1, 0), "{depth}");
        publisher.port.reclaim();
        assert_eq!(publisher.port.outstanding(), 0, "its block is free");
    }
}

/// The next step of a publisher or reader.
#[derive(Clone, Copy, Debug)]
enum Step {
    Publish,
    Take,
    /// Takes the message this far behind the next one to publish; 0 is that next one.
    TakeByName(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        prop_oneof![3 => Just(Step::Publish), 1 => Just(Step::Take), 3 => (0_u64..90).prop_map(Step::TakeByName)];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn takes_by_name_and_in_turn_give_each_message_once_and_lose_what_the_depth_says(steps in steps(), depth in 0_u64..30) {
        let host = Host::new(1024);
        let mut publisher = host.publisher(1 << 22, 0);
        let mut reader = host.subscriber(depth as u32);
        let (mut unread, mut lost_so_far) = (BTreeSet::new(), 0);
        for step in steps {
            let newest = publisher.sequence;
            match step {
                Step::Publish => {
                    unread.insert(publisher.publish(10, Exhaustion::Refuse).unwrap());
                    let kept = unread.iter().filter(|sequence| depth == 0 || **sequence + depth > newest + 1);
                    let kept: BTreeSet<u64> = kept.copied().collect();
                    lost_so_far += unread.len() - kept.len();
                    unread = kept;
                }
                Step::Take => {
                    let taken = take(&mut reader).map(|held| held.info().sequence);
                    prop_assert_eq!(taken, unread.pop_first());
                }
                Step::TakeByName(behind) => {
                    let sequence = (newest + 1).saturating_sub(behind);
                    let taken = take_by_name(&mut reader, named(sequence));
                    prop_assert_eq!(matches!(taken, TakenByName::Here(_)), unread.remove(&sequence), "{}: {:?}", sequence, taken);
                    let passed = unread.range(..sequence).count();
                    if depth == 0 && matches!(taken, TakenByName::Here(_)) && passed > 64 {
                        for _ in 64..passed {
                            unread.pop_first();
                        }
                        lost_so_far += passed - 64;
                    }
                }
            }
            prop_assert_eq!(reader.ready_count(1000).ready, unread.len());
            prop_assert_eq!(lost(&reader), lost_so_far as u64);
        }
        prop_assert_eq!(sequences(&mut reader), unread.into_iter().collect::<Vec<_>>());
        publisher.port.reclaim();
        prop_assert_eq!(publisher.port.outstanding(), 0);
    }
}

#[test]
fn skipped_messages_keep_no_publisher_from_its_pool() {
    let host = Host::new(64);
    // Eight blocks.
    let mut publisher = host.publisher(8 * 4096, 0);
    let mut reader = host.subscriber(5);
    for _ in 0..20 {
        for _ in 0..5 {
            publisher.publish(4000, Exhaustion::Refuse).expect("five of eight are unread at most");
        }
        assert!(matches!(take_by_name(&mut reader, named(publisher.sequence)), TakenByName::Here(_)));
    }
}

#[test]
fn handles_in_order_lose_earlier_messages_but_none_before_the_first_take() {
    let host = Host::new(64);
    let (mut publisher, mut other) = (host.publisher(1 << 20, 0), host.publisher(1 << 20, 0));
    let mut reader = host.subscriber(30);
    reader.expect_handles_in_order();
    host.slot_table.count_lost(9, reader.joined());
    assert_eq!(host.slot_table.lost(), 9);
    for _ in 0..10 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    let of_other = MessageName { publisher: other.port.slot().index.into(), sequence: 1 };
    let _pending = other.publish_pending();
    let held = |reader: &rgaps_shm::ReaderPort| reader.counters().held;
    assert!(matches!(take_by_name(&mut reader, named(99)), TakenByName::NotYet), "it was never published");
    assert_eq!(held(&reader), 0, "nothing was taken");
    let TakenByName::Here(fourth) = take_by_name(&mut reader, named(4)) else { panic!("it was published") };
    assert_eq!((held(&reader), lost(&reader)), (1, 0), "the caller never got the names of the first three");
    assert_eq!(host.slot_table.lost(), 0);
    assert_eq!(reader.seen_of(77).unwrap().first, 4);
    let TakenByName::Here(seventh) = take_by_name(&mut reader, named(7)) else { panic!("it was published") };
    drop((fourth, seventh));
    assert_eq!((held(&reader), lost(&reader)), (0, 2));
    for gone in [3, 6, 7] {
        assert!(matches!(take_by_name(&mut reader, named(gone)), TakenByName::Passed), "{gone}");
    }
    for sequence in 8..=10 {
        assert!(matches!(take_by_name(&mut reader, named(sequence)), TakenByName::Here(_)), "{sequence}");
    }
    assert_eq!((held(&reader), lost(&reader), host.slot_table.lost()), (0, 2, 2));
    assert!(
        matches!(take_by_name(&mut reader, of_other), TakenByName::Here(_)),
        "the other publisher's message can still be taken by name"
    );
}

#[test]
fn a_take_by_name_finds_pending_messages_and_those_that_history_keeps() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 5);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let mut late = host.subscriber_with(10, true);
    assert!(matches!(take_by_name(&mut late, named(1)), TakenByName::Here(_)));
    let pending = publisher.publish_pending();
    assert!(take(&mut late).is_none());
    let publisher = publisher.port.slot().index.into();
    let TakenByName::Here(held) = take_by_name(&mut late, MessageName { publisher, sequence: 2 }) else {
        panic!("it is pending")
    };
    assert_eq!(held.readiness(), Readiness::Pending);
    assert!(pending.poison());
    assert_eq!(held.readiness(), Readiness::Poisoned);
}

#[test]
fn a_corrupt_join_position_causes_no_panic_and_no_endless_loop() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 0);
    for nonsense in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 36) - 1] {
        let slot =
            host.slot_table.admit_subscriber(&SubscriberSpec { depth: 3, ..Default::default() }, &host.file).unwrap();
        let segment = host.slot_table.segment().clone();
        segment.subscriber(slot.index).unwrap().joined.store(nonsense, Ordering::Release);
        let mut reader = host.reader(slot, false);
        for _ in 0..40 {
            publisher.publish(10, Exhaustion::DropOldest).unwrap();
            let _ = (reader.ready_count(10), take_by_name(&mut reader, named(publisher.sequence)), take(&mut reader));
        }
        host.release(&reader);
    }
}

#[test]
fn the_only_message_of_a_publisher_waits_while_anothers_is_taken_by_handle() {
    let host = Host::new(1);
    let (mut one, mut other) = (host.publisher(1 << 20, 0), host.publisher(1 << 20, 0));
    let mut reader = host.subscriber(0);
    one.publish(10, Exhaustion::Refuse).unwrap();
    other.sequence = 1;
    other.publish(10, Exhaustion::Refuse).unwrap();
    assert!(matches!(take_by_name(&mut reader, named(2)), TakenByName::Here(_)));
    assert_eq!((lost(&reader), sequences(&mut reader)), (0, vec![1]));
}

#[test]
fn a_poisoned_message_that_is_taken_by_name_is_counted_once() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 0);
    let mut reader = host.subscriber(0);
    assert!(publisher.publish_pending().poison());
    let name = MessageName { publisher: publisher.port.slot().index.into(), sequence: 1 };
    assert!(matches!(take_by_name(&mut reader, name), TakenByName::Passed));
    let counters = reader.counters();
    assert_eq!((counters.taken, counters.poisoned, counters.lost, counters.held), (1, 1, 0, 0));
}

#[test]
fn takes_in_order_count_what_they_skip_of_as_many_publishers_as_a_topic_has() {
    let host = Host::new(4);
    let mut publishers: Vec<_> = (0..PUBLISHERS_MAX).map(|_| host.publisher(1 << 16, 0)).collect();
    let mut reader = host.subscriber(2000);
    reader.expect_handles_in_order();
    for _ in 0..3 {
        for (identity, publisher) in (1..).zip(&mut publishers) {
            publisher.identity = identity;
            publisher.publish(10, Exhaustion::Refuse).unwrap();
            let sequence = publisher.publish(10, Exhaustion::Refuse).unwrap();
            let name = MessageName { publisher: identity, sequence };
            assert!(matches!(take_by_name(&mut reader, name), TakenByName::Here(_)), "{name:?}");
        }
    }
    assert_eq!(reader.ready_count(10).ready, 0);
    // Not those before the first take of each publisher.
    assert_eq!(lost(&reader), 2 * PUBLISHERS_MAX as u64);
}
