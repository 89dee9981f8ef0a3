//! `rgaps demo`: RGAPS on one machine, with nothing faked. Two managers act as two hosts. One publisher streams a photograph, a point cloud and an
//! array. Two subscribers on its own host and eight on the other read every frame in place, check it and compute an edge picture from it.

mod board;
pub(crate) mod hosts;
mod publisher;
mod report;
mod subscriber;
mod topics;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rgaps::device::Choice;
use rgaps_command::device;
use rgaps_command::output::{self, Format};
use rgaps_testing::{Child, Ended};

pub use publisher::Arguments as PublisherArguments;
pub use publisher::run as run_publisher;
pub use subscriber::Arguments as SubscriberArguments;
pub use subscriber::run as run_subscriber;

use crate::demo::board::Board;
use crate::demo::hosts::{DemoHosts, Side};
use crate::demo::report::{Report, Summary};
use crate::demo::topics::TOPICS;
use crate::interrupt::Interrupt;
use crate::{CommandError, create_folder};

/// How long all processes may be silent before the demo counts as hung.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a process may take to exit after closing its output.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the live table is redrawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(500);

/// Arguments of `rgaps demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Frames to publish on each topic.
    #[arg(long, default_value_t = 300)]
    frames: u64,
    /// Frames a second.
    #[arg(long, default_value_t = 10.0)]
    rate: f64,
    /// Subscriber processes on the publisher's host.
    #[arg(long, default_value_t = 2)]
    local: usize,
    /// Subscriber processes on the other host.
    #[arg(long, default_value_t = 8)]
    remote: usize,
    /// A picture to stream instead of the bundled one, resized to 1920x1080.
    #[arg(long)]
    input: Option<PathBuf>,
    /// Folder for the edge pictures.
    #[arg(long, default_value = "demo-out")]
    out: PathBuf,
    /// Transport between the hosts: auto, tcp or rdma; default: as configured.
    #[arg(long, value_parser = hosts::TRANSPORTS)]
    transport: Option<String>,
    /// Device of the hosts: auto, host, cuda, cuda:N or cuda:GPU-UUID; default: as configured.
    #[arg(long)]
    device: Option<Choice>,
    /// Use two loopback addresses even if network namespaces are available.
    #[arg(long)]
    loopback: bool,
}

/// A line that a process printed.
enum Line {
    Said(usize, Box<Report>),
    Ended(usize),
}

/// Runs `rgaps demo`.
pub fn run(arguments: &Arguments, format: Format) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    device::opened(arguments.device)?;
    let hosts = DemoHosts::new(arguments.loopback, arguments.transport.as_deref(), arguments.device)?;
    if format == Format::Human {
        output::line(hosts.describe());
    }
    create_folder(&arguments.out)?;
    let outcome = play(arguments, format, &hosts, &interrupt);
    let left = hosts.clear_up();
    let summary = outcome?;
    print(&summary, arguments, format);
    left?;
    match summary.is_good() {
        true => Ok(()),
        false => Err(CommandError::Other("the demo did not deliver every frame; see the table above".to_owned())),
    }
}

fn play(
    arguments: &Arguments,
    format: Format,
    hosts: &DemoHosts,
    interrupt: &Interrupt,
) -> Result<Summary, CommandError> {
    let (sender, lines) = channel();
    let mut children = Vec::new();
    let mut names = Vec::new();
    for (side, count) in [(Side::A, arguments.local), (Side::B, arguments.remote)] {
        for number in 1..=count {
            let name = format!("{}{number}", side.letter());
            let out = arguments.out.join(format!("edges-{name}"));
            let mut command = hosts.command(side)?;
            command
                .args(["demo-subscriber", "--name", &name, "--frames", &arguments.frames.to_string(), "--out"])
                .arg(out);
            children.push(start(&mut command, names.len(), &sender)?);
            names.push((name, side));
        }
    }
    await_subscribers(&lines, &mut children, interrupt)?;
    let before = hosts.received_bytes()?;
    let mut command = hosts.command(Side::A)?;
    let waiting = arguments.local + usize::from(arguments.remote > 0);
    command.args(["demo-publisher", "--frames", &arguments.frames.to_string(), "--rate", &arguments.rate.to_string()]);
    command.args(["--wait-for", &waiting.to_string()]);
    if let Some(input) = &arguments.input {
        command.arg("--input").arg(input);
    }
    let publisher = names.len();
    children.push(start(&mut command, publisher, &sender)?);
    drop(sender);
    let mut board = Board::new(names, arguments.frames, format);
    follow(&lines, &mut board, &mut children, publisher, interrupt)?;
    let received = hosts.received_bytes()?.zip(before).map(|(after, before)| after - before);
    Ok(board.finish(received, hosts.is_namespaces()))
}

