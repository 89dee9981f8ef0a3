//! Traffic of a topic: publisher processes and subscriber processes, in rounds of so many messages. `bench rates` and `bench fixed-rate` measure it.
//!
//! ```text
//!   bench ──round, futex──▶ publisher processes ──messages──▶ subscriber processes ──seen, bell──▶ bench
//!                                                                   └─▶ tally: batches, latencies
//! ```
//!
//! The reference is the same pair of processes with a bare socket between them: a Unix socket on one host, TCP from host to host. The publisher makes
//! one `write` for each message, and the subscriber reads as much as there is.

mod roles;
mod tally;

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::Ordering;

use rgaps_os::clock;
use rgaps_shm::notify::Wake;

pub use roles::{PublisherArgs, SubscriberArgs, publish, subscribe};
pub(crate) use tally::{BUCKETS, name_of_bucket};

use self::tally::Tally;
use crate::host::{Host, free_ports, loopback};
use crate::network::Network;
use crate::notify::BareWake;
use crate::page::{self, Children, MARK, Page};
use crate::{BenchError, cpu};

/// Where publishers and subscribers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    SameHost,
    TwoHosts,
}

pub(crate) const PLACEMENTS: [Placement; 2] = [Placement::SameHost, Placement::TwoHosts];

/// How many processes there are, and what they publish in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) publishers: u64,
    /// Subscribers that take all that is ready.
    pub(crate) subscribers: u64,
    /// One subscriber more, which is slow.
    pub(crate) slow: Option<Slow>,
    pub(crate) bytes: u64,
    /// Messages of a round, of all publishers together.
    pub(crate) messages: u64,
    /// Nanoseconds between two messages of a publisher; 0: it publishes as fast as possible.
    pub(crate) pause_ns: u64,
}

/// A subscriber that takes one message at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slow {
    /// What it spends on each.
    pub(crate) us: u64,
    /// `None`: it keeps all.
    pub(crate) keep_last: Option<u32>,
}

/// Messages of a publisher that may be under way.
const DEPTH: u64 = 256;

/// The hosts of a placement.
pub(crate) struct Hosts(Vec<Host>);

impl Hosts {
    pub(crate) fn new(bench: &'static str, placement: Placement) -> Result<Self, BenchError> {
        if placement == Placement::SameHost {
            return Ok(Self(vec![Host::start(bench, &[("network", "local".to_owned())])?]));
        }
        let ports = free_ports::<2>(bench)?;
        Ok(Self(vec![Host::start(bench, &loopback(0, ports))?, Host::start(bench, &loopback(1, ports))?]))
    }
}

/// The processes of a topic or of a socket.
pub(crate) struct Traffic {
    page: Page,
    tally: Tally,
    wake: BareWake,
    children: Children,
    plan: Plan,
    round: u64,
    /// The manager that brings messages to the subscribers' host.
    receiver: Option<u32>,
}

impl Traffic {
    /// Over a topic of its own.
    pub(crate) fn ours(bench: &'static str, hosts: &Hosts, topic: &str, plan: Plan) -> Result<Self, BenchError> {
        let [Some(publishing), Some(subscribing)] = [hosts.0.first(), hosts.0.last()] else {
            return Err(BenchError::failed(bench, "no hosts"));
        };
        let is_remote = hosts.0.len() > 1;
        let join = |host: &Host, command: &mut Command| {
            command.arg("--runtime-dir").arg(host.dir()).args(["--topic", topic]).env("RGAPS_AUTOSTART", "0");
        };
        // Another host counts as one subscriber.
        let seen = if is_remote { 1 } else { plan.all_subscribers() };
        let mut traffic = Self::start(
            bench,
            plan,
            seen,
            |command| {
                join(subscribing, command);
                Ok(())
            },
            |command| {
                join(publishing, command);
                Ok(())
            },
        )?;
        traffic.receiver = is_remote.then(|| subscribing.id());
        Ok(traffic)
    }

    /// Over a bare socket, from one publisher to one subscriber.
    pub(crate) fn socket(bench: &'static str, placement: Placement, plan: Plan) -> Result<Self, BenchError> {
        let system = BenchError::system(bench, "a socket");
        let [near, far]: [OwnedFd; 2] = match placement {
            Placement::SameHost => UnixStream::pair().map(|(near, far)| [near.into(), far.into()]).map_err(&system)?,
            Placement::TwoHosts => {
                let sockets = Network::Loopback.sockets().map_err(&system)?;
                sockets[0].set_nodelay(true).map_err(&system)?;
                sockets.map(TcpStream::into)
            }
        };
        let (mut near, mut far) = (Some(near), Some(far));
        let give = |command: &mut Command, end: &mut Option<OwnedFd>| {
            let end = end.take();
            let end = end.ok_or_else(|| BenchError::failed(bench, "a socket has one publisher and one subscriber"))?;
            command.arg("--socket").stdin(end);
            Ok(())
        };
        Self::start(bench, plan, 1, |command| give(command, &mut far), |command| give(command, &mut near))
    }

