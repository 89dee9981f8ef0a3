//! Which subscription gets what: the subscriptions of a process, those that it publishes to, and the descriptors between them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use rgaps::types::Bytes;
use rgaps::{History, Node, NodeError, Pool, Publisher, SubscriberQos};

use super::buffer::Buffer;
use super::descriptor::Descriptor;
use super::gid::{Gid, lock};
use super::groups::Groups;
use super::joins::{Join, JoinError, Joins};
use super::missing::Missing;
use super::payload::{BYTES_MAX, BufferError, Receiver};
use super::peer::{Peer, Place};
use super::peers::Peers;
use super::receivers::{OWN_TOPICS_MAX, Receivers};
use super::shared::{Shared, count, has_timed_out};
use super::work::Work;

/// The depth of a subscription whose QoS the middleware does not tell.
const DEPTH_UNKNOWN: u32 = 256;

/// How many messages more than the middleware a subscription keeps: those whose descriptors are on the way.
const SLACK: u32 = 64;

/// How many requests to join a topic are counted: descriptors may ask for any.
const REQUESTS_MAX: usize = 4096;

/// For how many subscriptions of this process the depth is remembered.
const DEPTHS_MAX: usize = 4096;

/// The version of metadata, topics and descriptors. Endpoints with another one exchange bytes.
pub(super) const VERSION: &str = "1";

/// Why a subscription gets the bytes themselves in the message, through host memory.
#[derive(Debug, thiserror::Error)]
pub enum NotDescribed {
    /// The middleware has not announced it as one that takes these buffers.
    #[error(
        "subscription {0} is unknown here, or does not take rgaps buffers of this version; use one version of RGAPS on all hosts"
    )]
    Unknown(Gid),
    /// No manager connects it to this process (yet).
    #[error(
        "subscription {0} is not reached: its process has no manager, or the managers are not linked yet (ros2 rgaps hosts)"
    )]
    Unreached(Gid),
    /// The process cannot publish to it.
    #[error("no payload can be published to subscription {gid}: {source}")]
    Publisher {
        /// The subscription.
        gid: Gid,
        /// Why.
        source: NodeError,
    },
    /// The payload cannot be published.
    #[error(transparent)]
    Buffer(Box<BufferError>),
}

impl From<BufferError> for NotDescribed {
    fn from(error: BufferError) -> Self {
        Self::Buffer(Box::new(error))
    }
}

/// Counters since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Buffers that were allocated.
    pub allocated: u64,
    /// Payloads that were published, once for each subscription.
    pub published: u64,
    /// Messages that a subscription which accepts these buffers got as bytes: it was not reached, the bytes were being written, or the payload could not
    /// be published. Subscriptions that take only bytes are not counted.
    pub as_bytes: u64,
    /// Copies on the device: of buffers that were written after publication, came from another process, or were cloned while they were filled.
    pub copied: u64,
    /// Descriptors that were received.
    pub received: u64,
    /// Descriptors whose payload turned out to be missing, lost or invalid.
    pub refused: u64,
    /// Subscriptions, in this process and others, that a payload of this process reaches now.
    pub reached: u64,
}

/// What a process has for its buffers. Cheap to clone.
///
/// ```
/// use rgaps::Node;
/// use rgaps_ros_policy::buffers::{Buffers, Gid};
///
/// # let _host = rgaps_testing::example_host();
/// let (camera, viewer) = (Buffers::new(Node::new("camera")?), Buffers::new(Node::new("viewer")?));
/// let gid = Gid([7; 16]); // of a subscription of the viewer, by its middleware
/// viewer.subscription_created(gid, None)?;
/// camera.subscription_discovered(gid, &viewer.metadata(), &[]); // the middleware carries the text
///
/// let buffer = camera.allocate(5)?;
/// buffer.copy_in(b"hello")?;
/// let descriptor = camera.describe(&buffer, gid)?; // in place of the bytes, in the message
/// let received = viewer.receive(&descriptor);
/// assert_eq!(received.to_vec()?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Buffers(Arc<Inner>);

