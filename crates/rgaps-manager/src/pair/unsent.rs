//! Messages that a sender was too late for: the other host counts them, also those of publishers of which it has got nothing.

use super::*;
use crate::device_memory::Pools;

pub(super) const NEWCOMER: u64 = 8;
const ANOTHER: u64 = 9;

/// A second publisher of the publishing host.
pub(super) struct Newcomer {
    publisher: u64,
    pub(super) port: WriterPort,
    sequence: u64,
}

impl Newcomer {
    pub(super) fn join(pair: &Pair, publisher: u64) -> Self {
        Self::join_with(pair, &PublisherSpec { publisher, ..Default::default() }, &pair.topic.pools)
    }

    /// Joins with a pool among these.
    pub(super) fn join_with(pair: &Pair, spec: &PublisherSpec, pools: &Pools) -> Self {
        let publisher = spec.publisher;
        let slot = pair.topic.slot_table.admit_publisher(spec).unwrap();
        let memory = DeviceMemoryManager::new(host());
        let pool = memory.create(pools, slot, 1 << 20).unwrap();
        pools.seal(slot).unwrap();
        let port = WriterPort::new(pair.topic.segment.clone(), slot, pool.allocation_right().unwrap()).unwrap();
        let mut newcomer = Self { publisher, port, sequence: 0 };
        newcomer.mark_known(pair);
        newcomer
    }

    /// What it says of its next message, of so many bytes.
    pub(super) fn next(&mut self, bytes: u64) -> MessageInfo {
        self.sequence += 1;
        let (publisher, sequence) = (self.publisher, self.sequence);
        MessageInfo { publisher, sequence, source_host: FROM.0, bytes, ..MessageInfo::default() }
    }

    /// Publishes without waking the sender.
    pub(super) fn publish(&mut self, bytes: u64, history_depth: u32) {
        let loan = self.port.loan(bytes, Exhaustion::DropOldest).unwrap();
        let info = self.next(bytes);
        self.port.publish(loan, &MessageSpec { info, meta: b"meta", history_depth }).unwrap();
    }

    pub(super) fn send(&mut self, pair: &Pair, count: u64) {
        (0..count).for_each(|_| self.publish(1, 0));
        pair.wake_sender();
    }

    /// Learns of new subscribers.
    pub(super) fn mark_known(&mut self, pair: &Pair) {
        for slot in pair.topic.slot_table.active_subscribers() {
            self.port.add_subscriber(pair.topic.slot_table.pages(slot).unwrap(), None);
        }
    }

    pub(super) fn slot(&self) -> rgaps_shm::PublisherSlot {
        self.port.slot()
    }

