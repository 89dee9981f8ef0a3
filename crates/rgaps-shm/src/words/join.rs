//! How a subscriber joins a queue while writers publish: sets `joined`, the first position that it gets.
//!
//! Invariant   J1 every message from `joined` on is kept for the subscriber as its depth says, and none before `joined`.
//! Shown by    loom_join.
//!
//! Dekker's argument, as in message.rs. The manager makes the subscriber visible, then reads where the queue ends. A publisher reserves a
//! position, then reads which subscribers are visible when it wants to free the message. With a fence on both sides, a publisher that does not
//! see the subscriber has published before `joined`. While `joined` is `JOINING`, publishers keep every message for the subscriber.

use crate::words::queue::Queue;
use crate::words::sync::{AtomicU64, Ordering, fence};

/// The value of `joined` while a subscriber joins: it needs every message.
pub(crate) const JOINING: u64 = 0;

/// Makes a subscriber visible, then sets the first position that it gets. `joined` is `JOINING` before.
pub(crate) fn join(visible: impl FnOnce(), joined: &AtomicU64, queue: Queue<'_>) {
    visible();
    fence(Ordering::SeqCst);
    joined.store(queue.end().0, Ordering::Relaxed);
}

/// Proof that the caller passed the fence after publishing, and before it reads which subscribers are visible.
#[derive(Clone, Copy, Debug)]
pub struct PublishFence(());

impl PublishFence {
    /// Passes the fence. Read the visible subscribers after this.
    pub fn pass() -> Self {
        fence(Ordering::SeqCst);
        Self(())
    }
}
