//! The wait of a publisher for space, and the errors of loans.

use std::fmt;
use std::time::{Duration, Instant};

use rgaps_os::MapError;
use serde::{Deserialize, Serialize};

use crate::notify::{FutexWait, Wait};
use crate::slot::EndpointSlot;
use crate::writer::pool::PoolFull;

/// A publisher that waits for space looks again after this time at the latest: a stream that releases a message wakes no publisher.
const LOOK_FOR_SPACE: Duration = Duration::from_millis(2);

/// What a publisher does when its pool is full. In each case it first gives up history that no subscriber needs, oldest first, if that makes enough
/// room.
///
/// ```
/// use std::time::Duration;
///
/// use rgaps_shm::Exhaustion;
///
/// assert_eq!(Exhaustion::within(Duration::from_millis(200)), Exhaustion::Wait { timeout_ms: 200 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exhaustion {
    /// Wait until subscribers release messages. After `timeout_ms`, drop the oldest unread messages of keep-last subscribers that read nothing
    /// meanwhile; if that is not enough, return `TimedOut`. Such a subscriber is not waited for again until it reads.
    Wait {
        /// The longest wait.
        timeout_ms: u64,
    },
    /// Drop the oldest unread messages of keep-last subscribers. If a subscriber has just joined and the pool is full, this waits for the words by
    /// which it says what it holds: milliseconds, and at most a second.
    DropOldest,
    /// Return an error at once.
    Refuse,
}

impl Exhaustion {
    /// Wait for at most this time, in whole milliseconds.
    pub const fn within(time: Duration) -> Self {
        Self::Wait { timeout_ms: time.as_millis() as u64 }
    }
}

/// What must come free.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// An entry.
    Entry,
    /// An entry, and a block for a message of so many bytes.
    Loan(u64),
    /// So much that blocks use at most these bytes.
    UseAtMost(u64),
}

/// A loan failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoanError {
    /// The pool has no block of that size.
    #[error("the pool is full: {0}; release messages or raise pool_bytes")]
    Pool(#[from] PoolFull),
    /// The message does not fit the pool, even while it is empty.
    #[error("{}; raise pool_bytes", TooLarge(*wanted, *capacity))]
    TooLarge {
        /// Bytes requested.
        wanted: u64,
        /// Bytes of the pool.
        capacity: u64,
    },
    /// Every entry of the publisher's run of the message table is in use.
    #[error(
        "all {0} messages that this publisher may have are held, unread or kept by history; release messages or raise message_count"
    )]
    Messages(u32),
    /// The port has lost its slot.
    #[error(transparent)]
    CutOff(#[from] CutOff),
    /// There was still no space at the time-out.
    #[error("no space after {waited_ms} ms: {full}; {}", Waited(*keeper))]
    TimedOut {
        /// How long the publisher waited.
        waited_ms: u64,
        /// What was missing.
        full: NoSpace,
        /// The subscriber that keeps the publisher's oldest message; `None` if no subscriber does.
        keeper: Option<Keeper>,
    },
}

impl LoanError {
    /// Adds the subscriber that keeps the oldest message to a time-out.
    #[must_use]
    pub fn kept_by(self, keeper: Option<Keeper>) -> Self {
        match self {
            Self::TimedOut { waited_ms, full, .. } => Self::TimedOut { waited_ms, full, keeper },
            other => other,
        }
    }
}

/// A subscriber that keeps a message from being freed: it holds the message, or has not read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// Its process id in the PID namespace of rgapsd.
    pub pid: u32,
    /// Whether it is rgapsd, which sends the message to another host.
    pub is_remote: bool,
}

struct TooLarge(u64, u64);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(wanted, capacity) if wanted > capacity => {
                write!(f, "a message of {wanted} B is larger than the pool of {capacity} B")
            }
            Self(wanted, capacity) => {
                write!(
                    f,
                    "a message of {wanted} B does not fit the pool of {capacity} B even while it is empty: a block is up to 1/32 longer"
                )
            }
        }
    }
}

struct Waited(Option<Keeper>);

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Keeper { is_remote: true, .. }) => {
                write!(
                    f,
                    "rgapsd keeps the oldest message for another host, which has not acknowledged it; raise pool_bytes, or set exhaustion to drop_oldest"
                )
            }
            Some(Keeper { pid, .. }) => {
                write!(
                    f,
                    "a subscriber of process {pid} keeps the oldest message: it holds the message or has not read it"
                )
            }
            None => {
                write!(
                    f,
                    "no subscriber keeps the oldest message: publish or drop open loans, or wait for streams that still fill messages"
                )
            }
        }
    }
}

/// What was missing when a wait for space ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSpace {
    /// A block.
    #[error("{0}")]
    Pool(PoolFull),
    /// A message entry.
    #[error("all {0} messages that this publisher may have are held, unread or kept by history")]
    Messages(u32),
}

/// A port has lost its slot: the slot is free or has another occupant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this publisher or subscriber was cut off from its topic: {0} is free or has another occupant; create it again"
)]
pub struct CutOff(pub EndpointSlot);

/// A port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The slot is free or has another occupant.
    #[error(transparent)]
    CutOff(#[from] CutOff),
    /// The allocator's memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Repeats `attempt` until it succeeds or the time of `Exhaustion::Wait` is over. Arms `space` before each attempt.
pub fn loan_within<L>(
    space: &mut FutexWait,
    exhaustion: Exhaustion,
    mut attempt: impl FnMut() -> Result<L, LoanError>,
) -> Result<L, LoanError> {
    let Exhaustion::Wait { timeout_ms } = exhaustion else { return attempt() };
    let timeout = Duration::from_millis(timeout_ms);
    let start = Instant::now();
    loop {
        let _ = space.arm();
        let outcome = attempt();
        let full = match outcome {
            Err(LoanError::Pool(full)) => NoSpace::Pool(full),
            Err(LoanError::Messages(messages)) => NoSpace::Messages(messages),
            done => {
                space.disarm();
                return done;
            }
        };
        let waited = start.elapsed();
        if waited >= timeout {
            space.disarm();
            return Err(LoanError::TimedOut { waited_ms: waited.as_millis() as u64, full, keeper: None });
        }
        let _ = space.wait((timeout - waited).min(LOOK_FOR_SPACE));
    }
}
