//! The GPU benches: paths 1 and 3, asynchronous publishing, and host to host, against bare copies and the paper's baselines.
//!
//! ```text
//!   path1    publisher ──the block──▶ stager process: through pinned slots           pageable copy, Unix socket
//!   path3    pinned memory ──one copy──▶ pool, N subscriber processes read it        N pageable copies behind iceoryx2
//!   e2e      publisher ▶ manager ══ tcp, loopback ══▶ manager ▶ N subscribers        all of the baselines, one behind the other
//! ```
//!
//! `roles` has the processes, `copies` the timed copies, `content` the check of every message. Each ratio is of runs that took
//! turns. The tests' stand-in for libcuda is never measured: a bench refuses it, or makes a trial without times.

mod bell;
mod content;
mod copies;
mod crew;
mod e2e;
mod path1;
mod path3;
mod publish;
mod roles;

use std::sync::Arc;

use rgaps::device::cuda::{CudaBackend, Device, Properties, uuid_text};
use rgaps::device::{Backend, Choice};
use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, PublisherQos};
use rgaps_command::output;
use rgaps_control::Config;

pub use roles::{RoleArgs, run as run_role};

use crate::host::Host;
use crate::measure::Pairs;
use crate::page::PATIENCE;
use crate::report::Gpu;
use crate::results::Part;
use crate::{BenchError, Bound, Effort, Row, available_bytes, paper_values};

/// The device name of the stand-in for libcuda (a test compares it with rgaps-standin-cuda).
pub const STANDIN_NAME: &str = "RGAPS stand-in (no GPU)";
/// Set in tests: the benches run on the stand-in with small sizes, check every message, and print no times.
pub const TRIAL: &str = "RGAPS_TEST_BENCH_TRIAL";

const MIB: u64 = 1 << 20;
const SIZES: [u64; 3] = [4 * MIB, 64 * MIB, 1024 * MIB];
/// Numbers of subscriber processes.
const COUNTS: [u64; 4] = [1, 2, 4, 8];
const TRIAL_SIZES: [u64; 3] = [MIB / 16, MIB, 3 * MIB];
const TRIAL_COUNTS: [u64; 2] = [1, 2];
const TRIAL_CHUNK_BYTES: u64 = MIB / 4;
/// Chunk lengths tried beside the configured one.
const CHUNKS: [u64; 4] = [MIB / 4, MIB, 4 * MIB, 16 * MIB];
/// The bounds against the baselines apply from this size on.
const LARGE: u64 = 64 * MIB;
/// Warm-up rounds: every page is touched, and every pool has its slabs.
const WARM_UP: usize = 2;
/// Memory that the driver uses in each process.
const CONTEXT_BYTES: u64 = 600 * MIB;

/// One of the benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// From a publisher's block to pinned memory in the manager's place.
    Path1,
    /// From pinned memory to subscribers.
    Path3,
    /// The CPU time of asynchronous publishing.
    Publish,
    /// From host to host.
    E2e,
}

/// All of them, in the order of the report.
pub const ALL: [What; 4] = [What::Path1, What::Publish, What::Path3, What::E2e];

impl What {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Path1 => "path1",
            Self::Path3 => "path3",
            Self::Publish => "publish",
            Self::E2e => "e2e",
        }
    }
}

/// Runs one of the benches.
pub(crate) fn run(setup: &Setup, what: What) -> Result<Part, BenchError> {
    let part = match what {
        What::Path1 => path1::run(setup),
        What::Path3 => path3::run(setup),
        What::Publish => publish::run(setup),
        What::E2e => e2e::run(setup),
    }?;
    // The sizes of a trial are not the paper's.
    Ok(if setup.is_trial() { part } else { paper_values::add_paper_values(part) })
}

/// State shared by the benches.
pub(crate) struct Setup {
    backend: Arc<dyn Backend>,
    properties: Properties,
    /// The device, as named in configurations.
    device: String,
    sizes: Vec<u64>,
    counts: Vec<u64>,
    /// Cases left out for want of memory, as texts.
    left_out: Vec<String>,
    chunk_bytes: u64,
    effort: Effort,
    is_trial: bool,
}

/// Bytes that a run needs.
#[derive(Clone, Copy, Debug)]
struct Needs {
    device: u64,
    host: u64,
}

impl Needs {
    /// For messages of this length and this many subscribers.
    fn of(bytes: u64, count: u64) -> Self {
        // Each baseline subscriber has a copy; two hosts have pools, and the bench a block. Twice as many processes.
        Self { device: bytes * (count + 6) + CONTEXT_BYTES * 2 * count, host: bytes * 8 + 2048 * MIB }
    }
}

