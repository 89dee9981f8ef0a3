//! Messages that a sender was too late for: the other host counts them, also those of publishers of which it has got nothing.

use super::*;

const NEWCOMER: u64 = 8;
const ANOTHER: u64 = 9;

/// A second publisher of the publishing host.
struct Newcomer {
    publisher: u64,
    port: WriterPort,
    sequence: u64,
}

impl Newcomer {
    fn join(pair: &Pair, publisher: u64) -> Self {
        let spec = PublisherSpec { publisher, ..Default::default() };
        let slot = pair.topic.slot_table.admit_publisher(&spec).unwrap();
        let memory = DeviceMemoryManager::new(host());
        let pool = memory.create(&pair.topic.pools, slot, 1 << 20).unwrap();
        pair.topic.pools.seal(slot).unwrap();
        let mut port = WriterPort::new(pair.topic.segment.clone(), slot, pool.allocation_right().unwrap()).unwrap();
        for slot in pair.topic.slot_table.active_subscribers() {
            port.add_subscriber(pair.topic.slot_table.pages(slot).unwrap(), None);
        }
        Self { publisher, port, sequence: 0 }
    }

    fn send(&mut self, pair: &Pair, count: u64) {
        for _ in 0..count {
            let loan = self.port.loan(1, Exhaustion::DropOldest).unwrap();
            self.sequence += 1;
            let (publisher, sequence) = (self.publisher, self.sequence);
            let info = MessageInfo { publisher, sequence, source_host: FROM.0, bytes: 1, ..MessageInfo::default() };
            self.port.publish(loan, &MessageSpec { info, meta: b"meta", history_depth: 0 }).unwrap();
        }
        pair.topic.outbound.values().for_each(|outbound| outbound.control.event().signal().unwrap());
    }

    fn leave(self, pair: &Pair) {
        pair.topic.drain(self.port.slot());
    }
}

/// Linked hosts, with a subscriber that has taken the first message. Then the link is cut.
fn cut(depth: u32) -> (Pair, Subscriber) {
    let mut pair = Pair::new(host(), depth, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    pair.cut();
    (pair, subscriber)
}

#[test]
fn missing_first_messages_of_a_new_publisher_count_for_those_who_had_joined() {
    let (mut pair, mut subscriber) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 10);
    let late = pair.subscriber();
    pair.mend();
    assert_eq!(subscriber.sequences_to(10), [9, 10]);
    assert_eq!((subscriber.lost(), late.lost()), (8, 0), "a later subscriber has lost nothing");
    newcomer.send(&pair, 1);
    assert_eq!((subscriber.sequences_to(11), subscriber.lost()), (vec![11], 8));
}

#[test]
fn messages_of_a_publisher_that_left_unseen_count_once_for_those_who_had_joined() {
    let (mut pair, mut subscriber) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 5);
    (0..3).for_each(|_| pair.send(100));
    newcomer.leave(&pair);
    let late = pair.subscriber();
    pair.mend();
    assert_eq!(subscriber.sequences_to(4), [3, 4]);
    until("the note", || subscriber.lost() == 1 + 5);
    assert_eq!(late.lost(), 0);
    // Neither a new link nor a new manager of either host counts them again.
    for restarts in 0..2 {
        pair.cut();
        if restarts > 0 {
            pair.to().restart();
        }
        pair.send(100);
        pair.mend();
        let sequence = pair.sequence;
        assert_eq!((subscriber.sequences_to(sequence), subscriber.lost()), (vec![sequence], 6));
    }
    pair.restart_sender();
    until("the link", || pair.status().contains("connected over"));
    pair.send(100);
    let sequence = pair.sequence;
    assert_eq!((subscriber.sequences_to(sequence), subscriber.lost()), (vec![sequence], 6));
}

#[test]
fn a_publisher_that_falls_silent_is_counted_by_a_note_and_not_again_when_it_leaves() {
    let (mut pair, mut subscriber) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 5);
    (0..2).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!(subscriber.sequences_to(3), [2, 3]);
    until("the note", || subscriber.lost() == 5);
    newcomer.leave(&pair);
    // Messages pass after a note, also over the next link.
    pair.send(100);
    assert_eq!((subscriber.sequences_to(4), subscriber.lost()), (vec![4], 5));
    pair.cut();
    pair.send(100);
    pair.mend();
    assert_eq!((subscriber.sequences_to(5), subscriber.lost()), (vec![5], 5));
}

#[test]
fn a_new_sender_names_what_its_predecessor_has_not_sent() {
    let mut pair = Pair::new(host(), 2, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    pair.send(100);
    newcomer.send(&pair, 1);
    let arrived = [(); 2].map(|()| subscriber.take().info().publisher);
    assert!(arrived.contains(&NEWCOMER) && arrived[0] != arrived[1], "{arrived:?}");
    pair.cut();
    newcomer.send(&pair, 5);
    (0..3).for_each(|_| pair.send(100));
    pair.restart_sender();
    pair.mend();
    until("the notes", || subscriber.lost() == 5 + 3);
    pair.send(100);
    newcomer.send(&pair, 1);
    let arrived = [(); 2].map(|()| subscriber.take().info().sequence);
    assert_eq!((arrived.iter().sum::<u64>(), subscriber.lost()), (5 + 7, 8), "{arrived:?}");
}

#[test]
fn a_host_that_remembers_nothing_counts_nothing_that_was_published_before() {
    let (mut pair, early) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 5);
    pair.send(100);
    newcomer.leave(&pair);
    let former = {
        let mut to = pair.to();
        let Subscribing { manager, topic, .. } = &mut *to;
        manager.end(topic, FROM);
        let anew = Topic::create(topic.key.clone(), &topic.type_name).unwrap();
        std::mem::replace(topic, anew)
    };
    let mut late = pair.subscriber();
    pair.mend();
    assert_eq!((late.sequences_to(2).last(), late.lost()), (Some(&2), 0));
    let mut another = Newcomer::join(&pair, ANOTHER);
    another.send(&pair, 1);
    pair.send(100);
    assert_eq!((late.sequences_to(3), late.lost()), (vec![1, 3], 0));
    drop((early, former));
}

#[test]
fn a_message_for_which_there_is_no_room_counts_at_once_and_once() {
    let config = Config { keep_all_timeout_ms: 100, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 2, config);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(900_000);
    let held = subscriber.take();
    until("the acknowledgement", || {
        pair.port.reclaim();
        pair.port.pool().used_bytes == 0
    });
    // The pool of arriving messages has 1 MiB.
    pair.send(900_000);
    until("the loss", || subscriber.lost() == 1);
    drop(held);
    pair.cut();
    pair.mend();
    pair.send(100);
    assert_eq!((subscriber.sequences_to(3), subscriber.lost()), (vec![3], 1));
}
