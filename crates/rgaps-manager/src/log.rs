//! The log of `rgapsd` on standard error. Other processes and hosts can neither forge its lines nor use it to fill the disk or stall the manager.
//!
//!   event ──▶ one line, plain (`rgaps_control::text`) ──▶ folded ──▶ standard error ──at log_bytes──▶ rgapsd.log.1
//!
//! A client that starts a manager gives it `rgapsd.log` of the runtime directory as standard error. Only that file is rotated when it is full, never
//! one to which a user or a service manager has redirected standard error. Standard error follows the rotation, so that output of C libraries and
//! panics is in the log too. (Crates that rotate logs write a file of their own and leave standard error behind.)
//!
//! Invariants  L1 logging neither fails nor panics: lines that cannot be written are counted, and the count is written once writing works again.
//!             L2 neither of the two files has more than `log_bytes`.
//!             L3 a line is written once in `FOLDED_FOR`; the number of its repetitions follows.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_control::config::variable;
use rgaps_control::runtime::open_private;
use rgaps_control::text::{plain, plain_lines};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// How long repetitions of a written line are folded.
const FOLDED_FOR: Duration = Duration::from_secs(10);
/// Recent lines that a new line is compared with, at most.
const FOLDED_MAX: usize = 64;
/// Bytes of a line that are written, at most.
const LINE_BYTES_MAX: usize = 4096;

static LOG: Log =
    Log { state: Mutex::new(State { folding: Folding::new(), output: Output::new() }), changed: Condvar::new() };

struct Log {
    state: Mutex<State>,
    /// A line has its first folded repetition.
    changed: Condvar,
}

struct State {
    folding: Folding,
    output: Output,
}

