//! A slot between the manager's answer and the publisher or subscriber that owns it.

use rgaps_control::local::Body;

use super::{DETACH_TIMEOUT, Session};
use crate::endpoint::hello::SessionError;

/// A slot that the manager has granted. Dropping this gives the slot back, unless it was `attached`.
#[must_use]
pub(crate) struct GrantedSlot<'a> {
    session: &'a Session,
    detach: Option<Body>,
}

impl<'a> GrantedSlot<'a> {
    pub(super) fn new(session: &'a Session, detach: Body) -> Self {
        Self { session, detach: Some(detach) }
    }

    /// From now on an `Attachment` owns the slot and gives it back.
    pub(crate) fn attached(mut self) {
        self.detach = None;
    }
}

impl Drop for GrantedSlot<'_> {
    fn drop(&mut self) {
        let Some(detach) = self.detach.take() else { return };
        if self.session.would_wait_in_vain() {
            return self.session.send_later(detach);
        }
        if let Err(error) = self.session.request_within(&detach, &[], DETACH_TIMEOUT) {
            tracing::debug!(%error, "giving back a slot that was granted and not used was not acknowledged");
            if !matches!(error, SessionError::Refused(_)) {
                self.session.send_later(detach);
            }
        }
    }
}
