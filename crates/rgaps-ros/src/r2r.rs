//! Publishers and subscriptions on nodes of r2r.
//!
//! ```no_run
//! use futures::StreamExt;
//! use rgaps::types::{Encoding, Image};
//! use rgaps_ros::r2r::{Publisher, Subscription};
//!
//! let mut node = r2r::Node::create(r2r::Context::create()?, "edges", "")?;
//! let edges = Publisher::<Image>::new(&mut node, "edges", r2r::QosProfile::default())?;
//! let camera = Subscription::<Image>::new(&mut node, "camera/front", r2r::QosProfile::default())?;
//! let copied = camera.for_each(move |sample| {
//!     let meta = Image::new(sample.meta().width, sample.meta().height, Encoding::Rgb8).expect("a valid shape");
//!     let _ = edges.push(meta, sample.bytes());
//!     futures::future::ready(())
//! });
//! // Run `copied` on any executor while the node spins: node.spin_once(timeout).
//! # drop(copied);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! r2r queues ten messages between its node and a stream, whatever the QoS, and drops later ones. Its parameters cannot be made read-only and have no
//! descriptions; they are read when the publisher or subscription is made. It has no qos_overrides. The domain is that of ROS_DOMAIN_ID, as for
//! its context.

use std::fmt;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use ::r2r::qos::{DurabilityPolicy, HistoryPolicy, ReliabilityPolicy};
use ::r2r::{Clock, Node, Parameter, ParameterValue, QosProfile, WrappedTypesupport};
use futures::Stream;
use rgaps::types::Stamp;
use rgaps::{Durability, History, Reliability, Sample, SubscriberStatistics};

use crate::core::{self, Payloads};
use crate::descriptor::RosKind;
use crate::parameters::Parameters;
use crate::profile::{Asked, Profile};
use crate::{Error, raw};

/// A message kind that r2r supports.
pub trait R2rKind: RosKind<Message: WrappedTypesupport> {}
impl<T: RosKind<Message: WrappedTypesupport>> R2rKind for T {}

/// Publishes samples in the core, and their descriptors on a node.
pub type Publisher<T> = core::Publisher<T, Descriptors<T>>;
/// A block to fill in place and publish.
pub type Loan<'a, T> = core::Loan<'a, T, Descriptors<T>>;

/// The ROS half of a publisher.
pub struct Descriptors<T: R2rKind> {
    publisher: ::r2r::Publisher<T::Message>,
    topic: String,
    clock: Arc<Mutex<Clock>>,
}

impl<T: R2rKind> Descriptors<T> {
    /// The ROS publisher.
    pub fn publisher(&self) -> &::r2r::Publisher<T::Message> {
        &self.publisher
    }
}

impl<T: R2rKind> core::Descriptors<T> for Descriptors<T> {
    fn send(&self, message: &T::Message) -> Result<(), Error> {
        let failed = |error| Error::ros(format!("the descriptor on {}", self.topic), error);
        self.publisher.publish(message).map_err(failed)
    }

    fn now(&self) -> Option<Stamp> {
        let now = self.clock.lock().unwrap_or_else(PoisonError::into_inner).get_now().ok()?;
        u64::try_from(now.as_nanos()).ok().map(Stamp::from_ns)
    }
}

impl<T: R2rKind> fmt::Debug for Descriptors<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptors").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl<T: R2rKind> Publisher<T> {
    /// Makes a publisher on a node, which spins by `spin_once` as usual.
    pub fn new(node: &mut Node, topic: &str, qos: QosProfile) -> Result<Self, Error> {
        raw::type_support::<T::Message>()?;
        let name = resolved(node, topic)?;
        let profile = Profile::from(&qos);
        let publisher = node.create_publisher(topic, qos).map_err(|error| Error::ros(&name, error))?;
        let offered = profile.publisher_qos(&name, &mut OfNode(node))?;
        let descriptors = Descriptors { publisher, topic: name.clone(), clock: node.get_ros_clock() };
        Self::of(&core::node_of(None, &mut OfNode(node))?, &name, offered, descriptors)
    }
}

/// A stream of a topic's samples. Polling it takes them, and waits at most `payload_timeout_ms` for one that is still in transit.
pub struct Subscription<T: R2rKind> {
    payloads: Payloads<T>,
    descriptors: Pin<Box<dyn Stream<Item = T::Message> + Send>>,
    logger: String,
}

