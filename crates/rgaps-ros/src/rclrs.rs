//! Publishers and subscriptions on nodes of rclrs.
//!
//! ```no_run
//! use rgaps::types::{Encoding, Image};
//! use rgaps_ros::rclrs::{Publisher, Subscription};
//! use rclrs::{Context, CreateBasicExecutor, IntoPrimitiveOptions, SpinOptions};
//!
//! let mut executor = Context::default_from_env()?.create_basic_executor();
//! let node = executor.create_node("edges")?;
//! let edges = Publisher::<Image>::new(&node, "edges".keep_last(10))?;
//! let _camera = Subscription::<Image>::new(&node, "camera/front".keep_last(10), move |sample| {
//!     let (width, height) = (sample.meta().width, sample.meta().height);
//!     let picture = edges.loan(Image::new(width, height, Encoding::Rgb8).expect("a valid shape"));
//!     if let Ok(mut picture) = picture {
//!         picture.copy_from_slice(sample.bytes());
//!         let _ = picture.publish();
//!     }
//! })?;
//! executor.spin(SpinOptions::default());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Parameters stay declared on the node while the publisher or subscription exists. rclrs has no qos_overrides.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use ::rclrs::{
    Clock, DeclarationError, Node, NodeState, ParameterRange, PublisherOptions, QoSDurabilityPolicy, QoSHistoryPolicy,
    QoSProfile, QoSReliabilityPolicy, SubscriptionOptions, Worker,
};
use rgaps::types::Stamp;
use rgaps::{Durability, History, Reliability, Sample, SubscriberStatistics};
use rgaps_ros_policy::status::Status;

use crate::core::{self, Payloads};
use crate::descriptor::{Descriptor, GpuImage, GpuPointCloud, GpuTensor, RosKind};
use crate::diagnostics::{self, Reporting};
use crate::parameters::{self, Parameters, Rule, Value};
use crate::{Error, Policy, Profile, Severity, raw};

macro_rules! message {
    ($name:ident) => {
        impl rosidl_runtime_rs::Message for $name {
            type RmwMsg = Self;

            fn into_rmw_message(message: Cow<'_, Self>) -> Cow<'_, Self> {
                message
            }

            fn from_rmw_message(message: Self) -> Self {
                message
            }
        }

        impl rosidl_runtime_rs::RmwMessage for $name {
            const TYPE_NAME: &'static str = <Self as Descriptor>::TYPE_NAME;

            fn get_type_support() -> *const std::ffi::c_void {
                // A null pointer makes rcl fail. Publishers and subscriptions of this crate have looked it up before, and returned the error.
                raw::type_support::<Self>().map_or(std::ptr::null(), |found| found.as_ptr())
            }
        }
    };
}

message!(GpuImage);
message!(GpuPointCloud);
message!(GpuTensor);

/// A message kind that rclrs supports.
pub trait RclrsKind: RosKind<Message: rosidl_runtime_rs::RmwMessage> {}
impl<T: RosKind<Message: rosidl_runtime_rs::RmwMessage>> RclrsKind for T {}

/// Publishes samples in the core, and their descriptors on a node.
pub type Publisher<T> = core::Publisher<T, Descriptors<T>>;
/// A block to fill in place and publish.
pub type Loan<'a, T> = core::Loan<'a, T, Descriptors<T>>;

/// The ROS half of a publisher.
pub struct Descriptors<T: RclrsKind> {
    publisher: ::rclrs::Publisher<T::Message>,
    clock: Clock,
    _parameters: Declared,
    reporting: OnceLock<Option<Reporting>>,
}

impl<T: RclrsKind> Descriptors<T> {
    /// The ROS publisher.
    pub fn publisher(&self) -> &::rclrs::Publisher<T::Message> {
        &self.publisher
    }
}

impl<T: RclrsKind> core::Descriptors<T> for Descriptors<T> {
    fn send(&self, message: &T::Message) -> Result<(), Error> {
        let failed = |error| Error::ros(format!("the descriptor on {}", self.publisher.topic_name()), error);
        self.publisher.publish(message).map_err(failed)
    }

    fn now(&self) -> Option<Stamp> {
        u64::try_from(self.clock.now().nsec).ok().map(Stamp::from_ns)
    }
}

impl<T: RclrsKind> fmt::Debug for Descriptors<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptors").field("topic", &self.publisher.topic_name()).finish_non_exhaustive()
    }
}

impl<T: RclrsKind> Publisher<T> {
    /// Makes a publisher on a node. `options` are those of `Node::create_publisher`: a name, optionally with QoS.
    pub fn new<'a>(node: &Node, options: impl Into<PublisherOptions<'a>>) -> Result<Self, Error> {
        raw::type_support::<T::Message>()?;
        let options = options.into();
        let (name, profile) = (options.topic.to_owned(), profile_of(&options.qos));
        let publisher = node.create_publisher::<T::Message>(options).map_err(|error| Error::ros(name, error))?;
        let mut parameters = Declared::on(node);
        let topic = publisher.topic_name();
        let offer = parameters::offer(&topic, &profile, &mut parameters)?;
        let core_node = core::node_of(domain(node), offer.device)?;
        let descriptors =
            Descriptors { publisher, clock: node.get_clock(), _parameters: parameters, reporting: OnceLock::new() };
        let made = Self::of(&core_node, &topic, offer.qos, descriptors)?;
        let core = made.core().clone();
        let reporting = diagnostics::report(node, move |node, before| {
            let subscribers = core.subscriber_count() as u64;
            Some(Status::of_publisher(node, core.topic(), &core.statistics(), subscribers, before))
        })?;
        let _ = made.descriptors().reporting.set(reporting);
        Ok(made)
    }
}

