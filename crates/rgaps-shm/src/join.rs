//! How a subscriber joins a queue that goes on meanwhile: from which position on it gets everything.
//!
//! Invariant   J1 every message from `joined` on is kept for the subscriber as its depth says; no message before it is.
//! Shown by    loom_join.
//!
//! Dekker's argument once more: who joins becomes visible, then looks where the queue ends; who publishes reserves a position, then looks
//! who is there when it wants to free the message. With a fence in both, a message whose publisher does not see the subscriber is
//! before `joined`. Until it has looked, the subscriber needs every message there is.

use crate::queue::Queue;
use crate::sync::{AtomicU64, Ordering, fence};

/// What `joined` says of a subscriber that is about to join.
pub(crate) const JOINING: u64 = 0;

/// Makes a subscriber visible, and says from where on it gets what is published. `joined` is `JOINING` before.
pub(crate) fn join(visible: impl FnOnce(), joined: &AtomicU64, queue: Queue<'_>) {
    visible();
    fence(Ordering::SeqCst);
    joined.store(queue.end().0, Ordering::Relaxed);
}

/// A look at who is there, for messages that were published before it.
#[derive(Clone, Copy, Debug)]
pub struct Look(());

impl Look {
    /// Begins one; who is there is read after this.
    pub fn begin() -> Self {
        fence(Ordering::SeqCst);
        Self(())
    }
}
