//! A node's publishers and subscribers, as its session knows them.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, Weak};

use rgaps_control::{EndpointSlot, PublisherQos, PublisherSlot, SubscriberQos, SubscriberSlot, TopicId};
use rgaps_device::PoolMemory;
use rgaps_shm::{Segment, SubscriberPages, WriterPort};

use crate::endpoint::attachment::Attachment;
use crate::endpoint::completions::{Completions, Releasing, StreamFill};
use crate::endpoint::idle::IdlePool;
use crate::endpoint::maintained::Maintained;

/// A publisher or subscriber.
pub(crate) trait Endpoint: Debug + Send + Sync {
    /// The parts that the node's thread maintains.
    fn upkeep(&self) -> Upkeep;

    /// Wakes whoever waits for a message or for space, so that it learns that the slot is lost.
    fn wake_all(&self);
}

/// A slot that the node hands back to a manager's successor, with its publisher or subscriber. It is a member until the slot is detached: also while
/// its owner is being dropped and waits for its streams, and until the process ends if they are stuck, since they may still write there.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) attachment: Attachment<EndpointSlot>,
    /// The owner of the slot.
    pub(crate) endpoint: Weak<dyn Endpoint>,
    pub(crate) parts: Parts,
}

/// The parts of a publisher or subscriber that a successor needs. They outlive it.
#[derive(Clone, Debug)]
pub(crate) enum Parts {
    Publisher { slot: PublisherSlot, port: Weak<Mutex<WriterPort>>, pool: Arc<dyn PoolMemory>, qos: PublisherQos },
    Subscriber { slot: SubscriberSlot, pages: Arc<SubscriberPages>, maintained: Arc<Maintained>, qos: SubscriberQos },
}

impl Member {
    /// Whether the publisher or subscriber is dropped, or is being dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.endpoint.strong_count() == 0
    }

    /// The publisher's port and topic; `None` for a subscriber, and once the publisher is dropped.
    pub(crate) fn port(&self) -> Option<(TopicId, Arc<Mutex<WriterPort>>)> {
        match &self.parts {
            Parts::Publisher { port, .. } => Some((self.attachment.topic, port.upgrade()?)),
            Parts::Subscriber { .. } => None,
        }
    }
}

/// All that the node hands back.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) all: Vec<Member>,
    /// All managers of lower epochs have been replaced by a hand-back. A member that joined one of these is too late for it.
    pub(crate) handed_back: u64,
}

/// The parts of a member that the node's thread maintains. Dropping them must not call the manager: that call would wait for this thread.
#[derive(Debug)]
pub(crate) enum Upkeep {
    Publisher {
        topic: TopicId,
        slot: PublisherSlot,
        completions: Weak<Completions<StreamFill>>,
        idle: IdlePool,
    },
    Subscriber {
        topic: TopicId,
        slot: SubscriberSlot,
        segment: Arc<Segment>,
        completions: Weak<Completions<Releasing>>,
        maintained: Weak<Maintained>,
    },
}

impl Upkeep {
    /// The member's topic and slot.
    pub(crate) fn slot(&self) -> (TopicId, EndpointSlot) {
        match *self {
            Self::Publisher { topic, slot, .. } => (topic, slot.into()),
            Self::Subscriber { topic, slot, .. } => (topic, slot.into()),
        }
    }
}
