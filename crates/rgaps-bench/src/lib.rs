//! `rgaps bench`: every claim as a ratio of interleaved runs, beside the physical limit, all in one run of one program.
//!
//! Absolute times depend on the machine and are printed for orientation only.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod e2e;
pub mod fanout;
pub mod gpu;
pub mod host;
pub mod link;
pub mod local;
pub mod measure;
pub mod notify;
mod page;
pub mod rate;
pub mod rdma;
mod ring;

use rgaps::device::Choice;
use rgaps_command::device::{self, DeviceError};
use rgaps_command::output::{self, Format};
use serde::Serialize;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Few rounds, for a quick look.
    Quick,
    /// Enough rounds for stable medians on a noisy machine.
    Full,
}

impl Effort {
    /// `full` rounds, or a tenth of them (at least 3).
    pub fn rounds(self, full: usize) -> usize {
        match self {
            Self::Quick => (full / 10).max(3),
            Self::Full => full,
        }
    }
}

/// One line of a bench: ours and the reference, measured in alternation.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The bench.
    pub bench: &'static str,
    /// The case: size, subscribers, fill level.
    pub case: String,
    /// What the reference is.
    pub reference: String,
    /// Unit of the two figures.
    pub unit: &'static str,
    /// Median of ours.
    pub ours: f64,
    /// Median of the reference.
    pub theirs: f64,
    /// Median over pairs of ours divided by the reference.
    pub ratio: f64,
    /// In which the median ratio of all possible rounds is, with a probability of 95 %; `None` for what is not measured in pairs.
    pub interval: Option<[f64; 2]>,
    /// The bound that the project promises, if any.
    pub bound: Option<Bound>,
}

/// A promised bound of a ratio.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The ratio is at most this.
    AtMost(f64),
    /// The ratio is at least this.
    AtLeast(f64),
}

