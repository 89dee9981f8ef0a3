//! Resets what a program inherits from the process that started it, for a program that outlives that process: file descriptors, blocked and ignored
//! signals, limits.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Marks all open file descriptors but standard input, output and error as close-on-exec, so that programs started from now on do not inherit them.
pub fn keep_fds() -> io::Result<()> {
    const FROM: libc::c_uint = 3;
    // SAFETY: marks open file descriptors (Linux 5.11), and touches no memory.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, FROM, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == 0 {
        return Ok(());
    }
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        if number >= FROM as RawFd {
            // SAFETY: borrowed for two calls only, which fail if the number is no longer open.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            let _ = fcntl_getfd(fd).and_then(|flags| fcntl_setfd(fd, flags | FdFlags::CLOEXEC));
        }
    }
    Ok(())
}

/// Unblocks every signal, and restores the default action of every ignored one but SIGPIPE, which Rust programs ignore. Call it before other
/// threads start.
pub fn reset_signals() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        if disposition(signal) == Some(libc::SIG_IGN) {
            // SAFETY: SIG_DFL is no handler that could run.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    // SAFETY: all zeros is a set; it is filled next.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives through the call.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: the set lives through the call, and no old set is requested.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
}

fn disposition(signal: libc::c_int) -> Option<libc::sighandler_t> {
    // SAFETY: all zeros is a value of this type; it is overwritten.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: changes nothing; `found` lives through the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut found) };
    (asked == 0).then_some(found.sa_sigaction)
}

/// Ignores SIGXFSZ: a write beyond RLIMIT_FSIZE is an error (EFBIG) from now on, and does not end the process.
pub fn ignore_long_files() {
    // SAFETY: SIG_IGN is no handler that could run.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// A resource limit of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name in setrlimit(2).
    pub name: &'static str,
    /// Its value, in its own unit.
    pub value: u64,
    unit: &'static str,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.name, self.value, self.unit)
    }
}

const LIMITS: [(Resource, &str, &str); 4] = [
    (Resource::Fsize, "RLIMIT_FSIZE", " B"),
    (Resource::Cpu, "RLIMIT_CPU", " s"),
    (Resource::As, "RLIMIT_AS", " B"),
    (Resource::Data, "RLIMIT_DATA", " B"),
];

/// Raises the limits on files, processor time and memory to their hard limits.
pub fn raise_limits() {
    for (resource, ..) in LIMITS {
        let maximum = getrlimit(resource).maximum;
        // `limits` reports those that cannot be raised.
        let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
    }
}

/// The limits that apply to files, processor time and memory.
pub fn limits() -> Vec<Limit> {
    let now = LIMITS.map(|(resource, name, unit)| getrlimit(resource).current.map(|value| Limit { name, value, unit }));
    now.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_started_program_inherits_no_file_descriptor_that_was_open() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        keep_fds().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        drop(writing);
        let mut end = std::fs::File::from(reading);
        assert_eq!(std::io::Read::read(&mut end, &mut [0]).unwrap(), 0, "no process has the other end");
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_limit_is_raised_to_its_maximum_and_reported_with_its_number() {
        let before = getrlimit(Resource::Cpu);
        setrlimit(Resource::Cpu, Rlimit { current: Some(100_000), maximum: before.maximum }).unwrap();
        assert!(limits().iter().any(|limit| limit.to_string() == "RLIMIT_CPU 100000 s"));
        raise_limits();
        assert_eq!(getrlimit(Resource::Cpu).current, before.maximum);
    }

    #[test]
    fn ignored_signals_get_their_default_action_back() {
        // SAFETY: SIG_IGN is no handler that could run.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        reset_signals();
        assert_eq!(disposition(libc::SIGUSR2), Some(libc::SIG_DFL));
        ignore_long_files();
        assert_eq!(disposition(libc::SIGXFSZ), Some(libc::SIG_IGN));
    }
}
