//! The topic directory: what every other host publishes and subscribes to, and what follows for this one. No I/O.
//!
//! It is a set of facts, a host's names and its endpoints, so events may come twice or in any order: the last word about each counts.
//!
//! Invariants  A host is there while one of its names is. What it announces before its name is kept and seen with it; what comes late of
//!             a host that is gone is not seen. `HOSTS_MAX` and `ENDPOINTS_MAX` bound what strangers can make us keep.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::local::Role;
use crate::names::{HostId, TopicKey};
use crate::qos::SubscriberQos;
use crate::wire::Endpoint;

/// Endpoints of one host at most.
pub const ENDPOINTS_MAX: usize = 4096;
/// Other hosts at most.
pub const HOSTS_MAX: usize = 1024;
/// Names of one host at most: it has two for a moment when it is started again under another.
const NAMES_MAX: usize = 16;

#[derive(Debug, Default)]
struct Host {
    /// Names that it is announced under, the newest last.
    names: Vec<String>,
    endpoints: BTreeMap<String, Endpoint>,
    /// It has announced more than is kept, and that has been said.
    overflowed: bool,
}

/// What is known of the other hosts.
#[derive(Debug, Default)]
pub struct Directory {
    hosts: HashMap<HostId, Host>,
    /// There are more hosts than are kept, and that has been said.
    overflowed: bool,
}

/// An announcement was not kept. Said once of each host, so that a flood of announcements is no flood of words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overflow {
    /// Of endpoints.
    #[error(
        "host {host} announces more than {ENDPOINTS_MAX} topics; {key} and what it announces after it are not seen from here: \
         spread its topics over several runtime directories"
    )]
    Endpoints {
        /// Whose.
        host: String,
        /// The first that was not kept.
        key: TopicKey,
    },
    /// Of hosts.
    #[error(
        "more than {HOSTS_MAX} hosts are announced; host {0} and later ones are not seen: split the network (peers, multicast)"
    )]
    Hosts(HostId),
}

/// A host that wants a topic from this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who.
    pub host: HostId,
    /// What those of its subscribers request that fit what is offered.
    pub requests: Vec<SubscriberQos>,
}

impl Directory {
    /// A host has appeared, or has another name.
    pub fn host_up(&mut self, host: HostId, name: &str) -> Result<(), Overflow> {
        let Some(entry) = self.entry(host)? else { return Ok(()) };
        entry.names.retain(|known| known != name);
        if entry.names.len() == NAMES_MAX {
            entry.names.remove(0);
        }
        entry.names.push(name.to_owned());
        Ok(())
    }

    /// A host is gone, or no longer has that name.
    pub fn host_down(&mut self, host: HostId, name: &str) {
        if let Some(entry) = self.hosts.get_mut(&host) {
            entry.names.retain(|known| known != name);
        }
        self.forget_if_empty(host);
    }

    /// An endpoint has appeared. `token` is the text that announced it.
    pub fn endpoint_up(&mut self, host: HostId, token: &str, endpoint: Endpoint) -> Result<(), Overflow> {
        let name = self.name(host);
        let Some(entry) = self.entry(host)? else { return Ok(()) };
        if entry.endpoints.len() < ENDPOINTS_MAX || entry.endpoints.contains_key(token) {
            entry.endpoints.insert(token.to_owned(), endpoint);
            return Ok(());
        }
        match std::mem::replace(&mut entry.overflowed, true) {
            true => Ok(()),
            false => Err(Overflow::Endpoints { host: name, key: endpoint.key }),
        }
    }

    /// An endpoint is gone.
    pub fn endpoint_down(&mut self, host: HostId, token: &str) {
        if let Some(entry) = self.hosts.get_mut(&host) {
            entry.endpoints.remove(token);
        }
        self.forget_if_empty(host);
    }

    /// Hosts that want what `publishers` of this host publish.
    pub fn wanted(&self, publishers: &Endpoint) -> Vec<Wanted> {
        let mut wanted: Vec<Wanted> = Vec::new();
        let of_type = |endpoint: &Endpoint| endpoint.type_name == publishers.type_name;
        for (host, endpoint) in self.endpoints(&publishers.key, Role::Subscriber).filter(|(_, e)| of_type(e)) {
            let requests: Vec<SubscriberQos> = publishers.fitting(endpoint).copied().collect();
            match wanted.iter_mut().find(|wanted| wanted.host == host) {
                _ if requests.is_empty() => {}
                Some(wanted) => wanted.requests.extend(requests),
                None => wanted.push(Wanted { host, requests }),
            }
        }
        wanted.sort_by_key(|wanted| wanted.host);
        wanted
    }

    /// What keeps the endpoint `own` of this host and other hosts' endpoints of the topic apart, in words. Each pair that does not fit
    /// is named, though others of the same hosts may.
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

    /// Topics that other hosts have, with a type of each.
    pub fn topics(&self) -> BTreeMap<TopicKey, String> {
        let endpoints = self.present().flat_map(|(_, host)| host.endpoints.values());
        endpoints.map(|endpoint| (endpoint.key.clone(), endpoint.type_name.clone())).collect()
    }

