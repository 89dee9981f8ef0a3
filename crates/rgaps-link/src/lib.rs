//! Host-to-host links: a ring in the receiver's memory, flow control, and transports that write into it. No topics, no devices.
//!
//! ```text
//!  publish manager                                  subscribe manager
//!  ┌────────────┐ records: 64 B header + payload   ┌────────────────┐ arrivals ┌───────────┐
//!  │ LinkSender │═════════════════════════════════▶│  receive ring  │─────────▶│ Assembler │──▶ Begin, Data, End
//!  └────────────┘◀─────── credit {head, !head} ────└────────────────┘ release  └───────────┘
//!    tail, delayed head                               head, expected
//! ```
//!
//! The protocol has neither sockets nor clocks and is shared by all transports: `position` and `geometry` (where a record lies),
//! `ring` (both ends' state, and the paper's three invariants in `invariants`), `credit`, `unacked`, `record` (the header),
//! `assemble` (messages out of records). `link` has the traits `LinkSender` and `LinkReceiver`; `tcp` implements them; `memory` is
//! the ring's memory; `sync` lets loom run what two threads share. `contract` is the suite that every transport answers to.

pub mod assemble;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
pub mod counters;
pub mod credit;
pub mod error;
pub mod geometry;
pub mod invariants;
pub mod link;
pub mod memory;
pub mod position;
mod raw;
pub mod rdma;
pub mod record;
pub mod ring;
mod sync;
pub mod tcp;
pub mod unacked;

pub use assemble::{AbortReason, AssembleError, Assembler, AssemblerOptions, Continuity, Event, Events};
pub use counters::{ReceiverCounters, SenderCounters};
pub use credit::{CreditBatch, CreditError, CreditPair};
pub use error::LinkError;
pub use geometry::{FlowControl, GeometryError, Integrity, RingGeometry, RingOptions, Watermark};
pub use invariants::Violation;
pub use link::{Arrival, LinkReceiver, LinkSender, Progress, Release, Wake};
pub use memory::{RingMemory, RingMemoryError};
pub use position::{Position, RingOffset, RingSpan};
pub use record::{MessageHead, MessageId, Origin, Record, RecordError, RecordHeader, RecordSequence};
pub use ring::{AdmitError, Exceed, Placement, ReceiverRing, SenderRing};
