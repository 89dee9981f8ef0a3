//! Handles the requests of clients, and answers them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rgaps_control::client_lock::NotedClient;
use rgaps_control::local::{
    Advertised, Body, HELD_LOCKS_MAX, Notice, PROTOCOL_VERSION, Refusal, Reply, Role, Subscribed, TopicSummary, Welcome,
};
use rgaps_control::names::check_type;
use rgaps_control::wire::Endpoint;
use rgaps_control::{EndpointSlot, LockId, PublisherQos, PublisherSlot, SubscriberQos, TopicId, TopicKey};
use rgaps_device::PoolMemory;
use rgaps_os::{Holder, pidfd};
use rgaps_shm::layout::{DEPTH_MAX, LAYOUT_VERSION};
use rgaps_shm::manager::slot_table::{ENTRIES_RESERVED, Full, NotAdmitted};
use rgaps_shm::words::queue::MESSAGES_MAX;
use rgaps_shm::{PublisherSpec, SubscriberSpec};

use crate::clients::{Client, ClientId, Occupied};
use crate::inbound::Inbound;
use crate::manager::Manager;
use crate::refusals::exhausted;
use crate::topics::{LocalPublisher, LocalSubscriber, Topic, messages_wanted};

/// Bytes of topic summaries in one answer: half of what a message holds.
const TOPIC_PAGE_BYTES: usize = 32 << 10;
/// Topics in one answer.
const TOPIC_PAGE_MAX: usize = 256;
/// Lines of each kind that a topic's summary has.
const SUMMARY_LINES_MAX: usize = 24;
/// Bytes of these lines. There are four kinds, and a message has 64 KiB.
const SUMMARY_BYTES_MAX: usize = 14 << 10;

/// An answer and the file descriptors sent with it.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Answer {
    pub(crate) fn bare(reply: Reply) -> Self {
        Self { reply, fds: Vec::new() }
    }
}

/// What became of a request.
pub(crate) enum Outcome {
    /// The answer is there.
    Answered(Result<Answer, Refusal>),
    /// The request waits until a predecessor's clients have handed a topic back; the refusal is the answer if they do not.
    Deferred(Refusal),
}

impl Manager {
    /// Handles one request of a client.
    pub(crate) fn handle(&mut self, client: ClientId, body: &Body, fds: Vec<OwnedFd>) -> Outcome {
        let is_known = self.clients.by_id.get(&client).is_some_and(|client| client.is_locked);
        if !is_known && !matches!(body, Body::Hello { .. } | Body::Locked) {
            return Outcome::Answered(Err(Refusal::Invalid("say hello first".to_owned())));
        }
        if let Body::Advertise { key, .. } | Body::Subscribe { key, .. } | Body::Observe { key } = body
            && let Some(pid) = self.adoption.segment_owner(key)
        {
            return Outcome::Deferred(Refusal::Exhausted(match self.has_left_a_fork(pid) {
                true => format!(
                    "process {pid} has ended, but a process forked from it still has its GPU open, and its streams may still write to {key}: \
                     end the forked process"
                ),
                false => format!(
                    "process {pid} has slots in {key} and has not handed them back to this rgapsd, the successor of the one that gave them: \
                     if that process is stopped, continue it or end it"
                ),
            }));
        }
        if let Body::Pool { topic, slot } = body
            && let Some(pid) = self.adoption.awaited(*topic, (*slot).into())
        {
            return Outcome::Deferred(Refusal::NotFound(match self.has_left_a_fork(pid) {
                true => format!(
                    "process {pid} has ended, and its pool did not come to this rgapsd, the successor of the one that made it"
                ),
                false => format!(
                    "process {pid} has not handed this pool back to this rgapsd, the successor of the one that made it: if that process is \
                     stopped, continue it"
                ),
            }));
        }
        Outcome::Answered(match body {
            Body::Hello { protocol, program, layout, locks } => {
                let versions = check_versions(*protocol, *layout);
                versions.and_then(|()| self.hello(client, program, locks, fds))
            }
            Body::Locked => self.locked(client),
            Body::Advertise { key, type_name, qos, pool_of } => {
                let made = self.advertise(client, key, type_name, *qos, *pool_of);
                made.inspect_err(|_| self.end_if_unused(key))
            }
            Body::PoolMapped { topic, slot } => self.pool_mapped(client, *topic, *slot),
            Body::Subscribe { key, type_name, qos } => {
                let made = self.subscribe(client, key, type_name, *qos);
                made.inspect_err(|_| self.end_if_unused(key))
            }
            Body::Pool { topic, slot } => self.pool(*topic, *slot),
            Body::Commit { topic, slot, slabs } => self.commit(client, *topic, *slot, slabs),
            Body::Trim { topic, slot, offset, bytes } => self.trim(client, *topic, *slot, *offset, *bytes),
            Body::EventFd { topic, slot } => self.event_fd(client, *topic, *slot, fds),
            Body::Subscribers { topic, slots } => self.subscribers(client, *topic, slots),
            Body::Detach { topic, slot } => self.detach(client, Occupied { topic: *topic, slot: *slot }),
            Body::Observe { key } => self.observe(key),
            Body::Topics { after } => Ok(Answer::bare(self.topic_page(after.as_ref()))),
            Body::HandBack { topics } => self.hand_back(client, topics, fds),
            Body::HandedAllBack => self.handed_all_back(client),
        })
    }

