//! `rosidl::Buffer` (ROS 2 Lyrical), without ROS: byte arrays of messages whose memory is in a pool, and travels through the core while the middleware
//! carries a descriptor.
//!
//! ```text
//!  allocate ─▶ Buffer ──for each subscription──▶ describe ─▶ Descriptor ──any middleware──▶ receive ─▶ Buffer
//!                 └─ a block of the process's pool ── published on the topic of that subscription ──▶ its subscriber
//! ```
//!
//! The middleware tells a backend no names of topics, only the identities of endpoints. So each subscription has a topic of its own in the core, which
//! exists before any other process hears of the subscription. A block is a message of each, without a copy
//! (docs/decisions/027-rosidl-buffers.md).
//!
//! Deaths      as in the core: a publisher that dies takes no message from its subscribers, and a subscriber that dies holds none.
//! Bounds      one pool for all topics of a process. A full one gives up what subscriptions have not taken, oldest first. A read waits at most
//!             `ARRIVAL_TIMEOUT` for a payload that is later than its descriptor, and 10 s for the manager to map its publisher's pool.

mod buffer;
mod descriptor;
mod exchange;
mod gid;
mod groups;
mod joins;
mod lane;
mod missing;
mod payload;
mod peer;
mod peers;
mod process;
mod receivers;
mod shared;
mod work;

pub use buffer::{Access, Buffer};
pub use descriptor::Descriptor;
pub use exchange::{Buffers, NotDescribed, Statistics};
pub use gid::Gid;
pub use payload::{ARRIVAL_TIMEOUT, BufferError};
pub use process::ProcessBuffers;
