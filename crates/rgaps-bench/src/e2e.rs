//! `bench e2e`: from one host to a subscriber process on another, cut-through against store-and-forward.
//!
//! ```text
//!   publisher ─▶ manager A ══ loopback ══▶ manager B: ring ─copy─▶ pool ─▶ subscriber process
//! ```
//!
//! Two pairs of managers on loopback addresses run at once and take turns. They differ in `chunk_bytes` alone. With 1 MiB, a chunk is copied to the
//! pool while the next one arrives. With more than the whole message, the copy starts when all of it has arrived. The time is from `publish` until
//! the subscriber has the message. For comparison, without bound: the stages alone, one copy of the message in memory, and its transfer through one
//! bare socket. Store-and-forward takes about their sum; no path through both takes much less than the slower one.

use std::hint::black_box;

use rgaps::types::Bytes;
use rgaps::{Node, Publisher};
use rgaps_link::RingMemory;
use rgaps_os::clock;

use crate::host::{self, Host, Subscribers, free_ports, loopback};
use crate::link::{Bare, source, write};
use crate::measure::{Pairs, seconds};
use crate::{BenchError, Bound, Effort, Row, available_bytes};

const BENCH: &str = "e2e";
const TOPIC: &str = "bench/e2e";
const SIZES: [(u64, &str); 2] = [(4 << 20, "4 MiB"), (64 << 20, "64 MiB")];
/// The size with the promised bound, and the largest.
const BYTES: u64 = 64 << 20;
/// Rings of both pairs: room for whole messages of the largest size.
const RING_BYTES: u64 = 256 << 20;
/// The configuration's default.
const CHUNK_BYTES: u64 = 1 << 20;
/// The largest chunk that a ring with a watermark of an eighth allows: more than the largest message.
const WHOLE_BYTES: u64 = (RING_BYTES - RING_BYTES / 8) / 2 - 64;
/// Warm-up rounds, in which every page of rings and pools is written.
const WARM_UP: usize = 8;
/// Pools, rings and sources of both pairs together, with a margin.
const NEEDS_BYTES: u64 = 3 << 30;

/// Each size: cut-through against store-and-forward, and against its stages.
pub fn run(effort: Effort) -> Result<Vec<Row>, BenchError> {
    if available_bytes() < NEEDS_BYTES {
        tracing::warn!("e2e is left out: it needs {} GiB of free memory", NEEDS_BYTES >> 30);
        return Ok(Vec::new());
    }
    let mut cut_through = Journey::new(CHUNK_BYTES)?;
    let mut store_and_forward = Journey::new(WHOLE_BYTES)?;
    let mut stages = Stages::new()?;
    let mut rows = Vec::new();
    for (bytes, name) in SIZES {
        for _ in 0..WARM_UP {
            cut_through.round(bytes)?;
            store_and_forward.round(bytes)?;
            stages.round(bytes)?;
        }
        rows.extend(size(effort, bytes, name, &mut cut_through, &mut store_and_forward, &mut stages)?);
    }
    Ok(rows)
}

fn size(
    effort: Effort,
    bytes: u64,
    name: &str,
    cut_through: &mut Journey,
    store_and_forward: &mut Journey,
    stages: &mut Stages,
) -> Result<Vec<Row>, BenchError> {
    let (mut sums, mut slowest, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let pairs = Pairs::run(
        effort.rounds(60),
        || {
            let stage = stages.round(bytes)?;
            sums.push(stage.sum());
            slowest.push(stage.slowest());
            let took = cut_through.round(bytes)?;
            ours.push(took);
            Ok(took)
        },
        || store_and_forward.round(bytes),
    )?;
    let row = |reference: &str, pairs: Pairs, bound| {
        let medians = pairs.medians();
        Row {
            bench: BENCH,
            case: format!("cut-through {name}"),
            reference: reference.to_owned(),
            unit: "ms",
            ours: medians.ours,
            theirs: medians.theirs,
            ratio: medians.ratio,
            bound,
        }
    };
    Ok(vec![
        row("store-and-forward", pairs, (bytes == BYTES).then_some(Bound::AtMost(1.0))),
        row("sum of memcpy and bare socket", Pairs::of(ours.clone(), sums), None),
        row("slowest of memcpy and bare socket", Pairs::of(ours, slowest), None),
    ])
}

/// A publisher on one host, a subscriber process on another.
struct Journey {
    // In drop order: clients before their managers.
    publisher: Publisher<Bytes>,
    _node: Node,
    subscribers: Subscribers,
    _hosts: [Host; 2],
}

impl Journey {
    fn new(chunk_bytes: u64) -> Result<Self, BenchError> {
        let ports = free_ports::<2>(BENCH)?;
        let start = |own: usize| {
            let ring = [("ring_bytes", RING_BYTES.to_string()), ("chunk_bytes", chunk_bytes.to_string())];
            Host::start(BENCH, &[&loopback(own, ports)[..], &ring].concat())
        };
        let hosts = [start(0)?, start(1)?];
        let subscribers = hosts[1].subscribers(TOPIC, 1, true)?;
        let node = hosts[0].node()?;
        let publisher = host::publisher(BENCH, &node, TOPIC, BYTES)?;
        host::wait_for_subscribers(BENCH, &publisher, 1)?;
        Ok(Self { publisher, _node: node, subscribers, _hosts: hosts })
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

/// The stages of the message, each alone: ms.
#[derive(Clone, Copy)]
struct Stage {
    memcpy: f64,
    socket: f64,
}

impl Stage {
    fn sum(self) -> f64 {
        self.memcpy + self.socket
    }

    fn slowest(self) -> f64 {
        self.memcpy.max(self.socket)
    }
}

struct Stages {
    from: std::sync::Arc<RingMemory>,
    to: std::sync::Arc<RingMemory>,
    bare: Bare,
}

impl Stages {
    fn new() -> Result<Self, BenchError> {
        Ok(Self { from: source(BYTES)?, to: source(BYTES)?, bare: Bare::new()? })
    }

    fn round(&mut self, bytes: u64) -> Result<Stage, BenchError> {
        let failed = |error: rgaps_os::OutOfRange| BenchError::failed(BENCH, error);
        // Just written, like the message that takes the whole path.
        write(&self.from, bytes, 2)?;
        let mut copied = Ok(());
        let memcpy = seconds(|| copied = black_box(self.to.mapping().copy_from(0, self.from.mapping(), 0, bytes)));
        copied.map_err(failed)?;
        let data = self.from.mapping().shared(0, bytes).map_err(failed)?;
        let socket = self.bare.transfer(data)?;
        Ok(Stage { memcpy: memcpy * 1e3, socket: socket * 1e3 })
    }
}
