//! A published message whose bytes a stream has still to write: the stream makes it READY, or its publisher poisons it.

use std::sync::Arc;

use crate::history::MessageRef;
use crate::notify::ring_always;
use crate::segment::Segment;

/// A message that is published before its bytes are there. The stream that brings them writes `word`.
#[must_use = "subscribers wait until somebody makes the message ready, or poisons it"]
#[derive(Debug)]
pub struct PendingMessage {
    segment: Arc<Segment>,
    message: MessageRef,
}

impl PendingMessage {
    pub(crate) fn new(segment: Arc<Segment>, message: MessageRef) -> Self {
        Self { segment, message }
    }

    /// What the stream writes (`Segment::ready_word`).
    pub fn word(&self) -> (u64, u32) {
        self.segment.ready_word(self.message)
    }

    /// The bytes will never come: subscribers pass the message by. True if it was pending. No stream may get to `word` after this.
    pub fn poison(&self) -> bool {
        let poisoned = self.segment.words(self.message.index).poison(self.message.generation);
        ring_always(&self.segment.header().arrivals.0);
        poisoned
    }
}
