//! Which of the addresses that another host offers may be connected to. An offer is text from somebody: followed blindly, it would have this
//! host knock at a port of its own, or of a machine that has nothing to do with RGAPS. No I/O.
//!
//! ```text
//!   the host is seen at an IPv4 address    that one, and with a link from this machine to itself, its own
//!   it is not (behind a router, IPv6)      those of the networks that this host is in, but its own
//!   always                                 those in `data_networks`
//!   never                                  ports below 1024; unspecified, multicast and broadcast addresses
//! ```
//!
//! Trusts      what the kernel says of this host, and of the other end of a zenoh link. Which link an offer came by is what its sender says: it
//!             can name another host that this one has a link with.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Ports below are the system's.
const PORT_MIN: u16 = 1024;

/// Addresses of IPv4 that begin with the same bits: "10.0.1.0/24", or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: Ipv4Addr,
    bits: u32,
}

/// Neither a network nor an address of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not ADDRESS/BITS, as 10.0.1.0/24, nor ADDRESS")]
pub struct NoNetwork;

impl Network {
    /// The first `bits` of `address`.
    pub fn new(address: Ipv4Addr, bits: u32) -> Self {
        let bits = bits.min(32);
        Self { first: address & Self::mask(bits), bits }
    }

    /// Whether the address is one of it.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address & Self::mask(self.bits) == self.first
    }

    fn mask(bits: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - bits).unwrap_or(0))
    }
}

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let bits = bits.parse().ok().filter(|bits| *bits <= 32).ok_or(NoNetwork)?;
        Ok(Self::new(address.parse().map_err(|_| NoNetwork)?, bits))
    }
}

/// Where an answer came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The other ends of this host's links with who answered; none if there is no direct one.
    pub at: Vec<IpAddr>,
    /// Whether one of them is a link of this machine with itself.
    pub is_here: bool,
}

impl Seen {
    /// Notes a link from `own` to `other`. Addresses of IPv4 may be written as ones of IPv6.
    pub fn add(&mut self, own: IpAddr, other: IpAddr) {
        let (own, other) = (own.to_canonical(), other.to_canonical());
        self.is_here |= other.is_loopback() || other == own;
        self.at.push(other);
    }
}

/// What this host may connect to for an offer.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Where the offer came from.
    pub seen: Seen,
    /// Addresses of this host.
    pub own: Vec<Ipv4Addr>,
    /// Networks that this host is in.
    pub direct: Vec<Network>,
    /// Networks of the configuration.
    pub allowed: Vec<Network>,
}

impl Reach {
    /// Whether an offer may have this host connect there.
    pub fn permits(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let is_broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
        if address.port() < PORT_MIN || ip.is_unspecified() || ip.is_multicast() || is_broadcast {
            return false;
        }
        let is_own = ip.is_loopback() || matches!(ip, IpAddr::V4(ip) if self.own.contains(&ip));
        if is_own && self.seen.is_here || self.seen.at.contains(&ip) {
            return true;
        }
        let IpAddr::V4(ip) = ip else { return false };
        let is_unseen = !self.seen.is_here && !self.seen.at.iter().any(IpAddr::is_ipv4);
        let is_neighbour = !is_own && !ip.is_link_local() && self.direct.iter().any(|network| network.contains(ip));
        is_unseen && is_neighbour || self.allowed.iter().any(|network| network.contains(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(links: &[(&str, &str)]) -> Reach {
        let mut seen = Seen::default();
        links.iter().for_each(|(own, other)| seen.add(own.parse().unwrap(), other.parse().unwrap()));
        let own = vec![Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::LOCALHOST];
        Reach { seen, own, direct: vec!["10.0.0.0/24".parse().unwrap()], allowed: Vec::new() }
    }

    fn permitted(reach: &Reach, of: &[&str]) -> Vec<String> {
        let permits = |address: &&&str| reach.permits(address.parse().unwrap());
        of.iter().filter(permits).map(|address| (*address).to_owned()).collect()
    }

    const OFFERED: [&str; 12] = [
        "127.0.0.1:4000",
        "10.0.0.1:4000",
        "10.0.0.2:4000",
        "10.0.0.3:4000",
        "10.0.0.2:1023",
        "10.0.1.2:4000",
        "0.0.0.0:4000",
        "224.0.0.1:4000",
        "255.255.255.255:4000",
        "169.254.0.2:4000",
        "[::1]:4000",
        "[fe80::2]:4000",
    ];

    #[test]
    fn an_offer_leads_to_where_its_host_is_seen_and_to_no_third_machine() {
        let found = permitted(&reach(&[("::ffff:10.0.0.1", "::ffff:10.0.0.2")]), &OFFERED);
        assert_eq!(found, ["10.0.0.2:4000"]);
        let found = permitted(&reach(&[("169.254.0.1", "169.254.0.2")]), &OFFERED);
        assert_eq!(found, ["169.254.0.2:4000"]);
    }

    #[test]
    fn only_an_offer_of_this_machine_leads_to_this_machine() {
        let own = ["127.0.0.1:4000", "10.0.0.1:4000", "[::1]:4000"];
        for links in [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("fe80::1", "fe80::1")] {
            let found = permitted(&reach(&[links]), &own);
            assert_eq!(found, own, "{links:?}");
            assert!(permitted(&reach(&[links]), &["10.0.0.3:4000", "127.0.0.1:80"]).is_empty(), "{links:?}");
        }
    }

    #[test]
    fn a_host_that_is_not_seen_may_be_a_neighbour_and_never_this_machine() {
        for links in [&[][..], &[("fe80::1", "fe80::9")]] {
            assert_eq!(permitted(&reach(links), &OFFERED), ["10.0.0.2:4000", "10.0.0.3:4000"]);
        }
    }

    #[test]
    fn networks_of_the_configuration_are_reached_but_not_their_system_ports() {
        let allowed = vec!["10.0.1.0/24".parse().unwrap(), "127.0.0.1".parse().unwrap()];
        let reach = Reach { allowed, ..reach(&[("10.0.0.1", "10.0.0.2")]) };
        assert_eq!(permitted(&reach, &OFFERED), ["127.0.0.1:4000", "10.0.0.2:4000", "10.0.1.2:4000"]);
        assert_eq!(permitted(&reach, &["10.0.1.9:22", "10.0.2.9:4000"]), [""; 0]);
    }

    #[test]
    fn networks_are_read() {
        let contains =
            |network: &str, address: &str| network.parse::<Network>().map(|n| n.contains(address.parse().unwrap()));
        assert_eq!(contains("0.0.0.0/0", "9.9.9.9"), Ok(true));
        assert_eq!(contains("10.0.1.77/24", "10.0.1.2"), Ok(true));
        assert_eq!(contains("10.0.1.77", "10.0.1.2"), Ok(false));
        for text in ["", "10.0.1.0/33", "10.0.1/24", "fe80::/64", "10.0.1.0/"] {
            assert_eq!(contains(text, "10.0.1.2"), Err(NoNetwork), "{text}");
        }
    }
}
