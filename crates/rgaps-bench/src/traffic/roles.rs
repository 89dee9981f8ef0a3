//! The processes of `traffic`: `rgaps bench traffic-publisher` and `traffic-subscriber`, started only by other benches.
//!
//! A publisher sleeps until the bench starts a round, and then publishes its share of the round's messages, as fast as possible or one by one at a
//! fixed rate. A subscriber takes all that is ready each time it wakes, and reports a round when it has had all of its messages. With `--socket` both
//! use the socket that is their standard input.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{History, Node, Publisher, Subscriber, SubscriberQos};
use rgaps_os::clock;
use rgaps_shm::notify::Wait;

use super::tally::Tally;
use crate::notify::BareWait;
use crate::page::{BenchWatch, MARK, Page};
use crate::{BenchError, host};

const BENCH: &str = "traffic";
/// How often a process checks whether to exit.
const TICK: Duration = Duration::from_millis(500);
/// Bytes of the time of publication, at the start of a message that has room for it.
const STAMP: usize = 8;
/// What is read from a socket at once.
const READ_BYTES: usize = 64 << 10;

/// Where a process works, in which of its forms.
#[derive(Clone, Debug, clap::Args)]
struct Place {
    /// Path of the shared page.
    #[arg(long)]
    page: String,
    /// The number of this process.
    #[arg(long)]
    slot: u64,
    /// The manager's directory.
    #[arg(long, required_unless_present = "socket")]
    runtime_dir: Option<PathBuf>,
    /// The topic.
    #[arg(long, default_value = "")]
    topic: String,
    /// Use the socket that is the standard input.
    #[arg(long)]
    socket: bool,
    /// Bytes of a message.
    #[arg(long)]
    bytes: u64,
}

/// Command line of a publisher process.
#[derive(Clone, Debug, clap::Args)]
pub struct PublisherArgs {
    #[command(flatten)]
    place: Place,
    /// Its messages of a round.
    #[arg(long)]
    messages: u64,
    /// Nanoseconds between two messages; 0: none.
    #[arg(long)]
    pause_ns: u64,
    /// Messages that may be under way.
    #[arg(long)]
    depth: u64,
    /// Subscribers to wait for; another host counts as one.
    #[arg(long)]
    subscribers: usize,
}

/// Command line of a subscriber process.
#[derive(Clone, Debug, clap::Args)]
pub struct SubscriberArgs {
    #[command(flatten)]
    place: Place,
    /// Path of the shared counts.
    #[arg(long)]
    tally: String,
    /// Subscribers that have counts there.
    #[arg(long)]
    subscribers: u64,
    /// All messages of a round.
    #[arg(long)]
    messages: u64,
    /// Keep the last so many messages only; default: all.
    #[arg(long)]
    keep_last: Option<u32>,
    /// Take one message at a time, and spend so many microseconds on it.
    #[arg(long)]
    slow_us: Option<u64>,
}

/// Where a publisher process writes its messages.
enum Source {
    Topic { publisher: Publisher<Bytes>, _node: Node },
    Socket { socket: File, message: Vec<u8> },
}

/// The publisher process.
pub fn publish(args: &PublisherArgs) -> Result<(), BenchError> {
    // Sleeps of a fixed rate end when they should, not up to 50 us later.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
    let page = Page::open(BENCH, &args.place.page)?;
    let outcome = publish_rounds(args, &page);
    tell(&page, args.place.slot, outcome);
    Ok(())
}

/// The subscriber process.
pub fn subscribe(args: &SubscriberArgs) -> Result<(), BenchError> {
    let page = Page::open(BENCH, &args.place.page)?;
    let outcome = subscribe_rounds(args, &page);
    tell(&page, args.place.slot, outcome);
    Ok(())
}

/// Says why a process failed, first to people: the bench ends it as soon as it sees the mark.
fn tell(page: &Page, slot: u64, outcome: Result<(), BenchError>) {
    if let Err(error) = outcome {
        eprintln!("rgaps: {error}");
        page.failed(slot);
    }
}

fn publish_rounds(args: &PublisherArgs, page: &Page) -> Result<(), BenchError> {
    let mut source = Source::new(args)?;
    let mut wait = BareWait { page: page.again()?, seen: 0 };
    page.ready(args.place.slot);
    let (mut watch, mut last) = (BenchWatch::new(), 0);
    while watch.should_run(page) {
        wait.arm().map_err(failed)?;
        let round = page.round().load(Ordering::SeqCst);
        if round == last || round == MARK {
            wait.wait(TICK).map_err(failed)?;
            continue;
        }
        last = round;
        watch.renew();
        let start = Instant::now();
        for number in 0..args.messages {
            let due = start + Duration::from_nanos(args.pause_ns * number);
            let early = due.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                std::thread::sleep(early);
            }
            source.send(args.place.bytes, number as u8)?;
        }
    }
    Ok(())
}

