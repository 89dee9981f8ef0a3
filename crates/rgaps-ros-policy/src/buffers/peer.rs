//! A subscription to which this process may publish.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Exhaustion, NodeError, Pool, Publisher, PublisherQos};

use super::gid::{Gid, lock};
use super::groups::Host;

/// How long a subscription may take to be found again after this host's manager was replaced. Until then it has not left.
const RETURN_TIMEOUT: Duration = Duration::from_secs(60);

/// How many joins and requests to join are remembered for a subscription.
const JOINS_REMEMBERED_MAX: usize = 64;

/// Where a subscription is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On this host.
    Here,
    /// On another host.
    On(Host),
    /// Its process had no manager when it was made.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Peer {
    gid: Gid,
    /// Its place in the order in which they became known.
    number: u64,
    /// Where it is, if that is known.
    place: Place,
    joins: Mutex<HashMap<Gid, Joining>>,
    publisher: Mutex<Option<Arc<Publisher<Bytes>>>>,
    /// Held while a publisher is made, which waits for the manager.
    making: Mutex<()>,
    /// The number of this host's manager when it was reached last.
    reached: Mutex<Option<u64>>,
    /// When the last try to make a publisher ended.
    tried: Mutex<Option<Instant>>,
}

/// A topic of another subscription that this one was asked to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joining {
    Asked,
    /// How many joins this process had noted by then.
    Since(u64),
}

impl Peer {
    pub(super) fn new(gid: Gid, place: Place, number: u64) -> Self {
        Self {
            gid,
            number,
            place,
            joins: Mutex::default(),
            publisher: Mutex::default(),
            making: Mutex::default(),
            reached: Mutex::default(),
            tried: Mutex::default(),
        }
    }

    pub(super) fn gid(&self) -> Gid {
        self.gid
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The publisher on its topic, if it is made, and the core has not cut it off. Never waits.
    pub(super) fn made(&self) -> Option<Arc<Publisher<Bytes>>> {
        lock(&self.publisher).clone().filter(|publisher| !publisher.is_cut_off())
    }

    /// Makes the publisher on its topic, which waits for the manager. `None` if `only_first`, and another try has ended without one.
    pub(super) fn make(&self, pool: &Pool, only_first: bool) -> Result<Option<Arc<Publisher<Bytes>>>, NodeError> {
        let _making = lock(&self.making);
        if let Some(publisher) = self.made() {
            return Ok(Some(publisher));
        }
        if only_first && self.tried().is_some() {
            return Ok(None);
        }
        let qos = PublisherQos { exhaustion: Exhaustion::DropOldest, ..PublisherQos::default() };
        let made = pool.publisher_with(&self.gid.topic(), qos);
        *lock(&self.tried) = Some(Instant::now());
        let publisher = Arc::new(made?);
        let cut_off = lock(&self.publisher).replace(publisher.clone());
        drop(cut_off);
        Ok(Some(publisher))
    }

    /// When the last try to make a publisher ended.
    pub(super) fn tried(&self) -> Option<Instant> {
        *lock(&self.tried)
    }

    /// Its host, if that is another one.
    pub(super) fn remote_host(&self) -> Option<&Host> {
        match &self.place {
            Place::On(host) => Some(host),
            Place::Here | Place::Unknown => None,
        }
    }

    /// Gives up the publisher, for a subscription that is not there. Waits for the manager.
    pub(super) fn give_up(&self) {
        let publisher = lock(&self.publisher).take();
        drop(publisher);
    }

    /// `manager`: the number of this host's manager.
    pub(super) fn mark_reached(&self, manager: u64) {
        *lock(&self.reached) = Some(manager);
    }

    /// Whether it was reached once, on another host, which may be back.
    pub(super) fn may_return(&self) -> bool {
        self.was_reached() && self.remote_host().is_some()
    }

    /// Whether it was reached once.
    pub(super) fn was_reached(&self) -> bool {
        lock(&self.reached).is_some()
    }

    /// Whether anybody subscribes to its topic, also on a host whose link is interrupted. Never waits.
    pub(super) fn has_subscriber(&self) -> bool {
        self.made().is_some_and(|publisher| publisher.subscriber_count() > 0)
    }

    /// Whether it was reached once, and is not there any more: it has left, or its host is cut off. A new manager of this host first has to find it.
    /// `manager`: its number, and since when it serves.
    pub(super) fn has_left(&self, (manager, since): (u64, Instant)) -> bool {
        let was_reached = lock(&self.reached).is_some_and(|by| by == manager || since.elapsed() > RETURN_TIMEOUT);
        was_reached && !self.has_subscriber()
    }

    /// Whether a payload reaches it now: it is on this host, or its host is linked. Never waits.
    pub(super) fn is_reached(&self) -> bool {
        self.made().is_some_and(|publisher| publisher.linked_subscriber_count() > 0)
    }

    /// Remembers that it is asked to join the topic of another subscription.
    pub(super) fn ask_to_join(&self, leader: Gid) {
        let mut joins = lock(&self.joins);
        if joins.len() >= JOINS_REMEMBERED_MAX && !joins.contains_key(&leader) {
            joins.clear();
        }
        joins.entry(leader).or_insert(Joining::Asked);
    }

    /// Whether it was asked to join that topic. Others may say that it has.
    pub(super) fn was_asked_to_join(&self, leader: Gid) -> bool {
        lock(&self.joins).contains_key(&leader)
    }

    /// Notes that it has joined a topic. `since`: how many joins this process has noted.
    pub(super) fn note_join(&self, leader: Gid, since: u64) {
        lock(&self.joins).insert(leader, Joining::Since(since));
    }

    /// It reads its own topic only. It may be asked to join others again.
    pub(super) fn forget_joins(&self) {
        lock(&self.joins).clear();
    }

    /// The topics that it has joined.
    pub(super) fn all_joined(&self) -> Vec<Gid> {
        let joins = lock(&self.joins);
        joins.iter().filter(|(_, join)| matches!(join, Joining::Since(_))).map(|(leader, _)| *leader).collect()
    }

    /// How many joins this process had noted when it joined that topic, if it has.
    pub(super) fn joined(&self, leader: Gid) -> Option<u64> {
        match lock(&self.joins).get(&leader) {
            Some(Joining::Since(since)) => Some(*since),
            _ => None,
        }
    }
}