    /// Whether a process whose slots are awaited has ended: then they wait for a process forked from it, which keeps its GPU open.
    fn has_left_a_fork(&self, pid: u32) -> bool {
        self.memory.backend().kind().work_outlives_process() && pidfd::is_dead(pid).unwrap_or(false)
    }

    fn hello(&mut self, id: ClientId, program: &str, held: &[LockId], fds: Vec<OwnedFd>) -> Result<Answer, Refusal> {
        let Some(client) = self.clients.by_id.get_mut(&id) else { return Err(gone()) };
        client.identify(fds, program.chars().take(64).collect())?;
        let (pid, mut own) = (client.pid, None);
        self.bound_disconnected(id);
        for lock in held.iter().take(HELD_LOCKS_MAX) {
            let found = self.locks.recognize(&self.host.dir, *lock, pid).map_err(|error| exhausted(&error))?;
            own = found.map(|file| (*lock, file));
            if own.is_some() {
                break;
            }
        }
        let (is_held, mut files) = (own.is_some(), Vec::new());
        let (lock, lock_file) = match own {
            Some(own) => own,
            None => {
                // A client that this manager knows, and whose lock file was removed, needs no spare file descriptor: it is not a new one.
                let is_known = |lock: &LockId| self.adoption.awaits_client(*lock) || self.clients.has_lock(pid, *lock);
                if !held.iter().take(HELD_LOCKS_MAX).any(is_known) {
                    self.check_connections(id).inspect_err(|_| self.clients.forget_process(id))?;
                }
                let (lock, file) = self.host.dir.new_client_lock().map_err(|error| exhausted(&error))?;
                let kept = self.locks.keep(lock, &file);
                let kept = kept.inspect_err(|_| self.locks.forget(&self.host.dir, lock));
                files.push(file.into());
                (lock, kept.map_err(|error| exhausted(&error))?)
            }
        };
        let Some(client) = self.clients.by_id.get_mut(&id) else { return Err(gone()) };
        (client.lock, client.lock_file) = (Some(lock), lock_file);
        client.is_locked = is_held;
        client.held_before = held.iter().take(HELD_LOCKS_MAX).copied().filter(|held| *held != lock).collect();
        if is_held {
            self.record_new_lock(id)?;
        }
        let welcome = Reply::Welcome(Welcome {
            host: self.host.id,
            epoch: self.host.epoch,
            host_name: self.host.name.clone(),
            manager_pid: std::process::id(),
            device: self.host.device.clone(),
            lock,
            lacks: self.host.lacks.clone(),
        });
        Ok(Answer { reply: welcome, fds: files })
    }

    /// A client has one connection: removes its earlier ones, except those that still have slots. A process that was forked from the client may still
    /// have the other end of an earlier one, which shows that it keeps the client's GPU open; so this connection takes these over.
    pub(crate) fn remove_earlier_connections(&mut self, id: ClientId, lock: LockId) {
        let is_earlier = |other: &Client| other.lock == Some(lock) && other.slots.is_empty();
        let earlier = self.clients.by_id.iter().filter(|(other, client)| **other != id && is_earlier(client));
        for earlier in earlier.map(|(earlier, _)| *earlier).collect::<Vec<_>>() {
            self.clients.hand_over_disconnected(earlier, id);
            self.remove(earlier);
        }
    }

