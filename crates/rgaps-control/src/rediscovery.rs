//! Finds hosts that multicast had found and that have fallen silent, as soon as their network is back.
//!
//! In the long run zenoh scouts every 8 s, and does nothing else to find a peer that no configuration names. So this thread remembers the addresses
//! of links, tries to connect to the hosts that are gone (a probe), and introduces each host that accepts to this host's session:
//!
//! ```text
//!   links, every ROUND ──▶ LostHosts ──▶ probe ──opened──▶ a short session with a link to both; gossip does the rest
//!                                              └──refused──▶ forgotten: the machine answers, its manager has left
//! ```
//!
//! It also warns of interfaces that come up later than the session: zenoh does not scout on them.
//!
//! Trusts      no host: it connects only to addresses to which this host's zenoh had opened a link itself, to few hosts, for a limited time.

use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use zenoh::session::ZenohId;
use zenoh::{Config as Zenoh, Session, Wait};

use crate::interfaces::{Interface, format_interfaces, multicast_interfaces};

/// Pause between two looks at the links.
const ROUND: Duration = Duration::from_millis(250);
/// Pause between two looks at the interfaces.
const INTERFACE_CHECK: Duration = Duration::from_secs(2);
/// How long one probe waits.
const PROBE_TIMEOUT: Duration = Duration::from_millis(750);
/// How long gossip may take to connect the hosts.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// How long to probe a host, and how often it may accept without becoming a peer again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
const INTRODUCTIONS_MAX: u32 = 5;
/// Hosts that are remembered, and hosts that are probed in a round.
const REMEMBERED_MAX: usize = 256;
const PROBES_A_ROUND: usize = 16;

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Opened,
    Refused,
    Unanswered,
}

/// Which hosts are gone. No I/O, no clock.
#[derive(Debug)]
struct LostHosts<Id> {
    known: HashMap<Id, Known>,
}

#[derive(Debug)]
struct Known {
    address: SocketAddr,
    gone_since: Option<Instant>,
    probed: Instant,
    opened: u32,
}

impl<Id: Copy + Eq + std::hash::Hash> LostHosts<Id> {
    fn new() -> Self {
        Self { known: HashMap::new() }
    }

    /// The current links: the host at the other end, and its address if this host opened the link.
    fn handle_links(&mut self, now: Instant, links: &[(Id, Option<SocketAddr>)]) {
        for (id, address) in links {
            let new = |address: SocketAddr| Known { address, gone_since: None, probed: now, opened: 0 };
            if let Some(known) = self.known.get_mut(id) {
                *known = new(address.unwrap_or(known.address));
            } else if let Some(address) = address.filter(|_| self.known.len() < REMEMBERED_MAX) {
                self.known.insert(*id, new(address));
            }
        }
        for (id, known) in &mut self.known {
            if !links.iter().any(|(there, _)| there == id) {
                known.gone_since.get_or_insert(now);
            }
        }
        self.known.retain(|_, known| known.gone_since.is_none_or(|since| now - since < FORGOTTEN_AFTER));
    }

    /// The hosts to probe now: those that have waited longest.
    fn poll_probes(&mut self, now: Instant) -> Vec<(Id, SocketAddr)> {
        let mut gone: Vec<(&Id, &mut Known)> =
            self.known.iter_mut().filter(|(_, known)| known.gone_since.is_some()).collect();
        gone.sort_by_key(|(_, known)| known.probed);
        let turn = gone.into_iter().take(PROBES_A_ROUND);
        turn.map(|(id, known)| {
            known.probed = now;
            (*id, known.address)
        })
        .collect()
    }

    /// Takes the result of a probe. True if the host should be introduced.
    fn handle_probe(&mut self, id: Id, probe: Probe) -> bool {
        let Some(known) = self.known.get_mut(&id) else { return false };
        known.opened += u32::from(probe == Probe::Opened);
        if probe == Probe::Refused || known.opened > INTRODUCTIONS_MAX {
            self.known.remove(&id);
            return false;
        }
        probe == Probe::Opened
    }
}

