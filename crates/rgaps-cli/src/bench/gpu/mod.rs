//! The benches of a GPU: paths 1 and 3, asynchronous publishing, and the way from host to host, beside bare copies and the paper's baselines.
//!
//! ```text
//!   path1    publisher ──the block──▶ stager process: through pinned slots           pageable copy, Unix socket
//!   path3    pinned memory ──one copy──▶ pool, N subscriber processes read it        N pageable copies behind iceoryx2
//!   e2e      publisher ▶ manager ══ tcp, loopback ══▶ manager ▶ N subscribers        all of the baselines, one behind the other
//! ```
//!
//! `roles` are the processes, `copies` what they measure, `content` what they check in every message, `report` what is printed and written.
//! Each ratio is of runs that took turns. On the tests' stand-in for libcuda nothing is measured: it is refused, or tried without times.

mod bell;
mod content;
mod copies;
mod crew;
mod e2e;
mod path1;
mod path3;
mod plot;
mod publish;
mod report;
mod roles;

use std::path::PathBuf;
use std::sync::Arc;

use rgaps::device::cuda::{CudaBackend, Properties};
use rgaps::device::{Backend, Choice};
use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, PublisherQos};
use rgaps_control::Config;

pub use roles::{RoleArgs, run as run_role};

use self::report::{Circumstances, Report};
use super::host::Host;
use super::measure::Pairs;
use super::page::PATIENCE;
use super::{BenchError, Bound, Effort, Row, available_bytes, print};
use crate::CommandError;
use crate::output::{self, Format};

/// What the stand-in for libcuda says its devices' name is (a test compares it with rgaps-standin-cuda).
pub const STANDIN_NAME: &str = "RGAPS stand-in (no GPU)";
/// Set in tests: on the stand-in everything runs at small sizes, is checked, and is printed without times.
pub const TRIAL: &str = "RGAPS_TEST_BENCH_TRIAL";

const MIB: u64 = 1 << 20;
const SIZES: [u64; 3] = [4 * MIB, 64 * MIB, 1024 * MIB];
/// Subscriber processes.
const COUNTS: [u64; 4] = [1, 2, 4, 8];
const TRIAL_SIZES: [u64; 3] = [MIB / 16, MIB, 3 * MIB];
const TRIAL_COUNTS: [u64; 2] = [1, 2];
const TRIAL_CHUNK_BYTES: u64 = MIB / 4;
/// Chunks that are tried beside the configured length.
const CHUNKS: [u64; 4] = [MIB / 4, MIB, 4 * MIB, 16 * MIB];
/// From this size on the promises against the baselines hold.
const LARGE: u64 = 64 * MIB;
/// Before it counts, every page of every memory has been touched, and every pool has its slabs.
const WARM_UP: usize = 2;
/// What the driver keeps for itself in each process.
const CONTEXT_BYTES: u64 = 600 * MIB;

/// Arguments of the benches of a GPU.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// A folder for the run as gpu-bench.md, a section of docs/gpu-runs.md, and gpu-bench.html, with plots.
    #[arg(long, global = true)]
    out: Option<PathBuf>,
    /// What was built, for the report.
    #[arg(long, global = true, default_value = "unknown")]
    commit: String,
}

/// One of the benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// From a publisher's block to pinned memory in the manager's place.
    Path1,
    /// From pinned memory to subscribers.
    Path3,
    /// The time that asynchronous publishing takes of the CPU.
    Publish,
    /// From host to host.
    E2e,
}

/// Everything, in the order of the report.
pub const ALL: [What; 4] = [What::Path1, What::Publish, What::Path3, What::E2e];

/// Runs benches of a GPU, prints what they found, and writes it where that was asked for.
pub fn run(
    what: &[What],
    device: Choice,
    arguments: &Arguments,
    effort: Effort,
    format: Format,
) -> Result<(), CommandError> {
    let setup = Setup::new(device, effort)?;
    let mut report = Report::new(Circumstances::now(&setup, &arguments.commit));
    for what in what {
        let found = match what {
            What::Path1 => path1::run(&setup),
            What::Path3 => path3::run(&setup),
            What::Publish => publish::run(&setup),
            What::E2e => e2e::run(&setup),
        };
        match found {
            Ok(found) => {
                if format == Format::Human || setup.is_trial {
                    found.print(setup.is_trial);
                }
                report.part.extend(found);
            }
            // What the others find is worth no less.
            Err(error) => report.failures.push(error.to_string()),
        }
        // After each, so that a run that is cut off has not been for nothing.
        if let Some(folder) = arguments.out.as_ref().filter(|_| !setup.is_trial) {
            report.write(folder)?;
        }
    }
    if setup.is_trial && report.failures.is_empty() {
        output::line("a trial on the stand-in for libcuda: every message was checked, nothing was measured");
        return Ok(());
    }
    if format == Format::Json && !setup.is_trial {
        output::json(&report);
    }
    if !report.failures.is_empty() {
        return Err(CommandError::Other(report.failures.join("\n")));
    }
    match report.part.rows.iter().filter(|row| !row.holds()).count() {
        0 => Ok(()),
        broken => Err(CommandError::Other(format!("{broken} of {} ratios miss their bound", report.part.rows.len()))),
    }
}