/// Calls a callback with each sample of a topic, from the node's executor.
pub struct Subscription<T: RclrsKind> {
    payloads: Arc<Payloads<T>>,
    /// The ROS subscription, of one of rclrs's types; dropping it ends it.
    _descriptors: Box<dyn Any + Send + Sync>,
    _parameters: Declared,
    _reporting: Option<Reporting>,
}

impl<T: RclrsKind> Subscription<T> {
    /// The node's executor calls `callback`. It may keep the sample, which is a lease.
    pub fn new<'a>(
        node: &Node,
        options: impl Into<SubscriptionOptions<'a>>,
        callback: impl Fn(Sample<T>) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        // Like a plain subscription of rclrs, but samples are taken in order, whichever order the executor gives the callbacks.
        let callback = Arc::new(callback);
        Self::new_async(node, options, move |sample| {
            let callback = callback.clone();
            async move { callback(sample) }
        })
    }

    /// Like `new`, with a callback that returns a future, which the executor runs.
    pub fn new_async<'a, F: Future<Output = ()> + Send + 'static>(
        node: &Node,
        options: impl Into<SubscriptionOptions<'a>>,
        mut callback: impl FnMut(Sample<T>) -> F + Send + 'static,
    ) -> Result<Self, Error> {
        Self::make(node, options.into(), |options, taker| {
            let made = node.create_async_subscription::<T::Message, _>(options, move |message: T::Message| {
                let called = taker.take(&message).map(&mut callback);
                async move {
                    if let Some(called) = called {
                        called.await;
                    }
                }
            })?;
            Ok((made.topic_name(), Box::new(made)))
        })
    }

    /// Like `new`, with the payload of a worker of this node: callbacks of one worker run one after another.
    pub fn on_worker<'a, P: Send + Sync + 'static>(
        node: &Node,
        worker: &Worker<P>,
        options: impl Into<SubscriptionOptions<'a>>,
        mut callback: impl FnMut(&mut P, Sample<T>) + Send + 'static,
    ) -> Result<Self, Error> {
        Self::make(node, options.into(), |options, taker| {
            let made =
                worker.create_subscription::<T::Message, _>(options, move |payload: &mut P, message: T::Message| {
                    if let Some(sample) = taker.take(&message) {
                        callback(payload, sample);
                    }
                })?;
            Ok((made.topic_name(), Box::new(made)))
        })
    }

    fn make<'a>(
        node: &Node,
        options: SubscriptionOptions<'a>,
        create: impl FnOnce(SubscriptionOptions<'a>, PayloadTaker<T>) -> Result<Made, ::rclrs::RclrsError>,
    ) -> Result<Self, Error> {
        raw::type_support::<T::Message>()?;
        let (name, profile) = (options.topic.to_owned(), profile_of(&options.qos));
        let on = |topic: &str| -> Result<_, Error> {
            let mut parameters = Declared::on(node);
            let request = parameters::request(topic, &profile, &mut parameters)?;
            let core_node = core::node_of(domain(node), request.device)?;
            Ok((Arc::new(Payloads::with(&core_node, topic, &request)?), parameters))
        };
        // The core subscriber is made first, so each descriptor from ROS names a message that it gets, or one counted as early.
        let joined = on(&raw::resolved(options.topic, &node.name(), &node.namespace())?)?;
        let pending = PendingPayloads::<T>::default();
        let taker = PayloadTaker { pending: pending.clone(), logger: node.logger().name().to_owned() };
        let made = create(options, taker).map_err(|error| Error::ros(name, error));
        // A context or node with its own arguments (not the process's) may remap the name differently. Callbacks called before this is settled wait.
        let joined = made.and_then(|(topic, descriptors)| {
            let joined = if joined.0.topic_name() == topic { joined } else { on(&topic)? };
            Ok((joined, descriptors))
        });
        let _ = pending.set(joined.as_ref().ok().map(|((payloads, _), _)| payloads.clone()));
        let ((payloads, parameters), descriptors) = joined?;
        let reported = Arc::downgrade(&payloads);
        let reporting = diagnostics::report(node, move |node, before| {
            let payloads = reported.upgrade()?;
            let (topic, statistics) = (payloads.topic_name(), payloads.statistics());
            Some(Status::of_subscription(node, topic, &statistics, payloads.counts(), before))
        })?;
        Ok(Self { payloads, _descriptors: descriptors, _parameters: parameters, _reporting: reporting })
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

impl<T: RclrsKind> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("payloads", &self.payloads).finish_non_exhaustive()
    }
}

