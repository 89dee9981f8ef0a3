//! What is between the two hosts of a bench: loopback, or two network namespaces on a switch.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use rgaps_testing::{Hosts, HostsError};

use crate::host::loopback;

const PATIENCE: Duration = Duration::from_secs(30);

/// What is between two hosts. A side is 0 or 1: the publisher's, the subscriber's.
pub(crate) enum Network {
    Loopback,
    Namespaces(Hosts),
}

impl Network {
    /// Two new namespaces, where this machine and user may make them.
    pub(crate) fn namespaces() -> Result<Self, HostsError> {
        Hosts::new(2).map(Self::Namespaces)
    }

    /// The address of a side, where a program that knows nothing of sides listens.
    pub(crate) fn address(&self, side: usize) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST,
            Self::Namespaces(hosts) => hosts.all()[side].address(),
        }
    }

    /// A command that will run on a side.
    pub(crate) fn command(&self, side: usize, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Loopback => Command::new(program),
            Self::Namespaces(hosts) => hosts.all()[side].command(program),
        }
    }

    /// Settings of a side's manager, linked to the other one; `ports` are those on which they listen.
    pub(crate) fn settings(&self, side: usize, ports: [u16; 2]) -> Vec<(&'static str, String)> {
        let mut settings = loopback(side, ports);
        if let Self::Namespaces(_) = self {
            let endpoint = |side: usize| format!("tcp/{}:{}", self.address(side), ports[side]);
            for (key, value) in &mut settings {
                match *key {
                    "listen" => *value = endpoint(side),
                    "peers" => *value = endpoint(1 - side),
                    "data_address" => *value = self.address(side).to_string(),
                    _ => {}
                }
            }
        }
        settings
    }

    /// Two ends of a connection: one on each side.
    pub(crate) fn sockets(&self) -> io::Result<[TcpStream; 2]> {
        let address = SocketAddr::from((self.address(1), 0));
        let listener = self.run(1, move || TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        let first = self.run(0, move || TcpStream::connect_timeout(&address, PATIENCE))?;
        Ok([first, listener.accept()?.0])
    }

    fn run<T: Send + 'static>(
        &self,
        side: usize,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self {
            Self::Loopback => work(),
            Self::Namespaces(hosts) => hosts.all()[side].run(work),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn sockets_connect_the_two_sides_of_either_network() {
        let mut networks = vec![Network::Loopback];
        match Network::namespaces() {
            Ok(network) => networks.push(network),
            Err(why) => rgaps_testing::skipped(why),
        }
        for network in networks {
            let [mut first, mut second] = network.sockets().unwrap();
            first.write_all(b"x").unwrap();
            second.read_exact(&mut [0]).unwrap();
            let addresses = [&first, &second].map(|socket| socket.local_addr().unwrap().ip());
            assert_eq!(addresses, [0, 1].map(|side| std::net::IpAddr::from(network.address(side))));
            let settings = network.settings(1, [7001, 7002]);
            assert!(settings.contains(&("peers", format!("tcp/{}:7001", network.address(0)))), "{settings:?}");
        }
    }
}
