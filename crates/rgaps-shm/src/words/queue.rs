//! The queue: a bounded lock-free ring that puts a topic's messages in one order, for any number of writers.
//!
//! ```text
//!   slot[p mod Q]  63            32 31        16 15        0        tail  the first position that is not reserved,
//!                  ┌───────────────┬────────────┬───────────┐             or a little less (writers help it on)
//!                  │ p + 1, 32 bit │ generation │  message  │
//!                  └───────────────┴────────────┴───────────┘
//! ```
//!
//! A writer completes its message first. One compare-exchange then both reserves position p and names the message. Any writer that finds a
//! reserved slot at the tail moves the tail on. So a writer that is killed or stopped at any instruction blocks no other.
//!
//! Words       `slots[i]` and `tail`: any writer, by compare-exchange.
//! Invariants  Q1 a position names at most one message, for ever. Q2 positions are reserved in order, without gaps.
//!             Q3 the tail never passes an unreserved position.
//! Trusts      nothing: a slot that belongs neither to the last lap nor to this one is `QueueError::Corrupt`, never a loop.
//! Source      the tail that lags and that any writer moves on: Michael and Scott, "Simple, fast, and practical non-blocking and blocking concurrent
//!             queue algorithms", PODC 1996, pages 267 to 275, section 2. A ring with one word for position and entry instead of a list with
//!             nodes is ours (decision 006).
//! Shown by    loom_queue (Q1 to Q3), the model test below.
//!
//! Wraps. The generation in the slot binds it to one life of the table entry. Without it, a reader that lags could take an entry's next message
//! at its old position. The generation has 16 bits here, so the 2^16-th life after this one looks the same. Each life ends with a published
//! message, unless its owner died or was refused by this queue between `complete` and its reservation. So that later life is complete only once Q
//! = 2^16 positions from this one on are reserved. A reader that has just begun to hold an entry therefore looks at the tail once more, or at the
//! position that the entry notes (reader/port.rs). Lives of an entry with different owners differ in the position at which the owner joined
//! (`MessageWords::life_at`).
//!
//! The 32 bits of position repeat after 2^32 messages. A reader compares its own 64-bit cursor with the 64-bit tail. A writer would have to be
//! stopped between two instructions for exactly 2^32 messages, and then find the same entry in the same life
//! (docs/decisions/017-widths-and-wraps.md).

use std::ops::Range;

use crate::words::sync::{AtomicU64, Ordering};

/// Entries of the message table that a slot can name.
pub const MESSAGES_MAX: u32 = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 16;
const GENERATION_BITS: u32 = 16;
const SEQUENCE_BITS: u32 = 32;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

/// Failed reservations in a row before a writer gives up. Each of them means that another writer succeeded.
const ATTEMPTS_MAX: u32 = 1 << 20;

/// An entry of the message table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageIndex(pub u16);

/// A message's number in the order of its topic; counts from 0 and never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

impl Position {
    /// The next position. The last one, which only a corrupt word names, is its own next.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// What a slot names: a table entry in one of its lives (the low 16 bits of its generation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The entry.
    pub message: MessageIndex,
    /// The low bits of the entry's generation.
    pub generation: u16,
}

/// What a reader finds at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Nothing has been published there yet.
    Empty,
    /// A message.
    Message(Named),
    /// The slot has been reused since; the reader has lost the position.
    Overrun,
}

/// The queue cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The words contradict each other: a process broke the protocol.
    #[error(
        "the queue is corrupt at position {0}: a process that maps this topic has overwritten it; end all programs of the topic, then start them again"
    )]
    Corrupt(u64),
    /// Other writers won every attempt.
    #[error(
        "no queue position could be reserved in {ATTEMPTS_MAX} attempts: other publishers won each of them; publish again"
    )]
    Contended,
}

/// The queue's words, borrowed from the segment or from a model.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    tail: &'a AtomicU64,
    slots: &'a [AtomicU64],
}

impl<'a> Queue<'a> {
    /// Borrows the words. `slots` is a power of two long.
    pub fn new(tail: &'a AtomicU64, slots: &'a [AtomicU64]) -> Self {
        debug_assert!(slots.len().is_power_of_two());
        Self { tail, slots }
    }

    /// Slots of the queue. A reader that lags further behind loses positions.
    pub fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Publishes a complete message: reserves the next position for it.
    pub fn publish(&self, named: Named) -> Result<Position, QueueError> {
        for _ in 0..ATTEMPTS_MAX {
            let position = self.tail.load(Ordering::Acquire);
            let slot = self.slot(position);
            let found = slot.load(Ordering::Acquire);
            if sequence(found) == stored(position) {
                self.help(position);
            } else if self.is_previous_lap(found, position) {
                let reserved = encode(position, named);
                if slot.compare_exchange(found, reserved, Ordering::Release, Ordering::Relaxed).is_ok() {
                    self.help(position);
                    return Ok(Position(position));
                }
            } else if self.tail.load(Ordering::Relaxed) == position {
                // Not a race: a writer that follows the protocol writes a later lap into the slot only after the tail has moved on.
                return Err(QueueError::Corrupt(position));
            }
        }
        Err(QueueError::Contended)
    }

    /// Reads a position.
    pub fn read(&self, position: Position) -> Slot {
        let found = self.slot(position.0).load(Ordering::Acquire);
        if sequence(found) == stored(position.0) {
            return Slot::Message(decode(found));
        }
        // Found minus wanted, modulo 2^32: small if the slot was reused, large if the position is still to come.
        let ahead = sequence(found).wrapping_sub(stored(position.0)) & SEQUENCE_MASK;
        if found != 0 && ahead < SEQUENCE_MASK / 2 { Slot::Overrun } else { Slot::Empty }
    }

