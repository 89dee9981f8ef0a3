//! A node: a process's connection to its host's manager, and the factory of publishers and subscribers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rgaps_control::local::{Body, Reply, TopicSummary};
use rgaps_control::qos::Exhaustion;
use rgaps_control::spawn::Autostart;
use rgaps_control::{Config, PublisherQos, RuntimeDir, SubscriberQos, TopicKey};
use rgaps_device::{Backend, Choice, Stream};
use rgaps_os::ForkGuard;
use rgaps_shm::Segment;
use rgaps_shm::observer::Observer;

use crate::endpoint::error::{DOMAIN_MAX, NodeError};
use crate::endpoint::hello::SessionError;
use crate::endpoint::node::NodeInner;
use crate::endpoint::publisher::PublisherInner;
use crate::endpoint::session::Session;
use crate::endpoint::shared_pool::PoolInner;
use crate::endpoint::subscriber::SubscriberInner;
use crate::pool::Pool;
use crate::publisher::Publisher;
use crate::subscriber::Subscriber;
use crate::types::Meta;

/// Settings of a node. Each has a default that works on one machine.
///
/// ```
/// # let _host = rgaps_testing::example_host();
/// let node = rgaps::Node::builder().name("camera").domain(7).build()?;
/// assert_eq!(node.domain(), 7);
/// # Ok::<(), rgaps::NodeError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct NodeBuilder {
    name: Option<String>,
    domain: Option<u32>,
    runtime_dir: Option<PathBuf>,
    device: Choice,
    autostart: Autostart,
}

impl NodeBuilder {
    /// The name that tools show. Default: the program's name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The ROS domain id. Default: ROS_DOMAIN_ID, else 0.
    #[must_use]
    pub fn domain(mut self, domain: u32) -> Self {
        self.domain = Some(domain);
        self
    }

    /// The runtime directory of the manager to connect to. Default: RGAPS_RUNTIME_DIR, else the user's own.
    ///
    /// ```
    /// # use rgaps::Node;
    /// # let host = rgaps_testing::example_host();
    /// # let robot = host.path();
    /// # let _starter = Node::new("starter")?;
    /// let node = Node::builder().runtime_dir(robot).no_autostart().build()?;
    /// # drop(node);
    /// // No manager runs in another directory.
    /// assert!(Node::builder().runtime_dir(robot.join("other")).no_autostart().build().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn runtime_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.runtime_dir = Some(path.into());
        self
    }

    /// The GPU whose streams this node uses. Default: the GPU that has the host's pools.
    ///
    /// Another GPU works on the pools in place if it has peer access to their GPU. Without peer access:
    /// * each message that the node takes is copied to its GPU once (`SubscriberStatistics::copied_bytes`);
    /// * each message that it publishes is copied into the pool, as if pushed;
    /// * the process has a context on both GPUs, each with the memory that the driver needs for one.
    ///
    /// `build` returns an error if the GPU supports neither.
    ///
    /// ```
    /// # use rgaps::{Node, device::Choice};
    /// # let _host = rgaps_testing::example_host();
    /// let second: Choice = "cuda:1".parse()?;
    /// let node = match Node::builder().device(second).build() {
    ///     Ok(node) => node,
    ///     Err(error) => {
    ///         println!("{error}"); // this host has its pools in host memory
    ///         Node::builder().build()?
    ///     }
    /// };
    /// println!("{:?}", node.device().kind());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn device(mut self, device: Choice) -> Self {
        self.device = device;
        self
    }

    /// Never starts a manager, not even when the running one dies: for hosts where a service manager or a person starts `rgapsd`.
    ///
    /// ```
    /// # use rgaps::Node;
    /// # let _host = rgaps_testing::example_host();
    /// assert!(Node::builder().no_autostart().build().is_err(), "no manager runs");
    /// let starter = Node::new("starter")?; // starts one
    /// let node = Node::builder().name("driver").no_autostart().build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn no_autostart(mut self) -> Self {
        self.autostart = Autostart::Never;
        self
    }

    /// Marks the node as part of a ROS 2 node. If it starts the manager, and neither the configuration (`network`, `peers`, `listen`) nor
    /// ROS_AUTOMATIC_DISCOVERY_RANGE says anything about the network, the manager admits other hosts of the subnet, as the RMW does. Without this
    /// mark it admits none.
    ///
    /// ```
    /// # use rgaps::Node;
    /// # let _host = rgaps_testing::example_host();
    /// let node = Node::builder().name("camera_driver").domain(42).ros_node().build()?;
    /// assert_eq!(node.domain(), 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ros_node(mut self) -> Self {
        if self.autostart == Autostart::OnDemand {
            self.autostart = Autostart::ForRos;
        }
        self
    }

    /// Connects to the manager; starts one if none runs.
    ///
    /// ```
    /// # use rgaps::{Node, NodeError};
    /// # let _host = rgaps_testing::example_host();
    /// match Node::builder().domain(233).build() {
    ///     Err(NodeError::Domain { found, .. }) => assert_eq!(found, "233"), // ROS 2 has the ids 0 to 232
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build(self) -> Result<Node, NodeError> {
        let dir = RuntimeDir::for_client(self.runtime_dir.as_deref())?;
        let domain = match self.domain {
            Some(domain) => domain_id(&domain.to_string(), "the node's domain")?,
            None => domain_id(&std::env::var("ROS_DOMAIN_ID").unwrap_or_default(), "ROS_DOMAIN_ID")?,
        };
        let (session, welcome) = Session::open(dir, self.name.unwrap_or_else(program_name), self.autostart)?;
        let backend = rgaps_device::open_beside(self.device, welcome.device.parse()?)?.backend;
        let fork = ForkGuard::new()?;
        let thread = {
            let session = session.clone();
            std::thread::Builder::new().name("rgaps-node".to_owned()).spawn(move || session.run())?
        };
        let (host, host_epoch, thread) = (welcome.host.0, welcome.epoch, Mutex::new(Some(thread)));
        let inner =
            NodeInner { session, domain, host, host_epoch, backend, own_stream: Mutex::default(), fork, thread };
        Ok(Node { inner: Arc::new(inner) })
    }
}

