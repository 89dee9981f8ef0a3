//! A child process that does not outlive its guard, and waits with a time-out for its end or stop.

use std::io::{self, BufRead, BufReader, Lines};
use std::os::fd::OwnedFd;
use std::process::{ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid};

/// How often a wait checks for a stop, which no file descriptor announces (unlike an end).
const STOP_TICK: Duration = Duration::from_millis(2);

/// The state of a child after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited or was killed.
    Exited(ExitStatus),
    /// It is stopped by SIGSTOP.
    Stopped,
    /// It neither ended nor stopped in time.
    StillRunning,
}

/// A child process. Dropping this kills and reaps it.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    pid: Pid,
    pidfd: OwnedFd,
    /// Its standard output, once `output_after` reads it.
    output: Option<Lines<BufReader<ChildStdout>>>,
}

impl Child {
    /// Starts the process.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command.spawn()?;
        match pid_and_fd(&child) {
            Ok((pid, pidfd)) => Ok(Self { child, pid, pidfd, output: None }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The standard library's handle, for its pipes.
    pub fn std(&mut self) -> &mut std::process::Child {
        &mut self.child
    }

    /// Reads its standard output, which must be a pipe, up to the next line with the word, and returns what follows the word there. `None` at the
    /// end of the output. Blocks for as long as the child says nothing.
    pub fn output_after(&mut self, word: &str) -> Option<String> {
        if self.output.is_none() {
            self.output = self.child.stdout.take().map(|output| BufReader::new(output).lines());
        }
        let lines = self.output.as_mut()?.map_while(Result::ok);
        lines.filter_map(|line| Some(line.split_once(word)?.1.to_owned())).next()
    }

    /// Whether its main thread has ended. The process goes on while it has others (proc_pid_stat(5): Z).
    pub fn has_no_main_thread(&self) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.id()));
        state.is_ok_and(|state| state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
    }

    /// Waits until it ends, at most for `limit`.
    pub fn wait_within(&mut self, limit: Duration) -> io::Result<Ended> {
        if self.poll_end(limit)? { Ok(Ended::Exited(self.child.wait()?)) } else { Ok(Ended::StillRunning) }
    }

    /// Waits until it ends or is stopped, at most for `limit`.
    pub fn wait_end_or_stop_within(&mut self, limit: Duration) -> io::Result<Ended> {
        let deadline = Instant::now() + limit;
        loop {
            if self.is_stopped()? {
                return Ok(Ended::Stopped);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.poll_end(left.min(STOP_TICK))? {
                return Ok(Ended::Exited(self.child.wait()?));
            }
            if left.is_zero() {
                return Ok(Ended::StillRunning);
            }
        }
    }

    /// Sends SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::TERM)?)
    }

    /// Sends SIGINT, like Ctrl-C.
    pub fn interrupt(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::INT)?)
    }

    /// Sends SIGSTOP.
    pub fn stop(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::STOP)?)
    }

    /// Sends SIGCONT.
    pub fn go_on(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    fn poll_end(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        Ok(poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&limit))? > 0)
    }

    /// Checks for a stop without consuming it; an end is left to `Child::wait`. It also waits for ends, since waitid(2) returns ECHILD for an ended
    /// child if it waits for stops alone.
    fn is_stopped(&self) -> io::Result<bool> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.pid), options)?.is_some_and(|status| status.stopped()))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Fails only for a child that has ended; `wait` then returns at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pid_and_fd(child: &std::process::Child) -> io::Result<(Pid, OwnedFd)> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((pid, pidfd_open(pid, PidfdFlags::empty())?))
}

/// Sends SIGKILL to a process that is not a child of this one, such as a manager that a client has started.
pub fn kill_9(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, Signal::KILL)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    const LIMIT: Duration = Duration::from_secs(20);

    fn cat() -> Child {
        Child::spawn(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null())).unwrap()
    }

    #[test]
    fn a_dropped_guard_leaves_no_process() {
        let child = cat();
        let id = child.id();
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn a_wait_distinguishes_a_stop_an_end_and_neither() {
        let mut child = cat();
        assert_eq!(child.wait_within(Duration::ZERO).unwrap(), Ended::StillRunning);
        assert_eq!(child.wait_end_or_stop_within(Duration::ZERO).unwrap(), Ended::StillRunning);
        child.stop().unwrap();
        assert_eq!(child.wait_end_or_stop_within(LIMIT).unwrap(), Ended::Stopped);
        child.go_on().unwrap();
        drop(child.std().stdin.take());
        assert!(
            matches!(child.wait_end_or_stop_within(LIMIT).unwrap(), Ended::Exited(status) if status.success()),
            "cat ends with its input"
        );
        let mut killed = cat();
        assert_eq!(killed.kill().unwrap().signal(), Some(9));
    }
}
