//! The messages between clients and their manager.

use serde::{Deserialize, Serialize};

use crate::names::{HostId, LockId, TopicId, TopicKey};
use crate::qos::{PublisherQos, SubscriberQos};
use crate::{EndpointSlot, PublisherSlot, SubscriberSlot};

/// Version of all messages in this file; client and manager must agree.
pub const PROTOCOL_VERSION: u32 = 14;

/// Slots in one `HandBack`, at most: as many refusals fit into its reply.
pub const HANDED_SLOTS_MAX: usize = 96;

/// Locks that a client holds, at most: the lock of its last welcome, and those under which earlier managers may have noted it.
pub const HELD_LOCKS_MAX: usize = 16;

/// Subscribers in one `Subscribers`, at most: each has up to two file descriptors, and a message may carry `FDS_MAX`.
pub const SUBSCRIBERS_A_REPLY_MAX: usize = 64;

/// A client's request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client; the reply repeats it.
    pub id: u64,
    /// The kind of request.
    pub body: Body,
}

/// Requests, with the file descriptors that travel beside them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// The first request. Beside it: a pidfd of the client.
    Hello {
        /// `PROTOCOL_VERSION`.
        protocol: u32,
        /// The program's name, for people.
        program: String,
        /// The segment layout version that the client reads.
        #[serde(default)]
        layout: u32,
        /// The locks that it already holds, of this manager or of predecessors, `HELD_LOCKS_MAX` at most.
        #[serde(default)]
        locks: Vec<LockId>,
    },
    /// The client holds the lock whose file came with the welcome. The manager answers no other request before this one.
    Locked,
    /// Join a topic as a publisher. The reply brings segment and pool; the client then sends `PoolMapped`, unless it has the pool already.
    Advertise {
        /// The topic.
        key: TopicKey,
        /// Its type.
        type_name: String,
        /// What is offered.
        qos: PublisherQos,
        /// A publisher of the same client whose pool this one shares; `None`: it gets a pool of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool_of: Option<(TopicId, PublisherSlot)>,
    },
    /// The publisher has mapped its pool: the manager seals it and hands it to subscribers.
    PoolMapped {
        /// The topic.
        topic: TopicId,
        /// The publisher's slot.
        slot: PublisherSlot,
    },
    /// Join a topic as a subscriber. The reply brings the segment for reading, and the subscriber's own words.
    Subscribe {
        /// The topic.
        key: TopicKey,
        /// Its type.
        type_name: String,
        /// What is requested.
        qos: SubscriberQos,
    },
    /// The pool of a publisher, for reading. The reply brings its slabs.
    Pool {
        /// The topic.
        topic: TopicId,
        /// The publisher's slot.
        slot: PublisherSlot,
    },
    /// Memory for slabs of a publisher's own pool that have none yet. The reply brings it.
    Commit {
        /// The topic.
        topic: TopicId,
        /// The publisher's slot.
        slot: PublisherSlot,
        /// Which slabs.
        slabs: Vec<u32>,
    },
    /// The publisher's pool is empty, and the publisher has released the slabs in this range: the manager releases them too.
    Trim {
        /// The topic.
        topic: TopicId,
        /// The publisher's slot.
        slot: PublisherSlot,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Registers a subscriber's eventfd, a non-blocking one, which comes beside the request. A subscriber has one for its whole life; later ones are
    /// ignored.
    EventFd {
        /// The topic.
        topic: TopicId,
        /// The subscriber's slot.
        slot: SubscriberSlot,
    },
    /// What a publisher needs to serve these subscribers, `SUBSCRIBERS_A_REPLY_MAX` at most. The reply brings it.
    Subscribers {
        /// The topic.
        topic: TopicId,
        /// The subscribers' slots.
        slots: Vec<SubscriberSlot>,
    },
    /// Give up a slot.
    Detach {
        /// The topic.
        topic: TopicId,
        /// The slot.
        slot: EndpointSlot,
    },
    /// Observe without joining. The reply brings the segment.
    Observe {
        /// The topic.
        key: TopicKey,
    },
    /// List the topics, one part of the list per request.
    Topics {
        /// The last topic of the part before.
        after: Option<TopicKey>,
    },
    /// After the manager's restart: slots of one client, `HANDED_SLOTS_MAX` at most. Beside it: for each topic its segment, then for each of its
    /// slots the slabs of the publisher's own pool, or the file with a subscriber's own words and its eventfd if it has one.
    HandBack {
        /// By topic.
        topics: Vec<HandedTopic>,
    },
    /// The client has handed back all its slots: the manager frees the other slots that are noted as this client's.
    HandedAllBack,
}

