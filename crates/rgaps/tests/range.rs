//! The network of a manager that a client started, if nothing is configured: none for a plain program, the subnet for a ROS 2 node.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::fs;
use std::io::{BufRead, Read};
use std::process::Stdio;
use std::time::Duration;

use rgaps::Node;
use rgaps_control::Running;
use rgaps_testing::{Child, Host, Hosts, HostsError, RuntimeDir, Watchdog, programs, skipped};

const KIND: &str = "RGAPS_TEST_NODE";

/// Program: creates a node, prints a line, and keeps the node until its input ends.
#[test]
fn as_a_program_makes_a_node() {
    let Ok(kind) = std::env::var(KIND) else { return };
    let builder = Node::builder();
    let node = if kind == "ros" { builder.ros_node() } else { builder }.build().unwrap();
    println!("a node");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(node);
}

/// The configuration and log of the manager that a host's first node has started.
fn manager_of(host: &Host, kind: &str) -> (String, String) {
    let dir = RuntimeDir::new("range").unwrap();
    let mut command = host.command(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        if ["RGAPS_", "ROS_", "RMW_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    dir.apply(&mut command);
    command.args(["--exact", "--nocapture", "as_a_program_makes_a_node"]).env(KIND, kind);
    command.env("RGAPSD", programs::find("rgapsd")).env("RGAPS_CONFIG", "/dev/null").env("RGAPS_DEVICE", "host");
    let mut program = Child::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
    let mut said = std::io::BufReader::new(program.std().stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("a node") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "no node was made");
    }
    let config = Running::new(dir.path(), 0).config.unwrap();
    (config.network, fs::read_to_string(dir.path().join("rgapsd.log")).unwrap())
}

#[test]
fn a_plain_host_stays_closed_and_a_ros_2_node_opens_its_host_and_both_log_it() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let hosts = match Hosts::new(1) {
        Ok(hosts) => hosts,
        Err(HostsError::Unavailable(why)) => return skipped(why),
        Err(error) => panic!("{error}"),
    };
    let of_network = |log: &str| -> Vec<String> {
        log.lines().filter(|line| line.contains("network=")).map(str::to_owned).collect()
    };
    let (config, log) = manager_of(&hosts[0], "plain");
    let said = of_network(&log);
    assert_eq!((config.as_str(), said.len()), ("local", 1), "{log}");
    for part in [" INFO ", "network=local", "by=\"the default\"", "RGAPS_NETWORK=open"] {
        assert!(said[0].contains(part), "{log}");
    }
    let (config, log) = manager_of(&hosts[0], "ros");
    let said = of_network(&log);
    assert_eq!((config.as_str(), said.len()), ("open", 1), "{log}");
    for part in [" WARN ", "network=open", "is not set, which means SUBNET to ROS 2 nodes", "nobody is authenticated"] {
        assert!(said[0].contains(part), "{log}");
    }
}
