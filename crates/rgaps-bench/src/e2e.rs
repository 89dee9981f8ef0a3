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
//! down as beside a camera.

use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Node, Publisher};
use rgaps_link::{Integrity, RingMemory};
use rgaps_os::clock;

use crate::host::{self, Host, Subscribers, free_ports, loopback};
use crate::link::{Bare, source, write};
use crate::measure::Pairs;
use crate::results::Part;
use crate::{BenchError, Bound, Effort, Options, Row, available_bytes};

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
/// Warm-up rounds, in which every page of the pools is written.
const WARM_UP: usize = 8;
/// How many times the message's bytes are needed: two pools of ours, source and memory of the bare socket.
const NEEDS: u64 = 10;
/// The promised bound.
const AT_MOST: Bound = Bound::AtMost(1.15);

/// Each size with and without checksums, back to back and 30 times a second.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let mut part = Part::default();
    for (bytes, name, rounds) in SIZES {
        if available_bytes() < NEEDS * bytes {
            part.leave_out(&format!("e2e {name}"), NEEDS * bytes);
            continue;
        }
        for integrity in [Integrity::Crc32c, Integrity::None] {
            part.rows.extend(case(options.effort, bytes, name, rounds, integrity)?);
        }
    }
    Ok(part)
}

fn case(effort: Effort, bytes: u64, name: &str, rounds: usize, integrity: Integrity) -> Result<Vec<Row>, BenchError> {
    let mut journey = Journey::new(bytes, integrity)?;
    let mut reference = Reference::new(bytes, integrity)?;
    for _ in 0..WARM_UP {
        journey.round(bytes)?;
        reference.round(bytes)?;
    }
    let before = (journey.receiver_cpu_seconds()?, reference.bare.cpu_seconds());
    let sums = if integrity == Integrity::Crc32c { "crc32c" } else { "no checksums" };
    let row = |pace: &str, pairs: &Pairs| {
        let case = format!("tcp {name}, {sums}, {pace}");
        Row::of_pairs((BENCH, case), "bare socket", "ms", pairs, Some(AT_MOST))
    };
    let pairs = Pairs::run(effort.rounds(rounds), || journey.round(bytes), || reference.round(bytes))?;
    let after = (journey.receiver_cpu_seconds()?, reference.bare.cpu_seconds());
    let gigabytes = (bytes * effort.rounds(rounds) as u64) as f64 / 1e9;
    let (ours, theirs) = ((after.0 - before.0) / gigabytes, (after.1 - before.1) / gigabytes);
    let case = format!("tcp {name}, {sums}, receiver's CPU");
    let cpu = Row::of((BENCH, case), "bare reader", "s/GB", (ours, theirs), Some(AT_MOST));
    let mut rows = vec![row("back to back", &pairs), cpu];
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
}

impl Journey {
    fn new(bytes: u64, integrity: Integrity) -> Result<Self, BenchError> {
        let ports = free_ports::<2>(BENCH)?;
        let integrity = if integrity == Integrity::Crc32c { "crc32c" } else { "none" };
        let start = |own: usize| {
            let settings = [("integrity", integrity.to_owned())];
            Host::start(BENCH, &[&loopback(own, ports)[..], &settings].concat())
        };
        let hosts = [start(0)?, start(1)?];
        let subscribers = hosts[1].subscribers(TOPIC, 1, true)?;
        let node = hosts[0].node()?;
        let publisher = host::publisher(BENCH, &node, TOPIC, bytes)?;
        host::wait_for_subscribers(BENCH, &publisher, 1)?;
        Ok(Self { publisher, _node: node, subscribers, hosts })
    }

    fn receiver_cpu_seconds(&self) -> Result<f64, BenchError> {
        self.hosts[1].cpu_seconds()
    }

    /// ms from `publish` to the subscriber. The block is written just before, as by a camera.
    fn round(&mut self, bytes: u64) -> Result<f64, BenchError> {
        let failed = |error: rgaps::PublishError| BenchError::failed(BENCH, error);
        let sequence = self.publisher.statistics().published + 1;
        let mut loan = self.publisher.loan(Bytes::new(bytes)).map_err(failed)?;
        loan.fill(sequence as u8);
        host::mark(&mut loan, sequence);
        let start = clock::monotonic_ns();
        let receipt = loan.publish().map_err(failed)?;
        Ok(self.subscribers.latency(receipt.sequence, start)? / 1e3)
    }
}

/// The bare socket, with a source that is written just before.
struct Reference {
    source: std::sync::Arc<RingMemory>,
    bare: Bare,
}

impl Reference {
    fn new(bytes: u64, integrity: Integrity) -> Result<Self, BenchError> {
        Ok(Self { source: source(bytes)?, bare: Bare::new(2 * bytes, integrity)? })
    }

    /// ms until the reader has all bytes.
    fn round(&mut self, bytes: u64) -> Result<f64, BenchError> {
        write(&self.source, bytes, 2)?;
        let data = self.source.mapping().shared(0, bytes);
        let data = data.map_err(|error| BenchError::failed(BENCH, error))?;
        Ok(self.bare.transfer(data)? * 1e3)
    }
}
