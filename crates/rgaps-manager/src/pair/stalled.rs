//! Hosts that give no credit: what they hold of this host's publishers comes free, and is counted as lost.

use rgaps_control::qos::{Exhaustion as QosExhaustion, History};

use super::unsent::{NEWCOMER, Newcomer};
use super::*;

/// Linked hosts, with a keep-all subscriber that has taken the first message. Later ones are not acknowledged while `late` is stalled.
fn keep_all(late: &DeferredBackend) -> (Pair, Subscriber) {
    let config = Config { keep_all_timeout_ms: 300, peer_timeout_ms: 60_000, ..Config::default() };
    let mut pair = Pair::configured(host(), Arc::new(late.clone()), 1, config);
    let mut subscriber = pair.subscriber();
    request_keep_all(&mut pair);
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    late.stall();
    (pair, subscriber)
}

fn request_keep_all(pair: &mut Pair) {
    let all = SubscriberQos { history: History::KeepAll, ..Default::default() };
    let endpoint = Endpoint { requests: vec![all], ..pair.endpoint() };
    pair.directory.host_up(TO, "to").unwrap();
    pair.directory.endpoint_up(TO, "token of keep-all", endpoint).unwrap();
}

/// The depth of the sender's slot; 0 is keep-all.
fn depth(pair: &Pair) -> u64 {
    let slot = pair.slot().unwrap();
    pair.topic.segment.subscriber(slot.index).unwrap().depth.load(Ordering::Relaxed)
}

#[test]
fn a_keep_all_host_that_takes_messages_again_is_keep_all_again() {
    let late = DeferredBackend::default();
    let (mut pair, mut subscriber) = keep_all(&late);
    (0..20).for_each(|_| pair.send(8000));
    until("the warning", || pair.events.try_iter().any(|event| matches!(event, Event::Warning { .. })));
    assert_eq!(depth(&pair), 1);
    late.go_on();
    subscriber.sequences_to(21);
    until("keep-all", || depth(&pair) == 0);
}

#[test]
fn a_keep_all_host_that_acknowledges_nothing_becomes_keep_last_though_all_was_sent() {
    let late = DeferredBackend::default();
    let (mut pair, _subscriber) = keep_all(&late);
    (0..20).for_each(|_| pair.send(100));
    until("the warning", || pair.events.try_iter().any(|event| matches!(event, Event::Warning { .. })));
    assert_eq!(depth(&pair), 1);
    // It requests keep-last, and then keep-all again.
    pair.directory.endpoint_down(TO, "token of keep-all");
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    request_keep_all(&mut pair);
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    until("the second demotion", || depth(&pair) == 1);
}

#[test]
fn a_host_that_acknowledges_nothing_stays_keep_last_when_it_connects_again() {
    let late = DeferredBackend::default();
    let (mut pair, _subscriber) = keep_all(&late);
    while pair.try_send(100).is_ok() && pair.sequence < 1000 {}
    until("the demotion", || depth(&pair) == 1);
    pair.cut();
    pair.mend();
    until("the link", || pair.status().contains("connected over"));
    assert_eq!(depth(&pair), 1, "it has acknowledged nothing");
    late.go_on();
    until("keep-all", || depth(&pair) == 0);
}

/// Linked hosts whose sender gives up after 0.6 s. The subscriber has taken the first message.
fn impatient(late: &DeferredBackend, depth: u32) -> (Pair, Subscriber) {
    let config = Config { keep_all_timeout_ms: 300, peer_timeout_ms: 300, ..Config::default() };
    let mut pair = Pair::configured(host(), Arc::new(late.clone()), depth, config);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    (pair, subscriber)
}

#[test]
fn messages_that_a_host_holds_for_too_long_come_free_and_are_counted_by_it() {
    for connects_again in [false, true] {
        let late = DeferredBackend::default();
        let (mut pair, mut subscriber) = impatient(&late, 1);
        let mut newcomer = Newcomer::join(&pair, NEWCOMER);
        late.stall();
        (0..10).for_each(|_| pair.send(100_000));
        newcomer.send(&pair, 3);
        newcomer.leave(&pair);
        pair.peer.reachable.store(connects_again, Ordering::Release);
        // The newest message may be in the outbox of the next link, and one is unread.
        until("the memory", || {
            pair.port.reclaim();
            pair.port.outstanding() <= 2
        });
        until("the newcomer's slot", || {
            pair.topic.finish_draining();
            connects_again || pair.topic.slot_table.draining().next().is_none()
        });
        late.go_on();
        pair.mend();
        until("the link", || pair.status().contains("connected over"));
        pair.send(1);
        pair.topic.finish_draining();
        let taken = subscriber.sequences_to(12).len() as u64;
        // 15 messages: the first was taken already.
        until("the losses", || {
            pair.topic.finish_draining();
            taken + subscriber.lost() == 14
        });
        let first = subscriber.lost();
        pair.send(1);
        subscriber.sequences_to(13);
        assert_eq!(subscriber.lost(), first, "each is counted once");
    }
}

#[test]
fn history_that_is_sent_again_leaves_room_in_the_pool() {
    let late = DeferredBackend::default();
    let config = Config { peer_timeout_ms: 60_000, ..Config::default() };
    let mut pair = Pair::configured(host(), Arc::new(late.clone()), 60, config);
    pair.latch(60);
    let mut early = pair.subscriber();
    pair.announce(true);
    for sequence in 1..=21 {
        pair.send(100_000);
        assert_eq!(early.sequences_to(sequence), [sequence]);
    }
    until("the acknowledgement", || pair.status().contains("21 messages sent"));
    pair.cut();
    history::end_port(&pair);
    late.stall();
    pair.mend();
    until("the link", || pair.status().contains("connected over"));
    until("room", || pair.try_send(100_000).is_ok());
    late.go_on();
    let mut joiner = pair.subscriber();
    pair.send(100_000);
    assert_eq!(early.sequences_to(pair.sequence).last(), Some(&pair.sequence));
    joiner.sequences_to(pair.sequence);
}

#[test]
fn an_arrival_that_is_told_to_stop_demotes_no_keep_all_subscriber() {
    let config = Config { keep_all_timeout_ms: 600_000, peer_timeout_ms: 60_000, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 20, config);
    for publisher in pair.topic.publishers.values_mut() {
        publisher.qos.exhaustion = QosExhaustion::DropOldest;
    }
    let (slot, mut subscriber) = {
        let mut to = pair.to();
        let spec = SubscriberSpec { depth: 0, ..Default::default() };
        let slot = to.topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
        to.topic.subscribers.insert(slot, LocalSubscriber { qos: SubscriberQos::default(), event: None });
        let pages = to.topic.slot_table.pages(slot).unwrap();
        (slot, Subscriber { reader: ReaderPort::new(to.topic.segment.clone(), pages, false).unwrap() })
    };
    pair.announce(true);
    pair.send(900_000);
    until("the first message", || pair.to().topic.segment.queue().end().0 == 1);
    until("the acknowledgement", || pair.try_send(900_000).is_ok());
    let sleeps = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed) != 0;
    until("the wait for space", || pair.to().topic.segment.header().space.0.sleepers.iter().any(sleeps));
    pair.cut();
    let depth = pair.to().topic.segment.subscriber(slot.index).unwrap().depth.load(Ordering::Relaxed);
    assert_eq!((depth, pair.to().warnings.len()), (0, 0));
    pair.mend();
    assert_eq!((subscriber.sequences_to(1), subscriber.lost()), (vec![1], 0));
    assert_eq!((subscriber.sequences_to(2), subscriber.lost()), (vec![2], 0), "it comes again");
}
