//! `bench e2e`: from a publisher on one host to a subscriber process on another, against one bare socket.
//!
//! ```text
//!   ours  publisher ─▶ manager A ══ loopback ══▶ manager B: pool ─▶ subscriber process
//!   bare  source ──write──▶ loopback ──read(2)──▶ memory for two messages
//! ```
//!
//! The time is from `publish` until the subscriber has the message, or until the bare reader has the last byte. Both are measured in turns. Both sum
//! what they send and receive (CRC32C, the default), or neither does. The processor time is that of the receiving manager's threads, and of the bare
//! reader. A message is published when the one before has been taken ("back to back"), or 30 times a second, so that caches and clocks have cooled
//! down as beside a camera. Between the hosts is loopback, or, as root, the switch of two network namespaces.
//!
//! Peers carry the same messages from one process to another. Beside them, the processor time is that of both sides: ours of two managers, the
//! publishing thread and the subscriber, theirs of publisher and subscriber.

use std::path::Path;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Loan, Node, Publisher};
use rgaps_link::{Integrity, RingMemory};
use rgaps_os::clock;

use crate::host::{self, Host, Subscribers, free_ports};
use crate::link::{Bare, source, write};
use crate::measure::Pairs;
use crate::network::Network;
use crate::peers::{self, Failed, Peer};
use crate::results::{Figure, Part, Shape};
use crate::{BenchError, Bound, Effort, Options, Row, available_bytes, cpu};

const BENCH: &str = "e2e";
const TOPIC: &str = "bench/e2e";
/// Bytes, name, and rounds back to back.
const SIZES: [(u64, &str, usize); 5] = [
    (1 << 20, "1 MiB", 300),
    (4 << 20, "4 MiB", 200),
    (8 << 20, "8 MiB", 100),
    (64 << 20, "64 MiB", 60),
    (1 << 30, "1 GiB", 30),
];
/// The largest size that is also measured 30 times a second.
const CAMERA_BYTES_MAX: u64 = 8 << 20;
/// Time between two messages then.
const FRAME: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// The largest size that is measured beside peers.
const PEER_BYTES_MAX: u64 = 64 << 20;
const BACK_TO_BACK: &str = "back to back";
const CPU: &str = "both sides' CPU";
const MS: &str = "ms";
const CPU_UNIT: &str = "s/GB";
const BARE: &str = "bare socket";
const BARE_READER: &str = "bare reader";
/// Messages that may be under way: as many as our pool holds.
const DEPTH: u64 = 2;
/// Warm-up rounds, in which every page of the pools is written.
const WARM_UP: usize = 8;
/// How many times the message's bytes are needed: two pools of ours, source and memory of the bare socket.
const NEEDS: u64 = 10;
/// The promised bound, and that of the first message after a time without any.
const AT_MOST: Bound = Bound::AtMost(1.15);
const AT_MOST_WHEN_COLD: Bound = Bound::AtMost(1.5);
/// That time, and how many pairs of hosts spend it at once: each gives one figure.
const IDLENESS: Duration = Duration::from_secs(60);
const IDLE_PAIRS: usize = 8;

/// Each size over loopback, with and without checksums, back to back and 30 times a second; with checksums, which are the default, beside the peers,
/// too. Then the same with checksums between two network namespaces, if this machine and user can make them.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let mut part = Part::default();
    for integrity in [Integrity::Crc32c, Integrity::None] {
        part.extend(sizes(options, &Network::Loopback, integrity)?);
    }
    part.rows.extend(after_idleness(options)?);
    match Network::namespaces() {
        Ok(network) => part.extend(sizes(options, &network, Integrity::Crc32c)?),
        Err(why) => part.left_out.push(format!("e2e between network namespaces: {why}")),
    }
    Ok(part)
}

fn sizes(options: &Options, network: &Network, integrity: Integrity) -> Result<Part, BenchError> {
    let mut part = Part::default();
    let network_name = name_of_network(network);
    let title =
        format!("From publish to a subscriber on another host, over {network_name} (ours: {})", ours(integrity));
    let mut figure = Figure::new(title, "message", MS, Shape::Points);
    for (bytes, size, rounds) in SIZES {
        let size = Size { bytes, name: size, rounds: options.effort.rounds(rounds), integrity, network };
        if available_bytes() < NEEDS * bytes {
            part.leave_out(&format!("e2e {size}"), NEEDS * bytes);
            continue;
        }
        if !options.wants(&format!("{size}, ")) || !size.is_bound() && bytes > PEER_BYTES_MAX {
            continue;
        }
        let rows = beside_all(options, size)?;
        rows.iter().filter(|row| row.case == size.case(BACK_TO_BACK)).for_each(|row| figure.add(size.name, row));
        part.rows.extend(rows);
    }
    part.figures.push(figure);
    Ok(part)
}

