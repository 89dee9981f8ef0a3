//! The topic segment of one host: pools, queue, messages and hold words in shared memory.
//!
//! `layout` draws the files of a topic, `segment` and `pages` map them, `queue` orders messages, `message` says who may read one and who frees its
//! block, `subscribers` is what a publisher knows of those who read,
//! `pool` allocates, `writer` and `reader` are what publishers and subscribers do, `janitor` is what the manager does for them and
//! after their death, `newest` is what the table still tells of what came, `unready` is a message before its bytes, `unread` counts, `observer`
//! looks on, `notify` wakes. The words of `queue` and `message` are borrowed, so that loom and shuttle can run them; everything that maps memory
//! is left out of their builds.

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
mod ahead;
#[cfg(not(any(loom, shuttle)))]
mod by_name;
#[cfg(not(any(loom, shuttle)))]
pub mod claim;
#[cfg(not(any(loom, shuttle)))]
pub mod crash;
#[cfg(not(any(loom, shuttle)))]
mod give_way;
#[cfg(not(any(loom, shuttle)))]
pub mod held;
#[cfg(not(loom))]
pub mod history;
#[cfg(not(any(loom, shuttle)))]
pub mod janitor;
#[cfg(not(any(loom, shuttle)))]
pub mod layout;
#[cfg(not(any(loom, shuttle)))]
pub mod newest;
#[cfg(not(any(loom, shuttle)))]
pub mod notify;
#[cfg(not(any(loom, shuttle)))]
pub mod observer;
#[cfg(not(any(loom, shuttle)))]
pub mod pages;
#[cfg(not(any(loom, shuttle)))]
mod past;
#[cfg(not(any(loom, shuttle)))]
pub mod pool;
#[cfg(not(any(loom, shuttle)))]
mod raw;
#[cfg(not(any(loom, shuttle)))]
pub mod reader;
#[cfg(not(any(loom, shuttle)))]
pub mod segment;
#[cfg(not(any(loom, shuttle)))]
pub mod space;
#[cfg(not(any(loom, shuttle)))]
pub mod subscribers;
#[cfg(not(any(loom, shuttle)))]
pub mod unread;
#[cfg(not(any(loom, shuttle)))]
pub mod unready;
#[cfg(not(any(loom, shuttle)))]
pub mod writer;

#[cfg(not(any(loom, shuttle)))]
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
