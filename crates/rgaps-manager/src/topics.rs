//! The topics of this host: each has a segment, a slot table, and the links with other hosts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rgaps_control::local::Role;
use rgaps_control::runtime::TopicNote;
use rgaps_control::wire::Endpoint;
use rgaps_control::{
    Durability, EndpointSlot, HostId, LogRateLimit, PublisherQos, PublisherSlot, SubscriberQos, SubscriberSlot,
    TopicId, TopicKey,
};
use rgaps_os::EventFd;
use rgaps_shm::manager::arrival_records::{ArrivalRecords, DEPARTED_HOSTS_MAX, PortHistory, RecordedArrival};
use rgaps_shm::manager::last_received::{LastReceived, last_in_ports, last_published, last_received_by_host};
use rgaps_shm::segment::AttachError;
use rgaps_shm::{Segment, SlotTable};

use crate::device_memory::Pools;
use crate::inbound::Inbound;
use crate::outbound::Outbound;
use crate::received::Received;

/// Hosts without a port that each topic remembers; the longest silent one is forgotten first.
pub(crate) const DEPARTED_MAX: usize = DEPARTED_HOSTS_MAX as usize;

/// A publisher of this host.
#[derive(Clone, Debug)]
pub(crate) struct LocalPublisher {
    pub(crate) qos: PublisherQos,
    pub(crate) pool_bytes: u64,
}

/// A subscriber of this host.
#[derive(Debug)]
pub(crate) struct LocalSubscriber {
    pub(crate) qos: SubscriberQos,
    pub(crate) event: Option<Arc<EventFd>>,
}

/// A topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) key: TopicKey,
    pub(crate) id: TopicId,
    pub(crate) type_name: String,
    pub(crate) segment: Arc<Segment>,
    pub(crate) slot_table: SlotTable,
    pub(crate) pools: Pools,
    pub(crate) publishers: HashMap<PublisherSlot, LocalPublisher>,
    pub(crate) subscribers: HashMap<SubscriberSlot, LocalSubscriber>,
    /// Senders, by subscribing host.
    pub(crate) outbound: HashMap<HostId, Outbound>,
    /// Subscribing hosts without a sender, each with the reason that users are shown.
    pub(crate) without_sender: BTreeMap<HostId, String>,
    /// Arrivals, by publishing host.
    pub(crate) inbound: HashMap<HostId, Inbound>,
    /// Which messages have arrived, for hosts whose arrival has ended.
    pub(crate) departed: HashMap<HostId, Received>,
    /// The segment's records of what has arrived.
    pub(crate) arrived: ArrivalRecords,
    /// The endpoints announced to other hosts.
    pub(crate) announced: Vec<Endpoint>,
    /// The note for a successor, as it was written last; `None` if it could not be written or has been removed.
    pub(crate) noted: Option<TopicNote>,
    /// Mismatches that were reported already.
    pub(crate) reported: BTreeSet<String>,
    pub(crate) mismatches_logged: LogRateLimit,
}

/// All topics, by identity and by name.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    by_id: HashMap<TopicId, Topic>,
    by_key: BTreeMap<TopicKey, TopicId>,
}

