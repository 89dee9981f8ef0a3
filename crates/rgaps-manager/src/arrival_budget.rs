//! The memory that messages of other hosts occupy here: how much each port may have, and which port is evicted when it is too much.
//!
//! A sealed pool of host memory keeps every page that was ever touched until the whole pool is freed. So a port is charged for the most that its pool
//! has ever held, complete or partial, until the pool is freed. If a budget is used up, a port is evicted: its link ends, and its pool is freed with
//! the partial messages in it. The other host connects again and resends incomplete messages, so an honest host loses nothing.
//!
//! ```text
//!   port ──grow──▶ charged ──a budget is used up──▶ evicted ──link ended, pool freed──▶ (nothing)
//! ```
//!
//! Victim      for each budget (topic, host, all): candidates are the ports that have been silent for `SILENT`. If there are none, they are the
//!             ports of hosts that have more memory than the growing port's host would have. Of these, the victim is the port of the host with
//!             the most memory, and of its ports the one that was silent longest. Without a candidate, the port gets no more, and
//!             arrival/loans.rs decides: it waits, drops older messages, or drops the new one.
//! Invariants  B1 the charges of ports that are not evicted stay within each budget. B2 all charges together, with evicted ports, stay within
//!             twice `arrived_bytes_max`: an evicted port's memory is free within a tick of its worker.
//! Trusts      nothing: a sender states its host and topic, and is charged for the memory that it uses, not for what it announces.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_control::{Budget, HostId, Limits, OverBudget, Refusals, TopicId};

/// A port that has received nothing for this long is evicted before others.
const SILENT: Duration = Duration::from_secs(1);
/// Charges grow by this much, so that a port rarely needs the lock.
const STEP_BYTES: u64 = 1 << 20;

/// A port of this host: its topic, and the other host.
pub(crate) type PortOf = (TopicId, HostId);

/// All charges.
#[derive(Debug)]
pub(crate) struct ArrivalBudget {
    limits: Limits,
    refusals: Arc<Refusals>,
    ledger: Mutex<Ledger>,
}

/// What a port and the ledger share.
#[derive(Debug, Default)]
struct Mark {
    is_evicted: AtomicBool,
    /// When data last arrived, in nanoseconds of the worker's clock.
    heard: AtomicU64,
}

/// What one port is charged. Dropping it frees the charge.
#[derive(Debug)]
pub(crate) struct Charge {
    of: Arc<ArrivalBudget>,
    id: u64,
    mark: Arc<Mark>,
    /// The charge, readable without a lock.
    granted: AtomicU64,
}

impl ArrivalBudget {
    pub(crate) fn new(limits: &Limits, refusals: Arc<Refusals>) -> Self {
        let [all, of_host, of_topic] =
            [Budget::Arrived, Budget::ArrivedOfHost, Budget::ArrivedOfTopic].map(|budget| limits.of(budget));
        let ledger = Mutex::new(Ledger { all, of_host, of_topic, ports: BTreeMap::new(), next: 0 });
        Self { limits: limits.clone(), refusals, ledger }
    }

    /// A new port, charged nothing.
    pub(crate) fn charge(self: &Arc<Self>, of: PortOf) -> Arc<Charge> {
        let mark = Arc::new(Mark::default());
        let id = self.ledger().add(of, mark.clone());
        Arc::new(Charge { of: self.clone(), id, mark, granted: AtomicU64::new(0) })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Charge {
    /// Bytes that it may occupy without `grow`.
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Requests to occupy `bytes`, `most` at the most. Returns the evicted ports; they see it by `is_evicted`, and the caller tells the manager.
    pub(crate) fn grow(&self, bytes: u64, most: u64, now: u64) -> Result<Vec<PortOf>, OverBudget> {
        let mut ledger = self.of.ledger();
        let ample = bytes.next_multiple_of(STEP_BYTES).min(most).max(bytes);
        let (bytes, plan) = match ledger.plan(self.id, ample, now) {
            Ok(victims) if victims.is_empty() => (ample, Ok(victims)),
            // The spare part of a step is not worth an eviction: plan again with the exact size.
            _ => (bytes, ledger.plan(self.id, bytes, now)),
        };
        let victims = plan.map_err(|budget| {
            self.of.refusals.count(budget);
            self.of.limits.over(budget)
        })?;
        ledger.charge(self.id, bytes);
        self.granted.store(bytes.max(self.granted()), Ordering::Relaxed);
        let ports = victims.into_iter().filter_map(|(id, budget)| {
            self.of.refusals.count(budget);
            ledger.evict(id)
        });
        Ok(ports.collect())
    }

    /// Occupies `bytes` if that is within the budgets as they are: evicts nothing and refuses nothing.
    pub(crate) fn grow_if_free(&self, bytes: u64, now: u64) -> bool {
        let mut ledger = self.of.ledger();
        let is_free = ledger.plan(self.id, bytes, now).is_ok_and(|victims| victims.is_empty());
        if is_free {
            ledger.charge(self.id, bytes);
            self.granted.store(bytes.max(self.granted()), Ordering::Relaxed);
        }
        is_free
    }

    /// Sets the charge to what the port was measured to occupy: more than granted, or less, since the device has freed some.
    pub(crate) fn set(&self, bytes: u64) {
        self.granted.store(bytes, Ordering::Relaxed);
        if let Some(port) = self.of.ledger().ports.get_mut(&self.id) {
            port.bytes = bytes;
        }
    }

    /// Notes that data arrived.
    pub(crate) fn hear(&self, now: u64) {
        self.mark.heard.store(now, Ordering::Relaxed);
    }

    /// When data last arrived.
    pub(crate) fn heard(&self) -> u64 {
        self.mark.heard.load(Ordering::Relaxed)
    }

    /// Whether it is evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        self.mark.is_evicted.load(Ordering::Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.ledger().ports.remove(&self.id);
    }
}

/// A charged port.
#[derive(Debug)]
struct Port {
    of: PortOf,
    bytes: u64,
    mark: Arc<Mark>,
}

impl Port {
    fn is_live(&self) -> bool {
        !self.mark.is_evicted.load(Ordering::Relaxed)
    }
}

/// The decisions, without clock or thread.
#[derive(Debug)]
struct Ledger {
    all: u64,
    of_host: u64,
    of_topic: u64,
    ports: BTreeMap<u64, Port>,
    next: u64,
}

impl Ledger {
    fn add(&mut self, of: PortOf, mark: Arc<Mark>) -> u64 {
        self.next += 1;
        self.ports.insert(self.next, Port { of, bytes: 0, mark });
        self.next
    }

