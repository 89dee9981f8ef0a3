//! The shared memory of one topic on one host: slots, queue, messages, hold words, and the allocator of pools.
//!
//! * Shared words: `layout` draws the files of a topic; `segment` and `pages` map them.
//! * Protocols over borrowed words, which loom and shuttle run too: `queue` orders messages, `message` decides who may read a message and who
//!   frees its block, `join` sets the first position that a new subscriber gets, `bell` decides whether a sleeper must be woken.
//! * Publishers: `writer` is their port. `pool` allocates blocks, `history` keeps messages for late joiners, `space` has the errors of loans and
//!   the wait for space, `room` decides what a publisher without space gives up, `evict` names the subscribers whose unread messages may be
//!   dropped, `subscribers` reads the words of all subscribers, `pending` is a published message whose bytes a stream has not written yet.
//! * Subscribers: `reader` is their port. `held` is a message that is being read, `put_back` keeps messages that were taken and returned, `past`
//!   finds the messages that history keeps, `seen_publishers` and `by_name` take messages by name, `peek` reads messages without holding them,
//!   `ready_count` counts the messages that could be taken.
//! * The manager: `slot_table` admits publishers and subscribers, and finishes the messages of dead publishers. `arrived` notes what has arrived of
//!   each remote publisher, and `last_received` finds the last message of each in the message table.
//! * All: `slot` names a publisher or subscriber, `notify` sleeps and wakes, `info` describes a message, `observer` reads a topic without taking
//!   part, `crash` has the crash points of the kill tests, `fuzz` overwrites shared words.
//!
//! The loom and shuttle builds leave out every module that maps memory.

mod bell;
pub mod info;
pub mod join;
#[cfg(all(test, loom))]
mod loom_models;
pub mod message;
pub mod queue;
#[cfg(all(test, shuttle))]
mod shuttle_flows;
mod sync;

#[cfg(not(any(loom, shuttle)))]
pub mod arrived;
#[cfg(not(any(loom, shuttle)))]
mod by_name;
#[cfg(not(any(loom, shuttle)))]
pub mod crash;
#[cfg(not(any(loom, shuttle)))]
mod evict;
#[cfg(not(any(loom, shuttle)))]
mod fuzz;
#[cfg(not(any(loom, shuttle)))]
pub mod held;
#[cfg(not(loom))]
pub mod history;
#[cfg(not(any(loom, shuttle)))]
pub mod last_received;
#[cfg(not(any(loom, shuttle)))]
pub mod layout;
#[cfg(not(any(loom, shuttle)))]
pub mod notify;
#[cfg(not(any(loom, shuttle)))]
pub mod observer;
#[cfg(not(any(loom, shuttle)))]
pub mod pages;
#[cfg(not(any(loom, shuttle)))]
mod past;
#[cfg(not(any(loom, shuttle)))]
mod peek;
#[cfg(not(any(loom, shuttle)))]
pub mod pending;
#[cfg(not(any(loom, shuttle)))]
pub mod pool;
#[cfg(not(any(loom, shuttle)))]
mod put_back;
#[cfg(not(any(loom, shuttle)))]
mod raw;
#[cfg(not(any(loom, shuttle)))]
pub mod reader;
#[cfg(not(any(loom, shuttle)))]
pub mod ready_count;
#[cfg(not(any(loom, shuttle)))]
mod room;
#[cfg(not(any(loom, shuttle)))]
pub mod seen_publishers;
#[cfg(not(any(loom, shuttle)))]
pub mod segment;
#[cfg(not(any(loom, shuttle)))]
pub mod slot;
#[cfg(not(any(loom, shuttle)))]
pub mod slot_table;
#[cfg(not(any(loom, shuttle)))]
pub mod space;
#[cfg(not(any(loom, shuttle)))]
pub mod subscribers;
#[cfg(not(any(loom, shuttle)))]
pub mod writer;

#[cfg(not(any(loom, shuttle)))]
pub use crate::{
    fuzz::fuzz_segment,
    held::Held,
    pages::{SubscriberFile, SubscriberFiles, SubscriberPages},
    pending::PendingMessage,
    pool::{Block, PoolAllocator, PoolStats},
    raw::bare::{BareBlock, BareTlsf},
    reader::ReaderPort,
    segment::{AttachError, Segment},
    slot::{EndpointSlot, PublisherSlot, SubscriberSlot},
    slot_table::{PublisherSpec, SlotTable, SubscriberSpec},
    space::{Exhaustion, LoanError},
    subscribers::Subscribers,
    writer::{LoanedMessage, MessageSpec, WriterPort},
};
pub use info::{Copies, MessageInfo, Origin, Route, Stamps, WhyNot};