impl Topics {
    pub(crate) fn get(&self, id: &TopicId) -> Option<&Topic> {
        self.by_id.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &TopicId) -> Option<&mut Topic> {
        self.by_id.get_mut(id)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Topic> {
        self.by_id.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Topic> {
        self.by_id.values_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn id_of(&self, key: &TopicKey) -> Option<TopicId> {
        self.by_key.get(key).copied()
    }

    /// Topics after `after`, in the order of their names.
    pub(crate) fn after(&self, after: Option<&TopicKey>) -> impl Iterator<Item = &Topic> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let ids = self.by_key.range::<TopicKey, _>((from, Bound::Unbounded)).map(|(_, id)| id);
        ids.filter_map(|id| self.by_id.get(id))
    }

    pub(crate) fn insert(&mut self, topic: Topic) {
        self.by_key.insert(topic.key.clone(), topic.id);
        self.by_id.insert(topic.id, topic);
    }

    pub(crate) fn remove(&mut self, id: &TopicId) -> Option<Topic> {
        let topic = self.by_id.remove(id)?;
        self.by_key.remove(&topic.key);
        Some(topic)
    }
}

impl Topic {
    /// Wakes senders for what nobody may have told them. Call it regularly: a sender of an idle topic looks only when it is woken.
    pub(crate) fn wake_senders_for_untold(&mut self) {
        let end = self.segment.queue().end();
        for outbound in self.outbound.values_mut() {
            let words = self.segment.subscriber(outbound.slot.index);
            let is_keep_last = words.is_some_and(|words| words.depth.load(Ordering::Relaxed) > 0);
            outbound.wake_for_untold(end, is_keep_last);
        }
    }

    pub(crate) fn create(key: TopicKey, type_name: &str) -> Result<Self, AttachError> {
        let id = TopicId::random().map_err(|source| AttachError::Map(rgaps_os::MapError::Os { bytes: 0, source }))?;
        let segment = Segment::create(id.0)?;
        Ok(Self::of_segment(key, type_name, id, Arc::new(segment), HostId::default()))
    }

    /// A topic with a segment: a new one, or one that a predecessor made. What it says of messages from other hosts than `own` is taken over.
    pub(crate) fn of_segment(key: TopicKey, type_name: &str, id: TopicId, segment: Arc<Segment>, own: HostId) -> Self {
        let slot_table = SlotTable::new(segment.clone());
        let (arrived, mut told) = ArrivalRecords::take_over(segment.clone());
        // Now, before publishers of this host reuse the entries that say it.
        for (host, last) in last_received_by_host(&segment).into_iter().filter(|(host, _)| *host != own.0) {
            let of_host = told.entry(host).or_default();
            for (publisher, last) in last {
                // What no record says was published just before the death, or there was no record left: assume that the last port had it.
                let history = PortHistory::default();
                let unknown = LastReceived { sequence: 0, ..last };
                let known =
                    of_host.entry(publisher).or_insert(RecordedArrival { last: unknown, history, record: None });
                if known.last.sequence < last.sequence {
                    known.last = last;
                    known.history.note(last.sequence);
                }
            }
        }
        // A latched message that was published again just before the death.
        for ((host, publisher), sequence) in last_in_ports(&segment) {
            let known = told.get_mut(&host).and_then(|of_host| of_host.get_mut(&publisher));
            if let Some(known) = known.filter(|known| known.history.last_in_port() < sequence) {
                known.history.note(sequence);
            }
        }
        // The dead manager's ports have ended with it.
        let ended_ports = if told.is_empty() { 0 } else { slot_table.end_port() };
        let mut told: Vec<_> = told.into_iter().collect();
        told.sort_by_key(|(_, of_host)| Reverse(of_host.values().map(|arrival| arrival.last.position).max()));
        for (host, forgotten) in told.split_off(told.len().min(DEPARTED_MAX)) {
            let records = forgotten.values().filter_map(|arrival| arrival.record);
            records.for_each(|record| arrived.free_record(host, record));
        }
        let recalled = told.into_iter().map(|(host, told)| {
            let mut received = Received::new(host, arrived.clone());
            received.take_over(told);
            received.end_port(ended_ports);
            (HostId(host), received)
        });
        let departed = recalled.collect();
        Self {
            key,
            id,
            type_name: type_name.to_owned(),
            pools: Pools::new(slot_table.clone()),
            slot_table,
            segment,
            publishers: HashMap::new(),
            subscribers: HashMap::new(),
            outbound: HashMap::new(),
            without_sender: BTreeMap::new(),
            inbound: HashMap::new(),
            departed,
            arrived,
            announced: Vec::new(),
            noted: None,
            reported: BTreeSet::new(),
            mismatches_logged: LogRateLimit::default(),
        }
    }

    /// This host's publishers, as announced to other hosts.
    pub(crate) fn publisher_endpoint(&self) -> Option<Endpoint> {
        let mut offers: Vec<PublisherQos> = Vec::new();
        for publisher in self.publishers.values() {
            if !offers.contains(&publisher.qos) {
                offers.push(publisher.qos);
            }
        }
        (!offers.is_empty()).then(|| self.endpoint(Role::Publisher, offers, Vec::new()))
    }

    /// This host's subscribers, as announced to other hosts.
    pub(crate) fn subscriber_endpoint(&self) -> Option<Endpoint> {
        let mut requests: Vec<SubscriberQos> = Vec::new();
        for subscriber in self.subscribers.values() {
            if !requests.contains(&subscriber.qos) {
                requests.push(subscriber.qos);
            }
        }
        (!requests.is_empty()).then(|| self.endpoint(Role::Subscriber, Vec::new(), requests))
    }

    /// Whether this manager itself occupies a slot, for an arrival or a sender.
    pub(crate) fn is_own(&self, slot: EndpointSlot) -> bool {
        match slot {
            EndpointSlot::Publisher(slot) => self.inbound.values().any(|inbound| inbound.slot() == Some(slot)),
            EndpointSlot::Subscriber(slot) => self.outbound.values().any(|outbound| outbound.slot == slot),
        }
    }

    /// Whether it has no publisher, no subscriber, no link and no draining slot any more.
    pub(crate) fn is_over(&self) -> bool {
        self.publishers.is_empty()
            && self.subscribers.is_empty()
            && self.outbound.is_empty()
            && self.inbound.is_empty()
            && self.slot_table.draining().next().is_none()
    }

    /// Bytes of the largest message that its publishers can send.
    pub(crate) fn message_bytes_max(&self) -> u64 {
        self.publishers.values().map(|publisher| publisher.pool_bytes).max().unwrap_or(0)
    }

    /// Bytes of memory that it occupies on this host.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.slot_table.resident_bytes() + self.pools.resident_bytes()
    }

    /// The eventfd of a subscriber, if it has one: a client's subscriber or a sender.
    pub(crate) fn event_of(&self, slot: SubscriberSlot) -> Option<&Arc<EventFd>> {
        let local = self.subscribers.get(&slot).and_then(|subscriber| subscriber.event.as_ref());
        let outbound = || self.outbound.values().find(|outbound| outbound.slot == slot);
        local.or_else(|| outbound().map(|outbound| outbound.control.event()))
    }

    /// Frees the messages of draining publishers that no subscriber needs, and each pool with its last message.
    pub(crate) fn finish_draining(&self) {
        let draining: Vec<PublisherSlot> = self.slot_table.draining().collect();
        for slot in draining {
            if self.slot_table.finish_draining(slot) == 0 {
                self.remove_pool(slot);
            }
        }
    }

    /// Removes a pool that no message uses.
    fn remove_pool(&self, slot: PublisherSlot) {
        self.pools.remove(slot);
        self.wake_senders();
    }

    /// Wakes the senders, which may have registered memory with a device, which keeps it.
    pub(crate) fn wake_senders(&self) {
        self.outbound.values().for_each(|outbound| drop(outbound.control.event().signal()));
    }

    /// Drains a publisher that left or died, or an arrival that ended for good. Signals the eventfds of all subscribers, since it may have published
    /// without knowing them.
    pub(crate) fn drain(&self, slot: PublisherSlot) {
        // Read before the entries that say so are given back.
        let last = last_published(&self.segment, slot);
        self.slot_table.drain_publisher(slot);
        if let Some((publisher, last)) = last {
            self.outbound.values().for_each(|outbound| outbound.control.mark_left(publisher, last));
        }
        let local = self.subscribers.values().filter_map(|subscriber| subscriber.event.as_ref());
        local.chain(self.outbound.values().map(|outbound| outbound.control.event())).for_each(|event| {
            let _ = event.signal();
        });
        if self.slot_table.finish_draining(slot) == 0 {
            self.remove_pool(slot);
        }
    }

    fn endpoint(&self, role: Role, mut offers: Vec<PublisherQos>, mut requests: Vec<SubscriberQos>) -> Endpoint {
        // Sorted, so that equal sets give equal announcements.
        offers.sort_by_key(|offer| format!("{offer:?}"));
        requests.sort_by_key(|request| format!("{request:?}"));
        Endpoint { key: self.key.clone(), role, type_name: self.type_name.clone(), offers, requests }
    }
}

/// Entries of the message table for one publisher: `message_count`, and the messages that it keeps for late joiners.
pub(crate) fn messages_wanted(message_count: u32, qos: &PublisherQos) -> u32 {
    let kept = if qos.durability == Durability::TransientLocal { qos.history_depth } else { 0 };
    message_count.saturating_add(kept)
}

#[cfg(test)]
mod tests {
    use rgaps_device::host::HostBackend;
    use rgaps_link::MessageName;
    use rgaps_shm::words::queue::Position;
    use rgaps_shm::{Exhaustion, MessageInfo, MessageSpec, PublisherSpec, WriterPort};

