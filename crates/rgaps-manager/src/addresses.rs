//! The addresses of this host that others can reach, from the kernel's own table (/proc/net/fib_trie, of this network namespace).

use std::net::Ipv4Addr;

use rgaps_control::wire::ADDRESSES_MAX;

/// IPv4 addresses of this host, those of loopback last; no more than an offer may have.
pub(crate) fn own() -> Vec<Ipv4Addr> {
    let mut found = parse(&std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default());
    if found.len() > ADDRESSES_MAX {
        tracing::warn!(
            addresses = found.len(),
            ADDRESSES_MAX,
            "too many addresses to offer; name the right ones in data_address"
        );
        found.truncate(ADDRESSES_MAX);
    }
    found
}

/// Each leaf `|-- ADDRESS` that is followed by `/32 host LOCAL`.
fn parse(table: &str) -> Vec<Ipv4Addr> {
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut leaf = None;
    for line in table.lines() {
        if let Some(address) = line.trim_start().strip_prefix("|-- ") {
            leaf = address.trim().parse().ok();
        } else if line.contains("/32 host LOCAL") {
            found.extend(leaf.filter(|address| !found.contains(address)));
        }
    }
    found.sort_by_key(Ipv4Addr::is_loopback);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_read_and_loopback_comes_last() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.77.0.0\n        \
                     /24 link UNICAST\n     |-- 10.77.0.2\n        /32 host LOCAL\n     |-- 10.77.0.255\n        /32 link BROADCAST\n";
        assert_eq!(parse(table), [Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::LOCALHOST]);
        assert!(parse("nonsense").is_empty());
    }
}
