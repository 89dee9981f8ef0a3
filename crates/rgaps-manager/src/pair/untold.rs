//! Senders of idle topics, which sleep until they are woken: what they must notice all the same.

use rgaps_control::qos::History;

use super::*;

#[test]
fn a_stop_ends_a_sender_that_is_just_awake_for_something_else() {
    for round in 0..200 {
        let mut pair = Pair::new(host(), 2, 60_000);
        let _subscriber = pair.subscriber();
        pair.announce(true);
        until("the link", || pair.status().contains("connected over"));
        let outbound = pair.topic.outbound.get(&TO).unwrap();
        // A publisher wakes the sender, which is at another place in each round when it is to stop.
        outbound.control.event().signal().unwrap();
        (0..round % 50).for_each(|_| std::hint::spin_loop());
        outbound.stop();
        until("its end", || pair.events.try_iter().any(|event| matches!(event, Event::SenderEnded { .. })));
    }
}

#[test]
fn a_message_of_a_publisher_that_lacks_the_senders_eventfd_arrives() {
    let mut pair = Pair::new(host(), 60, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    for sequence in 1..=2 {
        pair.publish_one(100);
        until("the message", || {
            pair.topic.wake_senders_for_untold();
            subscriber.reader.take().unwrap().is_some_and(|held| held.info().sequence == sequence)
        });
    }
}

#[test]
fn a_keep_all_slot_that_an_arrival_made_keep_last_is_keep_all_again_while_idle() {
    let mut pair = Pair::new(host(), 60, 60_000);
    let (_, _subscriber) = pair.subscriber_of_depth(0);
    let all = SubscriberQos { history: History::KeepAll, ..Default::default() };
    let endpoint = Endpoint { requests: vec![all], ..pair.endpoint() };
    pair.directory.host_up(TO, "to").unwrap();
    pair.directory.endpoint_up(TO, "token of keep-all", endpoint).unwrap();
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    let slot = pair.slot().unwrap();
    assert!(pair.topic.slot_table.demote(slot, 1));
    until("it is keep-all again", || {
        pair.topic.wake_senders_for_untold();
        pair.topic.segment.subscriber(slot.index).unwrap().depth.load(Ordering::Relaxed) == 0
    });
}
