//! `bench rate`: small messages per second from a publisher to N subscriber processes of the same host, in batches against one by one, and one by
//! one against iceoryx2.
//!
//! ```text
//!   single    (loan, fill, publish) x 32                  wait, then (take, drop) until there is none
//!   batched   (loan, fill) x 32, publish_all              wait, then take_all, drop
//!   iceoryx2  (loan, fill, send, notify) x 32             listen, then (receive, drop) until there is none
//! ```
//!
//! A round ends when the last process has the last of its messages. Subscribers lose none: the publisher waits for them when its pool is full. They
//! only receive. All take turns, round by round.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Exhaustion, History, Loan, Node, Publisher, PublisherQos, Subscriber, SubscriberQos};
use rgaps_os::clock;

use crate::host::{self, Host};
use crate::measure::Pairs;
use crate::page::{self, Children, MARK, PATIENCE, Page};
use crate::{BenchError, Effort, Row};

const BENCH: &str = "rate";
const COUNTS: [u64; 2] = [1, 8];
/// Bytes, and their text.
const SIZES: [(u64, &str); 3] = [(64, "64 B"), (1 << 10, "1 KiB"), (16 << 10, "16 KiB")];
const ROUNDS: usize = 60;
const BATCH: u64 = 32;
/// Messages of a round: whole batches.
const MESSAGES: u64 = 64 * BATCH;
const WARM_UP: usize = 2;
/// Room for several batches of the largest messages.
const POOL_BYTES: u64 = 16 << 20;
/// How often a subscriber process checks whether to exit.
const TICK: Duration = Duration::from_millis(500);

/// A way to send small messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// This project, message by message.
    Single,
    /// This project, in batches.
    Batched,
    /// iceoryx2's publish-subscribe and event services, message by message.
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
    way: Way,
    /// The topic or the service.
    #[arg(long)]
    topic: String,
    /// The manager's directory.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// The number of this subscriber.
    #[arg(long)]
    slot: u64,
}

/// Each size and count: batched against single, and single against iceoryx2 if it is built in.
pub fn run(effort: Effort) -> Result<Vec<Row>, BenchError> {
    let host = Host::start(BENCH, &[("network", "local".to_owned())])?;
    let node = host.node()?;
    let mut rows = Vec::new();
    for (bytes, name) in SIZES {
        for count in COUNTS {
            let crowd = |way| Crowd::new(&host, &node, way, bytes, count);
            let (mut batched, mut single) = (crowd(Way::Batched)?, crowd(Way::Single)?);
            let case = format!("{name} N={count} batches of {BATCH}");
            rows.push(against(case, "one by one", effort, &mut batched, &mut single)?);
            drop(batched);
            #[cfg(feature = "iceoryx2")]
            {
                let mut peer = crowd(Way::Iceoryx2)?;
                let case = format!("{name} N={count} one by one");
                rows.push(against(case, "iceoryx2", effort, &mut single, &mut peer)?);
            }
        }
    }
    Ok(rows)
}

fn against(
    case: String,
    reference: &str,
    effort: Effort,
    ours: &mut Crowd,
    theirs: &mut Crowd,
) -> Result<Row, BenchError> {
    for _ in 0..WARM_UP {
        ours.round()?;
        theirs.round()?;
    }
    let pairs = Pairs::run(effort.rounds(ROUNDS), || ours.round(), || theirs.round())?;
    Ok(Row::of_pairs((BENCH, case), reference, "messages/ms", &pairs, None))
}

/// A publisher here, and its subscriber processes.
struct Crowd {
    page: Page,
    source: Source,
    children: Children,
    bytes: u64,
    /// Messages published so far.
    sent: u64,
}

enum Source {
    Single(Publisher<Bytes>),
    Batched(Publisher<Bytes>),
    #[cfg(feature = "iceoryx2")]
    Iceoryx2(Box<iceoryx::Source>),
}

