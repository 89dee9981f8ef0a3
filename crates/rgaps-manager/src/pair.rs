//! Two hosts in one process: the publish manager of one, the subscribe manager of the other, a real link between them, and no zenoh. A test sets
//! what the hosts know about each other, and cuts links.

#[cfg(test)]
mod budgets;
#[cfg(test)]
mod corruption;

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_control::directory::Directory;
use rgaps_control::local::Role;
use rgaps_control::network::RingError;
use rgaps_control::qos::History;
use rgaps_control::reach::Seen;
use rgaps_control::wire::{Endpoint, RingOffer, RingRefusal, RingRequest};
use rgaps_control::{Config, Durability, HostId, PublisherQos, SubscriberQos, TopicId, TopicKey};
use rgaps_device::host::HostBackend;
use rgaps_device::testing::deferred::DeferredBackend;
use rgaps_device::{Backend, PoolMemory};
use rgaps_shm::manager::last_received::last_received;
use rgaps_shm::notify::Wait;
use rgaps_shm::{
    Exhaustion, Held, LoanError, MessageInfo, MessageSpec, PublisherSpec, ReaderPort, SubscriberFile, SubscriberSpec,
    WriterPort,
};
use rgaps_testing::until;

use crate::budgets::Budgets;
use crate::device_memory::DeviceMemoryManager;
use crate::event::{Event, Mailbox};
use crate::inbound::Inbound;
use crate::offered_ring::Ask;
use crate::publish::PublishManager;
use crate::rdma_devices::RdmaDevices;
use crate::subscribe::SubscribeManager;
use crate::topics::{LocalPublisher, LocalSubscriber, Topic};

#[cfg(test)]
mod forged;
#[cfg(test)]
mod history;
#[cfg(test)]
mod landing;
#[cfg(test)]
mod lies;
#[cfg(test)]
mod recall;
#[cfg(test)]
mod skipped;
#[cfg(test)]
mod stalled;
#[cfg(test)]
mod unsent;
#[cfg(test)]
mod untold;
#[cfg(test)]
mod walk;
#[cfg(test)]
mod without_pool;

const LIMIT: Duration = Duration::from_secs(30);
const FROM: HostId = HostId([1; 16]);
const TO: HostId = HostId([2; 16]);
const PUBLISHER: u64 = 7;

/// The subscribing host.
struct Subscribing {
    manager: SubscribeManager,
    memory: DeviceMemoryManager,
    config: Arc<Config>,
    events: Receiver<Event>,
    topic: Topic,
    /// Topics beside the tested one.
    others: HashMap<TopicId, Topic>,
    budgets: Budgets,
    warnings: Vec<String>,
    resumes: Vec<Vec<(u64, u64)>>,
    refuse: Option<RingRefusal>,
}

impl Subscribing {
    fn new(config: &Arc<Config>, backend: Arc<dyn Backend>, topic: Topic) -> Self {
        let memory = DeviceMemoryManager::new(backend);
        let (mailbox, events, _) = Mailbox::new().unwrap();
        let budgets = Budgets::new(&config.limits);
        let rdma = Arc::new(RdmaDevices::new(config));
        let manager = SubscribeManager::new(config.clone(), memory.clone(), mailbox, rdma, budgets.clone()).unwrap();
        Self {
            manager,
            memory,
            config: config.clone(),
            events,
            topic,
            others: HashMap::new(),
            budgets,
            warnings: Vec::new(),
            resumes: Vec::new(),
            refuse: None,
        }
    }

