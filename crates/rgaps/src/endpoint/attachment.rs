//! A publisher's or subscriber's slot in a topic, with everything needed to hand it back to a manager's successor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rgaps_control::local::RefusedSlot;
use rgaps_control::{EndpointSlot, TopicId, TopicKey};
use rgaps_shm::Segment;

/// A slot of a topic, owned by a publisher (`PublisherSlot`), by a subscriber (`SubscriberSlot`), or by either (`EndpointSlot`).
#[derive(Clone, Debug)]
pub(crate) struct Attachment<S> {
    pub(crate) key: TopicKey,
    pub(crate) topic: TopicId,
    pub(crate) type_name: String,
    pub(crate) slot: S,
    pub(crate) segment: Arc<Segment>,
    /// Set if a successor did not take the slot back: it is free, or has another occupant.
    pub(crate) cut_off: Arc<AtomicBool>,
}

impl<S: Copy + Into<EndpointSlot>> Attachment<S> {
    /// The same attachment, for either kind of slot.
    pub(crate) fn of_either(&self) -> Attachment<EndpointSlot> {
        let Self { key, topic, type_name, slot, segment, cut_off } = self.clone();
        Attachment { key, topic, type_name, slot: slot.into(), segment, cut_off }
    }

    /// Whether this publisher or subscriber has lost the slot.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Notes that this publisher or subscriber has lost the slot.
    pub(crate) fn cut_off(&self) {
        self.cut_off.store(true, Ordering::SeqCst);
    }

    /// Whether this is the slot that was refused.
    pub(crate) fn is(&self, refused: &RefusedSlot) -> bool {
        (self.topic, self.slot.into()) == (refused.topic, refused.slot)
    }
}
