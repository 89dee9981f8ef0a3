//! What the manager tells the publishers of a topic about one subscriber.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rgaps_control::TopicId;
use rgaps_control::local::NoticedSubscriber;
use rgaps_os::EventFd;
use rgaps_shm::SubscriberPages;

use crate::hello::SessionError;
use crate::node::NodeError;
use crate::publisher::PublisherInner;

/// What publishers must have of a subscriber.
#[derive(Debug)]
pub(crate) struct Noticed {
    pages: Arc<SubscriberPages>,
    event: Option<EventFd>,
}

impl Noticed {
    /// Of what came beside a notice. Words that are mapped already, as `known`, are not mapped once more.
    pub(crate) fn new(
        topic: TopicId,
        noticed: NoticedSubscriber,
        known: Option<Arc<SubscriberPages>>,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, NodeError> {
        let file = descriptors.next().ok_or(SessionError::Confused)?;
        let event = noticed.has_event.then(|| descriptors.next().ok_or(SessionError::Confused)).transpose()?;
        let slot = noticed.slot;
        let pages = match known.filter(|pages| pages.slot() == slot) {
            Some(pages) => pages,
            None => Arc::new(SubscriberPages::observe(file, noticed.place, topic.0, slot)?),
        };
        Ok(Self { pages, event: event.map(EventFd::checked).transpose()? })
    }

    /// The subscriber's own words.
    pub(crate) fn pages(&self) -> &Arc<SubscriberPages> {
        &self.pages
    }

    /// Tells a publisher of it.
    pub(crate) fn tell(&self, publisher: &PublisherInner) {
        let event = self.event.as_ref().and_then(|event| event.try_clone().ok());
        publisher.port().add_subscriber(self.pages.clone(), event);
    }
}
