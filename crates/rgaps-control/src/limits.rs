//! Budgets: how much state and work other hosts, unknown peers and single clients may cause in a manager. Each budget is a configuration key with
//! a default. A refusal names the key, and `rgaps doctor` shows how often each budget was exceeded.
//!
//! Names       `X_max` is for all together; `X_host_max`, `X_topic_max` and `X_address_max` are for one of these; `_bytes` before `_max` is
//!             the unit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::size;

/// The keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Other hosts that are known at a time; at most half of them may be without a name.
    pub hosts_max: u64,
    /// Endpoints (publishing or subscribing sides of topics) that all other hosts announce; at most an eighth of them may be of hosts without a name.
    pub endpoints_max: u64,
    /// The same of one host.
    pub endpoints_host_max: u64,
    /// Bytes of all announcements of other hosts, as received.
    pub announced_bytes_max: u64,
    /// The same of one host.
    pub announced_host_bytes_max: u64,
    /// Ring requests of all other hosts that wait for a reply.
    pub ring_requests_max: u64,
    /// The same of one host; all unknown hosts together count as one.
    pub ring_requests_host_max: u64,
    /// Links with other hosts, one for each topic, host and direction.
    pub links_max: u64,
    /// The same with one host.
    pub links_host_max: u64,
    /// Publishers of a topic that may be other hosts', including ended ones with messages still held; the rest of the 256 is for programs of this
    /// host.
    pub remote_publishers_max: u64,
    /// Subscriber slots of a topic that senders to other hosts may occupy; the rest of the 1024 is for programs of this host.
    pub remote_subscribers_max: u64,
    /// Memory of this host that messages of other hosts occupy, complete or partial; 0 is half of the machine's memory.
    pub arrived_bytes_max: u64,
    /// The same of one host; 0 is three quarters of `arrived_bytes_max`.
    pub arrived_host_bytes_max: u64,
    /// The same of one topic; 0 is three quarters of `arrived_bytes_max`.
    pub arrived_topic_bytes_max: u64,
    /// Bytes that a pool for arriving messages may grow to, whatever another host says about its largest message; at least `arrival_pool_bytes`.
    pub arrival_pool_bytes_max: u64,
    /// Data connections that have not identified themselves yet; a new one replaces the oldest.
    pub pending_connections_max: u64,
    /// The same from one address.
    pub pending_connections_address_max: u64,
    /// Publishers and subscribers of one client (node).
    pub client_endpoints_max: u64,
    /// Requests of one client that wait, after a manager's death, until other clients have handed their topics back.
    pub client_requests_max: u64,
    /// Percent of `rgapsd`'s file descriptor limit that is reserved for processes with few nodes, publishers and subscribers; no new link with
    /// another host gets any of it, but connections of links that were offered before may use half.
    pub spare_fds_percent: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            hosts_max: 1024,
            endpoints_max: 65_536,
            endpoints_host_max: 4096,
            announced_bytes_max: 128 << 20,
            announced_host_bytes_max: 16 << 20,
            ring_requests_max: 2048,
            ring_requests_host_max: 512,
            links_max: 4096,
            links_host_max: 2048,
            remote_publishers_max: 192,
            remote_subscribers_max: 768,
            arrived_bytes_max: 0,
            arrived_host_bytes_max: 0,
            arrived_topic_bytes_max: 0,
            arrival_pool_bytes_max: 4 << 30,
            pending_connections_max: 64,
            pending_connections_address_max: 16,
            client_endpoints_max: 4096,
            client_requests_max: 64,
            spare_fds_percent: 25,
        }
    }
}

/// One of the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Budget {
    /// `hosts_max`
    Hosts,
    /// `endpoints_max`
    Endpoints,
    /// `endpoints_host_max`
    EndpointsOfHost,
    /// `announced_bytes_max`
    Announced,
    /// `announced_host_bytes_max`
    AnnouncedOfHost,
    /// `ring_requests_max`
    RingRequests,
    /// `ring_requests_host_max`
    RingRequestsOfHost,
    /// `links_max`
    Links,
    /// `links_host_max`
    LinksOfHost,
    /// `remote_publishers_max`
    RemotePublishers,
    /// `remote_subscribers_max`
    RemoteSubscribers,
    /// `arrived_bytes_max`
    Arrived,
    /// `arrived_host_bytes_max`
    ArrivedOfHost,
    /// `arrived_topic_bytes_max`
    ArrivedOfTopic,
    /// `arrival_pool_bytes_max`
    ArrivalPool,
    /// `pending_connections_max`
    PendingConnections,
    /// `pending_connections_address_max`
    PendingConnectionsOfAddress,
    /// `client_endpoints_max`
    ClientEndpoints,
    /// `client_requests_max`
    ClientRequests,
    /// `spare_fds_percent`
    SpareFds,
}

