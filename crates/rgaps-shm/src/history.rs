//! History: the last K messages of each publisher, kept for late joiners and for a link that resends.
//!
//! Depth is per publisher, so the manager's port, which speaks for several publishers of a remote host, keeps one list for each.

use std::collections::{HashMap, VecDeque};

use crate::message::Generation;
use crate::queue::MessageIndex;

/// A published message, by entry and life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRef {
    /// The entry.
    pub index: MessageIndex,
    /// Its life.
    pub generation: Generation,
}

/// What one port keeps.
#[derive(Debug, Default)]
pub struct History {
    kept: HashMap<u64, VecDeque<MessageRef>>,
    /// All of them in order of publication, so that exhaustion gives up the oldest first.
    order: VecDeque<(u64, MessageRef)>,
}

impl History {
    /// Keeps a message of `publisher`; calls `let_go` for those that fall out of the last `depth`.
    pub fn push(&mut self, publisher: u64, depth: u32, message: MessageRef, mut let_go: impl FnMut(MessageRef)) {
        if depth == 0 {
            return let_go(message);
        }
        let kept = self.kept.entry(publisher).or_default();
        kept.push_back(message);
        self.order.push_back((publisher, message));
        while kept.len() > depth as usize {
            if let Some(oldest) = kept.pop_front() {
                self.order.retain(|(_, message)| *message != oldest);
                let_go(oldest);
            }
        }
    }

    /// Gives up the oldest message of all, when its space is needed more.
    pub fn pop_oldest(&mut self) -> Option<MessageRef> {
        let (publisher, message) = self.order.pop_front()?;
        if let Some(kept) = self.kept.get_mut(&publisher) {
            kept.retain(|kept| *kept != message);
        }
        Some(message)
    }

    /// Forgets a publisher that is gone; calls `let_go` for what was kept of it.
    pub fn forget(&mut self, publisher: u64, let_go: impl FnMut(MessageRef)) {
        self.order.retain(|(of, _)| *of != publisher);
        self.kept.remove(&publisher).into_iter().flatten().for_each(let_go);
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
}