    /// Starts the subscribers, then the publishers, each with what the two functions add, and waits until all are ready.
    fn start(
        bench: &'static str,
        plan: Plan,
        seen: u64,
        mut add_to_subscriber: impl FnMut(&mut Command) -> Result<(), BenchError>,
        mut add_to_publisher: impl FnMut(&mut Command) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        let (page, tally) = (Page::new(bench)?, Tally::new(bench, plan.all_subscribers(), plan.messages)?);
        let mut children = Children::default();
        let command = |role: &str, slot: u64| {
            let mut command = Command::new(page::program());
            command.args(["bench", role, "--page", &page.path(), "--slot", &slot.to_string()]);
            command.args(["--bytes", &plan.bytes.to_string()]);
            command
        };
        for slot in 0..plan.all_subscribers() {
            let mut command = command("traffic-subscriber", slot);
            command.args(["--tally", &tally.path(), "--subscribers", &plan.all_subscribers().to_string()]);
            command.args(["--messages", &plan.messages.to_string()]);
            if let Some(Slow { us, keep_last }) = plan.slow.filter(|_| slot == plan.subscribers) {
                command.args(["--slow-us", &us.to_string()]);
                command.args(keep_last.map(|depth| format!("--keep-last={depth}")));
            }
            add_to_subscriber(&mut command)?;
            children.spawn(bench, &mut command)?;
        }
        page.wait_until_ready(plan.all_subscribers())?;
        for publisher in 0..plan.publishers {
            let mut command = command("traffic-publisher", plan.all_subscribers() + publisher);
            command.args(["--messages", &(plan.messages / plan.publishers).to_string()]);
            command.args(["--pause-ns", &plan.pause_ns.to_string(), "--depth", &DEPTH.to_string()]);
            command.args(["--subscribers", &seen.to_string()]);
            add_to_publisher(&mut command)?;
            children.spawn(bench, &mut command)?;
        }
        page.wait_until_ready(children.count())?;
        let wake = BareWake(page.again()?);
        Ok(Self { page, tally, wake, children, plan, round: 0, receiver: None })
    }

    /// Seconds until the median of the fast subscribers has all messages of a round.
    pub(crate) fn round(&mut self) -> Result<f64, BenchError> {
        self.round += 1;
        page::pace();
        let start = clock::monotonic_ns();
        self.page.round().store(self.round, Ordering::SeqCst);
        self.wake.wake().map_err(BenchError::system("traffic", "a wake-up"))?;
        Ok(self.page.latency(self.plan.subscribers, self.round, start)? / 1e6)
    }

    /// Messages a second that the median of the fast subscribers gets in a round.
    pub(crate) fn rate(&mut self) -> Result<f64, BenchError> {
        Ok(self.plan.messages as f64 / self.round()?)
    }

    /// Batches of all fast subscribers, by bucket, and their messages.
    pub(crate) fn batches(&self) -> Result<([u64; BUCKETS], u64), BenchError> {
        let (mut all, mut messages) = ([0; BUCKETS], 0);
        for slot in 0..self.plan.subscribers {
            let (buckets, taken, _) = self.tally.counts(slot)?;
            all.iter_mut().zip(buckets).for_each(|(sum, count)| *sum += count);
            messages += taken;
        }
        Ok((all, messages))
    }

    /// Messages that the slow subscriber has taken and lost.
    pub(crate) fn of_slow(&self) -> Result<(u64, u64), BenchError> {
        let (_, taken, lost) = self.tally.counts(self.plan.subscribers)?;
        Ok((taken, lost))
    }

    /// us of each message of the last round, of all fast subscribers.
    pub(crate) fn latencies(&self) -> Result<Vec<f64>, BenchError> {
        let all = (0..self.plan.subscribers).map(|slot| self.tally.latencies(slot));
        Ok(all.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Seconds of processor time that each of the fast subscribers has used on average, and that all of them have with the receiving manager.
    pub(crate) fn cpu_seconds(&self) -> Result<(f64, f64), BenchError> {
        let subscribers = self.children.ids().take(self.plan.subscribers as usize);
        let used = subscribers.map(cpu::of_process).sum::<std::io::Result<f64>>();
        let manager = self.receiver.map_or(Ok(0.0), cpu::of_process);
        let [used, manager] =
            [used, manager].map(|found| found.map_err(BenchError::system("traffic", "the threads of a process")));
        let used = used?;
        Ok((used / self.plan.subscribers as f64, used + manager?))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.page.round().store(MARK, Ordering::SeqCst);
        let _ = self.wake.wake();
    }
}

impl Plan {
    fn all_subscribers(&self) -> u64 {
        self.subscribers + u64::from(self.slow.is_some())
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::SameHost { "on one host" } else { "from host to host" })
    }
}