    /// Whether fewer than Q positions from this one on are reserved, as far as this thread can know. If so, an entry found in a life with the low
    /// bits that the slot names is in the very life that the slot meant.
    pub fn is_within_lap(&self, position: Position) -> bool {
        self.tail.load(Ordering::Relaxed).saturating_sub(position.0) < self.capacity()
    }

    /// The first position that is not reserved. Writes nothing: the next writer moves on a tail that a dead or stopped writer left behind.
    pub fn end(&self) -> Position {
        let mut position = self.tail.load(Ordering::Acquire);
        // Each step needs a reservation by a writer that has not moved the tail yet: at most one per writer, so never a whole lap.
        for _ in 0..self.slots.len() {
            if sequence(self.slot(position).load(Ordering::Relaxed)) != stored(position) {
                break;
            }
            position = position.wrapping_add(1);
        }
        Position(position)
    }

    /// The oldest position that can still be read.
    pub fn begin(&self) -> Position {
        Position(self.positions().start)
    }

    /// The positions that can be read, at most one lap.
    pub fn positions(&self) -> Range<u64> {
        let end = self.end().0;
        end.saturating_sub(self.capacity())..end
    }

    fn help(&self, position: u64) {
        let _ = self.tail.compare_exchange(position, position.wrapping_add(1), Ordering::Release, Ordering::Relaxed);
    }

    fn is_previous_lap(&self, found: u64, position: u64) -> bool {
        match position.checked_sub(self.capacity()) {
            Some(previous) => sequence(found) == stored(previous),
            None => found == 0,
        }
    }

    fn slot(&self, position: u64) -> &'a AtomicU64 {
        &self.slots[(position & (self.capacity() - 1)) as usize]
    }
}

fn stored(position: u64) -> u64 {
    position.wrapping_add(1) & SEQUENCE_MASK
}

fn sequence(word: u64) -> u64 {
    word >> (INDEX_BITS + GENERATION_BITS)
}

fn encode(position: u64, named: Named) -> u64 {
    stored(position) << (INDEX_BITS + GENERATION_BITS)
        | u64::from(named.generation) << INDEX_BITS
        | u64::from(named.message.0)
}

fn decode(word: u64) -> Named {
    Named { message: MessageIndex(word as u16), generation: (word >> INDEX_BITS & ((1 << GENERATION_BITS) - 1)) as u16 }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(slots: usize) -> (AtomicU64, Vec<AtomicU64>) {
        (AtomicU64::new(0), (0..slots).map(|_| AtomicU64::new(0)).collect())
    }

    fn named(n: u64) -> Named {
        Named { message: MessageIndex((n % 65536) as u16), generation: (n / 3) as u16 }
    }

    proptest! {
        #[test]
        fn the_queue_agrees_with_a_list_and_its_last_lap_can_be_read(count in 0_u64..100, bits in 0_u32..5) {
            let (tail, slots) = words(1 << bits);
            let queue = Queue::new(&tail, &slots);
            for n in 0..count {
                prop_assert_eq!(queue.publish(named(n)).unwrap(), Position(n));
            }
            prop_assert_eq!(queue.end(), Position(count));
            for n in 0..count + 3 {
                let expected = if n >= count {
                    Slot::Empty
                } else if n + queue.capacity() < count {
                    Slot::Overrun
                } else {
                    Slot::Message(named(n))
                };
                prop_assert_eq!(queue.read(Position(n)), expected);
            }
        }

        #[test]
        fn any_words_give_an_answer_and_no_endless_loop(tail in any::<u64>(), slots in proptest::collection::vec(any::<u64>(), 8)) {
            let tail = AtomicU64::new(tail);
            let slots: Vec<_> = slots.into_iter().map(AtomicU64::new).collect();
            let queue = Queue::new(&tail, &slots);
            let _ = queue.publish(named(1));
            let _ = queue.end();
            let _ = queue.read(Position(tail.load(Ordering::Relaxed)));
        }
    }

    #[test]
    fn a_writer_that_died_before_moving_the_tail_blocks_no_other() {
        let (tail, slots) = words(4);
        slots[0].store(encode(0, named(7)), Ordering::Relaxed);
        let queue = Queue::new(&tail, &slots);
        assert_eq!(queue.end(), Position(1), "a subscriber that joins now gets what is published after it");
        assert_eq!(queue.publish(named(8)).unwrap(), Position(1));
        assert_eq!(queue.read(Position(0)), Slot::Message(named(7)));
        assert_eq!(queue.end(), Position(2));
    }

    #[test]
    fn a_position_is_within_the_lap_until_as_many_are_reserved_as_there_are_slots() {
        let (tail, slots) = words(4);
        let queue = Queue::new(&tail, &slots);
        for n in 0..8 {
            assert_eq!(queue.is_within_lap(Position(2)), n < 6, "{n} are reserved");
            queue.publish(named(n)).unwrap();
        }
        assert!(queue.is_within_lap(Position(u64::MAX)));
    }

    #[test]
    fn a_slot_that_fits_no_lap_is_named_corrupt() {
        let (tail, slots) = words(4);
        slots[0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(Queue::new(&tail, &slots).publish(named(1)), Err(QueueError::Corrupt(0)));
    }
}