    fn locked(&mut self, id: ClientId) -> Result<Answer, Refusal> {
        let Some(client) = self.clients.by_id.get_mut(&id) else { return Err(gone()) };
        let Some(lock) = client.lock else { return Err(Refusal::Invalid("say hello first".to_owned())) };
        let noted = NotedClient { lock, pid: client.pid, file: client.lock_file };
        let holder = self.locks.holder(&self.host.dir, noted).map_err(|error| exhausted(&error))?;
        if holder != Holder::Process(client.pid) {
            return Err(Refusal::Invalid(format!(
                "process {} does not hold the lock that the welcome brought: {holder:?}",
                client.pid
            )));
        }
        client.is_locked = true;
        self.record_new_lock(id)?;
        Ok(Answer::bare(Reply::Done))
    }

    fn advertise(
        &mut self,
        client: ClientId,
        key: &TopicKey,
        type_name: &str,
        qos: PublisherQos,
        pool_of: Option<(TopicId, PublisherSlot)>,
    ) -> Result<Answer, Refusal> {
        let shared = pool_of.map(|(topic, slot)| self.shared_pool(client, topic, slot)).transpose()?;
        let own_bytes = qos.pool_bytes.unwrap_or(self.config.pool_bytes);
        let bytes = shared.as_ref().map_or(own_bytes, |memory| memory.bytes());
        self.check_budgets(client)?;
        if bytes == 0 || bytes > rgaps_control::wire::SIZE_MAX {
            return Err(Refusal::Invalid(format!(
                "a pool of {bytes} B; pool_bytes is from 1 to {}",
                rgaps_control::wire::SIZE_MAX
            )));
        }
        let publisher = rgaps_os::random::<8>().map(u64::from_le_bytes).map_err(|error| exhausted(&error))?;
        let pid = self.pid_of(client);
        let memory = self.memory.clone();
        let messages = messages_wanted(self.config.message_count, &qos);
        let topic = self.topic(key, type_name)?;
        let spec = PublisherSpec { publisher, pid, pool_bytes: bytes, remote: false, messages };
        let slot = topic.slot_table.admit_publisher(&spec);
        let id = topic.id;
        let slot = slot.map_err(|full| self.full(&full, id, Role::Publisher))?;
        let Some(topic) = self.topics.get_mut(&id) else { return Err(no_topic()) };
        let made = match shared {
            Some(memory) => {
                topic.pools.share(slot, memory);
                Ok((None, Vec::new()))
            }
            None => {
                let made = memory.create(&topic.pools, slot, bytes).and_then(|pool| pool.export());
                made.map(|(description, slabs)| (Some(description), slabs))
            }
        };
        let made = made.map_err(|error| exhausted(&error)).and_then(|(description, slabs)| {
            let pool_fds = slabs.len() as u32;
            let mut fds = vec![segment_fd(topic)?];
            fds.extend(slabs);
            let pool = description.map(serde_json::to_value).transpose().map_err(|error| exhausted(&error))?;
            let topic = topic.id;
            Ok((Advertised { topic, slot, publisher, pool, pool_fds }, fds))
        });
        let (advertised, fds) = made.inspect_err(|_| topic.drain(slot))?;
        let id = topic.id;
        topic.publishers.insert(slot, LocalPublisher { qos, pool_bytes: bytes });
        let granted = topic.slot_table.run_entries(slot);
        let own = Endpoint { offers: vec![qos], ..bare_endpoint(topic, Role::Publisher) };
        self.join(client, id, slot.into(), &own)?;
        if granted < messages {
            let text = format!(
                "{key}: this publisher may have {granted} messages at a time, not {messages}: a topic keeps {MESSAGES_MAX} on a host, of \
                 which other publishers have some, and {ENTRIES_RESERVED} are left for each that may still come"
            );
            self.tell(client, id, text);
        }
        Ok(Answer { reply: Reply::Advertised(advertised), fds })
    }

    /// The pool of another publisher of this client.
    fn shared_pool(
        &self,
        client: ClientId,
        topic: TopicId,
        slot: PublisherSlot,
    ) -> Result<Arc<dyn PoolMemory>, Refusal> {
        self.check_occupied(client, Occupied { topic, slot: slot.into() })?;
        let Some(topic) = self.topics.get(&topic) else { return Err(no_topic()) };
        topic.pools.sealed(slot).map_err(|error| Refusal::Invalid(error.to_string()))
    }

