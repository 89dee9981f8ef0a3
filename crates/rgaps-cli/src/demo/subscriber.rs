//! A subscriber of the demo: one process, three topics. It checks every frame's checksum in place and computes an edge picture from each camera
//! frame in place.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rgaps::types::{Image, Meta, PointCloud, Tensor};
use rgaps::{History, Node, Sample, Subscriber, SubscriberQos};
use rgaps_bench::measure::percentile;
use rgaps_command::output;

use crate::CommandError;
use crate::demo::report::{Report, STAGES};
use crate::demo::topics::TOPICS;
use crate::edges::EdgePicture;
use crate::interrupt::Interrupt;
use rgaps_media::Mark;

/// Interval between reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// It gives up after this long without a frame; missing frames count as lost.
const SILENCE: Duration = Duration::from_secs(40);
/// How many stage times are kept for the percentiles.
const SAMPLES_MAX: usize = 4096;

/// Arguments of `rgaps demo-subscriber`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    #[arg(long)]
    name: String,
    #[arg(long)]
    frames: u64,
    /// Path of the edge picture, without its extension.
    #[arg(long)]
    out: PathBuf,
}

/// Runs `rgaps demo-subscriber`.
pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    let node = Node::new(format!("rgaps demo {}", arguments.name))?;
    let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
    let camera: Subscriber<Image> = node.subscriber_with(TOPICS[0], qos)?;
    let cloud: Subscriber<PointCloud> = node.subscriber_with(TOPICS[1], qos)?;
    let tensor: Subscriber<Tensor> = node.subscriber_with(TOPICS[2], qos)?;
    // The demo waits for this line: no frame after it is missed.
    output::json(&Report::default());
    let mut tally = Tally::default();
    let mut edges = EdgePicture::default();
    let mut told = Instant::now();
    let mut last = Instant::now();
    while !interrupt.is_set() && tally.total() < 3 * arguments.frames && last.elapsed() < SILENCE {
        if let Some(frame) = camera.wait(Duration::from_millis(50))? {
            last = Instant::now();
            tally.count(TOPICS[0], &frame);
            edges.trace(frame.meta(), frame.bytes()).map_err(|error| CommandError::Other(error.to_string()))?;
        }
        for frame in cloud.take_all()? {
            last = Instant::now();
            tally.count(TOPICS[1], &frame);
        }
        for frame in tensor.take_all()? {
            last = Instant::now();
            tally.count(TOPICS[2], &frame);
        }
        if told.elapsed() > REPORT_INTERVAL {
            output::json(&tally.report(told.elapsed()));
            told = Instant::now();
        }
    }
    if edges.width() > 0 {
        edges.save(&arguments.out)?;
    }
    let statistics = [camera.statistics(), cloud.statistics(), tensor.statistics()];
    let mut report = tally.report(told.elapsed());
    report.hz = tally.mean_hz();
    report.lost += statistics.iter().map(|statistics| statistics.lost).sum::<u64>();
    let copied: u64 = statistics.iter().map(|statistics| statistics.copied_bytes).sum();
    report.copied_bytes = copied.saturating_sub(report.fetched_bytes);
    report.mapped = tally.mapped();
    report.done = true;
    output::json(&report);
    Ok(())
}

/// Counts and checks received frames.
#[derive(Default)]
struct Tally {
    report: Report,
    camera_reported: u64,
    sequences: BTreeMap<String, u64>,
    stages: [Vec<f64>; STAGES.len()],
    /// Device and inode of the memory that frames were read from, and whether the kernel shows it as read-only.
    mapped: BTreeMap<(u64, u64), bool>,
    first: Option<Instant>,
}

impl Tally {
    fn total(&self) -> u64 {
        self.report.frames.values().sum()
    }

    fn count<T: Meta>(&mut self, topic: &str, frame: &Sample<T>) {
        let info = frame.info();
        self.first.get_or_insert_with(Instant::now);
        *self.report.frames.entry(topic.to_owned()).or_default() += 1;
        self.report.bytes += info.bytes;
        self.report.fetched_bytes += if frame.is_in_place() { 0 } else { info.bytes };
        let intact = Mark::from_user(&frame.meta().header().user).is_some_and(|mark| mark.matches(frame.bytes()));
        self.report.mismatched += u64::from(!intact);
        let before = self.sequences.insert(topic.to_owned(), info.sequence).unwrap_or(0);
        self.report.lost += info.sequence.saturating_sub(before + 1);
        self.report.route = info.route.name().to_owned();
        self.report.route_reason = info.route_reason.name().to_owned();
        // Check now: a pool is released soon after its publisher has left.
        let (memory, _) = frame.mapped_from();
        self.mapped.entry(memory).or_insert_with(|| is_read_only(memory.1));
        if topic == TOPICS[0] {
            let stamps = &info.stamps;
            let ends = [stamps.staged, stamps.sent, stamps.landed, stamps.pooled, frame.taken_ns()];
            for (samples, end) in self.stages.iter_mut().zip(ends) {
                if samples.len() < SAMPLES_MAX && end > 0 {
                    samples.push(end.saturating_sub(stamps.published) as f64 / 1e3);
                }
            }
        }
    }

    fn report(&mut self, since: Duration) -> Report {
        let camera = self.report.frames.get(TOPICS[0]).copied().unwrap_or(0);
        self.report.hz = (camera - self.camera_reported) as f64 / since.as_secs_f64().max(1e-3);
        self.camera_reported = camera;
        self.report.stages =
            self.stages.iter_mut().map(|samples| (percentile(samples, 50.0), percentile(samples, 99.0))).collect();
        self.report.clone()
    }

    /// The mean rate; 0 for a single frame.
    fn mean_hz(&self) -> f64 {
        let seconds = self.first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        self.camera_reported.saturating_sub(1) as f64 / seconds.max(1e-3)
    }

    fn mapped(&self) -> Vec<(u64, u64, bool)> {
        self.mapped.iter().map(|((device, inode), read_only)| (*device, *inode, *read_only)).collect()
    }
}

/// Whether memory is mapped in this process, and no page of it is writable, according to the kernel.
fn is_read_only(inode: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut lines = maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode.to_string())).peekable();
    lines.peek().is_some() && lines.all(|line| line.split_whitespace().nth(1).is_some_and(|mode| !mode.contains('w')))
}
