//! How far a host's network reaches: no further than a setting has opened it.
//!
//! ```text
//!   local      no IP socket: topics stay with this host's manager
//!   loopback   loopback addresses only: managers of this machine that name each other in `peers`; no scouting
//!   open       every host that can connect: scouting by multicast unless `multicast` is false, control and data on every address unless
//!              `listen` and `data_address` name some
//! ```
//!
//! Reading the configuration decides it, by the first of these that is given: `network`; ROS_LOCALHOST_ONLY and ROS_AUTOMATIC_DISCOVERY_RANGE;
//! `peers`, `routers`, `listen` and ROS_STATIC_PEERS; the default. The default is local. For a ROS 2 node it is SUBNET, like the default of its RMW.
//!
//! Invariant   a setting that needs an open network never overrides one that closes it: that is an error with the names of both.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::config::{Config, ConfigError};
use crate::locator::{is_loopback, locator_is_loopback, static_peer};

/// How far a host's network reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// No IP socket.
    Local,
    /// Loopback addresses only.
    Loopback,
    /// Every host that can connect.
    Open,
}

impl Range {
    const ALL: [Self; 3] = [Self::Local, Self::Loopback, Self::Open];

    /// The value of `network` that names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Loopback => "loopback",
            Self::Open => "open",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|range| range.name() == name)
    }

    /// What the range means, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Local => {
                "nothing listens, and topics stay on this host; network = \"open\" (RGAPS_NETWORK=open) opens it to others"
            }
            Self::Loopback => {
                "managers of this machine that name each other in `peers` share topics; network = \"open\" (RGAPS_NETWORK=open) \
                 opens it to other machines"
            }
            Self::Open => {
                "nobody is authenticated: anyone who reaches this host can read and write every topic; trust the whole network, \
                 or close it (network = \"local\")"
            }
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Config {
    /// How far the network reaches.
    pub fn range(&self) -> Range {
        Range::named(&self.network).unwrap_or(Range::Local)
    }

    /// Whether zenoh scouts for hosts by multicast.
    pub fn scouts(&self) -> bool {
        self.multicast && self.routers.is_empty() && self.range() == Range::Open
    }

    /// The addresses that data links listen on; 0.0.0.0 stands for all of this host's.
    pub fn data_addresses(&self) -> Vec<Ipv4Addr> {
        let configured: Vec<Ipv4Addr> = self.data_address.iter().filter_map(|text| text.parse().ok()).collect();
        match self.range() {
            Range::Local => Vec::new(),
            _ if !configured.is_empty() => configured,
            Range::Loopback => vec![Ipv4Addr::LOCALHOST],
            Range::Open => vec![Ipv4Addr::UNSPECIFIED],
        }
    }
}

/// The range if no setting decides about the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unset {
    /// Local.
    #[default]
    Local,
    /// SUBNET, as for ROS 2 nodes.
    Subnet,
}

/// The setting that decided on the range, and the settings that have no effect because of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The setting that decided, with its origin.
    pub by: String,
    /// Settings without effect.
    pub unused: Vec<String>,
}

/// What ROS 2's own variables say about the network.
#[derive(Clone, Debug, Default)]
pub(crate) struct RosVariables {
    range: Option<(RosRange, String)>,
    /// ROS_STATIC_PEERS, as locators.
    static_peers: Vec<String>,
    /// Whether nodes find each other by a router of zenoh, and not by these peers.
    is_zenoh: bool,
    unset: Unset,
}

/// Values of ROS_AUTOMATIC_DISCOVERY_RANGE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RosRange {
    Off,
    /// Static peers do not count (ROS_LOCALHOST_ONLY).
    LocalhostOnly,
    Localhost,
    Subnet,
}

