//! A manager listens where its settings say and nowhere else: for each setting, the sockets that the kernel lists for the manager's process.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use rgaps_control::running::Running;
use rgaps_testing::{Host, Hosts, HostsError, RuntimeDir, Watchdog, manager, skipped};

/// A row of the table: its first cell, flags of `rgapsd`, variables.
type Case = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const RANGE: &str = "ROS_AUTOMATIC_DISCOVERY_RANGE";

/// The host's address is 10.77.0.1, the peer's is 10.77.0.2.
const CASES: &[Case] = &[
    ("nothing", &[], &[]),
    ("`network = \"local\"`", &[], &[("RGAPS_NETWORK", "local")]),
    ("`ROS_AUTOMATIC_DISCOVERY_RANGE=OFF`", &[], &[(RANGE, "OFF")]),
    ("`network = \"loopback\"`", &[], &[("RGAPS_NETWORK", "loopback")]),
    ("`ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST`", &[], &[(RANGE, "LOCALHOST")]),
    ("`ROS_LOCALHOST_ONLY=1`", &[], &[("ROS_LOCALHOST_ONLY", "1")]),
    ("`listen = \"tcp/127.0.0.1:7447\"`", &[], &[("RGAPS_LISTEN", "tcp/127.0.0.1:7447")]),
    ("`network = \"open\"`", &[], &[("RGAPS_NETWORK", "open")]),
    ("`ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET`", &[], &[(RANGE, "SUBNET")]),
    ("nothing, and a ROS 2 node starts it", &["--ros"], &[]),
    ("`peers = [\"tcp/10.77.0.2:7447\"]`", &[], &[("RGAPS_PEERS", "tcp/10.77.0.2:7447")]),
    ("`peers = [\"tcp/127.0.0.1:7447\"]`", &[], &[("RGAPS_PEERS", "tcp/127.0.0.1:7447")]),
    ("`listen = \"tcp/10.77.0.1:7447\"`", &[], &[("RGAPS_LISTEN", "tcp/10.77.0.1:7447")]),
    ("`ROS_STATIC_PEERS=10.77.0.2`", &[], &[("ROS_STATIC_PEERS", "10.77.0.2")]),
    (
        "`ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST` `ROS_STATIC_PEERS=127.0.0.1`",
        &[],
        &[(RANGE, "LOCALHOST"), ("ROS_STATIC_PEERS", "127.0.0.1")],
    ),
    (
        "`ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST` `ROS_STATIC_PEERS=10.77.0.2`",
        &[],
        &[(RANGE, "LOCALHOST"), ("ROS_STATIC_PEERS", "10.77.0.2")],
    ),
    ("`network = \"open\"` `multicast = false`", &[], &[("RGAPS_NETWORK", "open"), ("RGAPS_MULTICAST", "off")]),
    (
        "`listen = \"tcp/10.77.0.1:7447\"` `multicast = false` `data_address = [\"10.77.0.1\"]`",
        &[],
        &[("RGAPS_LISTEN", "tcp/10.77.0.1:7447"), ("RGAPS_MULTICAST", "off"), ("RGAPS_DATA_ADDRESS", "10.77.0.1")],
    ),
    (
        "`listen = \"tcp/10.77.0.1:7447\"` `multicast = false` `data_address = [\"10.77.0.1\", \"127.0.0.1\"]`",
        &[],
        &[
            ("RGAPS_LISTEN", "tcp/10.77.0.1:7447"),
            ("RGAPS_MULTICAST", "off"),
            ("RGAPS_DATA_ADDRESS", "10.77.0.1,127.0.0.1"),
        ],
    ),
];

#[test]
fn a_manager_listens_where_its_settings_say_and_nowhere_else() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    let hosts = match Hosts::new(1) {
        Ok(hosts) => hosts,
        Err(HostsError::Unavailable(why)) => return skipped(why),
        Err(error) => panic!("{error}"),
    };
    let mut rows = vec!["| Given | Listening sockets |".to_owned(), "|---|---|".to_owned()];
    for (given, flags, variables) in CASES {
        let sockets = sockets_of(&hosts[0], flags, variables);
        let each = sockets.into_iter().map(|(socket, count)| match count {
            1 => socket,
            count => format!("{count} x {socket}"),
        });
        let listed = Some(Vec::from_iter(each).join(", ")).filter(|text| !text.is_empty());
        let listed = listed.unwrap_or_else(|| "none".to_owned());
        rows.push(format!("| {given} | {listed} |"));
    }
    let table = rows.join("\n");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains(&format!("\n{table}\n")), "docs/configuration.md should have this instead:\n{table}\n");
}