/// What the thread does.
#[derive(Debug)]
enum Job {
    /// Make a publisher for a subscription.
    Connect(Gid),
    /// Make some publishers that are missing.
    Reconnect,
    /// Give up publishers of subscriptions that have left, or never came.
    GiveUp,
    /// Make a subscription's subscriber anew, on its own topic or on a joined one; if that is not possible, tell the process that relies on it.
    TakeAgain(u64, Join),
    /// Make the subscribers of subscriptions that have none: it could not be made, or is cut off.
    TakeMissing,
    /// Make a subscription join a topic, and tell the publishing process.
    Join(u64, Join),
    /// Listen to what others join.
    Listen,
    /// Note what others have joined.
    Note,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    /// A number that other processes can tell it by.
    process: u64,
    /// Subscriptions of this process.
    own: Receivers,
    /// For each of them, how many were created before, and how many messages the middleware keeps for it, if it tells.
    depths: Mutex<HashMap<Gid, (u64, Option<u32>)>>,
    /// How many were created so far.
    created: AtomicU64,
    /// Those without a subscriber.
    missing: Missing,
    /// How often each join was asked for: each message may ask.
    requests: Mutex<HashMap<(u64, Join), u32>>,
    peers: Peers,
    /// The number of this host's manager, and when it was first seen.
    manager: Mutex<(u64, Instant)>,
    groups: Mutex<Groups>,
    joins: Joins,
    metadata: OnceLock<String>,
    work: Work<Job>,
}

impl Buffers {
    /// For all buffers of a process.
    pub fn new(node: Node) -> Self {
        Self(Arc::new(Inner {
            shared: Arc::new(Shared::new(node)),
            // Random: each of these has keys of its own.
            process: RandomState::new().hash_one(std::process::id()),
            own: Receivers::default(),
            depths: Mutex::default(),
            created: AtomicU64::new(0),
            missing: Missing::default(),
            requests: Mutex::default(),
            peers: Peers::default(),
            manager: Mutex::new((0, Instant::now())),
            groups: Mutex::default(),
            joins: Joins::default(),
            metadata: OnceLock::new(),
            work: Work::default(),
        }))
    }

    /// The node through which payloads go.
    pub fn node(&self) -> &Node {
        &self.0.shared.node
    }

    /// The text with which the middleware announces an endpoint of this process: version, host and device. It has only letters, digits, '-' and ':'.
    pub fn metadata(&self) -> String {
        let text = || {
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let (node, device) = (&self.0.shared.node, self.0.shared.node.device());
            let name = match device.kind() {
                rgaps::device::DeviceKind::Host => "host".to_owned(),
                rgaps::device::DeviceKind::Cuda => format!("cuda-{}", hex(&device.device().0)),
            };
            format!("{VERSION}:{}:{name}:", hex(&node.host()))
        };
        self.0.metadata.get_or_init(text).clone()
    }

    /// To be called when a subscription of this process is created, before others hear of it. `depth`: how many messages its middleware keeps. Waits for
    /// the manager, unless that was in vain a moment ago. What cannot be made is made later (`take_missing`); until then the subscription gets bytes.
    pub fn subscription_created(&self, gid: Gid, depth: Option<u32>) -> Result<(), NodeError> {
        let mut depths = lock(&self.0.depths);
        if depths.len() >= DEPTHS_MAX {
            // The oldest one that takes nothing has probably ended.
            let idle = depths.iter().filter(|(gid, _)| !self.0.own.takes(**gid, **gid));
            let oldest = idle.min_by_key(|(_, (number, _))| *number).map(|(gid, _)| *gid);
            oldest.and_then(|gid| depths.remove(&gid));
        }
        let number = self.0.created.fetch_add(1, Ordering::Relaxed);
        depths.insert(gid, (number, depth));
        drop(depths);
        if self.0.missing.is_put_off(gid) {
            return Ok(());
        }
        self.take_from(gid, gid)
    }