impl RosVariables {
    pub(crate) fn read(unset: Unset, variable: impl Fn(&str) -> Option<String>) -> Self {
        const RANGE: &str = "ROS_AUTOMATIC_DISCOVERY_RANGE";
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let range = if variable("ROS_LOCALHOST_ONLY").as_deref() == Some("1") {
            let distro = variable("ROS_DISTRO");
            let is_ignored = distro.as_deref().is_some_and(|distro| !LOCALHOST_ONLY_DISTROS.contains(&distro));
            let note = if is_ignored { " (ROS 2 nodes of this distro ignore it)" } else { "" };
            Some((RosRange::LocalhostOnly, format!("ROS_LOCALHOST_ONLY=1{note}")))
        } else {
            variable(RANGE).map(|value| match value.as_str() {
                "OFF" => (RosRange::Off, format!("{RANGE}=OFF")),
                "LOCALHOST" => (RosRange::Localhost, format!("{RANGE}=LOCALHOST")),
                "SUBNET" | "SYSTEM_DEFAULT" => (RosRange::Subnet, format!("{RANGE}={value}")),
                // Like rcl.
                _ => (RosRange::Localhost, format!("{RANGE}={value}, which is not a range and counts as LOCALHOST")),
            })
        };
        let peers = variable("ROS_STATIC_PEERS").unwrap_or_default();
        let peers = peers.split(';').map(str::trim).filter(|peer| !peer.is_empty());
        let static_peers = peers.map(static_peer).collect();
        let rmw = variable("RMW_IMPLEMENTATION");
        let rmw = if rmw.as_deref() == Some("rmw_rgaps") { variable("RGAPS_INNER_RMW") } else { rmw };
        // The variable of the inner RMW may have its library's path.
        let library = rmw.as_deref().and_then(|rmw| Path::new(rmw).file_name()?.to_str()).unwrap_or_default();
        let is_zenoh = library.trim_start_matches("lib").trim_end_matches(".so") == "rmw_zenoh_cpp";
        Self { range, static_peers, is_zenoh, unset }
    }
}

/// The distros whose rcl reads ROS_LOCALHOST_ONLY: rcl 9.4.1 (2024-07) removed it.
const LOCALHOST_ONLY_DISTROS: [&str; 3] = ["humble", "iron", "jazzy"];

/// Where sessions of rmw_zenoh_cpp look for their machine's router by default.
const ROS_ROUTER: &str = "tcp/localhost:7447";

/// A setting that is useless unless the network reaches far enough.
struct Opener {
    text: String,
    is_loopback: bool,
}

/// The range, the setting that decided on it, and the consequences for other settings.
struct Verdict {
    range: Range,
    by: String,
    takes_static_peers: bool,
    scouts: bool,
}