/// What all of the benches share.
struct Setup {
    backend: Arc<dyn Backend>,
    properties: Properties,
    /// The device as configurations name it.
    device: String,
    sizes: Vec<u64>,
    counts: Vec<u64>,
    /// What there is too little memory for, in words.
    left_out: Vec<String>,
    chunk_bytes: u64,
    effort: Effort,
    is_trial: bool,
}

/// Bytes that a run has to have.
#[derive(Clone, Copy, Debug)]
struct Needs {
    device: u64,
    host: u64,
}

impl Needs {
    /// For messages of that length and so many subscribers.
    fn of(bytes: u64, count: u64) -> Self {
        // Each baseline subscriber has a copy; pools of two hosts and a block of our own. Twice as many processes.
        Self { device: bytes * (count + 6) + CONTEXT_BYTES * 2 * count, host: bytes * 8 + 2048 * MIB }
    }
}

impl Setup {
    /// Opens the device. Refuses host memory, and the stand-in if it is not to be tried.
    fn new(device: Choice, effort: Effort) -> Result<Self, BenchError> {
        let chosen = rgaps::device::open(device).map_err(failed)?;
        let device = chosen.as_choice().to_string();
        let Some(properties) = chosen.backend.as_cuda().map(|cuda| cuda.gpu().properties().clone()) else {
            return Err(failed(format!("this bench is of a GPU, and messages lie in {}", chosen.reason)));
        };
        let is_trial = is_trial(&properties.name, std::env::var_os(TRIAL).is_some())?;
        let (sizes, counts, chunk_bytes) = match is_trial {
            true => (TRIAL_SIZES.to_vec(), TRIAL_COUNTS.to_vec(), TRIAL_CHUNK_BYTES),
            false => (SIZES.to_vec(), COUNTS.to_vec(), Config::default().chunk_bytes),
        };
        let backend = chosen.backend;
        let left_out = Vec::new();
        let mut setup = Self { backend, properties, device, sizes, counts, left_out, chunk_bytes, effort, is_trial };
        if !is_trial {
            setup.leave_out_what_does_not_fit()?;
        }
        Ok(setup)
    }

    fn leave_out_what_does_not_fit(&mut self) -> Result<(), BenchError> {
        let (free, _) = self.cuda().gpu().memory().map_err(failed)?;
        let host = available_bytes();
        let lacks = |bytes: u64, count: u64| {
            let needs = Needs::of(bytes, count);
            let has_room = needs.device <= free && needs.host <= host;
            let (needed, there) = ([needs.device, needs.host], [free, host]);
            let [[device, host], [free, available]] = [needed, there].map(|of| of.map(|bytes| bytes / MIB));
            (!has_room).then(|| {
                format!(
                    "messages of {} for {count} subscribers: {device} MiB of the device are needed and {free} free, \
                     {host} MiB of the host and {available}",
                    size(bytes)
                )
            })
        };
        // Fewer subscribers first, then shorter messages.
        let left_out = &mut self.left_out;
        self.counts.retain(|count| lacks(SIZES[0], *count).map(|why| left_out.push(why)).is_none());
        let Some(&most) = self.counts.last() else {
            return Err(failed(format!("too little memory for {}", self.left_out[0])));
        };
        self.sizes.retain(|bytes| lacks(*bytes, most).map(|why| left_out.push(why)).is_none());
        self.left_out.iter().for_each(|why| tracing::warn!("left out: {why}"));
        Ok(())
    }

    fn cuda(&self) -> &CudaBackend {
        match self.backend.as_cuda() {
            Some(cuda) => cuda,
            None => unreachable!("no other backend was accepted"),
        }
    }

    /// The most subscribers.
    fn most(&self) -> u64 {
        self.counts.last().copied().unwrap_or(1)
    }

