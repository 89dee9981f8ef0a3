//! The subscriptions of this process in the core. Middleware tells a backend of no subscription that ends, so the least recently used ones are given up
//! when there are many.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use super::gid::{Gid, lock};
use super::payload::Receiver;

/// How many there are at most: each has an open file.
const RECEIVERS_MAX: usize = 256;

/// How many of those that were given up are remembered, to be made again.
const GIVEN_UP_MAX: usize = 4096;

/// A subscription, and the topic (of it or another subscription) from which it takes payloads.
type Key = (Gid, Gid);

#[derive(Debug, Default)]
pub(super) struct Receivers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: HashMap<Key, (u64, Arc<Receiver>)>,
    given_up: HashSet<Key>,
    uses: u64,
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

    /// Adds one. If there are too many, gives up the one that was not used for longest.
    pub(super) fn add(&self, subscription: Gid, topic: Gid, receiver: Receiver) {
        let mut inner = lock(&self.0);
        inner.uses += 1;
        let now = inner.uses;
        inner.all.insert((subscription, topic), (now, Arc::new(receiver)));
        inner.given_up.remove(&(subscription, topic));
        let oldest = inner.all.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
        let oldest = oldest.filter(|_| inner.all.len() > RECEIVERS_MAX);
        let given_up = oldest.and_then(|key| inner.all.remove(&key));
        if inner.given_up.len() == GIVEN_UP_MAX {
            inner.given_up.clear();
        }
        inner.given_up.extend(oldest);
        drop(inner);
        // It waits for the manager.
        drop(given_up);
    }

    /// Whether one was given up.
    pub(super) fn was_given_up(&self, subscription: Gid, topic: Gid) -> bool {
        lock(&self.0).given_up.contains(&(subscription, topic))
    }

    /// Whether there is one.
    pub(super) fn has(&self, subscription: Gid, topic: Gid) -> bool {
        lock(&self.0).all.contains_key(&(subscription, topic))
    }
}
