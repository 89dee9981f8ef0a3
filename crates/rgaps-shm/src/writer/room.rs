//! Room for a loan that finds none: decides what the publisher gives up, before it gives anything up.
//!
//! 1. History, if the part that no subscriber needs is enough. The oldest message leaves history first, even if a subscriber still needs it, so that
//!    late joiners get the last ones without a gap.
//! 2. Else, if that is enough, also what keep-last subscribers have not read and may lose: the oldest that history does not keep, then history.
//! 3. Else nothing.
//!
//! It gives up one message after the other until the loan succeeds.

use std::sync::atomic::Ordering;

use crate::words::history::MessageRef;
use crate::words::message::{Need, Readiness};
use crate::writer::droppable::{Droppable, TakenCounts};
use crate::writer::port::{EntryBlock, Outstanding, WriterPort, leave_history};
use crate::writer::shared_pool::Allocator;
use crate::writer::space::{Exhaustion, Keeper, LoanError, Wanted};
use crate::writer::subscribers::Reader;

/// What is given up.
#[derive(Clone, Copy, Debug)]
enum Source {
    History,
    HistoryAndUnread,
}

impl WriterPort {
    /// Makes what is wanted by `attempt`, without giving anything up if that succeeds.
    pub(crate) fn try_with<L>(
        &mut self,
        wanted: Wanted,
        exhaustion: Exhaustion,
        attempt: impl Fn(&mut Self) -> Result<L, LoanError>,
    ) -> Result<L, LoanError> {
        self.reclaim_some();
        if let Ok(loan) = attempt(self) {
            return Ok(loan);
        }
        self.reclaim();
        self.loan_or_give_up(wanted, Droppable::by(exhaustion), attempt)
    }

    /// Makes what is wanted by `attempt`, and gives up messages for it if that helps.
    #[cold]
    pub(crate) fn loan_or_give_up<L>(
        &mut self,
        wanted: Wanted,
        droppable: Droppable,
        attempt: impl Fn(&mut Self) -> Result<L, LoanError>,
    ) -> Result<L, LoanError> {
        let mut source = None;
        // Each turn gives up one message, so the loop ends.
        loop {
            let error = match attempt(self) {
                Ok(loan) => return Ok(loan),
                Err(error) => error,
            };
            if !self.give_up_from(&mut source, wanted, droppable) {
                return Err(error);
            }
        }
    }

    /// A subscriber that keeps the oldest of the messages that cannot be freed.
    pub fn keeper(&self) -> Option<Keeper> {
        let (_, end) = self.begin_pass();
        let keeps = |reader: &Reader<'_>| reader.is_holding() || matches!(reader.need(end), Need::Hard | Need::Soft);
        let keeper_of = |message: &Outstanding| self.subscribers.readers(message.publication()).find(keeps);
        let keeper = self.outstanding.iter().find_map(keeper_of)?;
        let words = self.segment.subscriber(keeper.slot.index)?;
        let pid = words.pid.load(Ordering::Relaxed) as u32;
        Some(Keeper { pid, is_remote: words.remote.load(Ordering::Relaxed) != 0 })
    }

    /// The keep-last subscribers that have something to read, and how many messages each has taken: for `give_up_on`, after a wait.
    pub fn taken_counts(&self) -> TakenCounts {
        TakenCounts::of(&self.subscribers, self.segment.queue().end().0)
    }

    /// Call it after a wait for space that timed out, with the `taken_counts` from before the wait. From now on `Exhaustion::Wait` no longer waits for those
    /// of them that have read nothing meanwhile: until they read again, it drops their oldest unread messages like `DropOldest`.
    pub fn give_up_on(&mut self, readers: TakenCounts) {
        self.stalled = readers;
    }

    /// Frees messages, oldest first, like `Exhaustion::DropOldest`, until blocks use at most `used_bytes_max`. False if that cannot be, since
    /// messages are held, or unread by a keep-all subscriber. Then only messages that nobody needs are freed.
    pub fn make_room(&mut self, used_bytes_max: u64) -> bool {
        self.reclaim();
        let mut source = None;
        while self.allocator.stats().used_bytes > used_bytes_max {
            if !self.give_up_from(&mut source, Wanted::UseAtMost(used_bytes_max), Droppable::All) {
                return false;
            }
        }
        true
    }

    /// Takes the oldest message out of history that is there, and frees it if no subscriber needs it. False if history is empty.
    pub fn give_up_history(&mut self) -> bool {
        self.give_up_oldest_kept()
    }

    /// When the message was published that `drop_unread` would free, in ns since 1970.
    pub fn oldest_unread(&self, exhaustion: Exhaustion) -> Option<u64> {
        let droppable = Droppable::by(exhaustion);
        if !self.may_drop(droppable) {
            return None;
        }
        let (_, end) = self.begin_pass();
        let may_be_dropped = |outstanding: &&Outstanding| {
            let MessageRef { index, generation } = outstanding.message;
            let is_kept = self.segment.words(index).in_history(generation);
            !is_kept && self.would_be_free(outstanding, end, droppable)
        };
        let oldest = self.outstanding.iter().find(may_be_dropped)?;
        Some(self.segment.message(oldest.message.index).stamps[0].load(Ordering::Relaxed))
    }

