//! Managers find each other over zenoh: a liveliness token for each host and endpoint, a queryable for the ring hand-shake.
//!
//! ```text
//!   rgaps/1/HOST/host/NAME         alive while the manager is; NAME and ENDPOINT are hexadecimal, since they may hold any byte
//!   rgaps/1/HOST/endpoint/ENDPOINT alive while the host has publishers or subscribers of a topic
//!   rgaps/1/HOST/ring              queryable: a `RingOffer` or a `RingRefusal` answers a `RingRequest`
//! ```
//!
//! If no network interface is up yet, for example while the machine boots, the host joins when one comes up.
//!
//! Source      liveliness, history and queryables are zenoh 1.x's. A peer is gone as soon as its socket closes, or, if it loses power, after
//!             zenoh's lease, which is `peer_timeout_ms`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use zenoh::bytes::ZBytes;
use zenoh::config::WhatAmI;
use zenoh::liveliness::LivelinessToken;
use zenoh::query::Query;
use zenoh::sample::{Sample, SampleKind};
use zenoh::session::ZenohId;
use zenoh::{Session, Wait};

use crate::announcements::{Announcement, Announcements, Scope};
use crate::announcer::{Announcer, Declare, StopSignal};
use crate::config::Config;
use crate::interfaces::{format_interfaces, multicast_interfaces};
use crate::limits::Limits;
use crate::log_rate_limit::LogRateLimit;
use crate::names::{HostId, TopicKey};
use crate::reach::Seen;
use crate::rediscovery::Rediscovery;
use crate::text;
use crate::wire::{Endpoint, HANDSHAKE_BYTES_MAX, RingOffer, RingRefusal, RingRequest};
pub use crate::zenoh_config::fuzz_zenoh_config;
use crate::zenoh_config::{introducer, is_found_by_multicast_only, zenoh_config};

/// Bytes of an announcement, at most: its key has twice as many, and must fit into one 64 KiB batch of zenoh.
const ENDPOINT_BYTES_MAX: usize = 16 << 10;

/// How often a host without a network looks for one.
const JOIN_POLL: Duration = Duration::from_secs(1);

/// Characters of an unreadable announcement that the log shows.
const UNREAD_SHOWN: usize = 80;

/// An event from other hosts.
#[derive(Debug)]
pub enum NetworkEvent {
    /// A host announces something or withdraws it.
    Announced(Announcement),
    /// An announcement that `Network::ask` has found.
    Found(Announcement),
    /// `Network::ask` has found everything.
    FoundAll,
    /// A publishing host requests a ring, and waits for an answer.
    RingRequested {
        /// The request.
        request: Box<RingRequest>,
        /// Takes the answer.
        responder: RingResponder,
    },
    /// A host sends a request that cannot be read.
    RingRequestUnreadable {
        /// The answer.
        refusal: RingRefusal,
        /// Takes the answer. Sending it may block while the requesting host does not read.
        responder: RingResponder,
    },
}

/// The network cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("zenoh: {what}: {message}")]
pub struct NetworkError {
    /// The step that failed.
    what: &'static str,
    /// zenoh's error.
    message: String,
}

impl NetworkError {
    pub(crate) fn new(what: &'static str, message: String) -> Self {
        Self { what, message }
    }
}

/// Why a host got no ring.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The network failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The other host did not answer.
    #[error("host {0} did not answer within {1} ms; check that its rgapsd runs")]
    TimedOut(HostId, u128),
    /// No such host is reachable; known at once, without waiting.
    #[error(
        "host {0} is not reachable: check that its rgapsd runs, that its network is open, and that `peers` or multicast find it"
    )]
    Absent(HostId),
    /// The request or its answer is longer than hosts read.
    #[error("the hand-shake with host {0} has a message of {1} B; at most {HANDSHAKE_BYTES_MAX} B are read")]
    Oversized(HostId, usize),
    /// The answer is not one of ours.
    #[error("host {0} sent an answer that cannot be read: {1}")]
    Garbage(HostId, String),
    /// The other host refused.
    #[error(transparent)]
    Refused(#[from] RingRefusal),
}

/// This host's membership in the network. On a local network it has none: it sees no other hosts, and none sees it.
pub struct Network {
    /// Its thread owns this host's tokens, its view of other hosts, and its ring queryable. Dropping it announces the rest of its queue, and leaves the
    /// network.
    announcer: Option<Announcer>,
    session: SharedSession,
    host: HostId,
}

