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
//! A round of a burst fills and publishes many messages, each with its wake-up. Its figure is their rate. Only the floor loses messages.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{History, Loan, Node, Publisher, Subscriber, SubscriberQos};
use rgaps_link::RingMemory;
use rgaps_os::{Access, Mapping, clock};
use rgaps_shm::notify::{Wait, Wake};

use crate::host::{self, Host};
use crate::measure::Pairs;
use crate::notify::{BareWait, BareWake};
use crate::page::{self, Children, MARK, PATIENCE, Page, open, path};
use crate::peers::{self, Failed, Peer};
use crate::results::{Figure, Part, Shape};
use crate::{BenchError, Bound, Options, Row, available_bytes};

const BENCH: &str = "local";
const COUNTS: [u64; 2] = [1, 8];
/// Bytes, name, whether subscribers read the bytes, rounds, and the promised bound against the floor.
const CASES: [(u64, &str, bool, usize, f64); 3] = [
    (1 << 10, "1 KiB received", false, 1000, 1.3),
    (4 << 20, "4 MiB read", true, 400, 1.15),
    (64 << 20, "64 MiB read", true, 40, 1.15),
];
/// Bytes, name, and messages of a burst.
const RATES: [(u64, &str, u64); 3] = [(64, "64 B", 5000), (1 << 10, "1 KiB", 5000), (16 << 10, "16 KiB", 2000)];
const BURSTS: usize = 30;
/// Messages of a burst that may be under way; a publisher waits for its slowest subscriber then.
const DEPTH: u64 = 256;
/// How many times a message's bytes are needed.
const NEEDS: u64 = 12;
const WARM_UP: usize = 5;
/// How often a subscriber process checks whether to exit.
const TICK: Duration = Duration::from_millis(500);
const CACHE_LINE: usize = 64;

/// A way to bring messages to processes of the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// This project.
    Rgaps,
    /// One memory and one futex.
    Floor,
    /// iceoryx2's publish-subscribe and event services.
    #[cfg(feature = "iceoryx2")]
    Iceoryx2,
}

/// Command line of a subscriber process.
#[derive(Clone, Debug, clap::Args)]
pub struct SubscriberArgs {
    /// Path of the shared page.
    #[arg(long)]
    page: String,
    /// How it gets messages.
    #[arg(long)]
    system: System,
    /// The topic, the service, or the path of the floor's memory.
    #[arg(long)]
    topic: String,
    /// The manager's directory.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// Bytes of a message.
    #[arg(long)]
    bytes: u64,
    /// Read the whole message.
    #[arg(long)]
    read: bool,
    /// Messages that may be under way.
    #[arg(long)]
    depth: u64,
    /// The number of this subscriber.
    #[arg(long)]
    slot: u64,
}

/// What a crowd does.
#[derive(Clone, Copy, Debug)]
struct Load {
    bytes: u64,
    /// Subscribers read the whole message.
    read: bool,
    /// Number of subscriber processes.
    count: u64,
    /// Messages that may be under way.
    depth: u64,
}

/// Each size and count: the time of a message that goes alone, then how many go in a second; beside the floor, iceoryx2 and the peers.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let host = Host::start(BENCH, &[("network", "local".to_owned())])?;
    let (bench, mut part) = (Local { node: host.node()?, host, options }, Part::default());
    for count in COUNTS {
        let title = format!("From publish to the median subscriber on one host, N = {count}");
        let mut figure = Figure::new(title, "message", "us", Shape::Points);
        for (bytes, size, read, rounds, bound) in CASES {
            let case = format!("{size} N={count}");
            if available_bytes() < NEEDS * bytes {
                part.leave_out(&format!("local {case}"), NEEDS * bytes);
                continue;
            }
            let load = Load { bytes, read, count, depth: 2 };
            let trial = Trial { case, load, rounds: options.effort.rounds(rounds), burst: 1, bound: Some(bound) };
            let rows = bench.beside_all(&trial)?;
            rows.iter().for_each(|row| figure.add(size, row));
            part.rows.extend(rows);
        }
        part.figures.push(figure);
    }
    for count in COUNTS {
        let title = format!("Messages in a second on one host, N = {count}");
        let mut figure = Figure::new(title, "message", "messages/s", Shape::Points);
        for (bytes, size, burst) in RATES {
            let case = format!("{size} in bursts, N={count}");
            let load = Load { bytes, read: false, count, depth: DEPTH };
            let trial = Trial { case, load, rounds: options.effort.rounds(BURSTS), burst, bound: None };
            let rows = bench.beside_all(&trial)?;
            rows.iter().for_each(|row| figure.add(size, row));
            part.rows.extend(rows);
        }
        part.figures.push(figure);
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
    /// A trial beside every reference.
    fn beside_all(&self, trial: &Trial) -> Result<Vec<Row>, BenchError> {
        let mut rows = Vec::new();
        if !self.options.wants(&trial.case) {
            return Ok(rows);
        }
        let wants = |reference: &str| self.options.wants(&format!("{} beside {reference}", trial.case));
        let mut ours = self.crowd(System::Rgaps, trial)?;
        let floor = if trial.burst == 1 { "warm floor" } else { "warm floor, which keeps the last message only" };
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
            rows.extend(peers::rows((BENCH, trial.case.clone()), peer, trial.unit(), found)?);
        }
        Ok(rows)
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
    let Load { bytes, read, count, .. } = trial.load;
    let mut theirs = peers::Crowd::new(folder, peer, peers::Load { bytes, read, count }).map_err(Failed::Peer)?;
    for _ in 0..WARM_UP {
        ours.round(trial.burst).map_err(Failed::Ours)?;
        theirs.round(trial.burst).map_err(Failed::Peer)?;
    }
    let pairs = peers::pairs(trial.rounds, || ours.round(trial.burst), || theirs.round(trial.burst))?;
    Ok(vec![trial.row(peer.name, &pairs.map(|us| trial.figure(us)), None)])
}

