//! What a manager that was started on demand says to whoever started it: one line of JSON on its standard output, which is a pipe of the
//! client's.
//!
//! A pipe and not the log: the log may hold what others wrote before, and at the same time. And not the exit status: what the client has
//! started leaves at once, since the manager goes on in a session of its own.
//!
//! Deaths      a manager that is killed or crashes takes its end of the pipe along, which is `Heard::Nothing`. A client that is gone reads
//!             no more, which the manager does not mind.
//! Trusts      nothing: lines that are no outcome (RGAPSD may be a script that talks) are passed over, up to `SAID_BYTES_MAX`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::text::plain_lines;

/// Most that is read of what a manager says; its reason is a line or a few.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// How the start of a manager went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartOutcome {
    /// It listens.
    Listens,
    /// Another manager has the runtime directory, and listens, or will, or is about to leave.
    Taken,
    /// It does not start, for this reason.
    Failed(String),
}

/// What a client has heard.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// This.
    Said(StartOutcome),
    /// The manager is gone without a word.
    Nothing,
    /// Nothing yet, and the time is over.
    TooLate,
}

impl StartOutcome {
    /// Says it, once, and releases standard output: whoever reads that to its end shall not wait until the manager ends.
    pub fn say(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            // Whoever has asked may be gone.
            let _ = writeln!(io::stdout(), "{line}");
        }
        if let Ok(nothing) = File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(&nothing);
        }
    }
}

/// Waits for what a manager says on a pipe.
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

/// What was said since the last newline.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The first outcome, if these bytes end its line.
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

/// A reason may have lines; a script in RGAPSD may say anything.
fn shown(outcome: StartOutcome) -> StartOutcome {
    match outcome {
        StartOutcome::Failed(reason) => StartOutcome::Failed(plain_lines(&reason).into_owned()),
        outcome => outcome,
    }
}

/// Fuzz entry: any bytes as what a program in RGAPSD says. The same is heard of it in whatever pieces it comes, and can be shown.
pub fn fuzz_outcome(data: &[u8]) {
    let at_once = Lines::default().outcome_in(data);
    let mut lines = Lines::default();
    assert_eq!(data.chunks(1).find_map(|byte| lines.outcome_in(byte)), at_once);
    if let Some(StartOutcome::Failed(reason)) = at_once {
        assert_eq!(plain_lines(&reason), reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// What is heard of a manager that says this and is gone.
    fn heard(said: &str) -> Heard {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(said.as_bytes()).unwrap();
        drop(writer);
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        hear(&pipe, Instant::now() + Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn an_outcome_is_heard_among_other_lines_and_an_end_without_one_is_told_apart() {
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
    fn who_says_nothing_is_waited_for_no_longer_than_the_deadline() {
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(hear(&pipe, Instant::now()).unwrap(), Heard::TooLate);
        assert_eq!(hear(&pipe, Instant::now() + Duration::from_millis(20)).unwrap(), Heard::TooLate);
    }
}