impl Row {
    /// A row of figures that were measured in alternation.
    pub(crate) fn of_pairs(
        (bench, case): (&'static str, String),
        reference: &str,
        unit: &'static str,
        pairs: &measure::Pairs,
        bound: Option<Bound>,
    ) -> Self {
        let measure::Medians { ours, theirs, ratio, interval } = pairs.medians();
        Self { bench, case, reference: reference.to_owned(), unit, ours, theirs, ratio, interval, bound }
    }

    /// A row of two figures.
    pub(crate) fn of(
        (bench, case): (&'static str, String),
        reference: &str,
        unit: &'static str,
        (ours, theirs): (f64, f64),
        bound: Option<Bound>,
    ) -> Self {
        let (reference, ratio, interval) = (reference.to_owned(), ours / theirs, None);
        Self { bench, case, reference, unit, ours, theirs, ratio, interval, bound }
    }

    /// Whether the ratio meets its bound; true if there is none.
    pub fn holds(&self) -> bool {
        match self.bound {
            None => true,
            Some(Bound::AtMost(bound)) => self.ratio <= bound,
            Some(Bound::AtLeast(bound)) => self.ratio >= bound,
        }
    }
}

/// A bench could not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The system refused a call.
    #[error("bench {bench}: {what}: {source}")]
    System {
        /// Which bench.
        bench: &'static str,
        /// The call that failed.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A part of the project failed.
    #[error("bench {bench}: {message}")]
    Failed {
        /// Which bench.
        bench: &'static str,
        /// What happened.
        message: String,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Benches failed; the others have printed their results.
    #[error("{}", .0.join("\n"))]
    Several(Vec<String>),
    /// Ratios miss the bounds that the project promises.
    #[error("{missed} of {all} ratios miss their bound")]
    Missed {
        /// How many.
        missed: usize,
        /// Of how many.
        all: usize,
    },
}

impl BenchError {
    /// From any error text.
    pub fn failed(bench: &'static str, cause: impl std::fmt::Display) -> Self {
        Self::Failed { bench, message: cause.to_string() }
    }

    /// From a system error.
    pub fn system(bench: &'static str, what: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::System { bench, what, source }
    }
}

/// Arguments of `rgaps bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// What to measure; default: everything that needs no GPU.
    #[command(subcommand)]
    what: Option<What>,
    /// Run a tenth of the rounds.
    #[arg(long, global = true)]
    quick: bool,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// The pool's allocator against bare rlsf.
    Alloc,
    /// Wake-ups against a bare futex broadcast.
    Notify,
    /// The cost of one more subscriber on the host, against one more bare wake-up.
    Fanout,
    /// From a publisher to subscribers of the same host, against a warm floor and iceoryx2.
    Local,
    /// Small messages per second, in batches against one by one, and one by one against iceoryx2.
    Rate,
    /// A ring against a bare socket, or against `ib_write_bw`.
    Link {
        /// Transport of the ring.
        #[arg(long, value_enum, default_value = "tcp")]
        transport: Transport,
    },
    /// Ring lengths, chunks and watermarks over rdma, with the credits that each sends.
    Scan,
    /// From host to host against a bare socket, and on a GPU against the paper's baseline.
    E2e {
        /// Device: host, cuda, cuda:N, cuda:GPU-UUID, or auto for a GPU if there is one; default: as configured.
        #[arg(long)]
        device: Option<Choice>,
        #[command(flatten)]
        arguments: gpu::Arguments,
    },
    /// On a GPU: from a publisher's block to host memory, against a bare copy and the paper's baseline.
    Path1(Gpu),
    /// On a GPU: from host memory to 1, 2, 4 and 8 subscribers, against a bare copy and the paper's baseline.
    Path3(Gpu),
    /// On a GPU: the CPU time of an asynchronous publication.
    Publish(Gpu),
    /// On a GPU: path1, publish, path3 and e2e.
    Gpu(Gpu),
    /// All benches that need no GPU.
    All,
    /// A waiting process of `notify`.
    #[command(hide = true)]
    NotifyWaiter(notify::WaiterArgs),
    /// A subscriber process of `fanout` and `e2e`.
    #[command(hide = true)]
    Subscriber(host::SubscriberArgs),
    /// A subscriber process of `local`.
    #[command(hide = true)]
    LocalSubscriber(local::SubscriberArgs),
    /// A subscriber process of `rate`.
    #[command(hide = true)]
    RateSubscriber(rate::SubscriberArgs),
    /// A process of the GPU benches.
    #[command(hide = true)]
    GpuRole(gpu::RoleArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct Gpu {
    /// cuda, cuda:N or cuda:GPU-UUID.
    #[arg(long, default_value = "cuda")]
    device: Choice,
    #[command(flatten)]
    arguments: gpu::Arguments,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Transport {
    Tcp,
    Rdma,
}

/// A bench: takes how long to measure, returns its lines.
type Bench = fn(Effort) -> Result<Vec<Row>, BenchError>;

/// Runs `rgaps bench`.
pub fn run(arguments: &Arguments, format: Format) -> Result<(), BenchError> {
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    let on_gpu = |what: &[gpu::What], gpu: &Gpu| gpu::run(what, gpu.device, &gpu.arguments, effort, format);
    let benches: &[Bench] = match &arguments.what {
        Some(What::GpuRole(role)) => return gpu::run_role(role),
        Some(What::Path1(gpu)) => return on_gpu(&[gpu::What::Path1], gpu),
        Some(What::Path3(gpu)) => return on_gpu(&[gpu::What::Path3], gpu),
        Some(What::Publish(gpu)) => return on_gpu(&[gpu::What::Publish], gpu),
        Some(What::Gpu(gpu)) => return on_gpu(&gpu::ALL, gpu),
        Some(What::E2e { device, arguments }) => match device::opened(*device)?.as_choice() {
            Choice::Host => &[e2e::run],
            gpu => return gpu::run(&[gpu::What::E2e], gpu, arguments, effort, format),
        },
        Some(What::NotifyWaiter(waiter)) => return notify::wait(waiter),
        Some(What::Subscriber(subscriber)) => return host::subscribe(subscriber),
        Some(What::LocalSubscriber(subscriber)) => return local::subscribe(subscriber),
        Some(What::RateSubscriber(subscriber)) => return rate::subscribe(subscriber),
        Some(What::Local) => &[local::run],
        Some(What::Rate) => &[rate::run],
        Some(What::Alloc) => &[alloc::run],
        Some(What::Notify) => &[notify::run],
        Some(What::Fanout) => &[fanout::run],
        Some(What::Link { transport: Transport::Tcp }) => &[link::run],
        Some(What::Link { transport: Transport::Rdma }) => &[rdma::run],
        Some(What::Scan) => &[rdma::scan],
        Some(What::All) | None => &[alloc::run, notify::run, fanout::run, local::run, rate::run, link::run, e2e::run],
    };
    let mut all = Vec::new();
    for bench in benches {
        let rows = bench(effort)?;
        if format == Format::Human {
            print(&rows);
        }
        all.extend(rows);
    }
    if format == Format::Json {
        output::json(&all);
    }
    match all.iter().filter(|row| !row.holds()).count() {
        0 => Ok(()),
        missed => Err(BenchError::Missed { missed, all: all.len() }),
    }
}

/// Memory that is available, as the kernel estimates it; 0 if unknown.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// With at least two digits that are not zero.
fn figure(value: f64) -> String {
    if value < 1.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

fn print(rows: &[Row]) {
    let mut table = output::table(["bench", "case", "ours", "reference", "", "ratio", "95 %", "bound"]);
    for row in rows {
        let bound = match row.bound {
            None => String::new(),
            Some(Bound::AtMost(bound)) => format!("<= {bound}{}", if row.holds() { "" } else { " MISSED" }),
            Some(Bound::AtLeast(bound)) => format!(">= {bound}{}", if row.holds() { "" } else { " MISSED" }),
        };
        table.add_row([
            row.bench.to_owned(),
            row.case.clone(),
            format!("{} {}", figure(row.ours), row.unit),
            figure(row.theirs),
            row.reference.clone(),
            format!("{:.3}", row.ratio),
            row.interval.map_or(String::new(), |[least, most]| format!("{least:.2} to {most:.2}")),
            bound,
        ]);
    }
    output::line(table);
}