/// A publisher here, and its subscriber processes.
struct Crowd {
    page: Page,
    source: Source,
    children: Children,
    bytes: u64,
    /// Messages published.
    number: u64,
}

/// Bytes of a pool in which so many messages are under way, and a half: the next block is free while subscribers still read the last one.
fn pool_bytes(Load { bytes, depth, .. }: Load) -> u64 {
    let block = rgaps_shm::writer::pool::block_bytes(bytes);
    block * depth + block / 2
}

enum Source {
    Rgaps(Publisher<Bytes>),
    Floor {
        memory: std::sync::Arc<RingMemory>,
        wake: BareWake,
    },
    #[cfg(feature = "iceoryx2")]
    Iceoryx2(Box<iceoryx::Source>),
}

/// A message that is filled and not published.
enum Filled {
    Rgaps(Box<Loan<Bytes>>),
    Floor,
    #[cfg(feature = "iceoryx2")]
    Iceoryx2(iceoryx::Filled),
}

impl Crowd {
    fn new(host: &Host, node: &Node, system: System, load: Load) -> Result<Self, BenchError> {
        let Load { bytes, read, count, depth } = load;
        let page = Page::new(BENCH)?;
        let name = format!("bench/local_{bytes}_{count}_{depth}");
        let (source, topic) = match system {
            System::Rgaps => (Source::Rgaps(host::publisher_of(BENCH, node, &name, pool_bytes(load))?), name),
            System::Floor => {
                let memory = RingMemory::create("rgaps-bench-floor", bytes).map_err(failed)?;
                let topic = path(&memory.fd());
                (Source::Floor { memory, wake: BareWake(page.again()?) }, topic)
            }
            #[cfg(feature = "iceoryx2")]
            System::Iceoryx2 => {
                let name = format!("rgaps/{name}/{}", std::process::id());
                (Source::Iceoryx2(Box::new(iceoryx::Source::new(&name, load)?)), name)
            }
        };
        let mut children = Children::default();
        for slot in 0..count {
            let mut command = Command::new(page::program());
            command.args(["bench", "local-subscriber", "--page", &page.path(), "--topic", &topic]);
            let value = clap::ValueEnum::to_possible_value(&system);
            command.args(["--system", value.as_ref().map_or("", |value| value.get_name())]);
            command.args(["--bytes", &bytes.to_string(), "--slot", &slot.to_string()]).args(read.then_some("--read"));
            command.args(["--depth", &depth.to_string()]);
            command.arg("--runtime-dir").arg(host.dir()).env("RGAPS_AUTOSTART", "0");
            children.spawn(BENCH, &mut command)?;
        }
        page.wait_until_ready(count)?;
        if let Source::Rgaps(publisher) = &source {
            host::wait_for_subscribers(BENCH, publisher, count as usize)?;
        }
        Ok(Self { page, source, children, bytes, number: 0 })
    }