/// A process's connection to RGAPS. Cheap to clone and usable from any thread, but not across `fork`.
///
/// ```
/// use rgaps::types::Bytes;
///
/// # let _host = rgaps_testing::example_host();
/// let node = rgaps::Node::new("monitor")?;
/// let subscriber = node.subscriber::<Bytes>("status")?;
/// let topics = node.topics()?;
/// assert_eq!((topics.len(), topics[0].subscribers, topics[0].publishers), (1, 1, 0));
/// # Ok::<(), rgaps::NodeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Node {
    inner: Arc<NodeInner>,
}

impl Node {
    /// Creates a node with default settings.
    ///
    /// ```
    /// # use rgaps::Node;
    /// # let _host = rgaps_testing::example_host();
    /// let node = Node::new("camera")?;
    /// let shared = node.clone(); // the same connection, for another thread
    /// assert_eq!(node.host(), shared.host());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(name: impl Into<String>) -> Result<Self, NodeError> {
        Self::builder().name(name).build()
    }

    /// Starts a node's settings; `NodeBuilder::build` creates the node.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// Creates a publisher with ROS 2's default QoS.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// let node = Node::new("camera")?;
    /// let publisher = node.publisher::<Bytes>("raw")?;
    /// assert_eq!(publisher.topic(), "/raw");
    /// publisher.push(&Bytes::new(5), b"hello")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publisher<T: Meta>(&self, topic: &str) -> Result<Publisher<T>, NodeError> {
        self.publisher_with(topic, PublisherQos::default())
    }

    /// Creates a publisher, and the topic if it does not exist. The topic's type must be `T`.
    ///
    /// ```
    /// use rgaps::{Exhaustion, PublisherQos, types::Image};
    ///
    /// # let _host = rgaps_testing::example_host();
    /// # let node = rgaps::Node::new("camera")?;
    /// let qos = PublisherQos { exhaustion: Exhaustion::DropOldest, ..PublisherQos::default() };
    /// let publisher = node.publisher_with::<Image>("camera/front", qos)?;
    /// # Ok::<(), rgaps::NodeError>(())
    /// ```
    pub fn publisher_with<T: Meta>(&self, topic: &str, qos: PublisherQos) -> Result<Publisher<T>, NodeError> {
        self.publisher_of(topic, T::TYPE_NAME, qos).map(Publisher::new)
    }

    pub(crate) fn publisher_of(
        &self,
        topic: &str,
        type_name: &str,
        qos: PublisherQos,
    ) -> Result<Arc<PublisherInner>, NodeError> {
        PublisherInner::make(&self.inner, topic, type_name, qos, None)
    }

    /// Creates a pool of `bytes` bytes that publishers of several topics share: one block of it can be a message of each.
    ///
    /// It is on the host's device. If it is full, `Pool::allocate` does what `exhaustion` says, across all topics. Only publishers that
    /// `Pool::publisher` makes publish its buffers: those of another node need a copy, also in the same process.
    ///
    /// ```
    /// # use rgaps::{Exhaustion, Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// let pool = Node::new("camera")?.pool(64 << 20, Exhaustion::DropOldest)?;
    /// let (raw, copy) = (pool.publisher::<Bytes>("raw")?, pool.publisher::<Bytes>("copy")?);
    /// let mut buffer = pool.allocate(5)?;
    /// buffer.copy_from_slice(b"hello");
    /// let buffer = buffer.freeze()?;
    /// raw.publish_buffer(&Bytes::new(5), &buffer)?;
    /// copy.publish_buffer(&Bytes::new(5), &buffer)?; // the same bytes, not a copy
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pool(&self, bytes: u64, exhaustion: Exhaustion) -> Result<Pool, NodeError> {
        self.pool_of(Some(bytes), exhaustion)
    }

    /// Like `pool`, with `pool_bytes`: of RGAPS_POOL_BYTES if this process's environment has it, else of the manager's configuration.
    ///
    /// ```
    /// # use rgaps::{Exhaustion, Node};
    /// # let _host = rgaps_testing::example_host();
    /// let pool = Node::new("camera")?.default_pool(Exhaustion::DropOldest)?;
    /// assert!(pool.allocate(100 << 20).is_ok(), "128 MiB, if nothing else is configured");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn default_pool(&self, exhaustion: Exhaustion) -> Result<Pool, NodeError> {
        let is_own = std::env::var_os("RGAPS_POOL_BYTES").is_some_and(|text| !text.is_empty());
        let own = is_own.then(|| Config::load(&BTreeMap::new())).transpose().map_err(std::io::Error::other)?;
        self.pool_of(own.map(|own| own.pool_bytes), exhaustion)
    }

    fn pool_of(&self, bytes: Option<u64>, exhaustion: Exhaustion) -> Result<Pool, NodeError> {
        let node = &self.inner;
        node.check_owner()?;
        let inner = node.session.make(|| PoolInner::make(node, bytes, exhaustion))?;
        Ok(Pool::new(inner))
    }

    /// Creates a subscriber with ROS 2's default QoS.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Bytes, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// let node = Node::new("logger")?;
    /// let subscriber = node.subscriber::<Bytes>("raw")?;
    /// assert!(subscriber.take()?.is_none(), "nobody has published yet");
    /// // The topic exists now, and keeps its type.
    /// assert!(node.subscriber::<Image>("raw").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscriber<T: Meta>(&self, topic: &str) -> Result<Subscriber<T>, NodeError> {
        self.subscriber_with(topic, SubscriberQos::default())
    }

    /// Creates a subscriber, and the topic if it does not exist. The topic's type must be `T`. The subscriber gets every message that is published
    /// after this call returns.
    ///
    /// ```
    /// # use rgaps::{Durability, History, Node, PublisherQos, SubscriberQos, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("planner")?;
    /// let map = PublisherQos { durability: Durability::TransientLocal, history_depth: 1, ..PublisherQos::default() };
    /// let publisher = node.publisher_with::<Bytes>("map", map)?;
    /// publisher.push(&Bytes::new(5), b"older")?;
    /// publisher.push(&Bytes::new(5), b"newer")?;
    ///
    /// let latest = SubscriberQos {
    ///     durability: Durability::TransientLocal,
    ///     history: History::KeepLast(1),
    ///     ..SubscriberQos::default()
    /// };
    /// let late_joiner = node.subscriber_with::<Bytes>("map", latest)?;
    /// assert_eq!(late_joiner.take()?.ok_or("no message")?.bytes(), b"newer");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscriber_with<T: Meta>(&self, topic: &str, qos: SubscriberQos) -> Result<Subscriber<T>, NodeError> {
        self.subscriber_of(topic, T::TYPE_NAME, qos).map(Subscriber::new)
    }

    pub(crate) fn subscriber_of(
        &self,
        topic: &str,
        type_name: &str,
        qos: SubscriberQos,
    ) -> Result<Arc<SubscriberInner>, NodeError> {
        let node = &self.inner;
        node.check_owner()?;
        let key = TopicKey::new(node.domain, topic)?;
        node.session.make(|| SubscriberInner::join(node, &key, type_name, qos))
    }

    /// Observes a topic without joining it: an observer reads the descriptions of messages, not their payload. Also returns the name of the topic's
    /// type.
    ///
    /// ```
    /// # use rgaps::types::Bytes;
    /// # let _host = rgaps_testing::example_host();
    /// # let node = rgaps::Node::new("monitor")?;
    /// # let publisher = node.publisher::<Bytes>("status")?;
    /// let (mut observer, type_name) = node.observe("status")?;
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// while let Some(info) = observer.poll() {
    ///     println!("{type_name} {} of {} B", info.sequence, info.bytes);
    /// #   assert_eq!((info.sequence, info.bytes), (1, 5));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe(&self, topic: &str) -> Result<(Observer, String), NodeError> {
        self.inner.check_owner()?;
        let key = TopicKey::new(self.inner.domain, topic)?;
        let mut answer = self.inner.session.request(&Body::Observe { key }, &[])?;
        let Reply::Observed { topic, type_name } = answer.reply.clone() else {
            return Err(SessionError::Confused.into());
        };
        let segment = Segment::observe(answer.fd()?, topic.0)?;
        Ok((Observer::new(Arc::new(segment)), type_name))
    }

    /// The ROS domain id of this node's topics.
    pub fn domain(&self) -> u32 {
        self.inner.domain
    }

    /// The topics that this host knows, of all domains.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Bytes, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// let node = Node::new("monitor")?;
    /// # let (image, raw) = (node.publisher::<Image>("camera/front")?, node.subscriber::<Bytes>("raw")?);
    /// let mut names = Vec::new();
    /// for topic in node.topics()? {
    ///     println!("{} ({}): {} publishers", topic.key, topic.type_name, topic.publishers);
    ///     names.push(topic.type_name);
    /// }
    /// # assert_eq!(names, ["rgaps/Image", "rgaps/Bytes"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn topics(&self) -> Result<Vec<TopicSummary>, NodeError> {
        self.inner.check_owner()?;
        let mut all: Vec<TopicSummary> = Vec::new();
        loop {
            let after = all.last().map(|topic| topic.key.clone());
            let Reply::Topics { topics, more } =
                self.inner.session.request(&Body::Topics { after: after.clone() }, &[])?.reply
            else {
                return Err(SessionError::Confused.into());
            };
            // Each part must start after the previous one ended, so that the list ends.
            if topics.first().is_some_and(|first| after.as_ref().is_some_and(|after| first.key <= *after)) {
                return Err(SessionError::Confused.into());
            }
            let more = more && !topics.is_empty();
            all.extend(topics);
            if !more {
                return Ok(all);
            }
        }
    }

    /// The device of this node: the one that has this host's pools, unless `NodeBuilder::device` chose another. `push_on`, `publish_on`, `take_on`
    /// and `release_on` take its streams and buffers.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let mut copy = [0; 5];
    /// node.device().copy_out(&node.stream()?, sample.part()?, &mut copy)?;
    /// assert_eq!(&copy, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn device(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// Creates a stream on the device.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let publisher = node.publisher::<Bytes>("raw")?;
    /// let stream = node.stream()?;
    /// let loan = publisher.loan(Bytes::new(64))?;
    /// // here a kernel starts on `stream` that fills the loan
    /// loan.publish_on(&stream)?; // after the kernel
    /// stream.synchronize(Duration::from_secs(1))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stream(&self) -> Result<Stream, NodeError> {
        Ok(self.inner.backend.stream()?)
    }

    /// The identity of this host, as in `MessageInfo::source_host`.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// assert_eq!(sample.info().source_host, node.host(), "published on this host");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn host(&self) -> [u8; 16] {
        self.inner.host
    }

    /// False in a process that was forked from the node's. There, calls of the node and of everything created from it fail.
    pub fn is_owner(&self) -> bool {
        self.inner.is_owner()
    }

    /// The number of the manager that this node uses, from 0; each successor counts one more.
    pub fn manager_number(&self) -> u64 {
        self.inner.session.epoch()
    }

    /// When this host started, in ns since 1970, as in `MessageHandle::host_epoch`.
    pub fn host_epoch(&self) -> u64 {
        self.inner.host_epoch
    }
}

