//! `bench path3`: from pinned host memory, where a message has arrived, to subscriber processes.
//!
//! Ours: the bench acts as the manager. It loans a block, copies the message into it once, chunk by chunk with the manager's own state machine
//! (rgaps-device/src/copy), and publishes; N processes take it in place. For comparison: one bare asynchronous copy of the same bytes from the same
//! pinned memory. The baseline is the paper's: iceoryx2 notifies N processes that the message is in host shared memory, and each makes a pageable
//! copy to its own device memory, all at once. iceoryx2's own sample bookkeeping is left out, in the baseline's favour.

use std::cell::Cell;
use std::collections::BTreeSet;

use rgaps::Publisher;
use rgaps::device::{HostBuffer, Stream};
use rgaps::types::Bytes;
use rgaps_os::clock;
use rgaps_shm::notify::Wake;

use super::bell::{BELL, waking};
use super::content::Content;
use super::copies::{Block, Pooling, bare_to_device, pinned, since};
use super::crew::Crew;
use super::roles::Payload;
use super::{LARGE, Setup, WARM_UP, mean, publisher, rates, row, scan, size};
use crate::BenchError;
use crate::host::{self, Host};
use crate::measure::median;
use crate::results::{Figure, Part, Shape, Table, of_figures};
use crate::row::{Bound, Row};

const BENCH: &str = "path3";
const BARE: &str = "bare pinned cuMemcpyHtoDAsync";
/// A message that triggers everything done at a first message, and needs hardly any memory.
const SMALL: u64 = 4096;

/// Each count and size: the copy against a bare one, the path against the baseline's, the last subscriber against an only one; Tables 4.4 and
/// 4.5, Figures 4.3 to 4.5.
pub(super) fn run(setup: &Setup) -> Result<Part, BenchError> {
    let host = setup.host(BENCH, &[("listen", "tcp/127.0.0.1:0".to_owned())])?;
    let inlet = Inlet::new(setup)?;
    let mut found: Vec<Vec<Rounds>> = setup.sizes.iter().map(|_| Vec::new()).collect();
    let mut part = Part::default();
    for &count in &setup.counts {
        let mut fan = Fan::new(setup, &host, &inlet, count, "")?;
        let mut baseline = Baseline::new(setup, count)?;
        for (&bytes, found) in setup.sizes.iter().zip(&mut found) {
            for _ in 0..WARM_UP {
                fan.round(bytes)?;
                baseline.round(bytes)?;
            }
            let mut rounds = Rounds { bytes, count, ours: Vec::new(), theirs: Vec::new() };
            for _ in 0..setup.rounds(bytes) {
                rounds.ours.push(fan.round(bytes)?);
                rounds.theirs.push(baseline.round(bytes)?);
            }
            found.push(rounds);
        }
    }
    for of_size in &found {
        part.rows.extend(copy_row(of_size));
        part.rows.extend(of_size.iter().map(Rounds::row));
    }
    part.rows.extend(chunks(&inlet)?);
    part.rows.extend(fan_out(setup, &host, &inlet)?);
    part.tables = tables(&setup.counts, &found);
    let numbers = ["4.3", "4.4", "4.5"];
    part.figures = found.iter().zip(numbers).map(|(of_size, number)| figure(number, of_size)).collect();
    Ok(part)
}

/// All rounds of a size, for every number of subscribers: the copy does not depend on it.
fn copy_row(of_size: &[Rounds]) -> Option<Row> {
    let bytes = of_size.first()?.bytes;
    let of = |field: fn(&Sample) -> f64| rates(bytes, of_size.iter().flat_map(|rounds| &rounds.ours).map(field));
    let figures = (of(|s| s.copy), of(|s| s.bare));
    let case = format!("copy {}", size(bytes));
    Some(row(BENCH, case, BARE, "GB/s", figures, Some(Bound::AtLeast(0.97))))
}

