//! Between `rgaps bench` and a process of a peer: lines of text.
//!
//! ```text
//!   bench ─▶ publisher    publish COUNT      a line on standard input; its end ends the process
//!   publisher ─▶ bench    ready              on standard output: the bench may go on
//!                         sent NUMBER NS     the burst's last message, and the monotonic time just before its first one was published
//!   subscriber ─▶ bench   ready
//!                         got NUMBER NS      a message whose report is wanted, and the monotonic time when it was received, or read
//! ```
//!
//! Messages are numbered from 1. Each begins with its number and, if the subscribers should report it, a word that is not 0. Only the last message of
//! a burst is reported, so that reports do not slow it down. A message that goes alone is filled before its time is taken, those of a burst after it.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Failed;

/// Bytes at the start of a message: number, and whether to report.
const HEADER_BYTES: usize = 16;
const CACHE_LINE: usize = 64;
/// Between the filling of a message and its publication, so that subscribers sleep again; as in the bench.
const PACE: Duration = Duration::from_micros(300);

/// A publisher of some middleware.
pub(crate) trait Publisher {
    /// A message that is filled and not published.
    type Message;

    /// A message whose bytes are all written by `fill`.
    fn loan(&mut self, fill: impl FnOnce(&mut [u8])) -> Result<Self::Message, Failed>;

    /// Publishes it.
    fn publish(&mut self, message: Self::Message) -> Result<(), Failed>;
}

/// Publishes as standard input says, until it ends.
pub(crate) fn publish(publisher: &mut impl Publisher) -> Result<(), Failed> {
    say(format_args!("ready"));
    let mut number = 0_u64;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let count: u64 = line.strip_prefix("publish ").ok_or_else(|| format!("unknown command {line:?}"))?.parse()?;
        let start = match count {
            0 => return Err("no message to publish".into()),
            1 => {
                let message = publisher.loan(|bytes| fill(bytes, number + 1, true))?;
                std::thread::sleep(PACE);
                let start = monotonic_ns();
                publisher.publish(message)?;
                start
            }
            count => {
                let start = monotonic_ns();
                for of_burst in 1..=count {
                    let message = publisher.loan(|bytes| fill(bytes, number + of_burst, of_burst == count))?;
                    publisher.publish(message)?;
                }
                start
            }
        };
        number += count;
        say(format_args!("sent {number} {start}"));
    }
    Ok(())
}

fn fill(bytes: &mut [u8], number: u64, report: bool) {
    bytes.fill(number as u8);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..HEADER_BYTES].copy_from_slice(&u64::from(report).to_le_bytes());
}

/// Reports the messages of a subscriber.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reporter {
    read: bool,
}

impl Reporter {
    /// `read`: read every cache line of a message first.
    pub(crate) fn new(read: bool) -> Self {
        Self { read }
    }

    /// The subscriber is subscribed.
    pub(crate) fn ready(self) {
        say(format_args!("ready"));
    }

    /// A message came, in one part or several.
    pub(crate) fn got<'a>(self, parts: impl Iterator<Item = &'a [u8]> + Clone) {
        let mut header = parts.clone().flatten().copied();
        let mut word = || {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(&mut header).for_each(|(to, from)| *to = from);
            u64::from_le_bytes(bytes)
        };
        let (number, report) = (word(), word());
        if self.read {
            let lines = parts.flat_map(|part| part.iter().step_by(CACHE_LINE));
            black_box(lines.fold(0_u64, |sum, byte| sum + u64::from(*byte)));
        }
        if report != 0 {
            let now = monotonic_ns();
            say(format_args!("got {number} {now}"));
        }
    }
}

/// Returns when standard input ends: the bench has ended.
pub(crate) fn wait_for_the_end() {
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        line.clear();
    }
}

fn say(text: std::fmt::Arguments<'_>) {
    // One write a line: the lines of threads do not mix, and the bench never sees half of one.
    let line = format!("{text}\n");
    if std::io::stdout().write_all(line.as_bytes()).and_then(|()| std::io::stdout().flush()).is_err() {
        // Nobody listens any more.
        std::process::exit(0);
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
