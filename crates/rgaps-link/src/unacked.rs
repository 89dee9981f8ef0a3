//! Messages that have been sent whole but whose last record the receiver has not given back: what has to be sent again on a new link.
//!
//! A message is acknowledged when the delayed head has passed the end of its last record. Records are given back in order, so a
//! queue of (message, end) in the order of their last records is all there is to know. It is bounded: a full queue is no room.

use std::collections::VecDeque;

use crate::position::Position;
use crate::record::MessageId;

/// The most messages that may be unacknowledged. A receiver gives everything back when its ring runs empty behind a message, so
/// that this many small messages, fewer bytes than a watermark, cannot wait for each other.
pub const UNACKED_MAX: usize = 4096;

/// The queue. Its memory is taken once.
#[derive(Debug)]
pub struct Unacked {
    queue: VecDeque<(MessageId, Position)>,
}

impl Default for Unacked {
    fn default() -> Self {
        Self { queue: VecDeque::with_capacity(UNACKED_MAX) }
    }
}

impl Unacked {
    /// Whether one more message can be remembered.
    pub fn has_room(&self, delayed_head: Position) -> bool {
        self.queue.len() < UNACKED_MAX || self.queue.front().is_some_and(|(_, end)| *end <= delayed_head)
    }

    /// How many the delayed head has not passed.
    pub fn count(&self, delayed_head: Position) -> usize {
        self.queue.len() - self.queue.partition_point(|(_, end)| *end <= delayed_head)
    }

    /// The last record of a message was placed, ending at `end`. The ring asks `has_room` first; a full queue forgets its oldest
    /// message, which is then one that was passed and never asked for.
    pub fn push(&mut self, message: MessageId, end: Position) {
        debug_assert!(self.queue.back().is_none_or(|(_, last)| *last < end), "records are placed in order");
        if self.queue.len() == UNACKED_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back((message, end));
    }

    /// The next message that the delayed head has passed, each once.
    pub fn pop(&mut self, delayed_head: Position) -> Option<MessageId> {
        match self.queue.front() {
            Some((_, end)) if *end <= delayed_head => self.queue.pop_front().map(|(message, _)| message),
            _ => None,
        }
    }

    /// Those that were not named by `pop`, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = MessageId> + '_ {
        self.queue.iter().map(|(message, _)| *message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_acknowledged_once_its_last_byte_was_given_back() {
        let mut unacked = Unacked::default();
        unacked.push(MessageId(7), Position::new(128));
        unacked.push(MessageId(6), Position::new(192));
        assert_eq!(unacked.pop(Position::new(127)), None);
        assert_eq!(unacked.pop(Position::new(128)), Some(MessageId(7)));
        assert_eq!(unacked.pop(Position::new(128)), None);
        assert_eq!(unacked.iter().collect::<Vec<_>>(), [MessageId(6)]);
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut unacked = Unacked::default();
        for i in 1..=UNACKED_MAX as u64 {
            assert!(unacked.has_room(Position::START));
            unacked.push(MessageId(i), Position::new(i));
        }
        assert!(!unacked.has_room(Position::START));
        assert!(unacked.has_room(Position::new(1)), "an acknowledgement that nobody asks for does not stop the link");
        assert_eq!(unacked.count(Position::new(1)), UNACKED_MAX - 1);
    }
}