impl Setup {
    /// Opens the device. Refuses host memory, and the stand-in unless this is a trial.
    pub(crate) fn new(device: Choice, effort: Effort) -> Result<Self, BenchError> {
        let chosen = rgaps::device::open(device).map_err(failed)?;
        let device = chosen.as_choice().to_string();
        let Some(properties) = chosen.backend.as_cuda().map(|cuda| cuda.gpu().properties().clone()) else {
            return Err(failed(format!("this bench needs a GPU, but messages are in {}", chosen.reason)));
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
        // Reduce the subscribers first, then the lengths.
        let left_out = &mut self.left_out;
        self.counts.retain(|count| lacks(SIZES[0], *count).map(|why| left_out.push(why)).is_none());
        let Some(&most) = self.counts.last() else {
            return Err(failed(format!("too little memory for {}", self.left_out[0])));
        };
        self.sizes.retain(|bytes| lacks(*bytes, most).map(|why| left_out.push(why)).is_none());
        self.left_out.iter().for_each(|why| tracing::warn!("left out: {why}"));
        Ok(())
    }

    /// The device, as named in configurations.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Whether the device is the tests' stand-in for libcuda.
    pub(crate) fn is_trial(&self) -> bool {
        self.is_trial
    }

    /// Cases left out for want of memory.
    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The device, for the report.
    pub(crate) fn gpu(&self) -> Gpu {
        let found = &self.properties;
        let cuda = Device::driver_version().map_or_else(|why| why, |(major, minor)| format!("CUDA {major}.{minor}"));
        let driver = std::fs::read_to_string("/sys/module/nvidia/version");
        let driver = driver.unwrap_or_else(|_| "of an unknown version".to_owned());
        let memory = output::bytes(found.memory_bytes as f64);
        let (major, minor) = found.capability;
        Gpu {
            device: format!("{}, {memory}, compute {major}.{minor}, {}", found.name, uuid_text(found.id)),
            driver: format!("{}, {cuda}", driver.trim()),
        }
    }

    fn cuda(&self) -> &CudaBackend {
        match self.backend.as_cuda() {
            Some(cuda) => cuda,
            None => unreachable!("no other backend was accepted"),
        }
    }

    /// The largest number of subscribers.
    fn most(&self) -> u64 {
        self.counts.last().copied().unwrap_or(1)
    }

    /// The longest message.
    fn largest(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// Rounds for messages of this length.
    fn rounds(&self, bytes: u64) -> usize {
        let rounds = match bytes {
            _ if self.is_trial => 2,
            bytes if bytes < LARGE => self.effort.rounds(60),
            bytes if bytes < 512 * MIB => self.effort.rounds(30),
            _ => self.effort.rounds(8),
        };
        // An even number, so that ours goes first as often as the other.
        rounds.next_multiple_of(2)
    }

    /// A manager on the device, with these configuration keys beside the common ones.
    fn host(&self, bench: &'static str, more: &[(&str, String)]) -> Result<Host, BenchError> {
        let ours = [("device", self.device.clone()), ("chunk_bytes", self.chunk_bytes.to_string())];
        Host::start(bench, &[&ours, more].concat())
    }
}

/// Whether the device is the stand-in and this is a trial; an error if it is the stand-in and this is none.
fn is_trial(name: &str, is_asked_for: bool) -> Result<bool, BenchError> {
    match (name == STANDIN_NAME, is_asked_for) {
        (true, false) => Err(failed(format!(
            "{name} is the tests' stand-in for libcuda: its times say nothing about a GPU, and are never measured"
        ))),
        (is_standin, _) => Ok(is_standin),
    }
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed("gpu", cause)
}

/// A publisher whose pool has room for one message beside the blocks of other publishers: subscribers have released the last message before the
/// next is loaned.
fn publisher(bench: &'static str, node: &Node, topic: &str, bytes: u64) -> Result<Publisher<Bytes>, BenchError> {
    let qos = PublisherQos {
        pool_bytes: Some((bytes + bytes / 4 + MIB).next_multiple_of(4096)),
        exhaustion: Exhaustion::Wait { timeout_ms: PATIENCE.as_millis() as u64 },
        ..PublisherQos::default()
    };
    node.publisher_with(topic, qos).map_err(|error| BenchError::failed(bench, error))
}

/// A line with figures that were measured in turns.
fn row(
    bench: &'static str,
    case: String,
    reference: &str,
    unit: &'static str,
    (ours, theirs): (Vec<f64>, Vec<f64>),
    bound: Option<Bound>,
) -> Row {
    Row::of_pairs((bench, case), reference, unit, &Pairs::of(ours, theirs), bound)
}

/// GB/s for messages of one length and their times in µs.
fn rates(bytes: u64, us: impl IntoIterator<Item = f64>) -> Vec<f64> {
    us.into_iter().map(|us| bytes as f64 / us / 1e3).collect()
}

/// The copy of the longest message in chunks of several lengths against a bare copy, without bound: it shows whether a better default exists.
/// `with_chunks` makes a function that measures ours and the bare copy, in µs, for a chunk length.
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
    fn the_stand_in_is_recognized_by_its_name_and_never_measured() {
        assert_eq!(STANDIN_NAME, rgaps_standin_cuda::DEVICE_NAME);
        assert!(is_trial(STANDIN_NAME, false).unwrap_err().to_string().contains("stand-in"));
        assert!(is_trial(STANDIN_NAME, true).unwrap());
        for asked in [false, true] {
            assert!(!is_trial("NVIDIA GeForce RTX 3090", asked).unwrap());
        }
    }

    #[test]
    fn the_memory_that_a_run_needs_is_as_documented() {
        let page = include_str!("../../../../docs/gpu-runs.md");
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
