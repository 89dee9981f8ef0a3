//! The subscriber without its type: its slot, and the next message.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rgaps_control::local::{Body, Reply};
use rgaps_control::{Durability, SubscriberQos, SubscriberSlot, TopicKey};
use rgaps_device::{DeviceError, PoolMemory, Stream};
use rgaps_shm::notify::FutexWait;
use rgaps_shm::reader::port::TakeRefused;
use rgaps_shm::{Held, ReaderPort, Segment, SubscriberPages};

use crate::endpoint::attachment::Attachment;
use crate::endpoint::by_publisher::{Absent, Early};
use crate::endpoint::completions::{Completions, DEVICE_TIMEOUT, Releasing, STREAM_TIMEOUT, StreamPoint};
use crate::endpoint::error::NodeError;
use crate::endpoint::hello::SessionError;
use crate::endpoint::maintained::Maintained;
use crate::endpoint::members::{Endpoint, Member, Parts, Upkeep};
use crate::endpoint::node::NodeInner;
use crate::endpoint::open_requests::OpenRequests;
use crate::endpoint::take_error::TakeError;
use crate::endpoint::tasks::Tasks;

/// A subscriber of any type.
#[derive(Debug)]
pub(crate) struct SubscriberInner {
    pub(crate) node: Arc<NodeInner>,
    pub(crate) topic: String,
    pub(crate) attachment: Attachment<SubscriberSlot>,
    pub(crate) reader: Mutex<ReaderPort>,
    /// Outside the reader's lock, so that waiting threads can be woken while a take holds it.
    pub(crate) waiter: FutexWait,
    pub(crate) pages: Arc<SubscriberPages>,
    pub(crate) completions: Arc<Completions<Releasing>>,
    pub(crate) maintained: Arc<Maintained>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) open_requests: OpenRequests,
    pub(crate) absent: Mutex<Absent>,
    pub(crate) early: Mutex<Early>,
}