    pub(super) fn leave(self, pair: &Pair) {
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
    until("the gap notice", || subscriber.lost() == 1 + 5);
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
fn a_silent_publisher_is_counted_by_a_gap_notice_and_not_again_when_it_leaves() {
    let (mut pair, mut subscriber) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 5);
    (0..2).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!(subscriber.sequences_to(3), [2, 3]);
    until("the gap notice", || subscriber.lost() == 5);
    newcomer.leave(&pair);
    // Messages pass after a gap notice, also over the next link.
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
    until("the gap notices", || subscriber.lost() == 5 + 3);
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

#[test]
fn messages_lost_between_two_links_count_though_nothing_had_arrived() {
    let mut pair = Pair::new(host(), 2, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    pair.cut();
    (0..10).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!(subscriber.sequences_to(10), [9, 10]);
    assert_eq!(subscriber.lost(), 8);
}

/// What the receiving manager's successor does with its predecessor's port, and then a local publisher that takes the free slot.
pub(super) fn free_the_port_and_reuse_it(pair: &Pair, subscriber: &mut Subscriber) {
    let pages: Vec<_> = {
        let to = pair.to();
        to.topic.slot_table.active_subscribers().filter_map(|slot| to.topic.slot_table.pages(slot)).collect()
    };
    // The harness's successor does not know the subscriber's words, so its predecessor's table does this.
    {
        let to = pair.to();
        let remote: Vec<_> = to.topic.slot_table.active_publishers().collect();
        remote.into_iter().for_each(|slot| to.topic.drain(slot));
        assert_eq!(last_received(&to.topic.segment, FROM.0).len(), 1, "the segment still has what arrived");
    }
    pair.to().restart();
    let to = pair.to();
    let slot = to.topic.slot_table.admit_publisher(&PublisherSpec::default()).unwrap();
    let pool = to.memory.create(&to.topic.pools, slot, 1 << 20).unwrap();
    let right = pool.allocation_right().unwrap();
    let mut local = WriterPort::new(to.topic.segment.clone(), slot, right).unwrap();
    pages.into_iter().for_each(|pages| local.add_subscriber(pages, None));
    for sequence in 1..=300 {
        let loan = local.loan(1, Exhaustion::Refuse).unwrap();
        let info = MessageInfo { publisher: 77, sequence, bytes: 1, ..MessageInfo::default() };
        local.publish(loan, &MessageSpec { info, meta: &[], history_depth: 0 }).unwrap();
        assert_eq!(subscriber.take().info().sequence, sequence);
    }
}

#[test]
fn messages_lost_while_the_ports_slot_is_reused_are_counted() {
    let (mut pair, mut subscriber) = cut(2);
    (0..10).for_each(|_| pair.send(100));
    free_the_port_and_reuse_it(&pair, &mut subscriber);
    pair.mend();
    assert_eq!(subscriber.sequences_to(11), [10, 11]);
    assert_eq!(subscriber.lost(), 8);
}

#[test]
fn latched_messages_arrive_once_though_the_ports_slot_is_reused() {
    let mut pair = Pair::new(host(), 20, 60_000);
    pair.latch(5);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    (0..8).for_each(|_| pair.send(100));
    assert_eq!(subscriber.sequences_to(8), (1..=8).collect::<Vec<u64>>());
    until("the acknowledgement", || pair.status().contains("8 messages sent"));
    pair.cut();
    free_the_port_and_reuse_it(&pair, &mut subscriber);
    pair.mend();
    pair.send(100);
    assert_eq!(subscriber.sequences_to(9), [9], "messages arrive again");
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn messages_of_publishers_that_leave_together_are_counted() {
    let (mut pair, mut subscriber) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 5);
    (0..2).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!(subscriber.sequences_to(3), [2, 3]);
    until("the acknowledgement", || {
        pair.port.reclaim();
        pair.port.pool().used_bytes == 0
    });
    // A program that has both publishers ends.
    let slot = pair.port.slot();
    newcomer.leave(&pair);
    pair.topic.drain(slot);
    pair.topic.publishers.clear();
    pair.topic.finish_draining();
    assert!(pair.topic.slot_table.draining().next().is_none());
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    until("the gap notice", || subscriber.lost() == 5);
}

#[test]
fn messages_of_publishers_that_leave_together_during_a_cut_are_counted() {
    let (mut pair, mut subscriber) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 5);
    (0..2).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!(subscriber.sequences_to(3), [2, 3]);
    until("the acknowledgement", || {
        pair.port.reclaim();
        pair.port.pool().used_bytes == 0
    });
    pair.cut();
    let slot = pair.port.slot();
    newcomer.leave(&pair);
    pair.topic.drain(slot);
    pair.topic.publishers.clear();
    pair.topic.finish_draining();
    assert!(pair.topic.slot_table.draining().next().is_none());
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    pair.mend();
    until("the gap notice", || subscriber.lost() == 5);
}

#[test]
fn notes_are_sent_over_a_link_without_flow_control_more_than_once() {
    let mut pair = Pair::new(host(), 2, 60_000);
    pair.topic.publishers.values_mut().for_each(|publisher| publisher.qos.flow_control = false);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    pair.cut();
    let mut first = Newcomer::join(&pair, NEWCOMER);
    first.send(&pair, 5);
    let mut second = Newcomer::join(&pair, ANOTHER);
    second.send(&pair, 5);
    (0..2).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!(subscriber.sequences_to(3), [2, 3]);
    first.leave(&pair);
    second.leave(&pair);
    until("both gap notices", || subscriber.lost() == 10);
}

#[test]
fn a_successor_counts_nothing_again_that_its_predecessor_counted_and_acknowledged() {
    let config = Config { keep_all_timeout_ms: 100, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 2, config);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    pair.send(900_000);
    newcomer.send(&pair, 1);
    let held = [(); 2].map(|()| subscriber.take());
    let acknowledged = |pair: &mut Pair| {
        until("the acknowledgement", || {
            pair.port.reclaim();
            pair.port.pool().used_bytes == 0
        });
    };
    acknowledged(&mut pair);
    // There is no room for this one, and none of these is sent.
    pair.send(900_000);
    until("the loss", || subscriber.lost() == 1);
    pair.cut();
    newcomer.send(&pair, 5);
    (0..2).for_each(|_| pair.send(100));
    pair.mend();
    until("the gap notice", || subscriber.lost() == 1 + 5);
    drop(held);
    assert_eq!(subscriber.sequences_to(4), [3, 4]);
    acknowledged(&mut pair);
    pair.cut();
    pair.to().restart();
    pair.mend();
    pair.send(100);
    assert_eq!(subscriber.sequences_to(5), [5]);
    newcomer.send(&pair, 1);
    assert_eq!((subscriber.sequences_to(7), subscriber.lost()), (vec![7], 6));
}

#[test]
fn a_later_subscriber_does_not_count_what_a_publisher_lost_before_it_joined() {
    let (mut pair, mut subscriber) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 5);
    (0..2).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!(subscriber.sequences_to(3), [2, 3]);
    let mut late = pair.subscriber();
    pair.send(100);
    assert_eq!((subscriber.sequences_to(4), late.sequences_to(4)), (vec![4], vec![4]));
    newcomer.leave(&pair);
    until("the gap notice", || subscriber.lost() == 5);
    assert_eq!(late.lost(), 0);
}

#[test]
fn a_later_subscriber_counts_no_missing_messages_from_before_it_joined() {
    let (mut pair, mut subscriber) = cut(2);
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    newcomer.send(&pair, 5);
    (0..2).for_each(|_| pair.send(100));
    pair.mend();
    assert_eq!(subscriber.sequences_to(3), [2, 3]);
    let mut late = pair.subscriber();
    pair.send(100);
    assert_eq!((subscriber.sequences_to(4), late.sequences_to(4)), (vec![4], vec![4]));
    newcomer.send(&pair, 1);
    assert_eq!((subscriber.sequences_to(6), late.sequences_to(6)), (vec![6], vec![6]));
    assert_eq!((subscriber.lost(), late.lost()), (5, 0));
}

#[test]
fn a_message_without_room_counts_for_every_subscriber_that_is_there() {
    let config = Config { keep_all_timeout_ms: 100, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 2, config);
    let mut early = pair.subscriber();
    pair.announce(true);
    pair.send(900_000);
    let held = early.take();
    until("the acknowledgement", || {
        pair.port.reclaim();
        pair.port.pool().used_bytes == 0
    });
    let mut second = pair.subscriber();
    pair.send(900_000);
    until("the loss", || early.lost() == 1);
    drop(held);
    pair.send(100);
    assert_eq!((early.sequences_to(3), second.sequences_to(3)), (vec![3], vec![3]));
    assert_eq!((early.lost(), second.lost()), (1, 1));
}

#[test]
fn a_late_gap_notice_counts_for_no_subscriber_that_joined_after_the_loss() {
    let mut pair = Pair::new(host(), 2, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    // A loss, so that the sender has just looked for skipped messages.
    (0..5).for_each(|_| pair.publish_one(1));
    pair.wake_sender();
    subscriber.sequences_to(6);
    // A burst in which all messages of a new publisher are skipped.
    let mut newcomer = Newcomer::join(&pair, NEWCOMER);
    (0..5).for_each(|_| newcomer.publish(1, 0));
    (0..2).for_each(|_| pair.publish_one(1));
    pair.wake_sender();
    subscriber.sequences_to(8);
    // Everything so far was published, and lost, before this one joins.
    let mut late = pair.subscriber();
    pair.send(1);
    assert_eq!((subscriber.sequences_to(9), late.sequences_to(9)), (vec![9], vec![9]));
    until("the gap notice", || subscriber.reader.counters().taken + subscriber.lost() == 9 + 5);
    assert_eq!(late.lost(), 0, "one message was published since it joined, and it has taken it");
}
