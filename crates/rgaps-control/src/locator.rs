//! Locators of zenoh: `tcp/HOST:PORT`, perhaps with `?metadata` and `#options`.

use std::net::{IpAddr, Ipv6Addr};

/// Whether this is a zenoh locator of the one built-in transport: tcp/HOST:PORT, perhaps with zenoh's `?metadata` and `#options`.
pub(crate) fn is_locator(text: &str) -> bool {
    let bare = text.split(['?', '#']).next().unwrap_or_default();
    let Some((host, port)) = bare.strip_prefix("tcp/").and_then(|address| address.rsplit_once(':')) else {
        return false;
    };
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let (name, marks) = inside.map_or((host, ".-_"), |address| (address, ".:"));
    // Of the zones of IPv6 addresses, zenoh resolves numbers only.
    let (name, zone) = name.split_once('%').filter(|_| inside.is_some()).unwrap_or((name, ""));
    let is_whole = zone.chars().all(|letter| letter.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|letter| letter.is_alphanumeric() || marks.contains(letter));
    is_whole && port.parse::<u16>().is_ok()
}

/// The locator of a peer of ROS_STATIC_PEERS, an address or a name. 7447 is zenoh's default port.
pub(crate) fn static_peer(peer: &str) -> String {
    // An address of IPv6, perhaps with its zone.
    let is_ipv6 = peer.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    if is_ipv6 { format!("tcp/[{peer}]:7447") } else { format!("tcp/{peer}:7447") }
}

/// Whether this is an address of the loopback interface, or `localhost`.
pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether a locator, tcp/HOST:PORT, has a loopback address.
pub(crate) fn locator_is_loopback(locator: &str) -> bool {
    let bare = locator.split(['?', '#']).next().unwrap_or_default();
    let host = bare.strip_prefix("tcp/").and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
    host.is_some_and(|host| is_loopback(host.trim_start_matches('[').trim_end_matches(']')))
}