/// Decides on the range, and writes the consequences into the configuration.
pub(crate) fn settle(
    config: &mut Config,
    origins: &mut BTreeMap<String, String>,
    ros: &RosVariables,
) -> Result<Decision, ConfigError> {
    let static_peers: &[String] = if config.peers.is_empty() && !ros.is_zenoh { &ros.static_peers } else { &[] };
    let addresses = opener("data_address", &config.data_address, origins, is_loopback);
    let peers = opener("peers", &config.peers, origins, locator_is_loopback);
    let listen = opener("listen", as_list(&config.listen), origins, locator_is_loopback);
    // A router of this machine may lead to others: a loopback address of it does not count as loopback.
    let routers = opener("routers", &config.routers, origins, |_| false);
    let openers: Vec<&Opener> = [&peers, &listen, &routers].into_iter().flatten().collect();
    let own = origins.get("network").map(|origin| (config.range(), origin.as_str()));
    let Verdict { range, by, takes_static_peers, scouts } =
        decide(own, ros, static_peers, &openers, addresses.as_ref());
    let beyond = |opener: &&Opener| range == Range::Local || range == Range::Loopback && !opener.is_loopback;
    // `data_address` opens nothing, so on a local network it is without effect, not a contradiction.
    let bound = addresses.as_ref().filter(|_| range != Range::Local);
    if let Some(opener) = openers.into_iter().chain(bound).find(beyond) {
        return Err(ConfigError::Contradiction { opens: opener.text.clone(), closes: by });
    }
    let mut unused = Vec::new();
    if !static_peers.is_empty() && takes_static_peers {
        config.peers = static_peers.to_vec();
        config.is_static_peer = true;
        origins.insert("peers".to_owned(), "ROS_STATIC_PEERS".to_owned());
    } else if !static_peers.is_empty() {
        unused.push("ROS_STATIC_PEERS".to_owned());
    }
    if ros.is_zenoh && config.peers.is_empty() && !ros.static_peers.is_empty() {
        unused.push("ROS_STATIC_PEERS".to_owned());
    }
    let finding = ["peers", "listen", "routers", "zenoh_config", "multicast"];
    if ros.is_zenoh && range == Range::Open && !finding.iter().any(|key| origins.contains_key(*key)) {
        // It has no origin: a default is no reason to warn a client whose manager has other settings.
        config.routers = vec![ROS_ROUTER.to_owned()];
    }
    // zenoh 1.10 withdraws the announcements of a host that is linked both directly and through a router when the router ends.
    let scouts = scouts && config.routers.is_empty();
    match origins.get("multicast") {
        Some(origin) if config.multicast && (range != Range::Open || !config.routers.is_empty()) => {
            unused.push(format!("multicast = true ({origin})"));
        }
        Some(_) => {}
        None => config.multicast &= scouts,
    }
    if range == Range::Local {
        unused.extend(addresses.map(|addresses| addresses.text));
        let file = opener("zenoh_config", as_list(&config.zenoh_config), origins, |_| false);
        unused.extend(file.map(|file| file.text));
    }
    config.network = range.name().to_owned();
    // Recorded as given, so that a client can compare it with the running manager; `peers`, `routers` and `listen` are recorded as such.
    let is_asked_for =
        ros.range.is_some() || ros.unset == Unset::Subnet && peers.is_none() && listen.is_none() && routers.is_none();
    if is_asked_for {
        origins.entry("network".to_owned()).or_insert_with(|| by.clone());
    }
    Ok(Decision { by, unused })
}

/// Applies the first setting that is given. `own` is `network` with its origin.
fn decide(
    own: Option<(Range, &str)>,
    ros: &RosVariables,
    static_peers: &[String],
    openers: &[&Opener],
    addresses: Option<&Opener>,
) -> Verdict {
    let verdict = |range, by: String| Verdict { range, by, takes_static_peers: range == Range::Open, scouts: true };
    if let Some((range, origin)) = own {
        return verdict(range, format!("network = {range} ({origin})"));
    }
    if let Some((range, text)) = &ros.range {
        return match range {
            RosRange::Off => verdict(Range::Local, text.clone()),
            RosRange::Subnet => verdict(Range::Open, text.clone()),
            // Like ROS: static peers are reached, without scouting.
            RosRange::Localhost if !static_peers.is_empty() => {
                let is_near = static_peers.iter().all(|peer| locator_is_loopback(peer));
                let range = if is_near { Range::Loopback } else { Range::Open };
                let by = format!("{text} with ROS_STATIC_PEERS");
                Verdict { range, by, takes_static_peers: true, scouts: false }
            }
            RosRange::Localhost | RosRange::LocalhostOnly => verdict(Range::Loopback, text.clone()),
        };
    }
    let named = opener("ROS_STATIC_PEERS", static_peers, &BTreeMap::new(), locator_is_loopback);
    let all: Vec<&Opener> = openers.iter().copied().chain(&named).collect();
    if let Some(first) = all.first() {
        let beyond = all.iter().copied().chain(addresses).find(|opener| !opener.is_loopback);
        let (range, by) = beyond.map_or((Range::Loopback, *first), |beyond| (Range::Open, beyond));
        return Verdict { takes_static_peers: true, ..verdict(range, by.text.clone()) };
    }
    match ros.unset {
        Unset::Local => verdict(Range::Local, "the default".to_owned()),
        Unset::Subnet => verdict(
            Range::Open,
            "ROS_AUTOMATIC_DISCOVERY_RANGE is not set, which means SUBNET to ROS 2 nodes".to_owned(),
        ),
    }
}

