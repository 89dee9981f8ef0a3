//! Hosts that were found by multicast and have fallen silent: found again as soon as their network is back.
//!
//! zenoh scouts every 8 s in the long run, and does nothing else for a peer that no configuration names. So this thread remembers where links led,
//! knocks at the doors of those who are gone, and introduces who opens to this host's session:
//!
//! ```text
//!   links, every ROUND ──▶ Silent (who is gone) ──▶ knock ──opened──▶ a session for a moment, with a link to both; gossip does the rest
//!                                                       └──refused──▶ forgotten: the machine is there, and its manager has left
//! ```
//!
//! Trusts      nobody: it knocks only where this host's zenoh had a link that it opened itself, at few hosts, for a while.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zenoh::session::ZenohId;
use zenoh::{Config as Zenoh, Session, Wait};

/// How often links are looked at.
const ROUND: Duration = Duration::from_millis(250);
/// How long one knock waits.
const KNOCK: Duration = Duration::from_millis(750);
/// How long gossip may take.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// How long a host is knocked for, and how often it may open without becoming a peer again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
const INTRODUCTIONS_MAX: u32 = 5;
/// Hosts that are remembered, and that are knocked for in a round.
const REMEMBERED_MAX: usize = 256;
const KNOCKS_A_ROUND: usize = 16;

/// What came of a knock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knock {
    Opened,
    Refused,
    Nothing,
}

/// Who is gone. No I/O, no clock.
#[derive(Debug)]
struct Silent<Id> {
    known: HashMap<Id, Known>,
}

#[derive(Debug)]
struct Known {
    address: SocketAddr,
    gone_since: Option<Instant>,
    knocked: Instant,
    opened: u32,
}

impl<Id: Copy + Eq + std::hash::Hash> Silent<Id> {
    fn new() -> Self {
        Self { known: HashMap::new() }
    }

    /// The links that there are: whom they lead to, and where those listen, as far as this host opened them.
    fn handle_links(&mut self, now: Instant, links: &[(Id, Option<SocketAddr>)]) {
        for (id, address) in links {
            let new = |address: SocketAddr| Known { address, gone_since: None, knocked: now, opened: 0 };
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

    /// Whom to knock for now: who has waited longest.
    fn poll_knocks(&mut self, now: Instant) -> Vec<(Id, SocketAddr)> {
        let mut gone: Vec<(&Id, &mut Known)> =
            self.known.iter_mut().filter(|(_, known)| known.gone_since.is_some()).collect();
        gone.sort_by_key(|(_, known)| known.knocked);
        let turn = gone.into_iter().take(KNOCKS_A_ROUND);
        turn.map(|(id, known)| {
            known.knocked = now;
            (*id, known.address)
        })
        .collect()
    }

    /// What came of one; true if the host should be introduced.
    fn handle_knock(&mut self, id: Id, knock: Knock) -> bool {
        let Some(known) = self.known.get_mut(&id) else { return false };
        known.opened += u32::from(knock == Knock::Opened);
        if knock == Knock::Refused || known.opened > INTRODUCTIONS_MAX {
            self.known.remove(&id);
            return false;
        }
        knock == Knock::Opened
    }
}

/// A thread that looks for silent hosts, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seeker {
    /// Never sent on: its drop is the signal.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Seeker {
    /// For a session; `introducer` is what the one that introduces is made of.
    pub(crate) fn start(session: Session, introducer: Zenoh) -> std::io::Result<Self> {
        let (alive, ended) = channel();
        let thread = std::thread::Builder::new()
            .name("rgaps-seeker".to_owned())
            .spawn(move || seek(&session, &introducer, &ended))?;
        Ok(Self { alive: Some(alive), thread: Some(thread) })
    }
}

impl Drop for Seeker {
    fn drop(&mut self) {
        drop(self.alive.take());
        self.thread.take().map(JoinHandle::join);
    }
}

fn seek(session: &Session, introducer: &Zenoh, ended: &Receiver<()>) {
    let mut silent = Silent::new();
    while ended.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
        silent.handle_links(Instant::now(), &links(session));
        let knocks = silent.poll_knocks(Instant::now());
        let back: Vec<(ZenohId, SocketAddr)> = knock_at_all(&knocks)
            .into_iter()
            .filter(|(id, _, knock)| silent.handle_knock(*id, *knock))
            .map(|(id, address, _)| (id, address))
            .collect();
        if !back.is_empty()
            && let Err(error) = introduce(session, introducer, &back, ended)
        {
            tracing::debug!(%error, "hosts that are back could not be introduced");
        }
    }
}