    use super::*;
    use crate::device_memory::DeviceMemoryManager;
    use crate::received::Verdict;

    const HOST: [u8; 16] = [7; 16];

    fn successor(topic: &Topic) -> Topic {
        Topic::of_segment(topic.key.clone(), &topic.type_name, topic.id, topic.segment.clone(), HostId::default())
    }

    #[test]
    fn a_successor_remembers_the_hosts_that_were_heard_last_and_frees_other_records() {
        let topic = Topic::create(TopicKey::new(0, "many").unwrap(), "rgaps/Bytes").unwrap();
        let of = |n: u8| [n; 16];
        let hosts: Vec<Received> = (1..=100)
            .map(|n| {
                let mut received = Received::new(of(n), topic.arrived.clone());
                received.note(MessageName { publisher: 1, sequence: 1 }, Position(u64::from(n)));
                received
            })
            .collect();
        let successor = successor(&topic);
        assert_eq!(successor.departed.len(), DEPARTED_MAX);
        assert!((37..=100).all(|n| successor.departed.contains_key(&HostId(of(n)))));
        assert_eq!(ArrivalRecords::take_over(topic.segment.clone()).1.len(), DEPARTED_MAX);
        drop(hosts);
    }

    #[test]
    fn a_latched_message_that_came_again_just_before_a_death_was_given_to_late_joiners() {
        let topic = Topic::create(TopicKey::new(0, "again").unwrap(), "rgaps/Bytes").unwrap();
        let name = MessageName { publisher: 1, sequence: 8 };
        let mut received = Received::new(HOST, topic.arrived.clone());
        received.note(name, Position(0));
        received.end_port(topic.slot_table.end_port());
        let had_before = |topic: &Topic| match topic.departed[&HostId(HOST)].judge(name) {
            Verdict::Seen(_, ports) => ports,
            verdict => panic!("{verdict:?}"),
        };
        assert_eq!(had_before(&successor(&topic)), 1, "no later port had it");
        let spec = PublisherSpec { remote: true, ..Default::default() };
        let slot = topic.slot_table.admit_publisher(&spec).unwrap();
        let memory = DeviceMemoryManager::new(Arc::new(HostBackend::new()));
        let pool = memory.create(&topic.pools, slot, 1 << 20).unwrap();
        let mut port = WriterPort::new(topic.segment.clone(), slot, pool.allocation_right().unwrap()).unwrap();
        let loan = port.loan(1, Exhaustion::Refuse).unwrap();
        let info = MessageInfo { publisher: 1, sequence: 8, source_host: HOST, bytes: 1, ..MessageInfo::default() };
        let spec = MessageSpec { info, meta: &[], history_depth: 5 };
        port.publish_again(loan, &spec, Position(0), 1).unwrap();
        // The manager dies before it notes that.
        assert_eq!(had_before(&successor(&topic)), 3, "the second port had it, and a third one has ended");
    }
}
