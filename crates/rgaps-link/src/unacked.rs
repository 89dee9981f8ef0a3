//! Messages that were sent whole but whose last record the receiver has not released: the sender must resend them on a new link.
//!
//! A message is acknowledged when the delayed head has passed the end of its last record. Records are released in order, so a queue of
//! (message, end) in the order of last records is enough. The queue is bounded: while it is full, the ring has no room.

use std::collections::VecDeque;

use crate::position::Position;
use crate::record::MessageId;

/// The most unacknowledged messages. A receiver sends credit for everything when its ring is empty after a message, so even small messages
/// that add up to less than a watermark are acknowledged.
pub const UNACKED_MAX: usize = 4096;

/// The queue. It allocates once.
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
    /// Whether the queue has room for another message.
    pub fn has_room(&self, delayed_head: Position) -> bool {
        self.queue.len() < UNACKED_MAX || self.queue.front().is_some_and(|(_, end)| *end <= delayed_head)
    }

    /// Messages that the delayed head has not passed.
    pub fn count(&self, delayed_head: Position) -> usize {
        self.queue.len() - self.queue.partition_point(|(_, end)| *end <= delayed_head)
    }

    /// Adds a message whose last record was placed and ends at `end`. The ring calls `has_room` first, so a full queue drops an oldest message
    /// that is acknowledged and was never popped.
    pub fn push(&mut self, message: MessageId, end: Position) {
        debug_assert!(self.queue.back().is_none_or(|(_, last)| *last < end), "records are placed in order");
        if self.queue.len() == UNACKED_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back((message, end));
    }

    /// The next message that the delayed head has passed; returns each once.
    pub fn pop(&mut self, delayed_head: Position) -> Option<MessageId> {
        match self.queue.front() {
            Some((_, end)) if *end <= delayed_head => self.queue.pop_front().map(|(message, _)| message),
            _ => None,
        }
    }

    /// The messages that `pop` has not returned, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = MessageId> + '_ {
        self.queue.iter().map(|(message, _)| *message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_acknowledged_once_its_last_byte_is_released() {
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
        assert!(
            unacked.has_room(Position::new(1)),
            "an acknowledgement that the caller never pops does not stop the link"
        );
        assert_eq!(unacked.count(Position::new(1)), UNACKED_MAX - 1);
    }
}