    fn pool_mapped(&mut self, client: ClientId, topic: TopicId, slot: PublisherSlot) -> Result<Answer, Refusal> {
        self.check_occupied(client, Occupied { topic, slot: slot.into() })?;
        let Some(topic) = self.topics.get(&topic) else { return Err(no_topic()) };
        topic.pools.seal(slot).map_err(|error| Refusal::Invalid(error.to_string()))?;
        Ok(Answer::bare(Reply::Done))
    }

    fn subscribe(
        &mut self,
        client: ClientId,
        key: &TopicKey,
        type_name: &str,
        qos: SubscriberQos,
    ) -> Result<Answer, Refusal> {
        self.check_budgets(client)?;
        let pid = self.pid_of(client);
        let files = &mut self.clients.by_id.get_mut(&client).ok_or_else(gone)?.files;
        let file = files.with_place().map_err(|error| exhausted(&error))?;
        let topic = self.topic(key, type_name)?;
        let spec = SubscriberSpec { depth: qos.depth(), pid, remote: false };
        let slot = topic.slot_table.admit_subscriber(&spec, &file);
        let id = topic.id;
        let slot = slot.map_err(|error| match error {
            NotAdmitted::Full(full) => self.full(&full, id, Role::Subscriber),
            NotAdmitted::Pages(error) => exhausted(&error),
        })?;
        let Some(topic) = self.topics.get_mut(&id) else { return Err(no_topic()) };
        let place = topic.slot_table.pages(slot).map_or(0, |pages| pages.place());
        let own = file.as_fd().try_clone_to_owned();
        let fds = topic.segment.read_only().and_then(|segment| Ok(vec![segment, own?]));
        let fds = fds.map_err(|error| exhausted(&error)).inspect_err(|_| {
            topic.slot_table.release_subscriber(slot);
        })?;
        topic.subscribers.insert(slot, LocalSubscriber { qos, event: None });
        let own = Endpoint { requests: vec![qos], ..bare_endpoint(topic, Role::Subscriber) };
        self.join(client, id, slot.into(), &own)?;
        self.spread_subscriber(id, slot);
        if qos.depth() > DEPTH_MAX {
            let text = format!(
                "{key}: a depth of {} is more than a topic keeps; this subscriber has {DEPTH_MAX}",
                qos.depth()
            );
            self.tell(client, id, text);
        }
        let subscribed = Subscribed { topic: id, slot, place };
        Ok(Answer { reply: Reply::Subscribed(subscribed), fds })
    }

    fn pool(&self, topic: TopicId, slot: PublisherSlot) -> Result<Answer, Refusal> {
        let Some(topic) = self.topics.get(&topic) else { return Err(no_topic()) };
        let (description, fds) = topic.pools.export(slot).map_err(|error| Refusal::NotFound(error.to_string()))?;
        let description = serde_json::to_value(description).map_err(|error| exhausted(&error))?;
        Ok(Answer { reply: Reply::Pool(description), fds })
    }

    fn commit(&self, client: ClientId, topic: TopicId, slot: PublisherSlot, slabs: &[u32]) -> Result<Answer, Refusal> {
        self.check_occupied(client, Occupied { topic, slot: slot.into() })?;
        let Some(topic) = self.topics.get(&topic) else { return Err(no_topic()) };
        let (slabs, fds) = topic.pools.commit(slot, slabs).map_err(|error| exhausted(&error))?;
        let slabs = serde_json::to_value(slabs).map_err(|error| exhausted(&error))?;
        Ok(Answer { reply: Reply::Slabs(slabs), fds })
    }

    fn trim(
        &self,
        client: ClientId,
        topic: TopicId,
        slot: PublisherSlot,
        offset: u64,
        bytes: u64,
    ) -> Result<Answer, Refusal> {
        self.check_occupied(client, Occupied { topic, slot: slot.into() })?;
        let Some(topic) = self.topics.get(&topic) else { return Err(no_topic()) };
        topic.pools.trim(slot, offset, bytes).map_err(|error| Refusal::Invalid(error.to_string()))?;
        // Publishers of other topics may share the pool.
        self.topics.values().for_each(Topic::wake_senders);
        Ok(Answer::bare(Reply::Done))
    }

