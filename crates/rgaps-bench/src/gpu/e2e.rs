//! `bench e2e --device cuda`: from a publisher's block on one host to N subscriber processes on another, all on one GPU.
//!
//! ```text
//!   ours       publisher ▶ rgapsd: pinned slots ══ tcp, loopback ══▶ rgapsd: pinned ring ─▶ pool ▶ N subscribers
//!   baseline   pageable copy ▶ Unix socket ▶ relay process ══ tcp, loopback ══▶ lander process ▶ N pageable copies
//! ```
//!
//! The time is the mean from `publish` until the subscribers have the message. For comparison, the stages alone: the copy to pinned slots, the link,
//! and the copy to the pool. Store-and-forward takes about their sum; with cut-through it should take little more than the slowest. The baseline
//! stores the whole message at each stop.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rgaps::device::{HostBuffer, Stream};
use rgaps::types::Bytes;
use rgaps::{Node, Publisher};
use rgaps_link::{Integrity, RingOptions};
use rgaps_os::clock;

use super::content::Content;
use super::copies::{Block, Pooling, Staging, pinned};
use super::crew::Crew;
use super::roles::{Payload, write_message};
use super::{MIB, Setup, WARM_UP, mean, publisher, row, size};
use crate::BenchError;
use crate::host::{self, Host, free_ports, loopback};
use crate::link::Bare;
use crate::measure::median;
use crate::results::{Figure, Part, Shape, Table, of_figures};
use crate::ring::Ring;
use crate::row::{Bound, Row};

const BENCH: &str = "e2e";
const TOPIC: &str = "bench/e2e";
/// The size with the promised bound.
const BOUND_BYTES: u64 = 1024 * MIB;

/// Each count and size against the stages and the baseline; Figure 4.6.
pub(super) fn run(setup: &Setup) -> Result<Part, BenchError> {
    let mut stages = Stages::new(setup)?;
    let mut found: Vec<Vec<Rounds>> = setup.sizes.iter().map(|_| Vec::new()).collect();
    for &count in &setup.counts {
        let mut journey = Journey::new(setup, count)?;
        let mut baseline = Baseline::new(setup, count)?;
        for (&bytes, found) in setup.sizes.iter().zip(&mut found) {
            for _ in 0..WARM_UP {
                journey.round(bytes)?;
                baseline.round(bytes)?;
                stages.round(bytes)?;
            }
            let mut rounds = Rounds { bytes, count, ours: Vec::new(), theirs: Vec::new(), stages: Vec::new() };
            for _ in 0..setup.rounds(bytes) {
                rounds.ours.push(journey.round(bytes)?);
                rounds.theirs.push(baseline.round(bytes)?);
                rounds.stages.push(stages.round(bytes)?);
            }
            found.push(rounds);
        }
    }
    let rows = found.iter().flatten().flat_map(Rounds::rows).collect();
    let letters = ["4.6 (a)", "4.6 (b)", "4.6 (c)"];
    let figures = found.iter().zip(letters).map(|(of_size, number)| figure(number, of_size)).collect();
    Ok(Part { rows, tables: vec![table(&setup.counts, &found)], figures, ..Part::default() })
}

fn table(counts: &[u64], found: &[Vec<Rounds>]) -> Table {
    let by_count = |who: &str| counts.iter().map(|count| format!("{who}, N = {count}")).collect::<Vec<_>>();
    let line = |of_size: &Vec<Rounds>| {
        let name = of_size.first().map(|rounds| size(rounds.bytes)).unwrap_or_default();
        let medians = |of: fn(&Rounds) -> &Vec<f64>| of_size.iter().map(move |rounds| median(of(rounds).clone()));
        (name, medians(|rounds| &rounds.ours).chain(medians(|rounds| &rounds.theirs)).collect())
    };
    Table {
        number: Some("4.6".into()),
        title: "from publish to the mean subscriber on the other host, over tcp and loopback (a figure in the paper)"
            .to_owned(),
        columns: [vec!["message".to_owned()], by_count("RGAPS"), by_count("baseline")].concat(),
        lines: of_figures(found.iter().map(line).collect()),
        unit: "us".into(),
    }
}

