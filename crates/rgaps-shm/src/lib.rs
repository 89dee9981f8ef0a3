//! The shared memory of one topic on one host: slots, queue, messages, hold words, and the allocator of pools.
//!
//! * `words`: the lock-free protocols, which loom and shuttle run too.
//! * `writer`, `reader` and `manager`: what a publisher, a subscriber and a manager do with a topic.
//! * Mapped memory: `layout` draws the files of a topic; `segment` and `pages` map them.
//! * All of them use `slot`, which names a publisher or subscriber, `notify`, which sleeps and wakes, and `info`, which describes a message.
//! * `observer` reads a topic without taking part. `crash` has the crash points of the kill tests, and `fuzz` overwrites shared words.
//!
//! The loom and shuttle builds leave out every module that maps memory.

pub mod info;
pub mod words;

#[cfg(not(any(loom, shuttle)))]
pub mod crash;
#[cfg(not(any(loom, shuttle)))]
mod fuzz;
#[cfg(not(any(loom, shuttle)))]
pub mod layout;
#[cfg(not(any(loom, shuttle)))]
pub mod manager;
#[cfg(not(any(loom, shuttle)))]
pub mod notify;
#[cfg(not(any(loom, shuttle)))]
pub mod observer;
#[cfg(not(any(loom, shuttle)))]
pub mod pages;
#[cfg(not(any(loom, shuttle)))]
mod raw;
#[cfg(not(any(loom, shuttle)))]
pub mod reader;
#[cfg(not(any(loom, shuttle)))]
pub mod segment;
#[cfg(not(any(loom, shuttle)))]
pub mod slot;
#[cfg(not(any(loom, shuttle)))]
pub mod writer;

#[cfg(not(any(loom, shuttle)))]
pub use crate::{
    fuzz::fuzz_segment,
    manager::slot_table::{PublisherSpec, SlotTable, SubscriberSpec},
    pages::{SubscriberFile, SubscriberFiles, SubscriberPages},
    raw::bare::{BareBlock, BareTlsf},
    reader::held::Held,
    reader::port::ReaderPort,
    segment::{AttachError, Segment},
    slot::{EndpointSlot, PublisherSlot, SubscriberSlot},
    writer::pending::PendingMessage,
    writer::pool::{Block, PoolAllocator, PoolStats},
    writer::port::{LoanedMessage, MessageSpec, WriterPort},
    writer::space::{Exhaustion, LoanError},
    writer::subscribers::Subscribers,
};
pub use info::{Copies, MessageInfo, Origin, Route, Stamps, WhyNot};
