//! `rgaps sub`: takes a topic's messages, and checks, shows and saves them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rgaps::dynamic::Kind;
use rgaps::types::{Bytes, Image, Meta, PointCloud, Tensor};
use rgaps::{
    Durability, History, Node, NodeError, Reliability, Sample, Subscriber, SubscriberQos, SubscriberStatistics,
};
use rgaps_command::output::{self, Format};
use rgaps_shm::info::SEQUENCE_STEP_MAX;
use serde::Serialize;

use crate::interrupt::Interrupt;
use crate::parsers::seconds;
use crate::topic;
use crate::{CommandError, create_folder};
use rgaps_media::{Mark, Media};

/// How often to look for the type of a topic that does not exist yet.
const TYPE_INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of `rgaps sub`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The topic, such as camera/front.
    topic: String,
    /// The type, if the topic may not exist yet: image, point_cloud, tensor or bytes. Otherwise the topic tells it.
    #[arg(long = "type")]
    kind: Option<Kind>,
    /// Compare messages with the files given to `rgaps pub --input`; different ones count as mismatched.
    #[arg(long)]
    expect: Option<PathBuf>,
    /// Save messages into this folder, as PNG, PCD or NPY.
    #[arg(long)]
    save: Option<PathBuf>,
    /// End after this many messages. If --timeout ends the command earlier, it fails.
    #[arg(long)]
    count: Option<u64>,
    /// End if no message arrives for this many seconds. If none arrived at all, the command fails.
    #[arg(long, value_parser = seconds)]
    timeout: Option<Duration>,
    /// Best effort: also match best-effort publishers. Links send unacknowledged messages again all the same.
    #[arg(long)]
    best_effort: bool,
    /// Also take earlier messages of publishers that use --latch.
    #[arg(long)]
    latch: bool,
    /// Unread messages to keep.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Keep all messages: publishers wait for this subscriber.
    #[arg(long)]
    keep_all: bool,
    /// Hold each message for this many milliseconds.
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
    /// Print one line for each message.
    #[arg(long)]
    verbose: bool,
}

/// The messages received.
#[derive(Clone, Debug, Serialize)]
pub struct Received {
    /// The topic.
    pub topic: String,
    /// Messages taken.
    pub taken: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages with a wrong checksum, or different from the files of --expect.
    pub mismatched: u64,
    /// Messages that should have arrived, by their sequence numbers, but were neither taken nor counted as lost.
    pub missing: u64,
    /// The subscriber's own counters.
    pub statistics: SubscriberStatistics,
    /// Messages by route.
    pub paths: HashMap<String, u64>,
    /// Seconds from the first message to the last.
    pub seconds: f64,
    /// Copies of the payload made for this subscriber alone.
    pub copies_per_subscriber: u64,
    /// Whether --timeout ended the command.
    pub timed_out: bool,
}

/// Runs `rgaps sub`.
pub fn run(arguments: &Arguments, format: Format) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    let node = Node::new("rgaps sub")?;
    let start = Instant::now();
    let Some(kind) = find_kind(arguments, &node, &interrupt, start)? else { return Ok(()) };
    let received = match kind {
        Kind::Image => follow::<Image>(arguments, format, &node, &interrupt),
        Kind::PointCloud => follow::<PointCloud>(arguments, format, &node, &interrupt),
        Kind::Tensor => follow::<Tensor>(arguments, format, &node, &interrupt),
        Kind::Bytes => follow::<Bytes>(arguments, format, &node, &interrupt),
    }?;
    match format {
        Format::Json => output::json(&received),
        Format::Human => output::line(format_args!(
            "{}: took {} messages, {}, lost {}, malformed {}, mismatched {}, copies/subscriber {}, {}, path {}",
            received.topic,
            received.taken,
            output::bytes(received.bytes as f64),
            received.statistics.lost,
            received.statistics.malformed,
            received.mismatched,
            received.copies_per_subscriber,
            output::rate(received.taken, received.seconds),
            output::list(&received.paths.iter().map(|(path, count)| format!("{path} x {count}")).collect::<Vec<_>>())
        )),
    }
    match fault(arguments, &received) {
        Some(fault) => Err(CommandError::Other(fault)),
        None => Ok(()),
    }
}

/// What is wrong with the messages received, if anything. Ctrl-C is no error: the user knows that messages are missing.
fn fault(arguments: &Arguments, received: &Received) -> Option<String> {
    let bad = received.mismatched + received.missing;
    if bad > 0 {
        return Some(format!("{bad} messages were wrong or missing"));
    }
    let timeout = arguments.timeout.filter(|_| received.timed_out)?.as_secs_f64();
    match (received.taken, arguments.count) {
        (taken, Some(count)) if taken < count => {
            Some(format!("{taken} of {count} messages came on {}, then none for {timeout} s", received.topic))
        }
        (0, None) => Some(format!("no message came on {} within {timeout} s", received.topic)),
        _ => None,
    }
}