impl Budget {
    /// All of them, in the order of the keys.
    pub const ALL: [Self; 20] = [
        Self::Hosts,
        Self::Endpoints,
        Self::EndpointsOfHost,
        Self::Announced,
        Self::AnnouncedOfHost,
        Self::RingRequests,
        Self::RingRequestsOfHost,
        Self::Links,
        Self::LinksOfHost,
        Self::RemotePublishers,
        Self::RemoteSubscribers,
        Self::Arrived,
        Self::ArrivedOfHost,
        Self::ArrivedOfTopic,
        Self::ArrivalPool,
        Self::PendingConnections,
        Self::PendingConnectionsOfAddress,
        Self::ClientEndpoints,
        Self::ClientRequests,
        Self::SpareFds,
    ];

    /// Its key.
    pub fn key(self) -> &'static str {
        match self {
            Self::Hosts => "hosts_max",
            Self::Endpoints => "endpoints_max",
            Self::EndpointsOfHost => "endpoints_host_max",
            Self::Announced => "announced_bytes_max",
            Self::AnnouncedOfHost => "announced_host_bytes_max",
            Self::RingRequests => "ring_requests_max",
            Self::RingRequestsOfHost => "ring_requests_host_max",
            Self::Links => "links_max",
            Self::LinksOfHost => "links_host_max",
            Self::RemotePublishers => "remote_publishers_max",
            Self::RemoteSubscribers => "remote_subscribers_max",
            Self::Arrived => "arrived_bytes_max",
            Self::ArrivedOfHost => "arrived_host_bytes_max",
            Self::ArrivedOfTopic => "arrived_topic_bytes_max",
            Self::ArrivalPool => "arrival_pool_bytes_max",
            Self::PendingConnections => "pending_connections_max",
            Self::PendingConnectionsOfAddress => "pending_connections_address_max",
            Self::ClientEndpoints => "client_endpoints_max",
            Self::ClientRequests => "client_requests_max",
            Self::SpareFds => "spare_fds_percent",
        }
    }
}

impl Limits {
    /// A budget's limit: the given value, or what 0 stands for.
    pub fn of(&self, budget: Budget) -> u64 {
        match budget {
            Budget::Hosts => self.hosts_max,
            Budget::Endpoints => self.endpoints_max,
            Budget::EndpointsOfHost => self.endpoints_host_max,
            Budget::Announced => self.announced_bytes_max,
            Budget::AnnouncedOfHost => self.announced_host_bytes_max,
            Budget::RingRequests => self.ring_requests_max,
            Budget::RingRequestsOfHost => self.ring_requests_host_max,
            Budget::Links => self.links_max,
            Budget::LinksOfHost => self.links_host_max,
            Budget::RemotePublishers => self.remote_publishers_max,
            Budget::RemoteSubscribers => self.remote_subscribers_max,
            Budget::Arrived => given_or(self.arrived_bytes_max, || memory_bytes() / 2),
            Budget::ArrivedOfHost => given_or(self.arrived_host_bytes_max, || self.of(Budget::Arrived) / 4 * 3),
            Budget::ArrivedOfTopic => given_or(self.arrived_topic_bytes_max, || self.of(Budget::Arrived) / 4 * 3),
            Budget::ArrivalPool => self.arrival_pool_bytes_max,
            Budget::PendingConnections => self.pending_connections_max,
            Budget::PendingConnectionsOfAddress => self.pending_connections_address_max,
            Budget::ClientEndpoints => self.client_endpoints_max,
            Budget::ClientRequests => self.client_requests_max,
            Budget::SpareFds => self.spare_fds_percent,
        }
    }

    /// Like `of`, as a `usize`.
    pub fn count(&self, budget: Budget) -> usize {
        usize::try_from(self.of(budget)).unwrap_or(usize::MAX)
    }

    /// The error that a budget is used up.
    pub fn over(&self, budget: Budget) -> OverBudget {
        OverBudget { key: budget.key().to_owned(), limit: self.of(budget) }
    }

