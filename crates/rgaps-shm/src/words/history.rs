//! History: the last K messages of each publisher, kept for late joiners and for senders that resend.
//!
//! Each publisher has its own depth. A port of the manager publishes for all publishers of a remote host, so it keeps one list for each of them.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::words::message::Generation;
use crate::words::queue::MessageIndex;

/// A message, named by its entry and life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageRef {
    /// The entry.
    pub index: MessageIndex,
    /// Its life.
    pub generation: Generation,
}

/// The history of one port.
#[derive(Debug, Default)]
pub struct History {
    kept: HashMap<u64, VecDeque<MessageRef>>,
    /// Messages in all lists.
    count: usize,
    /// All kept messages in order of publication, so that the oldest is given up first. Also has messages that are no longer kept, behind one that
    /// is, since removing them at once would cost a search.
    order: VecDeque<(u64, MessageRef)>,
}

impl History {
    /// Keeps a message of `publisher`, and calls `give_up` for messages that are no longer among its last `depth`. Amortised O(1).
    pub fn push(&mut self, publisher: u64, depth: u32, message: MessageRef, mut give_up: impl FnMut(MessageRef)) {
        if depth == 0 {
            return give_up(message);
        }
        let kept = self.kept.entry(publisher).or_default();
        kept.push_back(message);
        self.count += 1;
        while kept.len() > depth as usize {
            if let Some(oldest) = kept.pop_front() {
                self.count -= 1;
                give_up(oldest);
            }
        }
        self.order.push_back((publisher, message));
        // A message that is still kept is the first of its publisher's list. With a single publisher this removes all others.
        while self.order.front().is_some_and(|(of, first)| self.kept.get(of).and_then(VecDeque::front) != Some(first)) {
            self.order.pop_front();
        }
        if self.order.len() > 2 * self.count + 16 {
            let kept: HashSet<(u64, MessageRef)> =
                self.kept.iter().flat_map(|(of, kept)| kept.iter().map(|message| (*of, *message))).collect();
            self.order.retain(|of| kept.contains(of));
        }
    }

    /// Whether it keeps no message.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes the oldest message of all publishers, when its space is needed.
    pub fn pop_oldest(&mut self) -> Option<MessageRef> {
        while let Some((publisher, message)) = self.order.pop_front() {
            // A message that is still kept is the first of its publisher's list.
            let kept = self.kept.get_mut(&publisher);
            if let Some(kept) = kept.filter(|kept| kept.front() == Some(&message)) {
                kept.pop_front();
                self.count -= 1;
                if kept.is_empty() {
                    self.kept.remove(&publisher);
                }
                return Some(message);
            }
        }
        None
    }

    /// Forgets a publisher that has left, and calls `give_up` for each of its kept messages.
    pub fn forget(&mut self, publisher: u64, give_up: impl FnMut(MessageRef)) {
        let kept = self.kept.remove(&publisher).unwrap_or_default();
        self.count -= kept.len();
        kept.into_iter().for_each(give_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(n: u16) -> MessageRef {
        MessageRef { index: MessageIndex(n), generation: Generation(1) }
    }

    #[test]
    fn each_publisher_keeps_its_own_last_k() {
        let mut history = History::default();
        let mut gone = Vec::new();
        for n in 0..4 {
            history.push(1, 2, message(n), |m| gone.push(m.index.0));
        }
        history.push(2, 1, message(9), |m| gone.push(m.index.0));
        history.push(3, 0, message(10), |m| gone.push(m.index.0));
        assert_eq!(gone, [0, 1, 10]);
        assert_eq!(history.pop_oldest(), Some(message(2)));
        history.forget(1, |m| gone.push(m.index.0));
        assert_eq!(gone, [0, 1, 10, 3]);
        assert_eq!(history.pop_oldest(), Some(message(9)));
        assert_eq!(history.pop_oldest(), None);
    }

    #[test]
    fn messages_no_longer_kept_take_no_room_for_long() {
        let mut history = History::default();
        let mut gone = 0;
        history.push(9, 1, message(0), |_| gone += 1);
        for n in 1..=10_000 {
            history.push(1, 4, message(n), |_| gone += 1);
            assert!(history.order.len() <= 2 * history.count + 16);
        }
        assert_eq!(gone, 10_000 - 4);
        let rest: Vec<u16> = std::iter::from_fn(|| history.pop_oldest()).map(|message| message.index.0).collect();
        assert_eq!(rest, [0, 9997, 9998, 9999, 10_000]);
    }

    #[test]
    fn a_single_publishers_list_has_kept_messages_only() {
        let mut history = History::default();
        for n in 0..100 {
            history.push(1, 4, message(n), |_| ());
            assert_eq!(history.order.len(), history.count);
        }
    }

    #[test]
    fn publishers_of_which_nothing_is_kept_any_more_take_no_memory() {
        // A host invents a publisher for each message, and its port has entries for eight.
        let mut history = History::default();
        for n in 0..10_000 {
            history.push(n, 1, message(n as u16), |_| ());
            if history.count > 8 {
                assert_eq!(history.pop_oldest(), Some(message((n - 8) as u16)));
            }
        }
        assert_eq!((history.count, history.kept.len()), (8, 8));
    }
}
