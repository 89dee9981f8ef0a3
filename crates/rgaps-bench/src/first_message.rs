//! `bench first-message`: from the start of all processes until the subscriber has the first message.
//!
//! ```text
//!   ours  publisher process ─▶ starts a manager ─▶ publishes, and keeps the message for late joiners
//!         subscriber process ─▶ finds or starts a manager ─▶ subscribes ─▶ has the message
//!   bare  as many processes of the same program, with sockets between them: writer ─▶ relay in the manager's place ─▶ reader
//! ```
//!
//! The bench starts publisher and subscriber at once. The client that needs a manager first starts it, as on a robot. From host to host there are two
//! managers, which find each other. Each round begins with empty runtime directories. Rounds of ours and of the bare processes take turns. In the
//! cases whose managers already run, the bench has started them before the time begins, and the bare processes have no relay. The steps are those of
//! publisher and subscriber: a manager that a client starts is part of that client's connecting.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Durability, Node, PublisherQos, SubscriberQos};
use rgaps_os::clock;
use rgaps_shm::notify::{Wait, Wake};
use rgaps_testing::RuntimeDir;

use crate::host::{self, Host, free_ports, loopback};
use crate::measure::{Pairs, median};
use crate::network::Network;
use crate::notify::{BareWait, BareWake};
use crate::page::{self, Children, MARK, PATIENCE, Page};
use crate::results::{Part, Table, of_figures};
use crate::{BenchError, Options, Row};

const BENCH: &str = "first-message";
const BARE: &str = "bare processes";
const ROUNDS: usize = 20;
/// How often a process checks whether to exit.
const TICK: Duration = Duration::from_millis(500);
/// Slots of the page.
const SUBSCRIBER: u64 = 0;
const PUBLISHER: u64 = 1;
/// The only round of a page.
const FIRST: u64 = 1;
/// What each process reports: when it did it.
const STEPS: [[&str; 4]; 2] = [
    [
        "subscriber: its program runs",
        "subscriber: connected to the manager",
        "subscriber: subscribed",
        "subscriber: has the message",
    ],
    [
        "publisher: its program runs",
        "publisher: connected to the manager",
        "publisher: may publish",
        "publisher: has published",
    ],
];

/// Where the processes are, and what runs before.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    hosts: usize,
    managers_run: bool,
}

const CASES: [Case; 4] = [
    Case { name: "on one host", hosts: 1, managers_run: false },
    Case { name: "on one host, its manager runs", hosts: 1, managers_run: true },
    Case { name: "from host to host", hosts: 2, managers_run: false },
    Case { name: "from host to host, managers run", hosts: 2, managers_run: true },
];

/// Each case, and when each process did what.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let (mut rows, mut columns) = (Vec::new(), Vec::new());
    for case in CASES {
        let name = format!("first message {}", case.name);
        if !options.wants(&name) {
            continue;
        }
        let (managers, mut times) = (Managers::new(case)?, Vec::new());
        let (ours, theirs) = (
            || {
                times.push(round(case, &managers, times.len())?);
                Ok::<_, BenchError>(times.last().map_or(0.0, |times| times[0][3]))
            },
            || bare_round(case),
        );
        let pairs = Pairs::run(options.effort.rounds(ROUNDS), ours, theirs)?;
        rows.push(Row::of_pairs((BENCH, name), BARE, "ms", &pairs, None));
        columns.push((case.name, times));
    }
    Ok(Part { tables: vec![table(&columns)], rows, ..Part::default() })
}

/// ms from the start, of each process and step.
type Times = [[f64; 4]; 2];

fn table(columns: &[(&str, Vec<Times>)]) -> Table {
    let steps = (0..2).flat_map(|process| (0..4).map(move |step| (process, step)));
    let line = |(process, step): (usize, usize)| {
        let of = |times: &Vec<Times>| median(times.iter().map(|times| times[process][step]).collect());
        (STEPS[process][step].to_owned(), columns.iter().map(|(_, times)| of(times)).collect())
    };
    Table {
        number: None,
        title: "From the start of the processes, medians".to_owned(),
        columns: ["step"].into_iter().chain(columns.iter().map(|(name, _)| *name)).map(str::to_owned).collect(),
        lines: of_figures(steps.map(line).collect()),
        unit: "ms".into(),
    }
}

/// Managers that run before the time begins.
struct Managers(Vec<Host>);