impl Source {
    fn new(args: &PublisherArgs) -> Result<Self, BenchError> {
        let Place { runtime_dir: Some(dir), topic, bytes, socket: false, .. } = &args.place else {
            return Ok(Self::Socket { socket: inherited()?, message: vec![0; args.place.bytes as usize] });
        };
        let node = node(dir)?;
        let pool_bytes = rgaps_shm::writer::pool::block_bytes(*bytes) * args.depth;
        let publisher = host::publisher_of(BENCH, &node, topic, pool_bytes)?;
        host::wait_for_subscribers(BENCH, &publisher, args.subscribers)?;
        Ok(Self::Topic { publisher, _node: node })
    }

    fn send(&mut self, bytes: u64, value: u8) -> Result<(), BenchError> {
        match self {
            Self::Topic { publisher, .. } => {
                let mut loan = publisher.loan(Bytes::new(bytes)).map_err(failed)?;
                fill(&mut loan, value);
                loan.publish().map(drop).map_err(failed)
            }
            Self::Socket { socket, message } => {
                fill(message, value);
                socket.write_all(message).map_err(failed)
            }
        }
    }
}

/// Writes the message, with the time at its start.
fn fill(message: &mut [u8], value: u8) {
    message.fill(value);
    if let Some(stamp) = message.first_chunk_mut::<STAMP>() {
        *stamp = clock::monotonic_ns().to_le_bytes();
    }
}

/// Where a subscriber process reads its messages.
enum Sink {
    Topic { subscriber: Subscriber<Bytes>, slow: Option<Duration>, _node: Node },
    Socket { socket: File, read: Vec<u8>, filled: usize, bytes: usize },
}

fn subscribe_rounds(args: &SubscriberArgs, page: &Page) -> Result<(), BenchError> {
    let slot = args.place.slot;
    let tally = Tally::open(BENCH, &args.tally, args.subscribers, args.messages)?;
    let mut sink = Sink::new(args)?;
    page.ready(slot);
    let (mut watch, mut count, mut stamps) = (BenchWatch::new(), 0, Vec::new());
    while watch.should_run(page) {
        stamps.clear();
        if !sink.take(&mut stamps)? {
            return Ok(());
        }
        if stamps.is_empty() {
            continue;
        }
        let now = clock::monotonic_ns();
        watch.renew();
        for stamp in &stamps {
            tally.set_latency(slot, count, now.saturating_sub(*stamp))?;
            count += 1;
        }
        tally.add_batch(slot, stamps.len() as u64)?;
        if let Sink::Topic { subscriber, slow: Some(slow), .. } = &sink {
            tally.set_lost(slot, subscriber.statistics().lost)?;
            std::thread::sleep(*slow);
        }
        if count % args.messages == 0 {
            page.woke(slot, count / args.messages, now);
        }
    }
    Ok(())
}

impl Sink {
    fn new(args: &SubscriberArgs) -> Result<Self, BenchError> {
        let Place { runtime_dir: Some(dir), topic, socket: false, .. } = &args.place else {
            let bytes = args.place.bytes as usize;
            return Ok(Self::Socket { socket: inherited()?, read: vec![0; READ_BYTES.max(bytes)], filled: 0, bytes });
        };
        let node = node(dir)?;
        let history = args.keep_last.map_or(History::KeepAll, History::KeepLast);
        let qos = SubscriberQos { history, ..SubscriberQos::default() };
        let subscriber = node.subscriber_with(topic, qos).map_err(failed)?;
        Ok(Self::Topic { subscriber, slow: args.slow_us.map(Duration::from_micros), _node: node })
    }

    /// Waits for messages, and takes what is ready: their stamps, or none if it has waited for long. False at the end.
    fn take(&mut self, stamps: &mut Vec<u64>) -> Result<bool, BenchError> {
        match self {
            Self::Topic { subscriber, slow, .. } => {
                let Some(first) = subscriber.wait(TICK).map_err(failed)? else { return Ok(true) };
                stamps.push(stamp(first.bytes()));
                if slow.is_none() {
                    let rest = subscriber.take_all().map_err(failed)?;
                    stamps.extend(rest.iter().map(|sample| stamp(sample.bytes())));
                }
            }
            Self::Socket { socket, read, filled, bytes } => {
                let more = socket.read(&mut read[*filled..]).map_err(failed)?;
                *filled += more;
                let whole = *filled / *bytes * *bytes;
                stamps.extend(read[..whole].chunks(*bytes).map(stamp));
                read.copy_within(whole..*filled, 0);
                *filled -= whole;
                return Ok(more > 0);
            }
        }
        Ok(true)
    }
}

/// When it was published; 0 if it has no room for that.
fn stamp(message: &[u8]) -> u64 {
    message.first_chunk::<STAMP>().map_or(0, |stamp| u64::from_le_bytes(*stamp))
}

fn node(dir: &std::path::Path) -> Result<Node, BenchError> {
    let node = Node::builder().name("rgaps bench").runtime_dir(dir).no_autostart().build();
    node.map_err(failed)
}

fn inherited() -> Result<File, BenchError> {
    std::io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(failed)
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}