/// The copy alone, in chunks of several lengths.
fn chunks(inlet: &Inlet<'_>) -> Result<Vec<Row>, BenchError> {
    let Inlet { setup, arrived, block, stream, .. } = inlet;
    let (backend, bytes) = (&setup.backend, setup.largest());
    let sequence = Cell::new(0);
    scan(setup, BENCH, BARE, |chunk_bytes| {
        let pooling = Pooling::new(backend, chunk_bytes).map_err(failed)?;
        let sequence = &sequence;
        Ok(move || {
            sequence.set(sequence.get() + 1);
            let content = Content { sequence: sequence.get(), bytes };
            content.write(arrived.mapping(), 0).map_err(failed)?;
            let ours = pooling.run(arrived, block.part(), bytes).map_err(failed)?;
            content.check_on_device(backend.as_ref(), stream, block.part()).map_err(failed)?;
            let bare = bare_to_device(backend.as_ref(), stream, arrived, block.part(), bytes).map_err(failed)?;
            Ok((ours, bare))
        })
    })
}

fn tables(counts: &[u64], found: &[Vec<Rounds>]) -> Vec<Table> {
    let by_count = |step: &str| counts.iter().map(|count| format!("{step}, N = {count}")).collect::<Vec<_>>();
    let column = |text: &str| vec![text.to_owned()];
    let ours = |of_size: &Vec<Rounds>| {
        let all = |field: fn(&Sample) -> f64| {
            median(of_size.iter().flat_map(|rounds| rounds.ours.iter().map(field)).collect())
        };
        let notify = of_size.iter().map(|rounds| median(rounds.ours.iter().map(|s| mean(&s.notify)).collect()));
        let line = [all(|s| s.malloc), all(|s| s.copy)].into_iter().chain(notify).collect();
        (of_size.first().map(|rounds| size(rounds.bytes)).unwrap_or_default(), line)
    };
    let theirs = |of_size: &Vec<Rounds>| {
        let step = |field: fn(&BaselineSample) -> f64| {
            of_size.iter().map(move |rounds| median(rounds.theirs.iter().map(field).collect()))
        };
        let line = step(|s| mean(&s.publish)).chain(step(|s| mean(&s.copy))).collect();
        (of_size.first().map(|rounds| size(rounds.bytes)).unwrap_or_default(), line)
    };
    vec![
        Table {
            number: Some("4.4".into()),
            title: "data path 3, ours: TLSF, one pinned copy, notification of N subscribers (mean)".to_owned(),
            columns: [column("message"), column("T1: TLSF malloc"), column("T2: copy"), by_count("T3: notification")]
                .concat(),
            lines: of_figures(found.iter().map(ours).collect()),
            unit: "us".into(),
        },
        Table {
            number: Some("4.5".into()),
            title: format!("data path 3, baseline: told by {BELL}, a pageable copy for each of N subscribers (mean)"),
            columns: [column("message"), by_count("T1: publish"), by_count("T2: copy")].concat(),
            lines: of_figures(found.iter().map(theirs).collect()),
            unit: "us".into(),
        },
    ]
}

/// The baseline's copy, for each subscriber separately.
fn figure(number: &str, of_size: &[Rounds]) -> Figure {
    let most = of_size.iter().map(|rounds| rounds.count).max().unwrap_or(0);
    let each = |rounds: &Rounds| {
        let of = |slot: usize| median(rounds.theirs.iter().filter_map(|s| s.copy.get(slot).copied()).collect());
        (format!("N = {}", rounds.count), (0..rounds.count as usize).map(of).map(Some).collect())
    };
    let bytes = of_size.first().map_or(0, |rounds| rounds.bytes);
    Figure {
        number: Some(number.to_owned()),
        title: format!("the baseline's copy to the device, of each subscriber ({})", size(bytes)),
        axis: "subscriber".into(),
        groups: (1..=most).map(|subscriber| subscriber.to_string()).collect(),
        series: of_size.iter().map(each).collect(),
        unit: "us".into(),
        shape: Shape::Bars,
    }
}