fn start(command: &mut std::process::Command, index: usize, lines: &Sender<Line>) -> Result<Child, CommandError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Child::spawn(command)?;
    let Some(stdout) = child.std().stdout.take() else {
        return Err(CommandError::Other("a process of the demo has no output".to_owned()));
    };
    let lines = lines.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Ok(report) = serde_json::from_str(&line) {
                let _ = lines.send(Line::Said(index, Box::new(report)));
            }
        }
        let _ = lines.send(Line::Ended(index));
    });
    Ok(child)
}

/// Waits for a process that has closed its output; an error unless it exits successfully.
fn end(child: &mut Child, what: &str) -> Result<(), CommandError> {
    match child.wait_within(END_TIMEOUT)? {
        Ended::Exited(status) if status.success() => Ok(()),
        Ended::Exited(status) => {
            Err(CommandError::Other(format!("{what} of the demo has failed, see above ({status})")))
        }
        Ended::Stopped | Ended::StillRunning => {
            let seconds = END_TIMEOUT.as_secs();
            Err(CommandError::Other(format!(
                "{what} of the demo has closed its output, but has not ended after {seconds} s"
            )))
        }
    }
}

/// Waits until each subscriber has reported that it has joined its topics, so that it misses no frame. The publisher cannot know this: it sees all
/// subscribers of the other host as one.
fn await_subscribers(
    lines: &Receiver<Line>,
    children: &mut [Child],
    interrupt: &Interrupt,
) -> Result<(), CommandError> {
    let start = Instant::now();
    let mut ready = BTreeSet::new();
    let count = children.len();
    while ready.len() < count {
        let line = lines.recv_timeout(interrupt.patience());
        // Ctrl-C also ends the processes.
        if interrupt.is_set() {
            return Err(CommandError::Other("interrupted".to_owned()));
        }
        match line {
            Ok(Line::Said(index, _)) => drop(ready.insert(index)),
            Ok(Line::Ended(index)) => {
                end(&mut children[index], "a subscriber")?;
                return Err(CommandError::Other("a subscriber has ended before the first frame".to_owned()));
            }
            Err(_) if start.elapsed() > SILENCE => {
                let (ready, seconds) = (ready.len(), SILENCE.as_secs());
                return Err(CommandError::Other(format!(
                    "only {ready} of {count} subscribers have joined after {seconds} s"
                )));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Follows the reports until all processes have ended, or one has failed.
fn follow(
    lines: &Receiver<Line>,
    board: &mut Board,
    children: &mut [Child],
    publisher: usize,
    interrupt: &Interrupt,
) -> Result<(), CommandError> {
    let mut running = children.len();
    let mut heard = Instant::now();
    let mut drawn = Instant::now();
    while running > 0 {
        let line = lines.recv_timeout(interrupt.patience());
        if interrupt.is_set() {
            return Err(CommandError::Other("interrupted".to_owned()));
        }
        match line {
            Ok(Line::Said(index, report)) => {
                heard = Instant::now();
                board.take(if index == publisher { None } else { Some(index) }, *report);
            }
            Ok(Line::Ended(index)) => {
                end(&mut children[index], if index == publisher { "the publisher" } else { "a subscriber" })?;
                running -= 1;
            }
            Err(_) if heard.elapsed() > SILENCE => {
                return Err(CommandError::Other(format!(
                    "no process has reported anything for {} s",
                    SILENCE.as_secs()
                )));
            }
            Err(_) => {}
        }
        if drawn.elapsed() >= DRAW_INTERVAL {
            board.draw();
            drawn = Instant::now();
        }
    }
    Ok(())
}

fn print(summary: &Summary, arguments: &Arguments, format: Format) {
    if format == Format::Json {
        return output::json(summary);
    }
    output::line(format_args!(
        "each frame is three messages, one of each topic ({}): frames, lost, mismatched and bytes count all three, \
         rate and times are the camera's; times run from publication until a frame was staged, sent, had landed, was in the other host's pool, and was taken",
        TOPICS.join(", ")
    ));
    output::line(summary.table());
    if let Some(wire) = &summary.wire {
        output::line(format_args!(
            "host B's interface received {} for {} of payload: {:.3} times, with {} subscribers there",
            output::bytes(wire.received_bytes as f64),
            output::bytes(wire.payload_bytes as f64),
            wire.times,
            arguments.remote
        ));
    }
    if summary.fetched_bytes > 0 {
        output::line(format_args!(
            "subscribers fetched {} from the device, to check them by the CPU",
            output::bytes(summary.fetched_bytes as f64)
        ));
    }
    output::line(format_args!("edge pictures: {}", arguments.out.display()));
    output::line(format_args!(
        "frames {} subscribers {} lost {} mismatched {} copies/subscriber {}",
        summary.frames, summary.subscribers, summary.lost, summary.mismatched, summary.copies_per_subscriber
    ));
}
