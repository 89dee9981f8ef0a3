//! The topic directory: what every other host publishes and subscribes to, and which links this host needs. No I/O.
//!
//! It is a set of names and endpoints of hosts, so events may arrive twice or in any order: the last event about each one counts. An index by
//! topic answers each question in time proportional to the endpoints of that topic.
//!
//! Invariants  A host is known while it has a name. Endpoints that it announces before its name are stored, and visible from its name on; late
//!             endpoints of a host that is gone are not visible. Everything that other hosts can make us store is bounded, by host and in total.
//!             If something was refused because a bound was reached, `poll_missed` says when there is room again, so that it can be queried.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::limits::{Budget, Limits};
use crate::local::Role;
use crate::names::{HostId, TopicKey};
use crate::qos::SubscriberQos;
use crate::wire::Endpoint;

/// Endpoints of one host and topic, at most. A host needs two, and four while they change.
pub const ENDPOINTS_OF_TOPIC_MAX: usize = 16;
/// Names of one host, at most. It has two for a moment when it restarts under another name.
const NAMES_MAX: usize = 16;

#[derive(Debug, Default)]
struct Host {
    /// Names that it has announced, the newest last.
    names: Vec<String>,
    endpoints: BTreeMap<Arc<str>, Endpoint>,
    bytes: usize,
    /// The host has announced more than is stored, and that was reported.
    overflowed: bool,
    /// An endpoint of the host was refused and is not queried again yet.
    missed: bool,
}

/// A refusal: an endpoint of a host, or a whole host (`None`); and the value of `freed` at that time.
type Missed = (Option<HostId>, u64);

/// The known names and endpoints of other hosts.
#[derive(Debug, Default)]
pub struct Directory {
    limits: Limits,
    hosts: HashMap<HostId, Host>,
    /// Tokens of endpoints, by topic and host.
    by_key: BTreeMap<TopicKey, BTreeMap<HostId, BTreeSet<Arc<str>>>>,
    endpoints: usize,
    nameless: usize,
    bytes: usize,
    /// There are more hosts than are stored, and that was reported.
    overflowed: bool,
    /// There are more endpoints than are stored, and that was reported.
    overflowed_in_all: bool,
    missed_host: bool,
    missed: VecDeque<Missed>,
    /// How many names and endpoints were withdrawn.
    freed: u64,
    refused: u64,
    refused_for: BTreeMap<Budget, u64>,
}

/// An announcement was not stored. Reported once per host, so that a flood of announcements does not flood the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overflow {
    /// A host announces too many endpoints.
    #[error(
        "host {host} announces more than one host may ({bound}); this host ignores {key} and its later announcements: raise that limit, or \
         spread its topics over several runtime directories"
    )]
    Endpoints {
        /// The host.
        host: String,
        /// The first that was not stored.
        key: TopicKey,
        /// The bound that it exceeds.
        bound: String,
    },
    /// All hosts together announce too many endpoints.
    #[error(
        "all hosts together announce more than is allowed ({bound}); this host ignores {key} of host {host} and later announcements: raise \
         that limit, or split the network (peers, multicast)"
    )]
    InAll {
        /// The host.
        host: String,
        /// The first that was not stored.
        key: TopicKey,
        /// The bound that they exceed.
        bound: String,
    },
    /// There are too many hosts.
    #[error(
        "there are more hosts than is allowed ({bound}); this host ignores host {host} and later ones: raise that limit, or split the network \
         (peers, multicast)"
    )]
    Hosts {
        /// The first that was not stored.
        host: HostId,
        /// The bound that they exceed.
        bound: String,
    },
}

/// Which topics a change concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concerned {
    /// No topic: the change was known, or is not visible.
    Nothing,
    /// One topic.
    Topic(TopicKey),
    /// The topics of the host (`topics_of`), and those that have links with it.
    Host,
}

/// A host that wants a topic from this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The host.
    pub host: HostId,
    /// The requests of its subscribers that are compatible with the offers.
    pub requests: Vec<SubscriberQos>,
}

impl Directory {
    /// An empty directory, bounded by `limits`.
    pub fn new(limits: &Limits) -> Self {
        Self { limits: limits.clone(), ..Self::default() }
    }

