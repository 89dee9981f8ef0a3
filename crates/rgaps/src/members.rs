//! A node's publishers and subscribers, as its thread knows them: none of them is kept alive here.

use std::sync::{Arc, Weak};

use rgaps_control::{EndpointSlot, PublisherSlot, SubscriberSlot, TopicId};
use rgaps_shm::Segment;

use crate::attachment::Attachment;
use crate::completions::{Completions, Filling, Releasing};
use crate::idle::IdlePool;
use crate::publisher::PublisherInner;
use crate::subscriber::{self, SubscriberInner};

/// Who must be handed back, and who wants event descriptors.
#[derive(Debug)]
pub(crate) enum Member {
    Publisher(Weak<PublisherInner>),
    Subscriber(Weak<SubscriberInner>, rgaps_control::SubscriberQos),
}

/// Everybody who must be handed back.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) all: Vec<Member>,
    /// Up to which manager's they were: who joins one of these now comes too late for the hand-back.
    pub(crate) handed_back: u64,
    /// Slots that nobody has any more and that a stream may still write to, until this process ends.
    pub(crate) kept: Vec<Attachment<EndpointSlot>>,
}

/// What is looked after for each: nothing whose drop would ask the manager, and so wait for the thread that holds it.
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
    /// Whose it is.
    pub(crate) fn slot(&self) -> (TopicId, EndpointSlot) {
        match *self {
            Self::Publisher { topic, slot, .. } => (topic, slot.into()),
            Self::Subscriber { topic, slot, .. } => (topic, slot.into()),
        }
    }
}

/// What is looked after for a member, if it is there still.
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
