//! The shared memory of one topic on one host: slots, queue, messages, hold words, and the allocator of pools.
//!
//! * `words`: the lock-free protocols, which loom and shuttle run too.
//! * `writer`, `reader` and `manager`: what a publisher, a subscriber and a manager do with a topic.
//! * Mapped memory: `layout` draws the files of a topic; `segment` and `pages` map them.
//! * All of them use `slot`, which names a publisher or subscriber, `notify`, which sleeps and wakes, and `info`, which describes a message.
//! * `observer` reads a topic without taking part. `crash` has the crash points of the kill tests, and `fuzz` overwrites shared words.
//!
//! The loom and shuttle builds leave out every module that maps memory.
//!
//! A topic in one process, with what is usually three: the manager's slot table, a publisher's port and a subscriber's port.
//!
//! ```
//! use std::sync::Arc;
//!
//! use rgaps_os::Mapping;
//! use rgaps_shm::{Exhaustion, MessageInfo, MessageSpec, PublisherSpec, ReaderPort, Segment};
//! use rgaps_shm::{SlotTable, SubscriberFile, SubscriberSpec, WriterPort};
//!
//! let slot_table = SlotTable::new(Arc::new(Segment::create([3; 16])?));
//! let pool = Mapping::anonymous(1 << 20)?;
//! let slot = slot_table.admit_publisher(&PublisherSpec { publisher: 77, messages: 16, ..Default::default() })?;
//! let right = pool.allocation_right().ok_or("the pool has an allocator")?;
//! let mut writer = WriterPort::new(slot_table.segment().clone(), slot, right)?;
//!
//! let slot = slot_table.admit_subscriber(&SubscriberSpec { depth: 10, ..Default::default() }, &SubscriberFile::create()?)?;
//! let words = slot_table.pages(slot).ok_or("no such subscriber")?;
//! writer.add_subscriber(words.clone(), None);
//! let mut reader = ReaderPort::new(slot_table.segment().clone(), words, false)?;
//!
//! let mut loan = writer.loan(5, Exhaustion::Refuse)?;
//! let block = loan.block_mut().ok_or("it is frozen")?;
//! pool.bytes_mut(block.range_mut())?[..5].copy_from_slice(b"hello");
//! let info = MessageInfo { publisher: 77, sequence: 1, bytes: 5, ..Default::default() };
//! writer.publish(loan, &MessageSpec { info, meta: &[], history_depth: 0 })?;
//!
//! let held = reader.take()?.ok_or("no message")?;
//! assert_eq!(pool.shared(held.offset(), 5)?.to_vec(), b"hello"); // until `held` is dropped, the block is not freed
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
    writer::shared_pool::{FrozenBlock, LeftMessages, SharedPool},
    writer::space::{Exhaustion, LoanError},
    writer::subscribers::Subscribers,
};
pub use info::{Copies, MessageInfo, Origin, Route, RouteReason, Stamps};