    /// Has subscribers made that are missing, unless that was tried a moment ago. Called whenever something hints that a manager answers. Never waits.
    pub(super) fn take_missing(&self) {
        self.0.missing.make(|| self.0.own.cut_off(), || self.later(Job::TakeMissing));
    }

    /// Makes the subscribers that are missing, of the newest subscriptions if there are too many. Waits for the manager.
    fn take_missing_now(&self) {
        let mut all = self.0.missing.take();
        let depths = lock(&self.0.depths).clone();
        all.sort_by_key(|gid| std::cmp::Reverse(depths.get(gid).map(|(number, _)| *number)));
        all.truncate(OWN_TOPICS_MAX);
        // The oldest first: the last ones count as the most recently used.
        all.reverse();
        let mut missing = all.iter().filter(|gid| !self.0.own.takes(**gid, **gid));
        // If one waits in vain, the others would, too.
        let failed = missing.find(|gid| self.take_from(**gid, **gid).is_err_and(|error| has_timed_out(&error)));
        self.0.missing.put_back(failed.into_iter().chain(missing).copied());
    }

    /// Makes a subscription take payloads from the topic of this one or another.
    fn take_from(&self, gid: Gid, topic: Gid) -> Result<(), NodeError> {
        let depth = lock(&self.0.depths).get(&gid).and_then(|(_, depth)| *depth);
        // A payload is published before its descriptor is sent, so some may be there whose descriptors are not.
        let depth = depth.map_or(DEPTH_UNKNOWN, |depth| depth.saturating_add(SLACK));
        let qos = SubscriberQos { history: History::KeepLast(depth), ..SubscriberQos::default() };
        let subscriber = self.0.shared.node.subscriber_with::<Bytes>(&topic.topic(), qos);
        if gid == topic {
            self.0.missing.note(gid, subscriber.as_ref().err());
        }
        self.0.own.add(gid, topic, Receiver::new(subscriber?));
        Ok(())
    }

    /// To be called when a subscription of any process is discovered that may get messages of this one. Never waits. `metadata`: its `metadata`. `others`: endpoints
    /// that its publisher here knows already. False if it is of another version, and gets bytes.
    pub fn subscription_discovered(&self, gid: Gid, metadata: &str, others: &[Gid]) -> bool {
        if !is_of_this_version(metadata) {
            return false;
        }
        let own = self.metadata();
        let host = |text: &str| text.split(':').nth(1).filter(|host| host.len() == 32).map(str::to_owned);
        let place = match host(metadata) {
            None => Place::Unknown,
            here if here == host(&own) => Place::Here,
            Some(other) => Place::On(other),
        };
        self.take_missing();
        lock(&self.0.groups).add(gid, others);
        if let Some(forgotten) = self.0.peers.add(gid, place) {
            lock(&self.0.groups).remove(forgotten);
        }
        self.later(Job::GiveUp);
        // A process that has allocated buffers will publish. The others may be plain publishers, and need no pool.
        if self.0.shared.made_pool().is_some() {
            self.later(Job::Connect(gid));
        }
        true
    }

    /// Has the thread do something; false if it has too much to do.
    fn later(&self, job: Job) -> bool {
        let thread = || {
            let buffers = self.clone();
            let thread = std::thread::Builder::new().name("rgaps-buffers".to_owned());
            thread.spawn(move || buffers.0.work.run(|job| buffers.do_now(job))).is_ok()
        };
        self.0.work.add(job, thread)
    }