    /// A host's name, or its identity where it has told none.
    pub fn name(&self, host: HostId) -> String {
        let name = self.hosts.get(&host).and_then(|host| host.names.last()).filter(|name| !name.is_empty());
        name.map_or_else(|| host.to_string(), String::clone)
    }

    /// Whether a host is there.
    pub fn knows(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|host| !host.names.is_empty())
    }

    fn present(&self) -> impl Iterator<Item = (HostId, &Host)> {
        self.hosts.iter().filter(|(_, host)| !host.names.is_empty()).map(|(id, host)| (*id, host))
    }

    fn endpoints<'a>(&'a self, key: &'a TopicKey, role: Role) -> impl Iterator<Item = (HostId, &'a Endpoint)> + 'a {
        self.present().flat_map(move |(host, entry)| {
            let of_topic = entry.endpoints.values().filter(move |e| e.key == *key && e.role == role);
            of_topic.map(move |endpoint| (host, endpoint))
        })
    }

    fn entry(&mut self, host: HostId) -> Result<Option<&mut Host>, Overflow> {
        if self.hosts.len() < HOSTS_MAX || self.hosts.contains_key(&host) {
            return Ok(Some(self.hosts.entry(host).or_default()));
        }
        match std::mem::replace(&mut self.overflowed, true) {
            true => Ok(None),
            false => Err(Overflow::Hosts(host)),
        }
    }

    fn forget_if_empty(&mut self, host: HostId) {
        if self.hosts.get(&host).is_some_and(|entry| entry.names.is_empty() && entry.endpoints.is_empty()) {
            self.hosts.remove(&host);
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

    #[test]
    fn a_mismatch_is_named_on_both_sides() {
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
    fn a_second_pair_that_does_not_fit_is_named_beside_one_that_does() {
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
        assert_eq!(here.wanted(&publishers), [wanted], "what does not fit is no reason for a deeper queue");
        let mut there = Directory::default();
        there.host_up(host(2), "head").unwrap();
        there.endpoint_up(host(2), "p", publishers).unwrap();
        let said = there.mismatches(&subscribers);
        assert!(said.len() == 1 && said.iter().next().unwrap().contains("host head: durability"), "{said:?}");
    }

    #[test]
    fn what_comes_late_of_a_host_that_is_gone_makes_no_ghost() {
        let mut directory = Directory::default();
        let theirs = endpoint("a", Role::Subscriber, "x");
        directory.host_up(host(1), "arm").unwrap();
        directory.host_down(host(1), "arm");
        directory.endpoint_up(host(1), "t", theirs.clone()).unwrap();
        assert!(!directory.knows(host(1)) && directory.topics().is_empty());
        assert!(directory.wanted(&endpoint("a", Role::Publisher, "x")).is_empty());
        assert!(directory.hosts_with(&theirs.key, Role::Subscriber).is_empty());
        directory.endpoint_down(host(1), "t");
        assert!(directory.hosts.is_empty(), "nothing is kept of it");
    }

    #[test]
    fn a_host_that_comes_back_under_another_name_stays_in_either_order_of_events() {
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

    #[test]
    fn announcements_beyond_the_bounds_are_named_once() {
        let mut directory = Directory::default();
        directory.host_up(host(1), "arm").unwrap();
        for token in 0..ENDPOINTS_MAX {
            directory.endpoint_up(host(1), &token.to_string(), endpoint("a", Role::Subscriber, "x")).unwrap();
        }
        directory.endpoint_up(host(1), "7", endpoint("a", Role::Subscriber, "x")).unwrap();
        let said = directory.endpoint_up(host(1), "one more", endpoint("b", Role::Subscriber, "x")).unwrap_err();
        assert!(said.to_string().contains("host arm") && said.to_string().contains("/b"), "{said}");
        directory.endpoint_up(host(1), "another", endpoint("b", Role::Subscriber, "x")).unwrap();
        let many = |n: usize| HostId((n as u128).to_be_bytes());
        for n in 1..HOSTS_MAX {
            directory.host_up(many(n), "x").unwrap();
        }
        assert_eq!(directory.host_up(many(HOSTS_MAX), "x"), Err(Overflow::Hosts(many(HOSTS_MAX))));
        directory.host_up(many(HOSTS_MAX + 1), "x").unwrap();
        assert!(!directory.knows(many(HOSTS_MAX + 1)));
    }

    /// Everything that an endpoint of the model test is made of, and so what announces it.
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
        /// Whatever comes twice or late, what counts is the set of announcements that were not taken back.
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
            prop_assert_eq!(directory.topics().into_keys().collect::<BTreeSet<_>>(), topics);
            for (topic, reliable, latched) in [(0, true, true), (0, false, true), (1, true, false), (1, false, false)] {
                let own = made((topic, true, false, reliable, latched));
                let subscribers = || seen.iter().filter(move |(_, fact)| fact.0 == topic && !fact.1);
                // Type, reliability, durability: what is requested is at most what is offered.
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