impl Crowd {
    fn new(host: &Host, node: &Node, way: Way, bytes: u64, count: u64) -> Result<Self, BenchError> {
        let page = Page::new(BENCH)?;
        let value = clap::ValueEnum::to_possible_value(&way);
        let way_name = value.as_ref().map_or("", |value| value.get_name());
        let name = format!("bench/rate_{bytes}_{count}_{way_name}");
        let publisher = || {
            let qos = PublisherQos {
                pool_bytes: Some(POOL_BYTES),
                exhaustion: Exhaustion::Wait { timeout_ms: PATIENCE.as_millis() as u64 },
                ..PublisherQos::default()
            };
            node.publisher_with(&name, qos).map_err(failed)
        };
        let (source, topic) = match way {
            Way::Single => (Source::Single(publisher()?), name),
            Way::Batched => (Source::Batched(publisher()?), name),
            #[cfg(feature = "iceoryx2")]
            Way::Iceoryx2 => {
                let service = format!("rgaps/{name}/{}", std::process::id());
                (Source::Iceoryx2(Box::new(iceoryx::Source::new(&service, bytes)?)), service)
            }
        };
        let mut children = Children::default();
        for slot in 0..count {
            let mut command = Command::new(page::program());
            command.args(["bench", "rate-subscriber", "--page", &page.path(), "--topic", &topic, "--way", way_name]);
            command.args(["--slot", &slot.to_string()]);
            command.arg("--runtime-dir").arg(host.dir()).env("RGAPS_AUTOSTART", "0");
            children.spawn(BENCH, &mut command)?;
        }
        page.wait_until_ready(count)?;
        match &source {
            Source::Single(publisher) | Source::Batched(publisher) => {
                host::wait_for_subscribers(BENCH, publisher, count as usize)?;
            }
            #[cfg(feature = "iceoryx2")]
            Source::Iceoryx2(_) => {}
        }
        Ok(Self { page, source, children, bytes, sent: 0 })
    }

    /// Messages per millisecond, until the last process has the last message.
    fn round(&mut self) -> Result<f64, BenchError> {
        page::pace();
        let start = clock::monotonic_ns();
        for _ in 0..MESSAGES / BATCH {
            self.publish_batch()?;
        }
        let last = self.page.latencies(self.children.count(), self.sent, start)?.into_iter().fold(0.0, f64::max);
        Ok(MESSAGES as f64 / last * 1e3)
    }

