//! A seat in a topic, as its publisher or subscriber has it: what a manager's successor is told of it, and whether it was taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rgaps_control::local::{RefusedSeat, Role, Seat};
use rgaps_control::{TopicId, TopicKey};
use rgaps_shm::Segment;

/// A seat in a topic, and what a successor must be told of it.
#[derive(Clone, Debug)]
pub(crate) struct Seated {
    pub(crate) key: TopicKey,
    pub(crate) topic: TopicId,
    pub(crate) type_name: String,
    pub(crate) role: Role,
    pub(crate) seat: Seat,
    pub(crate) segment: Arc<Segment>,
    /// A successor did not take it back: it is nobody's, or another's.
    pub(crate) cut_off: Arc<AtomicBool>,
}

impl Seated {
    /// Whether this seat is another's now.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// This seat is another's now.
    pub(crate) fn cut_off(&self) {
        self.cut_off.store(true, Ordering::SeqCst);
    }

    /// Whether it is this one that was refused.
    pub(crate) fn is(&self, refused: &RefusedSeat) -> bool {
        (self.topic, self.role, self.seat) == (refused.topic, refused.role, refused.seat)
    }
}
