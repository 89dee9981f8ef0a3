//! The interfaces on which hosts find each other by multicast: those that zenoh scouts on.
//!
//! zenoh reads the interfaces once, when its first session of a process opens, and ignores those that come up later.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use crate::text::plain;

/// An interface that is up and has multicast, and its IPv4 address.
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

/// The interfaces of this network namespace on which zenoh would scout now.
pub fn multicast_interfaces() -> BTreeSet<Interface> {
    let usable = pnet_datalink::interfaces()
        .into_iter()
        .filter(|interface| interface.is_up() && interface.is_running() && interface.is_multicast());
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

/// An interface for tests.
#[cfg(test)]
pub(crate) fn interface(name: &str, last: u8) -> Interface {
    Interface { name: name.to_owned(), address: Ipv4Addr::new(10, 0, 0, last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_named_with_their_addresses() {
        assert_eq!(
            format_interfaces(&[interface("eth0", 1), interface("wlan\u{1b}0", 2)]),
            "eth0 (10.0.0.1), wlan\\u{1b}0 (10.0.0.2)"
        );
    }
}