#[test]
fn managers_of_one_machine_find_each_other_by_loopback_peers_of_ros() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    let hosts = match Hosts::new(1) {
        Ok(hosts) => hosts,
        Err(HostsError::Unavailable(why)) => return skipped(why),
        Err(error) => panic!("{error}"),
    };
    for peers in ["127.0.0.1", "::1"] {
        let started = [RuntimeDir::new("near").unwrap(), RuntimeDir::new("near").unwrap()].map(|dir| {
            let mut command = hosts[0].command(env!("CARGO_BIN_EXE_rgapsd"));
            forget_settings(&mut command);
            command.envs([("RGAPS_CONFIG", "/dev/null"), ("RGAPS_DEVICE", "host"), (RANGE, "LOCALHOST")]);
            command.env("ROS_STATIC_PEERS", peers);
            (manager::start(&dir, command).unwrap(), dir)
        });
        for (_, dir) in &started {
            let sees = || Running::new(dir.path(), 0).network.map_or(0, |network| network.hosts);
            let deadline = Instant::now() + Duration::from_secs(60);
            while sees() != 1 {
                assert!(Instant::now() < deadline, "by {peers} it sees {} hosts", sees());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Starts a manager on the host with these settings only, and asks the kernel for its sockets.
fn sockets_of(host: &Host, flags: &[&str], variables: &[(&str, &str)]) -> BTreeMap<String, u32> {
    let dir = RuntimeDir::new("sockets").unwrap();
    let mut command = host.command(env!("CARGO_BIN_EXE_rgapsd"));
    forget_settings(&mut command);
    command.args(flags).env("RGAPS_CONFIG", "/dev/null").env("RGAPS_DEVICE", "host").envs(variables.iter().copied());
    // A manager makes its sockets before it accepts clients.
    let manager = manager::start(&dir, command).unwrap();
    listening(manager.id())
}

fn forget_settings(command: &mut Command) {
    let names = std::env::vars_os().map(|(name, _)| name);
    let ours =
        names.filter(|name| ["RGAPS_", "ROS_", "RMW_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)));
    for name in ours {
        command.env_remove(name);
    }
}

/// Sockets by which the process can be reached, as `ss -ltnu` shows them, with * for ports, and the number of each.
fn listening(process: u32) -> BTreeMap<String, u32> {
    let own: BTreeSet<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .filter_map(|file| Some(file.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let mut found = BTreeMap::new();
    for protocol in ["tcp", "tcp6", "udp", "udp6"] {
        let table = fs::read_to_string(format!("/proc/{process}/net/{protocol}")).unwrap();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (address, state, inode) = (fields[1], fields[3], fields[9]);
            // 0A is TCP_LISTEN; a UDP socket receives as soon as it has a port.
            if own.contains(inode) && (protocol.starts_with("udp") || state == "0A") {
                let address = address_of(address.split_once(':').unwrap().0);
                *found.entry(format!("{} {address}:*", protocol.trim_end_matches('6'))).or_default() += 1;
            }
        }
    }
    found
}

/// The kernel writes addresses as words of 32 bits in the byte order of the machine.
fn address_of(hex: &str) -> String {
    let words = (0..hex.len()).step_by(8).map(|at| u32::from_str_radix(&hex[at..at + 8], 16).unwrap());
    let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(bytes) => Ipv4Addr::from(bytes).to_string(),
        Err(_) => format!("[{}]", Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap())),
    }
}

#[test]
fn a_zenoh_file_that_asks_for_tls_keeps_the_manager_from_starting() {
    let dir = RuntimeDir::new("tls").unwrap();
    let file = dir.path().join("zenoh.json5");
    fs::write(&file, r#"{transport: {link: {tls: {root_ca_certificate: "/etc/ca.pem", enable_mtls: true}}}}"#).unwrap();
    for network in ["local", "loopback"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rgapsd"));
        forget_settings(&mut command);
        dir.apply(&mut command);
        command.env("RGAPS_CONFIG", "/dev/null").env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", network);
        let output = command.env("RGAPS_ZENOH_CONFIG", &file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("transport/link/tls/enable_mtls"), "{said}");
    }
}
