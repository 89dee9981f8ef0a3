//! The rdma link: the same ring and records as tcp, which the sender's NIC writes into the receiver's memory.
//!
//! ```text
//!  RdmaSender ══ WRITE WITH IMM: header, envelope, data; the immediate is the record's number ══▶ ring, RdmaReceiver
//!      ▲ ▲                                                                                          │  │
//!      │ └──────────── WRITE of {head, !head} into the sender's credit words ───────────────────────┘  │
//!      └── liveness socket: a tcp connection; carries the orderly end, and its own end reports a death ──┘
//! ```
//!
//! Credit      is a one-sided WRITE, which wakes no thread. A sender that is about to sleep requests a wake-up by an empty WRITE WITH IMM that
//!             states its delayed head; the receiver sends the next newer credit WITH IMM, which wakes the sender. At most one request is
//!             outstanding.
//! Receives    Each immediate consumes a posted receive. The ring holds at most `RingGeometry::records_max` records; the receiver posts that
//!             many receives and REQUESTS_MAX more. It reposts them before it sends credit, so a sender within its credit always finds one.
//! Grants      A receiver may grant blocks of its consumer. The sender writes the data of a large message straight into one, and then header, envelope
//!             and the grant's number into the ring. Where there is no grant, all goes into the ring (`grants`).
//! Deaths      The liveness socket ends when the peer dies, at once after a kill; a silent network exhausts the retries. Either ends the
//!             link; a new hand-shake then sets up new ends.
//! Rights      A remote key gives access to one ring, to one granted block until its message is complete, or to one page of credit words and grants.
//!             Each peer has its own protection domain.
//! Source      Jiang, master's thesis (RGAPS), 2026, sections 2.4, 3.4 and 3.5 (full title in lib.rs); InfiniBand Architecture Specification
//!             1.6, chapters 9 to 11; rdma-core's verbs.h.

mod completion;
mod device_memory;
#[cfg(test)]
mod device_memory_tests;
mod domain;
#[cfg(test)]
mod grant_tests;
mod grants;
mod library;
mod liveness_socket;
mod port;
mod queue_pair;
mod receiver;
mod sender;
mod slots;
mod sys;
#[cfg(test)]
mod tests;
mod window;

pub use completion::TransferError;
pub use domain::{Domain, VerbsError};
pub use library::Missing;
pub use port::{Candidate, Gid, LinkLayer, Port, PortGid, ports};
pub use queue_pair::Address;
pub use receiver::{RdmaReceiver, ReceiverEnd};
pub use sender::{RdmaSender, SenderEnd};

use std::time::Duration;

use crate::geometry::RingGeometry;
use crate::position::Position;

/// Most records of a ring, each of which needs a receive. It also bounds the small records under way.
pub const RECEIVES_MAX: u64 = 8192;
/// Most credit requests under way, each of which needs a receive.
const REQUESTS_MAX: u32 = 2;

/// The default of `RdmaOptions::landing_bytes_min`.
pub const LANDING_BYTES_MIN: u64 = 64 << 10;

/// Options of an rdma link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaOptions {
    /// Ends the link if the peer's NIC acknowledges nothing for this long.
    pub dead_peer_timeout: Duration,
    /// How long a side polls its completion queue before it sleeps. Zero sleeps at once: least CPU time, a few µs more latency.
    pub spin: Duration,
    /// Messages of at least this many bytes land in granted memory, if the peer wants them to, too; `u64::MAX`: none.
    pub landing_bytes_min: u64,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self { dead_peer_timeout: Duration::from_secs(2), spin: Duration::ZERO, landing_bytes_min: LANDING_BYTES_MIN }
    }
}

/// Memory of one side that the other side may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Its start, in its owner's address space.
    pub address: u64,
    /// Its remote key (rkey).
    pub key: u32,
    /// Its length.
    pub bytes: u64,
}

/// The receiver's end of a link, as its offer states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingEnd {
    /// The address of its queue pair.
    pub address: Address,
    /// The ring.
    pub memory: RemoteMemory,
    /// It grants memory for messages of at least so many bytes; `None`: it grants none.
    pub grants_from_bytes: Option<u64>,
}

/// The immediate of a credit request: the delayed head in units of the alignment, its low 32 bits.
fn known_part(geometry: &RingGeometry, head: Position) -> u32 {
    (head.value() / u64::from(geometry.options().alignment)) as u32
}