impl SubscriberInner {
    /// `None` if the manager died before its successor could learn of the subscriber.
    pub(crate) fn join(
        node: &Arc<NodeInner>,
        key: &TopicKey,
        type_name: &str,
        qos: SubscriberQos,
    ) -> Result<Option<Arc<Self>>, NodeError> {
        let body = Body::Subscribe { key: key.clone(), type_name: type_name.to_owned(), qos };
        let mut answer = node.session.request(&body, &[])?;
        let Reply::Subscribed(subscribed) = answer.reply.clone() else { return Err(SessionError::Confused.into()) };
        let slot = subscribed.slot;
        let granted = node.session.granted(subscribed.topic, slot.into());
        let segment = Arc::new(Segment::observe(answer.fd()?, subscribed.topic.0)?);
        let file = node.session.file(answer.fd()?)?;
        let pages = SubscriberPages::attach(file, subscribed.place, subscribed.topic.0, slot)?;
        let pages = Arc::new(pages);
        let history = qos.durability == Durability::TransientLocal;
        let reader = ReaderPort::new(segment.clone(), pages.clone(), history)?;
        granted.attached();
        let topic_name = key.name().to_owned();
        let attachment = Attachment {
            key: key.clone(),
            topic: subscribed.topic,
            type_name: type_name.to_owned(),
            slot,
            segment,
            cut_off: Arc::default(),
        };
        let completions =
            Arc::new(Completions::new(node.backend.clone(), attachment.segment.clone(), Some(pages.clone())));
        let subscriber = Arc::new(Self {
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
        let member = subscriber.member(qos);
        Ok(node.session.add_member(member, answer.epoch).then_some(subscriber))
    }

    /// The member of the session that this subscriber is.
    fn member(self: &Arc<Self>, qos: SubscriberQos) -> Member {
        let (pages, maintained) = (self.pages.clone(), self.maintained.clone());
        let parts = Parts::Subscriber { slot: self.attachment.slot, pages, maintained, qos };
        let endpoint: Arc<dyn Endpoint> = self.clone();
        Member { attachment: self.attachment.of_either(), endpoint: Arc::downgrade(&endpoint), parts }
    }

    pub(crate) fn reader(&self) -> MutexGuard<'_, ReaderPort> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message, without resetting the eventfd: with `pending`, one whose bytes a stream will wait for; else one whose bytes are complete.
    pub(crate) fn take_held(&self, pending: bool) -> Result<Option<Held>, TakeError> {
        let mut reader = self.reader();
        let held = if pending { reader.take_pending() } else { reader.take() };
        let held = held.map_err(|refused| self.refused(refused))?;
        // A successful take did not look at later messages.
        self.note_awaited(reader.awaits_bytes(), held.is_none());
        Ok(held)
    }

    pub(crate) fn event_error(&self, source: NodeError) -> TakeError {
        // The manager may have died, and its successor may not have taken the slot back: that error says more.
        self.check_attached().err().unwrap_or_else(|| self.wait_error(std::io::Error::other(source)))
    }

    /// The next message, as `take_held`. Resets the eventfd if there is none.
    pub(crate) fn next_held(&self, pending: bool) -> Result<Option<Held>, TakeError> {
        self.check_attached()?;
        let held = self.take_held(pending)?;
        let Some(event) = self.maintained.event.get().filter(|_| held.is_none()) else { return Ok(held) };
        // Nothing left: reset the eventfd, then look once more for a message that arrived before the reset.
        event.drain().map_err(|source| self.wait_error(source))?;
        let looked = self.take_held(pending);
        // More messages may have arrived before the reset, and other threads may sleep on the eventfd. It is readable until a take finds nothing.
        if !matches!(looked, Ok(None))
            && let Err(error) = event.signal()
        {
            tracing::warn!(topic = self.topic, %error, "other waiting threads could not be woken; they wait until the next message");
        }
        looked
    }

    pub(crate) fn check_attached(&self) -> Result<(), TakeError> {
        match (self.node.is_owner(), self.attachment.is_cut_off()) {
            (false, _) => Err(TakeError::Forked { topic: self.topic.clone() }),
            (_, true) => Err(TakeError::CutOff { topic: self.topic.clone() }),
            _ => Ok(()),
        }
    }

    /// Checks the stream before a message is taken, so that a stream that takes no work costs no message.
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<(), TakeError> {
        self.check_attached()?;
        stream.check().map_err(|source| self.device_error(source))
    }

    pub(crate) fn device_error(&self, source: DeviceError) -> TakeError {
        TakeError::Device { topic: self.topic.clone(), source }
    }

    pub(crate) fn wait_error(&self, source: std::io::Error) -> TakeError {
        TakeError::Wait { topic: self.topic.clone(), source }
    }

    /// Counts a malformed message, and logs the first one.
    pub(crate) fn blame(&self, error: &TakeError) {
        if error.is_malformed() && self.reader().count_malformed() == 0 {
            tracing::warn!("{error}; it is skipped and counted, like every other malformed message from now on");
        }
    }

    pub(crate) fn refused(&self, refused: TakeRefused) -> TakeError {
        let topic = self.topic.clone();
        match refused {
            TakeRefused::CutOff(_) => TakeError::CutOff { topic },
            TakeRefused::TooManyHeld { held, .. } => TakeError::TooManyHeld { topic, held },
        }
    }

    /// Notes whether bytes are awaited. `of_all`: the take looked at all messages, so that `awaits == false` is conclusive.
    pub(crate) fn note_awaited(&self, awaits: bool, of_all: bool) {
        if !awaits && !of_all {
            return;
        }
        if self.maintained.awaits_bytes.swap(awaits, Ordering::AcqRel) != awaits && awaits {
            self.node.look_again();
        }
    }

    /// Releases a message after the stream's work so far and after the points `others` of other streams.
    pub(crate) fn release_on(
        &self,
        held: Option<Held>,
        pool: Arc<dyn PoolMemory>,
        stream: &Stream,
        mut others: Vec<StreamPoint>,
    ) -> Result<(), DeviceError> {
        // The node's thread polls the points that the stream cannot wait for.
        others.retain(|place| place.precedes(stream, DEVICE_TIMEOUT).is_err());
        let written = match held.as_ref().map(Held::release_word) {
            Some(word) if others.is_empty() => self.completions.write(stream, word),
            Some(_) => stream.check(),
            None => Ok(()),
        };
        // Even if the stream takes no write, its work so far is awaited before the message is released.
        self.completions.add_behind(stream, others, Releasing { _held: held, _pool: pool });
        written
    }
}

impl Endpoint for SubscriberInner {
    fn upkeep(&self) -> Upkeep {
        Upkeep::Subscriber {
            topic: self.attachment.topic,
            slot: self.attachment.slot,
            segment: self.attachment.segment.clone(),
            completions: Arc::downgrade(&self.completions),
            maintained: Arc::downgrade(&self.maintained),
        }
    }

    fn wake_all(&self) {
        self.waker_of_all().wake();
    }
}

impl Drop for SubscriberInner {
    fn drop(&mut self) {
        // Until it is detached, the slot is handed back (`Member`). A stream that may still write keeps it until the process ends.
        if !self.node.is_owner() || self.completions.end(STREAM_TIMEOUT) {
            self.node.detach(&self.attachment);
        }
    }
}