/// The session, once this host has joined.
type SharedSession = Arc<OnceLock<Session>>;

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("host", &self.host).finish_non_exhaustive()
    }
}

type Sink = Arc<dyn Fn(NetworkEvent) + Send + Sync>;

impl Network {
    /// Joins the network, unless it is local; in the background if there is no interface to find others on. zenoh's threads call `sink`, which
    /// must not block.
    pub fn open(
        config: &Config,
        host: HostId,
        name: &str,
        sink: impl Fn(NetworkEvent) + Send + Sync + 'static,
    ) -> Result<Self, NetworkError> {
        let session = SharedSession::default();
        let Some(zenoh) = zenoh_config(config)? else { return Ok(Self { announcer: None, session, host }) };
        let joining = JoinParameters {
            zenoh,
            introducer: introducer(config)?,
            waits_for_multicast: is_found_by_multicast_only(config)?,
            routers: config.routers.clone(),
            host,
            name: name.to_owned(),
            sink: Arc::new(sink),
            session: session.clone(),
        };
        let announcer = match joining.can_join() {
            false => Announcer::start(move |stop| joining.wait_and_join(stop)),
            true => {
                let joined = joining.join()?;
                Announcer::start(move |_| Some(joined))
            }
        };
        Ok(Self { announcer: Some(announcer.map_err(no_thread)?), session, host })
    }

    /// Sets all endpoints of this host for a topic. Another thread announces them soon, and logs errors.
    pub fn announce(&self, key: &TopicKey, endpoints: Vec<Endpoint>) {
        if let Some(announcer) = &self.announcer {
            announcer.announce(key, endpoints);
        }
    }

    /// Queries what other hosts announce. The answers are `NetworkEvent::Found`, then `FoundAll`, unless the network is local. Returns at once.
    pub fn ask(&self, scope: Scope) {
        if let Some(announcer) = &self.announcer {
            announcer.ask(scope);
        }
    }

    /// A handle for requests to other hosts, usable from any thread.
    pub fn asker(&self) -> RingAsker {
        RingAsker { session: self.session.clone() }
    }
}

/// What is needed to join.
struct JoinParameters {
    zenoh: zenoh::Config,
    /// If hosts find each other by multicast.
    introducer: Option<zenoh::Config>,
    /// Nothing but multicast finds other hosts: then zenoh must not open before there is an interface for it.
    waits_for_multicast: bool,
    routers: Vec<String>,
    host: HostId,
    name: String,
    sink: Sink,
    session: SharedSession,
}

impl JoinParameters {
    fn can_join(&self) -> bool {
        !(self.waits_for_multicast && multicast_interfaces().is_empty())
    }

    /// Waits for an interface with multicast, and joins. None if the announcer ends before that.
    fn wait_and_join(&self, stop: &StopSignal) -> Option<Membership> {
        tracing::warn!(
            "no network interface is up that has multicast and an IPv4 address: until one is, this host finds no other, and none finds it"
        );
        loop {
            if stop.wait_for(JOIN_POLL) {
                return None;
            }
            if self.can_join() {
                match self.join() {
                    Ok(membership) => return Some(membership),
                    Err(error) => tracing::error!(%error, "this host could not join the network, and tries again"),
                }
            }
        }
    }

