//! Several hosts on one machine: network namespaces joined by a switch, with cables that can be pulled.
//!
//! ```text
//!   namespace rgaps-<pid>-<n>-0          namespace rgaps-<pid>-<n>-switch          namespace rgaps-<pid>-<n>-1
//!   ┌──────────────────────┐             ┌──────────────────────────────┐          ┌──────────────────────┐
//!   │ lo   eth0 10.77.0.1  │═══ cable ═══│ port0      bridge      port1 │══ cable ═│ eth0 10.77.0.2   lo  │
//!   └──────────────────────┘             └──────────────────────────────┘          └──────────────────────┘
//! ```
//!
//! The machine's own namespace is not touched, so its addresses and firewall do not matter, and any number of these can run at a time. Pulling a
//! cable takes the switch's port down: the host keeps its address and loses its carrier, like with a real cable. Each namespace's name contains the
//! process that made it, and that process has a lock on its file; the next `Hosts::new` removes namespaces of killed processes. Two hosts may have a
//! bad network between them instead of the switch (`Hosts::over_bad_network`).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::FlockOperation;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::bad_network::BadNetwork;
use crate::raw;

/// Hosts on one switch, at most. The last byte of the address is the host's number.
pub const HOSTS_MAX: usize = 64;

const PREFIX: &str = "rgaps-";
/// Where `ip` keeps named namespaces.
const FOLDER: &str = "/run/netns";

/// Hosts could not be made, or cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// This machine or user cannot make network namespaces. Tests that need them are skipped.
    #[error("{0}")]
    Unavailable(String),
    /// More than `HOSTS_MAX`, or none.
    #[error("{0} hosts requested; 1 to {HOSTS_MAX} fit on one switch")]
    Count(usize),
    /// An `ip` command failed on a machine that has namespaces.
    #[error("`ip {command}` failed: {output}")]
    Command {
        /// Its arguments.
        command: String,
        /// Its output.
        output: String,
    },
    /// A new namespace could not be locked.
    #[error("the namespace {name} could not be locked: {source}")]
    Namespace {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A counter of an interface could not be read.
    #[error("the counters of {interface} could not be read: {output}")]
    Counters {
        /// The interface, in its namespace.
        interface: String,
        /// The text that was read instead.
        output: String,
    },
}

/// Bytes that passed a host's interface since it was made, headers of all layers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Received bytes.
    pub received_bytes: u64,
    /// Sent bytes.
    pub sent_bytes: u64,
}

impl std::ops::Sub for Counters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
        }
    }
}

/// Hosts on one switch, removed on drop. Processes that still run in a namespace keep it alive, so end them first.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    between: Between,
}

/// What connects the hosts.
#[derive(Debug)]
enum Between {
    Switch(Namespace),
    BadNetwork(BadNetwork),
}

impl Hosts {
    /// Makes `count` hosts. `HostsError::Unavailable` if this machine or user cannot make network namespaces.
    pub fn new(count: usize) -> Result<Self, HostsError> {
        if !(1..=HOSTS_MAX).contains(&count) {
            return Err(HostsError::Count(count));
        }
        let base = base()?;
        let switch = Namespace::new(format!("{base}-switch")).map_err(first_of_its_kind)?;
        // Without snooping, multicast reaches every port, as scouting expects of a plain switch.
        switch.ip(&["link", "add", "bridge", "type", "bridge", "mcast_snooping", "0"]).map_err(first_of_its_kind)?;
        switch.ip(&["link", "set", "bridge", "up"])?;
        let mut hosts = Vec::with_capacity(count);
        for index in 0..count {
            let host = Host::new(format!("{base}-{index}"), index)?;
            let (port, namespace) = (port(index), host.namespace());
            switch.ip(&["link", "add", &port, "type", "veth", "peer", "name", Host::INTERFACE, "netns", namespace])?;
            switch.ip(&["link", "set", &port, "master", "bridge", "up"])?;
            host.configure()?;
            hosts.push(host);
        }
        Ok(Self { hosts, between: Between::Switch(switch) })
    }

