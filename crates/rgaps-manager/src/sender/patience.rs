//! How long a connected sender waits when it has nothing to do.

use std::time::Duration;

use crate::sender::Sender;

/// While there is something that nobody signals: messages that are not acknowledged, losses to be named, a slot to be restored.
const TICK: Duration = Duration::from_millis(500);
/// How often it checks whether the device has completed a message.
const READY_TICK: Duration = Duration::from_micros(200);

impl Sender {
    /// How long to wait for the link, a publisher or the manager. The sender of an idle topic costs no wake-ups.
    pub(super) fn tick(&self) -> Duration {
        let is_idle = self.outbox.is_empty()
            && self.without_pool.is_empty()
            && self.demoted_at.is_none()
            && !(self.setup.control.is_keep_all() && self.reader.depth() > 0)
            && !self.setup.control.owes()
            && self.gap_notices.are_settled(&self.reader, &self.sent);
        match self.reader.awaits_bytes() {
            // A device wakes no thread when a message is complete.
            true => READY_TICK,
            false if is_idle => Duration::MAX,
            false => TICK,
        }
    }
}