/// The name after remapping, and the object whose drop ends the subscription.
type Made = (String, Box<dyn Any + Send + Sync>);
/// Set once the core's half is made, or has failed.
type PendingPayloads<T> = Arc<OnceLock<Option<Arc<Payloads<T>>>>>;

/// Takes payloads in a callback.
struct PayloadTaker<T: RclrsKind> {
    pending: PendingPayloads<T>,
    logger: String,
}

impl<T: RclrsKind> PayloadTaker<T> {
    fn take(&self, message: &T::Message) -> Option<Sample<T>> {
        let payloads = self.pending.wait().as_ref()?;
        payloads.take(message, |severity, text| match severity {
            Severity::Debug => ::rclrs::log_debug!(self.logger.as_str(), "{text}"),
            Severity::Warning => ::rclrs::log_warn!(self.logger.as_str(), "{text}"),
        })
    }
}

fn domain(node: &Node) -> Option<u32> {
    u32::try_from(node.domain_id()).ok()
}

/// The policies of a profile that the core also has.
fn profile_of(profile: &QoSProfile) -> Profile {
    Profile {
        reliability: match profile.reliability {
            QoSReliabilityPolicy::Reliable => Policy::Set(Reliability::Reliable),
            QoSReliabilityPolicy::BestEffort => Policy::Set(Reliability::BestEffort),
            _ => Policy::Any,
        },
        durability: match profile.durability {
            QoSDurabilityPolicy::TransientLocal => Policy::Set(Durability::TransientLocal),
            QoSDurabilityPolicy::Volatile => Policy::Set(Durability::Volatile),
            _ => Policy::Any,
        },
        history: match profile.history {
            QoSHistoryPolicy::KeepLast { depth } | QoSHistoryPolicy::SystemDefault { depth } => {
                History::KeepLast(depth)
            }
            QoSHistoryPolicy::KeepAll => History::KeepAll,
        },
    }
}

/// Read-only parameters of an endpoint. Endpoints with the same name share them; dropping the last undeclares them.
struct Declared {
    node: Node,
    kept: Vec<Arc<Parameter>>,
}

struct Parameter {
    name: String,
    value: Value,
    /// rclrs's own object; dropping it undeclares the parameter.
    _declared: Box<dyn Any + Send + Sync>,
}

/// The declared parameters: rclrs gives access to a parameter only to the code that declared it.
static DECLARED: Mutex<Vec<(Weak<NodeState>, Weak<Parameter>)>> = Mutex::new(Vec::new());

impl Declared {
    fn on(node: &Node) -> Self {
        Self { node: node.clone(), kept: Vec::new() }
    }

    /// The value with which another endpoint has declared it, or the result of `declare`.
    fn shared(
        &mut self,
        name: &str,
        declare: impl FnOnce(&Node) -> Result<(Value, Box<dyn Any + Send + Sync>), DeclarationError>,
    ) -> Result<Value, Error> {
        let mut all = DECLARED.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(node, parameter)| node.strong_count() > 0 && parameter.strong_count() > 0);
        let ours = all.iter().filter(|(node, _)| std::ptr::eq(node.as_ptr(), Arc::as_ptr(&self.node)));
        let known = ours.filter_map(|(_, parameter)| parameter.upgrade()).find(|parameter| parameter.name == name);
        let parameter = match known {
            Some(known) => known,
            None => {
                let refused = |error| Error::ros(format!("parameter {name}"), error);
                let (value, declared) = declare(&self.node).map_err(refused)?;
                let made = Arc::new(Parameter { name: name.to_owned(), value, _declared: declared });
                all.push((Arc::downgrade(&self.node), Arc::downgrade(&made)));
                made
            }
        };
        let value = parameter.value.clone();
        self.kept.push(parameter);
        Ok(value)
    }
}

impl Parameters for Declared {
    fn value(&mut self, parameter: &parameters::Parameter) -> Result<Value, Error> {
        let (name, description) = (parameter.name.as_str(), parameter.description);
        self.shared(name, |node| match parameter.default.clone() {
            Value::Integer(default) => {
                let mut builder = node.declare_parameter::<i64>(name).default(default).description(description);
                if let Rule::Integer(range) = &parameter.rule {
                    let (lower, upper) = (Some(*range.start()), Some(*range.end()));
                    builder = builder.range(ParameterRange { lower, upper, step: None });
                }
                let declared = builder.read_only()?;
                Ok((Value::Integer(declared.get()), Box::new(declared)))
            }
            Value::Flag(default) => {
                let builder = node.declare_parameter::<bool>(name).default(default).description(description);
                let declared = builder.read_only()?;
                Ok((Value::Flag(declared.get()), Box::new(declared)))
            }
            Value::Text(default) | Value::Other(default) => {
                let default = Arc::from(default);
                let builder = node.declare_parameter::<Arc<str>>(name).default(default).description(description);
                let declared = builder.read_only()?;
                Ok((Value::Text(declared.get().to_string()), Box::new(declared)))
            }
        })
    }
}
