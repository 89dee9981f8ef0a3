//! The report of a manager that was started on demand: one line of JSON on its standard output, which is a pipe to the client that started it.
//!
//! Why a pipe: the log may hold lines of other managers, and the exit status comes too early, since the started process exits at once and the
//! manager goes on in its own session.
//!
//! Deaths      if the manager dies, its end of the pipe closes, which is `Heard::Nothing`. If the client dies, the manager ignores the failed write.
//! Trusts      nothing: the client skips lines that are not an outcome (RGAPSD may be a script that prints), up to `SAID_BYTES_MAX`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::text::plain_lines;

/// Bytes of output that a client reads, at most; a manager's reason is a few lines.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// How the start of a manager went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartOutcome {
    /// It listens.
    Listens,
    /// Another manager has the runtime directory: it listens, is about to listen, or is about to exit.
    Taken,
    /// It could not start, for this reason.
    Failed(String),
}

/// What a client has read from the pipe.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// An outcome.
    Said(StartOutcome),
    /// The pipe closed without an outcome.
    Nothing,
    /// Nothing before the deadline.
    TooLate,
}

impl StartOutcome {
    /// Reports the outcome, then replaces standard output by /dev/null, so that a reader of the pipe reaches its end before the manager exits.
    pub fn say(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            // The client may be gone.
            let _ = writeln!(io::stdout(), "{line}");
        }
        if let Ok(nothing) = File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(&nothing);
        }
    }
}

/// Waits for a manager's outcome on a pipe.
pub(super) fn hear(pipe: &File, deadline: Instant) -> io::Result<Heard> {
    let mut rest = pipe.take(SAID_BYTES_MAX);
    let mut lines = Lines::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Heard::TooLate);
        }
        if !rgaps_os::poll::readable(pipe, left)? {
            continue;
        }
        let mut part = [0; 1024];
        let read = match rest.read(&mut part) {
            Ok(0) => return Ok(Heard::Nothing),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if let Some(outcome) = lines.outcome_in(&part[..read]) {
            return Ok(Heard::Said(outcome));
        }
    }
}

/// The bytes read since the last newline.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The first outcome whose line these bytes end.
    fn outcome_in(&mut self, bytes: &[u8]) -> Option<StartOutcome> {
        for byte in bytes {
            if *byte != b'\n' {
                self.0.push(*byte);
            } else if let Ok(outcome) = serde_json::from_slice(&self.0) {
                return Some(shown(outcome));
            } else {
                self.0.clear();
            }
        }
        None
    }
}

/// Makes a reason safe to show, with its newlines: RGAPSD may be a script that prints anything.
fn shown(outcome: StartOutcome) -> StartOutcome {
    match outcome {
        StartOutcome::Failed(reason) => StartOutcome::Failed(plain_lines(&reason).into_owned()),
        outcome => outcome,
    }
}

/// Fuzz entry: any bytes as the output of a program in RGAPSD. The outcome does not depend on how the bytes are split, and is safe to show.
pub fn fuzz_outcome(data: &[u8]) -> bool {
    let at_once = Lines::default().outcome_in(data);
    let mut lines = Lines::default();
    assert_eq!(data.chunks(1).find_map(|byte| lines.outcome_in(byte)), at_once);
    if let Some(StartOutcome::Failed(reason)) = &at_once {
        assert_eq!(plain_lines(reason), *reason);
    }
    at_once.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// What a client reads from a manager that writes `said` and exits.
    fn heard(said: &str) -> Heard {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(said.as_bytes()).unwrap();
        drop(writer);
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        hear(&pipe, Instant::now() + Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn an_outcome_is_found_among_other_lines_and_its_absence_is_reported() {
        let failed = StartOutcome::Failed("two\nlines with \"quotes\"".to_owned());
        for outcome in [StartOutcome::Listens, StartOutcome::Taken, failed] {
            let line = serde_json::to_string(&outcome).unwrap();
            assert_eq!(heard(&format!("{line}\n")), Heard::Said(outcome.clone()));
            assert_eq!(heard(&format!("starting\n\n{line}\nmore\n")), Heard::Said(outcome));
            assert_eq!(heard(&line), Heard::Nothing, "half a line");
        }
        let acts = serde_json::to_string(&StartOutcome::Failed("a\x1b[2J".to_owned())).unwrap();
        assert_eq!(heard(&format!("{acts}\n")), Heard::Said(StartOutcome::Failed(r"a\u{1b}[2J".to_owned())));
        assert_eq!(heard(""), Heard::Nothing);
        assert_eq!(heard(&"x".repeat(60_000)), Heard::Nothing);
    }

    #[test]
    fn a_client_waits_for_a_silent_manager_until_the_deadline() {
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(hear(&pipe, Instant::now()).unwrap(), Heard::TooLate);
        assert_eq!(hear(&pipe, Instant::now() + Duration::from_millis(20)).unwrap(), Heard::TooLate);
    }
}