    /// A host has appeared, or has another name.
    pub fn host_up(&mut self, host: HostId, name: &str) -> Result<Concerned, Overflow> {
        let Some(entry) = self.entry(host)? else { return Ok(Concerned::Nothing) };
        if entry.names.last().is_some_and(|last| last == name) {
            return Ok(Concerned::Nothing);
        }
        let had_name = !entry.names.is_empty();
        entry.names.retain(|known| known != name);
        if entry.names.len() == NAMES_MAX {
            entry.names.remove(0);
        }
        entry.names.push(name.to_owned());
        let endpoints = entry.endpoints.len();
        self.nameless -= if had_name { 0 } else { endpoints };
        Ok(Concerned::Host)
    }

    /// A host is gone, or no longer has that name.
    pub fn host_down(&mut self, host: HostId, name: &str) -> Concerned {
        let Some(entry) = self.hosts.get_mut(&host) else { return Concerned::Nothing };
        let before = entry.names.len();
        entry.names.retain(|known| known != name);
        if entry.names.len() == before {
            return Concerned::Nothing;
        }
        self.nameless += if entry.names.is_empty() { entry.endpoints.len() } else { 0 };
        self.freed += 1;
        self.forget_if_empty(host);
        Concerned::Host
    }

    /// An endpoint has appeared. `token` is the text that announced it.
    pub fn endpoint_up(&mut self, host: HostId, token: &str, endpoint: Endpoint) -> Result<Concerned, Overflow> {
        if self.hosts.get(&host).and_then(|entry| entry.endpoints.get(token)).is_some_and(|known| *known == endpoint) {
            return Ok(Concerned::Nothing);
        }
        self.forget_endpoint(host, token);
        let name = self.name(host);
        let of_topic = self.by_key.get(&endpoint.key).and_then(|hosts| hosts.get(&host)).map_or(0, BTreeSet::len);
        let full = self.is_full(host, token.len());
        if !self.hosts.contains_key(&host) && self.nameless_hosts() >= self.limits.count(Budget::Hosts) / 2 {
            return self.overflow(host);
        }
        if let Some(full) = full {
            // Noted for all hosts, since nothing may be stored of this one.
            self.refuse(None, Some(full));
            let bound = self.limits.over(full).to_string();
            return match std::mem::replace(&mut self.overflowed_in_all, true) {
                true => Ok(Concerned::Nothing),
                false => Err(Overflow::InAll { host: name, key: endpoint.key, bound }),
            };
        }
        let most = self.limits.count(Budget::EndpointsOfHost);
        let bytes_most = self.limits.count(Budget::AnnouncedOfHost);
        let Some(entry) = self.entry(host)? else { return Ok(Concerned::Nothing) };
        let host_full = if entry.endpoints.len() >= most {
            Some(Budget::EndpointsOfHost)
        } else {
            (entry.bytes + token.len() > bytes_most).then_some(Budget::AnnouncedOfHost)
        };
        if host_full.is_some() || of_topic >= ENDPOINTS_OF_TOPIC_MAX {
            let was_said = std::mem::replace(&mut entry.overflowed, true);
            self.refuse(Some(host), host_full);
            let of_topic = || format!("{ENDPOINTS_OF_TOPIC_MAX} endpoints of a topic");
            let bound = host_full.map_or_else(of_topic, |budget| self.limits.over(budget).to_string());
            return match was_said {
                true => Ok(Concerned::Nothing),
                false => Err(Overflow::Endpoints { host: name, key: endpoint.key, bound }),
            };
        }
        let (token, key, is_there): (Arc<str>, _, _) = (token.into(), endpoint.key.clone(), !entry.names.is_empty());
        entry.bytes += token.len();
        entry.endpoints.insert(token.clone(), endpoint);
        self.endpoints += 1;
        self.nameless += usize::from(!is_there);
        self.bytes += token.len();
        self.by_key.entry(key.clone()).or_default().entry(host).or_default().insert(token);
        Ok(if is_there { Concerned::Topic(key) } else { Concerned::Nothing })
    }

    /// An endpoint is gone. It concerns its topic even if its host is gone already, since the manager may not have acted on that yet.
    pub fn endpoint_down(&mut self, host: HostId, token: &str) -> Concerned {
        let key = self.forget_endpoint(host, token);
        self.forget_if_empty(host);
        key.map_or(Concerned::Nothing, Concerned::Topic)
    }

