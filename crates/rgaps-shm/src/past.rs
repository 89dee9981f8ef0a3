//! A late joiner's history: the kept messages from before it joined, found in the table and marked WANTED.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::history::MessageRef;
use crate::pages::SubscriberPages;
use crate::queue::{Named, Position, Slot};
use crate::segment::{Segment, bits};

/// Marks the last `depth` messages (0: all) that history keeps from before `joined` as WANTED, and returns them, oldest first.
pub(crate) fn want_history(
    segment: &Segment,
    pages: &SubscriberPages,
    joined: Position,
    depth: u64,
) -> VecDeque<(Position, MessageRef)> {
    let kept = history(segment, joined);
    let skip = if depth == 0 { 0 } else { kept.len().saturating_sub(depth as usize) };
    let kept = kept.into_iter().skip(skip);
    kept.filter(|(_, message)| segment.words(message.index).want(pages.hold(message.index), message.generation))
        .collect()
}

/// The messages that history keeps from before `before`, oldest first.
pub(crate) fn history(segment: &Segment, before: Position) -> Vec<(Position, MessageRef)> {
    let entries = bits(&segment.header().publishers.0).flat_map(|slot| segment.used_entries(slot));
    let mut kept: Vec<(Position, MessageRef)> = entries
        .filter_map(|index| {
            let life = segment.words(index).life().filter(|life| life.kept)?;
            let message = MessageRef { index, generation: life.generation };
            let position = position_of(segment, message)?;
            (position < before).then_some((position, message))
        })
        .collect();
    kept.sort_by_key(|(position, _)| *position);
    kept
}

/// A complete message's position: the one in its entry, or in the queue if the writer has not set that yet. `None` if it has none yet.
fn position_of(segment: &Segment, message: MessageRef) -> Option<Position> {
    match segment.message(message.index).position.load(Ordering::Acquire) {
        u64::MAX => find_in_queue(segment, message),
        noted => Some(Position(noted)),
    }
}

/// The position whose queue slot names this message in this life.
pub(crate) fn find_in_queue(segment: &Segment, message: MessageRef) -> Option<Position> {
    let queue = segment.queue();
    let named = Named { message: message.index, generation: message.generation.low() };
    let owner = segment.words(message.index).life()?.owner;
    let joined = segment.publisher(owner)?.joined.load(Ordering::Relaxed);
    let positions = queue.positions();
    (positions.start.max(joined)..positions.end)
        .rev()
        .map(Position)
        .find(|position| queue.read(*position) == Slot::Message(named))
}
