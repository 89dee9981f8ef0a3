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

use crate::attachment::Attachment;
use crate::completions::Completions;
use crate::hello::SessionError;
use crate::members::Member;
use crate::pools::Asked;
use crate::publisher::{Publisher, PublisherInner};
use crate::question::Question;
use crate::session::{Answer, Session};
use crate::subscriber::{Subscriber, SubscriberInner};
use crate::types::Meta;

/// How long a caller waits for a device.
pub(crate) const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of a publisher or subscriber waits for streams that have still to write into its segment.
pub(crate) const STREAM_TIMEOUT: Duration = Duration::from_secs(2);
/// How often somebody who waits looks whether a device has completed a message.
pub(crate) const READY_TICK: Duration = Duration::from_micros(500);

/// The last ROS domain id: the ports that DDS makes of more do not exist ("The ROS_DOMAIN_ID", ROS 2 documentation).
const DOMAIN_MAX: u32 = 232;

/// A node, publisher or subscriber could not be made. Nothing of it is left behind.
#[derive(thiserror::Error)]
pub enum NodeError {
    /// The topic's name breaks a rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It is no ROS domain id.
    #[error("{found:?} is no ROS domain id: {origin} goes from 0 to {DOMAIN_MAX}")]
    Domain {
        /// What was given.
        found: String,
        /// Where: "ROS_DOMAIN_ID" or "the node's domain".
        origin: &'static str,
    },
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The manager is not there, refused, or did not answer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The topic's segment cannot be used.
    #[error(transparent)]
    Segment(#[from] AttachError),
    /// The slot is not ours.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The pool cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// This process was forked from the one that made the node.
    #[error("the node belongs to the parent process; make a node after fork")]
    Forked,
}

/// Settings of a node; each has a default that works on one machine.
#[derive(Clone, Debug, Default)]
pub struct NodeBuilder {
    name: Option<String>,
    domain: Option<u32>,
    runtime_dir: Option<PathBuf>,
    device: Choice,
    autostart: Autostart,
}

impl NodeBuilder {
    /// For people; default: the program's name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// ROS domain id; default: ROS_DOMAIN_ID, else 0.
    #[must_use]
    pub fn domain(mut self, domain: u32) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Which manager to use, by its runtime directory; default: RGAPS_RUNTIME_DIR, else this user's.
    #[must_use]
    pub fn runtime_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.runtime_dir = Some(path.into());
        self
    }

    /// The GPU whose streams work on the host's pools; default: the one that the pools lie on. Another one works on them in place where it
    /// reaches that one's memory (peer mapping). Else messages are copied to it, each once a node, and counted
    /// (`SubscriberStatistics::copied_bytes`); what it publishes is copied into the pool, as if pushed; and the process has a context on both
    /// GPUs, with the memory that the driver takes for one. `build` says so where a GPU cannot do that either.
    #[must_use]
    pub fn device(mut self, device: Choice) -> Self {
        self.device = device;
        self
    }

    /// Never start a manager, neither now nor when it dies: a service manager does, or `rgapsd` was started by hand.
    #[must_use]
    pub fn no_autostart(mut self) -> Self {
        self.autostart = Autostart::Never;
        self
    }