    /// The first key with a value that cannot work, and what it must be.
    pub(crate) fn check(&self) -> Result<(), (&'static str, u64, &'static str)> {
        let within = |budget: Budget, least: u64, most: u64, rule: &'static str| {
            let value = self.given(budget);
            if (least..=most).contains(&value) { Ok(()) } else { Err((budget.key(), value, rule)) }
        };
        let count = "from 1 to 1048576";
        for budget in [
            Budget::Hosts,
            Budget::Endpoints,
            Budget::EndpointsOfHost,
            Budget::RingRequests,
            Budget::RingRequestsOfHost,
            Budget::Links,
            Budget::LinksOfHost,
            Budget::ClientEndpoints,
            Budget::ClientRequests,
        ] {
            within(budget, 1, 1 << 20, count)?;
        }
        for budget in [Budget::PendingConnections, Budget::PendingConnectionsOfAddress] {
            within(budget, 1, 4096, "from 1 to 4096; each connection costs a thread")?;
        }
        for budget in [Budget::Announced, Budget::AnnouncedOfHost] {
            within(budget, 1 << 16, 1 << 36, "from 64 KiB to 64 GiB")?;
        }
        for budget in [Budget::Arrived, Budget::ArrivedOfHost, Budget::ArrivedOfTopic] {
            within(budget, 0, 1 << 50, "from 0 to 2^50 bytes; 0 takes a share of the machine's memory")?;
        }
        within(Budget::ArrivalPool, 4096, 1 << 41, "from 4096 to 2^41 bytes; the default is 4294967296 (4 GiB)")?;
        within(Budget::RemotePublishers, 1, 255, "from 1 to 255: a topic has 256 publishers on a host")?;
        within(Budget::RemoteSubscribers, 1, 1023, "from 1 to 1023: a topic has 1024 subscribers on a host")?;
        within(Budget::SpareFds, 0, 90, "from 0 to 90 percent")
    }

    /// The value of a key, 0 included.
    fn given(&self, budget: Budget) -> u64 {
        match budget {
            Budget::Arrived => self.arrived_bytes_max,
            Budget::ArrivedOfHost => self.arrived_host_bytes_max,
            Budget::ArrivedOfTopic => self.arrived_topic_bytes_max,
            budget => self.of(budget),
        }
    }
}

fn given_or(given: u64, share: impl FnOnce() -> u64) -> u64 {
    if given == 0 { share() } else { given }
}

/// Bytes of this machine's memory, or the limit of the control group if that is lower.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    // If it cannot be read, assume a small machine.
    let total = total.map_or(2 << 30, |kib| kib << 10);
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    group.and_then(|text| text.trim().parse::<u64>().ok()).map_or(total, |group| group.min(total))
}

/// A budget is used up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{key} = {}", in_words(key, *limit))]
pub struct OverBudget {
    /// Its key.
    pub key: String,
    /// Its limit.
    pub limit: u64,
}

/// A limit as people write it.
pub fn in_words(key: &str, limit: u64) -> String {
    if is_bytes(key) { size::in_words(limit) } else { limit.to_string() }
}

/// Whether a key's value is a number of bytes.
pub fn is_bytes(key: &str) -> bool {
    key.ends_with("_bytes") || key.ends_with("_bytes_max")
}

/// How often each budget was exceeded since the manager's start. Any thread may count.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: [AtomicU64; Budget::ALL.len()],
}

impl Refusals {
    /// Counts one more. True for the first of a budget: the caller logs only that one.
    pub fn count(&self, budget: Budget) -> bool {
        self.add(budget, 1) == 0
    }

    /// Counts `more`. Returns the count before.
    pub fn add(&self, budget: Budget, more: u64) -> u64 {
        self.counts[budget as usize].fetch_add(more, Ordering::Relaxed)
    }

    /// The counts that are not 0, by key.
    pub fn met(&self) -> BTreeMap<String, u64> {
        let counts =
            Budget::ALL.iter().map(|budget| (budget.key(), self.counts[*budget as usize].load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).map(|(key, count)| (key.to_owned(), count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_a_budget_and_every_budget_a_key() {
        let keys: Vec<String> =
            toml::Table::try_from(Limits::default()).unwrap().into_iter().map(|(key, _)| key).collect();
        let mut budgets: Vec<String> = Budget::ALL.iter().map(|budget| budget.key().to_owned()).collect();
        assert!(Budget::ALL.iter().enumerate().all(|(place, budget)| *budget as usize == place));
        budgets.sort();
        let mut sorted = keys;
        sorted.sort();
        assert_eq!(sorted, budgets);
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn shares_of_memory_stand_for_zero_and_the_share_of_one_is_less_than_that_of_all() {
        let limits = Limits::default();
        let all = limits.of(Budget::Arrived);
        assert!(all >= 64 << 20 && limits.of(Budget::ArrivedOfHost) < all && limits.of(Budget::ArrivedOfTopic) < all);
        let given = Limits { arrived_bytes_max: 1 << 20, ..limits };
        assert_eq!(given.over(Budget::Arrived).to_string(), "arrived_bytes_max = 1 MiB");
        assert_eq!(given.of(Budget::ArrivedOfHost), 3 << 18);
    }

    #[test]
    fn refusals_are_counted_by_key() {
        let refusals = Refusals::default();
        assert!(refusals.met().is_empty());
        assert!(refusals.count(Budget::Links) && !refusals.count(Budget::Links));
        assert_eq!(refusals.met(), BTreeMap::from([("links_max".to_owned(), 2)]));
    }
}
