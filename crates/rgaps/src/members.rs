//! A node's publishers and subscribers, as its thread knows them: none of them is kept alive here.

use std::sync::{Arc, Weak};

use rgaps_control::TopicId;
use rgaps_control::local::{Role, Seat};
use rgaps_shm::Segment;

use crate::idle::IdlePool;
use crate::order::{Filling, Order, Releasing};
use crate::publisher::PublisherInner;
use crate::seated::Seated;
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
    /// Seats that nobody has any more and that a stream may still write to, until this process ends.
    pub(crate) kept: Vec<Seated>,
}

/// What is looked after for each: nothing whose drop would ask the manager, and so wait for the thread that holds it.
#[derive(Debug)]
pub(crate) enum Tended {
    Publisher {
        topic: TopicId,
        seat: Seat,
        order: Weak<Order<Filling>>,
        idle: IdlePool,
    },
    Subscriber {
        topic: TopicId,
        seat: Seat,
        segment: Arc<Segment>,
        order: Weak<Order<Releasing>>,
        tended: Weak<subscriber::Tended>,
    },
}

impl Tended {
    /// Whose it is.
    pub(crate) fn seat(&self) -> (Role, TopicId, Seat) {
        match *self {
            Self::Publisher { topic, seat, .. } => (Role::Publisher, topic, seat),
            Self::Subscriber { topic, seat, .. } => (Role::Subscriber, topic, seat),
        }
    }
}

/// What is looked after for a member, if it is there still.
pub(crate) fn tended(member: &Member) -> Option<Tended> {
    match member {
        Member::Publisher(publisher) => {
            let publisher = publisher.upgrade()?;
            Some(Tended::Publisher {
                topic: publisher.seated.topic,
                seat: publisher.seated.seat,
                order: Arc::downgrade(&publisher.order),
                idle: IdlePool::new(&publisher.port, &publisher.pool),
            })
        }
        Member::Subscriber(subscriber, _) => {
            let subscriber = subscriber.upgrade()?;
            Some(Tended::Subscriber {
                topic: subscriber.seated.topic,
                seat: subscriber.seated.seat,
                segment: subscriber.seated.segment.clone(),
                order: Arc::downgrade(&subscriber.order),
                tended: Arc::downgrade(&subscriber.tended),
            })
        }
    }
}