    /// Makes two hosts with a bad network between them, which at first passes everything. The seed determines what happens to each frame.
    pub fn over_bad_network(seed: u64) -> Result<Self, HostsError> {
        let base = base()?;
        let first = Host::new(format!("{base}-0"), 0).map_err(first_of_its_kind)?;
        let hosts = vec![first, Host::new(format!("{base}-1"), 1)?];
        let no_tap = |error: io::Error| HostsError::Unavailable(format!("no TAP interfaces here: {error}"));
        let taps = [hosts[0].tap().map_err(no_tap)?, hosts[1].tap().map_err(no_tap)?];
        hosts.iter().try_for_each(Host::configure)?;
        let network = BadNetwork::new(taps, seed).map_err(no_tap)?;
        Ok(Self { hosts, between: Between::BadNetwork(network) })
    }

    /// The bad network between the hosts, if there is one.
    pub fn bad_network(&self) -> Option<&BadNetwork> {
        match &self.between {
            Between::BadNetwork(network) => Some(network),
            Between::Switch(_) => None,
        }
    }

    /// All hosts.
    pub fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// Pulls the cable of a host out of the switch, or cuts a bad network.
    pub fn pull_cable(&self, host: usize) -> Result<(), HostsError> {
        match &self.between {
            Between::Switch(switch) => switch.ip(&["link", "set", &port(host), "down"]),
            Between::BadNetwork(network) => {
                network.cut();
                Ok(())
            }
        }
    }

    /// Puts the cable back, or ends the cut.
    pub fn put_cable_back(&self, host: usize) -> Result<(), HostsError> {
        match &self.between {
            Between::Switch(switch) => switch.ip(&["link", "set", &port(host), "up"]),
            Between::BadNetwork(network) => {
                network.restore();
                Ok(())
            }
        }
    }
}

impl std::ops::Index<usize> for Hosts {
    type Output = Host;

    fn index(&self, host: usize) -> &Host {
        &self.hosts[host]
    }
}

/// One host.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    address: Ipv4Addr,
}

impl Host {
    const INTERFACE: &str = "eth0";

    /// Makes a host without an interface.
    fn new(name: String, index: usize) -> Result<Self, HostsError> {
        // `index` is below HOSTS_MAX.
        let address = Ipv4Addr::new(10, 77, 0, index as u8 + 1);
        let namespace = Namespace::new(name)?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(Self { namespace, address })
    }

    /// Gives its interface an address, and brings it up.
    fn configure(&self) -> Result<(), HostsError> {
        self.namespace.ip(&["addr", "add", &format!("{}/24", self.address), "dev", Self::INTERFACE])?;
        self.interface_up()
    }

    /// Makes its interface as a TAP interface, and returns the file descriptor for its frames.
    fn tap(&self) -> io::Result<OwnedFd> {
        self.run(|| raw::tap(Self::INTERFACE))
    }

    /// Runs on this host, in a thread of its own. A socket that is made there stays on this host, whoever uses it.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        let namespace = File::open(Path::new(FOLDER).join(self.namespace()))?;
        // A separate thread enters the namespace, since it cannot leave it again.
        let ran = std::thread::spawn(move || {
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))?;
            work()
        });
        ran.join().unwrap_or_else(|_| Err(io::Error::other("the thread of a host panicked")))
    }

    /// Takes its interface down, which removes its routes.
    pub fn interface_down(&self) -> Result<(), HostsError> {
        self.namespace.ip(&["link", "set", Self::INTERFACE, "down"])
    }

    /// Brings its interface up, with the multicast route that a network configuration normally adds.
    pub fn interface_up(&self) -> Result<(), HostsError> {
        self.namespace.ip(&["link", "set", Self::INTERFACE, "up"])?;
        self.namespace.ip(&["route", "add", "224.0.0.0/4", "dev", Self::INTERFACE])
    }

    /// Sets the MTU of its interface.
    pub fn set_mtu(&self, bytes: usize) -> Result<(), HostsError> {
        self.namespace.ip(&["link", "set", Self::INTERFACE, "mtu", &bytes.to_string()])
    }

    /// Its address on the switch.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The name of its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace.0
    }

    /// The name of its interface, in its namespace.
    pub fn interface(&self) -> &'static str {
        Self::INTERFACE
    }

    /// A command that will run on this host. The child process is the program itself, so signals to the child reach it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace.0]).arg(program);
        command
    }

    /// The kernel's counters for its interface.
    pub fn counters(&self) -> Result<Counters, HostsError> {
        let folder = format!("/sys/class/net/{}/statistics", Self::INTERFACE);
        let output = self
            .command("cat")
            .args([format!("{folder}/rx_bytes"), format!("{folder}/tx_bytes")])
            .output()
            .map_err(|error| self.counters_error(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        match numbers[..] {
            [received_bytes, sent_bytes] => Ok(Counters { received_bytes, sent_bytes }),
            _ => Err(self.counters_error(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))),
        }
    }

    fn counters_error(&self, output: String) -> HostsError {
        HostsError::Counters { interface: format!("{} in {}", Self::INTERFACE, self.namespace.0), output }
    }
}

