//! Messages ahead of a reader's cursor: read without holding them.
//!
//! Trusts      nothing: an entry may begin another life while it is read. So the life is read again afterwards, as in a seqlock.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use crate::held::read_info;
use crate::history::MessageRef;
use crate::info::MessageInfo;
use crate::layout::MessageEntry;
use crate::message::Generation;
use crate::queue::{Named, Position, Slot};
use crate::segment::Segment;

/// What lies ahead of a reader, in its order, for as long as `look` asks for more: what history gave it, then the queue from its cursor.
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
    // A lap of the queue at most, and once more after an overrun.
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

/// What a message that nobody here holds says of itself, if its entry is in the life that the queue names; and which that is.
pub(crate) fn read_life(
    segment: &Segment,
    entry: &MessageEntry,
    position: Position,
    named: Named,
) -> Option<(Generation, MessageInfo)> {
    let generation = segment.life_at(position, named)?.generation;
    let info = read_info(entry, position);
    // Read, then checked: if the entry has begun another life, what was read is torn.
    fence(Ordering::Acquire);
    let is_alive = segment.words(named.message).life().is_some_and(|life| life.generation == generation);
    is_alive.then_some((generation, info))
}