/// Messages of one size.
#[derive(Clone, Copy)]
struct Size<'a> {
    bytes: u64,
    name: &'static str,
    /// Rounds back to back.
    rounds: usize,
    integrity: Integrity,
    network: &'a Network,
}

impl Size<'_> {
    /// The case in which a figure of it was found.
    fn case(&self, what: &str) -> String {
        format!("{self}, {what}")
    }

    /// Whether the project promises a bound: over loopback, whose figures do not depend on a switch.
    fn is_bound(&self) -> bool {
        matches!(self.network, Network::Loopback)
    }

    fn bound(&self) -> Option<Bound> {
        self.is_bound().then_some(AT_MOST)
    }

    /// Seconds of processor time for a GB, of rounds that took so many seconds.
    fn per_gigabyte(&self, rounds: usize, seconds: f64) -> f64 {
        seconds / ((self.bytes * rounds as u64) as f64 / 1e9)
    }
}

impl std::fmt::Display for Size<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let between = if self.is_bound() { String::new() } else { format!(" over {}", name_of_network(self.network)) };
        write!(f, "{}{between} (ours: {})", self.name, ours(self.integrity))
    }
}

fn name_of_network(network: &Network) -> &'static str {
    match network {
        Network::Loopback => "loopback",
        Network::Namespaces(_) => "two network namespaces",
    }
}

/// How our messages go. The bare socket is TCP, too, and sums as we do; a peer has its own transport, and no checksums.
fn ours(integrity: Integrity) -> &'static str {
    if integrity == Integrity::Crc32c { "tcp, crc32c" } else { "tcp, no checksums" }
}

fn beside_all(options: &Options, size: Size<'_>) -> Result<Vec<Row>, BenchError> {
    let mut journey = Journey::of(size)?;
    let mut rows = Vec::new();
    let is_of_bare = |only: &String| only.ends_with(BARE) || only.ends_with(BARE_READER);
    if options.only.as_ref().is_none_or(is_of_bare) {
        rows.extend(beside_bare(options.effort, size, &mut journey)?);
    }
    let Some(folder) = &options.peers else { return Ok(rows) };
    if size.integrity == Integrity::Crc32c && size.bytes <= PEER_BYTES_MAX {
        let wanted = |peer: &&Peer| options.only.as_ref().is_none_or(|only| only.ends_with(peer.name));
        for peer in peers::HOST_TO_HOST.iter().filter(wanted) {
            let found = beside_peer(folder, peer, size, &mut journey);
            let cases = [(size.case(BACK_TO_BACK), MS), (size.case(CPU), CPU_UNIT)];
            rows.extend(peers::rows(BENCH, &cases, peer, found)?);
        }
    }
    Ok(rows)
}

fn beside_bare(effort: Effort, size: Size<'_>, journey: &mut Journey) -> Result<Vec<Row>, BenchError> {
    let bytes = size.bytes;
    let mut reference = Reference::new(size)?;
    for _ in 0..WARM_UP {
        journey.round(bytes)?;
        reference.round(bytes)?;
    }
    let row = |pace: &str, pairs: &Pairs| Row::of_pairs((BENCH, size.case(pace)), BARE, MS, pairs, size.bound());
    let before = (journey.receiver_cpu_seconds()?, reference.bare.cpu_seconds());
    let pairs = Pairs::run(size.rounds, || journey.round(bytes), || reference.round(bytes))?;
    let after = (journey.receiver_cpu_seconds()?, reference.bare.cpu_seconds());
    let per_gigabyte = |seconds: f64| size.per_gigabyte(pairs.rounds(), seconds);
    let figures = (per_gigabyte(after.0 - before.0), per_gigabyte(after.1 - before.1));
    let cpu = Row::of((BENCH, size.case("receiver's CPU")), BARE_READER, CPU_UNIT, figures, size.bound());
    let mut rows = vec![row(BACK_TO_BACK, &pairs), cpu];
    if bytes <= CAMERA_BYTES_MAX {
        let mut frames = Frames(Instant::now());
        // In turns of frames, so that neither warms what the other uses.
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..effort.rounds(120) {
            frames.wait();
            ours.push(journey.round(bytes)?);
            frames.wait();
            theirs.push(reference.round(bytes)?);
        }
        rows.push(row("30 Hz", &Pairs::of(ours, theirs)));
    }
    Ok(rows)
}

