//! `rgaps pub`: publishes files on a topic.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rgaps::types::{Meta, Stamp};
use rgaps::{Durability, Exhaustion, LoanError, Node, Publisher, PublisherQos, Reliability};
use rgaps_command::output::{self, Format};
use rgaps_control::size;
use serde::Serialize;

use crate::CommandError;
use crate::interrupt::Interrupt;
use crate::parsers::{period, seconds};
use rgaps_media::{Mark, Media};

/// Arguments of `rgaps pub`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The topic, such as camera/front.
    topic: String,
    /// A picture (PNG, JPEG), point cloud (PCD, PLY) or array (NPY), or a folder of them.
    #[arg(long)]
    input: PathBuf,
    /// Messages a second.
    #[arg(long = "rate", value_name = "RATE", default_value = "30", value_parser = period)]
    period: Duration,
    /// Start again after the last file.
    #[arg(long = "loop")]
    repeat: bool,
    /// Wait for this many subscribers first (a remote host counts as one).
    #[arg(long, default_value_t = 0)]
    wait_for: usize,
    /// Best effort: reliable subscribers of other hosts get nothing; on this host a mismatch is a warning. Links send unacknowledged messages again
    /// all the same.
    #[arg(long)]
    best_effort: bool,
    /// Late subscribers that also use --latch get the last DEPTH messages while this command runs; see --linger.
    #[arg(long)]
    latch: bool,
    /// Messages kept for late joiners, and for links to send again.
    #[arg(long, default_value_t = 10)]
    depth: u32,
    /// What to do when the pool is full: wait:MILLISECONDS, drop_oldest or refuse.
    #[arg(long, default_value = "wait:1000", value_parser = exhaustion)]
    exhaustion: Exhaustion,
    /// Bytes of the pool; 64MiB is 2^26, 64M is 64 million.
    #[arg(long, value_parser = size)]
    pool_bytes: Option<u64>,
    /// Links do not wait for a slow receiver: it loses the oldest messages.
    #[arg(long)]
    no_flow_control: bool,
    /// Stay this many seconds after the last message, for late joiners.
    #[arg(long, default_value = "0", value_parser = seconds)]
    linger: Duration,
}

/// How late messages may be and still be published at the rate on average.
const LATENESS_MAX: Duration = Duration::from_millis(100);

#[derive(Serialize)]
struct Published {
    topic: String,
    published: u64,
    bytes: u64,
    refused: u64,
    seconds: f64,
}

/// Runs `rgaps pub`.
pub fn run(arguments: &Arguments, format: Format) -> Result<(), CommandError> {
    let selection = rgaps_media::select(&arguments.input, None)?;
    if selection.others > 0 {
        output::complain(format_args!(
            "rgaps pub: {} files of other kinds are left out; a topic has one type",
            selection.others
        ));
    }
    let files = selection.files.iter().map(rgaps_media::load).collect::<Result<Vec<_>, _>>()?;
    let node = Node::new("rgaps pub")?;
    match files.first() {
        Some(Media::Image { .. }) => stream(arguments, format, &node, &files, |media| match media {
            Media::Image { meta, bytes } => Some((*meta, bytes.as_slice())),
            _ => None,
        }),
        Some(Media::Cloud { .. }) => stream(arguments, format, &node, &files, |media| match media {
            Media::Cloud { meta, bytes } => Some((*meta, bytes.as_slice())),
            _ => None,
        }),
        Some(Media::Tensor { .. }) => stream(arguments, format, &node, &files, |media| match media {
            Media::Tensor { meta, bytes } => Some((*meta, bytes.as_slice())),
            _ => None,
        }),
        None => Err(CommandError::Other(format!("{} holds nothing to publish", arguments.input.display()))),
    }
}