fn figure(number: &str, of_size: &[Rounds]) -> Figure {
    let bytes = of_size.first().map_or(0, |rounds| rounds.bytes);
    let medians =
        |of: fn(&Rounds) -> &Vec<f64>| of_size.iter().map(|rounds| Some(median(of(rounds).clone()))).collect();
    Figure {
        number: Some(number.to_owned()),
        title: format!("total latency, {}", size(bytes)),
        axis: "subscribers".into(),
        groups: of_size.iter().map(|rounds| rounds.count.to_string()).collect(),
        series: vec![
            ("RGAPS".to_owned(), medians(|rounds| &rounds.ours)),
            ("baseline".to_owned(), medians(|rounds| &rounds.theirs)),
        ],
        unit: "us".into(),
        shape: Shape::Bars,
    }
}

/// Rounds of a size and a count: µs to the mean subscriber.
struct Rounds {
    bytes: u64,
    count: u64,
    ours: Vec<f64>,
    theirs: Vec<f64>,
    stages: Vec<Stage>,
}

impl Rounds {
    fn rows(&self) -> Vec<Row> {
        let case = format!("{}, N = {}", size(self.bytes), self.count);
        let stages = |of: fn(&Stage) -> f64| self.stages.iter().map(of).collect::<Vec<_>>();
        let beside = |reference: &str, theirs: Vec<f64>, bound| {
            row(BENCH, case.clone(), reference, "us", (self.ours.clone(), theirs), bound)
        };
        let bound = (self.bytes == BOUND_BYTES).then_some(Bound::AtMost(1.25));
        vec![
            beside("slowest of the stages alone", stages(Stage::slowest), bound),
            beside("sum of the stages", stages(Stage::sum), None),
            beside("a bare socket", stages(|stage| stage.socket), None),
            beside("the baseline", self.theirs.clone(), None),
        ]
    }
}

/// The stages of a message, each alone: µs.
#[derive(Clone, Copy, Debug)]
struct Stage {
    staging: f64,
    link: f64,
    pooling: f64,
    socket: f64,
}

impl Stage {
    fn sum(&self) -> f64 {
        self.staging + self.link + self.pooling
    }

    fn slowest(&self) -> f64 {
        self.staging.max(self.link).max(self.pooling)
    }
}

struct Stages<'a> {
    setup: &'a Setup,
    block: Block,
    host: HostBuffer,
    staging: Staging,
    pooling: Pooling,
    stream: Stream,
    ring: Ring,
    bare: Bare,
    sequence: u64,
}

impl<'a> Stages<'a> {
    fn new(setup: &'a Setup) -> Result<Self, BenchError> {
        let (backend, chunk_bytes) = (&setup.backend, setup.chunk_bytes);
        Ok(Self {
            setup,
            block: Block::new(backend.as_ref(), setup.largest()).map_err(failed)?,
            host: pinned(backend.as_ref(), setup.largest()).map_err(failed)?,
            staging: Staging::new(backend, chunk_bytes).map_err(failed)?,
            pooling: Pooling::new(backend, chunk_bytes).map_err(failed)?,
            stream: backend.stream().map_err(failed)?,
            ring: Ring::tcp(RingOptions { chunk_bytes: chunk_bytes as u32, ..RingOptions::default() })?,
            bare: Bare::new(64 << 20, Integrity::None)?,
            sequence: 0,
        })
    }

    fn round(&mut self, bytes: u64) -> Result<Stage, BenchError> {
        self.sequence += 1;
        let content = Content { sequence: self.sequence, bytes };
        content.write(self.host.mapping(), 0).map_err(failed)?;
        let pooling = self.pooling.run(&self.host, self.block.part(), bytes).map_err(failed)?;
        content.check_on_device(self.setup.backend.as_ref(), &self.stream, self.block.part()).map_err(failed)?;
        let staging = self.staging.run(self.block.part(), content).map_err(failed)?;
        let data = self.host.mapping().shared(0, bytes).map_err(failed)?;
        let (link, socket) = (self.ring.transfer(data)? * 1e6, self.bare.transfer(data)? * 1e6);
        Ok(Stage { staging, link, pooling, socket })
    }
}

