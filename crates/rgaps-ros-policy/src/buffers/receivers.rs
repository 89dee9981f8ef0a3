//! The subscriptions of this process in the core. Middleware tells a backend of no subscription that ends, so the least recently used ones are given up
//! when there are many.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::gid::{Gid, lock};
use super::payload::Receiver;

/// How many there are at most: each has an open file.
const RECEIVERS_MAX: usize = 256;

/// How many topics of others a subscription can take payloads from. Messages may ask for any.
const JOINED_MAX: usize = 8;

/// How many joined topics that were given up are remembered, to be joined again.
const GIVEN_UP_MAX: usize = 4096;

/// A subscription, and the topic (of it or another subscription) from which it takes payloads.
type Key = (Gid, Gid);

#[derive(Debug, Default)]
pub(super) struct Receivers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: HashMap<Key, (u64, Arc<Receiver>)>,
    /// Topics of others, the earliest first.
    given_up: VecDeque<Key>,
    uses: u64,
}

impl Inner {
    /// The one of these that was not used for longest.
    fn oldest(&self, of: impl Fn(&Key) -> bool) -> Option<Key> {
        let all = self.all.iter().filter(|(key, _)| of(key));
        all.min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key)
    }

    /// The one to give up, if there are too many after this one was added: of two topics of a subscription, one of others.
    fn surplus(&self, (subscription, topic): Key) -> Option<Key> {
        let is_joined = |key: &Key| key.0 != key.1;
        let joined = |key: &Key| key.0 == subscription && is_joined(key);
        if self.all.keys().filter(|key| joined(key)).count() > JOINED_MAX {
            return self.oldest(joined);
        }
        let is_full = self.all.len() > RECEIVERS_MAX;
        is_full.then(|| self.oldest(|key| subscription == topic || is_joined(key))).flatten()
    }
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

    /// Adds one. If there are too many, gives up the one that was not used for longest; for a topic of others, one of those.
    pub(super) fn add(&self, subscription: Gid, topic: Gid, receiver: Receiver) {
        let mut inner = lock(&self.0);
        inner.uses += 1;
        let now = inner.uses;
        inner.all.insert((subscription, topic), (now, Arc::new(receiver)));
        inner.given_up.retain(|key| *key != (subscription, topic));
        let surplus = inner.surplus((subscription, topic));
        let given_up = surplus.and_then(|key| inner.all.remove(&key));
        if inner.given_up.len() == GIVEN_UP_MAX {
            inner.given_up.pop_front();
        }
        inner.given_up.extend(surplus.filter(|key| key.0 != key.1));
        drop(inner);
        // It waits for the manager.
        drop(given_up);
    }

    /// Whether one for a topic of others was given up.
    pub(super) fn was_given_up(&self, subscription: Gid, topic: Gid) -> bool {
        lock(&self.0).given_up.contains(&(subscription, topic))
    }

    /// Whether there is one.
    pub(super) fn has(&self, subscription: Gid, topic: Gid) -> bool {
        lock(&self.0).all.contains_key(&(subscription, topic))
    }
}
