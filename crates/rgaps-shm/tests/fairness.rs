//! Fairness: no publisher starves another, late joiners miss nothing, loss counts are complete, and ports that were cut off return errors.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use host::{Host, lost, sequences, take};
use rgaps_shm::layout::{DEPTH_MAX, PUBLISHERS_MAX, QUEUE_SLOTS, SUBSCRIBERS_MAX};
use rgaps_shm::manager::slot_table::ENTRIES_RESERVED;
use rgaps_shm::reader::port::TakeRefused;
use rgaps_shm::writer::port::WriteError;
use rgaps_shm::{Exhaustion, LoanError, MessageInfo, MessageSpec, PublisherSpec, SubscriberSpec};

#[test]
fn idle_publishers_whose_messages_were_never_freed_starve_no_other() {
    let host = Host::new(128);
    let mut idle = [host.publisher(1 << 20, 0), host.publisher(1 << 20, 0)];
    for _ in 0..128 {
        for publisher in &mut idle {
            publisher.publish(10, Exhaustion::Refuse).unwrap();
        }
    }
    let mut third = host.publisher(1 << 20, 0);
    for _ in 0..1000 {
        third.publish(10, Exhaustion::Refuse).unwrap();
    }
}

#[test]
fn a_latched_publisher_of_great_depth_has_its_own_entries_only() {
    let host = Host::new(1256);
    let mut latched = host.publisher(1 << 20, 1000);
    let mut other =
        Host { messages: 256, slot_table: host.slot_table.clone(), file: host.file.clone() }.publisher(1 << 20, 0);
    for _ in 0..2000 {
        latched.publish(10, Exhaustion::Refuse).unwrap();
        other.publish(10, Exhaustion::Refuse).unwrap();
    }
    assert_eq!(sequences(&mut host.subscriber_with(0, true)), (1001..=2000).collect::<Vec<_>>());
}

#[test]
fn a_stopped_subscriber_of_great_depth_delays_only_waiting_publishers_once() {
    let host = Host::new(256);
    let (mut one, mut other) = (host.publisher(1 << 20, 0), host.publisher(1 << 20, 0));
    let stopped = host.subscriber(1000);
    for _ in 0..256 {
        one.publish(10, Exhaustion::Refuse).unwrap();
        other.publish(10, Exhaustion::Refuse).unwrap();
    }
    for _ in 0..300 {
        other.publish(10, Exhaustion::DropOldest).unwrap();
    }
    assert!(matches!(one.publish(10, Exhaustion::Refuse), Err(LoanError::Messages(256))));
    let readers = one.port.taken_counts();
    one.port.give_up_on(readers);
    for _ in 0..300 {
        one.publish(10, Exhaustion::within(std::time::Duration::ZERO)).unwrap();
    }
    assert_eq!(lost(&stopped), 600);
}

#[test]
fn a_reader_that_holds_half_of_a_publishers_messages_gets_no_more() {
    let host = Host::new(256);
    let (mut publisher, mut other) = (host.publisher(1 << 20, 0), host.publisher(1 << 20, 0));
    let (mut holder, mut reader) = (host.subscriber(0), host.subscriber(0));
    let mut held = Vec::new();
    for _ in 0..128 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
        held.push(take(&mut holder).unwrap());
        assert_eq!(sequences(&mut reader).len(), 1);
    }
    other.publish(10, Exhaustion::Refuse).unwrap();
    assert_eq!(take(&mut holder).unwrap().info().sequence, 1, "it still gets messages of another publisher");
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let refused = holder.take().unwrap_err();
    assert_eq!(refused, TakeRefused::TooManyHeld { publisher: publisher.port.slot().index, held: 128 });
    held.remove(7);
    assert_eq!(take(&mut holder).unwrap().info().sequence, 129, "it was not lost");
    drop(held);
    assert_eq!((lost(&holder), sequences(&mut holder)), (0, vec![]));
}