    fn read_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::ArrivalEnded { topic, host, state, .. } => {
                    SubscribeManager::ended(self.others.get_mut(&topic).unwrap_or(&mut self.topic), host, state);
                }
                Event::Evicted { topic, host } => {
                    self.manager.evict(self.others.get_mut(&topic).unwrap_or(&mut self.topic), host);
                }
                Event::Warning { text, .. } => self.warnings.push(text),
                _ => {}
            }
        }
    }

    fn is_connected(&self) -> bool {
        matches!(self.topic.inbound.get(&FROM), Some(Inbound::Active(_)))
    }

    /// Answers a ring request.
    fn offer(&mut self, request: &RingRequest) -> Result<RingOffer, RingRefusal> {
        self.read_events();
        self.manager.offer(&mut self.topic, request)
    }

    /// Replaces the manager by a successor with the same identity, which has the segment only.
    fn restart(&mut self) {
        let topic = &self.topic;
        let mut adopted = Topic::of_segment(topic.key.clone(), &topic.type_name, topic.id, topic.segment.clone(), TO);
        for slot in topic.subscribers.keys() {
            let qos = SubscriberQos::default();
            adopted.subscribers.insert(*slot, LocalSubscriber { qos, event: None });
        }
        let (config, backend) = (self.config.clone(), self.memory.backend().clone());
        *self = Self::new(&config, backend, adopted);
    }
}

type Alter = Box<dyn Fn(&mut RingOffer) + Send>;

/// The receiving manager dies, and its successor drains its port.
fn receiver_dies(pair: &Pair) {
    let mut to = pair.to();
    let ports: Vec<_> = to.topic.slot_table.active_publishers().collect();
    ports.into_iter().for_each(|port| to.topic.drain(port));
    to.restart();
}

/// The subscribing host as the senders see it.
struct Peer {
    reachable: AtomicBool,
    /// Changes its offers on the way.
    alter: Mutex<Option<Alter>>,
    /// Where its answers seem to come from.
    seen: Mutex<Seen>,
    host: Mutex<Subscribing>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Peer")
    }
}

impl Ask for Peer {
    fn ask(&self, host: HostId, request: &RingRequest, _: Duration) -> Result<(RingOffer, Seen), RingError> {
        if !self.reachable.load(Ordering::Acquire) {
            return Err(RingError::TimedOut(host, 0));
        }
        let mut to = self.host.lock().unwrap();
        if let Some(refusal) = &to.refuse {
            return Err(refusal.clone().into());
        }
        let mut offer = to.offer(request)?;
        if let Some(alter) = &*self.alter.lock().unwrap() {
            alter(&mut offer);
        }
        to.resumes.push(offer.resume.clone());
        Ok((offer, self.seen.lock().unwrap().clone()))
    }
}

struct Pair {
    peer: Arc<Peer>,
    publish: PublishManager,
    events: Receiver<Event>,
    topic: Topic,
    directory: Directory,
    port: WriterPort,
    pool: Arc<dyn PoolMemory>,
    sequence: u64,
    depth: u32,
    /// How many messages the publisher keeps for late joiners.
    history: u32,
}

impl Pair {
    /// A publisher on one host, whose future subscriber on the other host wants its last `depth` messages.
    fn new(backend: Arc<dyn Backend>, depth: u32, peer_timeout_ms: u64) -> Self {
        Self::between(backend.clone(), backend, depth, peer_timeout_ms)
    }

    fn between(backend: Arc<dyn Backend>, other: Arc<dyn Backend>, depth: u32, peer_timeout_ms: u64) -> Self {
        Self::configured(backend, other, depth, Config { peer_timeout_ms, ..Config::default() })
    }

