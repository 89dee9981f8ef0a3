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
use crate::parameters::{self, Parameters, Value};
use crate::{Error, Policy, Profile, Severity, raw};

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
        let profile = profile_of(&qos);
        let publisher = node.create_publisher(topic, qos).map_err(|error| Error::ros(&name, error))?;
        let offer = parameters::offer(&name, &profile, &mut OfNode(node))?;
        let descriptors = Descriptors { publisher, topic: name.clone(), clock: node.get_ros_clock() };
        Self::of(&core::node_of(None, offer.device)?, &name, offer.qos, descriptors)
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
        let request = parameters::request(&name, &profile_of(&qos), &mut OfNode(node))?;
        let payloads = Payloads::with(&core::node_of(None, request.device)?, &name, &request)?;
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

    /// Descriptors whose sample could not be taken. The node's log has the first of each publisher and reason.
    pub fn refused(&self) -> u64 {
        self.payloads.counts().refused
    }

    /// Descriptors of samples published before the subscription existed.
    pub fn early(&self) -> u64 {
        self.payloads.counts().early
    }
}

impl<T: R2rKind> Stream for Subscription<T> {
    type Item = Sample<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Sample<T>>> {
        loop {
            let Some(message) = ready!(self.descriptors.as_mut().poll_next(context)) else { return Poll::Ready(None) };
            let taken = self.payloads.take(&message, |severity, text| match severity {
                Severity::Debug => ::r2r::log_debug!(&self.logger, "{text}"),
                Severity::Warning => ::r2r::log_warn!(&self.logger, "{text}"),
            });
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

/// The policies of a profile that the core also has.
fn profile_of(profile: &QosProfile) -> Profile {
    let depth = u32::try_from(profile.depth).unwrap_or(u32::MAX);
    Profile {
        reliability: match profile.reliability {
            ReliabilityPolicy::Reliable => Policy::Set(Reliability::Reliable),
            ReliabilityPolicy::BestEffort => Policy::Set(Reliability::BestEffort),
            _ => Policy::Any,
        },
        durability: match profile.durability {
            DurabilityPolicy::TransientLocal => Policy::Set(Durability::TransientLocal),
            DurabilityPolicy::Volatile => Policy::Set(Durability::Volatile),
            _ => Policy::Any,
        },
        history: match profile.history {
            HistoryPolicy::KeepAll => History::KeepAll,
            _ => History::KeepLast(depth),
        },
    }
}

/// A node's parameters in r2r: values by name.
struct OfNode<'a>(&'a Node);

impl Parameters for OfNode<'_> {
    fn value(&mut self, parameter: &parameters::Parameter) -> Result<Value, Error> {
        let default = match parameter.default.clone() {
            Value::Integer(value) => ParameterValue::Integer(value),
            Value::Flag(value) => ParameterValue::Bool(value),
            Value::Text(value) | Value::Other(value) => ParameterValue::String(value),
        };
        let mut known = self.0.params.lock().unwrap_or_else(PoisonError::into_inner);
        let value = &known.entry(parameter.name.clone()).or_insert_with(|| Parameter::new(default)).value;
        Ok(match value {
            ParameterValue::Integer(value) => Value::Integer(*value),
            ParameterValue::Bool(value) => Value::Flag(*value),
            ParameterValue::String(value) => Value::Text(value.clone()),
            other => Value::Other(format!("{other:?}")),
        })
    }
}