/// The last of the most subscribers against an only one, in turns, and the device memory of a message.
fn fan_out(setup: &Setup, host: &Host, inlet: &Inlet<'_>) -> Result<Vec<Row>, BenchError> {
    let (bytes, most) = (setup.largest(), setup.most());
    let mut fans = [Fan::new(setup, host, inlet, 1, "_alone")?, Fan::new(setup, host, inlet, most, "_most")?];
    let mut used = [0.0; 2];
    for (fan, used) in fans.iter_mut().zip(&mut used) {
        fan.round(SMALL)?;
        let (before, _) = setup.cuda().gpu().memory().map_err(failed)?;
        fan.round(bytes)?;
        let (after, _) = setup.cuda().gpu().memory().map_err(failed)?;
        *used = before.saturating_sub(after) as f64 / f64::from(1 << 20);
    }
    let (mut alone, mut last) = (Vec::new(), Vec::new());
    for _ in 0..setup.rounds(bytes) {
        let [one, many] = &mut fans;
        alone.push(one.round(bytes)?.last());
        last.push(many.round(bytes)?.last());
    }
    let name = size(bytes);
    let mut rows = vec![row(
        BENCH,
        format!("take {name}, the last of N = {most}"),
        "N = 1",
        "us",
        (last, alone),
        Some(Bound::AtMost(1.2)),
    )];
    // A shorter message may fit into memory that every pool has anyway.
    if bytes >= LARGE {
        let case = format!("device memory of {name}, N = {most}");
        let used = (vec![used[1]], vec![used[0]]);
        rows.push(row(BENCH, case, "N = 1", "MiB", used, Some(Bound::AtMost(1.05))));
    }
    let [_, many] = &fans;
    rows.push(row(
        BENCH,
        format!("places of {name}, N = {most}"),
        "one block, read in place",
        "places",
        (vec![many.places() as f64], vec![1.0]),
        Some(Bound::AtMost(1.0)),
    ));
    Ok(rows)
}

/// Rounds of a size and a count.
struct Rounds {
    bytes: u64,
    count: u64,
    ours: Vec<Sample>,
    theirs: Vec<BaselineSample>,
}

impl Rounds {
    /// Messages a second for the mean subscriber, against the baseline's.
    fn row(&self) -> Row {
        let ours = rates(self.bytes, self.ours.iter().map(|s| s.malloc + s.copy + mean(&s.notify)));
        let theirs = rates(self.bytes, self.theirs.iter().map(|s| mean(&s.publish) + mean(&s.copy)));
        let bound = (self.bytes >= LARGE && self.count == 8).then_some(Bound::AtLeast(8.0));
        let case = format!("path 3 {}, N = {}", size(self.bytes), self.count);
        row(BENCH, case, "a pageable copy for each", "GB/s", (ours, theirs), bound)
    }
}

/// µs of a round.
#[derive(Clone, Debug)]
struct Sample {
    malloc: f64,
    copy: f64,
    bare: f64,
    /// For each subscriber.
    notify: Vec<f64>,
}

impl Sample {
    /// Until the last subscriber has it.
    fn last(&self) -> f64 {
        self.malloc + self.copy + self.notify.iter().copied().fold(0.0, f64::max)
    }
}

/// The memory in which messages arrive, and the target of a bare copy.
struct Inlet<'a> {
    setup: &'a Setup,
    arrived: HostBuffer,
    pooling: Pooling,
    block: Block,
    stream: Stream,
}

impl<'a> Inlet<'a> {
    fn new(setup: &'a Setup) -> Result<Self, BenchError> {
        let backend = &setup.backend;
        Ok(Self {
            setup,
            arrived: pinned(backend.as_ref(), setup.largest()).map_err(failed)?,
            pooling: Pooling::new(backend, setup.chunk_bytes).map_err(failed)?,
            block: Block::new(backend.as_ref(), setup.largest()).map_err(failed)?,
            stream: backend.stream().map_err(failed)?,
        })
    }
}