    /// It works for a ROS 2 node. If it starts the manager and nothing is said of the network (no `network`, `peers` or `listen`, and
    /// ROS_AUTOMATIC_DISCOVERY_RANGE is not set), other hosts of the subnet are let in, as the RMW does it; without this, none is.
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

/// A process's part in RGAPS. Cheap to clone; usable from any thread; not across `fork`.
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
    /// For copies that a caller waits for; made when first needed.
    own_stream: Mutex<Option<Stream>>,
    fork: ForkGuard,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Node {
    /// A node with default settings.
    pub fn new(name: impl Into<String>) -> Result<Self, NodeError> {
        Self::builder().name(name).build()
    }

    /// Settings first.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// A publisher with ROS 2's default QoS.
    pub fn publisher<T: Meta>(&self, topic: &str) -> Result<Publisher<T>, NodeError> {
        self.publisher_with(topic, PublisherQos::default())
    }

    /// A publisher. The topic is made if it does not exist; its type must be `T`.
    pub fn publisher_with<T: Meta>(&self, topic: &str, qos: PublisherQos) -> Result<Publisher<T>, NodeError> {
        let node = &self.inner;
        node.check_owner()?;
        let key = TopicKey::new(node.domain, topic)?;
        node.session.make(|| self.join_as_publisher(&key, qos))
    }

    /// `None` if the manager died before its successor could have learned of the publisher.
    fn join_as_publisher<T: Meta>(&self, key: &TopicKey, qos: PublisherQos) -> Result<Option<Publisher<T>>, NodeError> {
        let node = &self.inner;
        let body = Body::Advertise { key: key.clone(), type_name: T::TYPE_NAME.to_owned(), qos };
        let mut answer = node.session.request(&body, &[])?;
        let Reply::Advertised(advertised) = answer.reply.clone() else { return Err(SessionError::Confused.into()) };
        let slot = advertised.slot;
        let granted = node.session.granted(advertised.topic, slot.into());
        let segment = Arc::new(Segment::attach(answer.descriptor()?, advertised.topic.0)?);
        let description = pool_description(advertised.pool)?;
        let slabs = (0..advertised.pool_descriptors).map(|_| answer.descriptor()).collect::<Result<_, _>>()?;
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
        let member = Member::Publisher(Arc::downgrade(publisher.inner()));
        if !node.session.add_member(member, answer.epoch) {
            return Ok(None);
        }
        node.session.meet_subscribers(publisher.inner());
        Ok(Some(publisher))
    }

    /// A subscriber with ROS 2's default QoS.
    pub fn subscriber<T: Meta>(&self, topic: &str) -> Result<Subscriber<T>, NodeError> {
        self.subscriber_with(topic, SubscriberQos::default())
    }

    /// A subscriber. The topic is made if it does not exist; its type must be `T`. From the return on, no message is missed.
    pub fn subscriber_with<T: Meta>(&self, topic: &str, qos: SubscriberQos) -> Result<Subscriber<T>, NodeError> {
        let node = &self.inner;
        node.check_owner()?;
        let key = TopicKey::new(node.domain, topic)?;
        node.session.make(|| self.join_as_subscriber(&key, qos))
    }

    /// `None` if the manager died before its successor could have learned of the subscriber.
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
        let segment = Arc::new(Segment::observe(answer.descriptor()?, subscribed.topic.0)?);
        let file = node.session.file(answer.descriptor()?)?;
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
            tended: Arc::default(),
            tasks: Arc::default(),
            asked: Asked::default(),
            absent: Mutex::default(),
            early: Mutex::default(),
        });
        let member = Member::Subscriber(Arc::downgrade(subscriber.inner()), qos);
        Ok(node.session.add_member(member, answer.epoch).then_some(subscriber))
    }

    /// Looks on at a topic without joining it: its messages' descriptions, not their payload. The type's name comes with it.
    pub fn observe(&self, topic: &str) -> Result<(Observer, String), NodeError> {
        self.inner.check_owner()?;
        let key = TopicKey::new(self.inner.domain, topic)?;
        let mut answer = self.inner.session.request(&Body::Observe { key }, &[])?;
        let Reply::Observed { topic, type_name } = answer.reply.clone() else {
            return Err(SessionError::Confused.into());
        };
        let segment = Segment::observe(answer.descriptor()?, topic.0)?;
        Ok((Observer::new(Arc::new(segment)), type_name))
    }

    /// The ROS domain id whose topics it publishes and subscribes to.
    pub fn domain(&self) -> u32 {
        self.inner.domain
    }

    /// The topics that this host knows of, of all domains.
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
            // Each part goes on where the one before it ended, so that the list ends.
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

    /// The device that this node works on: the one that pools of this host live on, unless `NodeBuilder::device` named another. Its streams and buffers are what `push_on`, `publish_on`, `take_on` and `release_on` take.
    pub fn device(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// A new stream of the device.
    pub fn stream(&self) -> Result<Stream, NodeError> {
        Ok(self.inner.backend.stream()?)
    }

    /// This host's identity, as messages carry it.
    pub fn host(&self) -> [u8; 16] {
        self.inner.host
    }

    /// False in a process that was forked from the node's: there every call of it and of what it has made is an error.
    pub fn is_owner(&self) -> bool {
        self.inner.is_owner()
    }

    /// When this host came to life, in ns since 1970, as handles carry it.
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

    /// The slot stays taken until this process ends, and what a stream may still write to stays mapped.
    pub(crate) fn keep(&self, attachment: &Attachment<impl Copy + Into<EndpointSlot>>, mapped: impl Sized) {
        std::mem::forget(mapped);
        if self.is_owner() {
            self.session.keep(attachment);
        }
    }

    pub(crate) fn import_pool(
        &self,
        description: &PoolDescription,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Arc<dyn PoolMemory>, NodeError> {
        Ok(self.backend.import_pool(description, descriptors, PoolRole::Reader)?)
    }

    /// Has the node's thread ask the manager.
    pub(crate) fn ask(&self, body: Body, waker: Waker) -> Arc<Question> {
        self.session.ask(body, waker)
    }

    pub(crate) fn await_answer(&self, question: &Question) -> Result<(), NodeError> {
        Ok(self.session.await_answer(question)?)
    }

    /// Whether what a manager said is of before the last hand-back, which did not know of it.
    pub(crate) fn is_handed_back(&self, epoch: u64) -> bool {
        self.session.is_handed_back(epoch)
    }

    /// Gets memory for slabs of this node's own pool.
    pub(crate) fn add_memory(
        &self,
        attachment: &Attachment<PublisherSlot>,
        pool: &dyn PoolMemory,
        slabs: Vec<u32>,
    ) -> Result<(), NodeError> {
        let newest = pool.newest_generation();
        let body = Body::Commit { topic: attachment.topic, slot: attachment.slot, slabs, newest };
        let answer = self.session.request(&body, &[])?;
        let Reply::Slabs(slabs) = answer.reply else { return Err(SessionError::Confused.into()) };
        let slabs: Vec<SlabDescription> = serde_json::from_value(slabs)
            .map_err(|error| DeviceError::Description(format!("slabs cannot be read: {error}")))?;
        Ok(pool.add_slabs(&slabs, answer.descriptors.collect())?)
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

    /// The node's thread looks after its publishers and subscribers now.
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
            // The thread lives in the parent only; joining it here would wait for ever.
            return std::mem::forget(thread);
        }
        self.session.stop();
        // Who waits for this one, or is it, cannot be waited for.
        let is_own = self.session.is_runner() || self.session.is_finder();
        if let Some(thread) = thread.filter(|_| !is_own) {
            let _ = thread.join();
        }
    }
}

