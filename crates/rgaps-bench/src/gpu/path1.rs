//! `bench path1`: from a publisher's block to pinned host memory in another process.
//!
//! Ours: the publisher loans a block, which a camera or a kernel would fill, and publishes it. A stager process wakes and copies it through a few
//! pinned slots with the manager's own state machine (rgaps-device/src/copy); each slot is free again at once. (In rgapsd, the link would set the
//! pace.) For comparison, in the same process: one bare asynchronous copy of the same block into pinned memory of the same size. The baseline is the
//! paper's: the publisher copies to pageable memory and writes that to a Unix socket, from which the other process reads it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rgaps::Publisher;
use rgaps::device::Stream;
use rgaps::types::Bytes;
use rgaps_os::clock;

use super::content::Content;
use super::copies::{Block, Staging, bare_to_host, pinned, since};
use super::crew::Crew;
use super::roles::write_message;
use super::{LARGE, Setup, WARM_UP, publisher, rates, row, scan, size};
use crate::measure::median;
use crate::results::{Part, Table, of_figures};
use crate::row::{Bound, Row};
use crate::{BenchError, host};

const BENCH: &str = "path1";
const TOPIC: &str = "bench/path1";
const BARE: &str = "bare pinned cuMemcpyDtoHAsync";

/// Each size: the copy against a bare one, the path against the baseline's; Tables 4.2 and 4.3.
pub(super) fn run(setup: &Setup) -> Result<Part, BenchError> {
    let host = setup.host(BENCH, &[("listen", "tcp/127.0.0.1:0".to_owned())])?;
    let node = host.node()?;
    let mut stager = Crew::new(BENCH, setup.largest())?;
    let chunk_bytes = setup.chunk_bytes.to_string();
    stager.add_takers(&host, &["stager", "--chunk-bytes", &chunk_bytes], TOPIC, 1)?;
    let publisher = publisher(BENCH, &node, TOPIC, setup.largest())?;
    host::wait_for_subscribers(BENCH, &publisher, 1)?;
    let stream = setup.backend.stream().map_err(failed)?;
    let mut ours = Ours { setup, stream, publisher, stager: stager.ready()? };
    let mut baseline = Baseline::new(setup)?;
    let mut part = Part::default();
    let mut lines = (Vec::new(), Vec::new());
    for &bytes in &setup.sizes {
        for _ in 0..WARM_UP {
            ours.round(bytes)?;
            baseline.round(bytes)?;
        }
        let (mut us, mut them) = (Vec::new(), Vec::new());
        for _ in 0..setup.rounds(bytes) {
            us.push(ours.round(bytes)?);
            them.push(baseline.round(bytes)?);
        }
        part.rows.extend(rows(bytes, &us, &them));
        let of = |field: fn(&Sample) -> f64| median(us.iter().map(field).collect());
        lines.0.push((size(bytes), vec![of(|s| s.malloc), of(|s| s.copy), of(|s| s.notify)]));
        let of = |field: fn(&BaselineSample) -> f64| median(them.iter().map(field).collect());
        lines.1.push((size(bytes), vec![of(|s| s.copy), of(|s| s.socket)]));
    }
    part.rows.extend(chunks(setup)?);
    part.tables.push(Table {
        number: Some("4.2".into()),
        title: "data path 1, ours: TLSF, pinned copy, shared-memory notification".to_owned(),
        columns: ["message", "T1: TLSF malloc", "T2: copy", "T3: notification"].map(str::to_owned).to_vec(),
        lines: of_figures(lines.0),
        unit: "us".into(),
    });
    part.tables.push(Table {
        number: Some("4.3".into()),
        title: "data path 1, baseline: pageable copy, Unix socket".to_owned(),
        columns: ["message", "T1: copy", "T2: Unix socket"].map(str::to_owned).to_vec(),
        lines: of_figures(lines.1),
        unit: "us".into(),
    });
    Ok(part)
}

fn rows(bytes: u64, ours: &[Sample], baseline: &[BaselineSample]) -> Vec<Row> {
    let of = |field: fn(&Sample) -> f64| rates(bytes, ours.iter().map(field));
    let whole = (of(Sample::whole), rates(bytes, baseline.iter().map(|sample| sample.copy + sample.socket)));
    let at_least = (bytes >= LARGE).then_some(Bound::AtLeast(1.8));
    vec![
        row(
            BENCH,
            format!("copy {}", size(bytes)),
            BARE,
            "GB/s",
            (of(|s| s.copy), of(|s| s.bare)),
            Some(Bound::AtLeast(0.97)),
        ),
        row(BENCH, format!("path 1 {}", size(bytes)), "pageable copy and Unix socket", "GB/s", whole, at_least),
    ]
}

