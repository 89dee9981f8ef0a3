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
use rgaps::{Node, Publisher};
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
/// The promised bound.
const AT_MOST: Bound = Bound::AtMost(1.15);

/// Each size over loopback, with and without checksums, back to back and 30 times a second; with checksums, which are the default, beside the peers,
/// too. Then the same with checksums between two network namespaces, if this machine and user can make them.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let mut part = Part::default();
    for integrity in [Integrity::Crc32c, Integrity::None] {
        part.extend(sizes(options, &Network::Loopback, integrity)?);
    }
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
    let mut journey = Journey::new(size)?;
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
struct Journey {
    // In drop order: clients before their managers.
    publisher: Publisher<Bytes>,
    _node: Node,
    subscribers: Subscribers,
    hosts: [Host; 2],
    /// Processor time of this thread while it filled and published.
    publishing_seconds: f64,
}

impl Journey {
    fn new(Size { bytes, integrity, network, .. }: Size<'_>) -> Result<Self, BenchError> {
        let ports = free_ports::<2>(BENCH)?;
        let integrity = if integrity == Integrity::Crc32c { "crc32c" } else { "none" };
        let start = |side: usize| {
            let settings = [&network.settings(side, ports)[..], &[("integrity", integrity.to_owned())]].concat();
            Host::start_by(BENCH, |program| network.command(side, program), &settings)
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

    /// ms from `publish` to the subscriber. The block is written just before, as by a camera.
    fn round(&mut self, bytes: u64) -> Result<f64, BenchError> {
        let failed = |error: rgaps::PublishError| BenchError::failed(BENCH, error);
        let used = cpu::of_this_thread();
        let sequence = self.publisher.statistics().published + 1;
        let mut loan = self.publisher.loan(Bytes::new(bytes)).map_err(failed)?;
        loan.fill(sequence as u8);
        host::mark(&mut loan, sequence);
        let start = clock::monotonic_ns();
        let receipt = loan.publish().map_err(failed)?;
        self.publishing_seconds += cpu::of_this_thread() - used;
        Ok(self.subscribers.latency(receipt.sequence, start)? / 1e3)
    }
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