/// A thread that looks for lost hosts until this is dropped.
#[derive(Debug)]
pub(crate) struct Rediscovery {
    /// Nothing is sent: dropping it ends the thread.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rediscovery {
    /// Starts the thread for a session; `introducer` configures the session that introduces hosts.
    /// `scouted` are the interfaces that the session scouts on.
    pub(crate) fn start(
        session: Session,
        introducer: Zenoh,
        mut scouted: BTreeSet<Interface>,
    ) -> std::io::Result<Self> {
        let (alive, ended) = channel();
        let thread = std::thread::Builder::new()
            .name("rgaps-discovery".to_owned())
            .spawn(move || rediscover(&session, &introducer, &mut scouted, &ended))?;
        Ok(Self { alive: Some(alive), thread: Some(thread) })
    }
}

impl Drop for Rediscovery {
    fn drop(&mut self) {
        drop(self.alive.take());
        self.thread.take().map(JoinHandle::join);
    }
}

fn rediscover(session: &Session, introducer: &Zenoh, scouted: &mut BTreeSet<Interface>, ended: &Receiver<()>) {
    let mut lost = LostHosts::new();
    let mut looked = Instant::now();
    while ended.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
        if looked.elapsed() >= INTERFACE_CHECK {
            looked = Instant::now();
            let new = take_new(scouted, multicast_interfaces());
            if !new.is_empty() {
                tracing::warn!(
                    interfaces = format_interfaces(&new),
                    "came up later than rgapsd, so hosts there are not found by multicast: restart rgapsd, or name them in `peers`"
                );
            }
        }
        lost.handle_links(Instant::now(), &links(session));
        let probes = lost.poll_probes(Instant::now());
        let back: Vec<(ZenohId, SocketAddr)> = probe_all(&probes)
            .into_iter()
            .filter(|(id, _, probe)| lost.handle_probe(*id, *probe))
            .map(|(id, address, _)| (id, address))
            .collect();
        if !back.is_empty()
            && let Err(error) = introduce(session, introducer, &back, ended)
        {
            tracing::debug!(%error, "hosts that are back could not be introduced");
        }
    }
}

/// The interfaces that are not scouted on, each once.
fn take_new(known: &mut BTreeSet<Interface>, found: BTreeSet<Interface>) -> Vec<Interface> {
    found.into_iter().filter(|interface| known.insert(interface.clone())).collect()
}

/// The address in a TCP locator.
fn address(locator: &str) -> Option<SocketAddr> {
    locator.strip_prefix("tcp/")?.split(['?', '#']).next()?.parse().ok()
}

/// Whether an address suffices to connect: a link-local IPv6 address does not say on which interface.
fn is_whole(address: &SocketAddr) -> bool {
    !matches!(address, SocketAddr::V6(address) if address.ip().is_unicast_link_local())
}

/// The addresses that this session listens on.
fn own(session: &Session) -> Vec<SocketAddr> {
    session.info().locators().wait().iter().filter_map(|locator| address(locator.as_str())).collect()
}

fn links(session: &Session) -> Vec<(ZenohId, Option<SocketAddr>)> {
    let own: Vec<u16> = own(session).iter().map(SocketAddr::port).collect();
    let opened = |link: &zenoh::session::Link| {
        let is_ours = address(link.src().as_str()).is_some_and(|from| !own.contains(&from.port()));
        address(link.dst().as_str()).filter(|_| is_ours)
    };
    session.info().links().wait().map(|link| (*link.zid(), opened(&link))).collect()
}

fn probe_all(hosts: &[(ZenohId, SocketAddr)]) -> Vec<(ZenohId, SocketAddr, Probe)> {
    let probe = |address: &SocketAddr| match TcpStream::connect_timeout(address, PROBE_TIMEOUT) {
        Ok(_) => Probe::Opened,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Probe::Refused,
        Err(_) => Probe::Unanswered,
    };
    std::thread::scope(|scope| {
        let start = |address| std::thread::Builder::new().spawn_scoped(scope, move || probe(address)).ok();
        let probes: Vec<_> = hosts.iter().map(|(id, address)| (id, address, start(address))).collect();
        let probed = |(id, address, probing): (&ZenohId, &SocketAddr, Option<ScopedJoinHandle<'_, Probe>>)| {
            (*id, *address, probing.and_then(|probing| probing.join().ok()).unwrap_or(Probe::Unanswered))
        };
        probes.into_iter().map(probed).collect()
    })
}

