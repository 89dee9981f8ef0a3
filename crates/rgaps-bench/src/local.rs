//! `bench local`: from a publisher to N subscriber processes on the same host, which read the whole message, against a warm floor and iceoryx2.
//!
//! ```text
//!   ours      loan, fill │ publish ─▶ wait ─▶ take ─▶ read every cache line │ drop
//!   floor     fill one memfd │ wake one futex ─▶ read every cache line of it
//!   iceoryx2  loan, fill │ send, notify ─▶ listen ─▶ receive ─▶ read every cache line │ drop
//! ```
//!
//! The time goes from the first bar to the second one in the median process. The floor writes the same memory each time, as no middleware can that
//! lets a subscriber keep a message. Small messages are only received. All take turns, round by round; a round ends when all processes have reported.
//!
//! A round of a burst fills and publishes many messages, each with its wake-up, or in batches (`publish_all`, `take_all`) with one for each batch. Its
//! figure is their rate. Only the floor loses messages.

use std::path::Path;

use rgaps::Node;

use crate::crowd::{BATCH, BENCH, Crowd, Load, System};
use crate::host::Host;
use crate::measure::Pairs;
use crate::network::Network;
use crate::peers::{self, Failed, Peer};
use crate::results::{Figure, Part, Shape};
use crate::{BenchError, Bound, Options, Row, available_bytes};

const COUNTS: [u64; 2] = [1, 8];
/// Bytes, name, whether subscribers read the bytes, rounds, and the promised bound against the floor.
const CASES: [(u64, &str, bool, usize, f64); 3] = [
    (1 << 10, "1 KiB received", false, 1000, 1.3),
    (4 << 20, "4 MiB read", true, 400, 1.15),
    (64 << 20, "64 MiB read", true, 40, 1.15),
];
/// Bytes, name, and messages of a burst: whole batches.
const RATES: [(u64, &str, u64); 3] = [(64, "64 B", 4992), (1 << 10, "1 KiB", 4992), (16 << 10, "16 KiB", 1984)];
const BURSTS: usize = 80;
/// Messages of a burst that may be under way; a publisher waits for its slowest subscriber then.
const DEPTH: u64 = 256;
/// How many times a message's bytes are needed.
const NEEDS: u64 = 12;
const WARM_UP: usize = 5;

/// Each size and count: the time of a message that goes alone, then how many go in a second; beside the floor, iceoryx2 and the peers.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let host = Host::start(BENCH, &[("network", "local".to_owned())])?;
    let (bench, mut part) = (Local { node: host.node()?, host, options }, Part::default());
    for count in COUNTS {
        let trials = CASES.map(|(bytes, size, read, rounds, bound)| {
            let load = Load { bytes, read, count, depth: 2 };
            let (case, rounds) = (format!("{size} N={count}"), options.effort.rounds(rounds));
            Trial { case, size, load, rounds, burst: 1, bound: Some(bound) }
        });
        part.extend(bench.trials(&format!("From publish to the median subscriber on one host, N = {count}"), &trials)?);
    }
    for count in COUNTS {
        let trials = RATES.map(|(bytes, size, burst)| {
            let load = Load { bytes, read: false, count, depth: DEPTH };
            let (case, rounds) = (format!("{size} in bursts, N={count}"), options.effort.rounds(BURSTS));
            Trial { case, size, load, rounds, burst, bound: None }
        });
        part.extend(bench.trials(&format!("Messages in a second on one host, N = {count}"), &trials)?);
        for trial in trials {
            let case = format!("{} in batches of {BATCH}, N={count}", trial.size);
            part.rows.extend(bench.in_batches(&Trial { case, ..trial })?);
        }
    }
    Ok(part)
}

struct Local<'a> {
    // In drop order: clients before their manager.
    node: Node,
    host: Host,
    options: &'a Options,
}

/// What is measured in turns with each reference.
struct Trial {
    case: String,
    /// For the figure.
    size: &'static str,
    load: Load,
    rounds: usize,
    /// Messages of a round: alone, its time is the figure; in a burst, their rate.
    burst: u64,
    /// The promised bound against the floor.
    bound: Option<f64>,
}

impl Trial {
    fn unit(&self) -> &'static str {
        if self.burst == 1 { "us to the median subscriber" } else { "messages/s" }
    }

    /// The figure of a round that took so many µs.
    fn figure(&self, us: f64) -> f64 {
        if self.burst == 1 { us } else { self.burst as f64 / us * 1e6 }
    }

    fn row(&self, reference: &str, pairs: &Pairs, bound: Option<f64>) -> Row {
        Row::of_pairs((BENCH, self.case.clone()), reference, self.unit(), pairs, bound.map(Bound::AtMost))
    }
}