    fn detach(&mut self, id: ClientId, occupied: Occupied) -> Result<Answer, Refusal> {
        if self.clients.lock_of(id).is_some_and(|lock| self.adoption.awaits_from(lock, &occupied)) {
            self.adoption.handle_detached(&occupied);
            self.decide();
            return Ok(Answer::bare(Reply::Done));
        }
        self.check_occupied(id, occupied)?;
        if let Some(occupant) = self.clients.occupant(id, &occupied) {
            self.clients.release(occupant, &occupied);
        }
        self.release_slot(occupied);
        Ok(Answer::bare(Reply::Done))
    }

    fn observe(&self, key: &TopicKey) -> Result<Answer, Refusal> {
        let Some(topic) = self.topics.id_of(key).and_then(|id| self.topics.get(&id)) else {
            return Err(Refusal::NotFound(format!("nobody on this host publishes or subscribes to {key}")));
        };
        let reply = Reply::Observed { topic: topic.id, type_name: topic.type_name.clone() };
        // An observer may only read.
        let segment = topic.segment.read_only().map_err(|error| exhausted(&error))?;
        Ok(Answer { reply, fds: vec![segment] })
    }

    /// The topic of a key; created if it does not exist ("first-arrival", Jiang 2026, section 3.2).
    fn topic(&mut self, key: &TopicKey, type_name: &str) -> Result<&mut Topic, Refusal> {
        check_type(type_name).map_err(|error| Refusal::Invalid(error.to_string()))?;
        let id = match self.topics.id_of(key) {
            Some(id) => id,
            None => {
                let topic = Topic::create(key.clone(), type_name).map_err(|error| exhausted(&error))?;
                tracing::info!(topic = %key, type_name, "topic made");
                let id = topic.id;
                self.add_topic(topic);
                id
            }
        };
        let Some(topic) = self.topics.get_mut(&id) else { return Err(no_topic()) };
        if topic.type_name != type_name {
            return Err(Refusal::Type {
                topic: key.to_string(),
                existing: topic.type_name.clone(),
                wanted: type_name.to_owned(),
            });
        }
        Ok(topic)
    }

    /// Adds a publisher or subscriber to a topic, writes the note, and warns the client of QoS mismatches that earlier clients were warned of.
    fn join(&mut self, client: ClientId, id: TopicId, slot: EndpointSlot, own: &Endpoint) -> Result<(), Refusal> {
        let told = self.topics.get(&id).map(|topic| topic.reported.clone()).unwrap_or_default();
        let occupied = Occupied { topic: id, slot };
        self.clients.occupy(client, occupied);
        self.topic_changed(id);
        // A successor frees every slot that is in no note, so a slot that cannot be noted is not given.
        if let Some(why) = self.unnoted.get(&id).cloned() {
            self.clients.release(client, &occupied);
            self.release_slot(occupied);
            return Err(exhausted(&format!(
                "the note of this topic's slots cannot be written, so no slot is given: {why}"
            )));
        }
        let Some(topic) = self.topics.get(&id) else { return Err(no_topic()) };
        let known: Vec<String> = self.mismatches(topic, own).filter(|text| told.contains(text)).collect();
        let Some(client) = self.clients.by_id.get_mut(&client) else { return Err(gone()) };
        // Bounded, since other hosts decide how many there are.
        known.into_iter().take(SUMMARY_LINES_MAX).for_each(|text| client.notify(Notice::Warning { topic: id, text }));
        Ok(())
    }

    fn tell(&mut self, client: ClientId, topic: TopicId, text: String) {
        if let Some(client) = self.clients.by_id.get_mut(&client) {
            client.notify(Notice::Warning { topic, text });
        }
    }

    /// Why publishers or subscribers of this host (`own`) do not match others of the topic, here and on other hosts: one text for each mismatch.
    pub(crate) fn mismatches(&self, topic: &Topic, own: &Endpoint) -> impl Iterator<Item = String> {
        let here = match own.role {
            Role::Publisher => topic.subscriber_endpoint().map(|subscribers| own.mismatches(&subscribers)),
            Role::Subscriber => topic.publisher_endpoint().map(|publishers| publishers.mismatches(own)),
        };
        let key = topic.key.clone();
        let here = here.into_iter().flatten().map(move |mismatch| format!("{key} on this host: {mismatch}"));
        self.network_inbox.announcements().directory().mismatches(own).into_iter().chain(here)
    }

