//! A published message whose bytes a stream has not written yet: the stream makes it READY, or its publisher poisons it.

use std::sync::Arc;

use crate::notify::wake_all;
use crate::segment::Segment;
use crate::words::history::MessageRef;

/// A message that is published before its bytes are there. The stream that fills it writes `word` last.
#[must_use = "subscribers wait until a stream makes the message ready, or its publisher poisons it"]
#[derive(Debug)]
pub struct PendingMessage {
    segment: Arc<Segment>,
    message: MessageRef,
}

impl PendingMessage {
    pub(crate) fn new(segment: Arc<Segment>, message: MessageRef) -> Self {
        Self { segment, message }
    }

    /// The word and value that the stream writes (`Segment::ready_word`).
    pub fn word(&self) -> (u64, u32) {
        self.segment.ready_word(self.message)
    }

    /// Poisons the message: its bytes will never be there, and subscribers skip it. True if it was pending. No stream may write `word` after
    /// this.
    pub fn poison(&self) -> bool {
        let poisoned = self.segment.words(self.message.index).poison(self.message.generation);
        wake_all(&self.segment.header().publications.0);
        poisoned
    }
}
