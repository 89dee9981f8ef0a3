//! The manager's one thread that decides. It sleeps on its socket, the sockets and pidfds of its clients, and its mailbox. What wakes it changes the
//! manager's state; `topic_changed` then starts and ends what follows from that state.
//!
//! Each turn serves clients first, a few requests each, and then a bounded share of what workers and the network report. So clients wait for a
//! bounded time, however much the others report. A turn costs what it serves, plus a look at each client. Work that looks at each topic is done in
//! `tick`, however many turns there are.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rgaps_control::client_lock::ClientLocks;
use rgaps_control::local::{Body, LocalError, Packet, Request};
use rgaps_control::network::Network;
use rgaps_control::runtime::TopicNote;
use rgaps_control::wire::Endpoint;
use rgaps_control::{Config, EndpointSlot, HostId, TopicId, TopicKey};
use rgaps_os::{EventFd, closing};
use rustix::event::{PollFd, PollFlags};

use crate::adoption::{Adoption, NotedSlot};
use crate::budgets::Budgets;
use crate::clients::{Client, ClientId, Clients, Occupied};
use crate::deferred::DeferredRequests;
use crate::device_memory::DeviceMemoryManager;
use crate::event::Event;
use crate::network_inbox::NetworkInbox;
use crate::outbound::Outbound;
use crate::publish::PublishManager;
use crate::refusals::exhausted;
use crate::runtime_files::RuntimeFiles;
use crate::state::{Departures, NetworkReports, ThisHost, WordsSearch};
use crate::subscribe::SubscribeManager;
use crate::topics::{Topic, Topics};

/// Requests of a client before others have their turn.
const REQUESTS_A_TURN: usize = 8;
/// New clients that are accepted before others are served.
const ACCEPTS_A_TURN: usize = 16;
/// Topics for which a tick tries again to start senders.
const RELINKS_A_TICK: usize = 4;
/// Events of workers before clients have their turn again.
const EVENTS_A_TURN: usize = 32;
/// How often the manager looks at what no file descriptor reports: draining pools, offers, deaths of clients that are not connected, idleness.
const TICK: Duration = Duration::from_millis(50);
const TICK_IDLE: Duration = Duration::from_millis(500);

/// The manager's state.
pub(crate) struct Manager {
    pub(crate) config: Arc<Config>,
    pub(crate) host: ThisHost,
    pub(crate) clients: Clients,
    pub(crate) topics: Topics,
    /// What other hosts announce and ask.
    pub(crate) network_inbox: Arc<NetworkInbox>,
    pub(crate) budgets: Budgets,
    pub(crate) memory: DeviceMemoryManager,
    pub(crate) publish: PublishManager,
    pub(crate) subscribe: SubscribeManager,
    pub(crate) network: Network,
    /// By which clients are known to live.
    pub(crate) locks: ClientLocks,
    /// What a predecessor's clients have and have not handed back.
    pub(crate) adoption: Adoption,
    pub(crate) words_search: WordsSearch,
    /// Topics whose note could not be written, and why: a successor would not know who is in them.
    pub(crate) unnoted: BTreeMap<TopicId, String>,
    pub(crate) deferred: DeferredRequests,
    pub(crate) departures: Departures,
    pub(crate) runtime_files: RuntimeFiles,
    events: Receiver<Event>,
    pub(crate) wake: Arc<EventFd>,
    stop: OwnedFd,
    /// There was more in the mailbox than the share of a turn.
    has_more: bool,
    /// A topic has a draining publisher of which something is left.
    has_draining: bool,
    ticked_at: Option<Instant>,
    /// The last topic for which `relink_some` tried.
    relink_cursor: Option<TopicId>,
    pub(crate) network_reports: NetworkReports,
    idle_since: Option<Instant>,
    /// Until when nobody is let in: there was nothing to hold a connection with.
    full_until: Option<Instant>,
}

/// What a manager is made of.
pub(crate) struct Parts {
    pub(crate) config: Arc<Config>,
    pub(crate) host: ThisHost,
    pub(crate) memory: DeviceMemoryManager,
    pub(crate) publish: PublishManager,
    pub(crate) subscribe: SubscribeManager,
    pub(crate) network: Network,
    pub(crate) locks: ClientLocks,
    pub(crate) adoption: Adoption,
    pub(crate) runtime_files: RuntimeFiles,
    pub(crate) events: Receiver<Event>,
    pub(crate) network_inbox: Arc<NetworkInbox>,
    pub(crate) budgets: Budgets,
    pub(crate) wake: Arc<EventFd>,
    /// Readable when the process should end.
    pub(crate) stop: OwnedFd,
}