impl<T: R2rKind> Subscription<T> {
    /// Makes a subscription on a node, which spins by `spin_once` as usual.
    pub fn new(node: &mut Node, topic: &str, qos: QosProfile) -> Result<Self, Error> {
        raw::type_support::<T::Message>()?;
        let name = resolved(node, topic)?;
        // The core subscriber is made first, so each descriptor from ROS names a message that it gets, or one counted as early.
        let core_node = core::node_of(None, &mut OfNode(node))?;
        let payloads = Payloads::with(&core_node, &name, &Profile::from(&qos), &mut OfNode(node))?;
        let descriptors = node.subscribe::<T::Message>(topic, qos).map_err(|error| Error::ros(&name, error))?;
        Ok(Self { payloads, descriptors: Box::pin(descriptors), logger: node.logger().to_owned() })
    }

    /// The topic's fully qualified name, after remapping.
    pub fn topic_name(&self) -> &str {
        self.payloads.topic_name()
    }

    /// Counters of the core subscriber.
    pub fn statistics(&self) -> SubscriberStatistics {
        self.payloads.statistics()
    }

    /// Descriptors whose sample could not be taken. The node's log has the first of each publisher and kind.
    pub fn refused(&self) -> u64 {
        self.payloads.refused()
    }

    /// Descriptors of samples published before the subscription existed.
    pub fn early(&self) -> u64 {
        self.payloads.early()
    }
}

impl<T: R2rKind> Stream for Subscription<T> {
    type Item = Sample<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Sample<T>>> {
        loop {
            let Some(message) = ready!(self.descriptors.as_mut().poll_next(context)) else { return Poll::Ready(None) };
            let taken = self.payloads.take(&message, |error| ::r2r::log_warn!(&self.logger, "{error}"));
            if taken.is_some() {
                return Poll::Ready(taken);
            }
        }
    }
}

impl<T: R2rKind> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("payloads", &self.payloads).finish_non_exhaustive()
    }
}

/// The fully qualified name of a topic after remapping, as computed by rcl.
fn resolved(node: &Node, topic: &str) -> Result<String, Error> {
    let of_node = |error| Error::ros("the node's name", error);
    let (name, namespace) = (node.name().map_err(of_node)?, node.namespace().map_err(of_node)?);
    raw::resolved(topic, &name, &namespace)
}

impl From<&QosProfile> for Profile {
    fn from(profile: &QosProfile) -> Self {
        let depth = u32::try_from(profile.depth).unwrap_or(u32::MAX);
        Self {
            reliability: match profile.reliability {
                ReliabilityPolicy::Reliable => Asked::Said(Reliability::Reliable),
                ReliabilityPolicy::BestEffort => Asked::Said(Reliability::BestEffort),
                _ => Asked::Unsaid,
            },
            durability: match profile.durability {
                DurabilityPolicy::TransientLocal => Asked::Said(Durability::TransientLocal),
                DurabilityPolicy::Volatile => Asked::Said(Durability::Volatile),
                _ => Asked::Unsaid,
            },
            history: match profile.history {
                HistoryPolicy::KeepAll => History::KeepAll,
                _ => History::KeepLast(depth),
            },
        }
    }
}

/// A node's parameters in r2r: values by name.
struct OfNode<'a>(&'a Node);

impl OfNode<'_> {
    /// The node's value, or `default` if none is set.
    fn value(&self, name: &str, default: ParameterValue) -> ParameterValue {
        let mut known = self.0.params.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(name.to_owned()).or_insert_with(|| Parameter::new(default)).value.clone()
    }

    fn wrong(name: &str, found: &ParameterValue, allowed: &'static str) -> Error {
        Error::Parameter { name: name.to_owned(), value: format!("{found:?}"), allowed }
    }
}

impl Parameters for OfNode<'_> {
    fn integer(&mut self, name: &str, default: i64, range: RangeInclusive<i64>, _: &str) -> Result<i64, Error> {
        match self.value(name, ParameterValue::Integer(default)) {
            ParameterValue::Integer(value) if range.contains(&value) => Ok(value),
            found => Err(Self::wrong(name, &found, "a whole number, not below 0")),
        }
    }

    fn text(&mut self, name: &str, default: &str, _: &str) -> Result<String, Error> {
        match self.value(name, ParameterValue::String(default.to_owned())) {
            ParameterValue::String(value) => Ok(value),
            found => Err(Self::wrong(name, &found, "a text")),
        }
    }

    fn flag(&mut self, name: &str, default: bool, _: &str) -> Result<bool, Error> {
        match self.value(name, ParameterValue::Bool(default)) {
            ParameterValue::Bool(value) => Ok(value),
            found => Err(Self::wrong(name, &found, "true or false")),
        }
    }
}
