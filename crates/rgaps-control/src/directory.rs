//! The topic directory: what every other host publishes and subscribes to, and what follows for this one. No I/O.
//!
//! It is a set of facts, so events may come twice or in any order: the last word about an endpoint counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::local::Role;
use crate::names::{HostId, TopicKey};
use crate::qos::SubscriberQos;
use crate::wire::Endpoint;

/// Endpoints of one host at most; a host that announces more is cut short.
pub const ENDPOINTS_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Host {
    name: String,
    endpoints: BTreeMap<String, Endpoint>,
}

/// What is known of the other hosts.
#[derive(Debug, Default)]
pub struct Directory {
    hosts: HashMap<HostId, Host>,
}

/// A host that wants a topic from this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who.
    pub host: HostId,
    /// What its subscribers request.
    pub requests: Vec<SubscriberQos>,
}

impl Directory {
    /// A host has appeared, or has told its name.
    pub fn host_up(&mut self, host: HostId, name: &str) {
        self.hosts.entry(host).or_default().name = name.to_owned();
    }

    /// A host is gone, and all that it had.
    pub fn host_down(&mut self, host: HostId) {
        self.hosts.remove(&host);
    }

    /// An endpoint has appeared. `token` is the text that announced it.
    pub fn endpoint_up(&mut self, host: HostId, token: &str, endpoint: Endpoint) {
        let endpoints = &mut self.hosts.entry(host).or_default().endpoints;
        if endpoints.len() < ENDPOINTS_MAX {
            endpoints.insert(token.to_owned(), endpoint);
        }
    }

    /// An endpoint is gone.
    pub fn endpoint_down(&mut self, host: HostId, token: &str) {
        if let Some(entry) = self.hosts.get_mut(&host) {
            entry.endpoints.remove(token);
        }
    }

    /// Hosts that want what `publishers` of this host publish.
    pub fn wanted(&self, publishers: &Endpoint) -> Vec<Wanted> {
        let mut wanted: Vec<Wanted> = Vec::new();
        for (host, endpoint) in self.endpoints(&publishers.key, Role::Subscriber) {
            if publishers.fits(endpoint).is_ok() {
                match wanted.iter_mut().find(|wanted| wanted.host == host) {
                    Some(wanted) => wanted.requests.extend(&endpoint.requests),
                    None => wanted.push(Wanted { host, requests: endpoint.requests.clone() }),
                }
            }
        }
        wanted.sort_by_key(|wanted| wanted.host);
        wanted
    }

    /// What keeps the endpoint `own` of this host and other hosts' endpoints of the topic apart, in words.
    pub fn mismatches(&self, own: &Endpoint) -> BTreeSet<String> {
        let other = match own.role {
            Role::Publisher => Role::Subscriber,
            Role::Subscriber => Role::Publisher,
        };
        let of_host = self.endpoints(&own.key, other);
        of_host
            .filter_map(|(host, endpoint)| {
                let fit = if own.role == Role::Publisher { own.fits(endpoint) } else { endpoint.fits(own) };
                Some(format!("{} and host {}: {}", own.key, self.name(host), fit.err()?))
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
        let endpoints = self.hosts.values().flat_map(|host| host.endpoints.values());
        endpoints.map(|endpoint| (endpoint.key.clone(), endpoint.type_name.clone())).collect()
    }

    /// A host's name, or its identity where it has told none.
    pub fn name(&self, host: HostId) -> String {
        let name = self.hosts.get(&host).map(|host| host.name.as_str()).filter(|name| !name.is_empty());
        name.map_or_else(|| host.to_string(), str::to_owned)
    }

    /// Whether a host is known.
    pub fn knows(&self, host: HostId) -> bool {
        self.hosts.contains_key(&host)
    }

    fn endpoints<'a>(&'a self, key: &'a TopicKey, role: Role) -> impl Iterator<Item = (HostId, &'a Endpoint)> + 'a {
        self.hosts.iter().flat_map(move |(host, entry)| {
            let of_topic = entry.endpoints.values().filter(move |e| e.key == *key && e.role == role);
            of_topic.map(move |endpoint| (*host, endpoint))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::{PublisherQos, Reliability};
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
        directory.host_up(host(1), "arm");
        let mut theirs = endpoint("a", Role::Publisher, "rgaps/Image");
        theirs.offers = vec![PublisherQos { reliability: Reliability::BestEffort, ..Default::default() }];
        directory.endpoint_up(host(1), "t", theirs);
        let said = directory.mismatches(&endpoint("a", Role::Subscriber, "rgaps/Image"));
        assert!(said.iter().next().unwrap().contains("host arm: reliability"), "{said:?}");
        directory.endpoint_up(host(1), "u", endpoint("a", Role::Subscriber, "rgaps/Tensor"));
        let said = directory.mismatches(&endpoint("a", Role::Publisher, "rgaps/Image"));
        assert!(said.iter().next().unwrap().contains("rgaps/Tensor"), "{said:?}");
        assert!(directory.wanted(&endpoint("a", Role::Publisher, "rgaps/Image")).is_empty());
    }

    proptest! {
        /// Whatever comes twice or late, what counts is the set of announcements that were not taken back.
        #[test]
        fn the_directory_is_the_set_of_what_is_announced(events in proptest::collection::vec((0_u8..3, 0_u8..3, any::<bool>()), 0..60)) {
            let mut directory = Directory::default();
            let mut model = BTreeSet::new();
            for (n, topic, up) in events {
                let token = topic.to_string();
                if up {
                    directory.endpoint_up(host(n), &token, endpoint(&format!("t{topic}"), Role::Subscriber, "x"));
                    model.insert((topic, n));
                } else {
                    directory.endpoint_down(host(n), &token);
                    model.remove(&(topic, n));
                }
            }
            for topic in 0..3 {
                let publishers = endpoint(&format!("t{topic}"), Role::Publisher, "x");
                let found: Vec<HostId> = directory.wanted(&publishers).into_iter().map(|wanted| wanted.host).collect();
                let expected: Vec<HostId> = model.iter().filter(|(t, _)| *t == topic).map(|(_, n)| host(*n)).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
