//! Hosts that stall a sender: a keep-all host that gives no credit becomes keep-last, and what a host holds for long is given up.

use std::time::{Duration, Instant};

use crate::event::Event;
use crate::sender::Sender;

/// How many times longer than a link may do nothing the other host may hold a message, over any number of links. A large message takes longer.
const GIVE_UP_FACTOR: u64 = 3;

impl Sender {
    /// How long a link may do nothing though there are messages to send: it transfers at least one chunk in that time.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.setup.config.peer_timeout_ms.max(self.setup.config.keep_all_timeout_ms) * 2)
    }

    /// Whether the other host has held the oldest message for longer than it may, over any number of links: `GIVE_UP_FACTOR` times the patience, and
    /// once more for each chunk of the message.
    pub(super) fn holds_too_long(&self) -> bool {
        let chunks = self.outbox.first_bytes() / self.setup.config.chunk_bytes.max(1);
        let times = u32::try_from(GIVE_UP_FACTOR + chunks).unwrap_or(u32::MAX);
        !self.outbox.is_empty() && self.holds_since.elapsed() > self.patience().saturating_mul(times)
    }

    /// Demotes a stalled keep-all slot, which would otherwise stop the publishers of this host for good. `since`: when the link last did something, or
    /// ended. A new link starts anew, but not for ever: a host may connect again and again without giving credit.
    pub(super) fn demote_if_stalled(&mut self, since: Instant) {
        let patience = Duration::from_millis(self.setup.config.keep_all_timeout_ms);
        let over_links = patience + Duration::from_millis(self.setup.config.peer_timeout_ms) * 2;
        let is_stalled = since.elapsed() >= patience || self.progressed.elapsed() >= over_links;
        if is_stalled {
            self.demote();
        }
    }

    fn demote(&mut self) {
        if !self.setup.control.is_keep_all() {
            return;
        }
        // Again if its host has requested keep-all again meanwhile. An arrival that the slot stalled may have demoted and reported it first.
        if !self.setup.slot_table.demote(self.setup.slot, self.setup.history_depth.max(1)) {
            return;
        }
        self.demoted_at = Some(self.setup.slot_table.segment().queue().end());
        let text = format!(
            "{}: host {} has given no credit for {} ms; until it has caught up, it gets only the last {} messages",
            self.setup.key,
            self.setup.host_name,
            self.progressed.elapsed().as_millis(),
            self.setup.history_depth.max(1),
        );
        self.setup.mailbox.post(Event::Warning { topic: self.setup.topic, text });
    }

    /// Makes a demoted slot keep-all again once the other host has, or has lost, all that was published before the demotion. Its word for that, when it
    /// connects, is enough, but not if its messages were given up and it has acknowledged none since.
    pub(super) fn restore_if_caught_up(&mut self) {
        if !self.setup.control.is_keep_all() || self.reader.depth() == 0 {
            self.demoted_at = None;
            return;
        }
        let at = *self.demoted_at.get_or_insert_with(|| self.setup.slot_table.segment().queue().end());
        let is_behind = self.reader.passed() < at || self.outbox.first().is_some_and(|first| first < at);
        if is_behind || self.outbox.is_on_probation() {
            return;
        }
        // The manager changes the control's depth, then the slot's. Whichever of the two writes the slot last, it gets the latest depth.
        loop {
            let depth = self.setup.control.depth();
            self.setup.slot_table.set_depth(self.setup.slot, depth);
            if self.setup.control.depth() == depth {
                return;
            }
        }
    }

    /// Gives up the messages in the outbox if the other host has held them for too long. They take memory of this host's publishers, and the slots
    /// of those that have left. The other host counts them as lost when it is back. Call it without a link, which may read their memory.
    pub(super) fn give_up_outbox_if_stalled(&mut self) {
        if !self.holds_too_long() {
            return;
        }
        let waited = self.holds_since.elapsed();
        let messages = self.outbox.count();
        // Before the manager can learn that a publisher's last message is free, so that it keeps this sender until the other host knows.
        for (publisher, last) in self.outbox.give_up(&mut self.sent) {
            self.setup.control.mark_left(publisher, last);
        }
        self.outbox.clear();
        self.demote();
        tracing::warn!(messages, "given up, since the other host has acknowledged none for {} ms", waited.as_millis());
    }
}
