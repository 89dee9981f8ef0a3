//! The demo's hosts: as root, two network namespaces on a switch; else two loopback addresses. Each host has its own runtime directory, and so its
//! own manager.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rgaps::device::Choice;
use rgaps_control::Range;
use rgaps_testing::{Hosts, RuntimeDir, runtime_dir};

use crate::CommandError;

/// Transports between the hosts, as flags name them.
pub(crate) const TRANSPORTS: [&str; 3] = ["auto", "tcp", "rdma"];
/// Where the managers listen. Not zenoh's port: it is that of a router of rmw_zenoh_cpp, which ROS nodes on the hosts may need.
const PORT: u16 = 7467;
/// How long managers stay after their last client.
const IDLE_TIMEOUT_MS: &str = "300";
/// How long managers may take to exit.
const DETACH_TIMEOUT: Duration = Duration::from_secs(10);

/// A host of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The publisher's host.
    A,
    /// The other host.
    B,
}

impl Side {
    pub(crate) fn letter(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
        }
    }

    fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }
}

/// Two hosts.
pub(crate) struct DemoHosts {
    /// Network namespaces, or why there are none.
    hosts: Result<Hosts, String>,
    dirs: [RuntimeDir; 2],
    addresses: [Ipv4Addr; 2],
    ports: [u16; 2],
    /// Overrides the configured transport.
    transport: Option<String>,
    device: Option<Choice>,
}

impl DemoHosts {
    pub(crate) fn new(loopback: bool, transport: Option<&str>, device: Option<Choice>) -> Result<Self, CommandError> {
        let hosts =
            if loopback { Err("--loopback".to_owned()) } else { Hosts::new(2).map_err(|error| error.to_string()) };
        let addresses = match &hosts {
            Ok(hosts) => [hosts[0].address(), hosts[1].address()],
            Err(_) => [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)],
        };
        let ports = match &hosts {
            Ok(_) => [PORT, PORT],
            Err(_) => [free_port(addresses[0])?, free_port(addresses[1])?],
        };
        let dirs = [RuntimeDir::new("a")?, RuntimeDir::new("b")?];
        Ok(Self { hosts, dirs, addresses, ports, transport: transport.map(str::to_owned), device })
    }

    pub(crate) fn describe(&self) -> String {
        match &self.hosts {
            Ok(_) => format!("two hosts: network namespaces, {} and {}", self.addresses[0], self.addresses[1]),
            Err(why) => {
                format!("two hosts: loopback addresses {} and {} ({why})", self.addresses[0], self.addresses[1])
            }
        }
    }

    pub(crate) fn is_namespaces(&self) -> bool {
        self.hosts.is_ok()
    }

    /// A command that runs this program on a host.
    pub(crate) fn command(&self, side: Side) -> Result<Command, CommandError> {
        let program = std::env::current_exe()?;
        let mut command = match &self.hosts {
            Ok(hosts) => hosts[side.index()].command(program),
            Err(_) => Command::new(program),
        };
        command.envs(self.environment(side)).env("RGAPS_IDLE_TIMEOUT_MS", IDLE_TIMEOUT_MS);
        Ok(command)
    }

    /// The prefix with which another process's command runs on a host.
    pub(crate) fn prefix(&self, side: Side) -> Vec<String> {
        match &self.hosts {
            Ok(hosts) => ["ip", "netns", "exec", hosts[side.index()].namespace()].map(str::to_owned).into(),
            Err(_) => Vec::new(),
        }
    }

    /// The environment variables of all processes on a host.
    pub(crate) fn environment(&self, side: Side) -> Vec<(String, String)> {
        let own = side.index();
        let other = 1 - own;
        let address = |host: usize| format!("tcp/{}:{}", self.addresses[host], self.ports[host]);
        let range = if self.is_namespaces() { Range::Open } else { Range::Loopback };
        let variables = [
            (runtime_dir::VARIABLE, self.dirs[own].path().display().to_string()),
            ("RGAPS_HOST_NAME", format!("demo-{}", side.letter())),
            // Overrides ROS's variables.
            ("RGAPS_NETWORK", range.name().to_owned()),
            ("RGAPS_MULTICAST", "off".to_owned()),
            ("RGAPS_LISTEN", address(own)),
            ("RGAPS_PEERS", address(other)),
            ("RGAPS_DATA_ADDRESS", self.addresses[own].to_string()),
        ];
        // ROS nodes of the hosts find each other in spite of what is set for this machine.
        let ros = [("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET"), ("ROS_LOCALHOST_ONLY", "0")];
        let ros = ros.into_iter().filter(|_| self.is_namespaces()).map(|(name, value)| (name, value.to_owned()));
        let transport = self.transport.clone().map(|transport| ("RGAPS_TRANSPORT", transport));
        let device = self.device.map(|device| ("RGAPS_DEVICE", device.to_string()));
        variables
            .into_iter()
            .chain(ros)
            .chain(transport)
            .chain(device)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// A host's runtime directory.
    pub(crate) fn dir(&self, side: Side) -> &Path {
        self.dirs[side.index()].path()
    }

    /// Bytes that host B's interface has received, if it has its own.
    pub(crate) fn received_bytes(&self) -> Result<Option<u64>, CommandError> {
        match &self.hosts {
            Ok(hosts) => {
                let counters = hosts[1].counters().map_err(|error| CommandError::Other(error.to_string()))?;
                Ok(Some(counters.received_bytes))
            }
            Err(_) => Ok(None),
        }
    }

    /// Waits until the managers have exited on their own; an error if they do not.
    pub(crate) fn clear_up(&self) -> Result<(), CommandError> {
        let deadline = Instant::now() + DETACH_TIMEOUT;
        while Instant::now() < deadline {
            if self.dirs.iter().all(|dir| !dir.path().join("rgapsd.sock").exists()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(CommandError::Other(format!("a manager of the demo is still running after {} s", DETACH_TIMEOUT.as_secs())))
    }
}

fn free_port(address: Ipv4Addr) -> Result<u16, CommandError> {
    Ok(TcpListener::bind((address, 0))?.local_addr()?.port())
}
