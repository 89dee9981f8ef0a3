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

pub(super) fn late(pair: &Pair) -> Subscriber {
    joiner(pair, Durability::TransientLocal, 60)
}

fn joiner(pair: &Pair, durability: Durability, depth: u32) -> Subscriber {
    let mut to = pair.to();
    let spec = SubscriberSpec { depth, ..Default::default() };
    let slot = to.topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
    let qos = SubscriberQos { durability, history: History::KeepLast(depth), ..Default::default() };
    to.topic.subscribers.insert(slot, LocalSubscriber { qos, event: None });
    let pages = to.topic.slot_table.pages(slot).unwrap();
    if let Some(inbound) = to.topic.inbound.get_mut(&FROM) {
        inbound.add_subscriber(Newcomer { pages: pages.clone(), event: None });
    }
    let wants_history = durability == Durability::TransientLocal;
    Subscriber { reader: ReaderPort::new(to.topic.segment.clone(), pages, wants_history).unwrap() }
}

/// Ends the receiving port.
pub(super) fn end_port(pair: &Pair) {
    let mut to = pair.to();
    let Subscribing { manager, topic, .. } = &mut *to;
    manager.end(topic, FROM);
    topic.finish_draining();
}

#[test]
fn a_late_joiner_gets_the_history_though_the_port_ended_with_the_last_subscriber() {
    let (mut pair, _early) = latched();
    pair.cut();
    end_port(&pair);
    pair.to().topic.subscribers.clear();
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
    end_port(&pair);
    pair.to().topic.subscribers.clear();
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

fn until_arrived(pair: &Pair, end: u64) {
    until("the arrival", || pair.to().topic.segment.queue().end().0 == end);
}

#[test]
fn a_remote_subscriber_counts_no_latched_messages_from_before_it_joined() {
    let mut pair = Pair::new(host(), 1, 60_000);
    pair.latch(5);
    (0..5).for_each(|_| pair.send(100));
    let spec = SubscriberSpec { depth: 1, ..Default::default() };
    let slot = pair.topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
    let pages = pair.topic.slot_table.pages(slot).unwrap();
    let mut local = Subscriber { reader: ReaderPort::new(pair.topic.segment.clone(), pages, true).unwrap() };
    assert_eq!((local.sequences_to(5), local.lost()), (vec![5], 0));
    let mut early = joiner(&pair, Durability::TransientLocal, 1);
    let mut deep = joiner(&pair, Durability::TransientLocal, 3);
    let mut volatile = joiner(&pair, Durability::Volatile, 1);
    pair.announce(true);
    until_arrived(&pair, 5);
    let mut late = joiner(&pair, Durability::TransientLocal, 1);
    assert_eq!((early.lost(), volatile.lost()), (0, 0), "nothing was published since they joined");
    for subscriber in [&mut early, &mut late] {
        assert_eq!((subscriber.sequences_to(5), subscriber.lost()), (vec![5], 0));
    }
    assert_eq!((deep.sequences_to(5), deep.lost()), (vec![3, 4, 5], 0));
    assert!(volatile.reader.take().unwrap().is_none(), "it wants no history");
    (0..2).for_each(|_| pair.send(100));
    until_arrived(&pair, 7);
    for subscriber in [&mut early, &mut late, &mut volatile] {
        assert_eq!((subscriber.sequences_to(7), subscriber.lost()), (vec![7], 1), "each counts as usual from now on");
    }
}

#[test]
fn history_that_arrives_again_is_lost_for_no_subscriber_that_joined_meanwhile() {
    let (mut pair, _early) = latched();
    pair.cut();
    end_port(&pair);
    let mut late = joiner(&pair, Durability::TransientLocal, 1);
    let mut volatile = joiner(&pair, Durability::Volatile, 1);
    pair.mend();
    until_arrived(&pair, 8 + 5);
    assert_eq!((late.sequences_to(8), late.lost()), (vec![8], 0));
    assert!(volatile.reader.take().unwrap().is_none(), "it wants no history");
    pair.send(100);
    assert_eq!((volatile.sequences_to(9), volatile.lost()), (vec![9], 0));
}

#[test]
fn what_the_next_sender_takes_from_history_is_owed_to_those_who_had_joined() {
    let (mut pair, mut early) = latched();
    pair.cut();
    let mut late = joiner(&pair, Durability::TransientLocal, 1);
    let mut volatile = joiner(&pair, Durability::Volatile, 1);
    (0..3).for_each(|_| pair.send(100));
    pair.restart_sender();
    pair.mend();
    until_arrived(&pair, 8 + 3);
    assert_eq!((early.sequences_to(11), early.lost()), (vec![9, 10, 11], 0));
    for later in [&mut late, &mut volatile] {
        assert_eq!((later.sequences_to(11), later.lost()), (vec![11], 0), "it may be younger than these messages");
    }
}

/// Five publishers publish one latched message each, without waking the sender.
fn five_publishers(pair: &Pair) -> Vec<unsent::Newcomer> {
    let mut publishers: Vec<_> = (0..5).map(|n| unsent::Newcomer::join(pair, 100 + n)).collect();
    publishers.iter_mut().for_each(|publisher| publisher.publish(1, 1));
    publishers
}

/// A subscriber that wants history, with this depth, of which the publishing host learns.
fn announced(pair: &mut Pair, depth: u32) -> Subscriber {
    let subscriber = joiner(pair, Durability::TransientLocal, depth);
    pair.depth = pair.depth.max(depth);
    pair.announce(true);
    subscriber
}

#[test]
fn a_late_joiner_gets_each_latched_message_though_an_earlier_subscriber_wanted_one() {
    let mut pair = Pair::new(host(), 1, 60_000);
    pair.latch(1);
    let mut first = announced(&mut pair, 1);
    until("the link", || pair.status().contains("connected over"));
    let _publishers = five_publishers(&pair);
    pair.wake_sender();
    let mut taken = 0;
    until("the messages", || {
        taken += u64::from(first.reader.take().unwrap().is_some());
        taken + first.lost() == 5
    });
    let mut second = announced(&mut pair, 10);
    let mut taken = 0;
    until("the history", || {
        taken += u64::from(second.reader.take().unwrap().is_some());
        taken == 5
    });
    assert_eq!(second.lost(), 0);
}

#[test]
fn a_late_joiner_gets_all_history_from_before_the_link_whatever_the_first_wanted() {
    let mut pair = Pair::new(host(), 1, 60_000);
    pair.latch(1);
    let _publishers = five_publishers(&pair);
    let mut first = announced(&mut pair, 1);
    until_arrived(&pair, 5);
    first.take();
    let mut second = announced(&mut pair, 10);
    let mut publishers: Vec<u64> = (0..5).map(|_| second.take().info().publisher).collect();
    publishers.sort_unstable();
    assert_eq!(publishers, [100, 101, 102, 103, 104]);
    assert_eq!((first.lost(), second.lost()), (0, 0));
}

#[test]
fn a_late_joiner_gets_the_last_k_of_each_publisher_and_none_of_volatile_ones() {
    let mut pair = Pair::new(host(), 20, 60_000);
    pair.latch(3);
    let mut early = pair.subscriber();
    let mut volatile = unsent::Newcomer::join(&pair, 8);
    let mut brief = unsent::Newcomer::join(&pair, 9);
    pair.announce(true);
    volatile.mark_known(&pair);
    brief.mark_known(&pair);
    for _ in 0..4 {
        pair.publish_one(1);
        volatile.publish(1, 0);
        brief.publish(1, 1);
    }
    pair.wake_sender();
    (0..12).for_each(|_| drop(early.take()));
    until("the acknowledgement", || pair.status().contains("12 messages sent"));
    let mut late = late(&pair);
    let mut taken = Vec::new();
    while let Some(held) = late.reader.take().unwrap() {
        taken.push((held.info().publisher, held.info().sequence));
    }
    assert_eq!(taken, [(PUBLISHER, 2), (PUBLISHER, 3), (PUBLISHER, 4), (9, 4)]);
}

/// Takes so many messages, or those that come within `LIMIT`.
fn take_within(subscriber: &mut Subscriber, most: usize) -> Vec<(u64, u64)> {
    let (start, mut taken) = (Instant::now(), Vec::new());
    while taken.len() < most && start.elapsed() < LIMIT {
        match subscriber.reader.take().unwrap() {
            Some(held) => taken.push((held.info().publisher, held.info().sequence)),
            None => rgaps_testing::pause(),
        }
    }
    taken
}

#[test]
fn a_late_joiner_gets_a_latched_message_though_the_queue_went_round_first() {
    let mut pair = Pair::new(host(), 2, 60_000);
    let mut early = joiner(&pair, Durability::Volatile, 200);
    pair.announce(true);
    pair.send(1);
    assert_eq!(early.sequences_to(1), [1]);
    pair.cut();
    let mut latched = unsent::Newcomer::join(&pair, 8);
    latched.publish(1, 1);
    (0..70_000).for_each(|_| pair.publish_one(1));
    pair.mend();
    pair.wake_sender();
    let last = (PUBLISHER, pair.sequence);
    until("the last message", || take_within(&mut early, 1) == [last]);
    let mut late = joiner(&pair, Durability::TransientLocal, 200);
    assert_eq!(take_within(&mut late, 1), [(8, 1)]);
}

#[test]
fn a_late_joiner_gets_all_history_also_if_it_is_most_of_its_publishers_entries() {
    let mut pair = Pair::new(host(), 400, 60_000);
    pair.latch(300);
    let mut early = joiner(&pair, Durability::Volatile, 400);
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    // What the manager gives it: `message_count` and its history.
    let spec = PublisherSpec { publisher: 8, messages: 256 + 300, ..Default::default() };
    let mut publisher = unsent::Newcomer::join_with(&pair, &spec, &pair.topic.pools);
    (0..300).for_each(|_| publisher.publish(1, 300));
    pair.wake_sender();
    assert_eq!(take_within(&mut early, 300).len(), 300);
    until("the acknowledgement", || pair.status().contains("300 messages sent"));
    pair.cut();
    end_port(&pair);
    let mut late = joiner(&pair, Durability::TransientLocal, 400);
    pair.mend();
    let taken = take_within(&mut late, 300);
    assert_eq!((taken.len(), taken.last(), late.lost()), (300, Some(&(8, 300)), 0));
}

#[test]
fn a_volatile_subscriber_that_follows_the_last_one_gets_nothing_from_before() {
    let (mut pair, early) = latched();
    // The last subscriber leaves, and the sender ends. The topic stays, since that host has another program in it.
    {
        let mut to = pair.to();
        to.topic.slot_table.release_subscriber(early.reader.slot());
        to.topic.subscribers.clear();
        to.refuse = Some(RingRefusal::NoSubscribers("pair".to_owned()));
        let Subscribing { manager, topic, .. } = &mut *to;
        manager.end(topic, FROM);
    }
    pair.announce(false);
    until("the end of the sender", || pair.events.try_iter().any(|event| matches!(event, Event::SenderEnded { .. })));
    until("the end of the arrival", || {
        pair.to().read_events();
        !pair.to().is_connected()
    });
    let mut outbound = pair.topic.outbound.remove(&TO).unwrap();
    outbound.join();
    pair.topic.slot_table.release_subscriber(outbound.slot);
    end_port(&pair);
    (0..3).for_each(|_| pair.send(100));
    // No cut, and no manager has died.
    let mut volatile = joiner(&pair, Durability::Volatile, 60);
    pair.to().refuse = None;
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    pair.send(100);
    assert_eq!((volatile.sequences_to(12), volatile.lost()), (vec![12], 0), "it wants no history");
}

#[test]
fn history_from_before_the_link_for_which_there_is_no_room_is_lost_for_nobody() {
    let mut pair = Pair::new(host(), 20, 60_000);
    pair.latch(1);
    pair.topic.publishers.values_mut().for_each(|publisher| publisher.qos.exhaustion = Exhaustion::Refuse);
    pair.send(900_000);
    let mut another = unsent::Newcomer::join(&pair, 9);
    another.publish(900_000, 1);
    let latched = joiner(&pair, Durability::TransientLocal, 60);
    let mut volatile = joiner(&pair, Durability::Volatile, 60);
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    pair.send(1);
    assert_eq!(volatile.sequences_to(2), [2]);
    assert_eq!((latched.lost(), volatile.lost()), (0, 0), "one message was published since they joined");
}

#[test]
fn a_late_joiner_gets_the_history_though_a_port_ends_while_it_joins() {
    let (mut pair, _early) = latched();
    pair.cut();
    // The manager has given it a slot, and its program has not looked for history yet.
    let (segment, pages) = {
        let mut to = pair.to();
        let spec = SubscriberSpec { depth: 60, ..Default::default() };
        let slot = to.topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
        let qos = SubscriberQos { durability: Durability::TransientLocal, ..Default::default() };
        to.topic.subscribers.insert(slot, LocalSubscriber { qos, event: None });
        (to.topic.segment.clone(), to.topic.slot_table.pages(slot).unwrap())
    };
    end_port(&pair);
    let mut late = Subscriber { reader: ReaderPort::new(segment, pages, true).unwrap() };
    pair.mend();
    assert_eq!(late.sequences_to(8), [4, 5, 6, 7, 8]);
}
