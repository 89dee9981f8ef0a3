//! Hosts that give no credit: what they hold of this host's publishers comes free, and is counted as lost.

use rgaps_control::qos::{Exhaustion as QosExhaustion, History};

use super::unsent::{NEWCOMER, Newcomer};
use super::*;

/// Linked hosts, with a keep-all subscriber that has taken the first message. Later ones are not acknowledged while `late` is stalled.
fn keep_all(late: &DeferredBackend, keep_all_timeout_ms: u64, flow_control: bool) -> (Pair, Subscriber) {
    let config = Config { keep_all_timeout_ms, peer_timeout_ms: 60_000, ..Config::default() };
    keep_all_between(host(), Arc::new(late.clone()), config, flow_control, late)
}

fn keep_all_between(
    from: Arc<dyn Backend>,
    to: Arc<dyn Backend>,
    config: Config,
    flow_control: bool,
    late: &DeferredBackend,
) -> (Pair, Subscriber) {
    let mut pair = Pair::configured(from, to, 1, config);
    for publisher in pair.topic.publishers.values_mut() {
        publisher.qos.flow_control = flow_control;
    }
    let (_, mut subscriber) = pair.subscriber_of_depth(0);
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
    let (mut pair, mut subscriber) = keep_all(&late, 300, true);
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
    let (mut pair, _subscriber) = keep_all(&late, 300, true);
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
    let (mut pair, _subscriber) = keep_all(&late, 300, true);
    while pair.try_send(100).is_ok() && pair.sequence < 1000 {}
    until("the demotion", || depth(&pair) == 1);
    pair.cut();
    pair.mend();
    until("the link", || pair.status().contains("connected over"));
    assert_eq!(depth(&pair), 1, "it has acknowledged nothing");
    late.go_on();
    until("keep-all", || depth(&pair) == 0);
}