/// Slots of one topic, handed back to a manager that has just started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedTopic {
    /// The topic.
    pub key: TopicKey,
    /// Its segment.
    pub topic: TopicId,
    /// Its type.
    pub type_name: String,
    /// The slots.
    pub slots: Vec<HandedSlot>,
}

/// A slot that is handed back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedSlot {
    /// How many file descriptors belong to it.
    pub fds: u32,
    /// The slot, and what the manager must know of its occupant.
    pub of: Handed,
}

/// A slot that is handed back, and what the manager must know of its occupant.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handed {
    /// A publisher's.
    Publisher {
        /// The slot.
        slot: PublisherSlot,
        /// What it offers.
        qos: PublisherQos,
        /// Its pool, as the device crate describes it.
        pool: serde_json::Value,
    },
    /// A subscriber's.
    Subscriber {
        /// The slot.
        slot: SubscriberSlot,
        /// What it requests.
        qos: SubscriberQos,
        /// Where the subscriber's own words are in their file.
        place: u32,
    },
    /// The publisher or subscriber is gone, but a stream of the client may still write to its words: the slot stays taken until the client's process
    /// ends.
    Kept {
        /// The slot.
        slot: EndpointSlot,
    },
}

impl Handed {
    /// The slot.
    pub fn slot(&self) -> EndpointSlot {
        match self {
            Self::Publisher { slot, .. } => (*slot).into(),
            Self::Subscriber { slot, .. } => (*slot).into(),
            Self::Kept { slot } => *slot,
        }
    }
}

/// A slot that the manager did not take back: it is free, or another client has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedSlot {
    /// The topic.
    pub topic: TopicId,
    /// The slot.
    pub slot: EndpointSlot,
    /// Why.
    pub why: String,
}

/// Whether an endpoint publishes or subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A publisher's.
    Publisher,
    /// A subscriber's.
    Subscriber,
}

/// Every message of the manager.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToClient {
    /// The answer to a request.
    Reply {
        /// The request's.
        id: u64,
        /// The answer.
        reply: Result<Reply, Refusal>,
    },
    /// Sent unasked.
    Notice(Notice),
}

/// Answers, with the file descriptors that travel beside them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To `Hello`. Beside it: the file of the client's lock, for reading, unless the client holds that lock already; then `Locked` must follow.
    Welcome(Welcome),
    /// To `Advertise`. Beside it: the segment for writing, then those of the pool.
    Advertised(Advertised),
    /// To `Subscribe`. Beside it: the segment for reading, then the file with the subscriber's own words for writing.
    Subscribed(Subscribed),
    /// To `Pool`: its description. Beside it: its slabs.
    Pool(serde_json::Value),
    /// To `Commit`: the slabs, as the device crate describes them. Beside it: a file descriptor of each.
    Slabs(serde_json::Value),
    /// To `Subscribers`: those of them that still exist. Beside it: for each the file with its own words for reading, then its eventfd if it has one.
    Subscribers {
        /// The topic.
        topic: TopicId,
        /// The subscribers.
        subscribers: Vec<NoticedSubscriber>,
    },
    /// To `Observe`. Beside it: the segment for reading.
    Observed {
        /// The topic's segment.
        topic: TopicId,
        /// Its type.
        type_name: String,
    },
    /// To `Topics`.
    Topics {
        /// In the order of their keys.
        topics: Vec<TopicSummary>,
        /// Whether more topics follow these.
        more: bool,
    },
    /// To `HandBack`.
    HandedBack {
        /// The slots that were not taken back.
        refused: Vec<RefusedSlot>,
    },
    /// To all other requests.
    Done,
}