    /// The refusal when no slot is free. It counts the slots that are kept for streams of processes that have ended.
    fn full(&self, full: &Full, topic: TopicId, role: Role) -> Refusal {
        let ended = self.clients.of_topic(topic).filter(|client| client.has_ended);
        let kept =
            ended.flat_map(|client| client.slots.iter()).filter(|slot| slot.topic == topic && slot.role() == role);
        let name = self.topics.get(&topic).map_or("", |topic| topic.key.name());
        Refusal::Exhausted(match kept.count() {
            0 => format!("{name}: {full}"),
            kept => format!(
                "{name}: {full}; {kept} of them belong to processes that have ended, and stay taken while processes forked from those keep \
                 the GPU open: end the forked processes"
            ),
        })
    }

    pub(crate) fn check_occupied(&self, client: ClientId, occupied: Occupied) -> Result<(), Refusal> {
        match self.clients.occupant(client, &occupied) {
            Some(_) => Ok(()),
            None => Err(Refusal::NotFound(format!("this client does not have {} of that topic", occupied.slot))),
        }
    }

    pub(crate) fn pid_of(&self, client: ClientId) -> u32 {
        self.clients.by_id.get(&client).map_or(0, |client| client.pid)
    }

    /// As many of the topics after `after` as a message holds. The cost depends on the length of the answer, not on the number of topics.
    fn topic_page(&self, after: Option<&TopicKey>) -> Reply {
        let own = self.topics.after(after).take(TOPIC_PAGE_MAX).map(|topic| (topic.key.clone(), None));
        let announcements = self.network_inbox.announcements();
        let of_others = announcements.directory().topics(after).take(TOPIC_PAGE_MAX);
        let mut keys: BTreeMap<TopicKey, Option<String>> =
            of_others.map(|(key, type_name)| (key.clone(), Some(type_name.to_owned()))).collect();
        drop(announcements);
        keys.extend(own);
        let (mut bytes, mut topics, known) = (0, Vec::new(), keys.len());
        // Only the first TOPIC_PAGE_MAX of both lists together: beyond these, either list may be incomplete.
        for (key, of_others) in keys.into_iter().take(TOPIC_PAGE_MAX) {
            let topic = self.topics.id_of(&key).and_then(|id| self.topics.get(&id));
            let summary = match (topic, of_others) {
                (Some(topic), _) => self.summary(topic),
                (None, type_name) => self.summary_of_others(key, type_name.unwrap_or_default()),
            };
            bytes += serde_json::to_string(&summary).map_or(usize::MAX / 2, |text| text.len());
            if bytes > TOPIC_PAGE_BYTES && !topics.is_empty() {
                return Reply::Topics { topics, more: true };
            }
            topics.push(summary);
        }
        Reply::Topics { topics, more: known >= TOPIC_PAGE_MAX }
    }

    fn hosts_with(&self, key: &TopicKey, role: Role) -> Vec<String> {
        self.network_inbox.announcements().directory().hosts_with(key, role)
    }

    fn summary_of_others(&self, key: TopicKey, type_name: String) -> TopicSummary {
        TopicSummary {
            type_name,
            publishers: 0,
            subscribers: 0,
            publishing_hosts: shortened(self.hosts_with(&key, Role::Publisher)),
            subscribing_hosts: shortened(self.hosts_with(&key, Role::Subscriber)),
            mismatches: Vec::new(),
            links: Vec::new(),
            resident_bytes: 0,
            lost: 0,
            key,
        }
    }

    fn summary(&self, topic: &Topic) -> TopicSummary {
        let with_own = |role, own: bool| {
            let mut hosts = self.hosts_with(&topic.key, role);
            if own {
                hosts.insert(0, format!("{} (this host)", self.host.name));
            }
            hosts
        };
        let mut links: Vec<String> = topic.outbound.values().map(|outbound| outbound.control.status()).collect();
        links.extend(topic.inbound.values().map(Inbound::status));
        links.extend(topic.without_sender.values().cloned());
        TopicSummary {
            key: topic.key.clone(),
            type_name: topic.type_name.clone(),
            publishers: topic.publishers.len() as u32,
            subscribers: topic.subscribers.len() as u32,
            publishing_hosts: shortened(with_own(Role::Publisher, !topic.publishers.is_empty())),
            subscribing_hosts: shortened(with_own(Role::Subscriber, !topic.subscribers.is_empty())),
            mismatches: shortened(topic.reported.iter().cloned().collect()),
            links: shortened(links),
            resident_bytes: topic.resident_bytes(),
            lost: topic.slot_table.lost(),
        }
    }