fn stream<T: Meta>(
    arguments: &Arguments,
    format: Format,
    node: &Node,
    files: &[Media],
    open: impl Fn(&Media) -> Option<(T, &[u8])>,
) -> Result<(), CommandError> {
    let publisher: Publisher<T> = node.publisher_with(&arguments.topic, qos(arguments))?;
    // Not earlier: while the publisher waits for a manager, a signal ends the process at once.
    let interrupt = Interrupt::install()?;
    while publisher.subscriber_count() < arguments.wait_for && !interrupt.is_set() {
        interrupt.sleep_until(Instant::now() + Duration::from_millis(20));
    }
    if let Some(hint) = hint(arguments, &publisher) {
        output::complain(format_args!("rgaps pub: {hint}"));
    }
    let start = Instant::now();
    let mut newest = start;
    let mut due = start;
    let mut sample = 0_u64;
    'all: loop {
        for media in files {
            interrupt.sleep_until(due);
            if interrupt.is_set() {
                break 'all;
            }
            // What is later than this is not made up for: no burst follows a stop.
            due = (due + arguments.period).max(Instant::now() - LATENESS_MAX);
            if let Some((meta, bytes)) = open(media) {
                publish(&publisher, meta, bytes, sample)?;
                newest = Instant::now();
                sample += 1;
            }
        }
        if !arguments.repeat {
            break;
        }
    }
    interrupt.sleep_until(Instant::now() + arguments.linger);
    let statistics = publisher.statistics();
    let seconds = start.elapsed().as_secs_f64();
    let published = Published {
        topic: publisher.topic().to_owned(),
        published: statistics.published,
        bytes: statistics.published_bytes,
        refused: statistics.refused,
        seconds,
    };
    match format {
        Format::Json => output::json(&published),
        Format::Human => output::line(format_args!(
            "{}: published {} messages, {}, refused {}, {}",
            published.topic,
            published.published,
            output::bytes(published.bytes as f64),
            published.refused,
            output::rate(published.published, (newest - start).as_secs_f64())
        )),
    }
    Ok(())
}

/// Advice if no subscriber would get the first message.
fn hint<T: Meta>(arguments: &Arguments, publisher: &Publisher<T>) -> Option<String> {
    let kept = arguments.latch && (arguments.repeat || !arguments.linger.is_zero());
    let unseen = publisher.subscriber_count() == 0 && !kept;
    unseen.then(|| {
        format!(
            "{} has no subscriber yet, and messages published before one joins are lost; `--wait-for 1` waits for a subscriber, \
             `--latch --linger 60` keeps the last messages for late `rgaps sub --latch`",
            publisher.topic()
        )
    })
}

/// Publishes one message, written in place. A full pool is reported and the next message tried: a camera does not stop.
fn publish<T: Meta>(publisher: &Publisher<T>, mut meta: T, bytes: &[u8], sample: u64) -> Result<(), CommandError> {
    let header = meta.header_mut();
    header.stamp = Stamp::now();
    header.user = Mark::of(sample, bytes).to_user();
    match publisher.loan(meta) {
        Ok(mut loan) => {
            loan.copy_from_slice(bytes);
            loan.publish()?;
        }
        // It does not fit into the pool, however long the publisher waits.
        Err(error @ rgaps::PublishError::NoSpace { source: LoanError::TooLarge { .. }, .. }) => {
            return Err(error.into());
        }
        Err(error @ rgaps::PublishError::NoSpace { .. }) => output::complain(format_args!("rgaps pub: {error}")),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn qos(arguments: &Arguments) -> PublisherQos {
    PublisherQos {
        reliability: if arguments.best_effort { Reliability::BestEffort } else { Reliability::Reliable },
        durability: if arguments.latch { Durability::TransientLocal } else { Durability::Volatile },
        history_depth: arguments.depth,
        exhaustion: arguments.exhaustion,
        pool_bytes: arguments.pool_bytes,
        flow_control: !arguments.no_flow_control,
    }
}

fn size(text: &str) -> Result<u64, String> {
    size::parse(text).ok_or_else(|| size::RULE.to_owned())
}

fn exhaustion(text: &str) -> Result<Exhaustion, String> {
    match text.split_once(':') {
        None if text == "drop_oldest" => Ok(Exhaustion::DropOldest),
        None if text == "refuse" => Ok(Exhaustion::Refuse),
        Some(("wait", timeout)) => {
            timeout.parse().map(|timeout_ms| Exhaustion::Wait { timeout_ms }).map_err(|error| error.to_string())
        }
        _ => Err("give wait:MILLISECONDS, drop_oldest or refuse".to_owned()),
    }
}
