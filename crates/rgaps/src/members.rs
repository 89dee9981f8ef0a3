//! A node's publishers and subscribers, as weak references for the node's thread.

use std::sync::{Arc, Weak};

use rgaps_control::{EndpointSlot, PublisherSlot, SubscriberSlot, TopicId};
use rgaps_shm::Segment;

use crate::attachment::Attachment;
use crate::completions::{Completions, Filling, Releasing};
use crate::idle::IdlePool;
use crate::publisher::PublisherInner;
use crate::subscriber::{self, SubscriberInner};

/// A publisher or subscriber that the node hands back to a manager's successor.
#[derive(Debug)]
pub(crate) enum Member {
    Publisher(Weak<PublisherInner>),
    Subscriber(Weak<SubscriberInner>, rgaps_control::SubscriberQos),
}

/// All that the node hands back.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) all: Vec<Member>,
    /// All managers of lower epochs have been replaced by a hand-back. A member that joined one of these is too late for it.
    pub(crate) handed_back: u64,
    /// Slots whose publisher or subscriber is gone, but to which a stream may still write until this process ends.
    pub(crate) kept: Vec<Attachment<EndpointSlot>>,
}

/// The parts of a member that the node's thread maintains. Dropping them must not call the manager: that call would wait for this thread.
#[derive(Debug)]
pub(crate) enum Tended {
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
        tended: Weak<subscriber::Tended>,
    },
}

impl Tended {
    /// The member's topic and slot.
    pub(crate) fn slot(&self) -> (TopicId, EndpointSlot) {
        match *self {
            Self::Publisher { topic, slot, .. } => (topic, slot.into()),
            Self::Subscriber { topic, slot, .. } => (topic, slot.into()),
        }
    }
}

/// The parts of a member to maintain, if it still exists.
pub(crate) fn tended(member: &Member) -> Option<Tended> {
    match member {
        Member::Publisher(publisher) => {
            let publisher = publisher.upgrade()?;
            Some(Tended::Publisher {
                topic: publisher.attachment.topic,
                slot: publisher.attachment.slot,
                completions: Arc::downgrade(&publisher.completions),
                idle: IdlePool::new(&publisher.port, &publisher.pool),
            })
        }
        Member::Subscriber(subscriber, _) => {
            let subscriber = subscriber.upgrade()?;
            Some(Tended::Subscriber {
                topic: subscriber.attachment.topic,
                slot: subscriber.attachment.slot,
                segment: subscriber.attachment.segment.clone(),
                completions: Arc::downgrade(&subscriber.completions),
                tended: Arc::downgrade(&subscriber.tended),
            })
        }
    }
}