/// Reads the number that rcl reads (`strtoul` with base 0): an empty text is 0, `0x10` is 16, and `010` is 8. Refuses other text around it.
fn domain_id(found: &str, origin: &'static str) -> Result<u32, NodeError> {
    let domain = match found.strip_prefix('0') {
        _ if found.is_empty() => Ok(0),
        Some(rest) if !rest.is_empty() => match rest.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => u32::from_str_radix(rest, 8),
        },
        _ => found.parse(),
    };
    let refused = || NodeError::Domain { found: found.chars().take(80).collect(), origin };
    domain.ok().filter(|domain| *domain <= DOMAIN_MAX && !found.contains('+')).ok_or_else(refused)
}

fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().map_or_else(|| "rgaps".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_id_outside_the_range_of_ros_is_refused_with_its_origin() {
        assert_eq!(
            (domain_id("", "x").unwrap(), domain_id("0", "x").unwrap(), domain_id("232", "x").unwrap()),
            (0, 0, 232)
        );
        assert_eq!(["0x8", "010", "00"].map(|text| domain_id(text, "x").unwrap()), [8, 8, 0]);
        for bad in ["233", "0xe9", "08", "0x", "-1", "4294967296", "seven", " 7"] {
            let error = domain_id(bad, "ROS_DOMAIN_ID").unwrap_err().to_string();
            assert_eq!(error, format!("{bad:?} is not a ROS domain id: ROS_DOMAIN_ID must be from 0 to 232"));
        }
    }
}
