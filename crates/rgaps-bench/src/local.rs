//! `bench local`: from a publisher to N subscriber processes on the same host, which read the whole message, against a warm floor and iceoryx2.
//!
//! ```text
//!   ours      loan, fill │ publish ─▶ wait ─▶ take ─▶ read every cache line │ drop
//!   floor     fill one memfd │ wake one futex ─▶ read every cache line of it
//!   iceoryx2  loan, fill │ send, notify ─▶ listen ─▶ receive ─▶ read every cache line │ drop
//! ```
//!
//! The time goes from the first bar to the second one in the median process. The floor writes the same memory each time, as no middleware can that lets a
//! subscriber keep a message. Small messages are only received. All take turns, round by round; each round ends when all processes have reported.

use std::hint::black_box;
use std::path::PathBuf;
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
use crate::results::Part;
use crate::{BenchError, Bound, Options, Row, available_bytes};

const BENCH: &str = "local";
const COUNTS: [u64; 2] = [1, 8];
/// Bytes, name, whether subscribers read the bytes, rounds, and the promised bound against the floor.
const CASES: [(u64, &str, bool, usize, f64); 3] = [
    (1 << 10, "1 KiB received", false, 1000, 1.3),
    (4 << 20, "4 MiB read", true, 400, 1.15),
    (64 << 20, "64 MiB read", true, 40, 1.15),
];
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
    /// The number of this subscriber.
    #[arg(long)]
    slot: u64,
}

/// Each size and count, against the floor and against iceoryx2 if it is built in.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let effort = options.effort;
    let host = Host::start(BENCH, &[("network", "local".to_owned())])?;
    let node = host.node()?;
    let mut part = Part::default();
    for (bytes, name, read, rounds, bound) in CASES {
        if available_bytes() < NEEDS * bytes {
            part.leave_out(&format!("local {name}"), NEEDS * bytes);
            continue;
        }
        for count in COUNTS {
            let crowd = |system| Crowd::new(&host, &node, system, bytes, read, count);
            let (mut ours, mut floor) = (crowd(System::Rgaps)?, crowd(System::Floor)?);
            part.rows.push(against("warm floor", name, count, effort.rounds(rounds), &mut ours, &mut floor, bound)?);
            #[cfg(feature = "iceoryx2")]
            {
                let mut peer = crowd(System::Iceoryx2)?;
                part.rows.push(against("iceoryx2", name, count, effort.rounds(rounds), &mut ours, &mut peer, 1.0)?);
            }
        }
    }
    Ok(part)
}

fn against(
    reference: &str,
    name: &str,
    count: u64,
    rounds: usize,
    ours: &mut Crowd,
    theirs: &mut Crowd,
    bound: f64,
) -> Result<Row, BenchError> {
    for _ in 0..WARM_UP {
        ours.round()?;
        theirs.round()?;
    }
    let pairs = Pairs::run(rounds, || ours.round(), || theirs.round())?;
    let case = format!("{name} N={count}");
    Ok(Row::of_pairs((BENCH, case), reference, "us to the median subscriber", &pairs, Some(Bound::AtMost(bound))))
}

/// A publisher here, and its subscriber processes.
struct Crowd {
    page: Page,
    source: Source,
    children: Children,
    bytes: u64,
    number: u64,
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
    fn new(host: &Host, node: &Node, system: System, bytes: u64, read: bool, count: u64) -> Result<Self, BenchError> {
        let page = Page::new(BENCH)?;
        let name = format!("bench/local_{bytes}_{count}");
        let (source, topic) = match system {
            System::Rgaps => (Source::Rgaps(host::publisher(BENCH, node, &name, bytes)?), name),
            System::Floor => {
                let memory = RingMemory::create("rgaps-bench-floor", bytes).map_err(failed)?;
                let topic = path(&memory.fd());
                (Source::Floor { memory, wake: BareWake(page.again()?) }, topic)
            }
            #[cfg(feature = "iceoryx2")]
            System::Iceoryx2 => {
                let name = format!("rgaps/{name}/{}", std::process::id());
                (Source::Iceoryx2(Box::new(iceoryx::Source::new(&name, bytes)?)), name)
            }
        };
        let mut children = Children::default();
        for slot in 0..count {
            let mut command = Command::new(page::program());
            command.args(["bench", "local-subscriber", "--page", &page.path(), "--topic", &topic]);
            let value = clap::ValueEnum::to_possible_value(&system);
            command.args(["--system", value.as_ref().map_or("", |value| value.get_name())]);
            command.args(["--bytes", &bytes.to_string(), "--slot", &slot.to_string()]).args(read.then_some("--read"));
            command.arg("--runtime-dir").arg(host.dir()).env("RGAPS_AUTOSTART", "0");
            children.spawn(BENCH, &mut command)?;
        }
        page.wait_until_ready(count)?;
        if let Source::Rgaps(publisher) = &source {
            host::wait_for_subscribers(BENCH, publisher, count as usize)?;
        }
        Ok(Self { page, source, children, bytes, number: 0 })
    }

    /// µs from the publication of a message until the median process has it, and has read it if it should.
    fn round(&mut self) -> Result<f64, BenchError> {
        self.number += 1;
        let filled = self.fill()?;
        page::pace();
        let start = clock::monotonic_ns();
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
        self.page.latency(self.children.count(), self.number, start)
    }

    fn fill(&mut self) -> Result<Filled, BenchError> {
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
            System::Iceoryx2 => Ok(Self::Iceoryx2(Box::new(iceoryx::Sink::new(&args.topic)?))),
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

    use super::{BenchError, COUNTS, TICK, failed, have};
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

    fn service(name: &str) -> Result<(Node<ipc::Service>, Service), BenchError> {
        let node = NodeBuilder::new().create::<ipc::Service>().map_err(failed)?;
        let name = ServiceName::new(name).map_err(failed)?;
        let most = COUNTS[COUNTS.len() - 1] as usize;
        let builder = node.service_builder(&name).publish_subscribe::<[u8]>().max_subscribers(most).max_nodes(most + 1);
        let service = builder.open_or_create().map_err(failed)?;
        Ok((node, service))
    }

    impl Source {
        pub(super) fn new(name: &str, bytes: u64) -> Result<Self, BenchError> {
            let wake = IceoryxWake::new(name).map_err(failed)?;
            let (node, service) = service(name)?;
            let publisher = service.publisher_builder().initial_max_slice_len(bytes as usize).create();
            Ok(Self { publisher: publisher.map_err(failed)?, wake, bytes, _node: node })
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
        pub(super) fn new(name: &str) -> Result<Self, BenchError> {
            let wait = IceoryxWait::new(name).map_err(failed)?;
            let (node, service) = service(name)?;
            let subscriber = service.subscriber_builder().create().map_err(failed)?;
            Ok(Self { subscriber, wait, _node: node })
        }

        pub(super) fn next(&mut self, read: bool) -> Result<Option<(u64, u64)>, BenchError> {
            if !self.wait.wait(TICK).map_err(failed)? {
                return Ok(None);
            }
            let Some(sample) = self.subscriber.receive().map_err(failed)? else { return Ok(None) };
            let number = sample.payload().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            Ok(Some((number, have(sample.payload(), read))))
        }
    }
}