/// A topic with N subscriber processes.
struct Fan<'a> {
    inlet: &'a Inlet<'a>,
    publisher: Publisher<Bytes>,
    subscribers: Crew,
    count: u64,
    sequence: u64,
}

impl<'a> Fan<'a> {
    fn new(setup: &Setup, host: &Host, inlet: &'a Inlet<'a>, count: u64, name: &str) -> Result<Self, BenchError> {
        let topic = format!("bench/path3_{count}{name}");
        let mut subscribers = Crew::new(BENCH, setup.largest())?;
        subscribers.add_takers(host, &["subscriber"], &topic, count)?;
        let publisher = publisher(BENCH, &host.node()?, &topic, setup.largest())?;
        host::wait_for_subscribers(BENCH, &publisher, count as usize)?;
        Ok(Self { inlet, publisher, subscribers: subscribers.ready()?, count, sequence: 0 })
    }

    fn round(&mut self, bytes: u64) -> Result<Sample, BenchError> {
        let Inlet { setup, arrived, pooling, block, stream } = self.inlet;
        self.sequence += 1;
        let content = Content { sequence: self.sequence, bytes };
        content.write(arrived.mapping(), 0).map_err(failed)?;
        let bare = || bare_to_device(setup.backend.as_ref(), stream, arrived, block.part(), bytes).map_err(failed);
        // In turns, so that neither is always the one that finds the message in a cache.
        let before = self.sequence.is_multiple_of(2).then(bare).transpose()?;
        let start = clock::monotonic_ns();
        let mut loan = self.publisher.loan(Bytes::new(bytes)).map_err(failed)?;
        let malloc = since(start);
        let copy = pooling.run(arrived, loan.part().map_err(failed)?, bytes).map_err(failed)?;
        let start = clock::monotonic_ns();
        let receipt = loan.publish().map_err(failed)?;
        let notify = self.subscribers.page().latencies(self.count, receipt.sequence, start)?;
        let bare = before.map_or_else(bare, Ok)?;
        Ok(Sample { malloc, copy, bare, notify })
    }

    /// How many places in memory the subscribers had the last message at.
    fn places(&self) -> usize {
        let places = (0..self.count).map(|slot| self.subscribers.page().proof(slot));
        places.collect::<BTreeSet<_>>().len()
    }
}

/// µs of a round, for each subscriber.
#[derive(Clone, Debug)]
struct BaselineSample {
    publish: Vec<f64>,
    copy: Vec<f64>,
}

struct Baseline {
    payload: Payload,
    copiers: Crew,
    bell: Box<dyn Wake>,
    count: u64,
    sequence: u64,
}

impl Baseline {
    fn new(setup: &Setup, count: u64) -> Result<Self, BenchError> {
        let payload = Payload::new(setup.largest())?;
        let service = format!("rgaps/bench/{}/path3/{count}", std::process::id());
        let mut copiers = Crew::new(BENCH, setup.largest())?;
        let path = payload.path();
        for _ in 0..count {
            let device = ["--device", &setup.device];
            copiers.add(&[&["copier", "--payload", &path, "--service", &service], &device[..]].concat(), None, None)?;
        }
        let copiers = copiers.ready()?;
        let bell = waking(copiers.page(), &service)?;
        Ok(Self { payload, copiers, bell, count, sequence: 0 })
    }

    fn round(&mut self, bytes: u64) -> Result<BaselineSample, BenchError> {
        self.sequence += 1;
        let content = Content { sequence: self.sequence, bytes };
        self.payload.write(content)?;
        let page = self.copiers.page();
        let start = clock::monotonic_ns();
        self.payload.announce(page, content, self.bell.as_mut())?;
        page.latencies(self.count, self.sequence, start)?;
        let told = (0..self.count).map(|slot| page.proof(slot));
        let (publish, copy) = told.map(|[at, ns, ..]| (at.saturating_sub(start) as f64 / 1e3, ns as f64 / 1e3)).unzip();
        Ok(BaselineSample { publish, copy })
    }
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}