    fn configured(backend: Arc<dyn Backend>, other: Arc<dyn Backend>, depth: u32, config: Config) -> Self {
        let config = Arc::new(Config {
            ring_bytes: 64 << 10,
            chunk_bytes: config.chunk_bytes.min(8 << 10),
            arrival_pool_bytes: 1 << 20,
            network: "loopback".to_owned(),
            ..config
        });
        let key = TopicKey::new(0, "pair").unwrap();
        let create = || Topic::create(key.clone(), "rgaps/Bytes").unwrap();
        let to = Subscribing::new(&config, other, create());
        let mut seen = Seen::default();
        seen.add([127, 0, 0, 1].into(), [127, 0, 0, 1].into());
        let reachable = AtomicBool::new(true);
        let peer = Arc::new(Peer { reachable, alter: Mutex::default(), seen: seen.into(), host: Mutex::new(to) });
        let (mailbox, events, _) = Mailbox::new().unwrap();
        let publish = PublishManager::new(
            config.clone(),
            (FROM, "from".to_owned()),
            peer.clone(),
            backend.clone(),
            mailbox,
            Arc::new(RdmaDevices::new(&config)),
            Budgets::new(&config.limits),
        );
        let mut topic = create();
        let slot =
            topic.slot_table.admit_publisher(&PublisherSpec { publisher: PUBLISHER, ..Default::default() }).unwrap();
        let memory = DeviceMemoryManager::new(backend);
        let pool = memory.create(&topic.pools, slot, 1 << 20).unwrap();
        topic.pools.seal(slot).unwrap();
        let right = pool.allocation_right().unwrap();
        let port = WriterPort::new(topic.segment.clone(), slot, right).unwrap();
        let qos = PublisherQos::default();
        topic
            .publishers
            .insert(slot, LocalPublisher { qos: PublisherQos { history_depth: depth, ..qos }, pool_bytes: 1 << 20 });
        let directory = Directory::default();
        Self { peer, publish, events, topic, directory, port, pool, sequence: 0, depth, history: 0 }
    }

    fn to(&self) -> MutexGuard<'_, Subscribing> {
        self.peer.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscriber(&self) -> Subscriber {
        self.subscriber_of_depth(60).1
    }

    /// A subscriber whose slot has this depth; 0 is keep-all.
    fn subscriber_of_depth(&self, depth: u32) -> (rgaps_shm::SubscriberSlot, Subscriber) {
        let mut to = self.to();
        let spec = SubscriberSpec { depth, ..Default::default() };
        let slot = to.topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
        let qos = SubscriberQos { history: History::KeepLast(self.depth), ..Default::default() };
        to.topic.subscribers.insert(slot, LocalSubscriber { qos, event: None });
        let pages = to.topic.slot_table.pages(slot).unwrap();
        (slot, Subscriber { reader: ReaderPort::new(to.topic.segment.clone(), pages, false).unwrap() })
    }

    fn endpoint(&self) -> Endpoint {
        let qos = SubscriberQos { history: History::KeepLast(self.depth), ..Default::default() };
        let key = self.topic.key.clone();
        let type_name = self.topic.type_name.clone();
        Endpoint { key, role: Role::Subscriber, type_name, offers: Vec::new(), requests: vec![qos] }
    }

    /// Makes the publisher keep its last `history` messages for late joiners.
    fn latch(&mut self, history: u32) {
        self.history = history;
        for publisher in self.topic.publishers.values_mut() {
            publisher.qos =
                PublisherQos { durability: Durability::TransientLocal, history_depth: history, ..publisher.qos };
        }
    }

    /// Announces the subscribing host's endpoint, or withdraws the host.
    fn announce(&mut self, is_there: bool) {
        if is_there {
            self.directory.host_up(TO, "to").unwrap();
            self.directory.endpoint_up(TO, "token", self.endpoint()).unwrap();
        } else {
            self.directory.endpoint_down(TO, "token");
            self.directory.host_down(TO, "to");
        }
        self.publish.reconcile(&mut self.topic, &self.directory);
        for slot in self.topic.slot_table.active_subscribers() {
            self.port.add_subscriber(self.topic.slot_table.pages(slot).unwrap(), None);
        }
    }

    /// Sends a message of which each byte depends on the sequence and the byte's offset.
    fn send(&mut self, bytes: u64) {
        self.try_send(bytes).unwrap();
    }

    /// Like `send`. An error if the pool is full of messages that the sender keeps.
    fn try_send(&mut self, bytes: u64) -> Result<(), LoanError> {
        self.try_publish(bytes).map(|()| self.wake_sender())
    }

    /// Publishes without waking the sender.
    fn publish_one(&mut self, bytes: u64) {
        self.try_publish(bytes).unwrap();
    }