/// A publisher on one host, subscriber processes on another.
struct Journey<'a> {
    setup: &'a Setup,
    stream: Stream,
    // In drop order: clients before their managers.
    publisher: Publisher<Bytes>,
    _node: Node,
    subscribers: Crew,
    count: u64,
    _hosts: [Host; 2],
}

impl<'a> Journey<'a> {
    fn new(setup: &'a Setup, count: u64) -> Result<Self, BenchError> {
        let ports = free_ports::<2>(BENCH)?;
        let start = |own| setup.host(BENCH, &loopback(own, ports));
        let hosts = [start(0)?, start(1)?];
        let mut subscribers = Crew::new(BENCH, setup.largest())?;
        subscribers.add_takers(&hosts[1], &["subscriber"], TOPIC, count)?;
        let subscribers = subscribers.ready()?;
        let node = hosts[0].node()?;
        let publisher = publisher(BENCH, &node, TOPIC, setup.largest())?;
        // The other host counts as one subscriber.
        host::wait_for_subscribers(BENCH, &publisher, 1)?;
        let stream = setup.backend.stream().map_err(failed)?;
        Ok(Self { setup, stream, publisher, _node: node, subscribers, count, _hosts: hosts })
    }

    fn round(&mut self, bytes: u64) -> Result<f64, BenchError> {
        let mut loan = self.publisher.loan(Bytes::new(bytes)).map_err(failed)?;
        let content = Content { sequence: self.publisher.statistics().published + 1, bytes };
        let part = loan.part().map_err(failed)?;
        content.write_on_device(self.setup.backend.as_ref(), &self.stream, part).map_err(failed)?;
        let start = clock::monotonic_ns();
        let receipt = loan.publish().map_err(failed)?;
        Ok(mean(&self.subscribers.page().latencies(self.count, receipt.sequence, start)?))
    }
}

/// The paper's baselines, in sequence.
struct Baseline<'a> {
    setup: &'a Setup,
    stream: Stream,
    block: Block,
    pageable: Vec<u8>,
    socket: UnixStream,
    /// Copiers, relay, lander.
    crew: Crew,
    count: u64,
    sequence: u64,
    _payload: Payload,
}

impl<'a> Baseline<'a> {
    fn new(setup: &'a Setup, count: u64) -> Result<Self, BenchError> {
        let bytes = setup.largest();
        let system = BenchError::system(BENCH, "a socket");
        let payload = Payload::new(bytes)?;
        let (path, service) = (payload.path(), format!("rgaps/bench/{}/e2e/{count}", std::process::id()));
        let shared = ["--payload", &path, "--service", &service];
        let mut crew = Crew::new(BENCH, bytes)?;
        for _ in 0..count {
            crew.add(&[&["copier"], &shared[..], &["--device", &setup.device]].concat(), None, None)?;
        }
        let (socket, far) = UnixStream::pair().map_err(&system)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(&system)?;
        let near = TcpStream::connect(listener.local_addr().map_err(&system)?).map_err(&system)?;
        near.set_nodelay(true).map_err(&system)?;
        let (incoming, _) = listener.accept().map_err(&system)?;
        crew.add(&["relay", "--forward"], Some(OwnedFd::from(far)), Some(OwnedFd::from(near)))?;
        crew.add(&[&["lander"], &shared[..]].concat(), Some(OwnedFd::from(incoming)), None)?;
        Ok(Self {
            setup,
            stream: setup.backend.stream().map_err(failed)?,
            block: Block::new(setup.backend.as_ref(), bytes).map_err(failed)?,
            pageable: vec![1; bytes as usize],
            socket,
            crew: crew.ready()?,
            count,
            sequence: 0,
            _payload: payload,
        })
    }

    fn round(&mut self, bytes: u64) -> Result<f64, BenchError> {
        self.sequence += 1;
        let content = Content { sequence: self.sequence, bytes };
        content.write_on_device(self.setup.backend.as_ref(), &self.stream, self.block.part()).map_err(failed)?;
        let message = &mut self.pageable[..bytes as usize];
        let start = clock::monotonic_ns();
        self.setup.cuda().copy_to_pageable(self.block.part(), message).map_err(failed)?;
        write_message(&mut self.socket, content, message).map_err(BenchError::system(BENCH, "a Unix socket"))?;
        Ok(mean(&self.crew.page().latencies(self.count, self.sequence, start)?))
    }
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}