/// Starts logging: the events that RGAPS_LOG selects, by default warnings and what the manager does.
pub fn start() {
    let filter = variable("RGAPS_LOG").and_then(|_| EnvFilter::try_from_env("RGAPS_LOG").ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new("warn,rgaps_manager=info,rgaps_control=info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false);
    log.log_internal_errors(false).with_writer(|| Event).init();
    // If the thread cannot be started, counts of repetitions are written with the next line.
    let _ = std::thread::Builder::new().name("log".to_owned()).spawn(tell_folded);
}

/// Bounds the log from now on, if standard error is this file.
pub fn bound(path: &Path, bytes_max: u64) {
    if is_standard_error(path) {
        lock().output.file = Some(Rotating { path: path.to_owned(), bytes_max });
    }
}

fn is_standard_error(path: &Path) -> bool {
    let is_it = |found: std::fs::Metadata| {
        rustix::fs::fstat(rustix::stdio::stderr())
            .is_ok_and(|own| (own.st_dev, own.st_ino) == (found.dev(), found.ino()))
    };
    std::fs::metadata(path).is_ok_and(is_it)
}

/// Continues in the file that is now at the log's path, or in a new one, if another process has removed the bounded one.
pub fn come_back() {
    if let Some(file) = &lock().output.file
        && !is_standard_error(&file.path)
        && let Ok(new) = open_private(&file.path, File::options().append(true))
    {
        let _ = rustix::stdio::dup2_stderr(&new);
    }
}

/// Writes the counts of folded lines, before the process ends.
pub fn flush() {
    let State { folding, output } = &mut *lock();
    folding.finish(&mut |line| output.write(line));
}

/// Writes a line that is not an event.
pub fn complain(text: &str) {
    lock().output.write_bare(&plain_lines(text));
}

/// One event.
struct Event;

impl Write for Event {
    /// The tracing subscriber writes each event in one call.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = shortened(plain(text.trim_end_matches('\n')).into_owned());
        let State { folding, output } = &mut *lock();
        if folding.handle_line(Instant::now(), &line, &mut |line| output.write(line)) {
            LOG.changed.notify_one();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock() -> MutexGuard<'static, State> {
    LOG.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the counts of folded lines when their time is over, even if nothing else is logged.
fn tell_folded() {
    let mut state = lock();
    loop {
        let now = Instant::now();
        let State { folding, output } = &mut *state;
        folding.poll(now, &mut |line| output.write(line));
        let due = folding.due();
        state = match due {
            Some(due) => {
                let waited = LOG.changed.wait_timeout(state, due.saturating_duration_since(now));
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => LOG.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

fn shortened(mut line: String) -> String {
    let bytes = line.len();
    if bytes > LINE_BYTES_MAX {
        let end = (0..=LINE_BYTES_MAX).rev().find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or(0));
        line += &format!(" ... ({} B more)", bytes - line.len());
    }
    line
}

/// Recently written lines, the oldest first.
struct Folding {
    recent: VecDeque<Recent>,
}

struct Recent {
    line: String,
    /// How often it was repeated since.
    again: u64,
    until: Instant,
}

impl Folding {
    const fn new() -> Self {
        Self { recent: VecDeque::new() }
    }

    /// Writes a line, unless it was written recently. True if this is its first folded repetition.
    fn handle_line(&mut self, now: Instant, line: &str, write: &mut impl FnMut(&str)) -> bool {
        self.poll(now, write);
        if let Some(recent) = self.recent.iter_mut().find(|recent| recent.line == line) {
            recent.again += 1;
            return recent.again == 1;
        }
        if self.recent.len() == FOLDED_MAX {
            self.tell_oldest(write);
        }
        self.recent.push_back(Recent { line: line.to_owned(), again: 0, until: now + FOLDED_FOR });
        write(line);
        false
    }

    /// Writes the counts of the lines whose time is over.
    fn poll(&mut self, now: Instant, write: &mut impl FnMut(&str)) {
        while self.recent.front().is_some_and(|recent| recent.until <= now) {
            self.tell_oldest(write);
        }
    }

    /// When the next count is due.
    fn due(&self) -> Option<Instant> {
        self.recent.iter().find(|recent| recent.again > 0).map(|recent| recent.until)
    }

    fn finish(&mut self, write: &mut impl FnMut(&str)) {
        while !self.recent.is_empty() {
            self.tell_oldest(write);
        }
    }

    fn tell_oldest(&mut self, write: &mut impl FnMut(&str)) {
        if let Some(Recent { line, again: again @ 1.., .. }) = self.recent.pop_front() {
            write(&format!("said {again} more times: {}", line.trim_start()));
        }
    }
}

/// Standard error.
struct Output {
    file: Option<Rotating>,
    /// Lines that could not be written since the last one that could.
    unwritten: u64,
}

/// The log file that standard error is redirected to.
struct Rotating {
    path: PathBuf,
    bytes_max: u64,
}

impl Output {
    const fn new() -> Self {
        Self { file: None, unwritten: 0 }
    }

    /// Writes a line with the time before it.
    fn write(&mut self, line: &str) {
        let mut stamped = String::new();
        // Writing to a String does not fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut stamped));
        stamped.push(' ');
        stamped += line;
        self.write_bare(&stamped);
    }

    fn write_bare(&mut self, line: &str) {
        let lost = match self.unwritten {
            0 => String::new(),
            // The file may end with half a line.
            count => format!("\n{count} lines before this one could not be written\n"),
        };
        let text = format!("{lost}{line}\n");
        if let Some(file) = &self.file {
            file.make_room(text.len() as u64);
        }
        match io::stderr().write_all(text.as_bytes()) {
            Ok(()) => self.unwritten = 0,
            Err(_) => self.unwritten += 1,
        }
    }
}

impl Rotating {
    /// Rotates the file if `bytes` more would exceed its bound.
    fn make_room(&self, bytes: u64) {
        let length = rustix::fs::fstat(rustix::stdio::stderr()).map_or(0, |found| found.st_size as u64);
        if length == 0 || length + bytes <= self.bytes_max {
            return;
        }
        let moved = std::fs::rename(&self.path, self.path.with_extension("log.1")).and_then(|()| {
            let new = open_private(&self.path, File::options().append(true))?;
            Ok(rustix::stdio::dup2_stderr(&new)?)
        });
        if moved.is_err() {
            // There is no room for another file: truncate this one, so that the bound holds.
            let _ = rustix::fs::ftruncate(rustix::stdio::stderr(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written up to `end`, for lines that are logged at the given seconds.
    fn written(lines: &[(u64, &str)], end: u64) -> Vec<String> {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut folding = Folding::new();
        let mut all = Vec::new();
        for (second, line) in lines {
            folding.handle_line(at(*second), line, &mut |line| all.push(line.to_owned()));
        }
        folding.poll(at(end), &mut |line| all.push(line.to_owned()));
        all
    }

    #[test]
    fn repeated_lines_are_folded_even_among_others_and_counted_later() {
        assert_eq!(written(&[(0, "a"), (1, "b"), (2, "a"), (3, "b"), (9, "a")], 9), ["a", "b"]);
        assert_eq!(written(&[(0, "a"), (1, "b"), (2, "a"), (3, "a")], 10), ["a", "b", "said 2 more times: a"]);
        assert_eq!(written(&[(0, "a"), (2, "a"), (10, "a")], 10), ["a", "said 1 more times: a", "a"]);
        let different: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let lines: Vec<_> = different.iter().map(|line| (0, line.as_str())).collect();
        assert_eq!(written(&lines, 0), different);
    }

    #[test]
    fn the_thread_that_writes_counts_is_woken_for_folded_lines_only() {
        let now = Instant::now();
        let mut folding = Folding::new();
        assert!(!folding.handle_line(now, "a", &mut |_| ()) && folding.due().is_none());
        assert!(folding.handle_line(now, "a", &mut |_| ()) && folding.due() == Some(now + FOLDED_FOR));
        assert!(!folding.handle_line(now, "a", &mut |_| ()));
    }

    #[test]
    fn a_long_line_is_cut_and_shows_how_much_is_missing() {
        assert_eq!(shortened("short".to_owned()), "short");
        let line = shortened("ä".repeat(4000));
        assert!(line.len() < LINE_BYTES_MAX + 32 && line.ends_with("... (3904 B more)"), "{}", line.len());
    }
}