    /// The longest message.
    fn largest(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// Rounds for messages of that length.
    fn rounds(&self, bytes: u64) -> usize {
        let rounds = match bytes {
            _ if self.is_trial => 2,
            bytes if bytes < LARGE => self.effort.rounds(60),
            bytes if bytes < 512 * MIB => self.effort.rounds(30),
            _ => self.effort.rounds(8),
        };
        // As many in which ours goes first as others.
        rounds.next_multiple_of(2)
    }

    /// A manager on the device, with these keys of the configuration beside what all have.
    fn host(&self, bench: &'static str, more: &[(&str, String)]) -> Result<Host, BenchError> {
        let ours = [("device", self.device.clone()), ("chunk_bytes", self.chunk_bytes.to_string())];
        Host::start(bench, &[&ours, more].concat())
    }
}

/// Whether it is the stand-in and may be tried; an error if it may not.
fn is_trial(name: &str, is_asked_for: bool) -> Result<bool, BenchError> {
    match (name == STANDIN_NAME, is_asked_for) {
        (true, false) => Err(failed(format!(
            "{name} is the tests' stand-in for libcuda: its times say nothing of a GPU, and are never measured"
        ))),
        (is_standin, _) => Ok(is_standin),
    }
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed("gpu", cause)
}

/// A publisher whose pool has room for one message, and for the blocks of others beside it: subscribers have released the last one before
/// the next is loaned.
fn publisher(bench: &'static str, node: &Node, topic: &str, bytes: u64) -> Result<Publisher<Bytes>, BenchError> {
    let qos = PublisherQos {
        pool_bytes: Some((bytes + bytes / 4 + MIB).next_multiple_of(4096)),
        exhaustion: Exhaustion::Wait { timeout_ms: PATIENCE.as_millis() as u64 },
        ..PublisherQos::default()
    };
    node.publisher_with(topic, qos).map_err(|error| BenchError::failed(bench, error))
}

/// Figures that were taken in turns, as a line.
fn row(
    bench: &'static str,
    case: String,
    reference: &str,
    unit: &'static str,
    (ours, theirs): (Vec<f64>, Vec<f64>),
    bound: Option<Bound>,
) -> Row {
    let medians = Pairs::of(ours, theirs).medians();
    let reference = reference.to_owned();
    Row { bench, case, reference, unit, ours: medians.ours, theirs: medians.theirs, ratio: medians.ratio, bound }
}

/// GB/s of messages of one length, each of which took so many µs.
fn rates(bytes: u64, us: impl IntoIterator<Item = f64>) -> Vec<f64> {
    us.into_iter().map(|us| bytes as f64 / us / 1e3).collect()
}

/// The copy of the longest message in chunks of several lengths beside a bare one, without bound: what a better default would be.
/// `with_chunks` makes what measures, for chunks of that length: µs of ours, and of the bare copy.
fn scan<M: FnMut() -> Result<(f64, f64), BenchError>>(
    setup: &Setup,
    bench: &'static str,
    reference: &str,
    with_chunks: impl Fn(u64) -> Result<M, BenchError>,
) -> Result<Vec<Row>, BenchError> {
    let bytes = setup.largest();
    let of_length = |chunk_bytes| {
        let mut measure = with_chunks(chunk_bytes)?;
        measure()?;
        let figures: Result<Vec<_>, _> = (0..setup.rounds(bytes)).map(|_| measure()).collect();
        let (ours, bare): (Vec<_>, Vec<_>) = figures?.into_iter().unzip();
        let case = format!("copy {} in chunks of {}", size(bytes), size(chunk_bytes));
        Ok(row(bench, case, reference, "GB/s", (rates(bytes, ours), rates(bytes, bare)), None))
    };
    CHUNKS.into_iter().map(of_length).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// A length for people: 4 MiB, 64 MiB, 1 GiB.
fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1024 * MIB => format!("{} GiB", bytes / (1024 * MIB)),
        bytes if bytes >= MIB => format!("{} MiB", bytes / MIB),
        bytes => format!("{} KiB", bytes / 1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_is_known_by_its_name_and_measured_never() {
        assert_eq!(STANDIN_NAME, rgaps_standin_cuda::DEVICE_NAME);
        assert!(is_trial(STANDIN_NAME, false).unwrap_err().to_string().contains("stand-in"));
        assert!(is_trial(STANDIN_NAME, true).unwrap());
        for asked in [false, true] {
            assert!(!is_trial("NVIDIA GeForce RTX 3090", asked).unwrap());
        }
    }

    #[test]
    fn what_a_run_needs_is_what_its_page_says() {
        let page = include_str!("../../../../../docs/gpu-runs.md");
        for count in COUNTS {
            let needs =
                SIZES.map(|bytes| format!("{:.1} GiB", Needs::of(bytes, count).device as f64 / (1024 * MIB) as f64));
            let line = format!("| {count} | {} |", needs.join(" | "));
            assert!(page.contains(&line), "{line}");
        }
    }

    #[test]
    fn lengths_and_rates_are_as_people_write_them() {
        assert_eq!(SIZES.map(size), ["4 MiB", "64 MiB", "1 GiB"]);
        assert_eq!(size(MIB / 16), "64 KiB");
        assert_eq!(rates(1_000_000_000, [1_000_000.0, 500_000.0]), [1.0, 2.0]);
        assert_eq!(mean(&[1.0, 3.0]), 2.0);
    }
}
