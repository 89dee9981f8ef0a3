//! What can break a link, and which side it broke on.
//!
//! Unless a variant says otherwise, the link is gone after an error and every later call returns the same one: drop it, free what the
//! assembler still holds (`Assembler::abandon`), build a new link and send again what was not acknowledged. Ring memory and arrivals
//! already taken stay readable.

use std::time::Duration;

use rustix::io::Errno;

use crate::credit::CreditError;
use crate::memory::RingMemoryError;
use crate::position::Position;
use crate::rdma::{TransferError, VerbsError};
use crate::record::RecordError;
use crate::ring::AdmitError;

/// An error of a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the link between two records, or this side did. Nothing is broken.
    #[error("link was closed by {}; connect again to go on", if *by_peer { "the peer" } else { "this side" })]
    Closed {
        /// Who.
        by_peer: bool,
    },
    /// The peer or the way to it: the connection ended in the middle of a record.
    #[error("link was cut {missing} B before the end of a record; the peer died or hung up, connect again")]
    Cut {
        /// Bytes of the record that never came.
        missing: u64,
    },
    /// The peer or the way to it: the connection broke while doing something.
    #[error("link broke while {during}: {errno}; the peer died or the network is down, connect again")]
    Broken {
        /// What was being done.
        during: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The peer or the way to it: nothing could be sent.
    #[error("peer took none of {unsent} B for {waited:?}; it is stopped or the network is down, connect again")]
    SendTimedOut {
        /// Bytes that were not sent.
        unsent: u64,
        /// How long.
        waited: Duration,
    },
    /// The peer or the way to it: a record stopped coming in its middle.
    #[error(
        "peer sent nothing for {waited:?}, {missing} B before the end of a record; it is stopped or the network is down"
    )]
    Stalled {
        /// Bytes of the record that did not come.
        missing: u64,
        /// How long.
        waited: Duration,
    },
    /// The peer's consumer: it gives nothing back. The link is not broken and may be waited for again.
    #[error(
        "no room for {wanted} B after {waited:?}: the peer has given back up to {delayed_head} of {tail} B; \
         its subscriber is stuck or too slow, wait longer, enlarge the ring or switch flow control off"
    )]
    NoCredit {
        /// The payload that wants room.
        wanted: u32,
        /// How long.
        waited: Duration,
        /// What the peer has given back.
        delayed_head: Position,
        /// What was sent.
        tail: Position,
    },
    /// The peer's consumer: it did not consume everything in time. The link is not broken and may be waited for again.
    #[error(
        "peer has consumed {delayed_head} of {tail} B after {waited:?}; its subscriber is stuck or too slow, wait longer"
    )]
    NotDrained {
        /// How long.
        waited: Duration,
        /// What the peer has given back.
        delayed_head: Position,
        /// What was sent.
        tail: Position,
    },
    /// The way to the peer: bytes were damaged on it, which the network did not see. Nothing of them was believed.
    #[error(
        "{what} was damaged on the way: its CRC32C is {found:#010x}, not {sent:#010x} as sent; memory, a network card or a switch \
         between the hosts is faulty, connect again"
    )]
    Corrupt {
        /// What was damaged.
        what: &'static str,
        /// The sum that came with it.
        sent: u32,
        /// The sum of what came.
        found: u32,
    },
    /// The peer lies about credit.
    #[error(transparent)]
    Credit(#[from] CreditError),
    /// The peer sends something that is not a record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The peer sends a record that must not come now.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// The caller's record is not valid. Nothing was sent; the link is not broken.
    #[error("record was not sent: {0}")]
    Unsendable(RecordError),
    /// The caller releases arrivals out of order. The link is not broken, but the arrival's bytes stay occupied.
    #[error(
        "arrival at {found} was released while the one at {expected} is held; release arrivals in the order of next()"
    )]
    ReleaseOrder {
        /// The oldest arrival that is held.
        expected: Position,
        /// The one released.
        found: Position,
    },
    /// The caller waits for too many descriptors. The link is not broken.
    #[error("{found} descriptors to wait for beside the link; at most {max}")]
    TooManyDescriptors {
        /// How many.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The peer, the way to it, or the device: a transfer by verbs did not complete.
    #[error("transfer failed: {0}")]
    Transfer(#[from] TransferError),
    /// This machine: a call of the verbs library failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// This process: the ring's memory.
    #[error(transparent)]
    Memory(#[from] RingMemoryError),
}

impl LinkError {
    /// Whether the link can still be used.
    pub fn is_fatal(&self) -> bool {
        !matches!(
            self,
            Self::NoCredit { .. }
                | Self::NotDrained { .. }
                | Self::Unsendable(_)
                | Self::ReleaseOrder { .. }
                | Self::TooManyDescriptors { .. }
        )
    }

    /// Whether the peer broke the protocol, so that connecting again to the same program will not help.
    pub fn is_lie(&self) -> bool {
        matches!(self, Self::Credit(_) | Self::Record(_) | Self::Admit(_))
    }
}