/// The address of a locator of TCP.
fn address(locator: &str) -> Option<SocketAddr> {
    locator.strip_prefix("tcp/")?.split(['?', '#']).next()?.parse().ok()
}

/// Whether an address leads there by itself: one of IPv6 that is good on one link only does not say on which.
fn is_whole(address: &SocketAddr) -> bool {
    !matches!(address, SocketAddr::V6(address) if address.ip().is_unicast_link_local())
}

/// Where this session listens.
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

fn knock_at_all(hosts: &[(ZenohId, SocketAddr)]) -> Vec<(ZenohId, SocketAddr, Knock)> {
    let knock = |address: &SocketAddr| match TcpStream::connect_timeout(address, KNOCK) {
        Ok(_) => Knock::Opened,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Knock::Refused,
        Err(_) => Knock::Nothing,
    };
    std::thread::scope(|scope| {
        let knocks: Vec<_> =
            hosts.iter().map(|(id, address)| (id, address, scope.spawn(move || knock(address)))).collect();
        knocks
            .into_iter()
            .map(|(id, address, knocking)| (*id, *address, knocking.join().unwrap_or(Knock::Nothing)))
            .collect()
    })
}

/// Waits until the session has a link with each of them, or for a while.
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

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], port))
    }

    #[test]
    fn locators_of_tcp_are_read_and_those_of_one_link_do_not_lead_anywhere() {
        let found =
            ["tcp/[fe80::1]:7447", "tcp/10.0.0.2:7447?prio=1", "udp/10.0.0.2:7447", "tcp/robot:7447"].map(address);
        assert_eq!(
            found.map(|address| address.map(|address| is_whole(&address))),
            [Some(false), Some(true), None, None]
        );
    }

    #[test]
    fn who_was_linked_by_this_host_and_is_gone_is_knocked_for_until_it_is_back() {
        let now = Instant::now();
        let mut silent = Silent::new();
        // Host 2 opened its link itself: where it listens is not known here, and it remembers this host.
        silent.handle_links(now, &[(1, Some(at(1))), (2, None)]);
        assert!(silent.poll_knocks(now).is_empty());
        silent.handle_links(now, &[]);
        assert_eq!(silent.poll_knocks(now), [(1, at(1))]);
        assert!(!silent.handle_knock(1, Knock::Nothing));
        assert_eq!(silent.poll_knocks(now), [(1, at(1))]);
        assert!(silent.handle_knock(1, Knock::Opened));
        // It opened the link this time; its address stays known.
        silent.handle_links(now, &[(1, None)]);
        assert!(silent.poll_knocks(now).is_empty());
        silent.handle_links(now, &[]);
        assert_eq!(silent.poll_knocks(now), [(1, at(1))]);
    }

    #[test]
    fn who_refuses_opens_in_vain_or_is_gone_for_long_is_forgotten() {
        let now = Instant::now();
        let gone = || {
            let mut silent = Silent::new();
            silent.handle_links(now, &[(1, Some(at(1)))]);
            silent.handle_links(now, &[]);
            silent
        };
        let mut refused = gone();
        assert!(!refused.handle_knock(1, Knock::Refused));
        assert!(refused.poll_knocks(now).is_empty());
        let mut vain = gone();
        let opened = (0..100).filter(|_| vain.handle_knock(1, Knock::Opened)).count();
        assert_eq!(opened, INTRODUCTIONS_MAX as usize);
        let mut long = gone();
        long.handle_links(now + FORGOTTEN_AFTER, &[]);
        assert!(long.poll_knocks(now).is_empty());
    }

    #[test]
    fn few_hosts_are_remembered_and_all_that_are_gone_have_their_turn() {
        let mut now = Instant::now();
        let mut silent = Silent::new();
        let many: Vec<(u16, Option<SocketAddr>)> = (0..1000).map(|id| (id, Some(at(id)))).collect();
        silent.handle_links(now, &many);
        silent.handle_links(now, &[]);
        let mut knocked = std::collections::HashSet::new();
        for _ in 0..REMEMBERED_MAX / KNOCKS_A_ROUND {
            now += ROUND;
            knocked.extend(silent.poll_knocks(now));
        }
        assert_eq!(knocked.len(), REMEMBERED_MAX);
    }
}
