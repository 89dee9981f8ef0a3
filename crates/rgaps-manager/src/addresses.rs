//! The addresses and networks of this host, from the kernel's tables for this network namespace (/proc/net/fib_trie and /proc/net/route).

use std::net::Ipv4Addr;

use rgaps_control::reach::Network;
use rgaps_control::wire::ADDRESSES_MAX;

/// IPv4 addresses of this host, loopback last; at most as many as an offer may have.
pub(crate) fn own() -> Vec<Ipv4Addr> {
    let mut found = parse(&std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default());
    if found.len() > ADDRESSES_MAX {
        tracing::warn!(
            addresses = found.len(),
            ADDRESSES_MAX,
            "too many addresses to offer; list those to use in data_address"
        );
        found.truncate(ADDRESSES_MAX);
    }
    found
}

/// Networks that this host reaches without a router.
pub(crate) fn direct() -> Vec<Network> {
    parse_routes(&std::fs::read_to_string("/proc/net/route").unwrap_or_default())
}

/// Routes without a gateway: `INTERFACE DESTINATION GATEWAY FLAGS REFERENCES USE METRIC MASK`, numbers in the machine's byte order.
fn parse_routes(table: &str) -> Vec<Network> {
    let address = |text: &str| u32::from_str_radix(text, 16).map(|word| Ipv4Addr::from(word.to_ne_bytes())).ok();
    let network = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, destination, gateway, _, _, _, _, mask, ..] = fields[..] else { return None };
        let bits = address(mask)?.to_bits().count_ones();
        (address(gateway)?.is_unspecified() && bits > 0).then(|| Some(Network::new(address(destination)?, bits)))?
    };
    table.lines().filter_map(network).collect()
}

/// Each leaf `|-- ADDRESS` with a following `/32 host LOCAL`.
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

/// Fuzz entry: any text as the kernel's tables. The result has no duplicate address.
pub fn fuzz_addresses(data: &[u8]) -> bool {
    let table = String::from_utf8_lossy(data);
    let found = parse(&table);
    assert!(found.iter().enumerate().all(|(place, address)| !found[..place].contains(address)));
    assert!(parse_routes(&table).len() <= table.lines().count());
    !found.is_empty()
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

    #[test]
    #[cfg(target_endian = "little")]
    fn networks_without_a_router_are_read() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                     eth0\t00000000\t014D0A0A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                     eth0\t004D0A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                     eth0\tnonsense\n";
        assert_eq!(parse_routes(table), ["10.10.77.0/24".parse().unwrap()]);
    }
}
