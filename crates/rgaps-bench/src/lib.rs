//! `rgaps bench`: every claim as a ratio of interleaved runs, beside the physical limit, all in one run of one program.
//!
//! Absolute times depend on the machine and are printed for orientation only.

#![forbid(unsafe_code)]

pub mod alloc;
mod cpu;
mod crowd;
pub mod e2e;
pub mod fanout;
mod first_message;
mod fixed_rate;
pub mod gpu;
mod growth;
pub mod host;
pub mod link;
pub mod local;
pub mod measure;
mod network;
pub mod notify;
mod options;
mod page;
mod paper;
mod paper_values;
mod peers;
mod rates;
pub mod rdma;
mod rdma_e2e;
mod report;
mod results;
mod ring;
mod row;
mod scan;
mod soak;
mod traffic;

use std::path::PathBuf;

use rgaps::device::Choice;
use rgaps_command::device::{self, DeviceError};
use rgaps_command::output::{self, Format};

pub use options::{Effort, Options};
pub use row::{Bound, Row};

use self::report::{Circumstances, Report};
use self::results::Part;

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
    /// No bench has measured a row with the name that was asked for.
    #[error("no row is named {name:?}; without --only, the report names every row{}", reasons(.left_out))]
    NoRow {
        /// The name.
        name: String,
        /// What was left out, and why.
        left_out: Vec<String>,
    },
    /// The peers' folder does not exist.
    #[error("--peers {0}: there is no such folder; ./dev bench builds the peers' programs in target/peers/programs")]
    NoPeers(String),
    /// Benches failed; the others have printed their results.
    #[error("{}", .0.join("\n"))]
    Several(Vec<String>),
    /// Ratios miss the bounds that the project promises.
    #[error("{missed} of {all} ratios miss their bound")]
    Missed {
        /// How many.
        missed: usize,
        /// Of how many that have a bound and a figure.
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
    /// Measure one row alone, by its name as in the report: "CASE beside REFERENCE".
    #[arg(long, global = true, value_name = "ROW")]
    only: Option<String>,
    /// Folder for the report: index.html with plots, report.md, report.json.
    #[arg(long, global = true, value_name = "FOLDER")]
    report: Option<PathBuf>,
    /// Version that was built, for the report.
    #[arg(long, global = true, default_value = "unknown")]
    commit: String,
    /// Folder of the peers' programs, for local and e2e: measure beside zenoh, ZeroMQ and DDS, too.
    #[arg(long, global = true, value_name = "FOLDER")]
    peers: Option<PathBuf>,
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
    /// A ring against a bare socket, or against `ib_write_bw`.
    Link {
        /// Transport of the ring.
        #[arg(long, value_enum, default_value = "tcp")]
        transport: Transport,
    },
    /// Lengths of ring and chunk, and watermarks; over rdma with the credits that each sends, and with sizes of messages that land in place.
    Scan {
        /// Transport of the link.
        #[arg(long, value_enum, default_value = "tcp")]
        transport: Transport,
    },
    /// Whether memory, file descriptors, threads or latency drift from host to host over hours.
    Soak {
        /// How long.
        #[arg(long, default_value_t = 1.0)]
        hours: f64,
    },
    /// From host to host against a bare socket or `ib_write_bw`, and on a GPU against the paper's baseline.
    E2e {
        /// Transport between the hosts; `rdma` takes host memory.
        #[arg(long, value_enum, default_value = "tcp", conflicts_with = "device")]
        transport: Transport,
        /// Device: host, cuda, cuda:N, cuda:GPU-UUID, or auto for a GPU if there is one; default: as configured.
        #[arg(long)]
        device: Option<Choice>,
    },
    /// Messages a second from many publishers to one subscriber and from one to many, batches, and a slow subscriber beside others.
    Rates,
    /// At a fixed rate: the processor time of a subscriber, and the distribution of latencies.
    FixedRate,
    /// From the start of publisher and subscriber processes until the subscriber has the first message.
    FirstMessage,
    /// The RGAPS paper's Tables 4.1 to 4.5 and Figures 2.2, 3.9 and 4.1 to 4.6, its values beside ours.
    Paper {
        /// Transport between the hosts; `rdma` takes host memory.
        #[arg(long, value_enum, default_value = "tcp", conflicts_with = "device")]
        transport: Transport,
        /// Device: host, cuda, cuda:N, cuda:GPU-UUID, or auto for a GPU if there is one; default: as configured.
        #[arg(long)]
        device: Option<Choice>,
    },
    /// How latency, memory and wake-ups grow with topics, subscribers and hosts.
    Growth,
    /// On a GPU: from a publisher's block to host memory, against a bare copy and the paper's baseline.
    Path1(Gpu),
    /// On a GPU: from host memory to 1, 2, 4 and 8 subscribers, against a bare copy and the paper's baseline.
    Path3(Gpu),
    /// On a GPU: the CPU time of an asynchronous publication.
    Publish(Gpu),
    /// On a GPU: path1, publish, path3 and e2e.
    Gpu(Gpu),
    /// All benches that need no GPU, without scan and soak unless they are asked for.
    All {
        /// Scan the settings of a tcp link, too.
        #[arg(long)]
        scan: bool,
        /// Soak for so many hours, too.
        #[arg(long, value_name = "HOURS")]
        soak: Option<f64>,
    },
    /// A waiting process of `notify`.
    #[command(hide = true)]
    NotifyWaiter(notify::WaiterArgs),
    /// A subscriber process of `fanout` and `e2e`.
    #[command(hide = true)]
    Subscriber(host::SubscriberArgs),
    /// A subscriber process of `local`.
    #[command(hide = true)]
    LocalSubscriber(crowd::SubscriberArgs),
    /// A publisher process of `rates` and `fixed-rate`.
    #[command(hide = true)]
    TrafficPublisher(traffic::PublisherArgs),
    /// A subscriber process of `rates` and `fixed-rate`.
    #[command(hide = true)]
    TrafficSubscriber(traffic::SubscriberArgs),
    /// A process of `first-message`.
    #[command(hide = true)]
    FirstMessageRole(first_message::RoleArgs),
    /// A process of the GPU benches.
    #[command(hide = true)]
    GpuRole(gpu::RoleArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct Gpu {
    /// cuda, cuda:N or cuda:GPU-UUID.
    #[arg(long, default_value = "cuda")]
    device: Choice,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Transport {
    Tcp,
    Rdma,
}

type Outcome = Result<Part, BenchError>;

/// A bench, with the command that runs it.
struct Bench<'a> {
    command: String,
    run: Box<dyn Fn(&Options) -> Outcome + 'a>,
}

impl<'a> Bench<'a> {
    /// One that needs no GPU, by its arguments.
    fn of_host(arguments: &str, run: fn(&Options) -> Outcome) -> Self {
        Self { command: format!("rgaps bench {arguments}"), run: Box::new(run) }
    }

    fn of_soak(hours: f64) -> Self {
        Self {
            command: format!("rgaps bench soak --hours {hours}"),
            run: Box::new(move |options| soak::run(options, hours)),
        }
    }

    fn of_gpu(setup: &'a gpu::Setup, what: gpu::What) -> Self {
        let command = format!("rgaps bench {} --device {}", what.name(), setup.device());
        Self { command, run: Box::new(move |_| gpu::run(setup, what)) }
    }
}

/// Runs `rgaps bench`.
pub fn run(arguments: &Arguments, format: Format) -> Result<(), BenchError> {
    let benches = match &arguments.what {
        Some(What::GpuRole(role)) => return gpu::run_role(role),
        Some(What::NotifyWaiter(waiter)) => return notify::wait(waiter),
        Some(What::Subscriber(subscriber)) => return host::subscribe(subscriber),
        Some(What::LocalSubscriber(subscriber)) => return crowd::subscribe(subscriber),
        Some(What::TrafficPublisher(publisher)) => return traffic::publish(publisher),
        Some(What::TrafficSubscriber(subscriber)) => return traffic::subscribe(subscriber),
        Some(What::FirstMessageRole(role)) => return first_message::run_role(role),
        Some(What::Path1(gpu)) => return on_gpu(&[gpu::What::Path1], gpu.device, arguments, format),
        Some(What::Path3(gpu)) => return on_gpu(&[gpu::What::Path3], gpu.device, arguments, format),
        Some(What::Publish(gpu)) => return on_gpu(&[gpu::What::Publish], gpu.device, arguments, format),
        Some(What::Gpu(gpu)) => return on_gpu(&gpu::ALL, gpu.device, arguments, format),
        Some(What::E2e { transport: Transport::Rdma, .. }) => {
            vec![Bench::of_host("e2e --transport rdma", rdma_e2e::run)]
        }
        Some(What::E2e { device, .. }) => match device::opened(*device)?.as_choice() {
            Choice::Host => vec![Bench::of_host("e2e --device host", e2e::run)],
            gpu => return on_gpu(&[gpu::What::E2e], gpu, arguments, format),
        },
        Some(What::Paper { transport: Transport::Rdma, .. }) => {
            vec![Bench::of_host("paper --transport rdma", paper::run_rdma)]
        }
        Some(What::Paper { device, .. }) => match device::opened(*device)?.as_choice() {
            Choice::Host => vec![Bench::of_host("paper --device host", paper::run)],
            gpu => return paper_on_gpu(gpu, arguments, format),
        },
        Some(What::Local) => vec![Bench::of_host("local", local::run)],
        Some(What::Alloc) => vec![Bench::of_host("alloc", alloc::run)],
        Some(What::Notify) => vec![Bench::of_host("notify", notify::run)],
        Some(What::Fanout) => vec![Bench::of_host("fanout", fanout::run)],
        Some(What::Link { transport: Transport::Tcp }) => vec![Bench::of_host("link", link::run)],
        Some(What::Link { transport: Transport::Rdma }) => vec![Bench::of_host("link --transport rdma", rdma::run)],
        Some(What::Rates) => vec![Bench::of_host("rates", rates::run)],
        Some(What::FixedRate) => vec![Bench::of_host("fixed-rate", fixed_rate::run)],
        Some(What::FirstMessage) => vec![Bench::of_host("first-message", first_message::run)],
        Some(What::Growth) => vec![Bench::of_host("growth", growth::run)],
        Some(What::Scan { transport: Transport::Tcp }) => vec![Bench::of_host("scan", scan::run)],
        Some(What::Scan { transport: Transport::Rdma }) => vec![
            Bench::of_host("scan --transport rdma", rdma::scan),
            Bench::of_host("scan --transport rdma", rdma_e2e::scan),
        ],
        Some(What::Soak { hours }) => vec![Bench::of_soak(*hours)],
        Some(What::All { scan, soak }) => {
            let scan = scan.then(|| Bench::of_host("scan", scan::run));
            of_all().into_iter().chain(scan).chain(soak.map(Bench::of_soak)).collect()
        }
        None => of_all(),
    };
    if let Some(folder) = arguments.peers.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(BenchError::NoPeers(folder.display().to_string()));
    }
    let mut report = Report::new(Circumstances::now(&arguments.commit, None));
    report.circumstances.versions.extend(arguments.peers.iter().flat_map(|folder| peers::versions(folder)));
    finish(measure_all(&benches, report, arguments, printer(format))?, arguments, format)
}

/// All that need no GPU and no hours.
fn of_all<'a>() -> Vec<Bench<'a>> {
    vec![
        Bench::of_host("alloc", alloc::run),
        Bench::of_host("notify", notify::run),
        Bench::of_host("fanout", fanout::run),
        Bench::of_host("local", local::run),
        Bench::of_host("link", link::run),
        Bench::of_host("e2e --device host", e2e::run),
        Bench::of_host("growth", growth::run),
        Bench::of_host("rates", rates::run),
        Bench::of_host("fixed-rate", fixed_rate::run),
        Bench::of_host("first-message", first_message::run),
        Bench::of_host("paper --device host", paper::run),
    ]
}

/// Runs GPU benches.
fn on_gpu(what: &[gpu::What], device: Choice, arguments: &Arguments, format: Format) -> Result<(), BenchError> {
    let setup = gpu::Setup::new(device, arguments.options().effort)?;
    let benches = what.iter().map(|what| Bench::of_gpu(&setup, *what)).collect();
    finish_on_gpu(&setup, benches, arguments, format)
}

/// The paper's tables and figures with a GPU; those of the link are measured in host memory.
fn paper_on_gpu(device: Choice, arguments: &Arguments, format: Format) -> Result<(), BenchError> {
    let setup = gpu::Setup::new(device, arguments.options().effort)?;
    let command = format!("rgaps bench paper --device {}", setup.device());
    let machines = Bench { command, run: Box::new(|_| Ok(paper::machines(Some(setup.gpu()), "tcp over loopback"))) };
    let on_gpu = [gpu::What::Path1, gpu::What::Path3, gpu::What::E2e].map(|what| Bench::of_gpu(&setup, what));
    let link = (!setup.is_trial()).then(|| Bench::of_host("paper --device host", paper::run_link));
    finish_on_gpu(&setup, [machines].into_iter().chain(on_gpu).chain(link).collect(), arguments, format)
}

/// Runs benches. On the tests' stand-in for libcuda they are a trial, whose times are neither printed nor written.
fn finish_on_gpu(
    setup: &gpu::Setup,
    benches: Vec<Bench<'_>>,
    arguments: &Arguments,
    format: Format,
) -> Result<(), BenchError> {
    let mut report = Report::new(Circumstances::now(&arguments.commit, Some(setup.gpu())));
    report.part.left_out.extend_from_slice(setup.left_out());
    if !setup.is_trial() {
        return finish(measure_all(&benches, report, arguments, printer(format))?, arguments, format);
    }
    let without_report = Arguments { report: None, ..arguments.clone() };
    let report = measure_all(&benches, report, &without_report, report::print_trial)?;
    if !report.failures.is_empty() {
        return Err(BenchError::Several(report.failures));
    }
    output::line("a trial on the stand-in for libcuda: every message was checked, nothing was measured");
    Ok(())
}

/// Runs the benches; `print` gets the results of each.
fn measure_all(
    benches: &[Bench<'_>],
    mut report: Report,
    arguments: &Arguments,
    print: fn(&Part),
) -> Result<Report, BenchError> {
    let options = arguments.options();
    let before = arguments.report.as_ref().map_or(Vec::new(), |folder| report.rows_before(folder));
    for bench in benches {
        match (bench.run)(&options) {
            Ok(mut part) => {
                if let Some(only) = &options.only {
                    part.rows.retain(|row| row.name() == *only);
                    part = Part { rows: part.rows, left_out: part.left_out, ..Part::default() };
                }
                for row in &mut part.rows {
                    let same = before.iter().find(|before| before.bench == row.bench && before.name() == row.name());
                    row.before = same.and_then(|before| before.medians).map(|medians| medians.ratio);
                    row.command = arguments.command(bench, row);
                }
                print(&part);
                report.part.extend(part);
            }
            // The results of the other benches are still valid.
            Err(error) => report.failures.push(error.to_string()),
        }
        // After each bench, so that an interrupted run keeps its results.
        if let Some(folder) = &arguments.report {
            report.write(folder).map_err(BenchError::system("report", "writing the report"))?;
        }
    }
    Ok(report)
}

fn printer(format: Format) -> fn(&Part) {
    match format {
        Format::Human => report::print,
        Format::Json => |_| {},
    }
}

/// Prints the report for programs, and says what failed or missed its bound.
fn finish(report: Report, arguments: &Arguments, format: Format) -> Result<(), BenchError> {
    if format == Format::Json {
        output::json(&report);
    }
    let rows = &report.part.rows;
    let all = rows.iter().filter(|row| row.medians.is_some() && row.bound.is_some()).count();
    match (&arguments.only, rows.iter().filter(|row| !row.holds()).count()) {
        _ if !report.failures.is_empty() => Err(BenchError::Several(report.failures)),
        (Some(only), _) if rows.is_empty() => {
            Err(BenchError::NoRow { name: only.clone(), left_out: report.part.left_out })
        }
        (_, 0) => Ok(()),
        (_, missed) => Err(BenchError::Missed { missed, all }),
    }
}

impl Arguments {
    fn options(&self) -> Options {
        let effort = if self.quick { Effort::Quick } else { Effort::Full };
        Options { effort, only: self.only.clone(), peers: self.peers.clone() }
    }

    /// The command that measures a row alone, for a shell.
    fn command(&self, bench: &Bench<'_>, row: &Row) -> String {
        let peers = self.peers.as_ref().filter(|_| peers::is_one(&row.reference));
        let peers = peers.map(|folder| format!(" --peers {}", quoted(&folder.display().to_string())));
        let quick = if self.quick { " --quick" } else { "" };
        format!("{}{quick}{} --only {}", bench.command, peers.unwrap_or_default(), quoted(&row.name()))
    }
}

/// What was left out, as the end of a sentence.
fn reasons(all: &[String]) -> String {
    all.iter().map(|why| format!("; left out: {why}")).collect()
}

/// As one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Memory that is available, as the kernel estimates it; 0 if unknown.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_of_a_shell_whatever_is_in_it() {
        for text in ["target/peers", "", "64 MiB beside iceoryx2", "both sides' CPU", "$(reboot) `x` \"y\""] {
            let echo = std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quoted(text))]).output();
            assert_eq!(String::from_utf8(echo.unwrap().stdout).unwrap(), text);
        }
        assert_eq!(quoted("target/peers"), "target/peers");
    }

    /// What a run with one bench ends with.
    fn end_of(only: Option<&str>, run: fn(&Options) -> Outcome) -> Result<(), BenchError> {
        let only = only.map(str::to_owned);
        let arguments = Arguments { what: None, quick: true, only, report: None, commit: String::new(), peers: None };
        let report = Report::new(Circumstances::now("abc", None));
        let report = measure_all(&[Bench::of_host("local", run)], report, &arguments, |_| ())?;
        finish(report, &arguments, Format::Human)
    }

    #[test]
    fn a_row_that_was_left_out_says_why() {
        let end = end_of(Some("64 MiB read N=1 beside warm floor"), |_| {
            let mut part = Part::default();
            part.leave_out("local 64 MiB read N=1", 12 << 26);
            Ok(part)
        });
        let why = end.unwrap_err().to_string();
        assert!(why.ends_with("; left out: local 64 MiB read N=1: it needs 768 MiB of free memory"), "{why}");
    }

    #[test]
    fn only_rows_with_a_bound_and_a_figure_are_counted_as_ratios() {
        let end = end_of(None, |_| {
            let case = || ("local", "1 KiB".to_owned());
            let row = |reference, bound| Row::of(case(), reference, "us", (2.0, 1.0), bound);
            let missing = Row::missing(case(), "a peer", "us", "no program");
            Ok(vec![row("floor", Some(Bound::AtMost(1.0))), row("another", None), missing].into())
        });
        assert_eq!(end.unwrap_err().to_string(), "1 of 1 ratios miss their bound");
    }
}