    fn try_publish(&mut self, bytes: u64) -> Result<(), LoanError> {
        let loan = self.port.loan(bytes, Exhaustion::DropOldest)?;
        self.sequence += 1;
        let mapping = self.pool.as_host().unwrap().mapping();
        mapping.copy_in(loan.offset(), &content(self.sequence, bytes)).unwrap();
        let info = MessageInfo {
            publisher: PUBLISHER,
            sequence: self.sequence,
            source_host: FROM.0,
            bytes,
            ..MessageInfo::default()
        };
        self.port.publish(loan, &MessageSpec { info, meta: b"meta", history_depth: self.history }).unwrap();
        Ok(())
    }

    fn wake_sender(&self) {
        self.topic.outbound.values().for_each(|outbound| outbound.control.event().signal().unwrap());
    }

    fn status(&self) -> String {
        self.topic.outbound.get(&TO).map(|outbound| outbound.control.status()).unwrap_or_default()
    }

    /// Cuts the cable, and waits until both sides have noticed.
    fn cut(&mut self) {
        self.peer.reachable.store(false, Ordering::Release);
        if let Some(Inbound::Active(control)) = self.to().topic.inbound.get(&FROM) {
            control.stop();
        }
        until("the receiver's end of the link", || {
            self.to().read_events();
            !self.to().is_connected()
        });
        until("the sender's end of the link", || self.status().contains("not connected"));
    }

    /// Replaces the sending manager by a successor, which releases its predecessor's slot.
    fn restart_sender(&mut self) {
        for (_, mut outbound) in self.topic.outbound.drain() {
            outbound.stop();
            outbound.join();
            self.topic.slot_table.release_subscriber(outbound.slot);
        }
        self.announce(true);
    }

    fn mend(&mut self) {
        self.peer.reachable.store(true, Ordering::Release);
    }

    /// Checks that the bytes of a message are those that were sent.
    fn check(&self, held: &Held) {
        let pool = self.to().topic.pools.memory(held.pool()).unwrap();
        let MessageInfo { sequence, bytes, .. } = *held.info();
        assert!(pool.shared(held.offset(), bytes).unwrap().to_vec() == content(sequence, bytes), "message {sequence}");
    }

    fn slot(&self) -> Option<rgaps_shm::SubscriberSlot> {
        self.topic.outbound.get(&TO).map(|outbound| outbound.slot)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for outbound in self.topic.outbound.values_mut() {
            outbound.stop();
            outbound.join();
        }
        if let Some(Inbound::Active(control)) = self.to().topic.inbound.get(&FROM) {
            control.stop();
        }
    }
}

struct Subscriber {
    reader: ReaderPort,
}

impl Subscriber {
    fn take(&mut self) -> Held {
        let start = Instant::now();
        loop {
            let mut waiter = self.reader.waiter();
            let _ = waiter.arm();
            if let Some(held) = self.reader.take().unwrap() {
                waiter.disarm();
                return held;
            }
            let _ = waiter.wait(Duration::from_millis(100));
            assert!(start.elapsed() < LIMIT, "no message came");
        }
    }

    /// Takes messages until sequence `last`, and returns their sequences.
    fn sequences_to(&mut self, last: u64) -> Vec<u64> {
        let mut taken = Vec::new();
        while taken.last() != Some(&last) {
            taken.push(self.take().info().sequence);
        }
        taken
    }

    fn lost(&self) -> u64 {
        self.reader.counters().lost
    }
}

fn content(sequence: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|n| (sequence * 37 + n * 7 + (n >> 8)) as u8).collect()
}

fn host() -> Arc<dyn Backend> {
    Arc::new(HostBackend::new())
}