    /// Hosts that want what `publishers` of this host publish.
    pub fn wanted(&self, publishers: &Endpoint) -> Vec<Wanted> {
        let mut wanted: Vec<Wanted> = Vec::new();
        let of_type = |endpoint: &Endpoint| endpoint.type_name == publishers.type_name;
        for (host, endpoint) in self.endpoints(&publishers.key, Role::Subscriber).filter(|(_, e)| of_type(e)) {
            let requests: Vec<SubscriberQos> = publishers.fitting(endpoint).copied().collect();
            // The index is in the order of hosts.
            match wanted.last_mut().filter(|wanted| wanted.host == host) {
                _ if requests.is_empty() => {}
                Some(wanted) => wanted.requests.extend(requests),
                None => wanted.push(Wanted { host, requests }),
            }
        }
        wanted
    }

    /// Why the endpoint `own` of this host and other hosts' endpoints of the topic are incompatible, in words. Names each incompatible pair, even if
    /// other pairs of the same hosts are compatible.
    pub fn mismatches(&self, own: &Endpoint) -> BTreeSet<String> {
        let other = match own.role {
            Role::Publisher => Role::Subscriber,
            Role::Subscriber => Role::Publisher,
        };
        let of_host = self.endpoints(&own.key, other);
        of_host
            .flat_map(|(host, endpoint)| {
                let found = match own.role {
                    Role::Publisher => own.mismatches(endpoint),
                    Role::Subscriber => endpoint.mismatches(own),
                };
                found.into_iter().map(move |mismatch| format!("{} and host {}: {mismatch}", own.key, self.name(host)))
            })
            .collect()
    }

    /// Whether a host publishes the topic.
    pub fn publishes(&self, host: HostId, key: &TopicKey) -> bool {
        self.endpoints(key, Role::Publisher).any(|(of, _)| of == host)
    }

    /// Names of the hosts that have endpoints of a role.
    pub fn hosts_with(&self, key: &TopicKey, role: Role) -> Vec<String> {
        let names: BTreeSet<String> = self.endpoints(key, role).map(|(host, _)| self.name(host)).collect();
        names.into_iter().collect()
    }

