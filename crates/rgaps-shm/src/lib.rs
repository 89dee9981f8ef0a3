//! The topic segment of one host: pools, queue, messages and hold words in shared memory.
//!
//! `layout` draws the files of a topic, `segment` and `pages` map them, `queue` orders messages, `message` says who may read one and who frees its
//! block, `subscribers` is what a publisher knows of those who read,
//! `pool` allocates, `writer` and `reader` are what publishers and subscribers do, `janitor` is what the manager does for them and
//! after their death, `newest` is what the table still tells of what came, `unready` is a message before its bytes, `unread` counts, `observer`
//! looks on, `notify` wakes. The words of `queue` and `message` are borrowed, so that loom can model them; everything that maps memory
//! is left out of a loom build.

mod bell;
pub mod info;
pub mod join;
#[cfg(all(test, loom))]
mod loom_models;
pub mod message;
pub mod queue;
mod sync;

#[cfg(not(loom))]
mod ahead;
#[cfg(not(loom))]
mod by_name;
#[cfg(not(loom))]
pub mod claim;
#[cfg(not(loom))]
pub mod crash;
#[cfg(not(loom))]
mod give_way;
#[cfg(not(loom))]
pub mod held;
#[cfg(not(loom))]
pub mod history;
#[cfg(not(loom))]
pub mod janitor;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod newest;
#[cfg(not(loom))]
pub mod notify;
#[cfg(not(loom))]
pub mod observer;
#[cfg(not(loom))]
pub mod pages;
#[cfg(not(loom))]
mod past;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
mod raw;
#[cfg(not(loom))]
pub mod reader;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod space;
#[cfg(not(loom))]
pub mod subscribers;
#[cfg(not(loom))]
pub mod unread;
#[cfg(not(loom))]
pub mod unready;
#[cfg(not(loom))]
pub mod writer;

#[cfg(not(loom))]
pub use crate::{
    held::{Held, PoolRef},
    janitor::{Janitor, PublisherSpec, SubscriberSpec},
    pages::{SubscriberFile, SubscriberPages},
    pool::{Block, PoolAllocator, PoolStats},
    raw::bare::{BareBlock, BareTlsf},
    reader::ReaderPort,
    segment::{AttachError, Segment},
    space::{Exhaustion, LoanError},
    subscribers::Subscribers,
    unready::Unready,
    writer::{LoanedMessage, MessageSpec, WriterPort},
};
pub use info::{Copies, MessageInfo, Origin, Route, Stamps, WhyNot};