/// The first message after a minute without any, on several pairs of hosts one after the other.
fn after_idleness(options: &Options) -> Result<Option<Row>, BenchError> {
    let (bytes, integrity, network) = (4 << 20, Integrity::Crc32c, &Network::Loopback);
    let size = Size { bytes, name: "4 MiB", rounds: IDLE_PAIRS, integrity, network };
    let case = size.case("the first one after a minute");
    if !options.wants(&case) {
        return Ok(None);
    }
    let (mut journeys, mut references) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        let (mut journey, mut reference) = (Journey::of(size)?, Reference::new(size)?);
        for _ in 0..WARM_UP {
            journey.round(bytes)?;
            reference.round(bytes)?;
        }
        journeys.push(journey);
        references.push(reference);
    }
    std::thread::sleep(IDLENESS);
    let (mut ours, mut theirs) = (0..size.rounds, 0..size.rounds);
    let pairs = Pairs::run(
        size.rounds,
        || ours.next().map_or(Ok(0.0), |number| journeys[number].round(bytes)),
        || theirs.next().map_or(Ok(0.0), |number| references[number].round(bytes)),
    )?;
    Ok(Some(Row::of_pairs((BENCH, case), BARE, MS, &pairs, Some(AT_MOST_WHEN_COLD))))
}

/// The time, and the processor time of all processes on both sides.
fn beside_peer(folder: &Path, peer: &Peer, size: Size<'_>, journey: &mut Journey) -> Result<Vec<Row>, Failed> {
    let load = peers::Load { bytes: size.bytes, read: false, count: 1, depth: DEPTH };
    let mut theirs = peers::Crowd::new(folder, peer, size.network, load).map_err(Failed::Peer)?;
    for _ in 0..WARM_UP {
        journey.round(size.bytes).map_err(Failed::Ours)?;
        theirs.round(1).map_err(Failed::Peer)?;
    }
    let used = |journey: &Journey, theirs: &peers::Crowd| {
        Ok((journey.cpu_seconds().map_err(Failed::Ours)?, theirs.cpu_seconds().map_err(Failed::Peer)?))
    };
    let before = used(journey, &theirs)?;
    let milliseconds = |us: f64| us / 1e3;
    let pairs = peers::pairs(size.rounds, || journey.round(size.bytes), || theirs.round(1).map(milliseconds))?;
    let after = used(journey, &theirs)?;
    let per_gigabyte = |seconds: f64| size.per_gigabyte(pairs.rounds(), seconds);
    let figures = (per_gigabyte(after.0 - before.0), per_gigabyte(after.1 - before.1));
    Ok(vec![
        Row::of_pairs((BENCH, size.case(BACK_TO_BACK)), peer.name, MS, &pairs, None),
        Row::of((BENCH, size.case(CPU)), peer.name, CPU_UNIT, figures, None),
    ])
}

/// A clock of 30 Hz.
struct Frames(Instant);

impl Frames {
    fn wait(&mut self) {
        self.0 = (self.0 + FRAME).max(Instant::now());
        std::thread::sleep(self.0.saturating_duration_since(Instant::now()));
    }
}

/// A publisher on one host, a subscriber process on another.
pub(crate) struct Journey {
    // In drop order: clients before their managers.
    publisher: Publisher<Bytes>,
    _node: Node,
    subscribers: Subscribers,
    hosts: [Host; 2],
    /// Processor time of this thread while it filled and published.
    publishing_seconds: f64,
}

impl Journey {
    fn of(size: Size<'_>) -> Result<Self, BenchError> {
        let integrity = if size.integrity == Integrity::Crc32c { "crc32c" } else { "none" };
        Self::new(size.network, size.bytes, |_| vec![("integrity", integrity.to_owned())])
    }

