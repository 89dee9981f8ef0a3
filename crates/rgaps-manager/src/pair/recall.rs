//! What a successor of the receiving manager knows, and what a host that cannot be reached costs.

use rgaps_link::MessageName;
use rgaps_shm::words::queue::Position;

use super::unsent::{Newcomer, free_the_port_and_reuse_it};
use super::*;
use crate::received::Received;

fn acknowledged(pair: &mut Pair) {
    until("the acknowledgement", || {
        pair.port.reclaim();
        pair.port.pool().used_bytes == 0
    });
}

#[test]
fn what_was_counted_and_acknowledged_is_not_counted_again() {
    let late = DeferredBackend::default();
    let config = Config { keep_all_timeout_ms: 100, peer_timeout_ms: 60_000, ..Config::default() };
    let mut pair = Pair::configured(host(), Arc::new(late.clone()), 20, config);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(900_000);
    let held = subscriber.take();
    acknowledged(&mut pair);
    // There is no room for these.
    for lost in 1..=3 {
        pair.send(900_000);
        until("the loss", || subscriber.lost() == lost);
        acknowledged(&mut pair);
    }
    drop(held);
    late.stall();
    pair.send(100);
    until("the copy", || late.waiting() > 0);
    pair.cut();
    late.go_on();
    receiver_dies(&pair);
    pair.mend();
    assert_eq!(subscriber.sequences_to(5), [5]);
    assert_eq!(subscriber.lost(), 3);
}

/// The subscriber holds message 4 of 5; 300 messages of another publisher have come since.
fn held() -> (Pair, Subscriber, Held, Newcomer) {
    let mut pair = Pair::new(host(), 60, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    (0..4).for_each(|_| pair.send(100));
    let held = loop {
        let held = subscriber.take();
        if held.info().sequence == 4 {
            break held;
        }
    };
    pair.send(100);
    assert_eq!(subscriber.sequences_to(5), [5]);
    let mut other = Newcomer::join(&pair, 8);
    for sequence in 1..=1000 {
        other.send(&pair, 1);
        assert_eq!(subscriber.sequences_to(sequence), [sequence]);
    }
    (pair, subscriber, held, other)
}

#[test]
fn a_message_that_was_taken_is_not_counted_though_both_managers_die() {
    let (mut pair, mut subscriber, held, mut other) = held();
    pair.cut();
    receiver_dies(&pair);
    pair.restart_sender();
    other.mark_known(&pair);
    pair.mend();
    pair.send(100);
    assert_eq!(subscriber.sequences_to(6), [6]);
    assert_eq!(subscriber.lost(), 0, "message 5 was taken");
    drop(held);
}

#[test]
fn a_message_that_was_taken_is_not_counted_though_only_the_receiving_manager_dies() {
    let late = DeferredBackend::default();
    let mut pair = Pair::between(host(), Arc::new(late.clone()), 60, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    (0..4).for_each(|_| pair.send(100));
    let held = loop {
        let held = subscriber.take();
        if held.info().sequence == 4 {
            break held;
        }
    };
    pair.send(100);
    assert_eq!(subscriber.sequences_to(5), [5]);
    let mut other = Newcomer::join(&pair, 8);
    for sequence in 1..=1000 {
        other.send(&pair, 1);
        assert_eq!(subscriber.sequences_to(sequence), [sequence]);
    }
    late.stall();
    pair.send(100);
    until("the copy", || late.waiting() > 0);
    pair.cut();
    late.go_on();
    receiver_dies(&pair);
    pair.mend();
    assert_eq!(subscriber.sequences_to(6), [6]);
    assert_eq!(subscriber.lost(), 0, "message 5 was taken");
    drop(held);
}

#[test]
fn one_forged_answer_hides_no_loss_over_later_links() {
    counts_all_after(vec![(8, u64::MAX)]);
}

#[test]
fn without_a_forged_answer_all_losses_count() {
    counts_all_after(Vec::new());
}

fn counts_all_after(forged: Vec<(u64, u64)>) {
    let mut pair = Pair::new(host(), 2, 60_000);
    let mut subscriber = pair.subscriber();
    let mut newcomer = Newcomer::join(&pair, 8);
    *pair.peer.alter.lock().unwrap() = Some(Box::new(move |offer| {
        offer.remembers = true;
        offer.resume = forged.clone();
    }));
    pair.announce(true);
    newcomer.mark_known(&pair);
    until("the link", || pair.status().contains("connected over"));
    pair.cut();
    *pair.peer.alter.lock().unwrap() = None;
    pair.mend();
    // The host itself, from now on.
    until("the link", || pair.status().contains("connected over"));
    pair.send(100);
    newcomer.send(&pair, 1);
    let arrived = [(); 2].map(|()| subscriber.take().info().publisher);
    assert!(arrived.contains(&8), "{arrived:?}");
    pair.cut();
    newcomer.send(&pair, 10);
    (0..3).for_each(|_| pair.send(100));
    newcomer.leave(&pair);
    pair.mend();
    assert_eq!(subscriber.sequences_to(4), [3, 4]);
    until("what is lost is counted", || subscriber.lost() > 10);
    assert_eq!(subscriber.lost(), 11, "one of the pair's publisher, ten of the other");
}

#[test]
fn a_host_that_cannot_be_reached_keeps_no_memory_of_publishers_that_left() {
    let mut pair = Pair::new(host(), 2, 500);
    let _subscriber = pair.subscriber();
    // Its announcements come; its data connections do not.
    pair.peer.reachable.store(false, Ordering::Release);
    pair.announce(true);
    (0..3).for_each(|_| pair.send(900_000 / 4));
    let slot = pair.port.slot();
    pair.topic.drain(slot);
    pair.topic.publishers.clear();
    until("the end of the sender", || {
        // What the manager does each tick.
        pair.topic.finish_draining();
        pair.publish.reconcile(&mut pair.topic, &pair.directory);
        pair.events.try_iter().any(|event| matches!(event, Event::SenderEnded { .. }))
    });
}

#[test]
fn latched_messages_come_once_over_two_deaths_though_others_have_many_publishers() {
    let mut pair = Pair::new(host(), 20, 60_000);
    pair.latch(5);
    let records = pair.to().topic.arrived.clone();
    let others = [10, 11, 12, 13].map(|host| {
        let mut received = Received::new([host; 16], records.clone());
        (0..1024).for_each(|publisher| received.note(MessageName { publisher, sequence: 1 }, Position(0)));
        received
    });
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    (0..8).for_each(|_| pair.send(100));
    assert_eq!(subscriber.sequences_to(8), (1..=8).collect::<Vec<u64>>());
    until("the acknowledgement", || pair.status().contains("8 messages sent"));
    pair.cut();
    free_the_port_and_reuse_it(&pair, &mut subscriber);
    // That manager dies, too, before the link is there again.
    pair.to().restart();
    pair.mend();
    pair.send(100);
    assert_eq!(subscriber.sequences_to(9), [9], "messages are taken twice");
    drop(others);
}
