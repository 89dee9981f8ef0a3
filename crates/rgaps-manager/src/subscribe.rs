//! The subscribe manager offers rings to hosts that publish what this host subscribes to, and runs an arrival for each.
//!
//! An offer has a token; the connection that presents it gets the ring. There is one ring and one worker per topic and host. A host that requests a
//! ring again has lost its connection, so the old arrival is told to end, and the new one uses its port.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rgaps_control::qos::{Exhaustion, PublisherQos};
use rgaps_control::wire::{Integrity, RdmaRing, RingOffer, RingRefusal, RingRequest, WIRE_VERSION};
use rgaps_control::{Budget, Config, HostId, TopicId};
use rgaps_device::{BufferSpec, DeviceError, HostBuffer, PayloadAccess};
use rgaps_link::rdma::ReceiverEnd;
use rgaps_link::tcp::{Incoming, LinkToken, RingSetup, TcpOptions, TcpRingListener};
use rgaps_link::{FlowControl, LinkReceiver, RingGeometry, RingMemory, RingOptions, Watermark};
use rgaps_os::EventFd;
use rgaps_shm::manager::last_received::{LastReceived, last_received_within};
use rgaps_shm::writer::pool::pool_bytes_for;
use rgaps_shm::{PublisherSlot, PublisherSpec, WriterPort};

use crate::addresses;
use crate::arrival::Arrival;
use crate::arrival::setup::ArrivalSetup;
use crate::budgets::Budgets;
use crate::device_access::DeviceAccess;
use crate::device_memory::DeviceMemoryManager;
use crate::event::{Event, Mailbox};
use crate::inbound::{ArrivalControl, ArrivalState, Inbound};
use crate::offered_ring::{link_chunk_bytes, link_integrity, over_tcp};
use crate::pending_connections::PendingConnections;
use crate::rdma_devices::{self, RdmaDevices};
use crate::received::Received;
use crate::topics::{DEPARTED_MAX, Topic, messages_wanted};

/// How long an offer is valid.
const OFFER_LIFETIME: Duration = Duration::from_secs(10);
/// How long a ring is empty before it returns its pages.
const RING_IDLE: Duration = Duration::from_secs(2);

/// An offer that is not taken up yet.
struct OpenOffer {
    setup: ArrivalSetup,
    state: Box<ArrivalState>,
    ring: RingEnd,
    until: Instant,
}

/// The transport of an offer.
enum RingEnd {
    /// On the data connection.
    Tcp(RingSetup),
    /// RDMA, with the data connection as liveness socket.
    Rdma(Box<ReceiverEnd>, TcpOptions),
}

/// A ring, its memory as the device knows it, and its RDMA end, or why there is none.
struct MadeRing {
    end: RingEnd,
    buffer: Arc<HostBuffer>,
    rdma: Result<RdmaRing, String>,
    /// The network card writes device memory itself.
    device_access: Option<Arc<DeviceAccess>>,
    /// The transport, and why it is not a better one.
    text: String,
}

impl RingEnd {
    fn geometry(&self) -> &RingGeometry {
        match self {
            Self::Tcp(setup) => &setup.geometry,
            Self::Rdma(end, _) => end.geometry(),
        }
    }
}

type Offers = Arc<Mutex<HashMap<LinkToken, OpenOffer>>>;

/// Makes rings and connects senders to them.
pub(crate) struct SubscribeManager {
    config: Arc<Config>,
    memory: DeviceMemoryManager,
    mailbox: Mailbox,
    rdma: Arc<RdmaDevices>,
    budgets: Budgets,
    offers: Offers,
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
}

