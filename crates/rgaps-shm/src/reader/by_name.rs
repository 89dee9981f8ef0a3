//! Takes by name instead of in order, for a caller that gets a message's name from elsewhere (a handle that ROS carries).
//!
//! ```text
//!   queue   cursor ──▶ [ waits ][ given out ][ waits ][ the one that is named ] ...
//!                                                        └──▶ held, and given out
//! ```
//!
//! A caller may promise that its takes by name come in each publisher's order (`expect_handles_in_order`). Each take then also releases that
//! publisher's earlier waiting messages, since no later take names them. They count as lost, except at the first take by name of a publisher: the
//! caller never got the names of its earlier messages. Messages skipped before the very first take by name do not count as lost either.
//!
//! Invariants  A message that a take by name skips is not held. It waits like any unread message, for a take of either kind, and its publisher
//!             may drop it like any unread message. The cursor stays at the oldest message that waits. With keep-all, at most `PASSED_MAX`
//!             messages wait before a taken one, and of each publisher at most half of its entries, so that it has some to go on with. None waits
//!             for longer than half a lap of the queue, since after a whole lap it could not be found. A message that is released for one of these
//!             bounds counts as lost.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;

use crate::reader::held::Held;
use crate::reader::peek::{read_life, walk};
use crate::reader::port::{Attempt, ReaderPort, TakeRefused};
use crate::reader::seen_publishers::{MessageName, Seen, TakenByName};
use crate::segment::entries_of;
use crate::words::history::MessageRef;
use crate::words::queue::{Named, Position, Slot};

/// Most messages that a keep-all subscriber lets wait before a message taken by name; of each publisher, at most half of its entries.
const PASSED_MAX: usize = 64;

/// A message that waits before one taken by name.
struct Waiting {
    position: Position,
    message: MessageRef,
    /// Slot of its publisher.
    owner: u16,
    /// Takes by name come in order, and have passed it.
    is_ended: bool,
    /// It is beyond the bounds.
    is_excess: bool,
}

impl ReaderPort {
    /// Takes the message with this name, also ahead of earlier messages, which go on waiting for takes of either kind. A message that `take` gave
    /// out before the first take by name counts as `NotYet`.
    pub fn take_by_name(&mut self, name: MessageName) -> Result<TakenByName, TakeRefused> {
        self.check()?;
        let kept = self.set_aside.iter().find(|held| MessageName::of(held.info()) == name);
        kept.map_or(Ok(()), |held| self.check_given(held))?;
        if let Some(held) = take_named(&mut self.set_aside, name) {
            return Ok(TakenByName::Here(self.given_again(held)));
        }
        self.drop_outdated_put_back();
        self.skip_what_is_too_old();
        if let Some((position, named)) = self.find(name) {
            match self.hold(position, named)? {
                Attempt::Held(held) => {
                    self.give_out(position);
                    self.pass_by(position, name);
                    return Ok(TakenByName::Here(held));
                }
                Attempt::Poisoned => self.give_out(position),
                Attempt::Gone => {}
            }
        }
        self.advance();
        Ok(if self.seen.has_passed(name) { TakenByName::Passed } else { TakenByName::NotYet })
    }

    /// Finds the message with this name, if it is ahead and waits for this reader. Notes every message on the way in `seen`.
    fn find(&mut self, name: MessageName) -> Option<(Position, Named)> {
        let mut seen = std::mem::take(&mut self.seen);
        let mut found = None;
        walk(&self.segment, self.cursor, &self.backlog, |position, named| {
            let entry = self.segment.message(named.message);
            let Some(owner) = self.segment.life_at(position, named).map(|life| life.owner) else { return true };
            let Some((_, info)) = read_life(&self.segment, entry, position, named) else { return true };
            seen.note(&info, owner);
            if MessageName::of(&info) != name {
                return true;
            }
            found = self.waiting(position, named).map(|_| (position, named));
            false
        });
        self.seen = seen;
        found
    }

    /// Promises that takes by name come in each publisher's order from now on: each releases earlier messages of its publisher. Losses count from
    /// the first take by name.
    pub fn expect_handles_in_order(&mut self) {
        self.seen.expect_order();
    }

