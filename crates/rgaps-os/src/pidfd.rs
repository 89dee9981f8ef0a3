//! A process as a file descriptor. It is readable once the last thread of the process and its memory are gone; a closed socket does not prove that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

pub use rustix::process::Signal;

/// Stops or kills this process at once (SIGSTOP, SIGKILL), for tests of sudden death. Sends the signal to this thread: if it were sent to the
/// process, another thread could take it while this one runs on for a while.
pub fn signal_here(signal: Signal) -> io::Result<()> {
    // SAFETY: sends a signal, and touches no memory.
    let sent = unsafe { libc::raise(signal.as_raw()) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether no process has this id. The id may belong to a thread of another process now; then too, the process is dead (pidfd_open(2)).
pub fn is_dead(pid: u32) -> io::Result<bool> {
    match PidFd::open(pid) {
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::SRCH | Errno::INVAL | Errno::NOENT) => Ok(true),
            _ => Err(error),
        },
        Ok(process) => process.is_dead(),
    }
}

/// Paths to the open files of a process (proc_pid_fd(5)). They are read from a thread that has not ended: the main thread may have ended while the
/// process goes on, and then the kernel shows no files for it. An error if no thread shows any.
pub fn open_files(pid: u32) -> io::Result<impl Iterator<Item = PathBuf>> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let listed = match std::fs::read_dir(thread?.path().join("fd")) {
            // This thread has just ended.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) => continue,
            listed => listed?,
        };
        let mut paths = listed.map_while(Result::ok).map(|entry| entry.path()).peekable();
        if paths.peek().is_some() {
            return Ok(paths);
        }
    }
    Err(io::Error::other(format!("no thread of process {pid} shows its open files")))
}

/// A pidfd.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// This process.
    pub fn own() -> io::Result<Self> {
        Ok(Self(pidfd_open(getpid(), PidfdFlags::empty())?))
    }

    /// The process with this id, if it lives.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Takes over a file descriptor from another process. An error if it is no pidfd of a process that is visible from here.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let pidfd = Self(fd);
        pidfd.pid()?;
        Ok(pidfd)
    }

    /// The process id of the file descriptor (`Pid:` in its fdinfo). An error once the process is reaped.
    pub fn pid(&self) -> io::Result<u32> {
        use std::os::fd::AsRawFd;
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))?;
        text.lines()
            .find_map(|line| line.strip_prefix("Pid:"))
            .and_then(|pid| pid.trim().parse::<u32>().ok())
            .filter(|pid| *pid != 0)
            .ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "the file descriptor is no pidfd of a living process")
            })
    }

    /// Whether the process is dead.
    pub fn is_dead(&self) -> io::Result<bool> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)))? > 0)
    }

    /// A second file descriptor of the same process.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<PidFd> for OwnedFd {
    fn from(pidfd: PidFd) -> Self {
        pidfd.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfd_names_its_process_and_turns_readable_when_it_dies() {
        let own = PidFd::own().unwrap();
        assert_eq!(own.pid().unwrap(), std::process::id());
        assert!(!own.is_dead().unwrap());
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let watched = PidFd::open(child.id()).unwrap();
        assert!(!watched.is_dead().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watched.is_dead().unwrap());
    }

    #[test]
    fn a_file_descriptor_that_is_no_pidfd_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(PidFd::from_fd(file.into()).is_err());
    }

    #[test]
    fn the_id_of_a_thread_is_that_of_no_process() {
        let (says, said) = std::sync::mpsc::channel();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            says.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = end.recv();
        });
        let number = said.recv().unwrap();
        assert!(is_dead(number).unwrap() && !is_dead(std::process::id()).unwrap());
        drop(ends);
        thread.join().unwrap();
    }

    #[test]
    fn what_a_process_has_open_is_found() {
        let (reads, _writes) = io::pipe().unwrap();
        let own = crate::memfd::identity(&reads).unwrap();
        let mut found = open_files(std::process::id()).unwrap();
        assert!(found.any(|path| crate::found::identity_at(&path).is_ok_and(|found| found == own)));
    }
}