    fn publish_batch(&mut self) -> Result<(), BenchError> {
        let numbers = self.sent + 1..=self.sent + BATCH;
        self.sent += BATCH;
        match &mut self.source {
            Source::Single(publisher) => {
                for number in numbers {
                    filled(publisher, self.bytes, number)?.publish().map_err(failed)?;
                }
            }
            Source::Batched(publisher) => {
                let loans = numbers.map(|number| filled(publisher, self.bytes, number)).collect::<Result<_, _>>()?;
                publisher.publish_all(loans).map_err(failed)?;
            }
            #[cfg(feature = "iceoryx2")]
            Source::Iceoryx2(source) => {
                for number in numbers {
                    source.publish(number)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.page.round().store(MARK, Ordering::SeqCst);
    }
}

fn filled(publisher: &Publisher<Bytes>, bytes: u64, number: u64) -> Result<Loan<Bytes>, BenchError> {
    let mut loan = publisher.loan(Bytes::new(bytes)).map_err(failed)?;
    loan.fill(number as u8);
    host::mark(&mut loan, number);
    Ok(loan)
}

/// The number of a message, from its first bytes.
fn number_of(payload: &[u8]) -> u64 {
    payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The subscriber process: `rgaps bench rate-subscriber`, started only by `run`.
pub fn subscribe(args: &SubscriberArgs) -> Result<(), BenchError> {
    let page = Page::open(BENCH, &args.page)?;
    let mut sink = Sink::new(args)?;
    let bench = std::os::unix::process::parent_id();
    page.ready(args.slot);
    let (mut last, mut received) = (Instant::now(), 0);
    // A killed bench cannot end its processes.
    while last.elapsed() < PATIENCE
        && page.round().load(Ordering::SeqCst) != MARK
        && std::os::unix::process::parent_id() == bench
    {
        let Some(number) = sink.next()? else { continue };
        if number < received {
            return Err(failed(format!("message {number} came after message {received}")));
        }
        received = number;
        if received.is_multiple_of(MESSAGES) {
            page.woke(args.slot, received, clock::monotonic_ns());
            last = Instant::now();
        }
    }
    Ok(())
}

enum Sink {
    Rgaps {
        subscriber: Subscriber<Bytes>,
        takes_all: bool,
        _node: Node,
    },
    #[cfg(feature = "iceoryx2")]
    Iceoryx2(Box<iceoryx::Sink>),
}

impl Sink {
    fn new(args: &SubscriberArgs) -> Result<Self, BenchError> {
        match args.way {
            Way::Single | Way::Batched => {
                let node = Node::builder().name("rgaps bench subscriber").runtime_dir(&args.runtime_dir);
                let node = node.no_autostart().build().map_err(failed)?;
                let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
                let subscriber = node.subscriber_with::<Bytes>(&args.topic, qos).map_err(failed)?;
                Ok(Self::Rgaps { subscriber, takes_all: args.way == Way::Batched, _node: node })
            }
            #[cfg(feature = "iceoryx2")]
            Way::Iceoryx2 => Ok(Self::Iceoryx2(Box::new(iceoryx::Sink::new(&args.topic)?))),
        }
    }

    /// Waits for messages, and returns the number of the last one that it has received and dropped.
    fn next(&mut self) -> Result<Option<u64>, BenchError> {
        match self {
            Self::Rgaps { subscriber, takes_all, .. } => {
                let Some(first) = subscriber.wait(TICK).map_err(failed)? else { return Ok(None) };
                let mut last = number_of(first.bytes());
                drop(first);
                if *takes_all {
                    let rest = subscriber.take_all().map_err(failed)?;
                    return Ok(Some(rest.last().map_or(last, |sample| number_of(sample.bytes()))));
                }
                while let Some(sample) = subscriber.take().map_err(failed)? {
                    last = number_of(sample.bytes());
                }
                Ok(Some(last))
            }
            #[cfg(feature = "iceoryx2")]
            Self::Iceoryx2(sink) => sink.next(),
        }
    }
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}

#[cfg(feature = "iceoryx2")]
mod iceoryx {
    use iceoryx2::port::publisher::Publisher;
    use iceoryx2::port::subscriber::Subscriber;
    use iceoryx2::prelude::{Node, NodeBuilder, ServiceName, ipc};
    use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
    use rgaps_shm::notify::iceoryx::{IceoryxWait, IceoryxWake};
    use rgaps_shm::notify::{Wait, Wake};

    use super::{BATCH, BenchError, COUNTS, TICK, failed, number_of};
    use crate::host;

    type Service = PortFactory<ipc::Service, [u8], ()>;

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

    /// A service whose publisher waits for subscribers that have no room left for messages.
    fn service(name: &str) -> Result<(Node<ipc::Service>, Service), BenchError> {
        let node = NodeBuilder::new().create::<ipc::Service>().map_err(failed)?;
        let name = ServiceName::new(name).map_err(failed)?;
        let most = COUNTS[COUNTS.len() - 1] as usize;
        let builder = node.service_builder(&name).publish_subscribe::<[u8]>().max_subscribers(most).max_nodes(most + 1);
        let builder = builder.enable_safe_overflow(false).subscriber_max_buffer_size(4 * BATCH as usize);
        Ok((node, builder.open_or_create().map_err(failed)?))
    }

    impl Source {
        pub(super) fn new(name: &str, bytes: u64) -> Result<Self, BenchError> {
            let wake = IceoryxWake::new(name).map_err(failed)?;
            let (node, service) = service(name)?;
            let publisher = service.publisher_builder().initial_max_slice_len(bytes as usize).create();
            Ok(Self { publisher: publisher.map_err(failed)?, wake, bytes, _node: node })
        }

        pub(super) fn publish(&mut self, number: u64) -> Result<(), BenchError> {
            let mut sample = self.publisher.loan_slice(self.bytes as usize).map_err(failed)?;
            sample.payload_mut().fill(number as u8);
            host::mark(sample.payload_mut(), number);
            sample.send().map_err(failed)?;
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

        pub(super) fn next(&mut self) -> Result<Option<u64>, BenchError> {
            if !self.wait.wait(TICK).map_err(failed)? {
                return Ok(None);
            }
            let mut last = None;
            while let Some(sample) = self.subscriber.receive().map_err(failed)? {
                last = Some(number_of(sample.payload()));
            }
            Ok(last)
        }
    }
}