    /// The newest message of each publisher that takes by name have seen, in no order.
    pub fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter()
    }

    /// The newest message of this publisher that takes by name have seen.
    pub fn seen_of(&self, publisher: u64) -> Option<&Seen> {
        self.seen.of(publisher)
    }

    /// After the message at this position was taken: earlier messages go on waiting, within bounds, or are released if takes by name come in
    /// order.
    fn pass_by(&mut self, taken: Position, name: MessageName) {
        self.advance();
        if self.seen.gives_first() {
            self.words().forgiven.store(self.losses_so_far(), Ordering::Relaxed);
        }
        let ends = self.seen.give(name);
        self.pass_by_put_back(name, ends.is_some(), PASSED_MAX);
        let keeps_all = self.depth() == 0;
        let queue = self.segment.queue();
        let oldest = Position(queue.end().0.saturating_sub(queue.capacity() / 2));
        // A keep-last subscriber needs no bound: it skips messages that are older than its depth.
        if ends.is_none() && !keeps_all && self.cursor >= oldest {
            return;
        }
        let mut waiting = Vec::new();
        walk(&self.segment, self.cursor, &self.backlog, |position, named| {
            if position >= taken {
                return false; // Taking message n never releases messages after n, however old.
            }
            let owner = self.segment.life_at(position, named).map(|life| life.owner);
            if let (Some(generation), Some(owner)) = (self.waiting(position, named), owner) {
                let entry = self.segment.message(named.message);
                let life = read_life(&self.segment, entry, position, named).filter(|_| ends.is_some());
                let is_ended =
                    life.is_some_and(|(_, info)| info.publisher == name.publisher && info.sequence < name.sequence);
                let message = MessageRef { index: named.message, generation };
                waiting.push(Waiting { position, message, owner, is_ended, is_excess: false });
            }
            true
        });
        if keeps_all {
            self.mark_excess(&mut waiting);
        }
        for Waiting { position, message, is_ended, is_excess, .. } in waiting {
            let is_old = position >= self.cursor && position < oldest;
            if !(is_old || is_ended || is_excess) {
                continue;
            }
            self.give_up(message);
            self.give_out(position);
            self.count_lost(u64::from(!is_ended || ends == Some(true)));
        }
        self.advance();
    }

    /// Marks messages beyond the bounds: the oldest of all, and of each publisher.
    fn mark_excess(&self, waiting: &mut [Waiting]) {
        let (mut kept, mut kept_of) = (0, HashMap::<u16, u32>::new());
        for message in waiting.iter_mut().rev().filter(|message| !message.is_ended) {
            let of_publisher = kept_of.entry(message.owner).or_default();
            let entries = self.segment.publisher(message.owner).map_or(0, |publisher| entries_of(publisher).1);
            message.is_excess = kept >= PASSED_MAX || *of_publisher >= (entries / 2).max(1);
            kept += usize::from(!message.is_excess);
            *of_publisher += u32::from(!message.is_excess);
        }
    }

    /// Notes that a position was given out or released out of turn.
    fn give_out(&mut self, position: Position) {
        if position < self.joined {
            self.backlog.retain(|(at, _)| *at != position);
        } else {
            self.out_of_turn.insert(position);
        }
    }

    /// Moves the cursor to the oldest message that waits.
    fn advance(&mut self) {
        for _ in 0..=2 * self.segment.queue().capacity() {
            match self.segment.queue().read(self.cursor) {
                Slot::Empty => return,
                Slot::Overrun => self.skip_overrun(),
                Slot::Message(named) => {
                    if !self.out_of_turn.contains(&self.cursor) {
                        if self.waiting(self.cursor, named).is_some() {
                            return;
                        }
                        self.count_lost(u64::from(self.is_for_us(self.cursor, named)));
                    }
                    self.move_to(self.cursor.next());
                }
            }
        }
    }
}

/// Removes the message with this name from those set aside.
fn take_named(kept: &mut VecDeque<Held>, name: MessageName) -> Option<Held> {
    let place = kept.iter().position(|held| MessageName::of(held.info()) == name)?;
    kept.remove(place)
}
