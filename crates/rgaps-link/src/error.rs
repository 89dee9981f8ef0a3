//! Errors of a link, and which side caused them.
//!
//! Unless a variant says otherwise, an error ends the link, and every later call returns the same error: drop the link, free the partial
//! messages (`Assembler::abandon`), set up a new link and resend the unacknowledged messages. Ring memory and records already taken
//! stay readable.

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
    /// The peer closed the link between two records, or this side did. This is a normal end.
    #[error("link was closed by {}; connect again to go on", if *by_peer { "the peer" } else { "this side" })]
    Closed {
        /// Whether the peer closed it.
        by_peer: bool,
    },
    /// Peer or network: the connection ended in the middle of a record.
    #[error("link was cut {missing} B before the end of a record; the peer died or hung up, connect again")]
    Cut {
        /// Bytes of the record that did not arrive.
        missing: u64,
    },
    /// Peer or network: the connection broke.
    #[error("link broke while {during}: {errno}; the peer died or the network is down, connect again")]
    Broken {
        /// What this side was doing.
        during: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// Peer or network: the peer did not take a record for too long.
    #[error(
        "peer has not taken the last {unsent} B of a record after {waited:?}; it is stopped or the network is slow or down, connect again"
    )]
    SendTimedOut {
        /// Bytes that were not sent.
        unsent: u64,
        /// How long this side waited.
        waited: Duration,
    },
    /// Peer or network: a record stalled in its middle.
    #[error(
        "peer sent nothing for {waited:?}, {missing} B before the end of a record; it is stopped or the network is down"
    )]
    Stalled {
        /// Bytes of the record that did not arrive.
        missing: u64,
        /// How long this side waited.
        waited: Duration,
    },
    /// The peer's consumer releases nothing. The link is not broken; the caller may wait again.
    #[error(
        "no room for {wanted} B after {waited:?}: the peer has released {delayed_head} of {tail} B; \
         its subscriber is stuck or too slow, wait longer, enlarge the ring or switch flow control off"
    )]
    NoCredit {
        /// The payload that needs room.
        wanted: u32,
        /// How long this side waited.
        waited: Duration,
        /// The peer has released everything before this position.
        delayed_head: Position,
        /// The end of the last record sent.
        tail: Position,
    },
    /// The peer's consumer did not consume everything in time. The link is not broken; the caller may wait again.
    #[error(
        "peer has consumed {delayed_head} of {tail} B after {waited:?}; its subscriber is stuck or too slow, wait longer"
    )]
    NotDrained {
        /// How long this side waited.
        waited: Duration,
        /// The peer has released everything before this position.
        delayed_head: Position,
        /// The end of the last record sent.
        tail: Position,
    },
    /// Network: bytes were damaged without its notice. This side used none of them.
    #[error(
        "{what} was damaged by the network: its CRC32C is {found:#010x}, but {sent:#010x} was sent; memory, a network card or a switch \
         between the hosts is faulty, connect again"
    )]
    Corrupt {
        /// What was damaged.
        what: &'static str,
        /// The sum that was sent with it.
        sent: u32,
        /// The sum of the received bytes.
        found: u32,
    },
    /// Peer: it sent a false credit.
    #[error(transparent)]
    Credit(#[from] CreditError),
    /// Peer: it sent an invalid record header.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Peer: it sent a record out of sequence, too large or without credit.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// Caller: the record is invalid. Nothing was sent; the link is not broken.
    #[error("record was not sent: {0}")]
    Unsendable(RecordError),
    /// Caller: it released records out of order. The link is not broken, but the record's bytes stay occupied.
    #[error(
        "record at {found} was released while the one at {expected} is held; release records in the order of next()"
    )]
    ReleaseOrder {
        /// The oldest held record.
        expected: Position,
        /// The record passed to `release`.
        found: Position,
    },
    /// Caller: it waits for too many file descriptors. The link is not broken.
    #[error("cannot wait for {found} file descriptors beside the link; at most {max}")]
    TooManyFileDescriptors {
        /// File descriptors passed.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// Peer, network or RDMA device: a verbs work request failed.
    #[error("transfer failed: {0}")]
    Transfer(#[from] TransferError),
    /// This host: a verbs call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// This process: ring memory could not be allocated or mapped.
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
                | Self::TooManyFileDescriptors { .. }
        )
    }

    /// Whether the peer violated the protocol, so that connecting again to the same program does not help.
    pub fn is_protocol_violation(&self) -> bool {
        matches!(self, Self::Credit(_) | Self::Record(_) | Self::Admit(_))
    }
}
