//! Messages that a sender has taken and cannot read yet: a manager has died, and their publishers have not handed their pools back to this one. Messages of
//! other publishers pass them.
//!
//! Bounds      as many of each publisher as its slot and the sender's depth allow (`Sender::next`).

use std::collections::VecDeque;

use rgaps_shm::{Held, PublisherSlot};

/// Messages without a pool, in the order of their positions.
#[derive(Debug, Default)]
pub(crate) struct WithoutPool(VecDeque<Held>);

impl WithoutPool {
    pub(crate) fn keep(&mut self, held: Held) {
        let place = self.0.partition_point(|other| other.info().position < held.info().position);
        self.0.insert(place, held);
    }

    /// Takes the oldest message whose publisher is in such a slot.
    pub(crate) fn take_first(&mut self, is_meant: impl Fn(PublisherSlot) -> bool) -> Option<Held> {
        let place = self.0.iter().position(|held| is_meant(held.pool()))?;
        self.0.remove(place)
    }

    /// Whether a message of this publisher is there.
    pub(crate) fn has_of(&self, publisher: u64) -> bool {
        self.0.iter().any(|held| held.info().publisher == publisher)
    }

    /// Whether a message of the publisher in this slot is there.
    pub(crate) fn has_of_slot(&self, slot: PublisherSlot) -> bool {
        self.0.iter().any(|held| held.pool() == slot)
    }

    /// How many messages of the publisher in this slot are there.
    pub(crate) fn count_of_slot(&self, index: u16) -> usize {
        self.0.iter().filter(|held| held.pool().index == index).count()
    }
}
