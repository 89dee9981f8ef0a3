//! Names a publisher or subscriber of a topic: the slot of the segment that it occupies, and the slot's generation.
//!
//! A slot has one occupant at a time. Its generation counts its occupants, so a slot with its generation is never given out twice, and
//! words about a former occupant mean nothing.

use serde::{Deserialize, Serialize};

/// A publisher's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PublisherSlot {
    /// From 0 to `PUBLISHERS_MAX` - 1.
    pub index: u16,
    /// How many publishers have had the slot so far, including this one; it wraps around and skips 0.
    pub generation: u32,
}

/// A subscriber's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SubscriberSlot {
    /// From 0 to `SUBSCRIBERS_MAX` - 1.
    pub index: u16,
    /// How many subscribers have had the slot so far, including this one; it wraps around and skips 0.
    pub generation: u32,
}

/// A slot of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointSlot {
    /// A publisher's.
    Publisher(PublisherSlot),
    /// A subscriber's.
    Subscriber(SubscriberSlot),
}

impl EndpointSlot {
    /// Its index among the slots of its kind.
    pub fn index(&self) -> u16 {
        match self {
            Self::Publisher(slot) => slot.index,
            Self::Subscriber(slot) => slot.index,
        }
    }
}

impl From<PublisherSlot> for EndpointSlot {
    fn from(slot: PublisherSlot) -> Self {
        Self::Publisher(slot)
    }
}

impl From<SubscriberSlot> for EndpointSlot {
    fn from(slot: SubscriberSlot) -> Self {
        Self::Subscriber(slot)
    }
}

impl std::fmt::Display for EndpointSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Publisher(slot) => write!(f, "publisher slot {}", slot.index),
            Self::Subscriber(slot) => write!(f, "subscriber slot {}", slot.index),
        }
    }
}
