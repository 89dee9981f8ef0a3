//! The rdma link: the same ring and records as tcp, written by the sender's network card into the receiver's memory.
//!
//! ```text
//!  RdmaSender ══ WRITE WITH IMM: header, envelope, data; the immediate is the record's number ══▶ ring, RdmaReceiver
//!      ▲ ▲                                                                                          │  │
//!      │ └──────────── WRITE of {head, !head} into the sender's credit words ───────────────────────┘  │
//!      └─────────────── liveness socket: a tcp connection; says the end, and by its own end a death ──────────┘
//! ```
//!
//! Credit      is one-sided, so nobody wakes when it comes. A sender that is about to sleep for it asks with an empty WRITE WITH IMM that says
//!             how far it knows; the next credit that says more is then written WITH IMM and wakes it. At most one request is out.
//! Receives    Each immediate takes a posted receive. The ring holds at most `RingGeometry::records_max` records, and the receiver posts that
//!             many and REQUESTS_MAX more. They are posted again before credit is given, so a sender that keeps to its credit always finds one.
//! Deaths      The liveness socket's end is the peer's death, seen at once after a kill; a silent network uses up the retries. Either ends the
//!             link; both ends are made anew and joined by a new hand-shake.
//! Rights      A peer's key opens one ring, or one pair of credit words. Each peer has a protection domain of its own.
//! Source      RGAPS paper §2.4, §3.4, §3.5; InfiniBand Architecture Specification 1.6, chapters 9 to 11; rdma-core's verbs.h.

mod completion;
mod domain;
mod library;
mod liveness_socket;
mod port;
mod queue_pair;
mod receiver;
mod sender;
mod sys;
#[cfg(test)]
mod tests;

pub use completion::TransferError;
pub use domain::{Domain, VerbsError};
pub use library::Missing;
pub use port::{Candidate, Gid, LinkLayer, Port, PortGid, ports};
pub use queue_pair::Address;
pub use receiver::{RdmaReceiver, ReceiverEnd};
pub use sender::{RdmaSender, SenderEnd};

use std::time::Duration;

/// The most records that a ring may hold: each takes a receive. More small records than that are never under way.
pub const RECEIVES_MAX: u64 = 8192;
/// Requests for credit that may be on their way at once, each of which takes a receive.
const REQUESTS_MAX: u32 = 2;

/// Time-outs of an rdma link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaOptions {
    /// A peer that acknowledges nothing for so long is given up.
    pub dead_peer_timeout: Duration,
    /// How long a side looks at its completion queue before it sleeps. Zero sleeps at once: the least CPU time, a few µs more latency.
    pub spin: Duration,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self { dead_peer_timeout: Duration::from_secs(2), spin: Duration::ZERO }
    }
}

/// Memory of one side into which the other side may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Where it starts, as its owner sees it.
    pub address: u64,
    /// The key that opens it.
    pub key: u32,
    /// How long it is.
    pub bytes: u64,
}