#[test]
fn a_depth_beyond_the_queue_is_clamped_and_every_message_taken_or_counted() {
    let host = Host::new(256);
    // The first publisher's messages end up more than a lap behind, and would never be freed if they were not counted as lost.
    let (mut brief, mut publisher) = (host.publisher(1 << 20, 0), host.publisher(1 << 20, 0));
    let mut reader = host.subscriber(u32::MAX);
    assert_eq!(reader.depth(), u64::from(DEPTH_MAX));
    for _ in 0..128 {
        brief.publish(10, Exhaustion::DropOldest).unwrap();
    }
    let published = QUEUE_SLOTS as u64 + 1000;
    for _ in 0..published {
        publisher.publish(10, Exhaustion::DropOldest).unwrap();
    }
    assert_eq!(lost(&reader), 128 + published - 256);
    assert_eq!(sequences(&mut reader), (published - 255..=published).collect::<Vec<_>>());
    assert_eq!(lost(&reader), 128 + published - 256);
    brief.port.reclaim();
    publisher.port.reclaim();
    assert_eq!(host.slot_table.messages_in_use(), 0);
}

#[test]
fn a_keep_last_one_subscriber_that_joins_late_reads_the_newest_only() {
    let host = Host::new(16);
    let mut publisher = host.publisher(1 << 20, 1);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let mut late = host.subscriber_with(1, true);
    let mut later = host.subscriber_with(3, true);
    for _ in 2..=6 {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    assert_eq!(sequences(&mut late), [6]);
    assert_eq!(sequences(&mut later), [4, 5, 6]);
}

#[test]
fn history_holds_no_space_once_depth_messages_were_published_since() {
    const DEPTH: u32 = 10;
    let host = Host::new(256);
    // Room for the history and as many messages again, of 256 B each.
    let mut publisher = host.publisher(u64::from(2 * DEPTH) * 256, DEPTH);
    for _ in 0..DEPTH {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    let mut late = host.subscriber_with(DEPTH, true);
    for _ in 0..3 * DEPTH {
        publisher.publish(10, Exhaustion::Refuse).unwrap();
    }
    let newest: Vec<u64> = (u64::from(3 * DEPTH) + 1..=u64::from(4 * DEPTH)).collect();
    assert_eq!(
        (sequences(&mut late), lost(&late)),
        (newest, u64::from(2 * DEPTH)),
        "messages offered from history are not lost"
    );
}

#[test]
fn history_that_a_keep_all_subscriber_wants_is_not_dropped() {
    let host = Host::new(256);
    let mut publisher = host.publisher(8 * 256, 5);
    for _ in 0..5 {
        publisher.publish(10, Exhaustion::DropOldest).unwrap();
    }
    let mut late = host.subscriber_with(0, true);
    let published = (0..20).take_while(|_| publisher.publish(10, Exhaustion::DropOldest).is_ok()).count() as u64;
    assert_eq!(published, 3, "the pool has eight blocks, and the subscriber wants five of them");
    assert_eq!((sequences(&mut late), lost(&late)), ((1..=8).collect(), 0));
    publisher.publish(10, Exhaustion::Refuse).unwrap();
}

#[test]
fn publishers_that_left_make_way_unless_a_message_of_theirs_is_held() {
    let host = Host::new(8);
    let mut stopped = host.subscriber(100);
    let mut first = None;
    for _ in 0..3 * PUBLISHERS_MAX {
        let mut publisher = host.publisher(1 << 16, 0);
        publisher.publish(10, Exhaustion::Refuse).unwrap();
        first = first.or_else(|| Some((take(&mut stopped).unwrap(), publisher.port.slot())));
        let slot = publisher.port.slot();
        assert!(host.slot_table.drain_publisher(slot));
        host.slot_table.finish_draining(slot);
    }
    let (held, first) = first.unwrap();
    assert!(host.slot_table.draining().any(|slot| slot == first), "a publisher whose message is held stays");
    let left = sequences(&mut stopped).len() as u64;
    assert_eq!(left + lost(&stopped) + 1, 3 * PUBLISHERS_MAX as u64);
    drop(held);
    assert_eq!(host.slot_table.draining().map(|slot| host.slot_table.finish_draining(slot)).sum::<usize>(), 0);
    assert_eq!(host.slot_table.messages_in_use(), 0);
}

#[test]
fn every_slot_of_a_topic_can_be_occupied_and_the_next_is_refused() {
    let host = Host::new(256);
    let publishers: Vec<_> = (0..PUBLISHERS_MAX).map(|_| host.publisher(4096, 0)).collect();
    let refused = host.slot_table.admit_publisher(&PublisherSpec::default()).unwrap_err();
    assert!(refused.to_string().contains("256 publishers"), "{refused}");
    let mut subscribers: Vec<_> = (0..SUBSCRIBERS_MAX).map(|_| host.subscriber(10)).collect();
    let refused = host.slot_table.admit_subscriber(&SubscriberSpec::default(), &host.file).unwrap_err();
    assert!(refused.to_string().contains("1024 subscribers"), "{refused}");
    let mut last = publishers.into_iter().next_back().unwrap();
    last.publish(10, Exhaustion::Refuse).unwrap();
    assert!(subscribers.iter_mut().all(|reader| sequences(reader) == [1]));
    last.port.reclaim();
    assert_eq!(last.port.pool().used_bytes, 0);
}

#[test]
fn a_publisher_that_requests_too_many_entries_gets_those_that_are_left() {
    let host = Host::new(u32::MAX);
    let mut quotas = Vec::new();
    for _ in 0..PUBLISHERS_MAX {
        let publisher = host.publisher(4096, 0);
        quotas.push(host.slot_table.run_entries(publisher.port.slot()));
    }
    let to_others = ENTRIES_RESERVED * (PUBLISHERS_MAX as u32 - 1);
    assert_eq!(quotas[0], QUEUE_SLOTS as u32 - to_others);
    assert!(quotas[1..].iter().all(|quota| *quota == ENTRIES_RESERVED), "{quotas:?}");
}

#[test]
fn publishers_of_other_hosts_leave_entries_to_those_of_this_host() {
    let host = Host::new(256);
    for _ in 0..8 {
        let remote = PublisherSpec { remote: true, messages: u32::MAX, ..Default::default() };
        host.slot_table.admit_publisher(&remote).unwrap();
    }
    for _ in 0..PUBLISHERS_MAX / 4 {
        let slot = host.slot_table.admit_publisher(&PublisherSpec::default()).unwrap();
        assert_eq!(host.slot_table.run_entries(slot), PublisherSpec::default().messages);
    }
}

#[test]
fn ports_that_have_lost_their_slots_say_so_and_change_nothing() {
    let host = Host::new(8);
    let mut publisher = host.publisher(1 << 16, 0);
    let mut reader = host.subscriber(10);
    publisher.publish(10, Exhaustion::Refuse).unwrap();
    let held = take(&mut reader).unwrap();
    let loan = publisher.port.loan(10, Exhaustion::Refuse).unwrap();
    let slot = publisher.port.slot();
    assert!(host.slot_table.drain_publisher(slot));
    host.release(&reader);
    let (mut next_publisher, mut next_reader) = (host.publisher(1 << 16, 0), host.subscriber(10));
    next_publisher.publish(10, Exhaustion::Refuse).unwrap();

    let info = MessageInfo { bytes: 10, ..Default::default() };
    let published = publisher.port.publish(loan, &MessageSpec { info, meta: &[], history_depth: 0 });
    assert!(matches!(published, Err(WriteError::CutOff(_))), "{published:?}");
    let loaned = publisher.port.try_loan(10, Exhaustion::DropOldest).unwrap_err();
    assert!(loaned.to_string().contains("has another occupant; create it again"), "{loaned}");
    assert!(matches!(reader.take(), Err(TakeRefused::CutOff(_))));
    drop(held);
    assert_eq!(next_reader.counters().held, 0);
    assert_eq!(sequences(&mut next_reader), [1]);
}

#[test]
fn a_topic_uses_no_more_memory_after_its_participants_have_left() {
    let host = Host::new(256);
    let resident = || host.slot_table.resident_bytes();
    let go_by = || {
        let mut publisher = host.publisher(1 << 16, 0);
        let mut reader = host.subscriber(10);
        for _ in 0..300 {
            publisher.publish(10, Exhaustion::Refuse).unwrap();
            take(&mut reader).unwrap();
        }
        let slot = publisher.port.slot();
        host.release(&reader);
        assert!(host.slot_table.drain_publisher(slot));
        host.slot_table.finish_draining(slot);
    };
    // Until every slot of the queue has been used.
    (0..QUEUE_SLOTS / 300 + 1).for_each(|_| go_by());
    let before = resident();
    (0..50).for_each(|_| go_by());
    assert_eq!(resident(), before);
    assert!(before <= (QUEUE_SLOTS as u64 * 8) + 5 * rgaps_os::page_bytes(), "{before}");
}