impl SubscribeManager {
    /// Listens for data connections, on a port of its own for each address that the configuration allows.
    pub(crate) fn new(
        config: Arc<Config>,
        memory: DeviceMemoryManager,
        mailbox: Mailbox,
        rdma: Arc<RdmaDevices>,
        budgets: Budgets,
    ) -> Result<Self, rgaps_link::tcp::AcceptError> {
        let timeout = Duration::from_millis(config.peer_timeout_ms);
        let offers = Offers::default();
        let stop = Arc::new(AtomicBool::new(false));
        let pending = Arc::new(PendingConnections::new(&budgets));
        let mut addresses = Vec::new();
        for address in config.data_addresses() {
            let listener = TcpRingListener::bind((address, 0).into(), timeout)?;
            let port = listener.address().port();
            let own = if address.is_unspecified() { addresses::own() } else { vec![address] };
            addresses.extend(own.into_iter().map(|address| SocketAddr::from((address, port))));
            let (waiting, pending, stopped) = (offers.clone(), pending.clone(), stop.clone());
            let spawned = std::thread::Builder::new()
                .name("rgaps-accept".to_owned())
                .spawn(move || pending.accept(&listener, &stopped, move |incoming| on_identified(incoming, &waiting)));
            if let Err(error) = spawned {
                tracing::error!(%error, "a thread for data connections could not be started");
            }
        }
        Ok(Self { config, memory, mailbox, rdma, budgets, offers, addresses, stop })
    }

    /// The addresses that data connections are accepted on.
    #[cfg(test)]
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Answers a ring request of a host that publishes a topic.
    pub(crate) fn offer(&self, topic: &mut Topic, request: &RingRequest) -> Result<RingOffer, RingRefusal> {
        let Some(subscribers) = topic.subscriber_endpoint() else {
            return Err(RingRefusal::NoSubscribers(topic.key.to_string()));
        };
        request.endpoint.fits(&subscribers).map_err(RingRefusal::Mismatch)?;
        let mut state = match topic.inbound.remove(&request.host) {
            Some(Inbound::Active(control)) => {
                control.stop();
                self.withdraw(control.token());
                topic.inbound.insert(request.host, Inbound::Active(control));
                return Err(RingRefusal::Failed(
                    "its last connection is still ending; this resolves itself".to_owned(),
                ));
            }
            Some(Inbound::Idle(state)) if state.message_bytes_max >= request.message_bytes_max => state,
            Some(Inbound::Idle(state)) => {
                depart(topic, request.host, *state);
                self.make_state(topic, request)?
            }
            None => self.make_state(topic, request)?,
        };
        let forgotten = state.received.correct(&published(request), || last_in_segment(topic, request));
        if forgotten > 0 {
            tracing::warn!(
                topic = %topic.key, host = request.host_name, publishers = forgotten,
                "an impostor sent messages under the names of publishers that had not published them; their sequence numbers are forgotten"
            );
        }
        let remembers = state.received.hand_shake(topic.segment.queue().end());
        self.make_offer(topic, request, state, remembers)
    }

    /// Ends the receiving side of a host that no longer publishes, or that has no subscriber here.
    pub(crate) fn end(&self, topic: &mut Topic, host: HostId) {
        match topic.inbound.get(&host) {
            Some(Inbound::Active(control)) => {
                control.stop();
                self.withdraw(control.token());
            }
            Some(Inbound::Idle(_)) => {
                if let Some(Inbound::Idle(state)) = topic.inbound.remove(&host) {
                    depart(topic, host, *state);
                }
            }
            None => {}
        }
    }

    /// Evicts a port, since others need its memory: at once if it is not connected.
    pub(crate) fn evict(&self, topic: &mut Topic, host: HostId) {
        match topic.inbound.get(&host) {
            Some(Inbound::Active(control)) => {
                control.wake();
                self.withdraw(control.token());
            }
            Some(Inbound::Idle(state)) if state.is_evicted() => self.end(topic, host),
            _ => {}
        }
    }

    /// Takes back the port of an arrival that has ended, or of an offer that was not taken up, for the next connection.
    pub(crate) fn ended(topic: &mut Topic, host: HostId, state: Box<ArrivalState>) {
        if state.is_evicted() {
            topic.inbound.remove(&host);
            return depart(topic, host, *state);
        }
        let before = topic.inbound.insert(host, Inbound::Idle(state));
        // Subscribers that the arrival had not taken when it ended.
        if let (Some(Inbound::Active(control)), Some(idle)) = (before, topic.inbound.get_mut(&host)) {
            control.take_newcomers().into_iter().for_each(|newcomer| idle.add_subscriber(newcomer));
        }
    }

