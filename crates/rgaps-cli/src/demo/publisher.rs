//! The demo's publisher: one process, three topics, every frame made in place in a loaned block.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rgaps::{Exhaustion, Node, Publisher, PublisherQos};
use rgaps_command::output;

use crate::CommandError;
use crate::demo::report::Report;
use crate::demo::topics::TOPICS;
use crate::interrupt::Interrupt;
use crate::scene::{Photograph, Planes, Ripples, Scene};

/// How long a stalled subscriber may delay the publisher. Shorter than the silence after which the demo counts as hung, so that the publisher's own error
/// is shown.
const PATIENCE_MS: u64 = 45_000;
/// How long to wait for all subscribers.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How often to check for subscribers: another host's are known only once its manager has announced them.
const LOOK: Duration = Duration::from_millis(10);
/// Interval between reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Arguments of `rgaps demo-publisher`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    #[arg(long)]
    frames: u64,
    #[arg(long)]
    rate: f64,
    #[arg(long)]
    wait_for: usize,
    #[arg(long)]
    input: Option<PathBuf>,
}

/// Runs `rgaps demo-publisher`.
pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    let scene = |error: crate::scene::SceneError| CommandError::Other(error.to_string());
    let photograph = match &arguments.input {
        None => Photograph::new().map_err(scene)?,
        Some(path) => Photograph::from_file(path).map_err(scene)?,
    };
    let (ripples, planes) = (Ripples::new().map_err(scene)?, Planes::new().map_err(scene)?);
    let node = Node::new("rgaps demo publisher")?;
    let qos = PublisherQos { exhaustion: Exhaustion::Wait { timeout_ms: PATIENCE_MS }, ..PublisherQos::default() };
    let camera = node.publisher_with(TOPICS[0], qos)?;
    let cloud = node.publisher_with(TOPICS[1], qos)?;
    let tensor = node.publisher_with(TOPICS[2], qos)?;
    let counts = || [camera.subscriber_count(), cloud.subscriber_count(), tensor.subscriber_count()];
    let deadline = Instant::now() + START_TIMEOUT;
    while counts().iter().any(|count| *count < arguments.wait_for) && !interrupt.is_set() {
        if Instant::now() > deadline {
            return Err(CommandError::Other(format!(
                "after {} s there are {:?} subscribers",
                START_TIMEOUT.as_secs(),
                counts()
            )));
        }
        interrupt.sleep_until(Instant::now() + LOOK);
    }
    let mut report = Report::default();
    let start = Instant::now();
    let mut told = Instant::now();
    for frame in 0..arguments.frames {
        interrupt.sleep_until(start + Duration::from_secs_f64(frame as f64 / arguments.rate.max(0.001)));
        if interrupt.is_set() {
            break;
        }
        publish(&camera, &photograph, frame, TOPICS[0], &mut report)?;
        publish(&cloud, &ripples, frame, TOPICS[1], &mut report)?;
        publish(&tensor, &planes, frame, TOPICS[2], &mut report)?;
        if told.elapsed() > REPORT_INTERVAL {
            output::json(&report);
            told = Instant::now();
        }
    }
    output::json(&report);
    // Messages outlive their publisher, but a remote host gets them only while the publisher exists.
    let deadline = Instant::now() + Duration::from_millis(PATIENCE_MS);
    let unread = || camera.statistics().outstanding + cloud.statistics().outstanding + tensor.statistics().outstanding;
    while unread() > 0 && !interrupt.is_set() {
        if Instant::now() > deadline {
            let seconds = PATIENCE_MS / 1000;
            return Err(CommandError::Other(format!("{} messages are still unread after {seconds} s", unread())));
        }
        interrupt.sleep_until(Instant::now() + LOOK);
    }
    report.done = true;
    output::json(&report);
    Ok(())
}

fn publish<S: Scene>(
    publisher: &Publisher<S::Type>,
    scene: &S,
    frame: u64,
    topic: &str,
    report: &mut Report,
) -> Result<(), CommandError> {
    let mut loan = publisher.loan(scene.meta())?;
    let meta = scene.make(frame, &mut loan).map_err(|error| CommandError::Other(error.to_string()))?;
    report.bytes += loan.len() as u64;
    loan.set_meta(meta)?;
    loan.publish()?;
    *report.frames.entry(topic.to_owned()).or_default() += 1;
    Ok(())
}
