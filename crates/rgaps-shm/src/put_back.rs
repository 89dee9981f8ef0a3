//! Messages that were given out and could not be used yet: they are held, and wait again in the order of their positions.
//!
//! Invariants  One that is put back is counted as not taken, until it is given out again. It goes as what is unread does: with the depth, with
//!             claims in order, and with too many that nobody claims; then it is lost.

use std::sync::atomic::Ordering;

use crate::claim::MessageName;
use crate::held::Held;
use crate::queue::Position;
use crate::reader::ReaderPort;

impl ReaderPort {
    /// Whoever took a message cannot use it now: it is the next of its publisher again, and counts as not taken.
    pub fn put_back(&mut self, mut held: Held) {
        self.words().taken.fetch_sub(1, Ordering::Relaxed);
        held.is_put_back = true;
        let place = self.unready.partition_point(|other| other.info.position < held.info.position);
        self.unready.insert(place, held);
    }

    /// Nobody can ever use a message that was taken: it counts as lost.
    pub fn lose(&self, held: Held) {
        self.words().taken.fetch_sub(1, Ordering::Relaxed);
        self.count_lost(1);
        drop(held);
    }

    /// What was put back and is older than the depth is lost; what history gave was offered, and goes once all that came since is as much.
    pub(crate) fn let_go_put_back(&mut self) {
        if self.unready.is_empty() {
            return;
        }
        let (oldest, joined) = (self.oldest_in_depth(), self.joined);
        if oldest >= joined {
            self.unready.retain(|held| !held.is_put_back || held.info.position >= joined.0);
        }
        self.lose_put_back(|held| (joined.0..oldest.0).contains(&held.info.position));
    }

    /// A message was claimed, before which these wait: as for what is unread, of its publisher if claims come in order, else all but some.
    pub(crate) fn pass_by_put_back(&mut self, claimed: MessageName, in_order: bool, kept: usize) {
        if in_order {
            let is_before = |name: MessageName| name.publisher == claimed.publisher && name.sequence < claimed.sequence;
            self.lose_put_back(|held| is_before(MessageName::of(&held.info)));
        }
        let waiting = self.unready.iter().filter(|held| held.is_put_back);
        let newest: Option<u64> = waiting.rev().nth(kept).map(|held| held.info.position);
        self.lose_put_back(|held| newest.is_some_and(|newest| held.info.position <= newest));
    }

    /// Those that were put back and are meant are lost.
    fn lose_put_back(&mut self, is_meant: impl Fn(&Held) -> bool) {
        let before = self.unready.len();
        self.unready.retain(|held| !(held.is_put_back && is_meant(held)));
        self.count_lost((before - self.unready.len()) as u64);
    }

    /// Whether all that lies before a message has been given out or passed by: one that was claimed out of turn and put back may lie ahead.
    pub(crate) fn has_turn(&self, held: &Held) -> bool {
        let position = Position(held.info.position);
        position < self.cursor && self.backlog.front().is_none_or(|(oldest, _)| position < *oldest)
    }

    /// A message is given out, which may have been put back.
    pub(crate) fn given_again(&self, mut held: Held) -> Held {
        if std::mem::take(&mut held.is_put_back) {
            self.words().taken.fetch_add(1, Ordering::Relaxed);
        }
        held
    }
}
