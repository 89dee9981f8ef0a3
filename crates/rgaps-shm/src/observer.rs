//! Looking on: what `rgaps topic hz`, `bw` and `latency` see, from a read-only mapping. No payload is touched, nobody is slowed.

use std::sync::Arc;

use crate::info::MessageInfo;
use crate::queue::{Position, Slot};
use crate::reader::read_info;
use crate::segment::Segment;

/// Follows a topic's messages without being one of its subscribers.
#[derive(Debug)]
pub struct Observer {
    segment: Arc<Segment>,
    cursor: Position,
}

impl Observer {
    /// Starts at the newest message.
    pub fn new(segment: Arc<Segment>) -> Self {
        let cursor = segment.queue().tail();
        Self { segment, cursor }
    }

    /// The next message's description. Messages that were published and recycled between two calls are passed over.
    pub fn poll(&mut self) -> Option<MessageInfo> {
        for _ in 0..=2 * self.segment.queue().capacity() {
            match self.segment.queue().read(self.cursor) {
                Slot::Empty => return None,
                Slot::Overrun => {
                    let begin = self.segment.queue().tail().0.saturating_sub(self.segment.queue().capacity());
                    self.cursor = Position(begin.max(self.cursor.0 + 1));
                }
                Slot::Message(named) => {
                    let position = self.cursor;
                    self.cursor = Position(position.0 + 1);
                    let Some(entry) = self.segment.message(named.message) else { continue };
                    let info = read_info(entry, position);
                    // Read, then checked: if the entry has begun another life, what was read is torn.
                    let same = entry.words().life().is_some_and(|life| life.generation.low() == named.generation);
                    if same {
                        return Some(info);
                    }
                }
            }
        }
        None
    }

    /// The segment, for its counters.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}
