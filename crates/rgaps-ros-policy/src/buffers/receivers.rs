//! The subscriptions of this process in the core. Middleware tells a backend of no subscription that ends, so the least recently used ones are given up
//! when there are many.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use super::gid::{Gid, lock};
use super::payload::Receiver;

/// How many subscriptions have their own topic at most. Each has an open file, and so has each topic that one has joined (`ALL_JOINED_MAX`).
pub(super) const OWN_TOPICS_MAX: usize = 256;

/// How many topics of others a subscription can take payloads from, and how many all of them can.
const JOINED_MAX: usize = 8;
const ALL_JOINED_MAX: usize = 256;

/// A joined topic may be replaced by another one when the process has received so many messages since it last used that topic. Messages may ask for any topic,
/// so one that is in use is never replaced.
const UNUSED_FOR: u64 = 1024;

/// How many joined topics that were given up are remembered: publishers may still rely on them.
const GIVEN_UP_MAX: usize = 4096;

/// A subscription, and the topic (of it or another subscription) from which it takes payloads.
type Key = (Gid, Gid);

#[derive(Debug, Default)]
pub(super) struct Receivers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: HashMap<Key, (u64, Arc<Receiver>)>,
    /// Joined topics that are given up.
    given_up: HashSet<Key>,
    uses: u64,
}

fn is_joined(key: &Key) -> bool {
    key.0 != key.1
}

impl Inner {
    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// The least recently used of those.
    fn oldest(&self, of: impl Fn(&Key) -> bool) -> Option<(Key, u64)> {
        let all = self.all.iter().filter(|(key, _)| of(key)).map(|(key, (used, _))| (*key, *used));
        all.min_by_key(|(_, used)| *used)
    }

    fn give_up(&mut self, key: Key) -> Option<Arc<Receiver>> {
        let (_, receiver) = self.all.remove(&key)?;
        if is_joined(&key) {
            if self.given_up.len() >= GIVEN_UP_MAX {
                self.given_up.clear();
            }
            self.given_up.insert(key);
        }
        Some(receiver)
    }

    fn count(&self, of: impl Fn(&Key) -> bool) -> usize {
        self.all.keys().filter(|key| of(key)).count()
    }
}

impl Receivers {
    pub(super) fn get(&self, subscription: Gid, topic: Gid) -> Option<Arc<Receiver>> {
        let mut inner = lock(&self.0);
        let receiver = inner.all.get(&(subscription, topic))?.1.clone();
        let now = inner.next_use();
        // A subscription that uses a joined topic is in use.
        for key in [(subscription, subscription), (subscription, topic)] {
            if let Some((used, _)) = inner.all.get_mut(&key) {
                *used = now;
            }
        }
        Some(receiver)
    }

    /// Adds one. Gives up the subscription that was not used for longest, with all that it has joined, if there are too many.
    pub(super) fn add(&self, subscription: Gid, topic: Gid, receiver: Receiver) {
        let mut inner = lock(&self.0);
        let now = inner.next_use();
        let key = (subscription, topic);
        let replaced = inner.all.insert(key, (now, Arc::new(receiver)));
        inner.given_up.remove(&key);
        let is_surplus = inner.count(|key| !is_joined(key)) > OWN_TOPICS_MAX;
        let oldest = inner.oldest(|key| !is_joined(key)).filter(|_| is_surplus);
        let keys: Vec<_> =
            inner.all.keys().filter(|key| oldest.is_some_and(|(old, _)| old.0 == key.0)).copied().collect();
        let given_up: Vec<_> = keys.into_iter().filter_map(|key| inner.give_up(key)).collect();
        drop(inner);
        // They wait for the manager.
        drop((replaced, given_up));
    }

    /// Whether a subscription may take from that topic. Gives up a joined one that was not used for long if there are too many.
    pub(super) fn may_take(&self, subscription: Gid, topic: Gid) -> bool {
        let mut inner = lock(&self.0);
        let key = (subscription, topic);
        if !is_joined(&key) || inner.all.contains_key(&key) {
            return true;
        }
        let is_of_it = |key: &Key| is_joined(key) && key.0 == subscription;
        let oldest = match inner.count(is_of_it) < JOINED_MAX {
            true if inner.count(is_joined) < ALL_JOINED_MAX => return true,
            true => inner.oldest(is_joined),
            false => inner.oldest(is_of_it),
        };
        let unused = oldest.filter(|(_, used)| inner.uses - used >= UNUSED_FOR);
        let given_up = unused.and_then(|(key, _)| inner.give_up(key));
        drop(inner);
        given_up.is_some()
    }

    /// Whether there is one that still takes.
    pub(super) fn takes(&self, subscription: Gid, topic: Gid) -> bool {
        lock(&self.0).all.get(&(subscription, topic)).is_some_and(|(_, receiver)| !receiver.is_cut_off())
    }

    /// Subscriptions whose own topic the core has taken away.
    pub(super) fn cut_off(&self) -> Vec<Gid> {
        let inner = lock(&self.0);
        let cut_off = inner.all.iter().filter(|(key, (_, receiver))| !is_joined(key) && receiver.is_cut_off());
        cut_off.map(|(key, _)| key.0).collect()
    }

    /// Whether a subscription has ever taken from a topic that it has joined, as far as is remembered.
    pub(super) fn has_joined(&self, subscription: Gid, topic: Gid) -> bool {
        let (inner, key) = (lock(&self.0), (subscription, topic));
        is_joined(&key) && (inner.all.contains_key(&key) || inner.given_up.contains(&key))
    }
}