    /// Sends an answer. If it cannot be sent, releases the slot that it would have given, since the client does not know of it.
    pub(crate) fn answer(&mut self, id: ClientId, request: u64, outcome: Result<Answer, Refusal>) {
        let Some(client) = self.clients.by_id.get_mut(&id) else { return };
        let (reply, fds) = match outcome {
            Ok(answer) => (Ok(answer.reply), answer.fds),
            Err(refusal) => (Err(refusal), Vec::new()),
        };
        let given = match &reply {
            Ok(Reply::Advertised(made)) => Some(Occupied { topic: made.topic, slot: made.slot.into() }),
            Ok(Reply::Subscribed(made)) => Some(Occupied { topic: made.topic, slot: made.slot.into() }),
            _ => None,
        };
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if !client.reply(request, reply, &borrowed)
            && let Some(occupied) = given
        {
            self.clients.release(id, &occupied);
            self.release_slot(occupied);
        }
    }
}

/// Client and manager of a host must have the same versions; the refusal names both.
fn check_versions(protocol: u32, layout: u32) -> Result<(), Refusal> {
    match (protocol, layout) {
        (PROTOCOL_VERSION, LAYOUT_VERSION) => Ok(()),
        (PROTOCOL_VERSION, layout) => Err(Refusal::Layout { manager: LAYOUT_VERSION, client: layout }),
        (protocol, _) => Err(Refusal::Protocol { manager: PROTOCOL_VERSION, client: protocol }),
    }
}

fn bare_endpoint(topic: &Topic, role: Role) -> Endpoint {
    let (key, type_name) = (topic.key.clone(), topic.type_name.clone());
    Endpoint { key, role, type_name, offers: Vec::new(), requests: Vec::new() }
}

fn segment_fd(topic: &Topic) -> Result<OwnedFd, Refusal> {
    topic.segment.as_fd().try_clone_to_owned().map_err(|error| exhausted(&error))
}

fn gone() -> Refusal {
    Refusal::Invalid("the connection is gone".to_owned())
}

pub(crate) fn no_topic() -> Refusal {
    Refusal::NotFound("there is no such topic; it has ended".to_owned())
}

/// The first lines, as many as a summary may have, and a line with the number of the others.
fn shortened(mut lines: Vec<String>) -> Vec<String> {
    let mut bytes = 0;
    let mut fits = |line: &String| {
        bytes += serde_json::to_string(line).map_or(usize::MAX / 2, |text| text.len());
        bytes <= SUMMARY_BYTES_MAX
    };
    let shown = lines.iter().take(SUMMARY_LINES_MAX).take_while(|line| fits(line)).count();
    let more = lines.len() - shown;
    lines.truncate(shown);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_control::local::{MESSAGE_BYTES_MAX, ToClient};

    #[test]
    fn a_topics_summary_fits_a_message_whatever_others_say() {
        let lines = |bytes: usize| shortened(vec!["\\".repeat(bytes); 100]);
        for bytes in [1, 300, 1000, 100_000] {
            let summary = TopicSummary {
                key: TopicKey::new(u32::MAX, &"x".repeat(200)).unwrap(),
                type_name: "x".repeat(255),
                publishers: u32::MAX,
                subscribers: u32::MAX,
                publishing_hosts: lines(bytes),
                subscribing_hosts: lines(bytes),
                mismatches: lines(bytes),
                links: lines(bytes),
                resident_bytes: u64::MAX,
                lost: u64::MAX,
            };
            let reply = Ok(Reply::Topics { topics: vec![summary], more: true });
            let text = serde_json::to_string(&ToClient::Reply { id: u64::MAX, reply }).unwrap();
            assert!(text.len() <= MESSAGE_BYTES_MAX, "{} B", text.len());
        }
        assert_eq!(lines(1).len(), SUMMARY_LINES_MAX + 1);
        assert_eq!(lines(100_000), ["and 100 more"]);
    }
}