    fn join(&self) -> Result<Membership, NetworkError> {
        let Self { zenoh, introducer, waits_for_multicast: _, routers, host, name, sink, session: shared } = self;
        let (host, sink, introducer) = (*host, sink.clone(), introducer.clone());
        let scouted = multicast_interfaces();
        let session = zenoh::open(zenoh.clone()).wait().map_err(failed("joining the network"))?;
        session
            .info()
            .link_events_listener()
            .history(true)
            .callback(|event| keep_from_lingering(event.kind()))
            .background()
            .wait()
            .map_err(failed("watching links"))?;
        let unread = AtomicBool::new(false);
        let events = sink.clone();
        let subscriber = session
            .liveliness()
            .declare_subscriber("rgaps/1/**")
            .history(true)
            .callback(move |sample| match read_token(&sample) {
                Some(announcement) if announcement.host() == host => {}
                Some(announcement) => events(NetworkEvent::Announced(announcement)),
                // Logged once: a host that announces one may announce many.
                None if !unread.swap(true, Ordering::Relaxed) => tracing::warn!(
                    "another host announces something unreadable (for example a type without a name); later ones are not logged: {}",
                    text::plain(sample.key_expr().as_str()).chars().take(UNREAD_SHOWN).collect::<String>()
                ),
                None => {}
            })
            .wait()
            .map_err(failed("watching hosts"))?;
        let asked = sink.clone();
        let queryable = session
            .declare_queryable(format!("rgaps/1/{host}/ring"))
            .callback(move |query| asked(ring_requested(query)))
            .wait()
            .map_err(failed("offering rings"))?;
        let token = session
            .liveliness()
            .declare_token(format!("rgaps/1/{host}/host/{}", hex(name.as_bytes())))
            .wait()
            .map_err(failed("announcing this host"))?;
        if !routers.is_empty() {
            tracing::info!(routers = routers.join(", "), "hosts find each other through routers of zenoh");
            let info = session.info();
            let rate = Mutex::new(LogRateLimit::default());
            let events =
                info.transport_events_listener().history(true).callback(move |event| log_router(&event, &rate));
            events.background().wait().map_err(failed("watching routers"))?;
        }
        if introducer.is_some() {
            tracing::info!(interfaces = format_interfaces(&scouted), "hosts find each other by multicast");
        }
        let rediscovery = introducer.map(|introducer| Rediscovery::start(session.clone(), introducer, scouted));
        let rediscovery = rediscovery.transpose().map_err(no_thread)?;
        let session = shared.get_or_init(|| session).clone();
        Ok(Membership { _rediscovery: rediscovery, session, host, sink, _declared: (token, subscriber, queryable) })
    }
}

fn no_thread(error: std::io::Error) -> NetworkError {
    NetworkError { what: "starting a thread", message: error.to_string() }
}

/// Clears SO_LINGER, which zenoh sets to 10 s. Closing the socket of a silent host would otherwise block the one thread that sends for all links,
/// and a host whose network is back would be connected but receive nothing until then.
fn keep_from_lingering(change: SampleKind) {
    if change == SampleKind::Put
        && let Err(error) = rgaps_os::linger::clear()
    {
        tracing::debug!(%error, "SO_LINGER could not be cleared");
    }
}

/// Logs connections to routers, at a bounded rate: any program that connects may call itself one.
fn log_router(event: &zenoh::session::TransportEvent, rate: &Mutex<LogRateLimit>) {
    let transport = event.transport();
    if transport.whatami() != WhatAmI::Router {
        return;
    }
    let may_log = rate.lock().unwrap_or_else(PoisonError::into_inner).may_log(Instant::now());
    let Some(more) = may_log else { return };
    match event.kind() {
        SampleKind::Put => tracing::info!(router = %transport.zid(), "connected to a router{more}"),
        SampleKind::Delete => tracing::warn!(
            router = %transport.zid(),
            "the connection to a router ended, and with it those to hosts that it had introduced{more}"
        ),
    }
}

/// The network, after this host has joined it: tokens of this host and of others.
struct Membership {
    /// If hosts find each other by multicast.
    _rediscovery: Option<Rediscovery>,
    session: Session,
    host: HostId,
    sink: Sink,
    /// This host's token, its view of other hosts, and its ring queryable. Undeclared when dropped.
    _declared: (LivelinessToken, zenoh::pubsub::Subscriber<()>, zenoh::query::Queryable<()>),
}

impl Declare for Membership {
    type Token = LivelinessToken;
    type Error = NetworkError;

    fn declare(&self, endpoint: &Endpoint) -> Result<LivelinessToken, NetworkError> {
        let text = serde_json::to_vec(endpoint)
            .map_err(|error| NetworkError { what: "announcing a topic", message: error.to_string() })?;
        if text.len() > ENDPOINT_BYTES_MAX {
            let message = format!("{} B of QoS and type name exceed {ENDPOINT_BYTES_MAX} B", text.len());
            return Err(NetworkError { what: "announcing a topic", message });
        }
        let key = format!("rgaps/1/{}/endpoint/{}", self.host, hex(&text));
        self.session.liveliness().declare_token(key).wait().map_err(failed("announcing a topic"))
    }

