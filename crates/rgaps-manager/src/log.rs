//! The log of `rgapsd`: lines on standard error, none of which a stranger can forge, repeat for ever, or make the disk or the manager suffer by.
//!
//!   event ──▶ one line, plain (`rgaps_control::text`) ──▶ folded ──▶ standard error ──at log_bytes──▶ rgapsd.log.1
//!
//! A client that starts a manager gives it `rgapsd.log` of the runtime directory as standard error. Only there, and nowhere a user or a service
//! manager has led it, is the file moved when it is full; standard error follows, so that what C libraries and panics say is in the log too. (Kept
//! crates that rotate by size write a file of their own and leave standard error behind.)
//!
//! Invariants  L1 writing neither fails nor panics: what cannot be written is counted, and said once writing works again.
//!             L2 neither of the two files has more than `log_bytes`.
//!             L3 a line is written once in `FOLDED_FOR`; how often it was said meanwhile follows.

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

/// How long a line that was written is not written again.
const FOLDED_FOR: Duration = Duration::from_secs(10);
/// Lines that are compared with at most.
const FOLDED_MAX: usize = 64;
/// What is beyond that of a line is left out.
const LINE_BYTES_MAX: usize = 4096;

static LOG: Log =
    Log { state: Mutex::new(State { folding: Folding::new(), output: Output::new() }), changed: Condvar::new() };

struct Log {
    state: Mutex<State>,
    /// Something is folded that was not.
    changed: Condvar,
}

struct State {
    folding: Folding,
    output: Output,
}

/// Events go to the log from now on: those that RGAPS_LOG asks for, else warnings, and what the manager does.
pub fn start() {
    let filter = variable("RGAPS_LOG").and_then(|_| EnvFilter::try_from_env("RGAPS_LOG").ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new("warn,rgaps_manager=info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false);
    log.log_internal_errors(false).with_writer(|| Event).init();
    // Without it, what is folded is told with the next line.
    let _ = std::thread::Builder::new().name("log".to_owned()).spawn(tell_folded);
}

/// From now on the log is bounded, if standard error is this file.
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

/// Goes on in the file that is there now, or a new one, where somebody has removed the one that is bounded.
pub fn come_back() {
    if let Some(file) = &lock().output.file
        && !is_standard_error(&file.path)
        && let Ok(new) = open_private(&file.path, File::options().append(true))
    {
        let _ = rustix::stdio::dup2_stderr(&new);
    }
}

/// Tells what is folded, before the process ends.
pub fn flush() {
    let State { folding, output } = &mut *lock();
    folding.finish(&mut |line| output.write(line));
}

/// Writes a line that is no event.
pub fn complain(text: &str) {
    lock().output.write_bare(&plain_lines(text));
}

/// One event.
struct Event;

impl Write for Event {
    /// The subscriber writes an event as a whole.
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

/// Tells what is folded when its time is over, also if nothing else is logged.
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

/// Lines that were written a short while ago, the oldest first.
struct Folding {
    recent: VecDeque<Recent>,
}

struct Recent {
    line: String,
    /// How often it was said again.
    again: u64,
    until: Instant,
}

impl Folding {
    const fn new() -> Self {
        Self { recent: VecDeque::new() }
    }

    /// Writes a line, unless it was written a short while ago. True if that is the first time that it is not.
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

    /// Tells what was said again of the lines whose time is over.
    fn poll(&mut self, now: Instant, write: &mut impl FnMut(&str)) {
        while self.recent.front().is_some_and(|recent| recent.until <= now) {
            self.tell_oldest(write);
        }
    }

    /// When there is something to tell next.
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

/// The file that standard error is, and that is ours.
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
        // A String takes everything.
        let _ = SystemTime.format_time(&mut Writer::new(&mut stamped));
        stamped.push(' ');
        stamped += line;
        self.write_bare(&stamped);
    }

    fn write_bare(&mut self, line: &str) {
        let lost = match self.unwritten {
            0 => String::new(),
            // What is before it may be half a line.
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
    /// Moves the file if it would be longer than it may be.
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
            // There is no room for another file: the bound holds all the same.
            let _ = rustix::fs::ftruncate(rustix::stdio::stderr(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of these lines, each said at its second, up to `end`.
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
    fn repeated_lines_are_folded_also_among_others_and_counted_when_their_time_is_over() {
        assert_eq!(written(&[(0, "a"), (1, "b"), (2, "a"), (3, "b"), (9, "a")], 9), ["a", "b"]);
        assert_eq!(written(&[(0, "a"), (1, "b"), (2, "a"), (3, "a")], 10), ["a", "b", "said 2 more times: a"]);
        assert_eq!(written(&[(0, "a"), (2, "a"), (10, "a")], 10), ["a", "said 1 more times: a", "a"]);
        let different: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let lines: Vec<_> = different.iter().map(|line| (0, line.as_str())).collect();
        assert_eq!(written(&lines, 0), different);
    }

    #[test]
    fn the_thread_that_tells_is_woken_for_what_is_folded_and_nothing_else() {
        let now = Instant::now();
        let mut folding = Folding::new();
        assert!(!folding.handle_line(now, "a", &mut |_| ()) && folding.due().is_none());
        assert!(folding.handle_line(now, "a", &mut |_| ()) && folding.due() == Some(now + FOLDED_FOR));
        assert!(!folding.handle_line(now, "a", &mut |_| ()));
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        assert_eq!(shortened("short".to_owned()), "short");
        let line = shortened("ä".repeat(4000));
        assert!(line.len() < LINE_BYTES_MAX + 32 && line.ends_with("... (3904 B more)"), "{}", line.len());
    }
}
