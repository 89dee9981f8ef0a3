//! The common part of publishers and subscriptions for both clients: the core's half.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rgaps::device::{Choice, Stream};
use rgaps::types::Stamp;
use rgaps::{
    MessageHandle, Node, PublishError, PublisherQos, PublisherStatistics, Sample, Subscriber, SubscriberStatistics,
};
use rgaps_ros_policy::payloads::{self, Counts, Severity, Taken};

use crate::Error;
use crate::descriptor::{Descriptor, RosKind};
use crate::parameters::Request;

/// The ROS half of a publisher.
pub trait Descriptors<T: RosKind> {
    /// Publishes a descriptor.
    fn send(&self, message: &T::Message) -> Result<(), Error>;

    /// The node's time, for messages without a stamp.
    fn now(&self) -> Option<Stamp>;
}

/// Publishes in the core, then publishes the descriptor. Both have the same order in all threads, so a push that waits for space blocks other
/// threads.
#[derive(Debug)]
pub struct Publisher<T: RosKind, D> {
    core: rgaps::Publisher<T>,
    descriptors: D,
    /// Held from publishing a message until its descriptor is published: if another descriptor overtook it, a subscriber that takes by handle in
    /// order would already have released the message.
    turn: Mutex<()>,
}

impl<T: RosKind, D: Descriptors<T>> Publisher<T, D> {
    /// Makes a publisher on this fully qualified topic, after remapping. `parameters::offer` gives the offered QoS.
    pub fn of(node: &Node, topic: &str, offered: PublisherQos, descriptors: D) -> Result<Self, Error> {
        Ok(Self { core: node.publisher_with(topic, offered)?, descriptors, turn: Mutex::default() })
    }

    /// Loans a block of the pool for the bytes that `meta` describes, to fill in place.
    pub fn loan(&self, meta: T) -> Result<Loan<'_, T, D>, PublishError> {
        Ok(Loan { loan: self.core.loan(self.stamped(meta))?, publisher: self })
    }

    /// Publishes a copy of `bytes`.
    pub fn push(&self, meta: T, bytes: &[u8]) -> Result<MessageHandle, Error> {
        let meta = self.stamped(meta);
        let _turn = self.turn();
        let handle = self.core.push(&meta, bytes)?;
        self.describe(handle, &meta)
    }

    /// The ROS half.
    pub fn descriptors(&self) -> &D {
        &self.descriptors
    }

    /// The core's half.
    pub fn core(&self) -> &rgaps::Publisher<T> {
        &self.core
    }

    /// The topic's fully qualified name.
    pub fn topic_name(&self) -> &str {
        self.core.topic()
    }

    /// Counters of the core's half.
    pub fn statistics(&self) -> PublisherStatistics {
        self.core.statistics()
    }

    fn stamped(&self, meta: T) -> T {
        if meta.header().stamp != Stamp::default() {
            return meta;
        }
        match self.descriptors.now() {
            Some(now) => meta.stamped(now),
            None => meta,
        }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, handle: MessageHandle, meta: &T) -> Result<MessageHandle, Error> {
        self.descriptors.send(&T::Message::new(&handle, meta))?;
        Ok(handle)
    }
}

/// A block to fill in place; publishing it publishes the descriptor too.
#[derive(Debug)]
#[must_use = "a loan does nothing until it is published"]
pub struct Loan<'a, T: RosKind, D> {
    loan: rgaps::Loan<T>,
    publisher: &'a Publisher<T, D>,
}

impl<T: RosKind, D: Descriptors<T>> Loan<'_, T, D> {
    /// Publishes the message and its descriptor.
    pub fn publish(self) -> Result<MessageHandle, Error> {
        let meta = self.loan.meta().clone();
        let _turn = self.publisher.turn();
        let handle = self.loan.publish()?;
        self.publisher.describe(handle, &meta)
    }

    /// Like `publish`, behind the work of `stream`. The descriptor is published at once; a subscriber that takes the message waits for its bytes.
    pub fn publish_on(self, stream: &Stream) -> Result<MessageHandle, Error> {
        let meta = self.loan.meta().clone();
        let _turn = self.publisher.turn();
        let handle = self.loan.publish_on(stream)?;
        self.publisher.describe(handle, &meta)
    }
}

impl<T: RosKind, D> Deref for Loan<'_, T, D> {
    type Target = rgaps::Loan<T>;

    fn deref(&self) -> &rgaps::Loan<T> {
        &self.loan
    }
}

impl<T: RosKind, D> DerefMut for Loan<'_, T, D> {
    fn deref_mut(&mut self) -> &mut rgaps::Loan<T> {
        &mut self.loan
    }
}

/// The core's half of a subscription: a core subscriber, which takes the payloads of descriptors.
#[derive(Debug)]
pub struct Payloads<T: RosKind> {
    subscriber: Subscriber<T>,
    descriptors: payloads::Payloads,
}

impl<T: RosKind> Payloads<T> {
    /// Makes it on this fully qualified topic, after remapping. Make it before the ROS half, so that each descriptor names a message that it gets, or
    /// one that is early. Take descriptors in the order in which they arrive. `parameters::request` gives the request.
    pub fn with(node: &Node, topic: &str, request: &Request) -> Result<Self, Error> {
        let subscriber = node.subscriber_with(topic, request.qos)?;
        subscriber.expect_handles_in_order();
        let descriptors = payloads::Payloads::new(subscriber.topic(), request.payload_timeout);
        Ok(Self { subscriber, descriptors })
    }

    /// Takes the sample that a descriptor names. If it is refused, it is counted, and `log` gets a line if it is the first of its publisher and reason.
    /// A message published before this subscriber existed is counted as early.
    pub fn take(&self, message: &T::Message, log: impl FnOnce(Severity, &str)) -> Option<Sample<T>> {
        let take = |handle: &MessageHandle, timeout| self.subscriber.take_by_handle(handle, timeout).map_err(Some);
        match self.descriptors.take(message.checked(), take, log) {
            Taken::Sample(sample) => Some(sample),
            Taken::Nothing | Taken::Refused(_) => None,
        }
    }

    /// Descriptors that were refused, and those of messages published before this subscriber existed.
    pub fn counts(&self) -> Counts {
        self.descriptors.counts()
    }

    /// The topic's fully qualified name.
    pub fn topic_name(&self) -> &str {
        self.subscriber.topic()
    }

    /// The core subscriber.
    pub fn core(&self) -> &Subscriber<T> {
        &self.subscriber
    }

    /// Counters of the core subscriber.
    pub fn statistics(&self) -> SubscriberStatistics {
        self.subscriber.statistics()
    }
}

/// The core's node for nodes of a ROS domain, on this device. A process has one, and a forked child its own. `None` means the domain of
/// ROS_DOMAIN_ID.
pub fn node_of(domain: Option<u32>, device: Choice) -> Result<Node, Error> {
    type Known = HashMap<(Option<u32>, Choice), Node>;
    static NODES: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (domain, device);
    // A forked child has its parent's nodes in here.
    if let Some(node) = nodes.get(&key).filter(|node| node.is_owner()) {
        return Ok(node.clone());
    }
    let mut builder = Node::builder().device(device).ros_node();
    if let Some(domain) = domain {
        builder = builder.domain(domain);
    }
    let node = builder.build()?;
    nodes.insert(key, node.clone());
    Ok(node)
}
