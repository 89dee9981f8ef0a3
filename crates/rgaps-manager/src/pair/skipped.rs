//! Messages that a sender skips, or an arrival drops, at moments that once hid them: each is taken or counted once.

use super::unsent::{NEWCOMER, Newcomer};
use super::*;

#[test]
fn a_poisoned_message_of_a_publisher_that_falls_silent_is_counted() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 1);
    assert_eq!(subscriber.sequences_to(1), [1]);
    // Its stream fails, and the publisher lives on.
    let loan = newcomer.port.loan(1, Exhaustion::DropOldest).unwrap();
    let spec = MessageSpec { info: newcomer.next(1), meta: b"meta", history_depth: 0 };
    let (_, pending) = newcomer.port.publish_pending(loan, &spec).unwrap();
    assert!(pending.poison());
    pair.send(1);
    subscriber.take();
    until("the gap notice", || subscriber.lost() == 1);
    newcomer.send(&pair, 1);
    assert_eq!((subscriber.sequences_to(3), subscriber.lost()), (vec![3], 1));
}

#[test]
fn a_message_that_was_dropped_ahead_of_the_senders_cursor_is_counted() {
    let mut pair = Pair::new(host(), 200, 60_000);
    let mut subscriber = pair.subscriber_of_depth(1000).1;
    pair.announce(true);
    pair.send(1);
    assert_eq!(subscriber.sequences_to(1), [1]);
    pair.cut();
    (0..70).for_each(|_| pair.send(1));
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.publish(900_000, 0);
    // Its publisher fills the next message for a long time, and has dropped the first one for its space.
    let loan = newcomer.port.loan(900_000, Exhaustion::DropOldest).unwrap();
    pair.mend();
    assert_eq!(subscriber.sequences_to(71).len(), 70);
    until("the gap notice", || subscriber.lost() == 1);
    newcomer.port.give_back(loan);
}

#[test]
fn a_publisher_that_left_before_the_link_owes_nothing_from_before_the_join() {
    let mut pair = Pair::new(host(), 200, 60_000);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    // Nobody subscribes yet.
    newcomer.send(&pair, 50);
    newcomer.port.reclaim();
    let mut subscriber = pair.subscriber_of_depth(1000).1;
    pair.peer.reachable.store(false, Ordering::Release);
    pair.announce(true);
    newcomer.mark_known(&pair);
    // More than the sender takes in its first turn, in which it learns that the publisher has left.
    (0..100).for_each(|_| pair.send(1));
    newcomer.send(&pair, 2);
    newcomer.leave(&pair);
    pair.mend();
    let taken: Vec<(u64, u64)> = (0..102)
        .map(|_| {
            let held = subscriber.take();
            (held.info().publisher, held.info().sequence)
        })
        .collect();
    assert_eq!(taken[100..], [(NEWCOMER, 51), (NEWCOMER, 52)]);
    assert_eq!(subscriber.lost(), 0, "it has taken all that was published since it joined");
}

#[test]
fn a_subscriber_whose_first_message_had_no_room_counts_what_is_lost_after_it() {
    let config = Config { keep_all_timeout_ms: 100, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 2, config);
    let mut early = pair.subscriber();
    pair.announce(true);
    pair.send(900_000);
    let held = early.take();
    let mut late = pair.subscriber();
    until("the acknowledgement", || pair.try_send(900_000).is_ok());
    until("the loss", || early.lost() == 1 && late.lost() == 1);
    drop(held);
    pair.cut();
    (0..10).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!((early.sequences_to(12), late.sequences_to(12)), (vec![11, 12], vec![11, 12]));
    assert_eq!((early.lost(), late.lost()), (9, 9), "11 messages were published since the second one joined");
}

#[test]
fn the_history_of_a_third_host_hides_no_message_that_a_sender_skips() {
    let mut pair = Pair::new(host(), 1, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 1);
    assert_eq!(subscriber.sequences_to(1), [1]);
    // What `SubscribeManager` has for a third host that publishes to this one.
    let spec = PublisherSpec { publisher: 0, remote: true, ..Default::default() };
    let mut third = Newcomer::join_with(&pair, &spec, &pair.topic.pools);
    // A burst: five messages of the newcomer, the third host's history, one message of the pair's publisher.
    (0..5).for_each(|_| newcomer.publish(1, 0));
    for sequence in 1..=5 {
        let loan = third.port.loan(1, Exhaustion::DropOldest).unwrap();
        let info = MessageInfo { publisher: 30, sequence, source_host: [3; 16], bytes: 1, ..MessageInfo::default() };
        third.port.publish_history(loan, &MessageSpec { info, meta: &[], history_depth: 5 }).unwrap();
    }
    pair.publish_one(1);
    pair.wake_sender();
    // The last message's acknowledgement may wake the sender in the middle of the burst: then it takes some of the newcomer's.
    let taken = subscriber.sequences_to(1);
    assert_eq!(taken.last(), Some(&1));
    // The newcomer falls silent.
    until("the gap notice", || subscriber.lost() == 5 - (taken.len() as u64 - 1));
}

#[test]
fn a_poisoned_first_message_counts_for_no_subscriber_that_joined_after_it() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(1);
    assert_eq!(subscriber.sequences_to(1), [1]);
    // The first message of a new publisher, whose stream fails.
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    let loan = newcomer.port.loan(1, Exhaustion::DropOldest).unwrap();
    let spec = MessageSpec { info: newcomer.next(1), meta: b"meta", history_depth: 0 };
    let (_, pending) = newcomer.port.publish_pending(loan, &spec).unwrap();
    assert!(pending.poison());
    pair.send(1);
    assert_eq!(subscriber.sequences_to(2), [2]);
    // Everything so far was published, and lost, before this one joins.
    let mut late = pair.subscriber();
    pair.send(1);
    assert_eq!((subscriber.sequences_to(3), late.sequences_to(3)), (vec![3], vec![3]));
    until("the gap notice", || subscriber.lost() == 1);
    assert_eq!(late.lost(), 0, "one message was published since it joined, and it has taken it");
}
