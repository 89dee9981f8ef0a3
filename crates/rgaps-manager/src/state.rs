//! Parts of the manager's state that several of its files change, each with the rules for its changes.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rgaps_control::announcements::Counters;
use rgaps_control::{HostId, LogRateLimit, RuntimeDir, SubscriberSlot, TopicId};

use crate::clients::{ClientId, Occupied};

/// Shortest interval between two notes of the network's counters.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// By then most clients that are not stopped have handed everything back.
const LOOK_FOR_WORDS_AFTER: Duration = Duration::from_secs(1);

/// What clients and other hosts are told of this host.
pub(crate) struct ThisHost {
    pub(crate) dir: RuntimeDir,
    pub(crate) id: HostId,
    pub(crate) epoch: u64,
    pub(crate) name: String,
    pub(crate) device: String,
    /// What it could not write when it started.
    pub(crate) lacks: Vec<String>,
}

/// Clients that have ended, and those whose locks are asked for.
#[derive(Default)]
pub(crate) struct Departures {
    slots: VecDeque<Occupied>,
    asked_last: Option<ClientId>,
}

impl Departures {
    /// Slots of an ended client, to be released in one of the next turns. They are in no note any more.
    pub(crate) fn add(&mut self, slots: impl IntoIterator<Item = Occupied>) {
        self.slots.extend(slots);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The oldest slots to be released, at most this many.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Occupied> {
        self.slots.drain(..most.min(self.slots.len())).collect()
    }

    /// Of the connected clients, in order, those after the last one that was asked for, at most this many.
    pub(crate) fn next_to_ask(&mut self, mut connected: Vec<ClientId>, most: usize) -> Vec<ClientId> {
        let first = connected.partition_point(|id| Some(*id) <= self.asked_last);
        connected.rotate_left(first);
        connected.truncate(most);
        self.asked_last = connected.last().copied();
        connected
    }
}

/// What was logged and noted of the network.
#[derive(Default)]
pub(crate) struct NetworkReports {
    /// The counters that were noted last, and when.
    noted: Option<(Instant, Counters)>,
    hosts_logged: LogRateLimit,
    /// When a first host has to be there if `peers` names any; none once one was.
    first_host_due: Option<Instant>,
}

impl NetworkReports {
    pub(crate) fn new(first_host_due: Option<Instant>) -> Self {
        Self { first_host_due, ..Self::default() }
    }

    /// A host is there.
    pub(crate) fn note_host(&mut self) {
        self.first_host_due = None;
    }

    /// Warns once if no host has answered in time.
    pub(crate) fn report_absent_peers(&mut self, now: Instant, peers: &[String]) {
        if self.first_host_due.take_if(|due| *due <= now).is_some() {
            let peers = peers.join(", ");
            tracing::warn!(
                "no host has answered yet at {peers}: does rgapsd run there and listen at that port? This rgapsd keeps trying"
            );
        }
    }

    /// Whether the coming or going of a host may be logged, and what to say of those that were not.
    pub(crate) fn may_log_host(&mut self, now: Instant) -> Option<&'static str> {
        self.hosts_logged.may_log(now)
    }

    pub(crate) fn is_note_due(&self, now: Instant) -> bool {
        self.noted.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= NOTE_EVERY)
    }

    /// The counters if they must be noted, since they have changed.
    pub(crate) fn note(&mut self, now: Instant, counters: Counters) -> Option<Counters> {
        if self.noted.as_ref().is_some_and(|(_, noted)| *noted == counters) {
            return None;
        }
        self.noted = Some((now, counters.clone()));
        Some(counters)
    }
}

/// The search for the words of stopped clients' subscribers.
pub(crate) struct WordsSearch {
    since: Instant,
    looked_for: BTreeSet<(TopicId, SubscriberSlot)>,
}

impl Default for WordsSearch {
    fn default() -> Self {
        Self { since: Instant::now(), looked_for: BTreeSet::new() }
    }
}

impl WordsSearch {
    /// Whether clients that are not stopped have had their time to hand their words back.
    pub(crate) fn has_begun(&self) -> bool {
        self.since.elapsed() >= LOOK_FOR_WORDS_AFTER
    }

    /// Whether the words of this subscriber were looked for.
    pub(crate) fn has(&self, subscriber: &(TopicId, SubscriberSlot)) -> bool {
        self.looked_for.contains(subscriber)
    }

    pub(crate) fn add(&mut self, subscribers: &[(TopicId, SubscriberSlot)]) {
        self.looked_for.extend(subscribers);
    }

    pub(crate) fn clear(&mut self) {
        self.looked_for.clear();
    }
}
