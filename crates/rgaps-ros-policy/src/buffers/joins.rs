//! How a process learns that a subscription on another host has joined the topic of another one there: by messages on a topic of its own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rgaps::types::Bytes;
use rgaps::{Durability, Node, NodeError, PublishError, Publisher, PublisherQos, Sample, Subscriber, SubscriberQos};

use super::gid::{Gid, lock};

/// How many of these messages a process keeps for another one whose host is not linked yet, and the bytes of a pool for them.
const KEPT: u32 = 64;
const POOL_BYTES: u64 = 64 << 10;

/// How many processes can be told without making a publisher anew.
const TELLING_MAX: usize = 64;

/// Bytes of such a message: two identities.
const JOIN_BYTES: u64 = 32;

/// "A subscription has joined the topic of another one." If that is its own, it has left all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Join {
    pub(super) subscription: Gid,
    pub(super) leader: Gid,
}

impl Join {
    /// Says that a subscription reads its own topic only.
    pub(super) fn none(subscription: Gid) -> Self {
        Self { subscription, leader: subscription }
    }

    fn of(sample: &Sample<Bytes>) -> Option<Self> {
        if sample.info().bytes != JOIN_BYTES {
            return None;
        }
        let bytes = sample.to_host().ok()?;
        let (subscription, leader) = bytes.split_at_checked(16)?;
        Some(Self { subscription: Gid(subscription.try_into().ok()?), leader: Gid(leader.try_into().ok()?) })
    }
}

/// What this process is told and tells.
#[derive(Debug, Default)]
pub(super) struct Joins {
    told: Mutex<Option<Arc<Subscriber<Bytes>>>>,
    /// Whether what has come is about to be noted.
    is_noting: AtomicBool,
    /// By process.
    telling: Mutex<HashMap<u64, Publisher<Bytes>>>,
}

fn topic(process: u64) -> String {
    format!("/_rgaps/joins_of_{process:x}")
}

impl Joins {
    /// Begins to listen.
    pub(super) fn listen(&self, node: &Node, process: u64) -> Result<(), NodeError> {
        if !self.is_listening() {
            let qos = SubscriberQos { durability: Durability::TransientLocal, ..SubscriberQos::default() };
            let told = node.subscriber_with(&topic(process), qos)?;
            let cut_off = lock(&self.told).replace(Arc::new(told));
            drop(cut_off);
        }
        Ok(())
    }

    /// Whether it listens.
    pub(super) fn is_listening(&self) -> bool {
        self.told().is_some()
    }

    fn told(&self) -> Option<Arc<Subscriber<Bytes>>> {
        lock(&self.told).clone().filter(|told| !told.is_cut_off())
    }

    /// Whether something has come that nobody is about to note: true for one caller, until `take` or `put_off`. Never waits.
    pub(super) fn claim_news(&self) -> bool {
        self.told().is_some_and(|told| told.ready_count(1) > 0) && !self.is_noting.swap(true, Ordering::AcqRel)
    }

    /// What has come. May wait for the manager or a device.
    pub(super) fn take(&self) -> Vec<Join> {
        self.is_noting.store(false, Ordering::Release);
        let Some(told) = self.told() else { return Vec::new() };
        let samples = std::iter::from_fn(|| told.take().ok().flatten());
        samples.filter_map(|sample| Join::of(&sample)).collect()
    }

    /// What has come is noted when somebody asks again.
    pub(super) fn put_off(&self) {
        self.is_noting.store(false, Ordering::Release);
    }

    /// Tells a process of a join. It learns of it when its host is linked, and never if it has ended.
    pub(super) fn tell(&self, node: &Node, process: u64, join: Join) -> Result<(), JoinError> {
        let mut telling = lock(&self.telling);
        telling.retain(|_, publisher| !publisher.is_cut_off());
        if telling.len() >= TELLING_MAX && !telling.contains_key(&process) {
            telling.clear();
        }
        let publisher = match telling.entry(process) {
            Entry::Occupied(publisher) => publisher.into_mut(),
            Entry::Vacant(place) => {
                let (durability, history_depth) = (Durability::TransientLocal, KEPT);
                let qos =
                    PublisherQos { pool_bytes: Some(POOL_BYTES), history_depth, durability, ..PublisherQos::default() };
                place.insert(node.publisher_with(&topic(process), qos)?)
            }
        };
        publisher.push(&Bytes::new(JOIN_BYTES), &[join.subscription.0, join.leader.0].concat())?;
        Ok(())
    }
}

/// Why a topic cannot be joined.
#[derive(Debug, thiserror::Error)]
pub(super) enum JoinError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Publish(#[from] PublishError),
}