/// Linked hosts whose sender ends a link that does nothing for 2 s, and gives up after 6 s. The subscriber has taken the first message.
fn impatient(late: &DeferredBackend, depth: u32) -> (Pair, Subscriber) {
    let config = Config { keep_all_timeout_ms: 1000, peer_timeout_ms: 1000, ..Config::default() };
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
        let (mut pair, mut subscriber) = impatient(&late, 20);
        let mut newcomer = Newcomer::join(&pair, NEWCOMER);
        late.stall();
        newcomer.send(&pair, 3);
        newcomer.leave(&pair);
        (0..10).for_each(|_| pair.send(90_000));
        // All that the newcomer has published is in the outbox, so the sender forgets it.
        until("the end of the newcomer", || !pair.topic.outbound[&TO].control.owes());
        pair.peer.reachable.store(connects_again, Ordering::Release);
        let mut outstanding = || {
            pair.port.reclaim();
            pair.port.outstanding()
        };
        // The outbox holds six, more than half of the pool. Four are unread, of which the outbox of the next link may hold one.
        until("the first message's acknowledgement", || outstanding() == 10);
        until("the memory", || outstanding() == 4);
        until("the newcomer's slot", || {
            pair.topic.finish_draining();
            pair.topic.slot_table.draining().next().is_none()
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
    let (slot, mut subscriber) = pair.subscriber_of_depth(0);
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

#[test]
fn a_message_over_a_slow_link_is_not_given_up_while_it_progresses() {
    // A watermark takes 4 s, and the message 10 s.
    let config = Config { keep_all_timeout_ms: 1000, peer_timeout_ms: 1000, chunk_bytes: 1 << 10, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 20, config);
    let mut subscriber = pair.subscriber();
    let proxy = corruption::put_proxy_between(&pair);
    proxy.slow_down(2000);
    pair.announce(true);
    pair.send(20_000);
    assert_eq!((subscriber.sequences_to(1), subscriber.lost()), (vec![1], 0));
}

#[test]
fn a_host_that_was_away_for_long_gets_what_was_published_meanwhile() {
    let late = DeferredBackend::default();
    let (mut pair, mut subscriber) = impatient(&late, 20);
    until("the acknowledgement", || {
        pair.port.reclaim();
        pair.port.outstanding() == 0
    });
    pair.cut();
    // Longer than the host may hold messages.
    std::thread::sleep(Duration::from_secs(7));
    (0..5).for_each(|_| pair.send(50_000));
    late.stall();
    pair.mend();
    until("the link", || pair.status().contains("connected over"));
    // A link of a host that held messages would end after 1 s.
    std::thread::sleep(Duration::from_millis(1300));
    late.go_on();
    assert_eq!((subscriber.sequences_to(6), subscriber.lost()), (vec![2, 3, 4, 5, 6], 0));
}

#[test]
fn a_keep_all_host_is_keep_all_again_after_a_cut_though_nothing_is_published() {
    for flow_control in [true, false] {
        let late = DeferredBackend::default();
        let (mut pair, _subscriber) = keep_all(&late, 300, flow_control);
        late.go_on();
        pair.cut();
        until("the demotion", || depth(&pair) == 1);
        pair.mend();
        until("keep-all", || depth(&pair) == 0);
    }
}

#[test]
fn a_keep_all_host_is_keep_all_again_though_messages_never_cease() {
    let late = DeferredBackend::default();
    let (mut pair, mut subscriber) = keep_all(&late, 300, true);
    late.go_on();
    let proxy = corruption::put_proxy_between(&pair);
    pair.cut();
    pair.mend();
    until("the link", || pair.status().contains("connected over"));
    late.stall();
    pair.send(8000);
    until("the demotion", || depth(&pair) == 1);
    // Each message takes 80 ms, and ten are under way: the outbox is never empty.
    proxy.slow_down(100_000);
    late.go_on();
    until("keep-all", || {
        pair.port.reclaim();
        (pair.port.outstanding()..10).for_each(|_| pair.send(8000));
        while subscriber.reader.take().unwrap().is_some() {}
        depth(&pair) == 0
    });
}

#[test]
fn a_receiver_that_waits_for_space_shows_its_progress() {
    let config = Config { keep_all_timeout_ms: 1500, peer_timeout_ms: 1500, message_count: 4, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 20, config);
    for publisher in pair.topic.publishers.values_mut() {
        publisher.qos.exhaustion = QosExhaustion::Wait { timeout_ms: 1500 };
    }
    let (_, mut subscriber) = pair.subscriber_of_depth(0);
    request_keep_all(&mut pair);
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    // In all, less than a watermark.
    (0..20).for_each(|_| pair.publish_one(10));
    pair.wake_sender();
    for sequence in 1..=20 {
        // In all, longer than the host may hold messages; each time, shorter than it may stall.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(subscriber.sequences_to(sequence), [sequence]);
    }
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn a_keep_all_host_is_not_demoted_while_messages_are_still_sent_to_it() {
    let late = DeferredBackend::default();
    let (mut pair, mut subscriber) = keep_all(&late, 3000, true);
    // No credit comes for longer than the time-out, as in a short cut. The last messages are more than the outbox holds.
    for messages in [32, 31, 20] {
        (0..messages).for_each(|_| pair.send(100));
        std::thread::sleep(Duration::from_millis(1600));
    }
    late.go_on();
    assert_eq!((subscriber.sequences_to(84).len(), subscriber.lost()), (83, 0));
}

fn outstanding(pair: &mut Pair) -> usize {
    pair.port.reclaim();
    pair.port.outstanding()
}

#[test]
fn a_host_that_has_counted_what_was_given_up_is_keep_all_again_while_idle() {
    let late = DeferredBackend::default();
    let config = Config { keep_all_timeout_ms: 500, peer_timeout_ms: 500, ..Config::default() };
    let (mut pair, mut subscriber) = keep_all_between(host(), Arc::new(late.clone()), config, true, &late);
    (0..3).for_each(|_| pair.send(100));
    until("the first copy", || late.waiting() > 0);
    pair.cut();
    until("the memory", || outstanding(&mut pair) <= 1);
    late.go_on();
    pair.mend();
    until("all are taken or counted", || {
        while subscriber.reader.take().unwrap().is_some() {}
        subscriber.reader.counters().taken + subscriber.lost() == 4
    });
    until("keep-all", || depth(&pair) == 0);
    let lost = subscriber.lost();
    (0..20).for_each(|_| pair.publish_one(8000));
    pair.wake_sender();
    assert_eq!((subscriber.sequences_to(24).len(), subscriber.lost() - lost), (20, 0));
}

#[test]
fn a_host_that_is_back_after_a_long_cut_is_not_demoted_for_that_time() {
    let late = DeferredBackend::default();
    let config = Config { keep_all_timeout_ms: 1000, peer_timeout_ms: 1000, ..Config::default() };
    let (mut pair, mut subscriber) = keep_all_between(host(), Arc::new(late.clone()), config, true, &late);
    late.go_on();
    until("the acknowledgement", || outstanding(&mut pair) == 0);
    pair.cut();
    until("the demotion", || depth(&pair) == 1);
    // Longer than a keep-all host may be without progress over several links.
    std::thread::sleep(Duration::from_secs(3));
    pair.events.try_iter().for_each(drop);
    pair.send(100);
    late.stall();
    pair.mend();
    until("the copy", || late.waiting() == 1);
    late.go_on();
    assert_eq!(subscriber.sequences_to(2), [2]);
    until("keep-all", || depth(&pair) == 0);
    let warnings = pair.events.try_iter().filter(|event| matches!(event, Event::Warning { .. })).count();
    assert_eq!((warnings, subscriber.lost()), (0, 0));
}

#[test]
fn a_keep_all_host_is_not_demoted_because_a_device_of_the_sender_is_slow() {
    let late = DeferredBackend::default();
    let config = Config { keep_all_timeout_ms: 300, peer_timeout_ms: 60_000, ..Config::default() };
    let (mut pair, mut subscriber) =
        keep_all_between(Arc::new(late.clone()), host(), config, true, &DeferredBackend::default());
    until("the acknowledgement", || outstanding(&mut pair) == 0);
    late.stall();
    (0..80).for_each(|_| pair.publish_one(100));
    pair.wake_sender();
    // Longer than a keep-all host may stall.
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(depth(&pair), 0);
    late.go_on();
    assert_eq!((subscriber.sequences_to(81).len(), subscriber.lost()), (80, 0));
}

/// A peer that answers ring requests as an honest host does, but has the data connection itself: every half second it gives credit for one more byte.
fn give_credit_by_bytes(pair: &Pair) {
    use std::io::{Read, Write};

    use rgaps_link::credit::CreditPair;
    use rgaps_link::tcp::{TcpOptions, TcpRingListener};

    let listener = TcpRingListener::bind("127.0.0.1:0".parse().unwrap(), Duration::from_secs(1)).unwrap();
    let address = listener.address().to_string();
    let geometry = Arc::new(Mutex::new(None));
    let offered = geometry.clone();
    *pair.peer.alter.lock().unwrap() = Some(Box::new(move |offer| {
        offer.addresses = vec![address.clone()];
        *offered.lock().unwrap() = Some(crate::offered_ring::geometry(offer, true).unwrap());
    }));
    std::thread::spawn(move || {
        while let Ok(incoming) = listener.accept(LIMIT) {
            let geometry = geometry.lock().unwrap().unwrap();
            let Ok(mut stream) = incoming.agree(&geometry, &TcpOptions::default()) else { continue };
            let mut reading = stream.try_clone().unwrap();
            std::thread::spawn(move || while !matches!(reading.read(&mut [0; 4096]), Ok(0)) {});
            std::thread::spawn(move || {
                for head in 1.. {
                    std::thread::sleep(Duration::from_millis(500));
                    if stream.write_all(&CreditPair::new(rgaps_link::Position::new(head)).encode()).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn a_peer_that_gives_credit_byte_by_byte_holds_no_message_for_long() {
    for keep_all in [false, true] {
        let config = Config {
            keep_all_timeout_ms: 500,
            peer_timeout_ms: 500,
            integrity: "none".to_owned(),
            ..Config::default()
        };
        let mut pair = Pair::configured(host(), host(), 20, config);
        let _subscriber = pair.subscriber();
        give_credit_by_bytes(&pair);
        if keep_all {
            request_keep_all(&mut pair);
        }
        pair.announce(true);
        until("the link", || pair.status().contains("connected over"));
        (0..2).for_each(|_| pair.send(20_000));
        until("the memory", || outstanding(&mut pair) == 0);
        assert!(!keep_all || depth(&pair) > 0);
    }
}

#[test]
fn what_a_host_holds_comes_free_though_each_of_its_links_acknowledges_a_chunk() {
    let config = Config { keep_all_timeout_ms: 500, peer_timeout_ms: 500, ..Config::default() };
    let late = DeferredBackend::default();
    let (mut pair, _subscriber) = keep_all_between(host(), host(), config, true, &late);
    until("the acknowledgement", || outstanding(&mut pair) == 0);
    let proxy = corruption::put_proxy_between(&pair);
    pair.cut();
    pair.mend();
    until("the link", || pair.status().contains("connected over"));
    // A message takes 2 s, and each link lasts for some chunks.
    proxy.slow_down(40_000);
    (0..2).for_each(|_| pair.send(80_000));
    until("the memory", || {
        until("the link", || pair.status().contains("connected over"));
        std::thread::sleep(Duration::from_millis(600));
        pair.cut();
        pair.mend();
        outstanding(&mut pair) == 0
    });
    assert!(depth(&pair) > 0, "it is keep-last until it acknowledges a message");
}

#[test]
fn messages_of_a_publisher_that_left_are_counted_when_they_are_given_up() {
    let late = DeferredBackend::default();
    let (mut pair, mut subscriber) = impatient(&late, 2);
    until("the acknowledgement", || outstanding(&mut pair) == 0);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    late.stall();
    // After this link there is none until the messages are given up.
    pair.peer.reachable.store(false, Ordering::Release);
    (0..5).for_each(|_| newcomer.publish(1, 0));
    newcomer.leave(&pair);
    until("the gap notice", || subscriber.lost() == 3);
    until("the newcomer's slot", || {
        pair.topic.finish_draining();
        pair.topic.slot_table.draining().next().is_none()
    });
    late.go_on();
    pair.mend();
    until("the link", || pair.status().contains("connected over"));
    pair.send(100);
    assert_eq!(subscriber.sequences_to(2), [2]);
    until("the losses", || subscriber.lost() == 5);
}