    /// µs until the median process has the last of `count` messages, and has read it if it should: from the publication of one that goes alone, or
    /// from the filling of the first.
    fn round(&mut self, count: u64) -> Result<f64, BenchError> {
        let start = if count == 1 {
            let filled = self.fill()?;
            page::pace();
            let start = clock::monotonic_ns();
            self.publish(filled)?;
            start
        } else {
            page::pace();
            let start = clock::monotonic_ns();
            for _ in 0..count {
                let filled = self.fill()?;
                self.publish(filled)?;
            }
            start
        };
        self.page.latency(self.children.count(), self.number, start)
    }

    fn publish(&mut self, filled: Filled) -> Result<(), BenchError> {
        match (filled, &mut self.source) {
            (Filled::Rgaps(loan), _) => drop(loan.publish().map_err(failed)?),
            (_, Source::Floor { wake, .. }) => {
                self.page.round().store(self.number, Ordering::SeqCst);
                wake.wake().map_err(failed)?;
            }
            #[cfg(feature = "iceoryx2")]
            (Filled::Iceoryx2(filled), Source::Iceoryx2(source)) => source.publish(filled)?,
            _ => {}
        }
        Ok(())
    }

    /// The next message.
    fn fill(&mut self) -> Result<Filled, BenchError> {
        self.number += 1;
        let number = self.number;
        match &mut self.source {
            Source::Rgaps(publisher) => {
                let mut loan = publisher.loan(Bytes::new(self.bytes)).map_err(failed)?;
                loan.fill(number as u8);
                host::mark(&mut loan, number);
                Ok(Filled::Rgaps(Box::new(loan)))
            }
            Source::Floor { memory, .. } => {
                crate::link::write(memory, self.bytes, number as u8)?;
                memory.mapping().copy_in(0, &number.to_le_bytes()).map_err(failed)?;
                Ok(Filled::Floor)
            }
            #[cfg(feature = "iceoryx2")]
            Source::Iceoryx2(source) => source.fill(number).map(Filled::Iceoryx2),
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.page.round().store(MARK, Ordering::SeqCst);
        if let Source::Floor { wake, .. } = &mut self.source {
            let _ = wake.wake();
        }
    }
}

/// The subscriber process: `rgaps bench local-subscriber`, started only by `run`.
pub fn subscribe(args: &SubscriberArgs) -> Result<(), BenchError> {
    let page = Page::open(BENCH, &args.page)?;
    let mut sink = Sink::new(args, &page)?;
    let bench = std::os::unix::process::parent_id();
    page.ready(args.slot);
    let mut last = Instant::now();
    while last.elapsed() < PATIENCE && page.round().load(Ordering::SeqCst) != MARK {
        // A killed bench cannot end its processes.
        if std::os::unix::process::parent_id() != bench {
            break;
        }
        let Some((number, now)) = sink.next(args.read)? else { continue };
        page.woke(args.slot, number, now);
        last = Instant::now();
    }
    Ok(())
}

enum Sink {
    Rgaps {
        subscriber: Subscriber<Bytes>,
        _node: Node,
    },
    Floor {
        memory: Mapping,
        page: Page,
        wait: BareWait,
        last: u64,
    },
    #[cfg(feature = "iceoryx2")]
    Iceoryx2(Box<iceoryx::Sink>),
}

impl Sink {
    fn new(args: &SubscriberArgs, page: &Page) -> Result<Self, BenchError> {
        match args.system {
            System::Rgaps => {
                let node = Node::builder().name("rgaps bench subscriber").runtime_dir(&args.runtime_dir);
                let node = node.no_autostart().build().map_err(failed)?;
                let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
                let subscriber = node.subscriber_with::<Bytes>(&args.topic, qos).map_err(failed)?;
                Ok(Self::Rgaps { subscriber, _node: node })
            }
            System::Floor => {
                let memory = Mapping::map(open(BENCH, &args.topic)?, args.bytes, Access::ReadOnly).map_err(failed)?;
                let wait = BareWait { page: page.again()?, seen: 0 };
                Ok(Self::Floor { memory, page: page.again()?, wait, last: 0 })
            }
            #[cfg(feature = "iceoryx2")]
            System::Iceoryx2 => Ok(Self::Iceoryx2(Box::new(iceoryx::Sink::new(&args.topic, args.depth)?))),
        }
    }