    /// Which ports must be evicted, each because of a budget, before a port may be charged `bytes`.
    fn plan(&self, id: u64, bytes: u64, now: u64) -> Result<Vec<(u64, Budget)>, Budget> {
        let Some(port) = self.ports.get(&id) else { return Ok(Vec::new()) };
        let (topic, host) = port.of;
        let more = bytes.saturating_sub(port.bytes);
        if more == 0 {
            return Ok(Vec::new());
        }
        let mut victims: Vec<(u64, Budget)> = Vec::new();
        for (budget, limit) in [
            (Budget::ArrivedOfTopic, self.of_topic),
            (Budget::ArrivedOfHost, self.of_host),
            (Budget::Arrived, self.all),
        ] {
            let is_in = |of: PortOf| match budget {
                Budget::ArrivedOfTopic => of.0 == topic,
                Budget::ArrivedOfHost => of.1 == host,
                _ => true,
            };
            loop {
                let gone: BTreeSet<u64> = victims.iter().map(|(id, _)| *id).collect();
                let live: Vec<(u64, &Port)> = self
                    .ports
                    .iter()
                    .filter(|(id, port)| port.is_live() && is_in(port.of) && !gone.contains(id))
                    .map(|(id, port)| (*id, port))
                    .collect();
                if live.iter().map(|(_, port)| port.bytes).sum::<u64>() + more <= limit {
                    break;
                }
                let victim = if bytes <= limit { victim((id, host, more), &live, now) } else { None };
                victims.push((victim.ok_or(budget)?, budget));
            }
        }
        if self.ports.values().map(|port| port.bytes).sum::<u64>() + more > self.all.saturating_mul(2) {
            return Err(Budget::Arrived);
        }
        Ok(victims)
    }

    fn charge(&mut self, id: u64, bytes: u64) {
        if let Some(port) = self.ports.get_mut(&id) {
            port.bytes = port.bytes.max(bytes);
        }
    }

