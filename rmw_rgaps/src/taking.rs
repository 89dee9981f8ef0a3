//! What a subscription remembers of the messages that were taken: how many, of which publishers, and what callbacks were told.

use rgaps::MessageInfo;

/// Most publishers that a subscription remembers.
const KNOWN_MAX: usize = 64;

/// A publisher from which messages were taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) publisher: u64,
    pub(crate) source_host: [u8; 16],
    pub(crate) host_epoch: u64,
    pub(crate) is_own: bool,
}

/// Counters and publishers that takes update.
#[derive(Debug, Default)]
pub(crate) struct Taking {
    /// Messages taken, for rmw_message_info_t.
    received: u64,
    /// Messages that a callback was told of and that are not taken yet.
    reported: usize,
    /// Lost messages that takes of the event have reported.
    losses_told: u64,
    /// Lost messages that the event's callback was told of.
    losses_reported: u64,
    /// The most recent is first.
    known: Vec<Known>,
}

impl Taking {
    /// How many of `unread` messages are not yet reported to a callback; marks them as reported.
    pub(crate) fn report(&mut self, unread: usize) -> usize {
        let new = unread.saturating_sub(self.reported);
        self.reported += new;
        new
    }

    /// Notes a take, which found a message or none: then there is none to report.
    pub(crate) fn note_take(&mut self, has_found: bool) {
        self.reported = if has_found { self.reported.saturating_sub(1) } else { 0 };
    }

    pub(crate) fn forget_reports(&mut self) {
        self.reported = 0;
    }

    /// Like `report`, for lost messages.
    pub(crate) fn report_lost(&mut self, lost: u64) -> usize {
        let more = lost.saturating_sub(self.losses_reported.max(self.losses_told));
        self.losses_reported = lost.max(self.losses_reported);
        more as usize
    }

    pub(crate) fn forget_loss_reports(&mut self) {
        self.losses_reported = 0;
    }

    pub(crate) fn untold_losses(&self, lost: u64) -> u64 {
        lost.saturating_sub(self.losses_told)
    }

    /// The number of lost messages not yet reported by the event; marks them as reported.
    pub(crate) fn tell_losses(&mut self, lost: u64) -> usize {
        let untold = self.untold_losses(lost);
        self.losses_told = lost.max(self.losses_told);
        untold as usize
    }

    /// Publishers from which messages were taken.
    pub(crate) fn known(&self) -> &[Known] {
        &self.known
    }

    /// Finds a publisher and makes it the most recent.
    pub(crate) fn find(&mut self, info: &MessageInfo) -> Option<Known> {
        let is_it = |known: &Known| known.publisher == info.publisher && known.host_epoch == info.host_epoch;
        let place = self.known.iter().position(is_it)?;
        self.known[..=place].rotate_right(1);
        self.known.first().copied()
    }

    pub(crate) fn remember(&mut self, known: Known) {
        self.known.retain(|other| other.publisher != known.publisher);
        self.known.truncate(KNOWN_MAX - 1);
        self.known.insert(0, known);
    }

    /// Counts a taken message and returns its number.
    pub(crate) fn receive(&mut self) -> u64 {
        self.received += 1;
        self.received
    }
}

impl Known {
    pub(crate) fn of(info: &MessageInfo, is_own: bool) -> Self {
        let (publisher, source_host, host_epoch) = (info.publisher, info.source_host, info.host_epoch);
        Self { publisher, source_host, host_epoch, is_own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_is_told_of_each_message_once() {
        let mut taking = Taking::default();
        assert_eq!((taking.report(2), taking.report(2), taking.report(3)), (2, 0, 1));
        // One was taken, one revoked, one arrived.
        taking.note_take(true);
        assert_eq!((taking.report(2), taking.report(4)), (0, 2));
        taking.forget_reports();
        assert_eq!(taking.report(1), 1);
    }

    #[test]
    fn lost_messages_are_reported_once_by_the_event_and_once_by_its_callback() {
        let mut taking = Taking::default();
        assert_eq!((taking.report_lost(3), taking.report_lost(3)), (3, 0));
        assert_eq!((taking.untold_losses(5), taking.tell_losses(5), taking.tell_losses(5)), (5, 5, 0));
        assert_eq!(taking.report_lost(6), 1);
        taking.forget_loss_reports();
        assert_eq!(taking.report_lost(6), 1, "five were taken");
    }

    #[test]
    fn publishers_are_remembered_with_their_run_the_most_recent_first() {
        let mut taking = Taking::default();
        let of = |publisher, host_epoch| MessageInfo { publisher, host_epoch, ..MessageInfo::default() };
        assert!(taking.find(&of(1, 7)).is_none());
        taking.remember(Known::of(&of(1, 7), true));
        assert!(taking.find(&of(1, 7)).unwrap().is_own);
        assert!(taking.find(&of(1, 8)).is_none(), "another run");
        for publisher in 0..200 {
            taking.remember(Known::of(&of(publisher, 1), false));
        }
        assert_eq!(taking.known().len(), KNOWN_MAX);
        assert!(taking.find(&of(150, 1)).is_some() && taking.find(&of(100, 1)).is_none());
        assert_eq!((taking.known()[0].publisher, taking.known()[1].publisher), (150, 199));
    }
}
