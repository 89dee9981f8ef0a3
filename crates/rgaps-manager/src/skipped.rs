//! Gap notices: they name messages that a sender has skipped, where no later message of their publisher shows the gap. The other host counts them.
//! The wire protocol of DDS (OMG RTPS) has the submessage Gap for the same.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps_control::HostId;
use rgaps_link::{LinkSender, MessageName};
use rgaps_shm::manager::last_received::last_published;
use rgaps_shm::{MessageInfo, PublisherSlot, ReaderPort, SlotTable};

use crate::envelope::{Envelope, Gap};
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

impl Missed {
    fn of(reader: &ReaderPort) -> Self {
        let counters = reader.counters();
        Self { passed: reader.losses_so_far(), lost: counters.lost, poisoned: counters.poisoned }
    }
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
pub(crate) struct SendContext<'a> {
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
    pub(crate) fn post(&mut self, context: &mut SendContext<'_>, link: &mut dyn LinkSender) -> Result<(), PostError> {
        self.post_leading(context, link)?;
        self.post_trailing(context, link)
    }

    /// Whether nothing is to be named until a publisher publishes or leaves, both of which wake the sender.
    pub(crate) fn are_settled(&self, reader: &ReaderPort, sent: &SentMessages) -> bool {
        let is_looked_for = self.looked.is_some_and(|(missed, _)| missed == Some(Missed::of(reader)));
        is_looked_for && !sent.has_left() && self.looked_for_new == Some((reader.losses_so_far(), reader.poisoned()))
    }

    /// Names the last messages of publishers if they were skipped and no message of the publisher has followed. Looks for them if the reader has lost
    /// messages since the last look, or publishers have left; at most once in `LOOK_EVERY`.
    fn post_trailing(&mut self, context: &mut SendContext<'_>, link: &mut dyn LinkSender) -> Result<(), PostError> {
        // A message that was set aside is behind the cursor and not taken yet.
        if self.looked.is_some_and(|(_, at)| at.elapsed() < LOOK_EVERY) || context.reader.awaits_bytes() {
            return Ok(());
        }
        let missed = Missed::of(context.reader);
        context.control.take_left().into_iter().for_each(|(publisher, last)| context.sent.mark_left(publisher, last));
        if self.looked.is_some_and(|(before, _)| before == Some(missed)) && !context.sent.has_left() {
            context.control.mark_settled();
            return Ok(());
        }
        let segment = context.slot_table.segment();
        let stay = context.slot_table.active_publishers().filter_map(|slot| last_published(segment, slot));
        let mut is_complete = true;
        for skipped in context.sent.skipped(context.reader.passed(), stay) {
            if context.has_unsent_of(skipped.publisher) {
                is_complete = false;
                continue;
            }
            let previous = context.sent.previous(skipped.publisher, skipped.sequence);
            if !context.post_notice(link, skipped, previous)? {
                is_complete = false;
                break;
            }
        }
        if !context.sent.has_left() {
            context.control.mark_settled();
        }
        self.looked = Some((is_complete.then_some(missed), Instant::now()));
        Ok(())
    }

    /// Names at once the skipped messages of publishers that the other host does not know. The other host counts such a loss for all subscribers that
    /// have joined when it learns of it, so a later notice would also count for subscribers that joined after the loss.
    fn post_leading(&mut self, context: &mut SendContext<'_>, link: &mut dyn LinkSender) -> Result<(), PostError> {
        for (skipped, previous) in context.sent.take_gaps() {
            // Without room for the notice, the message shows the gap.
            context.post_notice(link, skipped, previous)?;
        }
        let missed = (context.reader.losses_so_far(), context.reader.poisoned());
        if self.looked_for_new == Some(missed) || context.reader.awaits_bytes() {
            return Ok(());
        }
        context.control.take_left().into_iter().for_each(|(publisher, last)| context.sent.mark_left(publisher, last));
        let segment = context.slot_table.segment();
        let is_new = |slot: &PublisherSlot| {
            let words = segment.publisher(slot.index);
            words.is_some_and(|words| context.sent.is_unknown(words.publisher.load(Ordering::Relaxed)))
        };
        let new: Vec<_> = context.slot_table.active_publishers().filter(is_new).collect();
        let stay = new.into_iter().filter_map(|slot| last_published(segment, slot));
        let mut is_complete = true;
        for skipped in context.sent.skipped(context.reader.passed(), stay) {
            if context.sent.is_unknown(skipped.publisher) && !context.has_unsent_of(skipped.publisher) {
                let previous = context.sent.previous(skipped.publisher, skipped.sequence);
                is_complete &= context.post_notice(link, skipped, previous)?;
            }
        }
        self.looked_for_new = is_complete.then_some(missed);
        Ok(())
    }
}

impl SendContext<'_> {
    /// False if there is no room for the notice.
    fn post_notice(
        &mut self,
        link: &mut dyn LinkSender,
        skipped: MessageName,
        previous: u64,
    ) -> Result<bool, PostError> {
        let info = MessageInfo { source_host: self.own_host.0, ..MessageInfo::default() };
        let notice = Envelope::seal(&info, 0, Gap { previous, is_notice: true }, &[]);
        let posted = self.outbox.post_gap_notice(link, &notice, skipped)?;
        if posted {
            self.sent.mark_named(skipped);
        }
        Ok(posted)
    }

    /// The other host drops what arrives after a notice that names a later message.
    fn has_unsent_of(&self, publisher: u64) -> bool {
        self.outbox.has_unsent_of(publisher) || self.without_pool.has_of(publisher)
    }
}
