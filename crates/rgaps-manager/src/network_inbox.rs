//! Events of the network, queued until the manager has time for them. zenoh's threads add them and wait at most for a lock.
//!
//! Announcements are stored as the latest state (`rgaps_control::announcements`). Of the ring requests, the newest of each host and topic waits. Both
//! are bounded by host and in total, so that no host can fill this process's memory. Hosts are served round-robin.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rgaps_control::announcements::{Announcements, Counters};
use rgaps_control::network::{NetworkEvent, RingResponder};
use rgaps_control::wire::{RingOffer, RingRefusal, RingRequest};
use rgaps_control::{Budget, HostId, Limits, TopicKey};
use rgaps_os::EventFd;

use crate::answers::Answers;
use crate::budgets::Budgets;

/// A ring request, and the responder for its answer.
pub(crate) type OpenRingRequest = (RingRequest, RingResponder);

/// Between zenoh's threads and the manager's.
#[derive(Debug)]
pub(crate) struct NetworkInbox {
    announcements: Mutex<Announcements>,
    rings: Mutex<Queue<OpenRingRequest>>,
    answers: Answers,
    budgets: Budgets,
    wake: Arc<EventFd>,
    /// The manager was woken and has not called `look` since.
    is_woken: AtomicBool,
}

impl NetworkInbox {
    /// An empty inbox.
    pub(crate) fn new(wake: Arc<EventFd>, budgets: &Budgets) -> std::io::Result<Self> {
        Ok(Self {
            announcements: Mutex::new(Announcements::new(Instant::now(), &budgets.limits)),
            rings: Mutex::new(Queue::new(&budgets.limits)),
            answers: Answers::start(&wake)?,
            budgets: budgets.clone(),
            wake,
            is_woken: AtomicBool::new(false),
        })
    }

    /// Takes an event, on one of the network's threads.
    pub(crate) fn handle(&self, event: NetworkEvent) {
        let kept = match event {
            NetworkEvent::RingRequested { request, responder } => {
                self.ring_requested(*request, responder);
                Ok(true)
            }
            NetworkEvent::RingRequestUnreadable { refusal, responder } => {
                tracing::warn!("a ring request was refused: {refusal}");
                self.refuse(responder, refusal);
                Ok(false)
            }
            NetworkEvent::Announced(announcement) => self.announcements().handle(Instant::now(), &announcement),
            NetworkEvent::Found(announcement) => self.announcements().handle_answer(Instant::now(), &announcement),
            NetworkEvent::FoundAll => {
                self.announcements().handle_answered(Instant::now());
                Ok(false)
            }
        };
        match kept {
            Ok(true) if !self.is_woken.swap(true, Ordering::AcqRel) => {
                let _ = self.wake.signal();
            }
            Ok(_) => {}
            Err(overflow) => tracing::warn!("{overflow}"),
        }
    }

    /// The manager is about to read: later events wake it again.
    pub(crate) fn begin_turn(&self) {
        self.is_woken.store(false, Ordering::Release);
    }

    /// What other hosts announce. Hold the lock only to read; zenoh's threads wait for it.
    pub(crate) fn announcements(&self) -> MutexGuard<'_, Announcements> {
        self.announcements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next ring request, if there is room for its answer. Pass the answer to `answer`.
    pub(crate) fn poll_ring(&self) -> Option<OpenRingRequest> {
        if self.answers.has_room() { self.rings().pop() } else { None }
    }

    /// Whether `poll_ring` would return a request.
    pub(crate) fn has_rings(&self) -> bool {
        self.answers.has_room() && self.rings().total > 0
    }

    /// Answers a ring request. Returns at once.
    pub(crate) fn answer(&self, responder: RingResponder, answer: Result<RingOffer, RingRefusal>) {
        self.answers.give(Box::new(move || responder.answer(&answer)));
    }

    /// Figures for people.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.announcements().counters();
        counters.budgets.extend(self.budgets.refusals.met());
        counters
    }

    fn ring_requested(&self, request: RingRequest, responder: RingResponder) {
        // All hosts without a known identity share one host's bound.
        let of = Some(request.host).filter(|host| self.announcements().directory().knows(*host));
        let (host, key) = (request.host, request.endpoint.key.clone());
        let pushed = self.rings().push(of, (host, key), (request, responder));
        match pushed {
            Ok(None) => {}
            Ok(Some((older, responder))) => {
                self.refuse(responder, RingRefusal::AskedAgain(older.endpoint.key.to_string()));
            }
            Err(full) => {
                let over = self.budgets.limits.over(full.budget);
                if self.budgets.refusals.count(full.budget) {
                    tracing::warn!("{} ring requests wait ({over}); further ones are refused", full.waiting);
                }
                self.refuse(full.item.1, RingRefusal::NoRoom(over));
            }
        }
    }

    /// Refuses a request, on one of the network's threads. Such a thread serves many hosts, so a worker thread sends the refusal. Only if the workers
    /// have no room does this thread send it, and wait at most until zenoh closes the connection (`BLOCKED_MS` of rgaps_control's zenoh_config.rs).
    fn refuse(&self, responder: RingResponder, refusal: RingRefusal) {
        match self.answers.has_room() {
            true => self.answer(responder, Err(refusal)),
            false => responder.answer(&Err(refusal)),
        }
    }

    fn rings(&self) -> MutexGuard<'_, Queue<OpenRingRequest>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request is for. Only the newest request for each waits.
