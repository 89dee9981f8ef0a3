//! The interfaces on which hosts find each other by multicast: those that zenoh scouts on.
//!
//! zenoh reads the interfaces once, when its first session of a process opens, and ignores those that come up later.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use crate::text::plain;

/// An interface that is up, and its IPv4 address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    name: String,
    address: Ipv4Addr,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", plain(&self.name), self.address)
    }
}

/// The interfaces of this network namespace on which multicast can reach other hosts now.
pub fn multicast_interfaces() -> BTreeSet<Interface> {
    usable(|interface| interface.is_multicast())
}

/// Whether an interface other than loopback is up and has an IPv4 address.
pub(crate) fn there_is_one() -> bool {
    !usable(|_| true).is_empty()
}

fn usable(fits: impl Fn(&pnet_datalink::NetworkInterface) -> bool) -> BTreeSet<Interface> {
    let usable = pnet_datalink::interfaces()
        .into_iter()
        .filter(|interface| interface.is_up() && interface.is_running() && !interface.is_loopback() && fits(interface));
    let found = usable.filter_map(|interface| {
        let ipv4 = |ip: IpAddr| if let IpAddr::V4(address) = ip { Some(address) } else { None };
        let address = interface.ips.iter().find_map(|network| ipv4(network.ip()))?;
        Some(Interface { name: interface.name, address })
    });
    found.collect()
}

/// `eth0 (10.0.0.1), wlan0 (10.0.1.1)`.
pub fn format_interfaces<'a>(interfaces: impl IntoIterator<Item = &'a Interface>) -> String {
    interfaces.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_named_with_their_addresses_and_loopback_is_none_of_them() {
        let interface = |name: &str, last| Interface { name: name.to_owned(), address: Ipv4Addr::new(10, 0, 0, last) };
        assert_eq!(
            format_interfaces(&[interface("eth0", 1), interface("wlan\u{1b}0", 2)]),
            "eth0 (10.0.0.1), wlan\\u{1b}0 (10.0.0.2)"
        );
        assert!(multicast_interfaces().iter().all(|interface| !interface.address.is_loopback()));
    }
}
