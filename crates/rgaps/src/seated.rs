//! A seat in a topic, as its publisher or subscriber has it: what a manager's successor is told of it, and whether it was taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rgaps_control::local::{Body, RefusedSeat, Role, Seat};
use rgaps_control::{TopicId, TopicKey};
use rgaps_shm::Segment;

use crate::session::{LEAVE_TIMEOUT, Session};

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

/// See `Session::given`.
#[must_use]
pub(crate) struct GivenSeat<'a> {
    session: &'a Session,
    leave: Option<Body>,
}

impl<'a> GivenSeat<'a> {
    pub(crate) fn new(session: &'a Session, leave: Body) -> Self {
        Self { session, leave: Some(leave) }
    }

    /// Somebody sits on it, who leaves by himself.
    pub(crate) fn taken(mut self) {
        self.leave = None;
    }
}

impl Drop for GivenSeat<'_> {
    fn drop(&mut self) {
        let Some(leave) = self.leave.take() else { return };
        if self.session.would_wait_in_vain() {
            return self.session.say_later(leave);
        }
        if let Err(error) = self.session.request_within(&leave, &[], LEAVE_TIMEOUT) {
            tracing::debug!(%error, "a seat that nobody took could not be given back");
        }
    }
}
