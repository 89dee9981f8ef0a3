//! A late joiner's history: the kept messages from before it joined, found in the table and marked WANTED.
//!
//! During a publication, history has one message of the publisher too many: the oldest one leaves history only after the new one is in the queue. So
//! this file takes no more messages of a publisher than the history depth that its newest message states.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{Ordering, fence};

use crate::pages::SubscriberPages;
use crate::segment::{Segment, bits};
use crate::words::history::MessageRef;
use crate::words::message::Life;
use crate::words::queue::{MessageIndex, Named, Position, Slot};

/// How often a late joiner looks for history while ports end.
const LOOKS_MAX: usize = 8;

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

/// Like `want_history`. Also returns how many ports of remote hosts had ended when it looked: it has the history of none of these.
pub(crate) fn want_history_of_ports(
    segment: &Segment,
    pages: &SubscriberPages,
    joined: Position,
    depth: u64,
) -> (VecDeque<(Position, MessageRef)>, u32) {
    let ended_ports = || segment.header().ended_ports.load(Ordering::Acquire);
    let mut ended = ended_ports();
    let mut wanted = want_history(segment, pages, joined, depth);
    // A port may have ended meanwhile. Publishers can write the count, so the number of looks is bounded.
    for _ in 1..LOOKS_MAX {
        let now = ended_ports();
        if now == ended {
            break;
        }
        wanted.iter().for_each(|(_, message)| pages.hold(message.index).pass(message.generation));
        ended = now;
        wanted = want_history(segment, pages, joined, depth);
    }
    (wanted, ended)
}

/// The messages that history keeps from before `before`, oldest first: the last ones of each publisher.
pub(crate) fn history(segment: &Segment, before: Position) -> Vec<(Position, MessageRef)> {
    let entries = bits(&segment.header().publishers.0).flat_map(|slot| segment.used_entries(slot));
    let mut kept: Vec<Kept> =
        entries.filter_map(|index| kept_message(segment, index)).filter(|kept| kept.position < before).collect();
    kept.sort_by_key(|kept| kept.position);
    let mut left: HashMap<(u16, u64), u32> = HashMap::new();
    let newest_first = kept.into_iter().rev().filter(|kept| {
        let left = left.entry((kept.owner, kept.publisher)).or_insert(kept.history_depth);
        let is_within = *left > 0;
        *left = left.saturating_sub(1);
        is_within
    });
    let mut last: Vec<_> = newest_first.map(|kept| (kept.position, kept.message)).collect();
    last.reverse();
    last
}

/// A message that history keeps.
struct Kept {
    position: Position,
    message: MessageRef,
    /// The port's slot; a port of the manager publishes for all publishers of a remote host.
    owner: u16,
    publisher: u64,
    history_depth: u32,
}

fn kept_message(segment: &Segment, index: MessageIndex) -> Option<Kept> {
    let Life { generation, owner, .. } = segment.words(index).life().filter(|life| life.kept)?;
    let message = MessageRef { index, generation };
    let position = position_of(segment, message)?;
    let entry = segment.message(index);
    let publisher = entry.publisher.load(Ordering::Relaxed);
    let history_depth = entry.history_depth.load(Ordering::Relaxed);
    // If the entry has begun another life since, what was read is torn.
    fence(Ordering::Acquire);
    segment.words(index).in_history(generation).then_some(Kept { position, message, owner, publisher, history_depth })
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