    /// Withdraws offers that were not taken up in time.
    pub(crate) fn expire(&self) {
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        let late: Vec<LinkToken> =
            offers.iter().filter(|(_, offered)| offered.until < Instant::now()).map(|(token, _)| *token).collect();
        for token in late {
            if let Some(offered) = offers.remove(&token) {
                self.give_up(offered, "the other host did not connect in time");
            }
        }
    }

    fn withdraw(&self, token: LinkToken) {
        let offered = self.offers.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
        if let Some(offered) = offered {
            self.give_up(offered, "withdrawn");
        }
    }

    fn give_up(&self, offered: OpenOffer, why: &str) {
        let (topic, host) = (offered.setup.topic, offered.setup.host);
        self.mailbox.post(Event::ArrivalEnded { topic, host, state: offered.state, why: why.to_owned() });
    }

    fn make_state(&self, topic: &mut Topic, request: &RingRequest) -> Result<Box<ArrivalState>, RingRefusal> {
        let failed = |error: &dyn std::fmt::Display| RingRefusal::Failed(error.to_string());
        let limits = &self.budgets.limits;
        let wanted = pool_bytes_for(request.message_bytes_max);
        let bytes = self.config.arrival_pool_bytes.max(wanted.min(limits.arrival_pool_bytes_max));
        if wanted > bytes && self.budgets.refusals.count(Budget::ArrivalPool) {
            let over = limits.over(Budget::ArrivalPool);
            tracing::warn!(
                topic = %topic.key, host = request.host_name,
                "arriving messages need a pool of {wanted} B, and get {bytes} B ({over}); larger messages are dropped"
            );
        }
        let wanted = request.endpoint.offers.iter().map(|offer| messages_wanted(self.config.message_count, offer));
        let messages = wanted.max().unwrap_or(self.config.message_count);
        let spec = PublisherSpec { publisher: 0, pid: std::process::id(), pool_bytes: bytes, remote: true, messages };
        // Read what an earlier port or manager has received from that host, before this port reuses the entries that say so.
        let in_segment = last_in_segment(topic, request);
        let slot = self.admit(topic, &spec)?;
        let pool = match self.memory.create(&topic.pools, slot, bytes) {
            // A publisher's pool may be larger than this host's memory, although its messages are small.
            Err(error @ DeviceError::TooLarge { .. }) if bytes > self.config.arrival_pool_bytes => {
                tracing::warn!(topic = %topic.key, %error, "the pool has arrival_pool_bytes instead; larger messages are dropped");
                self.memory.create(&topic.pools, slot, self.config.arrival_pool_bytes)
            }
            made => made,
        };
        let made = pool.map_err(|error| failed(&error)).and_then(|pool| {
            topic.pools.seal(slot).map_err(|error| failed(&error))?;
            let right = pool.allocation_right().ok_or_else(|| failed(&"the pool is taken"))?;
            let port = WriterPort::new(topic.segment.clone(), slot, right);
            Ok((pool, port.map_err(|error| failed(&error))?))
        });
        match made {
            Ok((pool, mut port)) => {
                for slot in topic.slot_table.active_subscribers() {
                    let Some(pages) = topic.slot_table.pages(slot) else { continue };
                    port.add_subscriber(pages, topic.event_of(slot).cloned());
                }
                let before = topic.departed.remove(&request.host);
                let mut received = before.unwrap_or_else(|| Received::new(request.host.0, topic.arrived.clone()));
                received.recall(in_segment);
                let charge = self.budgets.arrived.charge((topic.id, request.host));
                topic.pools.keep_charge(slot, charge.clone());
                Ok(Box::new(ArrivalState::new(port, (pool, charge), received, request.message_bytes_max)))
            }
            Err(refusal) => {
                topic.drain(slot);
                Err(refusal)
            }
        }
    }