/// Opens a session with links to this host and to `hosts`, and waits until this host has links with all of them, or for `INTRODUCTION`.
fn introduce(
    session: &Session,
    introducer: &Zenoh,
    hosts: &[(ZenohId, SocketAddr)],
    ended: &Receiver<()>,
) -> zenoh::Result<()> {
    let Some(own) = own(session).into_iter().find(is_whole) else { return Ok(()) };
    let both: Vec<String> =
        hosts.iter().map(|(_, address)| address).chain([&own]).map(|at| format!("tcp/{at}")).collect();
    let mut zenoh = introducer.clone();
    zenoh.insert_json5("connect/endpoints", &serde_json::to_string(&both)?)?;
    let _between = zenoh::open(zenoh).wait()?;
    let until = Instant::now() + INTRODUCTION;
    let is_here = |id: &ZenohId| session.info().links().wait().any(|link| link.zid() == id);
    while Instant::now() < until && !hosts.iter().all(|(id, _)| is_here(id)) {
        if ended.recv_timeout(ROUND / 10) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::interface;

    #[test]
    fn each_interface_that_comes_up_later_is_taken_once() {
        let mut known = BTreeSet::from([interface("eth0", 1)]);
        let found = BTreeSet::from([interface("eth0", 1), interface("late0", 2)]);
        assert_eq!(take_new(&mut known, found.clone()), [interface("late0", 2)]);
        assert!(take_new(&mut known, found).is_empty());
        assert!(take_new(&mut known, BTreeSet::new()).is_empty());
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], port))
    }

    #[test]
    fn tcp_locators_are_read_and_link_local_ones_are_not_used() {
        let found =
            ["tcp/[fe80::1]:7447", "tcp/10.0.0.2:7447?prio=1", "udp/10.0.0.2:7447", "tcp/robot:7447"].map(address);
        assert_eq!(
            found.map(|address| address.map(|address| is_whole(&address))),
            [Some(false), Some(true), None, None]
        );
    }

    #[test]
    fn a_gone_host_that_this_host_had_linked_is_probed_until_it_is_back() {
        let now = Instant::now();
        let mut lost = LostHosts::new();
        // Host 2 opened its link itself: its address is not known here, and it remembers this host.
        lost.handle_links(now, &[(1, Some(at(1))), (2, None)]);
        assert!(lost.poll_probes(now).is_empty());
        lost.handle_links(now, &[]);
        assert_eq!(lost.poll_probes(now), [(1, at(1))]);
        assert!(!lost.handle_probe(1, Probe::Unanswered));
        assert_eq!(lost.poll_probes(now), [(1, at(1))]);
        assert!(lost.handle_probe(1, Probe::Opened));
        // Host 1 opened the link this time; its address stays known.
        lost.handle_links(now, &[(1, None)]);
        assert!(lost.poll_probes(now).is_empty());
        lost.handle_links(now, &[]);
        assert_eq!(lost.poll_probes(now), [(1, at(1))]);
    }

    #[test]
    fn a_host_that_refuses_accepts_in_vain_or_is_long_gone_is_forgotten() {
        let now = Instant::now();
        let gone = || {
            let mut lost = LostHosts::new();
            lost.handle_links(now, &[(1, Some(at(1)))]);
            lost.handle_links(now, &[]);
            lost
        };
        let mut refused = gone();
        assert!(!refused.handle_probe(1, Probe::Refused));
        assert!(refused.poll_probes(now).is_empty());
        let mut vain = gone();
        let opened = (0..100).filter(|_| vain.handle_probe(1, Probe::Opened)).count();
        assert_eq!(opened, INTRODUCTIONS_MAX as usize);
        let mut long = gone();
        long.handle_links(now + FORGOTTEN_AFTER, &[]);
        assert!(long.poll_probes(now).is_empty());
    }

    #[test]
    fn few_hosts_are_remembered_and_each_gone_one_gets_its_turn() {
        let mut now = Instant::now();
        let mut lost = LostHosts::new();
        let many: Vec<(u16, Option<SocketAddr>)> = (0..1000).map(|id| (id, Some(at(id)))).collect();
        lost.handle_links(now, &many);
        lost.handle_links(now, &[]);
        let mut probed = std::collections::HashSet::new();
        for _ in 0..REMEMBERED_MAX / PROBES_A_ROUND {
            now += ROUND;
            probed.extend(lost.poll_probes(now));
        }
        assert_eq!(probed.len(), REMEMBERED_MAX);
    }
}
