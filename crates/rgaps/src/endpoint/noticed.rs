//! A subscriber as the manager announces it to the publishers of its topic.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rgaps_control::TopicId;
use rgaps_control::local::NoticedSubscriber;
use rgaps_os::EventFd;
use rgaps_shm::{SubscriberPages, WriterPort};

use crate::endpoint::error::NodeError;
use crate::endpoint::hello::SessionError;

/// What publishers need of a subscriber: its own words, and its eventfd if it has one.
#[derive(Debug)]
pub(crate) struct Noticed {
    pages: Arc<SubscriberPages>,
    event: Option<Arc<EventFd>>,
}

impl Noticed {
    /// Maps the words and takes the file descriptors that came with an announcement. Uses `known` if it is the same slot's mapping. The words are
    /// taken even if the eventfd is no eventfd: a publisher without them would keep all messages for the subscriber.
    pub(crate) fn new(
        topic: TopicId,
        noticed: NoticedSubscriber,
        known: Option<Arc<SubscriberPages>>,
        fds: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, NodeError> {
        let file = fds.next().ok_or(SessionError::Confused)?;
        let event = noticed.has_event.then(|| fds.next().ok_or(SessionError::Confused)).transpose()?;
        let slot = noticed.slot;
        let pages = match known.filter(|pages| pages.slot() == slot) {
            Some(pages) => pages,
            None => Arc::new(SubscriberPages::observe(file, noticed.place, topic.0, slot)?),
        };
        let event = event.map(EventFd::checked).transpose().unwrap_or_else(|error| {
            tracing::debug!(%error, slot = slot.index, "a subscriber's eventfd cannot be used");
            None
        });
        Ok(Self { pages, event: event.map(Arc::new) })
    }

    /// The subscriber's own words.
    pub(crate) fn pages(&self) -> &Arc<SubscriberPages> {
        &self.pages
    }

    /// Adds the subscriber to a publisher's port.
    pub(crate) fn tell(&self, port: &Mutex<WriterPort>) {
        let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
        port.add_subscriber(self.pages.clone(), self.event.clone());
    }
}
