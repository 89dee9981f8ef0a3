//! Links between hosts: a ring in the receiver's memory, flow control, and transports that write into it. No topics, no devices.
//!
//! ```text
//!  publish manager                                  subscribe manager
//!  ┌────────────┐ records: 64 B header + payload   ┌────────────────┐ arrivals ┌───────────┐
//!  │ LinkSender │═════════════════════════════════▶│  receive ring  │─────────▶│ Assembler │──▶ Begin, Data, End
//!  └────────────┘◀─────── credit {head, !head} ────└────────────────┘ release  └───────────┘
//!    tail, delayed head                               head, expected
//! ```
//!
//! All transports share the protocol, which uses neither sockets nor clocks: `position` and `geometry` (where a record is in the ring),
//! `ring` (the state of both ends, with its three invariants in `invariants`), `credit`, `unacked`, `record` (the header), and `assemble`
//! (records into messages). `link` has the traits `LinkSender` and `LinkReceiver`; `tcp` and `rdma` implement them. `memory` is the ring's
//! memory, `payload` says where data may be. `contract` is the test suite that every transport passes.
//!
//! Source      the ring, its exceed check, invariants and watermark: R.-M. Jiang, Design of a Low-Latency RDMA-Based Publish/Subscribe Framework
//!             for Inter-Machine GPU Communications, master's thesis (RGAPS), National Taiwan University, 2026, section 3.4.
//!             Links without flow control: H. Hoang, B. Cassell, T. Brecht and S. Al-Kiswany, RocketBufs: A Framework for Building Efficient,
//!             In-Memory, Message-Oriented Middleware, DEBS 2020, section 3.3.

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
pub mod payload;
pub mod position;
mod raw;
pub mod rdma;
pub mod record;
pub mod ring;
pub mod tcp;
pub mod unacked;

pub use assemble::{AbortReason, AssembleError, Assembler, AssemblerOptions, Continuity, Event, Events};
pub use counters::{ReceiverCounters, SenderCounters};
pub use credit::{CreditBatch, CreditError, CreditPair};
pub use error::LinkError;
pub use geometry::{FlowControl, GeometryError, Integrity, RingGeometry, RingOptions, Watermark};
pub use invariants::Violation;
pub use link::{Landing, LandingPlace, LinkReceiver, LinkSender, Progress, Release, RingRecord, Wake};
pub use memory::{RingMemory, RingMemoryError};
pub use payload::{Data, PayloadMemory};
pub use position::{Position, RingOffset, RingSpan};
pub use record::{GrantNumber, MessageHead, MessageId, MessageName, Record, RecordError, RecordHeader, RecordSequence};
pub use ring::{AdmitError, Exceed, Placement, ReceiverRing, SenderRing};
