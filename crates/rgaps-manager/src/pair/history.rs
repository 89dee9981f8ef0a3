//! Late joiners get the history of another host's publishers, whatever happened to the port that kept it.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::inbound::Newcomer;

/// Linked hosts, with a publisher that keeps its last five messages, and a subscriber that has taken all eight.
fn latched() -> (Pair, Subscriber) {
    let mut pair = Pair::new(host(), 20, 60_000);
    pair.latch(5);
    let mut early = pair.subscriber();
    pair.announce(true);
    (0..8).for_each(|_| pair.send(100));
    assert_eq!(early.sequences_to(8), (1..=8).collect::<Vec<u64>>());
    until("the acknowledgement", || pair.status().contains("8 messages sent"));
    (pair, early)
}

fn late(pair: &Pair) -> Subscriber {
    let mut to = pair.to();
    let spec = SubscriberSpec { depth: 60, ..Default::default() };
    let slot = to.topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
    let qos = SubscriberQos { durability: Durability::TransientLocal, ..Default::default() };
    to.topic.subscribers.insert(slot, LocalSubscriber { qos, event: None });
    let pages = to.topic.slot_table.pages(slot).unwrap();
    if let Some(inbound) = to.topic.inbound.get_mut(&FROM) {
        inbound.add_subscriber(Newcomer { pages: pages.clone(), event: None });
    }
    Subscriber { reader: ReaderPort::new(to.topic.segment.clone(), pages, true).unwrap() }
}

#[test]
fn a_late_joiner_gets_the_history_though_the_port_ended_with_the_last_subscriber() {
    let (mut pair, _early) = latched();
    pair.cut();
    {
        let mut to = pair.to();
        let Subscribing { manager, topic, .. } = &mut *to;
        manager.end(topic, FROM);
        topic.finish_draining();
        topic.subscribers.clear();
    }
    let mut late = late(&pair);
    pair.mend();
    assert_eq!(late.sequences_to(8), [4, 5, 6, 7, 8]);
}

#[test]
fn a_late_joiner_gets_the_history_though_the_port_was_made_anew_for_larger_messages() {
    let (mut pair, mut early) = latched();
    pair.topic.publishers.values_mut().for_each(|publisher| publisher.pool_bytes *= 4);
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    pair.cut();
    pair.mend();
    pair.send(100);
    assert_eq!(early.sequences_to(9), [9]);
    assert_eq!(late(&pair).sequences_to(9), [5, 6, 7, 8, 9]);
}

#[test]
fn a_late_joiner_gets_the_history_though_its_manager_died() {
    let (mut pair, mut early) = latched();
    pair.cut();
    {
        let to = pair.to();
        let ports: Vec<_> = to.topic.slot_table.active_publishers().collect();
        ports.into_iter().for_each(|port| to.topic.drain(port));
    }
    pair.to().restart();
    pair.mend();
    pair.send(100);
    assert_eq!(early.sequences_to(9), [9]);
    assert_eq!(late(&pair).sequences_to(9), [5, 6, 7, 8, 9]);
}

#[test]
fn an_arrival_that_waits_for_space_learns_what_a_new_subscriber_has_read() {
    // Longer than this test waits.
    let config = Config { keep_all_timeout_ms: 600_000, peer_timeout_ms: 60_000, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 20, config);
    pair.latch(1);
    let mut early = pair.subscriber();
    pair.announce(true);
    pair.send(900_000);
    let held = early.take();
    until("the acknowledgement", || pair.try_send(900_000).is_ok());
    let is_waiting = |word: &AtomicU64| word.load(Ordering::Relaxed) != 0;
    until("the wait for space", || pair.to().topic.segment.header().space.0.sleepers.iter().any(is_waiting));
    let mut late = late(&pair);
    drop(late.take());
    drop(held);
    assert_eq!(early.sequences_to(2), [2]);
    assert_eq!(late.sequences_to(2), [2]);
}

/// As `latched`, with a late joiner that has taken the history.
fn latched_and_late() -> (Pair, Subscriber, Subscriber) {
    let (pair, early) = latched();
    let mut late = late(&pair);
    assert!(late.sequences_to(8).ends_with(&[4, 5, 6, 7, 8]));
    (pair, early, late)
}

#[test]
fn a_late_joiner_takes_a_latched_message_once_though_its_manager_dies() {
    let (mut pair, mut early, mut late) = latched_and_late();
    pair.cut();
    receiver_dies(&pair);
    pair.mend();
    pair.send(100);
    assert_eq!(early.sequences_to(9), [9]);
    assert_eq!(late.sequences_to(9), [9], "it had the others");
}

#[test]
fn a_late_joiner_takes_a_latched_message_once_though_the_port_was_enlarged() {
    let (mut pair, mut early, mut late) = latched_and_late();
    pair.topic.publishers.values_mut().for_each(|publisher| publisher.pool_bytes *= 4);
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    pair.cut();
    pair.mend();
    pair.send(100);
    assert_eq!(early.sequences_to(9), [9]);
    assert_eq!(late.sequences_to(9), [9], "it had the others");
}

/// As `latched`, without a link: the last subscriber has left, and the port has ended. Then a late joiner has come.
fn latched_and_late_without_port() -> (Pair, Subscriber) {
    let (mut pair, _early) = latched();
    pair.cut();
    {
        let mut to = pair.to();
        let Subscribing { manager, topic, .. } = &mut *to;
        manager.end(topic, FROM);
        topic.finish_draining();
        topic.subscribers.clear();
    }
    let late = late(&pair);
    (pair, late)
}

#[test]
fn a_late_joiner_gets_the_history_though_its_manager_dies_before_that_has_come() {
    let (mut pair, mut late) = latched_and_late_without_port();
    receiver_dies(&pair);
    pair.mend();
    assert_eq!(late.sequences_to(8), [4, 5, 6, 7, 8]);
}

#[test]
fn a_late_joiner_gets_the_history_though_ports_end_before_that_has_come() {
    let (mut pair, mut late) = latched_and_late_without_port();
    // The first connection is not made.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let offers = pair.to().resumes.len();
    *pair.peer.alter.lock().unwrap() = Some(Box::new(move |offer| offer.addresses = vec![nobody.clone()]));
    pair.mend();
    until("an offer", || pair.to().resumes.len() > offers);
    pair.peer.reachable.store(false, Ordering::Release);
    *pair.peer.alter.lock().unwrap() = None;
    // A publisher of larger messages joins: the port is made anew.
    pair.topic.publishers.values_mut().for_each(|publisher| publisher.pool_bytes *= 4);
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    pair.mend();
    assert_eq!(late.sequences_to(8), [4, 5, 6, 7, 8]);
}
