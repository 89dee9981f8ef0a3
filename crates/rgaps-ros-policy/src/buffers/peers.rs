//! The subscriptions to which this process may publish, and which of them have a publisher. Middleware tells of none that ends, and asks for each with
//! every message: that must cost neither a publisher each nor the time of the caller.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rgaps::types::Bytes;
use rgaps::{NodeError, Publisher};

use super::gid::{Gid, lock};
use super::peer::{Peer, Place};
use super::shared::{Shared, has_timed_out, is_recent};

/// How many are known at most.
const PEERS_MAX: usize = 4096;

/// How many publishers there are at most to subscriptions that are absent. Each costs the host some memory.
const ABSENT_PUBLISHERS_MAX: usize = 64;

/// Every `RETRY_DELAY` a round makes missing publishers: those that were given up or cut off, or could not be made. So many of subscriptions that were
/// reached once.
const RETRIES: usize = 16;

/// So many of the other subscriptions.
const RETRIES_NEVER_REACHED: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Peers {
    all: Mutex<HashMap<Gid, Arc<Peer>>>,
    /// How many there were so far.
    added: AtomicU64,
    /// Those with a publisher, in the order in which these were made.
    connected: Mutex<Vec<Arc<Peer>>>,
    /// When missing publishers were last made by turns.
    reconnected: Mutex<Option<Instant>>,
    /// When a message has last waited for what could not be made.
    failed: Mutex<Option<Instant>>,
}

impl Peers {
    pub(super) fn get(&self, gid: Gid) -> Option<Arc<Peer>> {
        lock(&self.all).get(&gid).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Peer>> {
        lock(&self.all).values().cloned().collect()
    }

    /// Adds a subscription. If there are too many, forgets the earliest without a publisher, rather one that never was reached, and returns it.
    pub(super) fn add(&self, gid: Gid, place: Place) -> Option<Gid> {
        let mut all = lock(&self.all);
        if all.contains_key(&gid) {
            return None;
        }
        let idle = all.values().filter(|peer| all.len() >= PEERS_MAX && peer.made().is_none());
        let surplus = idle.min_by_key(|peer| (peer.was_reached(), peer.number())).map(|peer| peer.gid());
        surplus.and_then(|gid| all.remove(&gid));
        all.insert(gid, Arc::new(Peer::new(gid, place, self.added.fetch_add(1, Ordering::Relaxed))));
        surplus
    }

    /// Whether a message has waited in vain a moment ago.
    pub(super) fn has_failed(&self) -> bool {
        is_recent(*lock(&self.failed))
    }

    /// A message has waited for what could not be made.
    pub(super) fn note_failure(&self) {
        *lock(&self.failed) = Some(Instant::now());
    }

    /// The publisher for a subscription. If it is not made yet, waits for the manager. `only_first`: see `Peer::make`.
    pub(super) fn make_publisher(
        &self,
        peer: &Arc<Peer>,
        shared: &Shared,
        only_first: bool,
    ) -> Result<Option<Arc<Publisher<Bytes>>>, NodeError> {
        let publisher = peer.make(&shared.pool()?, only_first)?;
        let mut connected = lock(&self.connected);
        if publisher.is_some() && !connected.iter().any(|known| Arc::ptr_eq(known, peer)) {
            connected.push(peer.clone());
        }
        Ok(publisher)
    }

    /// Calls `begin`, which schedules `reconnect`, at most once per `RETRY_DELAY`.
    pub(super) fn reconnect_unless_recent(&self, begin: impl FnOnce() -> bool) {
        let mut reconnected = lock(&self.reconnected);
        if !is_recent(*reconnected) && begin() {
            *reconnected = Some(Instant::now());
        }
    }

    /// Makes some publishers that are missing: those that were tried least recently. Waits for the manager.
    pub(super) fn reconnect(&self, shared: &Shared) {
        let mut missing: Vec<_> = self.all().into_iter().filter(|peer| peer.made().is_none()).collect();
        missing.sort_by_cached_key(|peer| (peer.tried(), peer.number()));
        let (reached, others): (Vec<_>, Vec<_>) = missing.into_iter().partition(|peer| peer.was_reached());
        for peer in reached.iter().take(RETRIES).chain(others.iter().take(RETRIES_NEVER_REACHED)) {
            // The others would wait in vain, too.
            if self.make_publisher(peer, shared, false).is_err_and(|error| has_timed_out(&error)) {
                return;
            }
        }
    }

    /// Gives up the oldest publishers of subscriptions that are not there (yet, or any more), if they are many; first of those that cannot return. Waits for
    /// the manager.
    pub(super) fn give_up(&self) {
        let connected = lock(&self.connected).clone();
        let mut absent: Vec<_> =
            connected.iter().filter(|peer| peer.made().is_some() && !peer.has_subscriber()).collect();
        absent.sort_by_cached_key(|peer| peer.may_return());
        let surplus = absent.len().saturating_sub(ABSENT_PUBLISHERS_MAX);
        absent[..surplus].iter().for_each(|peer| peer.give_up());
        lock(&self.connected).retain(|peer| peer.made().is_some());
    }
}