fn as_list(text: &String) -> &[String] {
    if text.is_empty() { &[] } else { std::slice::from_ref(text) }
}

fn opener(
    key: &str,
    values: &[String],
    origins: &BTreeMap<String, String>,
    is_loopback: impl Fn(&str) -> bool,
) -> Option<Opener> {
    let origin = origins.get(key).map(|origin| format!(" ({origin})")).unwrap_or_default();
    let text = format!("{key} = {}{origin}", values.join(", "));
    (!values.is_empty()).then(|| Opener { text, is_loopback: values.iter().all(|value| is_loopback(value)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    /// The result for keys, given by the environment, and variables of ROS.
    fn settled(keys: Pairs<'_>, ros: Pairs<'_>, unset: Unset) -> Result<(Config, Decision), String> {
        let mut config = Config::default();
        let mut origins = BTreeMap::new();
        for (key, value) in keys {
            origins.insert((*key).to_owned(), "environment".to_owned());
            let list = || value.split(',').map(str::to_owned).collect();
            match *key {
                "network" => config.network = (*value).to_owned(),
                "peers" => config.peers = list(),
                "routers" => config.routers = list(),
                "zenoh_config" => config.zenoh_config = (*value).to_owned(),
                "listen" => config.listen = (*value).to_owned(),
                "data_address" => config.data_address = list(),
                "multicast" => config.multicast = *value == "true",
                key => panic!("{key}"),
            }
        }
        let variable = |name: &str| ros.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let decision = settle(&mut config, &mut origins, &RosVariables::read(unset, variable));
        decision.map(|decision| (config, decision)).map_err(|error| error.to_string())
    }

    fn range(keys: Pairs<'_>, ros: Pairs<'_>) -> Range {
        settled(keys, ros, Unset::Local).unwrap().0.range()
    }

    const FAR: (&str, &str) = ("peers", "tcp/10.0.0.2:7447");
    const NEAR: (&str, &str) = ("listen", "tcp/127.0.0.1:0");
    const STATIC: (&str, &str) = ("ROS_STATIC_PEERS", "10.0.0.3;10.0.0.4");
    const OFF: (&str, &str) = ("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF");
    const LOCALHOST: (&str, &str) = ("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST");
    const SUBNET: (&str, &str) = ("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET");
    const ONLY: (&str, &str) = ("ROS_LOCALHOST_ONLY", "1");

    #[test]
    fn a_network_is_local_until_something_opens_it() {
        assert_eq!(range(&[], &[]), Range::Local);
        assert_eq!(range(&[("multicast", "true"), ("data_address", "10.0.0.1")], &[]), Range::Local);
        assert_eq!(range(&[("network", "open")], &[]), Range::Open);
        assert_eq!(range(&[FAR], &[]), Range::Open);
        assert_eq!(range(&[("listen", "tcp/[::]:7447")], &[]), Range::Open);
        assert_eq!(range(&[], &[STATIC]), Range::Open);
        assert_eq!(range(&[], &[SUBNET]), Range::Open);
        assert_eq!(range(&[], &[("ROS_AUTOMATIC_DISCOVERY_RANGE", "SYSTEM_DEFAULT")]), Range::Open);
        assert_eq!(range(&[], &[("ROS_AUTOMATIC_DISCOVERY_RANGE", "")]), Range::Local);
        assert_eq!(range(&[], &[("ROS_AUTOMATIC_DISCOVERY_RANGE", "ALL")]), Range::Loopback);
    }

    #[test]
    fn loopback_addresses_open_the_network_no_further_than_loopback() {
        assert_eq!(range(&[NEAR], &[]), Range::Loopback);
        assert_eq!(range(&[NEAR, ("peers", "tcp/localhost:1,tcp/[::1]:2")], &[]), Range::Loopback);
        assert_eq!(range(&[NEAR, FAR], &[]), Range::Open);
        assert_eq!(range(&[NEAR, ("data_address", "10.0.0.1")], &[]), Range::Open);
        assert_eq!(range(&[NEAR, ("peers", "tcp/127.0.0.1.example.org:1")], &[]), Range::Open);
        assert_eq!(range(&[], &[("ROS_STATIC_PEERS", "127.0.0.1")]), Range::Loopback);
    }

    #[test]
    fn variables_of_ros_mean_what_they_mean_to_ros() {
        assert_eq!(range(&[], &[OFF]), Range::Local);
        assert_eq!(range(&[], &[LOCALHOST]), Range::Loopback);
        assert_eq!(range(&[], &[ONLY, SUBNET]), Range::Loopback);
        let (config, decision) = settled(&[], &[LOCALHOST, STATIC], Unset::Local).unwrap();
        assert_eq!((config.range(), config.scouts()), (Range::Open, false));
        assert_eq!((config.peers.len(), decision.unused.len()), (2, 0));
        for closed in [OFF, ONLY] {
            let (config, decision) = settled(&[], &[closed, STATIC], Unset::Local).unwrap();
            assert_ne!(config.range(), Range::Open);
            assert_eq!((config.peers.len(), decision.unused), (0, vec!["ROS_STATIC_PEERS".to_owned()]));
        }
        let (config, _) = settled(&[("peers", "tcp/1.2.3.4:1")], &[STATIC], Unset::Local).unwrap();
        assert_eq!(config.peers, ["tcp/1.2.3.4:1"]);
        let zone = ("ROS_STATIC_PEERS", "fe80::1%2");
        assert_eq!(settled(&[], &[zone], Unset::Local).unwrap().0.peers, ["tcp/[fe80::1%2]:7447"]);
        let near = ("ROS_STATIC_PEERS", "127.0.0.1; ::1; ::ffff:127.0.0.1");
        let (config, _) = settled(&[], &[LOCALHOST, near], Unset::Local).unwrap();
        assert_eq!(
            (config.range(), config.peers),
            (
                Range::Loopback,
                ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"].map(|host| format!("tcp/{host}:7447")).into()
            )
        );
    }

    #[test]
    fn a_variable_that_only_rgaps_obeys_is_named() {
        for (distro, is_named) in [("humble", false), ("jazzy", false), ("kilted", true), ("lyrical", true)] {
            let (config, decision) = settled(&[], &[ONLY, ("ROS_DISTRO", distro)], Unset::Subnet).unwrap();
            assert_eq!(
                (config.range(), decision.by.contains("ignore")),
                (Range::Loopback, is_named),
                "{distro}: {}",
                decision.by
            );
        }
        assert!(!settled(&[], &[ONLY], Unset::Subnet).unwrap().1.by.contains("ignore"), "without ROS");
    }

    #[test]
    fn under_rmw_zenoh_hosts_use_the_router_of_the_nodes_unless_told_otherwise() {
        let zenoh = ("RMW_IMPLEMENTATION", "rmw_zenoh_cpp");
        let routers = |keys: Pairs<'_>, ros: Pairs<'_>| settled(keys, ros, Unset::Subnet).unwrap().0.routers;
        assert_eq!(routers(&[], &[zenoh]), ["tcp/localhost:7447"]);
        assert_eq!(routers(&[], &[("RMW_IMPLEMENTATION", "rmw_rgaps"), ("RGAPS_INNER_RMW", "rmw_zenoh_cpp")]).len(), 1);
        assert_eq!(routers(&[("routers", "tcp/10.0.0.9:7447")], &[zenoh]), ["tcp/10.0.0.9:7447"]);
        let inner = |rmw, inner| routers(&[], &[("RMW_IMPLEMENTATION", rmw), ("RGAPS_INNER_RMW", inner)]).len();
        assert_eq!(inner("rmw_rgaps", "/opt/ros/lyrical/lib/librmw_zenoh_cpp.so"), 1);
        assert_eq!(inner("rmw_fastrtps_cpp", "rmw_zenoh_cpp"), 0);
        let (config, decision) = settled(&[], &[zenoh, STATIC], Unset::Subnet).unwrap();
        assert_eq!((config.peers.len(), config.routers.len()), (0, 1), "that RMW does not use static peers");
        assert_eq!(decision.unused, ["ROS_STATIC_PEERS"]);
        let others: [(Pairs<'_>, Pairs<'_>); 7] = [
            (&[], &[("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp")]),
            (&[FAR], &[zenoh]),
            (&[("listen", "tcp/[::]:7447")], &[zenoh]),
            (&[], &[zenoh, LOCALHOST]),
            (&[("network", "local")], &[zenoh]),
            (&[("zenoh_config", "/zenoh.json5")], &[zenoh]),
            (&[("multicast", "true")], &[zenoh]),
        ];
        for (keys, ros) in others {
            assert!(routers(keys, ros).is_empty(), "{keys:?} {ros:?}");
        }
    }

    #[test]
    fn a_router_opens_the_network_even_if_it_is_on_this_machine() {
        const ROUTER: (&str, &str) = ("routers", "tcp/127.0.0.1:7447");
        let (config, decision) = settled(&[ROUTER, ("multicast", "true")], &[], Unset::Local).unwrap();
        assert_eq!((config.range(), config.scouts()), (Range::Open, false), "two ways to one host");
        assert_eq!(decision.unused, ["multicast = true (environment)"]);
        let (_, decision) = settled(&[ROUTER, NEAR], &[], Unset::Local).unwrap();
        assert_eq!(
            decision.by, "routers = tcp/127.0.0.1:7447 (environment)",
            "not `listen`, which opens loopback only"
        );
        let said = settled(&[ROUTER, ("network", "local")], &[], Unset::Local).unwrap_err();
        assert!(said.contains("routers = tcp/127.0.0.1:7447 (environment)"), "{said}");
    }

    #[test]
    fn without_settings_a_ros_2_node_does_what_its_rmw_does() {
        let (config, decision) = settled(&[], &[], Unset::Subnet).unwrap();
        assert_eq!(config.range(), Range::Open);
        assert!(decision.by.contains("is not set, which means SUBNET"), "{decision:?}");
        for (key, ros) in [(("network", "local"), &[][..]), (("multicast", "true"), &[OFF][..])] {
            assert_eq!(settled(&[key], ros, Unset::Subnet).unwrap().0.range(), Range::Local);
        }
        assert_eq!(settled(&[NEAR], &[], Unset::Subnet).unwrap().0.range(), Range::Loopback);
    }

    #[test]
    fn closing_the_network_and_needing_it_is_an_error_that_names_both_settings() {
        let far_data = ("data_address", "10.0.0.1");
        let cases: [(Pairs<'_>, Pairs<'_>, [&str; 2]); 6] = [
            (
                &[("network", "local"), FAR],
                &[],
                ["network = local (environment)", "peers = tcp/10.0.0.2:7447 (environment)"],
            ),
            (&[("network", "local"), NEAR], &[], ["network = local", "listen = tcp/127.0.0.1:0"]),
            (&[("network", "loopback"), FAR], &[], ["network = loopback", "peers = "]),
            (&[("network", "loopback"), far_data], &[], ["network = loopback", "data_address = 10.0.0.1"]),
            (&[FAR], &[LOCALHOST], ["ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST", "peers = "]),
            (&[FAR], &[OFF], ["ROS_AUTOMATIC_DISCOVERY_RANGE=OFF", "peers = "]),
        ];
        for (keys, ros, named) in cases {
            let said = settled(keys, ros, Unset::Local).unwrap_err();
            assert!(named.iter().all(|name| said.contains(name)), "{said}");
        }
        assert_eq!(range(&[("network", "open"), FAR], &[LOCALHOST]), Range::Open, "our key overrides those of ROS");
    }

    #[test]
    fn settings_without_effect_are_named() {
        let given = [("multicast", "true"), ("data_address", "10.0.0.1")];
        let (config, decision) = settled(&given, &[OFF], Unset::Local).unwrap();
        assert_eq!((config.data_addresses().len(), config.scouts()), (0, false));
        assert_eq!(decision.unused, ["multicast = true (environment)", "data_address = 10.0.0.1 (environment)"]);
    }
}
