//! The control plane: names, QoS, configuration, the local socket protocol, and (feature `network`) host discovery.
//!
//! | Module | What it decides or does |
//! |---|---|
//! | `names`, `qos` | what a topic is; which publishers and subscribers are compatible |
//! | `config`, `limits`, `size` | keys of the configuration, budgets, numbers of bytes |
//! | `range`, `locator`, `zenoh_config` | how far the network reaches, addresses of other managers, and zenoh's configuration |
//! | `runtime_path`, `runtime`, `host_identity` | which runtime directory is used, the files in it, and which host that is |
//! | `local` | the protocol between a client and its manager |
//! | `client_lock`, `spawn`, `running` | which clients live; how a client starts a manager; which manager runs |
//! | `log_rate_limit` | how many log lines a minute others can cause |
//! | `text` | makes text of other processes and hosts safe to show |
//! | `wire`, `network`, `reach` | the hand-shake for a link, discovery over zenoh, which offered addresses are connected to |
//! | `directory`, `announcements`, `announcer` | what other hosts announce, which of it the manager looks at, what this host announces |
//! | `rediscovery`, `interfaces` | finds hosts again after a network cut; the interfaces on which hosts find each other |
//!
//! Client programs link the crate without the feature `network`, and so without zenoh.

#![forbid(unsafe_code)]

pub mod announcements;
#[cfg(feature = "network")]
mod announcer;
pub mod client_lock;
pub mod config;
pub mod directory;
mod host_identity;
#[cfg(feature = "interfaces")]
pub mod interfaces;
pub mod limits;
pub mod local;
mod locator;
mod log_rate_limit;
pub mod names;
#[cfg(feature = "network")]
pub mod network;
pub mod qos;
pub mod range;
pub mod reach;
#[cfg(feature = "network")]
mod rediscovery;
pub mod running;
pub mod runtime;
pub mod runtime_path;
pub mod size;
pub mod spawn;
pub mod text;
pub mod wire;
#[cfg(feature = "network")]
mod zenoh_config;

pub use config::{Config, Given};
pub use limits::{Budget, Limits, OverBudget, Refusals};
pub use log_rate_limit::LogRateLimit;
pub use names::{HostId, LockId, NameError, TopicId, TopicKey};
pub use qos::{Durability, Exhaustion, History, PublisherQos, Reliability, SubscriberQos};
pub use range::Range;
pub use rgaps_shm::{EndpointSlot, PublisherSlot, SubscriberSlot};
pub use running::Running;
pub use runtime::RuntimeDir;
