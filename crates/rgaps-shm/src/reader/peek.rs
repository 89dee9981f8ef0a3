//! Reads messages ahead of a reader's cursor without holding them.
//!
//! Trusts      nothing: an entry may begin another life while it is read. So the life is read again afterwards, like the sequence of a seqlock.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use crate::info::MessageInfo;
use crate::layout::MessageEntry;
use crate::reader::held::read_info;
use crate::segment::Segment;
use crate::words::history::MessageRef;
use crate::words::message::Generation;
use crate::words::queue::{Named, Position, Slot};

/// Calls `look` for the messages ahead of a reader, in its order, until it returns false: first the backlog, then the queue from the cursor.
pub(crate) fn walk(
    segment: &Segment,
    cursor: Position,
    backlog: &VecDeque<(Position, MessageRef)>,
    mut look: impl FnMut(Position, Named) -> bool,
) {
    for (position, message) in backlog {
        if !look(*position, Named { message: message.index, generation: message.generation.low() }) {
            return;
        }
    }
    let queue = segment.queue();
    let mut position = cursor;
    // At most one lap of the queue, and another after an overrun.
    for _ in 0..=2 * queue.capacity() {
        match queue.read(position) {
            Slot::Empty => return,
            Slot::Overrun => position = queue.begin().max(position.next()),
            Slot::Message(named) => {
                if !look(position, named) {
                    return;
                }
                position = position.next();
            }
        }
    }
}

/// The life and description of a message that this process need not hold, if its entry is still in the life that the queue slot names.
pub(crate) fn read_life(
    segment: &Segment,
    entry: &MessageEntry,
    position: Position,
    named: Named,
) -> Option<(Generation, MessageInfo)> {
    let generation = segment.life_at(position, named)?.generation;
    let info = read_info(entry, position);
    // If the entry has begun another life since, the description is torn.
    fence(Ordering::Acquire);
    let is_alive = segment.words(named.message).life().is_some_and(|life| life.generation == generation);
    is_alive.then_some((generation, info))
}
