//! Connects to a manager: says hello, and takes the lock that shows the manager and its successors that this client lives.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rgaps_control::local::{
    Body, Connection, HELD_LOCKS_MAX, LocalError, Notice, PROTOCOL_VERSION, Refusal, Reply, Request, ToClient, Welcome,
};
use rgaps_control::spawn::{self, Autostart, SpawnError};
use rgaps_control::{LockId, RuntimeDir};
use rgaps_os::{PidFd, ProcessLock};
use rgaps_shm::layout::LAYOUT_VERSION;

/// How long a manager may take to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between attempts to reach the next manager after one that died.
pub(crate) const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);

/// A time-out that does not run while this process is stopped: the other side is not late then. It is waited for in slices, and a slice that took
/// longer counts only its own length.
#[derive(Debug)]
pub(crate) struct StopAwareTimeout(Duration);

impl StopAwareTimeout {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self(timeout)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_zero()
    }

    /// Calls `wait` with the next slice.
    pub(crate) fn wait<T>(&mut self, wait: impl FnOnce(Duration) -> T) -> T {
        let slice = self.0.min(RECONNECT_INTERVAL);
        let began = Instant::now();
        let outcome = wait(slice);
        self.0 -= slice.min(began.elapsed());
        outcome
    }
}

/// A request to the manager failed.
#[derive(thiserror::Error)]
pub enum SessionError {
    /// No manager runs, and none could be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The connection failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The manager refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The manager did not answer.
    #[error("rgapsd (process {pid}) did not answer within {waited_ms} ms; is it stopped? its log is {}", log.display())]
    TimedOut {
        /// How long the request waited.
        waited_ms: u64,
        /// The manager's process id; 0 if it is in another PID namespace.
        pid: u32,
        /// The log file.
        log: PathBuf,
    },
    /// The manager ended before it answered, and so did its successors.
    #[error(
        "rgapsd has ended before it answered, {deaths} times in a row, each time another one: see its log, {log}, the kernel's log (out of \
         memory?) and its limits (ulimit -a)"
    )]
    Died {
        /// How many managers ended.
        deaths: u32,
        /// The log file.
        log: PathBuf,
    },
    /// The answer is not one to this request.
    #[error("rgapsd sent an answer that does not belong to the request; restart rgapsd, and use one version of RGAPS")]
    Confused,
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl SessionError {
    /// The manager of this connection did not answer.
    pub(crate) fn timed_out(connection: &Connection, dir: &RuntimeDir, waited: Duration) -> Self {
        let pid = connection.peer().map_or(0, |peer| peer.pid);
        Self::TimedOut { waited_ms: waited.as_millis() as u64, pid, log: dir.log() }
    }

    /// Whether file descriptors or memory ran out, here or in the manager: a later attempt may succeed.
    pub(crate) fn is_lack(&self) -> bool {
        let of_connection = |error: &LocalError| match error {
            LocalError::FileDescriptors { .. } | LocalError::TooManyUnread { .. } => true,
            LocalError::Io(error) | LocalError::Socket { source: error, .. } => is_lack(error),
            _ => false,
        };
        match self {
            Self::Io(_) | Self::Refused(Refusal::Exhausted(_)) => true,
            Self::Local(error) | Self::Spawn(SpawnError::Local(error)) => of_connection(error),
            _ => false,
        }
    }
}

/// Whether an error of any type is EMFILE, ENFILE or ENOMEM, as the standard library writes them.
pub(crate) fn is_lack(error: &dyn std::error::Error) -> bool {
    let text = error.to_string();
    ["(os error 24)", "(os error 23)", "(os error 12)"].iter().any(|part| text.contains(part))
}

/// The locks by which managers may know this client: the lock that the last manager confirmed, and locks that later managers gave before they died,
/// since they may have noted them. The next manager is told all of them. When a manager confirms one, the others are released.
#[derive(Debug, Default)]
pub(crate) struct Locks(Vec<(LockId, ProcessLock)>);

impl Locks {
    fn ids(&self) -> Vec<LockId> {
        self.0.iter().map(|(id, _)| *id).collect()
    }

    fn add(&mut self, id: LockId, lock: ProcessLock) {
        if self.0.len() == HELD_LOCKS_MAX {
            // Notes may still name this client by the first lock, or by the latest one.
            self.0.remove(1);
        }
        self.0.push((id, lock));
    }

    /// A manager has confirmed this lock: releases all others. False if this lock is not held.
    fn keep_only(&mut self, id: LockId) -> bool {
        let is_held = self.0.iter().any(|(held, _)| *held == id);
        if is_held {
            self.0.retain(|(held, _)| *held == id);
        }
        is_held
    }
}