    /// What cannot be done, a later message asks for again.
    fn do_now(&self, job: Job) {
        match job {
            Job::Connect(gid) => {
                let _ = self.0.peers.get(gid).map(|peer| self.0.peers.make_publisher(&peer, &self.0.shared, false));
                self.0.peers.give_up();
            }
            Job::Reconnect => {
                self.0.peers.reconnect(&self.0.shared);
                self.0.peers.give_up();
            }
            Job::GiveUp => self.0.peers.give_up(),
            Job::TakeAgain(process, join) => self.take_again(process, join),
            Job::TakeMissing => self.take_missing_now(),
            Job::Join(process, join) => {
                let _ = self.try_join(process, join);
            }
            Job::Listen => {
                let _ = self.0.joins.listen(&self.0.shared.node, self.0.process);
            }
            Job::Note => self.0.joins.take().iter().for_each(|join| self.0.note(join)),
        }
    }

    /// Allocates a buffer of `bytes` bytes in the process's pool, which the first call makes. If the pool is full, what subscriptions have not taken
    /// is given up, oldest first. Errors: `TooLong`, `Pool`, `Full`.
    pub fn allocate(&self, bytes: u64) -> Result<Buffer, BufferError> {
        if bytes > BYTES_MAX {
            return Err(BufferError::TooLong { wanted: bytes });
        }
        let pool = self.pool()?;
        self.take_missing();
        // Frees what devices have done with.
        self.0.shared.lanes.reap();
        let block = pool.allocate(bytes).map_err(BufferError::of_pool)?;
        count(&self.0.shared.counters.allocated);
        Buffer::filling(&self.0.shared, block)
    }

    /// Publishes a buffer to one subscription, in the order of its writes, and returns what names it there. The first call ends the filling. After an error,
    /// the middleware sends the bytes instead. The descriptor has no payload if the subscription has left, or the buffer cannot be read.
    pub fn describe(&self, buffer: &Buffer, gid: Gid) -> Result<Descriptor, NotDescribed> {
        let described = self.try_describe(buffer, gid);
        match &described {
            Ok(descriptor) if descriptor.has_no_payload() => {}
            Ok(_) => count(&self.0.shared.counters.published),
            // Not of those that accept these buffers.
            Err(NotDescribed::Unknown(_)) => {}
            Err(_) => count(&self.0.shared.counters.as_bytes),
        }
        described
    }

    fn try_describe(&self, buffer: &Buffer, gid: Gid) -> Result<Descriptor, NotDescribed> {
        let peer = self.0.peers.get(gid).ok_or(NotDescribed::Unknown(gid))?;
        // What cannot be read has no bytes that the middleware could send instead.
        if buffer.await_to_publish().is_err() {
            return Ok(Descriptor::without_payload(gid, buffer.len()));
        }
        if self.0.shared.made_pool().is_none() {
            if self.has_failed() {
                return Err(NotDescribed::Unreached(gid));
            }
            self.pool().inspect_err(|error| {
                self.note_failure(matches!(error, BufferError::Pool(error) if has_timed_out(error)))
            })?;
        }
        if self.0.joins.claim_news() && !self.later(Job::Note) {
            self.0.joins.put_off();
        }
        let mut leader = gid;
        if let Some(host) = peer.remote_host() {
            leader = lock(&self.0.groups).leader(gid, host);
            if leader != gid && self.0.peers.get(leader).is_none_or(|of| !of.is_reached()) {
                leader = lock(&self.0.groups).replace_leader(gid, host, leader);
            }
            // Then it needs no publisher of its own.
            if let Some(since) = peer.joined(leader)
                && let Some(of) = self.0.peers.get(leader).filter(|of| of.is_reached()).and_then(|of| of.made())
            {
                peer.mark_reached(self.0.manager().0);
                let handle = buffer.to_publish()?.publish_for(leader, gid, since, &of)?;
                let process = self.0.process;
                return Ok(Descriptor { handle, subscription: gid, topic: leader, process, ..Descriptor::default() });
            }
        }
        // The middleware still has one that has left, for ever: that must not cost bytes. If its host is cut off, its reads say so.
        let is_at_leader =
            || peer.all_joined().into_iter().filter_map(|of| self.0.peers.get(of)).any(|of| of.has_subscriber());
        let not_reached = || match peer.has_left(self.0.manager()) && !is_at_leader() {
            true => Ok(Descriptor::without_payload(gid, buffer.len())),
            false => Err(NotDescribed::Unreached(gid)),
        };
        let publisher = self.publisher(&peer).map_err(|source| NotDescribed::Publisher { gid, source })?;
        let Some(publisher) = publisher else { return not_reached() };
        if !peer.is_reached() {
            return not_reached();
        }
        peer.mark_reached(self.0.manager().0);
        let handle = buffer.to_publish()?.publish_for(gid, gid, 0, &publisher)?;
        let described = Descriptor { handle, subscription: gid, topic: gid, ..Descriptor::default() };
        if leader == gid {
            return Ok(described);
        }
        if !self.0.joins.is_listening() {
            self.later(Job::Listen);
            return Ok(described);
        }
        peer.ask_to_join(leader);
        Ok(Descriptor { join: leader, process: self.0.process, ..described })
    }

