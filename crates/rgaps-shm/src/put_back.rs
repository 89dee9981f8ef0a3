//! Messages that were given out and could not be used yet: they are held, and wait again in the order of their positions.
//!
//! Invariants  One that is put back is counted as not taken, until it is given out again. It goes as what is unread does: with the depth, with
//!             takes by name in order, and with too many that nobody takes by name; then it is lost. It does not stand in the way of a take, which goes on to
//!             what lies before it: only what is given out, or awaits its bytes, uses up what a take may hold. A take by name counts all of it.

use std::sync::atomic::Ordering;

use crate::held::Held;
use crate::message::Readiness;
use crate::queue::Position;
use crate::reader::{ReaderPort, TakeRefused};
use crate::sightings::MessageName;

impl ReaderPort {
    /// Whoever took a message cannot use it now: it is the next of its publisher again, and counts as not taken.
    pub fn put_back(&mut self, mut held: Held) {
        self.words().taken.fetch_sub(1, Ordering::Relaxed);
        held.is_put_back = true;
        self.keep(held);
    }

    /// Nobody can ever use a message that was taken: it counts as lost.
    pub fn lose(&self, held: Held) {
        self.words().taken.fetch_sub(1, Ordering::Relaxed);
        self.count_lost(1);
        drop(held);
    }

    /// Among those that are not given out, in the order of their positions.
    pub(crate) fn keep(&mut self, held: Held) {
        let place = self.set_aside.partition_point(|other| other.info.position < held.info.position);
        self.set_aside.insert(place, held);
    }

    /// The first of those that are not given out whose turn it is.
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

    /// What was put back and is older than the depth is lost; what history gave was offered, and goes once all that came since is as much.
    pub(crate) fn drop_outdated_put_back(&mut self) {
        if self.set_aside.is_empty() {
            return;
        }
        let (oldest, joined) = (self.oldest_in_depth(), self.joined);
        self.lose_put_back(|held| held.info.position >= joined.0 && is_older(held, joined, oldest));
        self.set_aside.retain(|held| !held.is_put_back || !is_older(held, joined, oldest));
    }

    /// Whether the next take releases it, since it was put back and is older than the depth.
    pub(crate) fn is_over(&self, held: &Held) -> bool {
        held.is_put_back && is_older(held, self.joined, self.oldest_in_depth())
    }

    /// A message was taken, before which these wait: as for what is unread, of its publisher if takes by name come in order, else all but some.
    pub(crate) fn pass_by_put_back(&mut self, taken: MessageName, in_order: bool, kept: usize) {
        if in_order {
            let is_before = |name: MessageName| name.publisher == taken.publisher && name.sequence < taken.sequence;
            self.lose_put_back(|held| is_before(MessageName::of(&held.info)));
        }
        let waiting = self.set_aside.iter().filter(|held| held.is_put_back);
        let newest: Option<u64> = waiting.rev().nth(kept).map(|held| held.info.position);
        self.lose_put_back(|held| newest.is_some_and(|newest| held.info.position <= newest));
    }

    /// Those that were put back and are meant are lost.
    fn lose_put_back(&mut self, is_meant: impl Fn(&Held) -> bool) {
        let before = self.set_aside.len();
        self.set_aside.retain(|held| !(held.is_put_back && is_meant(held)));
        self.count_lost((before - self.set_aside.len()) as u64);
    }

    /// Whether all that lies before a message has been given out or passed by: one that was taken out of turn and put back may lie ahead.
    pub(crate) fn has_turn(&self, held: &Held) -> bool {
        let position = Position(held.info.position);
        position < self.cursor && self.backlog.front().is_none_or(|(oldest, _)| position < *oldest)
    }

    /// How many messages of a publisher wait again.
    pub(crate) fn waiting_again(&self, publisher: u16) -> u32 {
        self.set_aside.iter().filter(|held| held.is_put_back && held.owner == publisher).count() as u32
    }

    /// Whether one that is not given out may be now: an error if it was put back, and as many are held without it as may be.
    pub(crate) fn check_given(&self, held: &Held) -> Result<(), TakeRefused> {
        if held.is_put_back { self.check_held(held.owner, self.waiting_again(held.owner)) } else { Ok(()) }
    }

    /// A message is given out, which may have been put back.
    pub(crate) fn given_again(&self, mut held: Held) -> Held {
        if std::mem::take(&mut held.is_put_back) {
            self.words().taken.fetch_add(1, Ordering::Relaxed);
        }
        held
    }
}

/// Whether it is older than what the depth keeps: of what history gave, if all that is kept came since.
fn is_older(held: &Held, joined: Position, oldest: Position) -> bool {
    held.info.position < oldest.0 && (held.info.position >= joined.0 || oldest >= joined)
}
