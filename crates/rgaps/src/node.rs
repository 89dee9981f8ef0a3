//! A node: a process's connection to its host's manager, and the factory of publishers and subscribers.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use rgaps_control::local::{Body, Reply, TopicSummary};
use rgaps_control::runtime::RuntimeError;
use rgaps_control::spawn::Autostart;
use rgaps_control::{EndpointSlot, PublisherSlot};
use rgaps_control::{NameError, PublisherQos, RuntimeDir, SubscriberQos, TopicKey};
use rgaps_device::{Backend, Choice, DeviceError, PoolDescription, PoolMemory, PoolRole, SlabDescription, Stream};
use rgaps_os::{EventFd, ForkGuard};
use rgaps_shm::observer::Observer;
use rgaps_shm::segment::AttachError;
use rgaps_shm::space::{CutOff, PortError};
use rgaps_shm::{ReaderPort, Segment, SubscriberPages, WriterPort};

use crate::async_request::AsyncRequest;
use crate::attachment::Attachment;
use crate::completions::Completions;
use crate::hello::SessionError;
use crate::members::Member;
use crate::pools::OpenRequests;
use crate::publisher::{Publisher, PublisherInner};
use crate::session::{Answer, Session};
use crate::subscriber::{Subscriber, SubscriberInner};
use crate::types::Meta;

/// How long a call waits for a device.
pub(crate) const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long dropping a publisher or subscriber waits for streams that still have to write into its segment.
pub(crate) const STREAM_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a waiting thread polls whether a device has completed a message.
pub(crate) const READY_TICK: Duration = Duration::from_micros(500);

/// The largest ROS domain id: larger ids map to DDS ports above 65535 ("The ROS_DOMAIN_ID", ROS 2 documentation).
const DOMAIN_MAX: u32 = 232;

/// Why a node, publisher or subscriber could not be created. Nothing is left behind.
#[derive(thiserror::Error)]
pub enum NodeError {
    /// The topic's name breaks a rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The domain is not a ROS domain id.
    #[error("{found:?} is not a ROS domain id: {origin} must be from 0 to {DOMAIN_MAX}")]
    Domain {
        /// The value found.
        found: String,
        /// Its origin: "ROS_DOMAIN_ID" or "the node's domain".
        origin: &'static str,
    },
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The manager could not be reached, refused the request, or did not answer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The topic's segment cannot be used.
    #[error(transparent)]
    Segment(#[from] AttachError),
    /// The slot does not belong to this publisher or subscriber.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The pool cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// This process was forked from the one that created the node.
    #[error("the node belongs to the parent process; make a node after fork")]
    Forked,
}

/// Settings of a node. Each has a default that works on one machine.
///
/// ```no_run
/// let node = rgaps::Node::builder().name("camera").domain(7).runtime_dir("/tmp/robot").build()?;
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
    #[must_use]
    pub fn device(mut self, device: Choice) -> Self {
        self.device = device;
        self
    }

    /// Never starts a manager, not even when the running one dies: for hosts where a service manager or a person starts `rgapsd`.
    #[must_use]
    pub fn no_autostart(mut self) -> Self {
        self.autostart = Autostart::Never;
        self
    }

    /// Marks the node as part of a ROS 2 node. If it starts the manager, and neither the configuration (`network`, `peers`, `listen`) nor
    /// ROS_AUTOMATIC_DISCOVERY_RANGE says anything about the network, the manager admits other hosts of the subnet, as the RMW does. Without this
    /// mark it admits none.
    #[must_use]
    pub fn ros_node(mut self) -> Self {
        if self.autostart == Autostart::OnDemand {
            self.autostart = Autostart::ForRos;
        }
        self
    }

    /// Connects to the manager; starts one if none runs.
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
/// ```no_run
/// use rgaps::types::Bytes;
///
/// let node = rgaps::Node::new("monitor")?;
/// let subscriber = node.subscriber::<Bytes>("status")?;
/// for topic in node.topics()? {
///     println!("{topic:?}");
/// }
/// # Ok::<(), rgaps::NodeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Node {
    inner: Arc<NodeInner>,
}