    fn evict(&mut self, id: u64) -> Option<PortOf> {
        let port = self.ports.get(&id)?;
        port.mark.is_evicted.store(true, Ordering::Relaxed);
        Some(port.of)
    }
}

/// The port to evict, among those of one budget, for a port that needs `more`.
fn victim((id, host, more): (u64, HostId, u64), live: &[(u64, &Port)], now: u64) -> Option<u64> {
    let mut by_host: BTreeMap<HostId, u64> = BTreeMap::from([(host, more)]);
    for (_, port) in live {
        *by_host.entry(port.of.1).or_default() += port.bytes;
    }
    let heard = |port: &Port| port.mark.heard.load(Ordering::Relaxed);
    let is_silent = |port: &Port| u128::from(now.saturating_sub(heard(port))) >= SILENT.as_nanos();
    let has = |port: &Port| by_host.get(&port.of.1).copied().unwrap_or_default();
    let others = live.iter().filter(|(other, port)| *other != id && port.bytes > 0);
    let of_most = |may_go: &dyn Fn(&Port) -> bool| {
        let may_go = others.clone().filter(|(_, port)| may_go(port));
        may_go.max_by_key(|(_, port)| (has(port), Reverse(heard(port)))).map(|(id, _)| *id)
    };
    let newcomer = by_host.get(&host).copied().unwrap_or_default();
    of_most(&is_silent).or_else(|| of_most(&|port| has(port) > newcomer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn budget(all: u64, of_host: u64, of_topic: u64) -> Arc<ArrivalBudget> {
        let limits = Limits {
            arrived_bytes_max: all << 20,
            arrived_host_bytes_max: of_host << 20,
            arrived_topic_bytes_max: of_topic << 20,
            ..Limits::default()
        };
        Arc::new(ArrivalBudget::new(&limits, Arc::default()))
    }

    fn of(topic: u8, host: u8) -> PortOf {
        (TopicId([topic; 16]), HostId([host; 16]))
    }

    fn grow(charge: &Charge, mebibytes: u64, now: u64) -> Result<Vec<PortOf>, String> {
        charge.hear(now);
        charge.grow(mebibytes << 20, 1 << 40, now).map_err(|over| over.key)
    }

    #[test]
    fn the_longest_silent_port_of_the_host_with_most_memory_is_evicted() {
        let arrived = budget(10, 10, 10);
        let greedy: Vec<Arc<Charge>> = (0..3).map(|topic| arrived.charge(of(topic, 1))).collect();
        for (second, charge) in greedy.iter().enumerate() {
            assert_eq!(grow(charge, 3, second as u64), Ok(vec![]));
        }
        let honest = arrived.charge(of(0, 2));
        assert_eq!(grow(&honest, 1, 9), Ok(vec![]));
        assert_eq!(grow(&honest, 4, 9), Ok(vec![of(0, 1)]));
        assert!(greedy[0].is_evicted() && !greedy[1].is_evicted() && !honest.is_evicted());
        // The host with most memory evicts no port of another.
        assert_eq!(grow(&greedy[1], 4, 10), Err("arrived_bytes_max".to_owned()));
        assert_eq!(arrived.refusals.met(), BTreeMap::from([("arrived_bytes_max".to_owned(), 2)]));
        // Memory that the device or a pool's end frees is available to others.
        drop(greedy);
        assert_eq!(grow(&honest, 10, 11), Ok(vec![]));
    }

    #[test]
    fn a_host_evicts_its_own_port_only_if_that_has_fallen_silent() {
        let arrived = budget(100, 4, 100);
        let (first, second) = (arrived.charge(of(1, 1)), arrived.charge(of(2, 1)));
        assert_eq!(grow(&first, 3, 0), Ok(vec![]));
        assert_eq!(grow(&second, 2, SECOND / 2), Err("arrived_host_bytes_max".to_owned()));
        assert_eq!(grow(&second, 2, SECOND), Ok(vec![of(1, 1)]));
        assert!(first.is_evicted());
    }

    #[test]
    fn a_message_larger_than_a_budget_is_refused_with_the_key_and_evicts_no_port() {
        let arrived = budget(100, 50, 4);
        let (first, second) = (arrived.charge(of(1, 1)), arrived.charge(of(1, 2)));
        assert_eq!(grow(&first, 3, 0), Ok(vec![]));
        assert_eq!(grow(&second, 5, SECOND), Err("arrived_topic_bytes_max".to_owned()));
        assert!(!first.is_evicted() && second.granted() == 0);
    }

    proptest! {
        /// B1 and B2 hold, and a refusal changes nothing.
        #[test]
        fn no_sequence_of_requests_exceeds_a_budget(
            asks in proptest::collection::vec((0_usize..12, 1_u64..9, any::<bool>()), 1..100),
        ) {
            let arrived = budget(12, 8, 6);
            let mut charges: BTreeMap<usize, Arc<Charge>> = BTreeMap::new();
            for (now, (port, mebibytes, goes)) in asks.into_iter().enumerate() {
                if goes {
                    charges.remove(&port);
                    continue;
                }
                let name = of((port % 3) as u8, (port / 3) as u8);
                if charges.get(&port).is_some_and(|charge| charge.is_evicted()) {
                    continue;
                }
                let charge = charges.entry(port).or_insert_with(|| arrived.charge(name));
                let before = charge.granted();
                let grown = grow(charge, mebibytes, now as u64 * SECOND / 3);
                prop_assert!(grown.is_ok() || charge.granted() == before);
                let ledger = arrived.ledger();
                let sum = |is_in: &dyn Fn(&Port) -> bool| ledger.ports.values().filter(|port| is_in(port)).map(|port| port.bytes).sum::<u64>();
                prop_assert!(sum(&|port| port.is_live()) <= 12 << 20 && sum(&|_| true) <= 24 << 20);
                prop_assert!(sum(&|port| port.is_live() && port.of.0 == name.0) <= 6 << 20);
                prop_assert!(sum(&|port| port.is_live() && port.of.1 == name.1) <= 8 << 20);
            }
        }
    }
}