impl Managers {
    fn new(case: Case) -> Result<Self, BenchError> {
        if !case.managers_run {
            return Ok(Self(Vec::new()));
        }
        let settings = settings(case)?;
        Ok(Self(settings.iter().map(|settings| Host::start(BENCH, settings)).collect::<Result<_, _>>()?))
    }
}

/// The configuration of each host.
fn settings(case: Case) -> Result<Vec<Vec<(&'static str, String)>>, BenchError> {
    if case.hosts == 1 {
        return Ok(vec![vec![("network", "local".to_owned())]]);
    }
    let ports = free_ports::<2>(BENCH)?;
    Ok(vec![loopback(0, ports), loopback(1, ports)])
}

/// Starts a publisher and a subscriber; ms until each has done each step.
fn round(case: Case, managers: &Managers, number: usize) -> Result<Times, BenchError> {
    let (page, settings) = (Page::new(BENCH)?, settings(case)?);
    let dirs = settings.iter().map(|_| RuntimeDir::new("first")).collect::<Result<Vec<_>, _>>();
    let dirs = dirs.map_err(BenchError::system(BENCH, "a runtime directory"))?;
    let program = host::manager(BENCH)?;
    let command = |role: &str, slot: u64, side: usize| {
        let mut command = Command::new(page::program());
        host::configure(&mut command, &dirs[side], &settings[side]);
        command.args(["bench", "first-message-role", "--page", &page.path(), "--slot", &slot.to_string()]);
        let dir = managers.0.get(side).map_or(dirs[side].path(), Host::dir);
        command.args([role, "--topic", &format!("bench/first_message_{number}")]).arg("--runtime-dir").arg(dir);
        command.env("RGAPSD", &program);
        command
    };
    let last = case.hosts - 1;
    let mut commands = [command("publisher", PUBLISHER, 0), command("subscriber", SUBSCRIBER, last)];
    // Dropped before the directories, whose managers end with them.
    let mut children = Children::default();
    let start = clock::monotonic_ns();
    for command in &mut commands {
        children.spawn(BENCH, command)?;
    }
    page.latencies(2, FIRST, start)?;
    let since = |at: u64| at.saturating_sub(start) as f64 / 1e6;
    let times = [SUBSCRIBER, PUBLISHER].map(|slot| page.proof(slot).map(since));
    page.round().store(MARK, Ordering::SeqCst);
    BareWake(page.again()?).wake().map_err(BenchError::system(BENCH, "a wake-up"))?;
    Ok(times)
}

/// Starts a writer, a relay for each manager, and a reader; ms until the reader has the bytes.
fn bare_round(case: Case) -> Result<f64, BenchError> {
    let page = Page::new(BENCH)?;
    let relays = if case.managers_run { 0 } else { case.hosts };
    let system = BenchError::system(BENCH, "a socket");
    // Ends of the sockets: the n-th process writes to the n-th.
    let mut ends: Vec<[OwnedFd; 2]> = Vec::new();
    for socket in 0..=relays {
        let is_between_hosts = case.hosts == 2 && socket == relays / 2;
        ends.push(if is_between_hosts {
            Network::Loopback.sockets().map_err(&system)?.map(OwnedFd::from)
        } else {
            let (near, far) = UnixStream::pair().map_err(&system)?;
            [near.into(), far.into()]
        });
    }
    let command = |role: &str, slot: u64| {
        let mut command = Command::new(page::program());
        command.args(["bench", "first-message-role", "--page", &page.path(), "--slot", &slot.to_string(), role]);
        command.stdin(Stdio::null());
        command
    };
    let mut commands: Vec<Command> = vec![command("writer", PUBLISHER)];
    for relay in 0..relays {
        commands.push(command("relay", PUBLISHER + 1 + relay as u64));
    }
    commands.push(command("reader", SUBSCRIBER));
    for (socket, [near, far]) in ends.into_iter().enumerate() {
        commands[socket].stdout(near);
        commands[socket + 1].stdin(far);
    }
    let mut children = Children::default();
    let start = clock::monotonic_ns();
    for command in &mut commands {
        children.spawn(BENCH, command)?;
    }
    Ok(page.latency(1, FIRST, start)? / 1e3)
}