    /// A publisher slot for a port, among those that other hosts may have. If all are taken, the longest silent port without a connection is ended.
    fn admit(&self, topic: &mut Topic, spec: &PublisherSpec) -> Result<PublisherSlot, RingRefusal> {
        let limits = &self.budgets.limits;
        let most = limits.count(Budget::RemotePublishers);
        loop {
            let full = match topic.slot_table.admit_publisher_among(spec, most) {
                Ok(slot) => return Ok(slot),
                Err(full) => full,
            };
            let idle = topic.inbound.iter().filter_map(|(host, inbound)| match inbound {
                Inbound::Idle(state) => Some((state.heard(), *host)),
                Inbound::Active(_) => None,
            });
            match idle.min() {
                Some((_, silent)) => self.end(topic, silent),
                None if topic.slot_table.remote_publishers() < most => {
                    return Err(RingRefusal::Failed(full.to_string()));
                }
                None => {
                    let over = limits.over(Budget::RemotePublishers);
                    if self.budgets.refusals.count(Budget::RemotePublishers) {
                        tracing::warn!(topic = %topic.key, "no more hosts may publish here ({over}); rgaps doctor counts the refused ones");
                    }
                    return Err(RingRefusal::NoRoom(over));
                }
            }
        }
    }

    fn make_offer(
        &self,
        topic: &mut Topic,
        request: &RingRequest,
        state: Box<ArrivalState>,
        remembers: bool,
    ) -> Result<RingOffer, RingRefusal> {
        let (resume, keeps_history) = (state.received.resume(), state.received.keeps_history());
        let slot = state.slot();
        let place = self.budgets.links.take(request.host);
        let made = place.map_err(RingRefusal::NoRoom).and_then(|place| {
            let ring = self.ring(request).map_err(RingRefusal::Failed)?;
            let token = TopicId::random().map_err(|error| RingRefusal::Failed(error.to_string()))?;
            let event = EventFd::new().map_err(|error| RingRefusal::Failed(error.to_string()))?;
            Ok((ring, token, place, Arc::new(event)))
        });
        let (MadeRing { end: ring, buffer, rdma, device_access, text }, token, place, event) = match made {
            Ok(made) => made,
            Err(why) => {
                depart(topic, request.host, *state);
                return Err(why);
            }
        };
        let link_token = LinkToken(token.0);
        let status = format!("from {}: offered", request.host_name);
        let control = Arc::new(ArrivalControl::new(status, event, link_token, slot, place));
        let setup = ArrivalSetup {
            topic: topic.id,
            key: topic.key.clone(),
            host: request.host,
            host_name: request.host_name.clone(),
            exhaustion: most_patient(&request.endpoint.offers),
            keep_all_timeout: Duration::from_millis(self.config.keep_all_timeout_ms),
            backend: self.memory.backend().clone(),
            buffer,
            slot_table: topic.slot_table.clone(),
            mailbox: self.mailbox.clone(),
            control: control.clone(),
            landing_bytes_min: rdma_devices::landing_bytes_min(&self.config),
            device_access,
            transport_text: text,
        };
        topic.inbound.insert(request.host, Inbound::Active(control));
        let geometry = *ring.geometry();
        let offered = OpenOffer { setup, state, ring, until: Instant::now() + OFFER_LIFETIME };
        self.offers.lock().unwrap_or_else(PoisonError::into_inner).insert(link_token, offered);
        Ok(RingOffer {
            version: WIRE_VERSION,
            token,
            addresses: self.addresses.iter().map(SocketAddr::to_string).collect(),
            ring_bytes: geometry.ring_bytes(),
            chunk_bytes: u64::from(geometry.chunk_bytes()),
            watermark_bytes: geometry.watermark_bytes(),
            alignment: geometry.options().alignment,
            integrity: self.integrity(request),
            no_rdma: rdma.as_ref().err().cloned().unwrap_or_default(),
            rdma: rdma.ok(),
            remembers,
            resume,
            keeps_history,
        })
    }

