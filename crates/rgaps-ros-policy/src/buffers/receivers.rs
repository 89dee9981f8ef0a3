//! The subscriptions of this process in the core. Middleware tells a backend of no subscription that ends, so the least recently used ones are given up
//! when there are many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::gid::{Gid, lock};
use super::payload::Receiver;

/// How many subscriptions there are at most: each has an open file.
const RECEIVERS_MAX: usize = 256;

/// How many topics of others a subscription can take payloads from, and how many all of them can. Messages may ask for any, so no more are joined then.
const JOINED_MAX: usize = 8;
const ALL_JOINED_MAX: usize = 256;

/// A subscription, and the topic (of it or another subscription) from which it takes payloads.
type Key = (Gid, Gid);

#[derive(Debug, Default)]
pub(super) struct Receivers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: HashMap<Key, (u64, Arc<Receiver>)>,
    uses: u64,
}

fn is_joined(key: &Key) -> bool {
    key.0 != key.1
}

impl Receivers {
    pub(super) fn get(&self, subscription: Gid, topic: Gid) -> Option<Arc<Receiver>> {
        let mut inner = lock(&self.0);
        inner.uses += 1;
        let now = inner.uses;
        let (used, receiver) = inner.all.get_mut(&(subscription, topic))?;
        *used = now;
        Some(receiver.clone())
    }

    /// Adds one. Gives up the subscription that was not used for longest if there are too many; a topic that one has joined is never given up, since
    /// publishers rely on it.
    pub(super) fn add(&self, subscription: Gid, topic: Gid, receiver: Receiver) {
        let mut inner = lock(&self.0);
        inner.uses += 1;
        let now = inner.uses;
        inner.all.insert((subscription, topic), (now, Arc::new(receiver)));
        let own = || inner.all.iter().filter(|(key, _)| !is_joined(key));
        let oldest = (own().count() > RECEIVERS_MAX).then(|| own().min_by_key(|(_, (used, _))| *used)).flatten();
        let oldest = oldest.map(|(key, _)| *key);
        let given_up = oldest.and_then(|key| inner.all.remove(&key));
        drop(inner);
        // It waits for the manager.
        drop(given_up);
    }

    /// Whether a subscription can join another topic.
    pub(super) fn may_join(&self, subscription: Gid) -> bool {
        let inner = lock(&self.0);
        let joined = || inner.all.keys().filter(|key| is_joined(key));
        joined().count() < ALL_JOINED_MAX && joined().filter(|key| key.0 == subscription).count() < JOINED_MAX
    }

    /// Whether there is one.
    pub(super) fn has(&self, subscription: Gid, topic: Gid) -> bool {
        lock(&self.0).all.contains_key(&(subscription, topic))
    }
}
