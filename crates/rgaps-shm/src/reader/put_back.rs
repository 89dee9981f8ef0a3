//! Messages that the caller took and put back: the port still holds them, and gives them out again in the order of their positions.
//!
//! Invariants  A message that was put back counts as not taken until it is given out again. It is lost like an unread message: once it is older
//!             than the depth, when a take by name in order skips it, or when too many messages wait behind a take by name. It does not keep
//!             `take` from earlier messages: the limit of held messages in `take` counts only messages that were given out or await their bytes.
//!             In a take by name, that limit also counts messages that were put back.

use std::sync::atomic::Ordering;

use crate::reader::held::Held;
use crate::reader::port::{ReaderPort, TakeRefused};
use crate::reader::seen_publishers::MessageName;
use crate::words::message::Readiness;
use crate::words::queue::Position;

impl ReaderPort {
    /// Puts back a message that the caller cannot use now: it is the next of its publisher again, and counts as not taken.
    pub fn put_back(&mut self, mut held: Held) {
        self.words().taken.fetch_sub(1, Ordering::Relaxed);
        held.is_put_back = true;
        self.keep(held);
    }

    /// Drops a message that the caller can never use: it counts as lost, not as taken.
    pub fn lose(&self, held: Held) {
        self.words().taken.fetch_sub(1, Ordering::Relaxed);
        self.count_lost(1);
        drop(held);
    }

    /// Sets a message aside, in the order of positions.
    pub(crate) fn keep(&mut self, held: Held) {
        let place = self.set_aside.partition_point(|other| other.info.position < held.info.position);
        self.set_aside.insert(place, held);
    }

    /// Gives out the first message set aside whose bytes are there and whose turn it is.
    pub(crate) fn take_ready_now(&mut self) -> Result<Option<Held>, TakeRefused> {
        let mut place = 0;
        while let Some(held) = self.set_aside.get(place) {
            let publisher = held.info.publisher;
            let in_turn = self.set_aside.range(..place).all(|earlier| earlier.info.publisher != publisher);
            match held.readiness() {
                Readiness::Poisoned => self.drop_poisoned(place),
                Readiness::Ready if in_turn && self.has_turn(held) => {
                    self.check_given(held)?;
                    return Ok(self.set_aside.remove(place).map(|held| self.given_again(held)));
                }
                Readiness::Ready | Readiness::Pending => place += 1,
            }
        }
        Ok(None)
    }

    /// Drops messages that were put back and are now older than the depth. Those published since this reader joined are lost. Those from history
    /// are not: they were offered once.
    pub(crate) fn drop_outdated_put_back(&mut self) {
        if self.set_aside.is_empty() {
            return;
        }
        let (oldest, joined) = (self.oldest_in_depth(), self.joined);
        self.lose_put_back(|held| held.info.position >= joined.0 && is_older(held, joined, oldest));
        self.set_aside.retain(|held| !held.is_put_back || !is_older(held, joined, oldest));
    }

    /// Whether the next take will drop it, because it was put back and is older than the depth.
    pub(crate) fn is_over(&self, held: &Held) -> bool {
        held.is_put_back && is_older(held, self.joined, self.oldest_in_depth())
    }

    /// Drops messages that were put back, after a take by name. If takes by name come in order, drops those of this publisher before the taken
    /// one. Keeps the newest `kept` of the others.
    pub(crate) fn pass_by_put_back(&mut self, taken: MessageName, in_order: bool, kept: usize) {
        if in_order {
            let is_before = |name: MessageName| name.publisher == taken.publisher && name.sequence < taken.sequence;
            self.lose_put_back(|held| is_before(MessageName::of(&held.info)));
        }
        let waiting = self.set_aside.iter().filter(|held| held.is_put_back);
        let newest: Option<u64> = waiting.rev().nth(kept).map(|held| held.info.position);
        self.lose_put_back(|held| newest.is_some_and(|newest| held.info.position <= newest));
    }

    /// Drops the messages that were put back and match, as lost.
    fn lose_put_back(&mut self, is_meant: impl Fn(&Held) -> bool) {
        let before = self.set_aside.len();
        self.set_aside.retain(|held| !(held.is_put_back && is_meant(held)));
        self.count_lost((before - self.set_aside.len()) as u64);
    }

    /// Whether all messages before this one have been given out or skipped. A message that was taken by name and put back may be ahead of the
    /// cursor.
    pub(crate) fn has_turn(&self, held: &Held) -> bool {
        let position = Position(held.info.position);
        position < self.cursor && self.backlog.front().is_none_or(|(oldest, _)| position < *oldest)
    }

    /// How many messages of a publisher were put back and wait.
    pub(crate) fn waiting_again(&self, publisher: u16) -> u32 {
        self.set_aside.iter().filter(|held| held.is_put_back && held.owner == publisher).count() as u32
    }

    /// Whether a message set aside may be given out now. An error if it was put back, and the reader holds the most that it may without it.
    pub(crate) fn check_given(&self, held: &Held) -> Result<(), TakeRefused> {
        if held.is_put_back { self.check_held(held.owner, self.waiting_again(held.owner)) } else { Ok(()) }
    }

    /// Marks a message as given out. It counts as taken if it had been put back.
    pub(crate) fn given_again(&self, mut held: Held) -> Held {
        if std::mem::take(&mut held.is_put_back) {
            self.words().taken.fetch_add(1, Ordering::Relaxed);
        }
        held
    }
}

/// Whether it is older than the depth. A message from history is, once `depth` messages were published since this reader joined.
fn is_older(held: &Held, joined: Position, oldest: Position) -> bool {
    held.info.position < oldest.0 && (held.info.position >= joined.0 || oldest >= joined)
}
