//! A publisher and its subscriber processes on one host: ours, the floor, or iceoryx2.

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

use crate::BenchError;
use crate::host::{self, Host};
use crate::notify::{BareWait, BareWake};
use crate::page::{self, Children, MARK, PATIENCE, Page, open, path};

pub(super) const BENCH: &str = "local";
/// How often a subscriber process checks whether to exit.
const TICK: Duration = Duration::from_millis(500);
const CACHE_LINE: usize = 64;
/// Messages of a batch.
pub(super) const BATCH: u64 = 32;
#[cfg(feature = "iceoryx2")]
const SUBSCRIBERS_MAX: usize = 8;

/// A way to bring messages to processes of the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// This project.
    Rgaps,
    /// This project, `BATCH` messages at a time.
    RgapsInBatches,
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
pub(super) struct Load {
    pub(super) bytes: u64,
    /// Subscribers read the whole message.
    pub(super) read: bool,
    /// Number of subscriber processes.
    pub(super) count: u64,
    /// Messages that may be under way.
    pub(super) depth: u64,
}

/// A publisher here, and its subscriber processes.
pub(super) struct Crowd {
    page: Page,
    source: Source,
    children: Children,
    bytes: u64,
    /// Messages that are published together.
    batch: u64,
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
    pub(super) fn new(host: &Host, node: &Node, system: System, load: Load) -> Result<Self, BenchError> {
        let Load { bytes, read, count, depth } = load;
        let page = Page::new(BENCH)?;
        let name = format!("bench/local_{bytes}_{count}_{depth}");
        let batch = if system == System::RgapsInBatches { BATCH } else { 1 };
        let (source, topic) = match system {
            System::Rgaps | System::RgapsInBatches => {
                let name = format!("{name}_{batch}");
                (Source::Rgaps(host::publisher_of(BENCH, node, &name, pool_bytes(load))?), name)
            }
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
        Ok(Self { page, source, children, bytes, batch, number: 0 })
    }

    /// µs until the median process has the last of `count` messages, and has read it if it should: from the publication of one that goes alone, or
    /// from the filling of the first.
    pub(super) fn round(&mut self, count: u64) -> Result<f64, BenchError> {
        let start = if count == 1 {
            let filled = self.fill()?;
            page::pace();
            let start = clock::monotonic_ns();
            self.publish(filled)?;
            start
        } else {
            page::pace();
            let start = clock::monotonic_ns();
            for _ in 0..count / self.batch {
                let filled = (0..self.batch).map(|_| self.fill()).collect::<Result<Vec<_>, _>>()?;
                self.publish_all(filled)?;
            }
            start
        };
        self.page.latency(self.children.count(), self.number, start)
    }

    fn publish_all(&mut self, filled: Vec<Filled>) -> Result<(), BenchError> {
        match &self.source {
            Source::Rgaps(publisher) if self.batch > 1 => {
                let loan = |filled| if let Filled::Rgaps(loan) = filled { Some(*loan) } else { None };
                publisher.publish_all(filled.into_iter().filter_map(loan).collect()).map(drop).map_err(failed)
            }
            _ => filled.into_iter().try_for_each(|filled| self.publish(filled)),
        }
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

/// The subscriber process: `rgaps bench local-subscriber`, started only by `bench local`.
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
        takes_all: bool,
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
            System::Rgaps | System::RgapsInBatches => {
                let node = Node::builder().name("rgaps bench subscriber").runtime_dir(&args.runtime_dir);
                let node = node.no_autostart().build().map_err(failed)?;
                let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
                let subscriber = node.subscriber_with::<Bytes>(&args.topic, qos).map_err(failed)?;
                let takes_all = args.system == System::RgapsInBatches;
                Ok(Self::Rgaps { subscriber, takes_all, _node: node })
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
            Self::Rgaps { subscriber, takes_all, .. } => {
                let Some(mut sample) = subscriber.wait(TICK).map_err(failed)? else { return Ok(None) };
                if *takes_all {
                    for next in subscriber.take_all().map_err(failed)? {
                        have(sample.bytes(), read);
                        sample = next;
                    }
                }
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

    use super::{BenchError, Load, SUBSCRIBERS_MAX, TICK, failed, have};
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
        let builder = node.service_builder(&name).publish_subscribe::<[u8]>();
        let builder = builder.max_subscribers(SUBSCRIBERS_MAX).max_nodes(SUBSCRIBERS_MAX + 1);
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