/// The copy alone, in chunks of several lengths.
fn chunks(setup: &Setup) -> Result<Vec<Row>, BenchError> {
    let (backend, bytes) = (&setup.backend, setup.largest());
    let (block, stream) = (Block::new(backend.as_ref(), bytes).map_err(failed)?, backend.stream().map_err(failed)?);
    let whole = pinned(backend.as_ref(), bytes).map_err(failed)?;
    let content = Content { sequence: 1, bytes };
    content.write_on_device(backend.as_ref(), &stream, block.part()).map_err(failed)?;
    scan(setup, BENCH, BARE, |chunk_bytes| {
        let staging = Staging::new(backend, chunk_bytes).map_err(failed)?;
        let (block, stream, whole) = (&block, &stream, &whole);
        Ok(move || {
            let ours = staging.run(block.part(), content).map_err(failed)?;
            let bare = bare_to_host(backend.as_ref(), stream, block.part(), whole, bytes).map_err(failed)?;
            Ok((ours, bare))
        })
    })
}

/// µs of a round.
#[derive(Clone, Copy, Debug)]
struct Sample {
    malloc: f64,
    copy: f64,
    notify: f64,
    bare: f64,
}

impl Sample {
    fn whole(&self) -> f64 {
        self.malloc + self.copy + self.notify
    }
}

struct Ours<'a> {
    setup: &'a Setup,
    stream: Stream,
    // Dropped before its stager is killed.
    publisher: Publisher<Bytes>,
    stager: Crew,
}

impl Ours<'_> {
    fn round(&mut self, bytes: u64) -> Result<Sample, BenchError> {
        let backend = self.setup.backend.as_ref();
        let start = clock::monotonic_ns();
        let mut loan = self.publisher.loan(Bytes::new(bytes)).map_err(failed)?;
        let malloc = since(start);
        let content = Content { sequence: self.publisher.statistics().published + 1, bytes };
        content.write_on_device(backend, &self.stream, loan.part().map_err(failed)?).map_err(failed)?;
        let start = clock::monotonic_ns();
        let receipt = loan.publish().map_err(failed)?;
        let notify = self.stager.page().latency(1, receipt.sequence, start)?;
        let [copy, bare, ..] = self.stager.page().proof(0).map(|ns| ns as f64 / 1e3);
        Ok(Sample { malloc, copy, notify, bare })
    }
}

#[derive(Clone, Copy, Debug)]
struct BaselineSample {
    copy: f64,
    socket: f64,
}

/// The baseline: a block of the publisher, pageable memory, and a process at the other end of a socket.
struct Baseline<'a> {
    setup: &'a Setup,
    stream: Stream,
    block: Block,
    pageable: Vec<u8>,
    socket: UnixStream,
    sink: Crew,
    sequence: u64,
}

impl<'a> Baseline<'a> {
    fn new(setup: &'a Setup) -> Result<Self, BenchError> {
        let bytes = setup.largest();
        let (socket, far) = UnixStream::pair().map_err(BenchError::system(BENCH, "a Unix socket"))?;
        let mut sink = Crew::new(BENCH, bytes)?;
        sink.add(&["relay"], Some(OwnedFd::from(far)), None)?;
        let block = Block::new(setup.backend.as_ref(), bytes).map_err(failed)?;
        let (stream, pageable) = (setup.backend.stream().map_err(failed)?, vec![1; bytes as usize]);
        Ok(Self { setup, stream, block, pageable, socket, sink: sink.ready()?, sequence: 0 })
    }

    fn round(&mut self, bytes: u64) -> Result<BaselineSample, BenchError> {
        self.sequence += 1;
        let content = Content { sequence: self.sequence, bytes };
        let backend = self.setup.backend.as_ref();
        content.write_on_device(backend, &self.stream, self.block.part()).map_err(failed)?;
        let message = &mut self.pageable[..bytes as usize];
        let start = clock::monotonic_ns();
        self.setup.cuda().copy_to_pageable(self.block.part(), message).map_err(failed)?;
        let copy = since(start);
        let start = clock::monotonic_ns();
        write_message(&mut self.socket, content, message).map_err(BenchError::system(BENCH, "a Unix socket"))?;
        let socket = self.sink.page().latency(1, self.sequence, start)?;
        Ok(BaselineSample { copy, socket })
    }
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}