    /// Makes a ring: one memory, registered with the device and mapped by the link; over rdma if possible.
    fn ring(&self, request: &RingRequest) -> Result<MadeRing, String> {
        let bytes = self.config.ring_bytes;
        let spec = BufferSpec { name: "rgaps-ring".to_owned(), bytes };
        let buffer = Arc::new(self.memory.backend().host_buffer(&spec).map_err(|error| error.to_string())?);
        let fd = std::os::fd::AsFd::as_fd(buffer.as_ref()).try_clone_to_owned().map_err(|error| error.to_string())?;
        let memory = RingMemory::from_fd(fd, bytes).map_err(|error| error.to_string())?;
        let dead_peer_timeout = Duration::from_millis(self.config.peer_timeout_ms);
        let options = TcpOptions { dead_peer_timeout, ..TcpOptions::default() };
        let why = match self.rdma(request, &memory, (&buffer, options)) {
            Ok(made) => return Ok(made),
            Err(why) if self.rdma.is_required() => return Err(format!("transport = \"rdma\" is configured: {why}")),
            Err(why) => why,
        };
        let geometry = self.geometry(request, RingOptions::default().alignment)?;
        // Memory that a device has registered keeps its pages; other memory returns them while the topic is idle.
        let options = TcpOptions { give_back_after: (!buffer.is_registered()).then_some(RING_IDLE), ..options };
        let (end, text) =
            (RingEnd::Tcp(RingSetup { geometry, memory, options }), over_tcp(&why, self.integrity(request)));
        Ok(MadeRing { end, buffer, rdma: Err(why), device_access: None, text })
    }

    /// A ring with our end of a queue pair, for one of those in the request. `join` connects it. The error says why there is none.
    fn rdma(
        &self,
        request: &RingRequest,
        memory: &Arc<RingMemory>,
        (buffer, options): (&Arc<HostBuffer>, TcpOptions),
    ) -> Result<MadeRing, String> {
        let with = self.rdma.choose(request)?;
        let alignment = self.rdma.alignment(request.host, &with, memory.bytes())?;
        let geometry = self.geometry(request, alignment)?;
        let end = self.rdma.receiver_end(request.host, &with, memory, geometry).map_err(|error| error.to_string())?;
        let (backend, grants_from_bytes) = (self.memory.backend().as_ref(), end.grants_from_bytes());
        let (device_access, text) = match backend.payload_access() {
            PayloadAccess::Direct => (None, "rdma".to_owned()),
            PayloadAccess::Staged if grants_from_bytes.is_none() => {
                let why = match self.config.rdma_landing_bytes {
                    0 => "rdma_landing_bytes = 0 is configured",
                    _ => "the network card has no memory windows of type 2B",
                };
                (None, format!("rdma, through the ring ({why})"))
            }
            PayloadAccess::Staged => match self.rdma.device_access(request.host, with.device(), backend) {
                Ok(access) => (Some(access), "rdma, into device memory".to_owned()),
                Err(why) => (None, format!("rdma, through the ring ({why})")),
            },
        };
        let is_direct = backend.payload_access() == PayloadAccess::Direct || device_access.is_some();
        let grants_from_bytes = grants_from_bytes.filter(|_| is_direct);
        let ring = RdmaRing { to: with.to, end: rdma_devices::to_wire(&end.address(), end.ring()), grants_from_bytes };
        let (end, buffer) = (RingEnd::Rdma(Box::new(end), options), buffer.clone());
        Ok(MadeRing { end, buffer, rdma: Ok(ring), device_access, text })
    }

    /// Checksums, if either host wants them.
    fn integrity(&self, request: &RingRequest) -> Integrity {
        self.config.integrity().stricter(request.integrity)
    }

    fn geometry(&self, request: &RingRequest, alignment: u32) -> Result<RingGeometry, String> {
        let bytes = self.config.ring_bytes;
        let watermark =
            Watermark::ALL.into_iter().find(|watermark| watermark.bytes(bytes) == self.config.watermark_bytes());
        let options = RingOptions {
            ring_bytes: bytes,
            chunk_bytes: link_chunk_bytes(&self.config),
            watermark: watermark.unwrap_or_default(),
            alignment,
            flow_control: if request.flow_control { FlowControl::On } else { FlowControl::Off },
            integrity: link_integrity(self.integrity(request)),
        };
        RingGeometry::new(options).map_err(|error| error.to_string())
    }
}