/// What woke the manager.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Stop,
    Mailbox,
    Listener,
    RuntimeFiles,
    Socket(ClientId),
    Death(ClientId),
}

impl Manager {
    pub(crate) fn new(parts: Parts) -> Self {
        let grace = Duration::from_millis(parts.config.peer_timeout_ms);
        let first_host_due = (!parts.config.peers.is_empty()).then(|| Instant::now() + grace);
        Self {
            config: parts.config,
            host: parts.host,
            clients: Clients::default(),
            topics: Topics::default(),
            network_inbox: parts.network_inbox,
            budgets: parts.budgets,
            memory: parts.memory,
            publish: parts.publish,
            subscribe: parts.subscribe,
            network: parts.network,
            locks: parts.locks,
            adoption: parts.adoption,
            words_search: WordsSearch::default(),
            unnoted: BTreeMap::new(),
            deferred: DeferredRequests::default(),
            departures: Departures::default(),
            runtime_files: parts.runtime_files,
            events: parts.events,
            wake: parts.wake,
            stop: parts.stop,
            has_more: false,
            has_draining: false,
            ticked_at: None,
            relink_cursor: None,
            network_reports: NetworkReports::new(first_host_due),
            idle_since: Some(Instant::now()),
            full_until: None,
        }
    }

    /// Serves until told to stop, or until nobody has needed it for `idle_timeout_ms`.
    pub(crate) fn run(&mut self) {
        loop {
            let woken = self.sleep();
            let may_be_gone = woken.contains(&Source::RuntimeFiles) || self.runtime_files.watch().is_none();
            if woken.contains(&Source::Stop) {
                tracing::info!("told to stop");
                break;
            }
            for source in &woken {
                match *source {
                    // Read after the clients, in every turn.
                    Source::Stop | Source::Mailbox | Source::RuntimeFiles => {}
                    Source::Listener => self.accept(),
                    Source::Socket(client) => self.read_client(client),
                    Source::Death(client) => self.client_died(client),
                }
            }
            if may_be_gone && !self.check_runtime_files() {
                break;
            }
            self.read_mailbox();
            let now = Instant::now();
            self.decide();
            self.release_departing();
            // What a deferred request waits for is a client's word or death.
            if woken.iter().any(|source| matches!(source, Source::Socket(_) | Source::Death(_))) {
                self.retry_deferred();
            }
            self.tend_network(now);
            if self.tick_due().is_none_or(|due| due <= now) {
                self.tick(now);
            }
            self.remove_those_over();
            if self.is_idle() {
                tracing::info!("idle; leaving");
                break;
            }
        }
        self.topics.values().for_each(|topic| topic.outbound.values().for_each(Outbound::stop));
    }

    /// Ends all but its place in the directory. That comes last: whoever finds no socket any more may start the next manager at once.
    pub(crate) fn end(self) -> RuntimeFiles {
        self.runtime_files
    }