    /// Topics of other hosts after `after`, in order, each with one of its types.
    pub fn topics(&self, after: Option<&TopicKey>) -> impl Iterator<Item = (&TopicKey, &str)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.by_key.range::<TopicKey, _>((from, Bound::Unbounded)).map(|(key, _)| key);
        keys.filter_map(|key| Some((key, self.all_of(key).next()?.1.type_name.as_str())))
    }

    /// Topics of a host, known or not.
    pub fn topics_of(&self, host: HostId) -> impl Iterator<Item = &TopicKey> {
        self.hosts.get(&host).into_iter().flat_map(|entry| entry.endpoints.values()).map(|endpoint| &endpoint.key)
    }

    /// The numbers of known hosts, and of endpoints of all hosts.
    pub fn counts(&self) -> (usize, usize) {
        (self.hosts.values().filter(|host| !host.names.is_empty()).count(), self.endpoints)
    }

    /// Names of the known hosts.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.hosts.values().filter_map(|host| host.names.last().cloned())
    }

    /// Announcements that were refused because a bound was reached.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The same, by budget.
    pub fn refused_for(&self) -> &BTreeMap<Budget, u64> {
        &self.refused_for
    }

    /// A host of which something was refused, once there is room. `Some(None)` stands for all hosts, since whole hosts were refused.
    pub fn poll_missed(&mut self) -> Option<Option<HostId>> {
        for _ in 0..self.missed.len() {
            let (of, at) = self.missed.pop_front()?;
            match of.map(|host| self.hosts.get_mut(&host)) {
                // The host is gone, so nothing of it is missing.
                Some(None) => continue,
                _ if at == self.freed => self.missed.push_back((of, at)),
                Some(Some(entry)) => {
                    entry.missed = false;
                    return Some(of);
                }
                None => {
                    self.missed_host = false;
                    return Some(None);
                }
            }
        }
        None
    }

    /// Notes that an endpoint of a host, or a whole host, was not stored, for `poll_missed`.
    pub fn refuse(&mut self, of: Option<HostId>, for_want_of: Option<Budget>) {
        self.refused += 1;
        if let Some(budget) = for_want_of {
            *self.refused_for.entry(budget).or_default() += 1;
        }
        let was_missed = match of {
            None => std::mem::replace(&mut self.missed_host, true),
            Some(host) => self.hosts.get_mut(&host).is_none_or(|entry| std::mem::replace(&mut entry.missed, true)),
        };
        if !was_missed {
            self.missed.push_back((of, self.freed));
        }
    }

    /// A host's name, or its identity if it has announced none.
    pub fn name(&self, host: HostId) -> String {
        let name = self.hosts.get(&host).and_then(|host| host.names.last()).filter(|name| !name.is_empty());
        name.map_or_else(|| host.to_string(), String::clone)
    }

    /// Whether a host is known: it has a name.
    pub fn knows(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|host| !host.names.is_empty())
    }

    /// Endpoints of a topic, of known hosts, in the order of hosts.
    fn all_of(&self, key: &TopicKey) -> impl Iterator<Item = (HostId, &Endpoint)> {
        let hosts = self.by_key.get(key).into_iter().flatten();
        let present = hosts.filter_map(|(host, tokens)| Some((*host, self.hosts.get(host)?, tokens)));
        present.filter(|(_, entry, _)| !entry.names.is_empty()).flat_map(|(host, entry, tokens)| {
            tokens.iter().filter_map(move |token| Some((host, entry.endpoints.get(token)?)))
        })
    }

    fn endpoints(&self, key: &TopicKey, role: Role) -> impl Iterator<Item = (HostId, &Endpoint)> {
        self.all_of(key).filter(move |(_, endpoint)| endpoint.role == role)
    }

    fn is_full(&self, host: HostId, bytes: usize) -> Option<Budget> {
        let most = self.limits.count(Budget::Endpoints);
        // Invented hosts without a name leave room for the others.
        if self.endpoints >= most || !self.knows(host) && self.nameless >= most.div_ceil(8) {
            return Some(Budget::Endpoints);
        }
        (self.bytes + bytes > self.limits.count(Budget::Announced)).then_some(Budget::Announced)
    }

    fn entry(&mut self, host: HostId) -> Result<Option<&mut Host>, Overflow> {
        if self.hosts.len() < self.limits.count(Budget::Hosts) || self.hosts.contains_key(&host) {
            return Ok(Some(self.hosts.entry(host).or_default()));
        }
        self.overflow(host).map(|_| None)
    }

    fn nameless_hosts(&self) -> usize {
        self.hosts.values().filter(|host| host.names.is_empty()).count()
    }

    fn overflow(&mut self, host: HostId) -> Result<Concerned, Overflow> {
        self.refuse(None, Some(Budget::Hosts));
        match std::mem::replace(&mut self.overflowed, true) {
            true => Ok(Concerned::Nothing),
            false => Err(Overflow::Hosts { host, bound: self.limits.over(Budget::Hosts).to_string() }),
        }
    }

    fn forget_endpoint(&mut self, host: HostId, token: &str) -> Option<TopicKey> {
        let entry = self.hosts.get_mut(&host)?;
        let (token, endpoint) = entry.endpoints.remove_entry(token)?;
        entry.bytes -= token.len();
        self.endpoints -= 1;
        self.nameless -= usize::from(entry.names.is_empty());
        self.bytes -= token.len();
        self.freed += 1;
        if let Some(hosts) = self.by_key.get_mut(&endpoint.key) {
            if let Some(tokens) = hosts.get_mut(&host) {
                tokens.remove(&token);
                if tokens.is_empty() {
                    hosts.remove(&host);
                }
            }
            if hosts.is_empty() {
                self.by_key.remove(&endpoint.key);
            }
        }
        Some(endpoint.key)
    }

    fn forget_if_empty(&mut self, host: HostId) {
        if self.hosts.get(&host).is_some_and(|entry| entry.names.is_empty() && entry.endpoints.is_empty()) {
            if self.hosts.remove(&host).is_some_and(|entry| entry.missed) {
                self.missed.retain(|(of, _)| *of != Some(host));
            }
            self.freed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::{Durability, PublisherQos, Reliability};
    use proptest::prelude::*;

    fn endpoint(name: &str, role: Role, type_name: &str) -> Endpoint {
        Endpoint {
            key: TopicKey::new(0, name).unwrap(),
            role,
            type_name: type_name.to_owned(),
            offers: vec![PublisherQos::default()],
            requests: vec![SubscriberQos::default()],
        }
    }

    fn host(n: u8) -> HostId {
        HostId([n; 16])
    }

    fn bounded(hosts: usize, endpoints: usize, of_host: usize) -> Directory {
        let [hosts_max, endpoints_max, endpoints_host_max] = [hosts, endpoints, of_host].map(|count| count as u64);
        Directory::new(&Limits { hosts_max, endpoints_max, endpoints_host_max, ..Limits::default() })
    }

    #[test]
    fn a_host_that_comes_and_goes_leaves_nothing_to_query_again() {
        let mut directory = bounded(8, 100, 2);
        let publisher = |name: &str| endpoint(name, Role::Publisher, "x");
        for _ in 0..100 {
            for n in 0..3 {
                let _ = directory.endpoint_up(host(1), &n.to_string(), publisher(&format!("t{n}")));
            }
            (0..2).for_each(|n| {
                directory.endpoint_down(host(1), &n.to_string());
            });
        }
        assert_eq!((directory.refused(), directory.missed.len()), (100, 0));
        assert_eq!(directory.poll_missed(), None);
    }

    #[test]
    fn a_mismatch_is_reported_on_both_sides() {
        let mut directory = Directory::default();
        directory.host_up(host(1), "arm").unwrap();
        let mut theirs = endpoint("a", Role::Publisher, "rgaps/Image");
        theirs.offers = vec![PublisherQos { reliability: Reliability::BestEffort, ..Default::default() }];
        directory.endpoint_up(host(1), "t", theirs).unwrap();
        let said = directory.mismatches(&endpoint("a", Role::Subscriber, "rgaps/Image"));
        assert!(said.iter().next().unwrap().contains("host arm: reliability"), "{said:?}");
        directory.endpoint_up(host(1), "u", endpoint("a", Role::Subscriber, "rgaps/Tensor")).unwrap();
        let said = directory.mismatches(&endpoint("a", Role::Publisher, "rgaps/Image"));
        assert!(said.iter().next().unwrap().contains("rgaps/Tensor"), "{said:?}");
        assert!(directory.wanted(&endpoint("a", Role::Publisher, "rgaps/Image")).is_empty());
    }

    #[test]
    fn an_incompatible_pair_is_reported_even_beside_a_compatible_one() {
        let late = SubscriberQos { durability: Durability::TransientLocal, ..Default::default() };
        let mut subscribers = endpoint("a", Role::Subscriber, "x");
        subscribers.requests.push(late);
        let publishers = endpoint("a", Role::Publisher, "x");
        let mut here = Directory::default();
        here.host_up(host(1), "arm").unwrap();
        here.endpoint_up(host(1), "s", subscribers.clone()).unwrap();
        let said = here.mismatches(&publishers);
        assert!(said.len() == 1 && said.iter().next().unwrap().contains("host arm: durability"), "{said:?}");
        let wanted = Wanted { host: host(1), requests: vec![SubscriberQos::default()] };
        assert_eq!(here.wanted(&publishers), [wanted], "incompatible requests do not count");
        let mut there = Directory::default();
        there.host_up(host(2), "head").unwrap();
        there.endpoint_up(host(2), "p", publishers).unwrap();
        let said = there.mismatches(&subscribers);
        assert!(said.len() == 1 && said.iter().next().unwrap().contains("host head: durability"), "{said:?}");
    }

    #[test]
    fn late_endpoints_of_a_host_that_is_gone_are_not_visible() {
        let mut directory = Directory::default();
        let theirs = endpoint("a", Role::Subscriber, "x");
        directory.host_up(host(1), "arm").unwrap();
        directory.host_down(host(1), "arm");
        directory.endpoint_up(host(1), "t", theirs.clone()).unwrap();
        assert!(!directory.knows(host(1)) && directory.topics(None).next().is_none());
        assert!(directory.wanted(&endpoint("a", Role::Publisher, "x")).is_empty());
        assert!(directory.hosts_with(&theirs.key, Role::Subscriber).is_empty());
        directory.endpoint_down(host(1), "t");
        assert!(directory.hosts.is_empty() && directory.by_key.is_empty(), "nothing is stored");
    }

    #[test]
    fn a_host_that_returns_under_another_name_stays_known_in_either_order_of_events() {
        for new_first in [true, false] {
            let mut directory = Directory::default();
            directory.host_up(host(1), "arm").unwrap();
            directory.endpoint_up(host(1), "t", endpoint("a", Role::Subscriber, "x")).unwrap();
            if new_first {
                directory.host_up(host(1), "left_arm").unwrap();
                directory.host_down(host(1), "arm");
            } else {
                directory.host_down(host(1), "arm");
                directory.host_up(host(1), "left_arm").unwrap();
            }
            assert_eq!(directory.name(host(1)), "left_arm");
            assert_eq!(directory.wanted(&endpoint("a", Role::Publisher, "x")).len(), 1);
        }
    }

    impl Directory {
        /// Recounted: endpoints, endpoints of hosts without a name, bytes, and entries of the index.
        fn sums(&self) -> (usize, usize, usize, usize) {
            let count = |hosts: &mut dyn Iterator<Item = &Host>| hosts.map(|host| host.endpoints.len()).sum::<usize>();
            let nameless = count(&mut self.hosts.values().filter(|host| host.names.is_empty()));
            let bytes = self.hosts.values().flat_map(|host| host.endpoints.keys()).map(|token| token.len()).sum();
            let indexed = self.by_key.values().flatten().map(|(_, tokens)| tokens.len()).sum();
            (count(&mut self.hosts.values()), nameless, bytes, indexed)
        }
    }

    #[test]
    fn a_change_says_which_topics_it_concerns_and_a_repeated_one_concerns_none() {
        let mut directory = Directory::default();
        let theirs = endpoint("a", Role::Subscriber, "x");
        let topic = || Concerned::Topic(theirs.key.clone());
        assert_eq!(directory.endpoint_up(host(1), "t", theirs.clone()), Ok(Concerned::Nothing), "it has no name yet");
        assert_eq!(directory.host_up(host(1), "arm"), Ok(Concerned::Host));
        assert_eq!(directory.host_up(host(1), "arm"), Ok(Concerned::Nothing));
        assert_eq!(directory.topics_of(host(1)).collect::<Vec<_>>(), [&theirs.key]);
        assert_eq!(directory.endpoint_up(host(1), "t", theirs.clone()), Ok(Concerned::Nothing));
        assert_eq!(directory.endpoint_up(host(1), "u", theirs.clone()), Ok(topic()));
        assert_eq!(directory.endpoint_down(host(1), "no such token"), Concerned::Nothing);
        assert_eq!(directory.endpoint_down(host(1), "u"), topic());
        assert_eq!(directory.host_down(host(1), "leg"), Concerned::Nothing);
        assert_eq!(directory.host_down(host(1), "arm"), Concerned::Host);
        assert_eq!(directory.endpoint_down(host(1), "t"), topic(), "the manager may not have acted on the host's end");
        assert_eq!(directory.host_down(host(2), "arm"), Concerned::Nothing);
    }

    #[test]
    fn refused_announcements_are_queried_once_there_is_room() {
        let mut directory = Directory::default();
        directory.host_up(host(1), "arm").unwrap();
        let theirs = || endpoint("a", Role::Subscriber, "x");
        for token in 0..ENDPOINTS_OF_TOPIC_MAX {
            directory.endpoint_up(host(1), &token.to_string(), theirs()).unwrap();
        }
        assert!(matches!(directory.endpoint_up(host(1), "more", theirs()), Err(Overflow::Endpoints { .. })));
        assert_eq!(directory.endpoint_up(host(1), "still more", theirs()), Ok(Concerned::Nothing), "it was reported");
        assert_eq!((directory.refused(), directory.poll_missed()), (2, None), "there is no room");
        directory.endpoint_down(host(1), "3");
        assert_eq!((directory.poll_missed(), directory.poll_missed()), (Some(Some(host(1))), None));
        directory.endpoint_up(host(1), "more", theirs()).unwrap();
        directory.endpoint_up(host(1), "still more", theirs()).unwrap();
        assert_eq!(directory.refused(), 3);
        directory.host_down(host(1), "arm");
        (0..ENDPOINTS_OF_TOPIC_MAX).for_each(|token| drop(directory.endpoint_down(host(1), &token.to_string())));
        directory.endpoint_down(host(1), "more");
        assert_eq!(directory.poll_missed(), None, "a host that is gone is not queried");
    }

    #[test]
    fn hosts_without_a_name_share_one_bound() {
        let mut directory = bounded(1024, 800, 4096);
        let of = |n: usize| HostId((n as u128).to_be_bytes());
        let mut refused = 0;
        for n in 0..110 {
            let theirs = endpoint(&format!("t{n}"), Role::Subscriber, "x");
            refused += usize::from(directory.endpoint_up(of(n % 500), "t", theirs.clone()).is_err());
            refused += usize::from(directory.endpoint_up(of(n % 500), &n.to_string(), theirs).is_err());
        }
        assert!(refused > 0 && directory.nameless == 100, "{refused}");
        directory.host_up(of(501), "arm").unwrap();
        let theirs = endpoint("a", Role::Subscriber, "x");
        assert_eq!(directory.endpoint_up(of(501), "t", theirs.clone()), Ok(Concerned::Topic(theirs.key)));
    }

    #[test]
    fn announcements_beyond_the_bounds_are_reported_once() {
        const HOSTS_MAX: usize = 20;
        let mut directory = bounded(HOSTS_MAX, 65_536, 100);
        directory.host_up(host(1), "arm").unwrap();
        for token in 0..100 {
            let theirs = endpoint(&format!("t{token}"), Role::Subscriber, "x");
            directory.endpoint_up(host(1), &token.to_string(), theirs).unwrap();
        }
        directory.endpoint_up(host(1), "7", endpoint("a", Role::Subscriber, "x")).unwrap();
        let said = directory.endpoint_up(host(1), "one more", endpoint("b", Role::Subscriber, "x")).unwrap_err();
        assert!(said.to_string().contains("host arm") && said.to_string().contains("/b"), "{said}");
        assert!(said.to_string().contains("endpoints_host_max = 100"), "{said}");
        directory.endpoint_up(host(1), "another", endpoint("b", Role::Subscriber, "x")).unwrap();
        let many = |n: usize| HostId((n as u128).to_be_bytes());
        for n in 1..HOSTS_MAX {
            directory.host_up(many(n), "x").unwrap();
        }
        let said = directory.host_up(many(HOSTS_MAX), "x").unwrap_err().to_string();
        assert!(said.contains("hosts_max = 20") && said.contains(&many(HOSTS_MAX).to_string()), "{said}");
        directory.host_up(many(HOSTS_MAX + 1), "x").unwrap();
        assert!(!directory.knows(many(HOSTS_MAX + 1)));
        assert_eq!(directory.poll_missed(), None, "there is no room");
        directory.host_down(many(5), "x");
        let asked: Vec<Option<HostId>> = std::iter::from_fn(|| directory.poll_missed()).collect();
        assert_eq!(asked, [Some(host(1)), None], "for the endpoints of one, and for all hosts");
        assert_eq!(directory.refused_for(), &BTreeMap::from([(Budget::Hosts, 2), (Budget::EndpointsOfHost, 2)]));
    }

    #[test]
    fn bytes_of_announcements_are_bounded_by_host_and_in_total() {
        let limits = Limits { announced_bytes_max: 10_000, announced_host_bytes_max: 6000, ..Limits::default() };
        let mut directory = Directory::new(&limits);
        let mut up = |of: u8, n: u8, bytes: usize| {
            directory.host_up(host(of), "arm").unwrap();
            let token = format!("{n}{}", "x".repeat(bytes - 1));
            directory.endpoint_up(host(of), &token, endpoint(&format!("t{n}"), Role::Subscriber, "x"))
        };
        up(1, 1, 5000).unwrap();
        let said = up(1, 2, 2000).unwrap_err().to_string();
        assert!(said.contains("announced_host_bytes_max = 6000 B"), "{said}");
        up(2, 3, 4000).unwrap();
        let said = up(3, 4, 2000).unwrap_err().to_string();
        assert!(said.contains("announced_bytes_max = 10000 B"), "{said}");
        assert_eq!(directory.bytes, 9000);
    }

    /// What an endpoint of the model test is made of. Its token is made from it.
    type Fact = (u8, bool, bool, bool, bool);

    fn made((topic, publisher, other_type, reliable, latched): Fact) -> Endpoint {
        let reliability = if reliable { Reliability::Reliable } else { Reliability::BestEffort };
        let durability = if latched { Durability::TransientLocal } else { Durability::Volatile };
        let role = if publisher { Role::Publisher } else { Role::Subscriber };
        Endpoint {
            offers: vec![PublisherQos { reliability, durability, ..Default::default() }; usize::from(publisher)],
            requests: vec![SubscriberQos { reliability, durability, ..Default::default() }; usize::from(!publisher)],
            ..endpoint(&format!("t{topic}"), role, if other_type { "y" } else { "x" })
        }
    }

    fn fact() -> impl Strategy<Value = Fact> {
        (0_u8..2, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>())
    }

    #[derive(Clone, Debug)]
    enum Word {
        Host { host: u8, name: u8, up: bool },
        Endpoint { host: u8, fact: Fact, up: bool },
    }

    fn word() -> impl Strategy<Value = Word> {
        prop_oneof![
            (0_u8..3, 0_u8..2, any::<bool>()).prop_map(|(host, name, up)| Word::Host { host, name, up }),
            (0_u8..3, fact(), any::<bool>()).prop_map(|(host, fact, up)| Word::Endpoint { host, fact, up }),
        ]
    }

    proptest! {
        /// Events may arrive twice or late: the state is the set of announcements that were not withdrawn.
        #[test]
        fn the_directory_is_the_set_of_what_is_announced(words in proptest::collection::vec(word(), 0..80)) {
            let mut directory = Directory::default();
            let mut names: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            let mut facts: BTreeSet<(u8, Fact)> = BTreeSet::new();
            for word in words {
                match word {
                    Word::Host { host: of, name, up } => {
                        let known = names.entry(of).or_default();
                        known.retain(|other| *other != name);
                        if up {
                            known.push(name);
                            directory.host_up(host(of), &format!("n{of}{name}")).unwrap();
                        } else {
                            directory.host_down(host(of), &format!("n{of}{name}"));
                        }
                    }
                    Word::Endpoint { host: of, fact, up: true } => {
                        facts.insert((of, fact));
                        directory.endpoint_up(host(of), &format!("{fact:?}"), made(fact)).unwrap();
                    }
                    Word::Endpoint { host: of, fact, up: false } => {
                        facts.remove(&(of, fact));
                        directory.endpoint_down(host(of), &format!("{fact:?}"));
                    }
                }
            }
            let name = |of: u8| names.get(&of).and_then(|known| known.last()).map(|last| format!("n{of}{last}"));
            let seen: Vec<(u8, Fact)> = facts.into_iter().filter(|(of, _)| name(*of).is_some()).collect();
            for of in 0..3 {
                prop_assert_eq!(directory.knows(host(of)), name(of).is_some());
                prop_assert_eq!(directory.name(host(of)), name(of).unwrap_or_else(|| host(of).to_string()));
            }
            let topics: BTreeSet<TopicKey> = seen.iter().map(|(_, fact)| made(*fact).key).collect();
            prop_assert_eq!(directory.topics(None).map(|(key, _)| key.clone()).collect::<BTreeSet<_>>(), topics);
            prop_assert_eq!(directory.sums(), (directory.endpoints, directory.nameless, directory.bytes, directory.endpoints));
            for (topic, reliable, latched) in [(0, true, true), (0, false, true), (1, true, false), (1, false, false)] {
                let own = made((topic, true, false, reliable, latched));
                let subscribers = || seen.iter().filter(move |(_, fact)| fact.0 == topic && !fact.1);
                // Type, reliability, durability: the request is at most the offer.
                let fits = |(_, other_type, reliably, late): (bool, bool, bool, bool)| {
                    !other_type && reliable >= reliably && latched >= late
                };
                let wants: BTreeMap<HostId, usize> = subscribers()
                    .filter(|(_, fact)| fits((fact.1, fact.2, fact.3, fact.4)))
                    .fold(BTreeMap::new(), |mut wants, (of, _)| {
                        *wants.entry(host(*of)).or_default() += 1;
                        wants
                    });
                let found: BTreeMap<HostId, usize> =
                    directory.wanted(&own).into_iter().map(|wanted| (wanted.host, wanted.requests.len())).collect();
                prop_assert_eq!(found, wants);
                let apart: BTreeSet<Option<String>> = subscribers()
                    .filter(|(_, fact)| !fits((fact.1, fact.2, fact.3, fact.4)))
                    .map(|(of, _)| name(*of))
                    .collect();
                let said = directory.mismatches(&own);
                for of in 0..3 {
                    let named = name(of).is_some_and(|name| said.iter().any(|text| text.contains(&format!("host {name}:"))));
                    prop_assert_eq!(named, name(of).is_some() && apart.contains(&name(of)));
                }
            }
        }
    }
}
