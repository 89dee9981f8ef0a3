//! Publish and subscribe device buffers. All subscribers on a host read one shared copy in place. Another host receives one copy, which all its
//! subscribers share.
//!
//! ```
//! use std::time::Duration;
//!
//! use rgaps::types::{Encoding, Image};
//! use rgaps::{Node, Sample};
//!
//! # let _host = rgaps_testing::example_host();
//! let node = Node::new("camera")?;
//! let publisher = node.publisher::<Image>("camera/front")?;
//! let subscriber = node.subscriber::<Image>("camera/front")?; // before the first sample: a late joiner gets no older samples
//!
//! let mut sample = publisher.loan(Image::new(1920, 1080, Encoding::Rgb8)?)?;
//! sample.fill(128); // written in place, where subscribers will read it
//! sample.publish()?;
//!
//! let sample: Sample<Image> = subscriber.wait(Duration::from_secs(1))?.ok_or("no message within a second")?;
//! assert_eq!((sample.meta().width, sample.meta().height, sample.bytes()[0]), (1920, 1080, 128));
//! drop(sample); // releases it, and the publisher can reuse the block
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On a GPU, kernels read and fill payloads in place: `Loan::view` and `Sample::view` return the kernel argument that describes a payload, and
//! `publish_on` and `take_on` order the work on a stream (`examples/kernel`). `dlpack` describes payloads to array libraries. `dynamic` is for
//! programs that learn the type of a topic at run time.
//!
//! Warnings, for example of a depth that is granted in part, a QoS that does not match, or a setting without effect, are logged through the crate
//! `tracing`. A program that installs no log subscriber of that crate prints none of them; `log::to_standard_error` installs a small one.
//!
//! This crate links neither zenoh nor verbs nor CUDA. The host's manager, `rgapsd`, does the networking; a node starts it if it is not running.

#![deny(unsafe_code)]

mod buffer;
mod described;
pub mod dlpack;
pub mod dynamic;
mod endpoint;
mod error_text;
mod handle;
pub mod log;
mod node;
mod pool;
mod publisher;
#[allow(unsafe_code)]
mod raw;
mod sample;
mod statistics;
mod subscriber;
pub mod types;
mod views;

/// What the errors of this crate have as their sources, and in their fields.
pub mod errors {
    pub use rgaps_control::local::LocalError;
    pub use rgaps_control::names::NameError;
    pub use rgaps_control::runtime::RuntimeError;
    pub use rgaps_control::spawn::SpawnError;
    pub use rgaps_os::{MapError, OutOfRange};
    pub use rgaps_shm::segment::AttachError;
    pub use rgaps_shm::words::queue::QueueError;
    pub use rgaps_shm::writer::pool::PoolFull;
    pub use rgaps_shm::writer::port::WriteError;
    pub use rgaps_shm::writer::space::{CutOff, PortError};
}

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub use buffer::{FrozenBuffer, PoolBuffer};
pub use described::Described;
pub use endpoint::error::NodeError;
pub use endpoint::hello::SessionError;
pub use endpoint::publish_error::{PublishAllError, PublishError};
pub use endpoint::take_by_handle::TakeByHandleError;
pub use endpoint::take_error::TakeError;
pub use handle::MessageHandle;
pub use node::{Node, NodeBuilder};
pub use pool::Pool;
pub use publisher::{Loan, Publisher};
pub use rgaps_control::local::{Refusal, TopicSummary};
pub use rgaps_control::qos::{Durability, Exhaustion, History, PublisherQos, Reliability, SubscriberQos};
pub use rgaps_control::text;
pub use rgaps_device as device;
pub use rgaps_os::ForkGuard;
pub use rgaps_shm::info::{Copies, MessageInfo, Origin, Route, RouteReason, Stamps};
pub use rgaps_shm::observer::{ObservedPublisher, Observer};
pub use rgaps_shm::reader::seen_publishers::MessageName;
pub use rgaps_shm::words::message::Readiness;
pub use rgaps_shm::writer::space::{Keeper, LoanError, NoSpace};
pub use sample::Sample;
pub use statistics::{PublisherStatistics, SubscriberStatistics};
pub use subscriber::Subscriber;
