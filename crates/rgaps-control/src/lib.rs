//! The control plane: names, QoS, configuration, the local socket protocol, and (feature `network`) host discovery.
//!
//! `names` and `qos` say what a topic is and who fits together, `config`, `size`, `runtime` and `whereabouts` where things are and how large, `range` how far
//! the network goes, `local` how clients talk to their manager, `client_lock` how that knows who lives, `spawn` how they start one and `running` which one they
//! have, `text` what strangers say, `limits` what others may use up, `directory` which links a host needs, `announcements` what of it is news for a manager,
//! `wire`, `network` and `zenoh_config` how managers agree on links, and `silent` how they find those again who were gone. Without `network` the crate is small:
//! that is what client programs link.

#![forbid(unsafe_code)]

pub mod announcements;
#[cfg(feature = "network")]
mod announcer;
pub mod client_lock;
pub mod config;
pub mod directory;
pub mod limits;
pub mod local;
pub mod names;
#[cfg(feature = "network")]
pub mod network;
pub mod qos;
pub mod range;
pub mod reach;
pub mod running;
pub mod runtime;
#[cfg(feature = "network")]
mod silent;
pub mod size;
pub mod spawn;
pub mod text;
pub mod whereabouts;
pub mod wire;
#[cfg(feature = "network")]
mod zenoh_config;

pub use config::{Config, Given};
pub use limits::{Budget, Limits, OverBudget, Refusals};
pub use names::{HostId, LockId, NameError, TopicId, TopicKey};
pub use qos::{Durability, Exhaustion, History, PublisherQos, Reliability, SubscriberQos};
pub use range::Range;
pub use rgaps_shm::{EndpointSlot, PublisherSlot, SubscriberSlot};
pub use running::Running;
pub use runtime::RuntimeDir;
