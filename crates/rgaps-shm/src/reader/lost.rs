//! Messages that a reader is too late for: which of them are lost for it, and how many.
//!
//! Trusts      nothing: it looks at one lap of the queue at most, and its sums saturate.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::reader::past::history;
use crate::reader::peek::{read_life, walk};
use crate::reader::port::ReaderPort;
use crate::words::history::MessageRef;
use crate::words::queue::{Named, Position, Slot};

impl ReaderPort {
    pub(crate) fn count_lost(&self, messages: u64) {
        if messages > 0 {
            self.words().lost.fetch_add(messages, Ordering::Relaxed);
        }
    }

    /// The oldest position that this reader can still have, by its depth and by the length of the queue.
    pub(crate) fn oldest_in_depth(&self) -> Position {
        let queue = self.segment.queue();
        let kept = match self.depth() {
            0 => queue.capacity(),
            depth => depth.min(queue.capacity()),
        };
        Position(queue.end().0.saturating_sub(kept))
    }

    /// Moves the cursor past positions that are older than the depth or were overrun, and counts their messages as lost.
    pub(crate) fn skip_what_is_too_old(&mut self) {
        let oldest = self.oldest_in_depth();
        if self.cursor < oldest {
            let lost = self.lost_between(self.cursor, oldest);
            let spared = if self.spares_history { self.spare_history(oldest) } else { 0 };
            self.count_lost(lost.saturating_sub(spared));
            self.move_to(oldest);
        }
        self.trim_backlog();
    }

    /// Adds to the backlog the messages before this position that history keeps. Returns how many of them `lost_between` counts.
    fn spare_history(&mut self, until: Position) -> u64 {
        let queue = self.segment.queue();
        let begin = queue.begin().min(until);
        let mut counted = 0;
        // Overrun positions do not name their messages any more; the table does.
        let overrun = if self.cursor < begin { history(&self.segment, begin) } else { Vec::new() };
        for (position, message) in overrun.into_iter().filter(|(position, _)| *position >= self.cursor) {
            let named = Named { message: message.index, generation: message.generation.low() };
            if self.waiting(position, named) == Some(message.generation) && self.is_spared(message) {
                self.backlog.push_back((position, message));
                counted += 1;
            }
        }
        for position in (self.cursor.max(begin).0..until.0).map(Position) {
            let Slot::Message(named) = queue.read(position) else { continue };
            let Some(generation) = self.waiting(position, named) else { continue };
            let message = MessageRef { index: named.message, generation };
            let is_counted = self.is_lost(position, named);
            if self.is_spared(message) {
                self.backlog.push_back((position, message));
                counted += u64::from(is_counted);
            }
        }
        counted
    }

    fn is_spared(&self, MessageRef { index, generation }: MessageRef) -> bool {
        self.segment.words(index).want(self.pages.hold(index), generation)
    }

    /// Moves past an overrun position at the cursor. If the tail shows no overrun, another process overwrote the slot, and its message is lost.
    pub(crate) fn skip_overrun(&mut self) {
        let position = self.cursor;
        self.skip_what_is_too_old();
        if self.cursor == position {
            self.count_lost(u64::from(!self.out_of_turn.contains(&position)));
            self.move_to(position.next());
        }
    }

    /// Counts the messages for this reader at these positions that it has not taken.
    fn lost_between(&self, from: Position, until: Position) -> u64 {
        let queue = self.segment.queue();
        // Look at one lap at most, even if another process overwrites the tail between two loads.
        let lap = Position(until.0.saturating_sub(queue.capacity()));
        let begin = queue.begin().max(lap).max(from).min(until);
        // Overrun positions cannot be read any more: all of them count.
        let overrun = begin.0 - from.0 - self.out_of_turn.range(from..begin).count() as u64;
        let rest = (begin.0..until.0).map(Position).filter(|position| match queue.read(*position) {
            Slot::Message(named) => !self.out_of_turn.contains(position) && self.is_lost(*position, named),
            Slot::Overrun => !self.out_of_turn.contains(position),
            Slot::Empty => false,
        });
        overrun.saturating_add(rest.count() as u64)
    }

    /// Whether a message that this reader skips, since it is too old, is lost. Another host's history is not. True also for a message that is gone.
    fn is_lost(&self, position: Position, named: Named) -> bool {
        let entry = self.segment.message(named.message);
        let may_be_older = entry.history_since.load(Ordering::Relaxed) <= self.joined.0;
        let is_history = may_be_older && read_life(&self.segment, entry, position, named).is_some();
        self.is_for_us(position, named) && !is_history
    }

    /// Messages that were lost behind the cursor. `ReaderCounters::lost` also counts those ahead of it.
    pub fn losses_so_far(&self) -> u64 {
        // Saturating: publishers can overwrite the count in the segment.
        self.words().lost.load(Ordering::Relaxed).saturating_add(self.record().lost.load(Ordering::Relaxed))
    }

    /// Messages ahead of the cursor that are gone or too old.
    pub(crate) fn losses_not_yet_counted(&self) -> u64 {
        if self.is_closed || self.check().is_err() {
            return 0;
        }
        let oldest = self.oldest_in_depth().max(self.cursor);
        let mut gone = 0;
        walk(&self.segment, oldest, &VecDeque::new(), |position, named| {
            let entry = self.segment.message(named.message);
            let is_gone = read_life(&self.segment, entry, position, named).is_none();
            gone += u64::from(is_gone && !self.out_of_turn.contains(&position));
            true
        });
        self.lost_between(self.cursor, oldest).saturating_add(gone)
    }
}
