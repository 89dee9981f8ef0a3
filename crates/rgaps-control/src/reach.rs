//! Which of the addresses in another host's offer this host may connect to. A forged offer could otherwise make this host connect to a port of
//! its own, or of a machine that has nothing to do with RGAPS. No I/O.
//!
//! ```text
//!   the other host is seen at an IPv4 address   that address; this machine's own too, if a link leads from this machine to itself
//!   it is not (behind a router, IPv6)           addresses of the networks that this host is in, except its own
//!   always                                      addresses in `data_networks`
//!   never                                       ports below 1024; unspecified, multicast and broadcast addresses
//! ```
//!
//! Trusts      what the kernel says about this host and about the other end of a zenoh link. Not trusted: which link an offer came over. The sender
//!             states that, and could name another host that this one has a link with.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Lower ports are the system's.
const PORT_MIN: u16 = 1024;

/// An IPv4 network such as "10.0.1.0/24", or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: Ipv4Addr,
    bits: u32,
}

/// The text is neither an IPv4 network nor an IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither ADDRESS/BITS, such as 10.0.1.0/24, nor ADDRESS")]
pub struct NoNetwork;

impl Network {
    /// The network of the first `bits` of `address`.
    pub fn new(address: Ipv4Addr, bits: u32) -> Self {
        let bits = bits.min(32);
        Self { first: address & Self::mask(bits), bits }
    }

    /// Whether the address is in the network.
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
    /// The other ends of this host's links with the host that answered; empty if there is no direct link.
    pub at: Vec<IpAddr>,
    /// Whether one of these links leads from this machine to itself.
    pub is_here: bool,
}

impl Seen {
    /// Adds a link from `own` to `other`. IPv4 addresses may be IPv4-mapped IPv6 ones.
    pub fn add(&mut self, own: IpAddr, other: IpAddr) {
        let (own, other) = (own.to_canonical(), other.to_canonical());
        self.is_here |= other.is_loopback() || other == own;
        self.at.push(other);
    }
}

/// Decides which addresses of an offer this host may connect to.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Where the offer came from.
    pub seen: Seen,
    /// Addresses of this host.
    pub own: Vec<Ipv4Addr>,
    /// The networks of this host's interfaces.
    pub direct: Vec<Network>,
    /// Networks of the configuration.
    pub allowed: Vec<Network>,
}

impl Reach {
    /// Whether this host may connect to an offered address.
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
    fn an_offer_leads_to_the_address_that_its_host_is_seen_at_and_to_no_third_machine() {
        let found = permitted(&reach(&[("::ffff:10.0.0.1", "::ffff:10.0.0.2")]), &OFFERED);
        assert_eq!(found, ["10.0.0.2:4000"]);
        let found = permitted(&reach(&[("169.254.0.1", "169.254.0.2")]), &OFFERED);
        assert_eq!(found, ["169.254.0.2:4000"]);
    }

    #[test]
    fn only_an_offer_from_this_machine_leads_to_this_machine() {
        let own = ["127.0.0.1:4000", "10.0.0.1:4000", "[::1]:4000"];
        for links in [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("fe80::1", "fe80::1")] {
            let found = permitted(&reach(&[links]), &own);
            assert_eq!(found, own, "{links:?}");
            assert!(permitted(&reach(&[links]), &["10.0.0.3:4000", "127.0.0.1:80"]).is_empty(), "{links:?}");
        }
    }

    #[test]
    fn a_host_without_a_seen_address_may_be_on_our_networks_but_not_this_machine() {
        for links in [&[][..], &[("fe80::1", "fe80::9")]] {
            assert_eq!(permitted(&reach(links), &OFFERED), ["10.0.0.2:4000", "10.0.0.3:4000"]);
        }
    }

    #[test]
    fn configured_networks_are_reached_but_not_their_system_ports() {
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
