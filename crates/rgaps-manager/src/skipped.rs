//! Gap notices: they name messages that a sender has skipped, where no later message of their publisher shows the gap. The other host counts them.
//! The wire protocol of DDS (OMG RTPS) has the submessage Gap for the same.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps_control::HostId;
use rgaps_link::{LinkSender, MessageName};
use rgaps_shm::manager::last_received::last_published;
use rgaps_shm::{MessageInfo, PublisherSlot, ReaderPort, SlotTable};

use crate::envelope::{Envelope, Unsent};
use crate::outbound::SenderControl;
use crate::outbox::{Outbox, PostError};
use crate::sent::SentMessages;
use crate::without_pool::WithoutPool;

/// The shortest time between two looks for the last messages of publishers.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What a sender's reader did not get to send. The messages behind the first two numbers may be the same: one ahead of the cursor cannot be named yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Missed {
    /// Lost, and the cursor has passed them.
    passed: u64,
    /// Lost, behind the cursor or ahead of it.
    lost: u64,
    /// Never completed.
    poisoned: u64,
}

/// When a sender looked for skipped messages, on its present connection.
#[derive(Debug, Default)]
pub(crate) struct GapNotices {
    /// What the reader had missed at the last look, if all of it could be named, and when that was.
    looked: Option<(Option<Missed>, Instant)>,
    /// How many messages were lost, and never completed, at the last look for those of publishers that the other host does not know.
    looked_for_new: Option<(u64, u64)>,
}

/// What is being sent.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    pub(crate) own_host: HostId,
    pub(crate) slot_table: &'a SlotTable,
    pub(crate) control: &'a SenderControl,
    pub(crate) reader: &'a ReaderPort,
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) without_pool: &'a WithoutPool,
    pub(crate) sent: &'a mut SentMessages,
}

impl GapNotices {
    /// Posts gap notices for which there is room. Call it in each turn, before messages are posted.
    pub(crate) fn tell(&mut self, of: &mut Sending<'_>, link: &mut dyn LinkSender) -> Result<(), PostError> {
        self.tell_of_new(of, link)?;
        self.tell_last(of, link)
    }

    /// Names the last messages of publishers if they were skipped and no message of the publisher has followed. Looks for them if the reader has lost
    /// messages since the last look, or publishers have left; at most once in `LOOK_EVERY`.
    fn tell_last(&mut self, of: &mut Sending<'_>, link: &mut dyn LinkSender) -> Result<(), PostError> {
        // A message that was set aside is behind the cursor and not taken yet.
        if self.looked.is_some_and(|(_, at)| at.elapsed() < LOOK_EVERY) || of.reader.awaits_bytes() {
            return Ok(());
        }
        let counters = of.reader.counters();
        let missed = Missed { passed: of.reader.losses_so_far(), lost: counters.lost, poisoned: counters.poisoned };
        of.control.take_left().into_iter().for_each(|(publisher, last)| of.sent.note_left(publisher, last));
        if self.looked.is_some_and(|(before, _)| before == Some(missed)) && !of.sent.has_left() {
            of.control.note_settled();
            return Ok(());
        }
        let segment = of.slot_table.segment();
        let stay = of.slot_table.active_publishers().filter_map(|slot| last_published(segment, slot));
        let mut is_complete = true;
        for skipped in of.sent.skipped(of.reader.passed(), stay) {
            if of.has_unsent_of(skipped.publisher) {
                is_complete = false;
                continue;
            }
            let previous = of.sent.previous(skipped.publisher, skipped.sequence);
            if !of.post_notice(link, skipped, previous)? {
                is_complete = false;
                break;
            }
        }
        if !of.sent.has_left() {
            of.control.note_settled();
        }
        self.looked = Some((is_complete.then_some(missed), Instant::now()));
        Ok(())
    }

    /// Names at once the skipped messages of publishers that the other host does not know. The other host counts such a loss for all subscribers that
    /// have joined when it learns of it, so a later notice would also count for subscribers that joined after the loss.
    fn tell_of_new(&mut self, of: &mut Sending<'_>, link: &mut dyn LinkSender) -> Result<(), PostError> {
        for (skipped, previous) in of.sent.take_gaps() {
            // Without room for the notice, the message shows the gap.
            of.post_notice(link, skipped, previous)?;
        }
        let missed = (of.reader.losses_so_far(), of.reader.counters().poisoned);
        if self.looked_for_new == Some(missed) || of.reader.awaits_bytes() {
            return Ok(());
        }
        of.control.take_left().into_iter().for_each(|(publisher, last)| of.sent.note_left(publisher, last));
        let segment = of.slot_table.segment();
        let is_new = |slot: &PublisherSlot| {
            let words = segment.publisher(slot.index);
            words.is_some_and(|words| of.sent.is_new(words.publisher.load(Ordering::Relaxed)))
        };
        let new: Vec<_> = of.slot_table.active_publishers().filter(is_new).collect();
        let stay = new.into_iter().filter_map(|slot| last_published(segment, slot));
        let mut is_complete = true;
        for skipped in of.sent.skipped(of.reader.passed(), stay) {
            if of.sent.is_new(skipped.publisher) && !of.has_unsent_of(skipped.publisher) {
                let previous = of.sent.previous(skipped.publisher, skipped.sequence);
                is_complete &= of.post_notice(link, skipped, previous)?;
            }
        }
        self.looked_for_new = is_complete.then_some(missed);
        Ok(())
    }
}

impl Sending<'_> {
    /// False if there is no room for the notice.
    fn post_notice(
        &mut self,
        link: &mut dyn LinkSender,
        skipped: MessageName,
        previous: u64,
    ) -> Result<bool, PostError> {
        let info = MessageInfo { source_host: self.own_host.0, ..MessageInfo::default() };
        let notice = Envelope::seal(&info, 0, Unsent { previous, skipped: true }, &[]);
        let posted = self.outbox.post_gap_notice(link, &notice, skipped)?;
        if posted {
            self.sent.note_named(skipped);
        }
        Ok(posted)
    }

    /// The other host drops what arrives after a notice that names a later message.
    fn has_unsent_of(&self, publisher: u64) -> bool {
        self.outbox.has_unsent_of(publisher) || self.without_pool.has_of(publisher)
    }
}