    fn undeclare(&self, token: LivelinessToken) {
        if let Err(error) = token.undeclare().wait() {
            tracing::debug!(%error, "a token was gone already");
        }
    }

    fn ask(&self, scope: Scope) {
        let (own, over) = (self.host, FoundAll(self.sink.clone()));
        let key = scope.map_or_else(|| "rgaps/1/**".to_owned(), |host| format!("rgaps/1/{host}/**"));
        // zenoh releases the callback after the last answer, or if it cannot ask.
        let asked = self.session.liveliness().get(key).callback(move |reply| {
            let found = reply.into_result().ok().and_then(|sample| read_token(&sample));
            if let Some(announcement) = found.filter(|announcement| announcement.host() != own) {
                over.found(announcement);
            }
        });
        if let Err(error) = asked.wait() {
            tracing::warn!(%error, "the announcements of other hosts could not be queried");
        }
    }
}

/// Sends `NetworkEvent::FoundAll` when it is dropped.
struct FoundAll(Sink);

impl FoundAll {
    fn found(&self, announcement: Announcement) {
        (self.0)(NetworkEvent::Found(announcement));
    }
}

impl Drop for FoundAll {
    fn drop(&mut self) {
        (self.0)(NetworkEvent::FoundAll);
    }
}

/// Requests rings of other hosts.
#[derive(Clone)]
pub struct RingAsker {
    session: SharedSession,
}

impl std::fmt::Debug for RingAsker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RingAsker")
    }
}

impl RingAsker {
    /// Requests a ring of a host and waits for its answer. Returns the offer, and where its sender was seen.
    pub fn request(
        &self,
        host: HostId,
        request: &RingRequest,
        timeout: Duration,
    ) -> Result<(RingOffer, Seen), RingError> {
        let (answers, answer) = std::sync::mpsc::sync_channel(1);
        let payload = serde_json::to_vec(request).map_err(|error| RingError::Garbage(host, error.to_string()))?;
        if payload.len() > HANDSHAKE_BYTES_MAX {
            return Err(RingError::Oversized(host, payload.len()));
        }
        let session = self.session.get().ok_or(RingError::Absent(host))?;
        session
            .get(format!("rgaps/1/{host}/ring"))
            .payload(payload)
            .timeout(timeout)
            .callback(move |reply| {
                let from = reply.replier_id().map(|replier| replier.zid());
                let _ = answers.try_send((from, reply.into_result().map(|sample| bytes_of(sample.payload()))));
            })
            .wait()
            .map_err(failed("asking for a ring"))?;
        let silent = || RingError::TimedOut(host, timeout.as_millis());
        let (from, answer) = answer.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => silent(),
            // zenoh releases the callback when no host is left that could answer.
            RecvTimeoutError::Disconnected => RingError::Absent(host),
        })?;
        let answer = answer.map_err(|_| silent())?.map_err(|bytes| RingError::Oversized(host, bytes))?;
        let answer: Result<RingOffer, RingRefusal> =
            text::from_json_of_host(&answer).map_err(|error| RingError::Garbage(host, error))?;
        let offer = answer?;
        offer.check()?;
        Ok((offer, from.map(|from| seen_at(session, from)).unwrap_or_default()))
    }
}

/// The addresses of the links with another session.
fn seen_at(session: &Session, other: ZenohId) -> Seen {
    let mut seen = Seen::default();
    for link in session.info().links().wait().filter(|link| *link.zid() == other) {
        let ends = [link.src(), link.dst()].map(|end| end.address().as_str().parse::<SocketAddr>());
        if let [Ok(own), Ok(other)] = ends {
            seen.add(own.ip(), other.ip());
        }
    }
    seen
}

/// Takes the answer to a ring request. If it is dropped without one, the requesting host waits until its time-out.
pub struct RingResponder(Query);

impl std::fmt::Debug for RingResponder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RingResponder")
    }
}

impl RingResponder {
    /// Sends the answer.
    pub fn answer(self, answer: &Result<RingOffer, RingRefusal>) {
        let Ok(mut text) = serde_json::to_vec(answer) else { return };
        if text.len() > HANDSHAKE_BYTES_MAX {
            let refusal = RingRefusal::Failed(too_long("the answer", text.len()));
            text = serde_json::to_vec(&Err::<RingOffer, _>(refusal)).unwrap_or_default();
        }
        if let Err(error) = self.0.reply(self.0.key_expr().clone(), text).wait() {
            tracing::warn!(%error, "a ring offer could not be sent");
        }
    }
}

