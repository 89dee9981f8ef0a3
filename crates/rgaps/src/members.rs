//! A node's publishers and subscribers: weak references for the node's thread, and what a manager's successor needs of them.

use std::sync::{Arc, Weak};

use rgaps_control::{EndpointSlot, PublisherQos, PublisherSlot, SubscriberQos, SubscriberSlot, TopicId};
use rgaps_device::PoolMemory;
use rgaps_shm::{Segment, SubscriberPages};

use crate::attachment::Attachment;
use crate::completions::{Completions, Filling, Releasing};
use crate::idle::IdlePool;
use crate::publisher::PublisherInner;
use crate::subscriber::{self, SubscriberInner};

/// A slot that the node hands back to a manager's successor, with its publisher or subscriber. It is a member until the slot is detached: also while
/// its owner is being dropped and waits for its streams, and until the process ends if they are stuck, since they may still write there.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) attachment: Attachment<EndpointSlot>,
    pub(crate) owner: Owner,
}

/// The owner of a slot, and the parts of it that a successor needs. They outlive the owner.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    Publisher {
        inner: Weak<PublisherInner>,
        slot: PublisherSlot,
        pool: Arc<dyn PoolMemory>,
        qos: PublisherQos,
    },
    Subscriber {
        inner: Weak<SubscriberInner>,
        slot: SubscriberSlot,
        pages: Arc<SubscriberPages>,
        maintained: Arc<subscriber::Maintained>,
        qos: SubscriberQos,
    },
}

impl Member {
    pub(crate) fn publisher(publisher: &Arc<PublisherInner>) -> Self {
        let (inner, slot) = (Arc::downgrade(publisher), publisher.attachment.slot);
        let owner = Owner::Publisher { inner, slot, pool: publisher.pool.clone(), qos: publisher.qos };
        Self { attachment: publisher.attachment.of_either(), owner }
    }

    pub(crate) fn subscriber(subscriber: &Arc<SubscriberInner>, qos: SubscriberQos) -> Self {
        let (inner, slot) = (Arc::downgrade(subscriber), subscriber.attachment.slot);
        let (pages, maintained) = (subscriber.pages.clone(), subscriber.maintained.clone());
        let owner = Owner::Subscriber { inner, slot, pages, maintained, qos };
        Self { attachment: subscriber.attachment.of_either(), owner }
    }
}

impl Owner {
    /// Whether the publisher or subscriber is dropped, or is being dropped.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Publisher { inner, .. } => inner.strong_count() == 0,
            Self::Subscriber { inner, .. } => inner.strong_count() == 0,
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
        completions: Weak<Completions<Filling>>,
        idle: IdlePool,
    },
    Subscriber {
        topic: TopicId,
        slot: SubscriberSlot,
        segment: Arc<Segment>,
        completions: Weak<Completions<Releasing>>,
        maintained: Weak<subscriber::Maintained>,
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

/// The parts of a member to maintain, if it still exists.
pub(crate) fn upkeep(member: &Member) -> Option<Upkeep> {
    match &member.owner {
        Owner::Publisher { inner, .. } => {
            let publisher = inner.upgrade()?;
            Some(Upkeep::Publisher {
                topic: publisher.attachment.topic,
                slot: publisher.attachment.slot,
                completions: Arc::downgrade(&publisher.completions),
                idle: IdlePool::new(&publisher.port, &publisher.pool),
            })
        }
        Owner::Subscriber { inner, .. } => {
            let subscriber = inner.upgrade()?;
            Some(Upkeep::Subscriber {
                topic: subscriber.attachment.topic,
                slot: subscriber.attachment.slot,
                segment: subscriber.attachment.segment.clone(),
                completions: Arc::downgrade(&subscriber.completions),
                maintained: Arc::downgrade(&subscriber.maintained),
            })
        }
    }
}