/// The type of the topic, once it is known; `None` if interrupted.
fn find_kind(
    arguments: &Arguments,
    node: &Node,
    interrupt: &Interrupt,
    start: Instant,
) -> Result<Option<Kind>, CommandError> {
    if arguments.kind.is_some() {
        return Ok(arguments.kind);
    }
    // A topic with an invalid name will never exist.
    if let Err(error @ NodeError::Name(_)) = node.observe(&arguments.topic) {
        return Err(error.into());
    }
    let name = topic::rooted(&arguments.topic);
    let mut told = false;
    while !interrupt.is_set() {
        if let Some(topic) = topic::summary(node, &name)? {
            return topic.type_name.parse().map(Some).map_err(|_| {
                CommandError::Other(format!("{name} carries {}, which this command does not know", topic.type_name))
            });
        }
        if let Some(timeout) = arguments.timeout.filter(|timeout| start.elapsed() > *timeout) {
            return Err(CommandError::Other(format!(
                "no host has {name} after {} s; see `rgaps topic list`",
                timeout.as_secs_f64()
            )));
        }
        if !told {
            output::complain(format_args!(
                "rgaps sub: no host has {name} yet; waiting for it (use --type to name its type)"
            ));
            told = true;
        }
        interrupt.sleep_until(Instant::now() + TYPE_INTERVAL);
    }
    Ok(None)
}

/// What a subscriber does with messages of a type besides taking them.
trait Content: Meta {
    /// Saves a sample as `prefix` with the type's file extension.
    fn save(prefix: &Path, sample: &Sample<Self>) -> Result<PathBuf, rgaps_media::SaveError>;

    /// Metadata and payload of a file of this type.
    fn of_file(_: &Media) -> Option<(&Self, &[u8])> {
        None
    }
}

impl Content for Image {
    fn save(prefix: &Path, sample: &Sample<Self>) -> Result<PathBuf, rgaps_media::SaveError> {
        rgaps_media::save_image(prefix, sample.meta(), sample.bytes())
    }

    fn of_file(file: &Media) -> Option<(&Self, &[u8])> {
        if let Media::Image { meta, bytes } = file { Some((meta, bytes)) } else { None }
    }
}

impl Content for PointCloud {
    fn save(prefix: &Path, sample: &Sample<Self>) -> Result<PathBuf, rgaps_media::SaveError> {
        rgaps_media::save_cloud(prefix, sample.meta(), sample.bytes())
    }

    fn of_file(file: &Media) -> Option<(&Self, &[u8])> {
        if let Media::Cloud { meta, bytes } = file { Some((meta, bytes)) } else { None }
    }
}

impl Content for Tensor {
    fn save(prefix: &Path, sample: &Sample<Self>) -> Result<PathBuf, rgaps_media::SaveError> {
        rgaps_media::save_tensor(prefix, sample.meta(), sample.bytes())
    }

    fn of_file(file: &Media) -> Option<(&Self, &[u8])> {
        if let Media::Tensor { meta, bytes } = file { Some((meta, bytes)) } else { None }
    }
}

impl Content for Bytes {
    fn save(prefix: &Path, sample: &Sample<Self>) -> Result<PathBuf, rgaps_media::SaveError> {
        let path = prefix.with_extension("bin");
        match std::fs::write(&path, sample.bytes()) {
            Ok(()) => Ok(path),
            Err(source) => Err(rgaps_media::SaveError::Write { path, source }),
        }
    }
}

/// The files that a publisher sends in turn, to compare messages with.
struct Expected(Vec<Media>);

impl Expected {
    /// The files that `rgaps pub --input` takes for a topic of type `T`.
    fn load<T: Content>(path: &Path) -> Result<Self, CommandError> {
        let files =
            rgaps_media::select(path, None)?.files.iter().map(rgaps_media::load).collect::<Result<Vec<_>, _>>()?;
        match files.iter().all(|file| T::of_file(file).is_some()) {
            true => Ok(Self(files)),
            false => Err(CommandError::Other(format!("{} holds nothing of type {}", path.display(), T::TYPE_NAME))),
        }
    }

    /// Whether the sample equals the file whose turn it was, by its mark. Stamp, frame and mark are the publisher's.
    fn is<T: Content>(&self, sample: &Sample<T>) -> bool {
        let Some(mark) = Mark::from_user(&sample.meta().header().user) else { return false };
        let file = &self.0[(mark.frame % self.0.len() as u64) as usize];
        T::of_file(file).is_some_and(|(meta, bytes)| {
            let mut got = sample.meta().clone();
            got.header_mut().clone_from(meta.header());
            got == *meta && bytes == sample.bytes()
        })
    }
}

