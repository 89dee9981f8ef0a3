//! Messages that a sender has taken but cannot read yet: the previous manager died, and their publishers have not handed their pools back to this
//! manager. The sender sends other publishers' messages meanwhile.
//!
//! Bounds      as many of each publisher as its slot and the sender's depth allow (`Sender::next`).

use std::collections::VecDeque;

use rgaps_shm::{Held, PublisherSlot};

use crate::envelope::Source;

/// Messages without a pool, in the order of their positions, and where they were taken from.
#[derive(Debug, Default)]
pub(crate) struct WithoutPool(VecDeque<(Held, Source)>);

impl WithoutPool {
    pub(crate) fn keep(&mut self, held: Held, source: Source) {
        let place = self.0.partition_point(|(other, _)| other.info().position < held.info().position);
        self.0.insert(place, (held, source));
    }

    /// Takes the oldest message whose publisher is in such a slot.
    pub(crate) fn take_first(&mut self, is_meant: impl Fn(PublisherSlot) -> bool) -> Option<(Held, Source)> {
        // If a pool is handed back during this look, only a later message of its slot is found: take the slot's oldest all the same.
        let slot = self.0.iter().map(|(held, _)| held.pool()).find(|slot| is_meant(*slot))?;
        let place = self.0.iter().position(|(held, _)| held.pool() == slot)?;
        self.0.remove(place)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a message of this publisher is there.
    pub(crate) fn has_of(&self, publisher: u64) -> bool {
        self.0.iter().any(|(held, _)| held.info().publisher == publisher)
    }

    /// Whether a message of the publisher in this slot is there.
    pub(crate) fn has_of_slot(&self, slot: PublisherSlot) -> bool {
        self.0.iter().any(|(held, _)| held.pool() == slot)
    }

    /// How many messages of the publisher in this slot are there.
    pub(crate) fn count_of_slot(&self, index: u16) -> usize {
        self.0.iter().filter(|(held, _)| held.pool().index == index).count()
    }
}