    /// Whether a publication has waited in vain a moment ago, or a relay for the manager.
    fn has_failed(&self) -> bool {
        self.0.peers.has_failed() || self.0.shared.is_manager_silent()
    }

    fn note_failure(&self, has_timed_out: bool) {
        self.0.peers.note_failure();
        if has_timed_out {
            self.0.shared.note_silence();
        }
    }

    /// The publisher for a subscription. Waits for the manager only for the first one, and not soon after that was in vain; the others are made later.
    fn publisher(&self, peer: &Arc<Peer>) -> Result<Option<Arc<Publisher<Bytes>>>, NodeError> {
        if let Some(publisher) = peer.made() {
            return Ok(Some(publisher));
        }
        if peer.tried().is_none() && !self.has_failed() {
            let made = self.0.peers.make_publisher(peer, &self.0.shared, true);
            // `None`: it has waited for another thread, in vain.
            if !matches!(made, Ok(Some(_))) {
                self.note_failure(made.as_ref().is_err_and(has_timed_out));
            }
            return made;
        }
        self.0.peers.reconnect_unless_recent(|| self.later(Job::Reconnect));
        Ok(None)
    }

    /// The buffer that a descriptor names. It never waits and never fails: a payload that cannot be taken is an error of the buffer's reads.
    pub fn receive(&self, descriptor: &Descriptor) -> Buffer {
        count(&self.0.shared.counters.received);
        let Descriptor { subscription, topic, join, process, .. } = *descriptor;
        let receiver = self.0.own.get(subscription, topic);
        let takes = receiver.as_ref().is_some_and(|receiver| !receiver.is_cut_off());
        let asks = (join != Gid::default()).then_some((process, Join { subscription, leader: join }));
        let buffer = Buffer::received(&self.0.shared, descriptor, receiver, asks);
        // Only subscriptions of this process have a depth.
        let is_own = || subscription == topic && lock(&self.0.depths).contains_key(&subscription);
        if !takes && (is_own() || self.0.own.has_joined(subscription, topic)) {
            self.later(Job::TakeAgain(process, Join { subscription, leader: topic }));
        }
        self.take_missing();
        for (process, join) in self.0.shared.take_asked() {
            if self.should_request(process, join) {
                self.later(Job::Join(process, join));
            }
        }
        buffer
    }

    /// Makes a subscription's subscriber anew on a topic, its own or one that it has joined. If it reads too many others, tells the publishing process to use
    /// its own.
    fn take_again(&self, process: u64, join: Join) {
        let Join { subscription, leader: topic } = join;
        if self.0.own.takes(subscription, topic) {
            return;
        }
        // What cannot be done, a later message asks for again.
        if self.0.own.may_take(subscription, topic) {
            let _ = self.take_from(subscription, topic);
        } else if self.was_requested(process, join) && self.should_request(process, Join::none(subscription)) {
            let _ = self.0.joins.tell(&self.0.shared.node, process, Join::none(subscription));
        }
    }