    fn sleep(&mut self) -> Vec<Source> {
        // Who has not read the answers to earlier requests is heard later.
        let behind: Vec<ClientId> =
            self.clients.by_id.iter_mut().filter_map(|(id, client)| client.is_behind().then_some(*id)).collect();
        let mut sources = vec![Source::Stop, Source::Mailbox];
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.stop.as_fd(), self.wake.as_fd()];
        let mut of_ended: Vec<PollFd<'_>> = Vec::new();
        let mut ended = Vec::new();
        let is_full = self.full_until.is_some_and(|until| until > Instant::now());
        if !is_full {
            sources.push(Source::Listener);
            fds.push(self.runtime_files.listener().as_fd());
        }
        if let Some(watch) = self.runtime_files.watch() {
            sources.push(Source::RuntimeFiles);
            fds.push(watch);
        }
        for (id, client) in &self.clients.by_id {
            match &client.connection {
                // Of the dead only the end is waited for, whatever a process says that has their socket.
                Some(connection) if client.has_ended => {
                    ended.push(Source::Socket(*id));
                    of_ended.push(PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::empty()));
                }
                Some(connection) if !behind.contains(id) => {
                    sources.push(Source::Socket(*id));
                    fds.push(connection.as_fd());
                }
                _ => {}
            }
            if let Some(pidfd) = client.pidfd.as_ref().filter(|_| !client.has_ended) {
                sources.push(Source::Death(*id));
                fds.push(pidfd.as_fd());
            }
        }
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        polled.extend(of_ended);
        sources.extend(ended);
        let now = Instant::now();
        let tick = self.tick_due().map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        let tick = if is_full || !behind.is_empty() { tick.min(TICK) } else { tick };
        let due = self.network_inbox.announcements().due();
        let tick = match due.map(|due| due.saturating_duration_since(now)) {
            _ if self.has_more || !self.departures.is_empty() || self.adoption.has_decisions() => Duration::ZERO,
            Some(due) => tick.min(due),
            None => tick,
        };
        if let Err(error) = rgaps_os::poll::any(&mut polled, tick) {
            tracing::debug!(%error, "this manager cannot wait for file descriptors");
            std::thread::sleep(tick.min(TICK));
        }
        let ready = polled.iter().map(|fd| !fd.revents().is_empty());
        sources.into_iter().zip(ready).filter(|(_, ready)| *ready).map(|(source, _)| source).collect()
    }

    /// When the next look at everything is due; the first is at once.
    fn tick_due(&self) -> Option<Instant> {
        let busy =
            self.has_draining || self.deferred.has_any() || self.clients.by_id.values().any(|client| client.has_ended);
        self.ticked_at.map(|at| at + if busy { TICK } else { TICK_IDLE })
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            match self.runtime_files.listener().accept() {
                Ok(Some(connection)) => {
                    if let Some(oldest) = self.clients.oldest_unconfirmed() {
                        self.remove(oldest);
                    }
                    self.clients.add(connection);
                }
                Ok(None) => return self.full_until = None,
                Err(error) => {
                    // Logged once, and again only after a client was accepted.
                    if self.full_until.is_none() {
                        tracing::warn!(%error, "a client could not be accepted; it waits");
                    }
                    self.full_until = Some(Instant::now() + TICK);
                    return;
                }
            }
        }
    }

    /// Serves a few requests of a client. Others are served before its next ones.
    fn read_client(&mut self, id: ClientId) {
        if self.clients.by_id.get(&id).is_some_and(|client| client.has_ended) {
            return self.hung_up(id, &LocalError::Closed);
        }
        for _ in 0..REQUESTS_A_TURN {
            if self.clients.by_id.get_mut(&id).is_some_and(Client::is_behind) {
                return;
            }
            let Some(connection) = self.clients.by_id.get(&id).and_then(|client| client.connection.as_ref()) else {
                return;
            };
            match connection.receive::<Request>(Duration::ZERO) {
                Ok(Some(packet)) => self.read_packet(id, packet),
                Ok(None) => return,
                Err(error) => return self.hung_up(id, &error),
            }
        }
    }

    /// A request, and whatever file descriptors the client has sent beside it: those that are not kept are closed elsewhere.
    fn read_packet(&mut self, id: ClientId, packet: Packet<Request>) {
        let complete = packet.complete();
        let Packet { message, fds, .. } = packet;
        let wanted = complete.is_ok()
            && matches!(message.body, Body::Hello { .. } | Body::HandBack { .. } | Body::EventFd { .. });
        let (fds, unwanted) = if wanted { (fds, Vec::new()) } else { (Vec::new(), fds) };
        // Copies: so what is dropped while the request is served is not the last file descriptor.
        let copies: Vec<OwnedFd> = fds.iter().filter_map(|fd| fd.try_clone().ok()).collect();
        match complete {
            Ok(()) => self.request(id, message, fds),
            Err(error) => self.answer(id, message.id, Err(exhausted(&error))),
        }
        closing::elsewhere(unwanted.into_iter().chain(copies));
    }

    /// A slot is free: its occupant left or died.
    pub(crate) fn release_slot(&mut self, occupied: Occupied) {
        let Some(topic) = self.topics.get_mut(&occupied.topic) else { return };
        match occupied.slot {
            EndpointSlot::Publisher(slot) => {
                topic.publishers.remove(&slot);
                topic.drain(slot);
            }
            EndpointSlot::Subscriber(slot) => {
                topic.subscribers.remove(&slot);
                topic.slot_table.release_subscriber(slot);
                topic.segment.wake_everybody();
                // It may have been the last to hold what somebody who has gone had published.
                topic.finish_draining();
            }
        }
        self.topic_changed(occupied.topic);
    }

    /// Makes everything that depends on a topic's members so: announcements, links, the note for a successor, its end.
    pub(crate) fn topic_changed(&mut self, id: TopicId) {
        self.announce(id);
        self.relink(id);
        // What ends now needs no note.
        if !self.end_if_over(id) {
            self.note(id);
        }
    }

    /// Something of a topic may be draining: what is left of it is looked at soon.
    pub(crate) fn look_for_draining(&mut self, id: TopicId) {
        let is_left = |topic: &Topic| topic.slot_table.draining().next().is_some();
        self.has_draining |= self.topics.get(&id).is_some_and(is_left);
    }

    fn announce(&mut self, id: TopicId) {
        let Some(topic) = self.topics.get_mut(&id) else { return };
        let here = || topic.publisher_endpoint().into_iter().chain(topic.subscriber_endpoint());
        let now: Vec<Endpoint> = if topic.key.is_pool() { Vec::new() } else { here().collect() };
        if topic.announced != now {
            self.network.announce(&topic.key, now.clone());
            topic.announced = now;
        }
    }

    pub(crate) fn note(&mut self, id: TopicId) {
        let Some(topic) = self.topics.get(&id) else { return self.note_again(id) };
        let clients = self.clients.of_topic(id).filter_map(|client| Some((client.noted()?, client)));
        let here = clients.flat_map(|(noted, client)| {
            let own = client.slots.iter().filter(|occupied| occupied.topic == id);
            own.map(move |occupied| {
                let pool = match occupied.slot {
                    EndpointSlot::Publisher(slot) => topic.pools.note(slot),
                    EndpointSlot::Subscriber(_) => None,
                };
                NotedSlot { client: noted, slot: occupied.slot, pool }
            })
        });
        let clients = self.adoption.note(id, here);
        let (key, type_name, segment) = (topic.key.clone(), topic.type_name.clone(), topic.segment.identity());
        let note = TopicNote { topic: id, key, type_name, segment, device: self.host.device.clone(), clients };
        if topic.noted.as_ref() == Some(&note) {
            return;
        }
        let is_written = self.write_note(&note);
        if let Some(topic) = self.topics.get_mut(&id) {
            topic.noted = Some(note).filter(|_| is_written);
        }
    }

    /// Notes a topic of which there is only a predecessor's note, or nothing any more.
    fn note_again(&mut self, id: TopicId) {
        match self.adoption.only_note(id) {
            Some(note) => drop(self.write_note(&note)),
            None => drop(self.unnoted.remove(&id)),
        }
    }

    fn write_note(&mut self, note: &TopicNote) -> bool {
        let Err(error) = self.host.dir.note_topic(note) else {
            self.unnoted.remove(&note.topic);
            return true;
        };
        // Said once, though it is tried again and again.
        if self.unnoted.insert(note.topic, error.to_string()).is_none() {
            let text = format!("{}: a successor of this rgapsd will not know who is in it: {error}", note.key);
            self.warn(note.topic, text);
        }
        false
    }

    /// A request was refused for which a topic may just have been made.
    pub(crate) fn end_if_unused(&mut self, key: &TopicKey) {
        if let Some(id) = self.topics.id_of(key) {
            self.end_if_over(id);
        }
    }

    /// A topic is here, and what other hosts say of it matters.
    pub(crate) fn add_topic(&mut self, topic: Topic) {
        self.network_inbox.announcements().watch(&topic.key);
        self.topics.insert(topic);
    }

    /// Ends a topic if nobody needs it any more; whether it has ended.
    pub(crate) fn end_if_over(&mut self, id: TopicId) -> bool {
        let is_over = self.topics.get(&id).is_some_and(Topic::is_over) && !self.adoption.awaits(id);
        if is_over && let Some(topic) = self.topics.remove(&id) {
            tracing::info!(topic = %topic.key, "topic ended");
            self.network_inbox.announcements().unwatch(&topic.key);
            if !topic.announced.is_empty() {
                self.network.announce(&topic.key, Vec::new());
            }
            self.host.dir.forget_topic(id);
            self.unnoted.remove(&id);
        }
        is_over
    }

    /// A share of what workers and the network say.
    fn read_mailbox(&mut self) {
        let _ = self.wake.drain();
        let events: Vec<Event> = self.events.try_iter().take(EVENTS_A_TURN).collect();
        let of_workers = events.len() == EVENTS_A_TURN;
        for event in events {
            match event {
                Event::SenderEnded { topic, host } => self.sender_ended(topic, host),
                Event::ArrivalBegan { topic, host } => self.arrival_began(topic, host),
                Event::ArrivalEnded { topic, host, state, why } => {
                    tracing::debug!(%topic, %host, why, "an arrival has ended");
                    if let Some(topic) = self.topics.get_mut(&topic) {
                        SubscribeManager::ended(topic, host, state);
                    }
                    self.topic_changed(topic);
                }
                Event::Evicted { topic, host } => {
                    if let Some(topic) = self.topics.get_mut(&topic) {
                        self.subscribe.evict(topic, host);
                    }
                    self.topic_changed(topic);
                }
                Event::Warning { topic, text } => self.warn(topic, text),
            }
        }
        let of_network = self.look_at_network();
        self.has_more = of_workers || of_network;
    }

    fn sender_ended(&mut self, id: TopicId, host: HostId) {
        let Some(topic) = self.topics.get_mut(&id) else { return };
        if let Some(mut outbound) = topic.outbound.remove(&host) {
            outbound.join();
            topic.slot_table.release_subscriber(outbound.slot);
            topic.finish_draining();
        }
        self.topic_changed(id);
    }

    /// Tries again to start senders that lacked a permit, a slot or a file descriptor: for a few topics at a time, since one topic may lack a sender
    /// for each of very many hosts.
    fn relink_some(&mut self) {
        let lacks = |topic: &&Topic| !topic.without_sender.is_empty();
        let mut lacking: Vec<TopicId> = self.topics.values().filter(lacks).map(|topic| topic.id).collect();
        lacking.sort_unstable();
        let behind = lacking.partition_point(|id| self.relink_cursor.is_some_and(|last| *id <= last));
        lacking.rotate_left(behind);
        for id in lacking.into_iter().take(RELINKS_A_TICK) {
            self.relink_cursor = Some(id);
            self.relink(id);
        }
    }

    /// What no file descriptor tells, for every topic.
    fn tick(&mut self, now: Instant) {
        self.ticked_at = Some(now);
        self.subscribe.expire();
        self.topics.values_mut().for_each(Topic::wake_senders_for_untold);
        let has_draining = |topic: &&Topic| topic.slot_table.draining().next().is_some();
        // Senders may have work to do though no publisher is left.
        let is_sending = |topic: &&Topic| {
            topic.publishers.is_empty() && topic.outbound.values().any(|outbound| !outbound.control.should_stop())
        };
        let unreclaimed = self.topics.values().filter(|topic| has_draining(topic) || is_sending(topic));
        let unreclaimed: Vec<TopicId> = unreclaimed.map(|topic| topic.id).collect();
        self.has_draining = false;
        for id in unreclaimed {
            let Some(topic) = self.topics.get(&id) else { continue };
            topic.finish_draining();
            match has_draining(&topic) {
                true => self.has_draining = true,
                false => self.topic_changed(id),
            }
        }
        let is_late = |topic: &&Topic| topic.outbound.values().any(|outbound| outbound.is_late(now));
        let late: Vec<TopicId> = self.topics.values().filter(is_late).map(|topic| topic.id).collect();
        late.into_iter().for_each(|id| self.topic_changed(id));
        // There may be room for them now.
        self.relink_some();
        self.end_those_without_lock();
        self.look_for_the_dead();
        self.unnoted.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.note(id));
        self.retry_deferred();
        self.network_reports.report_absent_peers(now, &self.config.peers);
    }

    /// Clients that have hung up and given up everything.
    fn remove_those_over(&mut self) {
        let over: Vec<ClientId> =
            self.clients.by_id.iter().filter(|(_, client)| client.is_over()).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.remove(id));
    }

    /// Whether there are programs that would hand their slots to the next manager.
    pub fn has_clients(&self) -> bool {
        !self.adoption.is_over() || self.clients.by_id.values().any(|client| client.is_locked)
    }

    fn is_idle(&mut self) -> bool {
        let is_left = !self.adoption.is_over() || !self.departures.is_empty();
        let busy = is_left || !self.clients.by_id.is_empty() || !self.topics.is_empty();
        if busy {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        since.elapsed() >= Duration::from_millis(self.config.idle_timeout_ms)
    }
}