#[derive(Debug)]
pub(crate) struct NodeInner {
    session: Arc<Session>,
    domain: u32,
    host: [u8; 16],
    host_epoch: u64,
    backend: Arc<dyn Backend>,
    /// For copies that a caller waits for; created on first use.
    own_stream: Mutex<Option<Stream>>,
    fork: ForkGuard,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Node {
    /// Creates a node with default settings.
    pub fn new(name: impl Into<String>) -> Result<Self, NodeError> {
        Self::builder().name(name).build()
    }

    /// Starts a node's settings; `NodeBuilder::build` creates the node.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// Creates a publisher with ROS 2's default QoS.
    pub fn publisher<T: Meta>(&self, topic: &str) -> Result<Publisher<T>, NodeError> {
        self.publisher_with(topic, PublisherQos::default())
    }

    /// Creates a publisher, and the topic if it does not exist. The topic's type must be `T`.
    ///
    /// ```no_run
    /// use rgaps::{Exhaustion, PublisherQos, types::Image};
    ///
    /// # let node = rgaps::Node::new("camera")?;
    /// let qos = PublisherQos { exhaustion: Exhaustion::DropOldest, ..PublisherQos::default() };
    /// let publisher = node.publisher_with::<Image>("camera/front", qos)?;
    /// # Ok::<(), rgaps::NodeError>(())
    /// ```
    pub fn publisher_with<T: Meta>(&self, topic: &str, qos: PublisherQos) -> Result<Publisher<T>, NodeError> {
        let node = &self.inner;
        node.check_owner()?;
        let key = TopicKey::new(node.domain, topic)?;
        node.session.make(|| self.join_as_publisher(&key, qos))
    }

    /// `None` if the manager died before its successor could learn of the publisher.
    fn join_as_publisher<T: Meta>(&self, key: &TopicKey, qos: PublisherQos) -> Result<Option<Publisher<T>>, NodeError> {
        let node = &self.inner;
        let body = Body::Advertise { key: key.clone(), type_name: T::TYPE_NAME.to_owned(), qos };
        let mut answer = node.session.request(&body, &[])?;
        let Reply::Advertised(advertised) = answer.reply.clone() else { return Err(SessionError::Confused.into()) };
        let slot = advertised.slot;
        let granted = node.session.granted(advertised.topic, slot.into());
        let segment = Arc::new(Segment::attach(answer.fd()?, advertised.topic.0)?);
        let description = pool_description(advertised.pool)?;
        let slabs = (0..advertised.pool_fds).map(|_| answer.fd()).collect::<Result<_, _>>()?;
        let pool = node.backend.import_pool(&description, slabs, PoolRole::Writer)?;
        node.session.request(&Body::PoolMapped { topic: advertised.topic, slot }, &[])?;
        let Some(right) = pool.allocation_right() else {
            return Err(PortError::CutOff(CutOff(slot.into())).into());
        };
        let port = WriterPort::new(segment.clone(), slot, right)?;
        granted.attached();
        let topic_name = key.name().to_owned();
        let attachment = Attachment {
            key: key.clone(),
            topic: advertised.topic,
            type_name: T::TYPE_NAME.to_owned(),
            slot,
            segment,
            cut_off: Arc::default(),
        };
        let completions = Arc::new(Completions::new(node.backend.clone(), attachment.segment.clone(), None));
        let publisher = Publisher::new(PublisherInner {
            node: node.clone(),
            topic: topic_name,
            attachment,
            port: Arc::new(Mutex::new(port)),
            pool,
            completions,
            publisher: advertised.publisher,
            sequence: AtomicU64::new(0),
            qos,
        });
        if !node.session.add_member(Member::publisher(publisher.inner()), answer.epoch) {
            return Ok(None);
        }
        node.session.meet_subscribers(publisher.inner());
        Ok(Some(publisher))
    }

    /// Creates a subscriber with ROS 2's default QoS.
    pub fn subscriber<T: Meta>(&self, topic: &str) -> Result<Subscriber<T>, NodeError> {
        self.subscriber_with(topic, SubscriberQos::default())
    }

    /// Creates a subscriber, and the topic if it does not exist. The topic's type must be `T`. The subscriber gets every message that is published
    /// after this call returns.
    pub fn subscriber_with<T: Meta>(&self, topic: &str, qos: SubscriberQos) -> Result<Subscriber<T>, NodeError> {
        let node = &self.inner;
        node.check_owner()?;
        let key = TopicKey::new(node.domain, topic)?;
        node.session.make(|| self.join_as_subscriber(&key, qos))
    }

    /// `None` if the manager died before its successor could learn of the subscriber.
    fn join_as_subscriber<T: Meta>(
        &self,
        key: &TopicKey,
        qos: SubscriberQos,
    ) -> Result<Option<Subscriber<T>>, NodeError> {
        let node = &self.inner;
        let body = Body::Subscribe { key: key.clone(), type_name: T::TYPE_NAME.to_owned(), qos };
        let mut answer = node.session.request(&body, &[])?;
        let Reply::Subscribed(subscribed) = answer.reply.clone() else { return Err(SessionError::Confused.into()) };
        let slot = subscribed.slot;
        let granted = node.session.granted(subscribed.topic, slot.into());
        let segment = Arc::new(Segment::observe(answer.fd()?, subscribed.topic.0)?);
        let file = node.session.file(answer.fd()?)?;
        let pages = SubscriberPages::attach(file, subscribed.place, subscribed.topic.0, slot)?;
        let pages = Arc::new(pages);
        let history = qos.durability == rgaps_control::Durability::TransientLocal;
        let reader = ReaderPort::new(segment.clone(), pages.clone(), history)?;
        granted.attached();
        let topic_name = key.name().to_owned();
        let attachment = Attachment {
            key: key.clone(),
            topic: subscribed.topic,
            type_name: T::TYPE_NAME.to_owned(),
            slot,
            segment,
            cut_off: Arc::default(),
        };
        let completions =
            Arc::new(Completions::new(node.backend.clone(), attachment.segment.clone(), Some(pages.clone())));
        let subscriber = Subscriber::new(SubscriberInner {
            node: node.clone(),
            topic: topic_name,
            attachment,
            waiter: reader.waiter(),
            reader: Mutex::new(reader),
            pages,
            completions,
            maintained: Arc::default(),
            tasks: Arc::default(),
            open_requests: OpenRequests::default(),
            absent: Mutex::default(),
            early: Mutex::default(),
        });
        let member = Member::subscriber(subscriber.inner(), qos);
        Ok(node.session.add_member(member, answer.epoch).then_some(subscriber))
    }

    /// Observes a topic without joining it: an observer reads the descriptions of messages, not their payload. Also returns the name of the topic's
    /// type.
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
    pub fn device(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// Creates a stream on the device.
    pub fn stream(&self) -> Result<Stream, NodeError> {
        Ok(self.inner.backend.stream()?)
    }

    /// The identity of this host, as in `MessageInfo::source_host`.
    pub fn host(&self) -> [u8; 16] {
        self.inner.host
    }

    /// False in a process that was forked from the node's. There, calls of the node and of everything created from it fail.
    pub fn is_owner(&self) -> bool {
        self.inner.is_owner()
    }

    /// When this host started, in ns since 1970, as in `Handle::host_epoch`.
    pub fn host_epoch(&self) -> u64 {
        self.inner.host_epoch
    }
}

impl NodeInner {
    pub(crate) fn host(&self) -> [u8; 16] {
        self.host
    }

    pub(crate) fn host_epoch(&self) -> u64 {
        self.host_epoch
    }

    pub(crate) fn is_owner(&self) -> bool {
        self.fork.is_owner()
    }

    pub(crate) fn detach(&self, attachment: &Attachment<impl Copy + Into<EndpointSlot>>) {
        if self.is_owner() {
            self.session.detach(attachment);
        }
    }

    pub(crate) fn import_pool(
        &self,
        description: &PoolDescription,
        fds: Vec<OwnedFd>,
    ) -> Result<Arc<dyn PoolMemory>, NodeError> {
        Ok(self.backend.import_pool(description, fds, PoolRole::Reader)?)
    }

    /// Sends a request, with a file descriptor beside it, to the manager from the node's thread; `waker` is woken by the answer.
    pub(crate) fn request_async(&self, body: Body, beside: Option<Arc<EventFd>>, waker: Waker) -> Arc<AsyncRequest> {
        self.session.request_async(body, beside, waker)
    }

    pub(crate) fn wait_for_answer(&self, request: &AsyncRequest) -> Result<(), NodeError> {
        Ok(self.session.wait_for_answer(request)?)
    }

    /// Requests memory for slabs of one of this node's own pools. If the manager dies before its answer is used, the memory is its successor's: it
    /// was handed the pool without these slabs, and gives readers only what it has itself.
    pub(crate) fn add_memory(
        &self,
        attachment: &Attachment<PublisherSlot>,
        pool: &dyn PoolMemory,
        slabs: Vec<u32>,
    ) -> Result<(), NodeError> {
        let body = Body::Commit { topic: attachment.topic, slot: attachment.slot, slabs };
        loop {
            let answer = self.session.request(&body, &[])?;
            let Reply::Slabs(slabs) = answer.reply else { return Err(SessionError::Confused.into()) };
            let slabs: Vec<SlabDescription> = serde_json::from_value(slabs)
                .map_err(|error| DeviceError::Description(format!("slabs cannot be parsed: {error}")))?;
            let add = || pool.add_slabs(&slabs, answer.fds.collect());
            if let Some(added) = self.session.unless_handed_back(answer.epoch, add) {
                return Ok(added?);
            }
        }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(crate) fn own_stream(&self) -> Result<Stream, DeviceError> {
        let mut own = self.own_stream.lock().unwrap_or_else(PoisonError::into_inner);
        match own.as_ref() {
            Some(stream) => Ok(stream.clone()),
            None => Ok(own.insert(self.backend.stream()?).clone()),
        }
    }

    /// Makes the node's thread check its publishers and subscribers now.
    pub(crate) fn look_again(&self) {
        self.session.kick();
    }

    pub(crate) fn wake_when_readable(&self, event: &Arc<EventFd>, waker: Option<Waker>) {
        self.session.wake_when_readable(event, waker);
    }

    fn check_owner(&self) -> Result<(), NodeError> {
        if self.is_owner() { Ok(()) } else { Err(NodeError::Forked) }
    }
}

impl Drop for NodeInner {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.fork.is_owner() {
            // The thread exists in the parent only; joining it here would block forever.
            return std::mem::forget(thread);
        }
        let ends = self.session.stop();
        // The node's thread cannot join itself, and the finder cannot join a thread that waits for the finder.
        let is_own = self.session.is_runner() || self.session.is_finder();
        if let Some(thread) = thread.filter(|_| ends && !is_own) {
            let _ = thread.join();
        }
    }
}

/// Parses a domain id. An empty text is 0, as in ROS 2.
fn domain_id(found: &str, origin: &'static str) -> Result<u32, NodeError> {
    let domain = if found.is_empty() { Ok(0) } else { found.parse() };
    let refused = || NodeError::Domain { found: found.chars().take(80).collect(), origin };
    domain.ok().filter(|domain| *domain <= DOMAIN_MAX).ok_or_else(refused)
}

impl Answer {
    /// The description of a pool and its file descriptors, for mapping it.
    pub(crate) fn pool(self) -> Result<(PoolDescription, Vec<OwnedFd>), NodeError> {
        let Reply::Pool(description) = self.reply else { return Err(SessionError::Confused.into()) };
        Ok((pool_description(description)?, self.fds.collect()))
    }
}

fn pool_description(value: serde_json::Value) -> Result<PoolDescription, NodeError> {
    serde_json::from_value(value)
        .map_err(|error| DeviceError::Description(format!("it cannot be parsed: {error}")).into())
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
        for bad in ["233", "-1", "4294967296", "seven", " 7"] {
            let error = domain_id(bad, "ROS_DOMAIN_ID").unwrap_err().to_string();
            assert_eq!(error, format!("{bad:?} is not a ROS domain id: ROS_DOMAIN_ID must be from 0 to 232"));
        }
    }
}