fn ring_requested(query: Query) -> NetworkEvent {
    let read = match query.payload().map(bytes_of).transpose() {
        Ok(payload) => RingRequest::of_json(&payload.unwrap_or_default()),
        Err(bytes) => Err(RingRefusal::Failed(too_long("the request", bytes))),
    };
    let responder = RingResponder(query);
    match read {
        Ok(request) => NetworkEvent::RingRequested { request: Box::new(request), responder },
        Err(refusal) => NetworkEvent::RingRequestUnreadable { refusal, responder },
    }
}

/// A hand-shake's payload. The error is its length, if that is too long to be read.
fn bytes_of(payload: &ZBytes) -> Result<Vec<u8>, usize> {
    match payload.len() {
        bytes if bytes > HANDSHAKE_BYTES_MAX => Err(bytes),
        _ => Ok(payload.to_bytes().into_owned()),
    }
}

fn too_long(what: &str, bytes: usize) -> String {
    format!("{what} has {bytes} B; at most {HANDSHAKE_BYTES_MAX} B are read")
}

fn read_token(sample: &Sample) -> Option<Announcement> {
    announced(sample.key_expr().as_str(), sample.kind() == SampleKind::Put)
}

/// The announcement in the key of a token that is declared (`up`) or undeclared.
fn announced(key: &str, up: bool) -> Option<Announcement> {
    let mut parts = key.strip_prefix("rgaps/1/")?.splitn(3, '/');
    let host: HostId = parts.next()?.parse().ok()?;
    match (parts.next()?, parts.next()?, up) {
        ("host", name, up) => {
            let name: String = String::from_utf8_lossy(&unhex(name)?).chars().take(64).collect();
            let name = text::plain(&name).into_owned();
            Some(if up { Announcement::HostUp { host, name } } else { Announcement::HostDown { host, name } })
        }
        ("endpoint", token, _) if token.len() > 2 * ENDPOINT_BYTES_MAX => None,
        ("endpoint", token, true) => {
            let endpoint = text::from_json(&unhex(token)?).ok()?;
            Some(Announcement::EndpointUp { host, token: token.to_owned(), endpoint })
        }
        ("endpoint", token, false) => Some(Announcement::EndpointDown { host, token: token.to_owned() }),
        _ => None,
    }
}