    /// Frees the oldest message that subscribers have not read, if `exhaustion` lets them lose it. False if there is none.
    pub fn drop_unread(&mut self, exhaustion: Exhaustion) -> bool {
        let droppable = Droppable::by(exhaustion);
        droppable != Droppable::None && self.drop_oldest(droppable)
    }

    /// Gives up one message. Decides first which kind, and again when no more of that kind are left: subscribers have begun to hold some of them.
    fn give_up_from(&mut self, source: &mut Option<Source>, wanted: Wanted, droppable: Droppable) -> bool {
        if source.is_some_and(|source| self.give_up_one(source, droppable)) {
            return true;
        }
        *source = self.source_of(wanted, droppable);
        source.is_some_and(|source| self.give_up_one(source, droppable))
    }

    fn give_up_one(&mut self, source: Source, droppable: Droppable) -> bool {
        match source {
            Source::History => self.give_up_oldest_kept(),
            Source::HistoryAndUnread => self.drop_oldest(droppable) || self.give_up_oldest_kept(),
        }
    }

    /// What has to be given up for what is wanted; `None` if nothing helps.
    fn source_of(&mut self, wanted: Wanted, droppable: Droppable) -> Option<Source> {
        if !self.history.is_empty() && self.would_be_enough(wanted, Droppable::None) {
            return Some(Source::History);
        }
        (self.may_drop(droppable) && self.would_be_enough(wanted, droppable)).then_some(Source::HistoryAndUnread)
    }

    fn may_drop(&self, droppable: Droppable) -> bool {
        match droppable {
            Droppable::None => false,
            Droppable::OfIdle => !self.stalled.is_empty(),
            Droppable::All => true,
        }
    }

    /// Whether what is wanted would come free if history kept nothing and droppable subscribers lost their unread messages.
    fn would_be_enough(&mut self, wanted: Wanted, droppable: Droppable) -> bool {
        let (_, end) = self.begin_pass();
        let mut staying = std::mem::take(&mut self.staying);
        staying.clear();
        let (mut freed, mut given_up) = (Vec::new(), Vec::new());
        let mut freed_bytes = 0;
        let mut is_any_free = false;
        let mut is_enough = false;
        for message in &self.outstanding {
            let EntryBlock::Published(published) = &self.blocks[self.place(message.message.index)] else { continue };
            let block = published.extent();
            if !self.would_be_free(message, end, droppable) {
                staying.push(block);
                continue;
            }
            is_any_free = true;
            if !published.is_freed_by(&mut given_up) {
                is_enough = matches!(wanted, Wanted::Entry);
                if is_enough {
                    break;
                }
                continue;
            }
            freed_bytes += block.bytes;
            if matches!(self.allocator, Allocator::Shared(_)) {
                freed.push(block);
            }
            is_enough = match wanted {
                Wanted::Entry => true,
                Wanted::Loan(bytes) => self.allocator.is_enough(block, bytes),
                Wanted::UseAtMost(most) => self.allocator.stats().used_bytes <= most + freed_bytes,
            };
            if is_enough {
                break;
            }
        }
        if let Wanted::Loan(bytes) = wanted
            && is_any_free
            && !is_enough
        {
            let loaned = |block: &EntryBlock| match block {
                EntryBlock::Loaned(extent) => Some(*extent),
                EntryBlock::None | EntryBlock::Published(_) => None,
            };
            is_enough = match &self.allocator {
                Allocator::Own(allocator) => {
                    staying.extend(self.blocks.iter().filter_map(loaned));
                    allocator.can_hold_beside(bytes, &mut staying)
                }
                Allocator::Shared(pool) => pool.can_hold_without(bytes, &freed),
            };
        }
        self.staying = staying;
        is_enough
    }

    fn would_be_free(&self, message: &Outstanding, end: u64, droppable: Droppable) -> bool {
        let MessageRef { index, generation } = message.message;
        let needs = |reader: Reader<'_>| match reader.need(end) {
            Need::Hard => true,
            Need::Soft => !droppable.includes(&self.stalled, &reader),
            Need::None => false,
        };
        let is_filled = self.segment.words(index).readiness(generation) != Readiness::Pending;
        is_filled && !self.subscribers.readers(message.publication()).any(needs)
    }

    /// Frees the oldest message that history does not keep and that only droppable subscribers need. They have lost it, and count it when they reach
    /// it.
    fn drop_oldest(&mut self, droppable: Droppable) -> bool {
        let pass = self.begin_pass();
        let stalled = std::mem::take(&mut self.stalled);
        let dropped = (0..self.outstanding.len())
            .any(|at| self.try_free(at, pass, |reader| droppable.includes(&stalled, reader)));
        self.stalled = stalled;
        dropped
    }

    fn give_up_oldest_kept(&mut self) -> bool {
        let Some(oldest) = self.history.pop_oldest() else { return false };
        leave_history(&self.segment, oldest);
        self.reclaim();
        true
    }
}