    /// Whether that process has asked for it with a payload. Anybody can send descriptors.
    fn was_requested(&self, process: u64, join: Join) -> bool {
        lock(&self.0.requests).contains_key(&(process, join))
    }

    /// True for request 1, 2, 4, 8, ...: each message repeats the request, and what an earlier one has caused may have been lost.
    fn should_request(&self, process: u64, join: Join) -> bool {
        let mut requests = lock(&self.0.requests);
        if requests.len() >= REQUESTS_MAX && !requests.contains_key(&(process, join)) {
            // The others would not be trusted when they have to be told something (`take_again`).
            requests.retain(|(_, join), _| self.0.own.has_joined(join.subscription, join.leader));
            if requests.len() >= REQUESTS_MAX {
                requests.clear();
            }
        }
        let asked = requests.entry((process, join)).or_insert(0);
        *asked = asked.saturating_add(1);
        asked.is_power_of_two()
    }

    fn try_join(&self, process: u64, join: Join) -> Result<(), JoinError> {
        if !self.0.own.takes(join.subscription, join.leader) {
            if !self.0.own.may_take(join.subscription, join.leader) {
                return Ok(());
            }
            self.take_from(join.subscription, join.leader)?;
        }
        lock(&self.0.requests).remove(&(process, Join::none(join.subscription)));
        self.0.joins.tell(&self.0.shared.node, process, join)
    }

    /// The pool. The call that makes it also connects the subscriptions that are known.
    fn pool(&self) -> Result<Pool, BufferError> {
        if let Some(pool) = self.0.shared.made_pool() {
            return Ok(pool);
        }
        let pool = self.0.shared.pool().map_err(BufferError::Pool)?;
        for peer in self.0.peers.all() {
            self.later(Job::Connect(peer.gid()));
        }
        Ok(pool)
    }

    /// Counters.
    pub fn statistics(&self) -> Statistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.shared.counters;
        Statistics {
            allocated: read(&counters.allocated),
            published: read(&counters.published),
            as_bytes: read(&counters.as_bytes),
            copied: read(&counters.copied),
            received: read(&counters.received),
            refused: read(&counters.refused),
            reached: self.0.peers.all().iter().filter(|peer| self.0.is_reached(peer)).count() as u64,
        }
    }

    /// Bytes of the pool that are in use: of buffers, and of payloads that subscriptions have not released.
    pub fn used_bytes(&self) -> u64 {
        self.0.shared.lanes.reap();
        self.0.shared.made_pool().map_or(0, |pool| pool.used_bytes())
    }
}

impl Inner {
    /// The number of this host's manager, and when it was first seen here.
    fn manager(&self) -> (u64, Instant) {
        let number = self.shared.node.manager_number();
        let mut seen = lock(&self.manager);
        if seen.0 != number {
            *seen = (number, Instant::now());
        }
        *seen
    }

    /// Whether a payload reaches it, on its topic or on one that it has joined. Never waits.
    fn is_reached(&self, peer: &Peer) -> bool {
        peer.is_reached() || peer.all_joined().into_iter().filter_map(|of| self.peers.get(of)).any(|of| of.is_reached())
    }

    /// Notes that a subscription has joined the topic of another one, if it was asked to; or that it reads its own topic only.
    fn note(&self, join: &Join) {
        let Join { subscription, leader } = *join;
        if *join == Join::none(subscription) {
            self.peers.get(subscription).iter().for_each(|peer| peer.forget_joins());
            return;
        }
        if let Some(peer) = self.peers.get(subscription).filter(|peer| peer.was_asked_to_join(leader)) {
            let since = self.shared.joins_noted.fetch_add(1, Ordering::AcqRel) + 1;
            peer.note_join(leader, since);
        }
    }
}

/// Whether endpoints with this metadata and those of this process understand each other.
pub(super) fn is_of_this_version(metadata: &str) -> bool {
    metadata.split_once(':').is_some_and(|(version, _)| version == VERSION)
}