fn failed(what: &'static str) -> impl Fn(zenoh::Error) -> NetworkError {
    move |error| NetworkError { what, message: error.to_string() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// Fuzz entry: a byte says whether the rest is the whole key of a token, the name of a host or an endpoint. The announcement is safe to show, is
/// kept within its bounds, and is gone when its token is undeclared.
pub fn fuzz_announcement(data: &[u8]) -> bool {
    let Some((form, rest)) = data.split_first() else { return false };
    let host = HostId([7; 16]);
    let key = match form % 3 {
        0 => String::from_utf8_lossy(rest).into_owned(),
        1 => format!("rgaps/1/{host}/host/{}", hex(rest)),
        _ => format!("rgaps/1/{host}/endpoint/{}", hex(rest)),
    };
    let Some(up) = announced(&key, true) else { return false };
    let Some(down) = announced(&key, false) else { panic!("{key} can be announced but not withdrawn") };
    match &up {
        Announcement::HostUp { name, .. } => assert_eq!(text::plain(name), name.as_str()),
        Announcement::EndpointUp { endpoint, host, .. } => {
            let kept = size_of_val(&endpoint.offers[..]) + size_of_val(&endpoint.requests[..]);
            assert!(kept <= 4 * key.len(), "{kept} B are kept of a token of {} B", key.len());
            let text = serde_json::to_vec(endpoint).unwrap_or_default();
            let key = format!("rgaps/1/{host}/endpoint/{}", hex(&text));
            let again = announced(&key, true).filter(|_| text.len() <= ENDPOINT_BYTES_MAX);
            let same = |again| matches!(again, Announcement::EndpointUp { endpoint: again, .. } if again == *endpoint);
            assert!(
                text.len() > ENDPOINT_BYTES_MAX || again.is_some_and(same),
                "{endpoint:?} is not announced as it is"
            );
        }
        gone => panic!("{gone:?} was announced"),
    }
    let now = std::time::Instant::now();
    let mut announcements = Announcements::new(now, &Limits::default());
    assert!(announcements.handle(now, &up).is_ok() && announcements.handle(now, &down).is_ok());
    assert_eq!(announcements.directory().counts(), (0, 0), "{key} is kept");
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Role;
    use crate::names::{TopicId, TopicKey};
    use crate::qos::{PublisherQos, SubscriberQos};
    use crate::wire::{Integrity, WIRE_VERSION};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};

    const LONG: Duration = Duration::from_secs(20);

    fn loopback(listen: &str, peer: Option<&str>) -> Config {
        Config {
            network: "loopback".to_owned(),
            listen: listen.to_owned(),
            peers: peer.map(str::to_owned).into_iter().collect(),
            ..Config::default()
        }
    }

    fn free_locator() -> String {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        format!("tcp/127.0.0.1:{free}")
    }

    fn join(host: HostId, name: &str, listen: &str, peer: Option<&str>) -> (Network, Receiver<NetworkEvent>) {
        let config = loopback(listen, peer);
        let (sender, events) = channel();
        let network = Network::open(&config, host, name, move |event| drop(sender.send(event))).unwrap();
        (network, events)
    }

    fn until<T>(events: &Receiver<NetworkEvent>, mut pick: impl FnMut(NetworkEvent) -> Option<T>) -> T {
        loop {
            if let Some(found) = pick(events.recv_timeout(LONG).expect("the event comes")) {
                return found;
            }
        }
    }

    #[test]
    fn two_hosts_see_each_other_shake_hands_and_notice_the_end() {
        let locator = free_locator();
        let (a, b) = (HostId([1; 16]), HostId([2; 16]));
        let (first, first_events) = join(a, "head", &locator, None);
        let endpoint = camera();
        first.announce(&endpoint.key, vec![endpoint.clone()]);
        first.announce(&endpoint.key, vec![endpoint.clone()]);
        // A late joiner learns of earlier announcements.
        let (second, second_events) = join(b, "arm", "tcp/127.0.0.1:0", Some(&locator));
        let mut seen = (false, false);
        until(&second_events, |event| {
            match event {
                NetworkEvent::Announced(Announcement::HostUp { host, name }) => seen.0 = host == a && name == "head",
                NetworkEvent::Announced(Announcement::EndpointUp { endpoint: found, .. }) => seen.1 = found == endpoint,
                _ => {}
            }
            (seen == (true, true)).then_some(())
        });
        let of_b = |event| match event {
            NetworkEvent::Announced(announcement) if announcement.host() == b => Some(announcement),
            _ => None,
        };
        assert!(matches!(until(&first_events, of_b), Announcement::HostUp { .. }));
        hand_shake(&first, &second_events, b);
        found_again(&second, &second_events, a, &endpoint);
        first.announce(&endpoint.key, Vec::new());
        let gone =
            |event| matches!(event, NetworkEvent::Announced(Announcement::EndpointDown { host, .. }) if host == a);
        until(&second_events, |event| gone(event).then_some(()));
        drop(second);
        assert!(matches!(until(&first_events, of_b), Announcement::HostDown { .. }));
    }

    fn found_again(second: &Network, events: &Receiver<NetworkEvent>, a: HostId, endpoint: &Endpoint) {
        for scope in [None, Some(a), Some(HostId([9; 16]))] {
            second.ask(scope);
            let mut found = Vec::new();
            until(events, |event| match event {
                NetworkEvent::Found(announcement) => {
                    found.push(announcement);
                    None
                }
                NetworkEvent::FoundAll => Some(()),
                _ => None,
            });
            let has = |is: &dyn Fn(&Announcement) -> bool| found.iter().any(is);
            let name =
                has(&|found| matches!(found, Announcement::HostUp { host, name } if *host == a && name == "head"));
            let topic =
                has(&|found| matches!(found, Announcement::EndpointUp { endpoint: found, .. } if found == endpoint));
            let is_there = scope != Some(HostId([9; 16]));
            assert_eq!((name, topic, found.len()), (is_there, is_there, if is_there { 2 } else { 0 }), "{scope:?}");
        }
    }

    fn camera() -> Endpoint {
        Endpoint {
            key: TopicKey::new(7, "camera/front").unwrap(),
            role: Role::Publisher,
            type_name: "rgaps/Image".to_owned(),
            offers: vec![PublisherQos::default()],
            requests: vec![],
        }
    }

    fn ring_request() -> RingRequest {
        RingRequest {
            version: WIRE_VERSION,
            host: HostId([1; 16]),
            host_name: "head".to_owned(),
            endpoint: Endpoint { requests: vec![SubscriberQos::default()], ..camera() },
            message_bytes_max: 1 << 20,
            flow_control: true,
            integrity: Integrity::Crc32c,
            rdma: Vec::new(),
            no_rdma: "no device".to_owned(),
            published: vec![(5, 7)],
        }
    }

    fn hand_shake(first: &Network, second_events: &Receiver<NetworkEvent>, b: HostId) {
        let request = ring_request();
        let offer = RingOffer {
            version: WIRE_VERSION,
            token: TopicId([9; 16]),
            addresses: vec!["127.0.0.1:1".to_owned()],
            ring_bytes: 1 << 20,
            chunk_bytes: 1 << 16,
            watermark_bytes: 0,
            alignment: 64,
            integrity: Integrity::Crc32c,
            rdma: None,
            no_rdma: "no device".to_owned(),
            remembers: true,
            resume: vec![(5, 6)],
            keeps_history: true,
        };
        for answer in [Ok(offer), Err(RingRefusal::NoSubscribers("/camera/front".to_owned()))] {
            let (asker, sent) = (first.asker(), request.clone());
            let asking = std::thread::spawn(move || asker.request(b, &sent, LONG));
            let (got, responder) = until(second_events, |event| match event {
                NetworkEvent::RingRequested { request, responder } => Some((request, responder)),
                _ => None,
            });
            assert_eq!(*got, request);
            responder.answer(&answer);
            match (asking.join().unwrap(), answer) {
                (Ok((found, seen)), Ok(offer)) => {
                    assert_eq!(found, offer);
                    let loopback = std::net::IpAddr::from([127, 0, 0, 1]);
                    assert_eq!(seen, Seen { at: vec![loopback], is_here: true });
                }
                (Err(RingError::Refused(found)), Err(refusal)) => assert_eq!(found, refusal),
                (found, answer) => panic!("{found:?} for {answer:?}"),
            }
        }
        // The error comes at once, although the time-out is long.
        let nobody = first.asker().request(HostId([3; 16]), &request, LONG);
        assert!(matches!(nobody, Err(RingError::Absent(_))), "{nobody:?}");
        oversized_payloads_are_named(first, second_events, b, &request);
    }

    fn oversized_payloads_are_named(
        first: &Network,
        second_events: &Receiver<NetworkEvent>,
        b: HostId,
        request: &RingRequest,
    ) {
        let long = "x".repeat(HANDSHAKE_BYTES_MAX + 1);
        let asked = first.asker().request(b, &RingRequest { host_name: long.clone(), ..request.clone() }, LONG);
        assert!(matches!(asked, Err(RingError::Oversized(of, bytes)) if of == b && bytes > HANDSHAKE_BYTES_MAX));
        // If the requesting host does not check the length, the answering host refuses.
        let (answers, answer) = channel();
        let session = first.asker().session.get().unwrap().clone();
        let asking = session.get(format!("rgaps/1/{b}/ring")).payload(long.clone()).timeout(LONG);
        asking
            .callback(move |reply| drop(answers.send(reply.into_result().map(|s| s.payload().to_bytes().into_owned()))))
            .wait()
            .unwrap();
        let (refusal, responder) = until(second_events, |event| match event {
            NetworkEvent::RingRequestUnreadable { refusal, responder } => Some((refusal, responder)),
            _ => None,
        });
        responder.answer(&Err(refusal));
        let said: Result<RingOffer, RingRefusal> =
            serde_json::from_slice(&answer.recv_timeout(LONG).unwrap().unwrap()).unwrap();
        assert!(said.unwrap_err().to_string().contains("65536 B are read"));
        // If the answer would be too long, the answering host sends a refusal.
        let (asker, sent) = (first.asker(), request.clone());
        let asking = std::thread::spawn(move || asker.request(b, &sent, LONG));
        let responder = until(second_events, |event| match event {
            NetworkEvent::RingRequested { responder, .. } => Some(responder),
            _ => None,
        });
        responder.answer(&Err(RingRefusal::NoSubscribers(long)));
        assert!(asking.join().unwrap().unwrap_err().to_string().contains("65536 B are read"));
    }

    #[test]
    fn closing_a_link_delays_no_other_link() {
        let locator = free_locator();
        let (_first, _) = join(HostId([1; 16]), "head", &locator, None);
        let second = HostId([2; 16]);
        let (_second, events) = join(second, "arm", "tcp/127.0.0.1:0", Some(&locator));
        until(&events, |event| match event {
            NetworkEvent::Announced(announcement) => Some(announcement),
            _ => None,
        });
        let deadline = std::time::Instant::now() + LONG;
        while rgaps_os::linger::count().unwrap() > 0 {
            assert!(std::time::Instant::now() < deadline, "sockets of zenoh linger");
            rgaps_testing::pause();
        }
    }

    #[test]
    fn a_local_host_has_no_session_and_no_other_hosts() {
        let (events, none) = channel();
        let network =
            Network::open(&Config::default(), HostId([1; 16]), "alone", move |event| drop(events.send(event)));
        let network = network.unwrap();
        assert!(network.asker().session.get().is_none());
        network.announce(&camera().key, vec![camera()]);
        network.announce(&camera().key, Vec::new());
        network.ask(None);
        let asked = network.asker().request(HostId([2; 16]), &ring_request(), LONG);
        assert!(matches!(asked, Err(RingError::Absent(_))), "{asked:?}");
        assert!(none.try_recv().is_err(), "no events of other hosts");
    }

    #[test]
    fn an_access_control_rule_keeps_other_hosts_from_requesting_rings() {
        let rules = std::env::temp_dir().join(format!("rgaps-access-{}.json5", std::process::id()));
        let text = r#"{access_control: {
            enabled: true, default_permission: "allow", subjects: [{id: "anyone"}],
            rules: [{id: "no rings", permission: "deny", flows: ["ingress"], messages: ["query"], key_exprs: ["rgaps/1/*/ring"]}],
            policies: [{rules: ["no rings"], subjects: ["anyone"]}],
        }}"#;
        std::fs::write(&rules, text).unwrap();
        let (a, b) = (HostId([1; 16]), HostId([2; 16]));
        let locator = free_locator();
        let (first, first_events) = join(a, "head", &locator, None);
        let file = rules.display().to_string();
        let config = Config { zenoh_config: file, ..loopback("tcp/127.0.0.1:0", Some(&locator)) };
        let (sender, second_events) = channel();
        let second = Network::open(&config, b, "arm", move |event| drop(sender.send(event))).unwrap();
        std::fs::remove_file(&rules).unwrap();
        let of_b = |event| match event {
            NetworkEvent::Announced(announcement) if announcement.host() == b => Some(announcement),
            _ => None,
        };
        assert!(matches!(until(&first_events, of_b), Announcement::HostUp { .. }));
        let asked = first.asker().request(b, &ring_request(), Duration::from_secs(1));
        assert!(matches!(asked, Err(RingError::TimedOut(..) | RingError::Absent(_))), "{asked:?}");
        // The rule is for one direction: the host with the rule may itself send requests and gets answers, so the link works.
        let asking = std::thread::spawn(move || second.asker().request(a, &ring_request(), LONG));
        let responder = until(&first_events, |event| match event {
            NetworkEvent::RingRequested { responder, .. } => Some(responder),
            _ => None,
        });
        responder.answer(&Err(RingRefusal::NoSubscribers("/camera/front".to_owned())));
        assert!(matches!(asking.join().unwrap(), Err(RingError::Refused(_))));
        let heard: Vec<NetworkEvent> = second_events.try_iter().collect();
        assert!(!heard.iter().any(|event| matches!(event, NetworkEvent::RingRequested { .. })), "{heard:?}");
    }

    #[test]
    fn hexadecimal_text_from_other_hosts_is_checked() {
        assert_eq!(unhex(&hex(b"a/*$?\xff")).unwrap(), b"a/*$?\xff");
        assert!(unhex("abc").is_none() && unhex("zz").is_none() && unhex("ää").is_none());
    }
}