/// Command line of a process.
#[derive(Clone, Debug, clap::Args)]
pub struct RoleArgs {
    /// Path of the shared page.
    #[arg(long)]
    page: String,
    /// The number of this process.
    #[arg(long)]
    slot: u64,
    #[command(subcommand)]
    role: Role,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Role {
    /// Publishes a message and keeps it for late joiners.
    Publisher(Topic),
    /// Takes it.
    Subscriber(Topic),
    /// Writes a few bytes to standard output.
    Writer,
    /// Copies them from standard input to standard output.
    Relay,
    /// Reads them from standard input.
    Reader,
}

#[derive(Clone, Debug, clap::Args)]
struct Topic {
    /// The manager's directory.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// The topic.
    #[arg(long)]
    topic: String,
}

/// A process of the bench: `rgaps bench first-message-role`, started only by `run`.
pub fn run_role(args: &RoleArgs) -> Result<(), BenchError> {
    let began = clock::monotonic_ns();
    let page = Page::open(BENCH, &args.page)?;
    let outcome = match &args.role {
        Role::Publisher(topic) => publish(&page, args.slot, began, topic),
        Role::Subscriber(topic) => subscribe(&page, args.slot, began, topic),
        Role::Writer => output().and_then(|mut output| output.write_all(&[1; 8]).map_err(failed)),
        Role::Relay => bytes().and_then(|bytes| output()?.write_all(&bytes).map_err(failed)),
        Role::Reader => bytes().map(|_| page.woke(args.slot, FIRST, clock::monotonic_ns())),
    };
    if let Err(error) = outcome {
        // Print before marking the page: the bench ends this process as soon as it sees the mark.
        eprintln!("rgaps: {error}");
        page.failed(args.slot);
    }
    Ok(())
}

fn publish(page: &Page, slot: u64, began: u64, topic: &Topic) -> Result<(), BenchError> {
    let node = Node::builder().name("rgaps bench").runtime_dir(&topic.runtime_dir).build().map_err(failed)?;
    let connected = clock::monotonic_ns();
    let qos = PublisherQos { durability: Durability::TransientLocal, history_depth: 1, ..PublisherQos::default() };
    let publisher = node.publisher_with::<Bytes>(&topic.topic, qos).map_err(failed)?;
    let made = clock::monotonic_ns();
    publisher.push(&Bytes::new(8), &[1; 8]).map_err(failed)?;
    let published = clock::monotonic_ns();
    page.prove(slot, [began, connected, made, published]);
    page.woke(slot, FIRST, published);
    // The message is kept as long as its publisher.
    let mut wait = BareWait { page: page.again()?, seen: 0 };
    let bench = std::os::unix::process::parent_id();
    while page.round().load(Ordering::SeqCst) != MARK && std::os::unix::process::parent_id() == bench {
        wait.arm().map_err(failed)?;
        if page.round().load(Ordering::SeqCst) != MARK {
            wait.wait(TICK).map_err(failed)?;
        }
    }
    Ok(())
}

fn subscribe(page: &Page, slot: u64, began: u64, topic: &Topic) -> Result<(), BenchError> {
    let node = Node::builder().name("rgaps bench").runtime_dir(&topic.runtime_dir).build().map_err(failed)?;
    let connected = clock::monotonic_ns();
    let qos = SubscriberQos { durability: Durability::TransientLocal, ..SubscriberQos::default() };
    let subscriber = node.subscriber_with::<Bytes>(&topic.topic, qos).map_err(failed)?;
    let made = clock::monotonic_ns();
    let deadline = Instant::now() + PATIENCE;
    while subscriber.wait(TICK).map_err(failed)?.is_none() {
        if Instant::now() > deadline {
            return Err(failed(format!("no message within {PATIENCE:?}")));
        }
    }
    let first = clock::monotonic_ns();
    page.prove(slot, [began, connected, made, first]);
    page.woke(slot, FIRST, first);
    Ok(())
}

fn bytes() -> Result<[u8; 8], BenchError> {
    let mut bytes = [0; 8];
    let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    File::from(input).read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn output() -> Result<File, BenchError> {
    std::io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(failed)
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_each_process_has_its_median_for_every_case() {
        let times = |first: f64| [[first, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]];
        let table = table(&[("on one host", vec![times(1.0), times(9.0), times(2.0)]), ("elsewhere", Vec::new())]);
        assert_eq!(table.columns, ["step", "on one host", "elsewhere"]);
        assert_eq!((table.lines.len(), table.lines[0].1.clone()), (8, vec![2.0.into(), 0.0.into()]));
        assert_eq!(table.lines[7], ("publisher: has published".to_owned(), vec![8.0.into(), 0.0.into()]));
    }
}