/// An empty one is 0, as for ROS 2.
fn domain_id(found: &str, origin: &'static str) -> Result<u32, NodeError> {
    let domain = if found.is_empty() { Ok(0) } else { found.parse() };
    let refused = || NodeError::Domain { found: found.chars().take(80).collect(), origin };
    domain.ok().filter(|domain| *domain <= DOMAIN_MAX).ok_or_else(refused)
}

impl Answer {
    /// A pool, as other processes map it.
    pub(crate) fn pool(self) -> Result<(PoolDescription, Vec<OwnedFd>), NodeError> {
        let Reply::Pool(description) = self.reply else { return Err(SessionError::Confused.into()) };
        Ok((pool_description(description)?, self.descriptors.collect()))
    }
}

fn pool_description(value: serde_json::Value) -> Result<PoolDescription, NodeError> {
    serde_json::from_value(value)
        .map_err(|error| DeviceError::Description(format!("it cannot be read: {error}")).into())
}

fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().map_or_else(|| "rgaps".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_id_that_no_ros_node_could_have_is_refused_with_its_origin() {
        assert_eq!(
            (domain_id("", "x").unwrap(), domain_id("0", "x").unwrap(), domain_id("232", "x").unwrap()),
            (0, 0, 232)
        );
        for bad in ["233", "-1", "4294967296", "seven", " 7"] {
            let error = domain_id(bad, "ROS_DOMAIN_ID").unwrap_err().to_string();
            assert_eq!(error, format!("{bad:?} is no ROS domain id: ROS_DOMAIN_ID goes from 0 to 232"));
        }
    }
}