fn follow<T: Content>(
    arguments: &Arguments,
    format: Format,
    node: &Node,
    interrupt: &Interrupt,
) -> Result<Received, CommandError> {
    let expected = arguments.expect.as_deref().map(Expected::load::<T>).transpose()?;
    if let Some(folder) = &arguments.save {
        create_folder(folder)?;
    }
    let subscriber: Subscriber<T> = node.subscriber_with(&arguments.topic, qos(arguments))?;
    let mut tally = Tally::new(subscriber.topic());
    let mut last = Instant::now();
    while !interrupt.is_set() && arguments.count.is_none_or(|count| tally.received.taken < count) {
        let Some(sample) = subscriber.wait(interrupt.patience())? else {
            let silent = arguments.timeout.is_some_and(|timeout| last.elapsed() > timeout);
            if silent {
                tally.received.timed_out = true;
                break;
            }
            continue;
        };
        last = Instant::now();
        tally.count(&sample, expected.as_ref().is_none_or(|expected| expected.is(&sample)));
        if arguments.verbose {
            show(format, &sample);
        }
        if let Some(folder) = &arguments.save {
            T::save(&folder.join(format!("{:06}", sample.info().sequence)), &sample)?;
        }
        if arguments.hold_ms > 0 {
            interrupt.sleep_until(Instant::now() + Duration::from_millis(arguments.hold_ms));
        }
    }
    Ok(tally.finish(subscriber.statistics()))
}

/// Counts and checks received messages.
struct Tally {
    received: Received,
    first: Option<Instant>,
    newest: Instant,
    /// The last sequence number of each publisher of each host.
    sequences: HashMap<([u8; 16], u64), u64>,
    skipped: u64,
}

impl Tally {
    fn new(topic: &str) -> Self {
        let received = Received {
            topic: topic.to_owned(),
            taken: 0,
            bytes: 0,
            mismatched: 0,
            missing: 0,
            statistics: SubscriberStatistics::default(),
            paths: HashMap::new(),
            seconds: 0.0,
            copies_per_subscriber: 0,
            timed_out: false,
        };
        Self { received, first: None, newest: Instant::now(), sequences: HashMap::new(), skipped: 0 }
    }

    /// Counts a sample, and whether it was the expected one.
    fn count<T: Meta>(&mut self, sample: &Sample<T>, is_expected: bool) {
        self.newest = Instant::now();
        self.first.get_or_insert(self.newest);
        let info = sample.info();
        let received = &mut self.received;
        received.taken += 1;
        received.bytes += info.bytes;
        let intact = Mark::from_user(&sample.meta().header().user).is_none_or(|mark| mark.matches(sample.bytes()));
        received.mismatched += u64::from(!(intact && is_expected));
        *received.paths.entry(format!("{} ({})", info.route.name(), info.origin.name())).or_default() += 1;
        let before = self.sequences.insert((info.source_host, info.publisher), info.sequence);
        let step = before.and_then(|before| info.sequence.checked_sub(before)).unwrap_or(0);
        // A larger step means that the numbering restarted; then the messages between are unknown.
        self.skipped += if step > SEQUENCE_STEP_MAX { 0 } else { step.saturating_sub(1) };
    }

    fn finish(mut self, statistics: SubscriberStatistics) -> Received {
        self.received.statistics = statistics;
        // Messages that contradicted themselves were published to us, and have their own counter.
        self.received.missing = self.skipped.saturating_sub(statistics.lost + statistics.malformed);
        self.received.seconds = self.first.map_or(0.0, |first| (self.newest - first).as_secs_f64());
        // The segment counts copies. Proof that there are none: every subscriber maps the same memory (Sample::mapped_from).
        self.received.copies_per_subscriber = statistics.copied_bytes.div_ceil(self.received.bytes.max(1));
        self.received
    }
}

fn show<T: Meta>(format: Format, sample: &Sample<T>) {
    let info = sample.info();
    let latency_us = (sample.taken_ns().saturating_sub(info.stamps.published)) as f64 / 1e3;
    match format {
        Format::Json => output::json(&serde_json::json!({
            "sequence": info.sequence,
            "bytes": info.bytes,
            "latency_us": latency_us,
            "route": info.route.name(),
            "route_reason": info.route_reason.name(),
        })),
        Format::Human => output::line(format_args!(
            "{:>8}  {:>10}  {:>10}  {}",
            info.sequence,
            output::bytes(info.bytes as f64),
            output::micros(latency_us),
            info.route.name()
        )),
    }
}

fn qos(arguments: &Arguments) -> SubscriberQos {
    SubscriberQos {
        reliability: if arguments.best_effort { Reliability::BestEffort } else { Reliability::Reliable },
        durability: if arguments.latch { Durability::TransientLocal } else { Durability::Volatile },
        history: if arguments.keep_all { History::KeepAll } else { History::KeepLast(arguments.depth) },
    }
}