/// The newest sequence of each of the requesting host's publishers.
fn published(request: &RingRequest) -> HashMap<u64, u64> {
    request.published.iter().copied().collect()
}

/// What the segment says about their messages.
fn last_in_segment(topic: &Topic, request: &RingRequest) -> HashMap<u64, LastReceived> {
    let published = published(request);
    last_received_within(&topic.segment, request.host.0, |publisher| {
        published.get(&publisher).copied().unwrap_or(u64::MAX)
    })
}

/// Notes what has arrived through a port that ends, so that no message arrives twice after a network cut.
fn depart(topic: &mut Topic, host: HostId, mut state: ArrivalState) {
    topic.drain(state.slot());
    if topic.subscribers.is_empty() {
        state.received.unsubscribe();
    }
    state.received.end_port(topic.slot_table.end_port());
    if topic.departed.len() >= DEPARTED_MAX && !topic.departed.contains_key(&host) {
        let silent = topic.departed.iter().min_by_key(|(_, received)| received.last()).map(|(silent, _)| *silent);
        silent.and_then(|silent| topic.departed.remove(&silent)).into_iter().for_each(Received::forget);
    }
    topic.departed.insert(host, state.received);
}

impl Drop for SubscribeManager {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Connects a peer to the ring whose token it presents.
fn on_identified(incoming: Incoming, offers: &Offers) {
    let offered = offers.lock().unwrap_or_else(PoisonError::into_inner).remove(&incoming.token());
    let Some(OpenOffer { setup, state, ring, .. }) = offered else {
        tracing::warn!(error = %incoming.refuse(), "a data connection was refused");
        return;
    };
    match connect(incoming, ring) {
        Ok(link) => Arrival::start(setup, *state, link),
        Err(why) => {
            let event = Event::ArrivalEnded { topic: setup.topic, host: setup.host, state, why };
            setup.mailbox.post(event);
        }
    }
}

/// The link's end here.
fn connect(incoming: Incoming, ring: RingEnd) -> Result<Box<dyn LinkReceiver>, String> {
    match ring {
        RingEnd::Tcp(ring) => Ok(Box::new(incoming.admit(&ring).map_err(|error| error.to_string())?)),
        RingEnd::Rdma(end, options) => {
            // Before the answer, after which the sender sends.
            end.connect().map_err(|error| error.to_string())?;
            let liveness = incoming.agree(end.geometry(), &options).map_err(|error| error.to_string())?;
            Ok(Box::new(end.start(liveness)))
        }
    }
}

/// What an arrival does without space. All publishers of a host share it, so the offer holds that loses the least: the longest wait, else dropping the
/// oldest, else refusing.
fn most_patient(offers: &[PublisherQos]) -> Option<Exhaustion> {
    let patience = |exhaustion: &Exhaustion| match *exhaustion {
        Exhaustion::Wait { timeout_ms } => (2, timeout_ms),
        Exhaustion::DropOldest => (1, 0),
        Exhaustion::Refuse => (0, 0),
    };
    offers.iter().map(|offer| offer.exhaustion).max_by_key(patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_patient_publisher_of_a_host_decides_in_any_order() {
        let wait = |timeout_ms| Exhaustion::Wait { timeout_ms };
        let offers = [Exhaustion::Refuse, wait(10), wait(2000), Exhaustion::DropOldest];
        let mut offers = offers.map(|exhaustion| PublisherQos { exhaustion, ..PublisherQos::default() });
        for _ in 0..offers.len() {
            offers.rotate_left(1);
            assert_eq!(most_patient(&offers), Some(wait(2000)));
        }
        assert_eq!(most_patient(&offers[3..]), Some(Exhaustion::DropOldest));
        assert_eq!(most_patient(&[]), None);
    }
}