type For = (HostId, TopicKey);

/// Requests by host, served round-robin.
#[derive(Debug)]
struct Queue<T> {
    most: usize,
    of_host_most: usize,
    of: BTreeMap<Option<HostId>, VecDeque<(For, T)>>,
    turn: Option<Option<HostId>>,
    total: usize,
}

/// There is no room for a request.
#[derive(Debug, PartialEq, Eq)]
struct Full<T> {
    item: T,
    budget: Budget,
    waiting: usize,
}

impl<T> Queue<T> {
    fn new(limits: &Limits) -> Self {
        let (most, of_host_most) = (limits.count(Budget::RingRequests), limits.count(Budget::RingRequestsOfHost));
        Self { most, of_host_most, of: BTreeMap::new(), turn: None, total: 0 }
    }

    /// Adds a request. It takes the place of an older one for the same host and topic, which is returned.
    fn push(&mut self, of: Option<HostId>, what: For, item: T) -> Result<Option<T>, Full<T>> {
        let waiting = self.of.get_mut(&of);
        if let Some((_, older)) = waiting.and_then(|queue| queue.iter_mut().find(|(known, _)| *known == what)) {
            return Ok(Some(std::mem::replace(older, item)));
        }
        let of_host = self.of.get(&of).map_or(0, VecDeque::len);
        if of_host >= self.of_host_most {
            return Err(Full { item, budget: Budget::RingRequestsOfHost, waiting: of_host });
        }
        if self.total >= self.most {
            return Err(Full { item, budget: Budget::RingRequests, waiting: self.total });
        }
        self.of.entry(of).or_default().push_back((what, item));
        self.total += 1;
        Ok(None)
    }

    fn pop(&mut self) -> Option<T> {
        let behind = self.turn.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.of.range((behind, Bound::Unbounded)).next().or_else(|| self.of.first_key_value());
        let turn = *next?.0;
        let queue = self.of.get_mut(&turn)?;
        let (_, item) = queue.pop_front()?;
        if queue.is_empty() {
            self.of.remove(&turn);
        }
        self.turn = Some(turn);
        self.total -= 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> HostId {
        HostId([n; 16])
    }

    fn what(of: u8, n: usize) -> For {
        (host(of), TopicKey::new(0, &format!("t{n}")).unwrap())
    }

    #[test]
    fn ring_requests_are_bounded_by_host_and_in_total_and_hosts_take_turns() {
        const RINGS_OF_HOST_MAX: usize = 6;
        let limits =
            Limits { ring_requests_max: 20, ring_requests_host_max: RINGS_OF_HOST_MAX as u64, ..Limits::default() };
        let mut queue = Queue::new(&limits);
        for n in 0..RINGS_OF_HOST_MAX {
            assert_eq!(queue.push(Some(host(1)), what(1, n), (1, n)), Ok(None));
        }
        let full = Full { item: (1, 9999), budget: Budget::RingRequestsOfHost, waiting: RINGS_OF_HOST_MAX };
        assert_eq!(queue.push(Some(host(1)), what(1, 9999), (1, 9999)), Err(full));
        assert_eq!(queue.push(Some(host(1)), what(1, 3), (1, 1003)), Ok(Some((1, 3))), "it replaces the older request");
        assert_eq!(queue.push(Some(host(2)), what(2, 0), (2, 0)), Ok(None), "another host has room");
        assert_eq!(queue.push(None, what(7, 0), (7, 0)), Ok(None));
        let first: Vec<_> = (0..5).map_while(|_| queue.pop()).collect();
        assert_eq!(first, [(7, 0), (1, 0), (2, 0), (1, 1), (1, 2)]);
        assert_eq!(queue.pop(), Some((1, 1003)));
        let refused = (0..255_u8).flat_map(|of| (0..RINGS_OF_HOST_MAX).map(move |n| (of, n)));
        let refused = refused.filter(|(of, n)| queue.push(Some(host(*of)), what(*of, *n), (*of, *n)).is_err()).count();
        assert!(refused > 0 && queue.total == 20);
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 20);
        assert!(queue.of.is_empty() && queue.total == 0);
    }
}