impl Local<'_> {
    /// Trials that differ in size, with their figure.
    fn trials(&self, title: &str, trials: &[Trial]) -> Result<Part, BenchError> {
        let mut part = Part::default();
        let unit = trials.first().map_or("", Trial::unit);
        let mut figure = Figure::new(title.to_owned(), "message", unit, Shape::Points);
        for trial in trials {
            let needed_bytes = NEEDS * trial.load.bytes;
            if available_bytes() < needed_bytes {
                part.leave_out(&format!("local {}", trial.case), needed_bytes);
                continue;
            }
            let rows = self.beside_all(trial)?;
            rows.iter().for_each(|row| figure.add(trial.size, row));
            part.rows.extend(rows);
        }
        part.figures.push(figure);
        Ok(part)
    }

    /// A trial beside every reference.
    fn beside_all(&self, trial: &Trial) -> Result<Vec<Row>, BenchError> {
        let mut rows = Vec::new();
        if !self.options.wants(&trial.case) {
            return Ok(rows);
        }
        let wants = |reference: &str| self.options.wants(&format!("{} beside {reference}", trial.case));
        let mut ours = self.crowd(System::Rgaps, trial)?;
        let floor = if trial.burst == 1 { "warm floor" } else { "floor of one message" };
        if wants(floor) {
            rows.push(self.beside(floor, System::Floor, trial, &mut ours, trial.bound)?);
        }
        #[cfg(feature = "iceoryx2")]
        if wants("iceoryx2") {
            rows.push(self.beside("iceoryx2", System::Iceoryx2, trial, &mut ours, trial.bound.map(|_| 1.0))?);
        }
        #[cfg(not(feature = "iceoryx2"))]
        if wants("iceoryx2") {
            let named = (BENCH, trial.case.clone());
            rows.push(Row::missing(named, "iceoryx2", trial.unit(), "built without the feature iceoryx2"));
        }
        let Some(folder) = &self.options.peers else { return Ok(rows) };
        for peer in peers::LOCAL.iter().filter(|peer| wants(peer.name)) {
            let found = beside_peer(folder, peer, trial, &mut ours);
            rows.extend(peers::rows(BENCH, &[(trial.case.clone(), trial.unit())], peer, found)?);
        }
        Ok(rows)
    }

    /// Bursts in batches beside bursts one by one.
    fn in_batches(&self, trial: &Trial) -> Result<Option<Row>, BenchError> {
        let reference = "one by one";
        if !self.options.wants(&format!("{} beside {reference}", trial.case)) {
            return Ok(None);
        }
        let mut ours = self.crowd(System::RgapsInBatches, trial)?;
        self.beside(reference, System::Rgaps, trial, &mut ours, None).map(Some)
    }

    fn crowd(&self, system: System, trial: &Trial) -> Result<Crowd, BenchError> {
        Crowd::new(&self.host, &self.node, system, trial.load)
    }

    fn beside(
        &self,
        reference: &str,
        system: System,
        trial: &Trial,
        ours: &mut Crowd,
        bound: Option<f64>,
    ) -> Result<Row, BenchError> {
        let mut theirs = self.crowd(system, trial)?;
        for _ in 0..WARM_UP {
            ours.round(trial.burst)?;
            theirs.round(trial.burst)?;
        }
        let pairs = Pairs::run(trial.rounds, || ours.round(trial.burst), || theirs.round(trial.burst));
        Ok(trial.row(reference, &pairs?.map(|us| trial.figure(us)), bound))
    }
}

fn beside_peer(folder: &Path, peer: &Peer, trial: &Trial, ours: &mut Crowd) -> Result<Vec<Row>, Failed> {
    let Load { bytes, read, count, depth } = trial.load;
    let theirs = peers::Crowd::new(folder, peer, &Network::Loopback, peers::Load { bytes, read, count, depth });
    let mut theirs = theirs.map_err(Failed::Peer)?;
    for _ in 0..WARM_UP {
        ours.round(trial.burst).map_err(Failed::Ours)?;
        theirs.round(trial.burst).map_err(Failed::Peer)?;
    }
    let pairs = peers::pairs(trial.rounds, || ours.round(trial.burst), || theirs.round(trial.burst))?;
    Ok(vec![trial.row(peer.name, &pairs.map(|us| trial.figure(us)), None)])
}