/// To `Hello`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The manager's host.
    pub host: HostId,
    /// When the host began (`RuntimeDir::epoch`).
    pub epoch: u64,
    /// Its name.
    pub host_name: String,
    /// Its process.
    pub manager_pid: u32,
    /// The device that pools are on.
    pub device: String,
    /// The lock by which this manager knows that the client lives.
    pub lock: LockId,
    /// What this manager could not write when it started, and the consequence. The client logs it.
    #[serde(default)]
    pub lacks: Vec<String>,
}

/// To `Advertise`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Advertised {
    /// The topic's segment.
    pub topic: TopicId,
    /// The publisher's slot.
    pub slot: PublisherSlot,
    /// The publisher's identity, the same on all hosts.
    pub publisher: u64,
    /// Its pool, as the device crate describes it; `None` if it shares one.
    pub pool: Option<serde_json::Value>,
    /// How many file descriptors belong to the pool.
    pub pool_fds: u32,
}

/// To `Subscribe`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Subscribed {
    /// The topic's segment.
    pub topic: TopicId,
    /// The subscriber's slot.
    pub slot: SubscriberSlot,
    /// Where the subscriber's own words are in their file.
    pub place: u32,
}

/// A topic as `rgaps topic list` and `info` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicSummary {
    /// The topic.
    pub key: TopicKey,
    /// Its type.
    pub type_name: String,
    /// Publishers on this host.
    pub publishers: u32,
    /// Subscribers on this host.
    pub subscribers: u32,
    /// Hosts that publish it, by name.
    pub publishing_hosts: Vec<String>,
    /// Hosts that subscribe to it, by name.
    pub subscribing_hosts: Vec<String>,
    /// Why publishers and subscribers are incompatible.
    pub mismatches: Vec<String>,
    /// State of the links, one line each.
    pub links: Vec<String>,
    /// Bytes of memory that the segment and the pools occupy on this host.
    pub resident_bytes: u64,
    /// Messages that the subscribers of this host have lost, as far as they know. Those that have left do not count.
    pub lost: u64,
}

/// A request was refused. The client keeps what it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Client and manager are of different versions.
    #[error("rgapsd speaks protocol {manager}, this program {client}; run one version of RGAPS on a host")]
    Protocol {
        /// The manager's.
        manager: u32,
        /// The client's.
        client: u32,
    },
    /// Client and manager would read topic segments differently.
    #[error(
        "rgapsd makes topics of layout {manager}, this program reads layout {client}; run one version of RGAPS on a host"
    )]
    Layout {
        /// The manager's.
        manager: u32,
        /// The client's.
        client: u32,
    },
    /// The topic has another type.
    #[error("{topic} carries {existing}, not {wanted}; use another topic name")]
    Type {
        /// The topic.
        topic: String,
        /// Its type.
        existing: String,
        /// The type that the client wants.
        wanted: String,
    },
    /// All slots are taken, or memory is used up.
    #[error("{0}")]
    Exhausted(String),
    /// There is no such topic, slot or pool.
    #[error("{0}")]
    NotFound(String),
    /// The request is invalid in this state.
    #[error("rgapsd refuses the request: {0}")]
    Invalid(String),
}

/// What publishers need to know about a subscriber.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct NoticedSubscriber {
    /// Its slot.
    pub slot: SubscriberSlot,
    /// Where the subscriber's own words are in their file.
    pub place: u32,
    /// Whether its eventfd is beside the message.
    pub has_event: bool,
}

/// What the manager sends unasked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// To publishers: a subscriber has joined, or has an eventfd now. The segment says which; the publisher requests the rest (`Body::Subscribers`).
    /// A notice carries no file descriptors: a stopped client does not read it, and the kernel bounds the file descriptors in flight per user.
    Subscribers {
        /// The topic.
        topic: TopicId,
    },
    /// Something that people should know: a mismatch, a demotion, a lost host. The client logs it.
    Warning {
        /// The topic.
        topic: TopicId,
        /// What happened, and what to do about it.
        text: String,
    },
}