/// What this client tells a manager about itself, and its successor if that manager dies.
#[derive(Debug)]
pub(crate) struct Hello<'a> {
    pub(crate) dir: &'a RuntimeDir,
    pub(crate) program: &'a str,
    pub(crate) locks: &'a mut Locks,
    /// Set by another thread when the client waits for no answer any more.
    pub(crate) is_over: &'a AtomicBool,
}

/// A manager that knows this client.
#[derive(Debug)]
pub(crate) struct Welcomed {
    pub(crate) connection: Connection,
    pub(crate) welcome: Welcome,
}

impl Hello<'_> {
    /// Connects and says hello. Tries again, for `ANSWER_TIMEOUT` in all, if a manager dies before it answers.
    pub(crate) fn say_until_answered(&mut self, autostart: Autostart) -> Result<Welcomed, SessionError> {
        let mut timeout_left = StopAwareTimeout::new(ANSWER_TIMEOUT);
        let mut was_there = false;
        loop {
            let error = match self.say(autostart) {
                Ok(welcomed) => return Ok(welcomed),
                Err(error) => error,
            };
            was_there |= matches!(error, SessionError::Local(LocalError::Closed));
            let is_between = matches!(&error, SessionError::Spawn(SpawnError::Forbidden(_) | SpawnError::Guest { .. }));
            let is_gone = matches!(error, SessionError::Local(LocalError::Closed)) || was_there && is_between;
            if !is_gone || timeout_left.is_over() {
                return Err(error);
            }
            tracing::debug!(%error, "rgapsd died before it answered");
            timeout_left.wait(std::thread::sleep);
        }
    }

    /// Connects and says hello.
    pub(crate) fn say(&mut self, autostart: Autostart) -> Result<Welcomed, SessionError> {
        let connection = spawn::connect(self.dir, autostart)?;
        let pidfd = PidFd::own()?;
        let (program, locks) = (self.program.to_owned(), self.locks.ids());
        let hello = Body::Hello { protocol: PROTOCOL_VERSION, program, layout: LAYOUT_VERSION, locks };
        let (reply, files) = ask((&connection, self.dir), hello, &[pidfd.as_fd()], self.is_over, |_| ())?;
        let Reply::Welcome(welcome) = reply else { return Err(SessionError::Confused) };
        if let Some(file) = files.into_iter().next() {
            // The lock is kept even if no answer comes, since the manager may have noted it.
            self.locks.add(welcome.lock, ProcessLock::take(file)?);
            ask((&connection, self.dir), Body::Locked, &[], self.is_over, |_| ())?;
        }
        if !self.locks.keep_only(welcome.lock) {
            return Err(SessionError::Confused);
        }
        Ok(Welcomed { connection, welcome })
    }
}

/// Sends a request and waits for its answer, on a connection that no other thread reads, unless `is_over`. Notices that arrive meanwhile go to
/// `notice`.
pub(crate) fn ask(
    (connection, dir): (&Connection, &RuntimeDir),
    body: Body,
    fds: &[BorrowedFd<'_>],
    is_over: &AtomicBool,
    mut notice: impl FnMut(Notice),
) -> Result<(Reply, Vec<OwnedFd>), SessionError> {
    connection.send(&Request { id: 0, body }, fds)?;
    let began = Instant::now();
    loop {
        let left = ANSWER_TIMEOUT.saturating_sub(began.elapsed());
        let packet = connection.receive::<ToClient>(left.min(RECONNECT_INTERVAL))?;
        let complete = packet.as_ref().map_or(Ok(()), |packet| packet.complete());
        match packet.map(|packet| (packet.message, packet.fds)) {
            Some((ToClient::Reply { id: 0, reply }, fds)) => {
                return complete.map(|()| Ok((reply?, fds)))?;
            }
            Some((ToClient::Reply { .. }, _)) => {}
            Some((ToClient::Notice(came), _)) => notice(came),
            None if left.is_zero() || is_over.load(Ordering::Acquire) => {
                return Err(SessionError::timed_out(connection, dir, began.elapsed()));
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_a_stop_makes_long_counts_as_it_was_meant() {
        let mut timeout_left = StopAwareTimeout::new(RECONNECT_INTERVAL * 2);
        let too_long = |slice: Duration| {
            let began = Instant::now();
            while began.elapsed() < slice * 4 {
                std::hint::spin_loop();
            }
        };
        timeout_left.wait(too_long);
        assert!(!timeout_left.is_over());
        timeout_left.wait(too_long);
        assert!(timeout_left.is_over());
    }
}