    /// The next message's number, and when the process had it, or had read it.
    fn next(&mut self, read: bool) -> Result<Option<(u64, u64)>, BenchError> {
        match self {
            Self::Rgaps { subscriber, .. } => {
                let Some(sample) = subscriber.wait(TICK).map_err(failed)? else { return Ok(None) };
                Ok(Some((sample.info().sequence, have(sample.bytes(), read))))
            }
            Self::Floor { memory, page, wait, last } => {
                wait.arm().map_err(failed)?;
                let round = page.round().load(Ordering::SeqCst);
                if round == *last || round == MARK {
                    wait.wait(TICK).map_err(failed)?;
                    return Ok(None);
                }
                *last = round;
                let words = memory.atomics_u64(0, (memory.bytes() / 8) as usize).map_err(failed)?;
                if read {
                    let lines = words.iter().step_by(CACHE_LINE / 8);
                    black_box(lines.fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed))));
                }
                Ok(Some((round, clock::monotonic_ns())))
            }
            #[cfg(feature = "iceoryx2")]
            Self::Iceoryx2(sink) => sink.next(read),
        }
    }
}

/// Reads a byte of every cache line, if it should. Returns the time then.
fn have(bytes: &[u8], read: bool) -> u64 {
    if read {
        black_box(bytes.iter().step_by(CACHE_LINE).fold(0_u64, |sum, byte| sum + u64::from(*byte)));
    }
    clock::monotonic_ns()
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}

#[cfg(feature = "iceoryx2")]
mod iceoryx {
    use iceoryx2::port::publisher::Publisher;
    use iceoryx2::port::subscriber::Subscriber;
    use iceoryx2::prelude::{Node, NodeBuilder, ServiceName, ipc};
    use iceoryx2::sample_mut::SampleMut;
    use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
    use rgaps_shm::notify::iceoryx::{IceoryxWait, IceoryxWake};
    use rgaps_shm::notify::{Wait, Wake};

    use super::{BenchError, COUNTS, Load, TICK, failed, have};
    use crate::host;

    type Service = PortFactory<ipc::Service, [u8], ()>;
    pub(super) type Filled = SampleMut<ipc::Service, [u8], ()>;

    pub(super) struct Source {
        publisher: Publisher<ipc::Service, [u8], ()>,
        wake: IceoryxWake,
        bytes: u64,
        _node: Node<ipc::Service>,
    }

    pub(super) struct Sink {
        subscriber: Subscriber<ipc::Service, [u8], ()>,
        wait: IceoryxWait,
        _node: Node<ipc::Service>,
    }

    fn service(name: &str, depth: u64) -> Result<(Node<ipc::Service>, Service), BenchError> {
        let node = NodeBuilder::new().create::<ipc::Service>().map_err(failed)?;
        let name = ServiceName::new(name).map_err(failed)?;
        let most = COUNTS[COUNTS.len() - 1] as usize;
        let builder = node.service_builder(&name).publish_subscribe::<[u8]>().max_subscribers(most).max_nodes(most + 1);
        // A publisher waits for its slowest subscriber, as ours does.
        let builder = builder.subscriber_max_buffer_size(depth as usize).enable_safe_overflow(false);
        let service = builder.open_or_create().map_err(failed)?;
        Ok((node, service))
    }

    impl Source {
        pub(super) fn new(name: &str, load: Load) -> Result<Self, BenchError> {
            let wake = IceoryxWake::new(name).map_err(failed)?;
            let (node, service) = service(name, load.depth)?;
            let publisher = service.publisher_builder().initial_max_slice_len(load.bytes as usize).create();
            Ok(Self { publisher: publisher.map_err(failed)?, wake, bytes: load.bytes, _node: node })
        }

        pub(super) fn fill(&mut self, number: u64) -> Result<Filled, BenchError> {
            let mut sample = self.publisher.loan_slice(self.bytes as usize).map_err(failed)?;
            sample.payload_mut().fill(number as u8);
            host::mark(sample.payload_mut(), number);
            Ok(sample)
        }

        pub(super) fn publish(&mut self, filled: Filled) -> Result<(), BenchError> {
            filled.send().map_err(failed)?;
            self.wake.wake().map_err(failed)
        }
    }

    impl Sink {
        pub(super) fn new(name: &str, depth: u64) -> Result<Self, BenchError> {
            let wait = IceoryxWait::new(name).map_err(failed)?;
            let (node, service) = service(name, depth)?;
            let subscriber = service.subscriber_builder().create().map_err(failed)?;
            Ok(Self { subscriber, wait, _node: node })
        }

        pub(super) fn next(&mut self, read: bool) -> Result<Option<(u64, u64)>, BenchError> {
            // One wake-up may stand for several messages.
            let mut received = self.subscriber.receive().map_err(failed)?;
            if received.is_none() && self.wait.wait(TICK).map_err(failed)? {
                received = self.subscriber.receive().map_err(failed)?;
            }
            let Some(sample) = received else { return Ok(None) };
            let number = sample.payload().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            Ok(Some((number, have(sample.payload(), read))))
        }
    }
}