/// A named network namespace. Dropping it deletes it, with its interfaces. The lock of its file says that its maker lives, also to processes that do
/// not see the maker, in another PID namespace.
#[derive(Debug)]
struct Namespace(String, #[expect(dead_code, reason = "the lock ends with it")] File);

impl Namespace {
    fn new(name: String) -> Result<Self, HostsError> {
        ip(&["netns", "add", &name])?;
        let lock = || -> io::Result<File> {
            let file = File::open(Path::new(FOLDER).join(&name))?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        };
        match lock() {
            Ok(file) => Ok(Self(name, file)),
            Err(source) => {
                let _ = ip(&["netns", "del", &name]);
                Err(HostsError::Namespace { name, source })
            }
        }
    }

    fn ip(&self, arguments: &[&str]) -> Result<(), HostsError> {
        let mut all = vec!["-n", &self.0];
        all.extend(arguments);
        ip(&all)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.0]);
    }
}

/// The prefix of the names of new namespaces, if this machine can make any.
fn base() -> Result<String, HostsError> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    available()?;
    remove_left_behind();
    Ok(format!("{PREFIX}{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed)))
}

fn port(host: usize) -> String {
    format!("port{host}")
}

fn ip(arguments: &[&str]) -> Result<(), HostsError> {
    let failed = |output: String| HostsError::Command { command: arguments.join(" "), output };
    let output = Command::new("ip").args(arguments).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Checks for what network namespaces need. The error says what is missing.
fn available() -> Result<(), HostsError> {
    if !rustix::process::geteuid().is_root() {
        return Err(HostsError::Unavailable("not root: network namespaces need it".to_owned()));
    }
    if Command::new("ip").arg("-V").output().is_err() {
        return Err(HostsError::Unavailable("no ip command: install iproute2".to_owned()));
    }
    Ok(())
}

/// Treats the failure to make the first namespace or bridge as `Unavailable`: root in a container may lack the right, and a kernel may lack bridges.
fn first_of_its_kind(error: HostsError) -> HostsError {
    HostsError::Unavailable(format!("no network namespaces here: {error}"))
}

/// Deletes the namespaces of dead processes. Those that cannot be read or deleted stay: they are not ours.
fn remove_left_behind() {
    let Ok(entries) = std::fs::read_dir(FOLDER) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_invisible = maker(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        let is_unlocked = || {
            let file = File::open(entry.path()).ok();
            file.is_some_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        if is_invisible && is_unlocked() {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// The process that made a namespace, by its name, if it is one of ours.
fn maker(namespace: &str) -> Option<u32> {
    namespace.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::Child;
    use crate::skip::skipped;
    use crate::watchdog::Watchdog;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::process::Stdio;
    use std::time::Duration;

    /// Two hosts, or the report that the test is skipped.
    fn two_hosts() -> Option<Hosts> {
        match Hosts::new(2) {
            Ok(hosts) => Some(hosts),
            Err(HostsError::Unavailable(why)) => {
                skipped(why);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs one of the tests below as a program, on a host.
    fn program(host: &Host, test: &str, address: SocketAddr) -> Child {
        let mut command = host.command(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", &format!("hosts::tests::{test}")]);
        command.env("HOSTS_TEST_ADDRESS", address.to_string());
        Child::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap()
    }

    fn address_if_a_program() -> Option<SocketAddr> {
        Some(std::env::var("HOSTS_TEST_ADDRESS").ok()?.parse().unwrap())
    }

    /// Program: accepts one connection and counts the received bytes.
    #[test]
    fn as_a_program_counts() {
        let Some(address) = address_if_a_program() else { return };
        let listener = std::net::TcpListener::bind(address).unwrap();
        println!("listening");
        let (mut stream, _) = listener.accept().unwrap();
        println!("counted {}", std::io::copy(&mut stream, &mut std::io::sink()).unwrap());
    }

    /// Program: for each line of its input, sends the number of bytes in it.
    #[test]
    fn as_a_program_sends() {
        let Some(address) = address_if_a_program() else { return };
        let mut stream = TcpStream::connect(address).unwrap();
        for line in std::io::stdin().lines() {
            std::io::copy(&mut std::io::repeat(7).take(line.unwrap().parse().unwrap()), &mut stream).unwrap();
            println!("sent");
        }
    }

    fn await_line(output: &mut impl BufRead, wanted: &str) {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the program ended before it wrote `{wanted}`");
        }
    }

    #[test]
    fn hosts_reach_each_other_and_the_interface_counts_the_bytes_once() {
        let _watchdog = Watchdog::new(Duration::from_secs(60));
        let Some(hosts) = two_hosts() else { return };
        const BYTES: u64 = 4 << 20;
        let address = SocketAddr::new(hosts[1].address().into(), 7000);
        let mut receiver = program(&hosts[1], "as_a_program_counts", address);
        let mut received = BufReader::new(receiver.std().stdout.take().unwrap());
        await_line(&mut received, "listening");
        let before = hosts[1].counters().unwrap();
        let mut sender = program(&hosts[0], "as_a_program_sends", address);
        let mut input = sender.std().stdin.take().unwrap();
        writeln!(input, "{BYTES}").unwrap();
        drop(input);
        await_line(&mut received, &format!("counted {BYTES}"));
        let moved = hosts[1].counters().unwrap() - before;
        assert!((BYTES..BYTES + BYTES / 4).contains(&moved.received_bytes), "{moved:?}");
        assert!(moved.sent_bytes < BYTES / 4, "{moved:?}");
    }

    #[test]
    fn a_pulled_cable_stops_a_connection_and_a_cable_put_back_continues_it() {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let Some(hosts) = two_hosts() else { return };
        let address = SocketAddr::new(hosts[1].address().into(), 7000);
        let mut receiver = program(&hosts[1], "as_a_program_counts", address);
        let mut received = BufReader::new(receiver.std().stdout.take().unwrap());
        await_line(&mut received, "listening");
        let mut sender = program(&hosts[0], "as_a_program_sends", address);
        let mut sent = BufReader::new(sender.std().stdout.take().unwrap());
        let mut input = sender.std().stdin.take().unwrap();
        writeln!(input, "1000").unwrap();
        await_line(&mut sent, "sent");
        hosts.pull_cable(0).unwrap();
        let cut = hosts[1].counters().unwrap();
        // Less than a socket buffer holds, so that the program's write returns.
        writeln!(input, "10000").unwrap();
        await_line(&mut sent, "sent");
        assert!((hosts[1].counters().unwrap() - cut).received_bytes < 1000, "the cable is out");
        hosts.put_cable_back(0).unwrap();
        drop(input);
        await_line(&mut received, "counted 11000");
    }

    #[test]
    fn dropped_hosts_leave_nothing_and_namespaces_of_killed_processes_are_removed() {
        let Some(hosts) = two_hosts() else { return };
        let names: Vec<String> = hosts.all().iter().map(|host| host.namespace().to_owned()).collect();
        let exists = |name: &str| Path::new(FOLDER).join(name).exists();
        assert!(names.iter().all(|name| exists(name)));
        drop(hosts);
        assert!(!names.iter().any(|name| exists(name)));
        // Process ids above the kernel's maximum, so that no such process is visible: one has ended, one lives in another PID namespace.
        let left = format!("{PREFIX}4194305-0-0");
        ip(&["netns", "add", &left]).unwrap();
        let living = Namespace::new(format!("{PREFIX}4194306-0-0")).unwrap();
        drop(two_hosts());
        assert!(!exists(&left));
        assert!(exists(&living.0));
    }

    #[test]
    fn only_our_own_names_count_as_ours() {
        assert_eq!(maker("rgaps-12-0-switch"), Some(12));
        assert_eq!(maker("rgaps-x-0"), None);
        assert_eq!(maker("other-12-0"), None);
    }

    #[test]
    fn zero_hosts_and_too_many_hosts_are_refused() {
        assert!(matches!(Hosts::new(0), Err(HostsError::Count(0))));
        assert!(matches!(Hosts::new(HOSTS_MAX + 1), Err(HostsError::Count(_))));
    }
}