#[test]
fn messages_that_a_sender_lost_during_a_cut_count_as_lost_for_remote_subscribers() {
    let mut pair = Pair::new(host(), 2, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    pair.cut();
    (0..10).for_each(|_| pair.send(100));
    let late = pair.subscriber();
    pair.mend();
    assert_eq!(subscriber.sequences_to(11), [10, 11]);
    assert_eq!((subscriber.lost(), late.lost()), (8, 0), "a later subscriber has lost nothing");
}

#[test]
fn silent_callers_delay_no_sender() {
    // Served one after the other, they would delay it by a minute each.
    let mut pair = Pair::new(host(), 20, 60_000);
    let address = pair.to().manager.addresses()[0];
    let _silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
}

#[test]
fn a_host_that_is_briefly_gone_finds_its_sender_and_misses_nothing() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    (0..3).for_each(|_| pair.send(100));
    assert_eq!(subscriber.sequences_to(3), [1, 2, 3]);
    let slot = pair.slot();
    pair.cut();
    pair.announce(false);
    (0..5).for_each(|_| pair.send(100));
    pair.to().restart();
    pair.mend();
    pair.announce(true);
    assert_eq!(subscriber.sequences_to(8), [4, 5, 6, 7, 8]);
    assert_eq!(pair.to().resumes, [[(PUBLISHER, 3)]], "the successor knows what its predecessor had");
    assert_eq!(pair.slot(), slot, "it is the same sender");
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn a_sender_keeps_as_many_messages_as_later_remote_subscribers_request() {
    let mut pair = Pair::new(host(), 2, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(1);
    subscriber.take();
    pair.cut();
    let all = SubscriberQos { history: History::KeepAll, ..Default::default() };
    let endpoint = Endpoint { requests: vec![all], ..pair.endpoint() };
    pair.directory.endpoint_up(TO, "another token", endpoint).unwrap();
    pair.latch(3);
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    (0..10).for_each(|_| pair.send(1));
    pair.mend();
    assert_eq!(subscriber.sequences_to(11), (2..=11).collect::<Vec<u64>>());
    let to = pair.to();
    let spec = SubscriberSpec { depth: 0, ..Default::default() };
    let slot = to.topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
    let late = ReaderPort::new(to.topic.segment.clone(), to.topic.slot_table.pages(slot).unwrap(), true);
    let late = Subscriber { reader: late.unwrap() }.sequences_to(11);
    // The one before the last three may be about to leave history.
    assert!(late.ends_with(&[9, 10, 11]) && late.len() <= 4, "{late:?}");
}

#[test]
fn a_host_that_stays_away_loses_its_sender() {
    let mut pair = Pair::new(host(), 2, 0);
    let _subscriber = pair.subscriber();
    pair.peer.reachable.store(false, Ordering::Release);
    pair.announce(true);
    pair.announce(false);
    assert!(matches!(pair.events.recv_timeout(LIMIT), Ok(Event::SenderEnded { host: TO, .. })));
}

#[test]
fn a_host_whose_announcements_stop_keeps_its_sender_while_the_link_lives() {
    let mut pair = Pair::new(host(), 20, 2000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.announce(false);
    let over = Instant::now() + Duration::from_millis(2000);
    for sequence in 1.. {
        pair.send(1);
        assert_eq!(subscriber.sequences_to(sequence), [sequence]);
        let is_over = Instant::now() > over;
        pair.publish.reconcile(&mut pair.topic, &pair.directory);
        if is_over {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let is_late = |pair: &Pair| pair.topic.outbound[&TO].is_late(Instant::now());
    assert!(!pair.topic.outbound[&TO].control.should_stop() && !is_late(&pair), "it is connected");
    pair.cut();
    assert!(is_late(&pair), "its grace period begins now");
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    assert!(!pair.topic.outbound[&TO].control.should_stop());
    until("the end of its grace period", || is_late(&pair));
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    assert!(matches!(pair.events.recv_timeout(LIMIT), Ok(Event::SenderEnded { host: TO, .. })));
}

#[test]
fn a_sender_does_not_wait_for_a_host_that_says_it_has_no_subscriber() {
    let mut pair = Pair::new(host(), 2, 3_600_000);
    let _subscriber = pair.subscriber();
    pair.to().refuse = Some(RingRefusal::NoSubscribers("pair".to_owned()));
    pair.announce(true);
    pair.directory.endpoint_down(TO, "token");
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    assert!(matches!(pair.events.recv_timeout(LIMIT), Ok(Event::SenderEnded { host: TO, .. })));
}

#[test]
fn messages_that_arrived_through_a_former_port_do_not_arrive_again() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    (0..3).for_each(|_| pair.send(100));
    assert_eq!(subscriber.sequences_to(3), [1, 2, 3]);
    pair.cut();
    // For the receiver the publisher has left: the port ends, and other messages reuse its entries of the table.
    {
        let mut to = pair.to();
        let Subscribing { manager, topic, .. } = &mut *to;
        manager.end(topic, FROM);
        assert!(topic.inbound.is_empty());
        let slot = topic.slot_table.admit_publisher(&PublisherSpec::default()).unwrap();
        let pool = to.memory.create(&to.topic.pools, slot, 1 << 20).unwrap();
        let right = pool.allocation_right().unwrap();
        let mut local = WriterPort::new(to.topic.segment.clone(), slot, right).unwrap();
        for sequence in 1..=200 {
            let loan = local.loan(1, Exhaustion::Refuse).unwrap();
            let info = MessageInfo { sequence, bytes: 1, ..MessageInfo::default() };
            local.publish(loan, &MessageSpec { info, meta: &[], history_depth: 0 }).unwrap();
            assert_eq!(subscriber.take().info().sequence, sequence);
        }
        assert!(last_received(&to.topic.segment, FROM.0).is_empty());
    }
    pair.send(100);
    pair.mend();
    assert_eq!(subscriber.sequences_to(4), [4]);
    assert_eq!(pair.to().resumes.last(), Some(&vec![(PUBLISHER, 3)]));
}

#[test]
fn a_subscriber_that_joins_right_after_the_last_one_left_gets_the_history() {
    let mut pair = Pair::new(host(), 20, 60_000);
    pair.latch(5);
    let mut early = pair.subscriber();
    pair.announce(true);
    (0..8).for_each(|_| pair.send(100));
    assert_eq!(early.sequences_to(8), [1, 2, 3, 4, 5, 6, 7, 8]);
    until("the acknowledgement", || pair.status().contains("8 messages sent"));
    pair.cut();
    // So quick that the sender never learns that the topic had no subscriber.
    let new = {
        let mut to = pair.to();
        let Subscribing { manager, topic, .. } = &mut *to;
        manager.end(topic, FROM);
        let anew = Topic::create(topic.key.clone(), &topic.type_name).unwrap();
        std::mem::replace(topic, anew)
    };
    let mut late = history::late(&pair);
    pair.mend();
    assert_eq!(late.sequences_to(8), [4, 5, 6, 7, 8]);
    pair.send(100);
    assert_eq!((late.sequences_to(9), late.lost()), (vec![9], 0));
    drop((early, new));
}

#[test]
fn messages_arrive_whole_when_every_copy_is_late_on_both_hosts() {
    let mut pair = Pair::new(Arc::new(DeferredBackend::default()), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    for bytes in [1, 0, 7 << 10, 100_000, 8 << 10, 200_000, 5] {
        pair.send(bytes);
        let held = subscriber.take();
        pair.check(&held);
        assert_eq!((held.info().sequence, held.info().copies.staged), (pair.sequence, 1));
    }
}

#[test]
fn chunks_arrive_during_copies_and_no_message_is_published_before_its_copies_end() {
    let late = DeferredBackend::default();
    let mut pair = Pair::between(host(), Arc::new(late.clone()), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    late.stall();
    pair.send(20_000);
    until("all three chunks", || late.waiting() == 3);
    assert!(subscriber.reader.take().unwrap().is_none());
    late.go_on();
    pair.check(&subscriber.take());
}

#[test]
fn chunks_are_staged_ahead_and_no_chunk_is_sent_before_its_copy_ends() {
    let late = DeferredBackend::default();
    let mut pair = Pair::between(Arc::new(late.clone()), host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    late.stall();
    pair.send(100_000);
    pair.send(10);
    until("eight chunks of the first message and the second one", || late.waiting() == 9);
    assert!(pair.status().contains(" 0 messages sent") && subscriber.reader.take().unwrap().is_none());
    late.go_on();
    (0..2).for_each(|_| pair.check(&subscriber.take()));
}
