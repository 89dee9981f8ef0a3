//! Publish and subscribe device buffers. All subscribers on a host read one shared copy in place; another host receives it once and
//! shares it there.
//!
//! ```no_run
//! use rgaps::types::{Encoding, Image};
//! use rgaps::{Sample, Node};
//!
//! let node = Node::new("camera")?;
//! let publisher = node.publisher::<Image>("camera/front")?;
//! let mut sample = publisher.loan(Image::new(1920, 1080, Encoding::Rgb8)?)?;
//! sample.fill(128); // written in place, where subscribers will read it
//! sample.publish()?;
//!
//! let subscriber = node.subscriber::<Image>("camera/front")?;
//! if let Some(sample) = subscriber.wait(std::time::Duration::from_secs(1))? {
//!     let sample: Sample<Image> = sample;
//!     println!("{} x {}: {} B", sample.meta().width, sample.meta().height, sample.bytes().len());
//! } // dropped: the publisher may use the block again
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On a GPU a kernel reads and fills payloads where they lie: `Loan::view` and `Sample::view` are what it is told of them, `publish_on` and
//! `take_on` put it in stream order (`examples/kernel`). `dlpack` describes payloads to array libraries. `dynamic` is for programs that know the type
//! of a topic only when they run.
//!
//! A program that only uses this crate links neither zenoh nor verbs nor CUDA: `rgapsd`, the host's manager, does that for it, and is
//! started if it does not run.

#![deny(unsafe_code)]

mod attachment;
mod completions;
mod described;
pub mod dlpack;
pub mod dynamic;
mod error_text;
mod hand_back;
mod handle;
mod hello;
mod idle;
mod members;
mod node;
mod noticed;
mod pools;
mod publish_error;
mod publisher;
mod question;
#[allow(unsafe_code)]
mod raw;
mod sample;
mod session;
mod statistics;
mod subscriber;
mod take_by_handle;
mod tasks;
pub mod types;
mod views;

/// What the README shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub use described::Described;
pub use handle::Handle;
pub use hello::SessionError;
pub use node::{Node, NodeBuilder, NodeError};
pub use publish_error::PublishError;
pub use publisher::{Loan, Publisher};
pub use rgaps_control::local::{Refusal, TopicSummary};
pub use rgaps_control::qos::{Durability, Exhaustion, History, PublisherQos, Reliability, SubscriberQos};
pub use rgaps_control::text;
pub use rgaps_device as device;
pub use rgaps_shm::info::{Copies, MessageInfo, Origin, Route, Stamps, WhyNot};
pub use rgaps_shm::message::Readiness;
pub use rgaps_shm::observer::{ObservedPublisher, Observer};
pub use rgaps_shm::space::{Keeper, LoanError, NoSpace};
pub use sample::Sample;
pub use statistics::{PublisherStatistics, SubscriberStatistics};
pub use subscriber::{Subscriber, TakeError};
pub use take_by_handle::TakeByHandleError;