    /// Two hosts; `settings` gives what is particular to a side.
    pub(crate) fn new(
        network: &Network,
        bytes: u64,
        settings: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Result<Self, BenchError> {
        let ports = free_ports::<2>(BENCH)?;
        let start = |side: usize| {
            // The last one counts.
            let all = [network.settings(side, ports), settings(side)].concat();
            Host::start_by(BENCH, |program| network.command(side, program), &all)
        };
        let hosts = [start(0)?, start(1)?];
        let subscribers = hosts[1].subscribers(TOPIC, 1, true)?;
        let node = hosts[0].node()?;
        let publisher = host::publisher(BENCH, &node, TOPIC, bytes)?;
        host::wait_for_subscribers(BENCH, &publisher, 1)?;
        Ok(Self { publisher, _node: node, subscribers, hosts, publishing_seconds: 0.0 })
    }

    /// Of both managers, the publisher and the subscriber.
    fn cpu_seconds(&self) -> Result<f64, BenchError> {
        let managers = self.hosts[0].cpu_seconds()? + self.hosts[1].cpu_seconds()?;
        Ok(managers + self.publishing_seconds + self.subscribers.cpu_seconds()?)
    }

    fn receiver_cpu_seconds(&self) -> Result<f64, BenchError> {
        self.hosts[1].cpu_seconds()
    }

    /// One subscriber process more on each host.
    pub(crate) fn visitors(&self) -> Result<[Subscribers; 2], BenchError> {
        Ok([self.hosts[0].subscribers(TOPIC, 1, false)?, self.hosts[1].subscribers(TOPIC, 1, false)?])
    }

    /// The process numbers of both managers.
    pub(crate) fn manager_ids(&self) -> [u32; 2] {
        [self.hosts[0].id(), self.hosts[1].id()]
    }

    /// ms from `publish` to the subscriber. The block is written just before, as by a camera.
    pub(crate) fn round(&mut self, bytes: u64) -> Result<f64, BenchError> {
        let used = cpu::of_this_thread();
        let sequence = self.publisher.statistics().published + 1;
        let mut loan = self.loan(bytes)?;
        loan.fill(sequence as u8);
        host::mark(&mut loan, sequence);
        let start = clock::monotonic_ns();
        let published = loan.publish().map_err(failed)?.sequence;
        self.publishing_seconds += cpu::of_this_thread() - used;
        Ok(self.subscribers.latency(published, start)? / 1e3)
    }

    /// Seconds until the subscriber has the last of so many messages, published as soon as the pools have room. Only their ends are written.
    pub(crate) fn stream(&mut self, bytes: u64, count: u64) -> Result<f64, BenchError> {
        let start = clock::monotonic_ns();
        let mut last = self.publisher.statistics().published;
        for _ in 0..count {
            let mut loan = self.loan(bytes)?;
            host::mark(&mut loan, last + 1);
            last = loan.publish().map_err(failed)?.sequence;
        }
        Ok(self.subscribers.latency(last, start)? / 1e6)
    }

    fn loan(&self, bytes: u64) -> Result<Loan<Bytes>, BenchError> {
        self.publisher.loan(Bytes::new(bytes)).map_err(failed)
    }

    /// Messages that have arrived on the subscriber's host, and those of them that it copied from the ring.
    pub(crate) fn arrived(&self) -> Result<(u64, u64), BenchError> {
        let topics = self.hosts[1].node()?.topics().map_err(|error| BenchError::failed(BENCH, error))?;
        let links: Vec<String> = topics.into_iter().flat_map(|topic| topic.links).collect();
        let number_before =
            |what| links.iter().find_map(|link| link.split_once(what)?.0.rsplit(' ').next()?.parse().ok());
        let found = number_before(" messages, ").zip(number_before(" copied from the ring"));
        found.ok_or_else(|| BenchError::failed(BENCH, format!("no counters of an arrival in {links:?}")))
    }
}

fn failed(error: rgaps::PublishError) -> BenchError {
    BenchError::failed(BENCH, error)
}

/// The bare socket, with a source that is written just before.
struct Reference {
    source: std::sync::Arc<RingMemory>,
    bare: Bare,
}

impl Reference {
    fn new(Size { bytes, integrity, network, .. }: Size<'_>) -> Result<Self, BenchError> {
        Ok(Self { source: source(bytes)?, bare: Bare::over(network, 2 * bytes, integrity)? })
    }

    /// ms until the reader has all bytes.
    fn round(&mut self, bytes: u64) -> Result<f64, BenchError> {
        write(&self.source, bytes, 2)?;
        let data = self.source.mapping().shared(0, bytes);
        let data = data.map_err(|error| BenchError::failed(BENCH, error))?;
        Ok(self.bare.transfer(data)? * 1e3)
    }
}
