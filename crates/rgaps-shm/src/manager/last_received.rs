//! The last message of each publisher of another host, read from the message table. A manager's successor has no notes of its own, and learns
//! here which messages need not be sent again.
//!
//! An entry's description outlives its message: it stays until the entry is reused. It always belongs to the position in the entry: a writer
//! clears the position before it changes the description, and sets it only when the message is in the queue. So a read works like a seqlock, with
//! the position as its sequence.
//!
//! Trusts      nothing: a description that changes while it is read is skipped, and its numbers are only compared.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

use crate::info::MessageInfo;
use crate::layout::SlotState;
use crate::reader::held::read_info;
use crate::reader::past::find_in_queue;
use crate::segment::Segment;
use crate::slot::PublisherSlot;
use crate::words::history::MessageRef;
use crate::words::queue::{MessageIndex, Position};

/// The last message that arrived from a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastReceived {
    /// The publisher's count of its messages.
    pub sequence: u64,
    /// Its position in the queue of this host.
    pub position: Position,
}

/// The last message of each publisher of `source_host`. Publishers are at most as many as table entries.
pub fn last_received(segment: &Segment, source_host: [u8; 16]) -> HashMap<u64, LastReceived> {
    last_received_within(segment, source_host, |_| u64::MAX)
}

/// Like `last_received`, but ignores sequences beyond the `limit` of their publisher, which it cannot have published.
pub fn last_received_within(
    segment: &Segment,
    source_host: [u8; 16],
    limit: impl Fn(u64) -> u64,
) -> HashMap<u64, LastReceived> {
    let mut found = HashMap::new();
    let of_host = descriptions(segment).filter(|info| info.source_host == source_host);
    of_host.filter(|info| info.sequence <= limit(info.publisher)).for_each(|info| note_last(&mut found, &info));
    found
}

/// The last message of each publisher, by the host that it is of.
pub fn last_received_by_host(segment: &Segment) -> HashMap<[u8; 16], HashMap<u64, LastReceived>> {
    let mut found: HashMap<_, HashMap<_, _>> = HashMap::new();
    descriptions(segment).for_each(|info| note_last(found.entry(info.source_host).or_default(), &info));
    found
}

/// By host and publisher, the largest sequence in the ports that have not ended. The record of what arrived there last may be missing.
pub fn last_in_ports(segment: &Segment) -> HashMap<([u8; 16], u64), u64> {
    let ports = segment.publishers().filter(|(slot, state)| {
        let is_remote = segment.publisher(slot.index).is_some_and(|words| words.remote.load(Ordering::Relaxed) != 0);
        *state == Some(SlotState::Active) && is_remote
    });
    let mut found = HashMap::new();
    let entries = ports.flat_map(|(slot, _)| segment.used_entries(slot.index));
    for info in entries.filter_map(|index| described(segment, index)) {
        let last = found.entry((info.source_host, info.publisher)).or_insert(0);
        *last = info.sequence.max(*last);
    }
    found
}

/// Notes a message if it is its publisher's last one so far.
fn note_last(found: &mut HashMap<u64, LastReceived>, info: &MessageInfo) {
    if info.sequence > 0 {
        let this = LastReceived { sequence: info.sequence, position: Position(info.position) };
        let last = found.entry(info.publisher).or_insert(this);
        if last.sequence < this.sequence {
            *last = this;
        }
    }
}

/// The last message of a publisher of this host whose slot is still occupied, with the publisher's identity. `None` if it has published nothing.
pub fn last_published(segment: &Segment, slot: PublisherSlot) -> Option<(u64, LastReceived)> {
    let words = segment.publisher(slot.index)?;
    if words.state.load(Ordering::Acquire) != SlotState::Active.word(slot.generation)
        || words.remote.load(Ordering::Relaxed) != 0
    {
        return None;
    }
    let publisher = words.publisher.load(Ordering::Relaxed);
    let own = segment.used_entries(slot.index).filter_map(|index| described(segment, index));
    let last = own.filter(|info| info.publisher == publisher).max_by_key(|info| info.sequence)?;
    Some((publisher, LastReceived { sequence: last.sequence, position: Position(last.position) }))
}

fn descriptions(segment: &Segment) -> impl Iterator<Item = MessageInfo> {
    let entries = segment.publishers().flat_map(|(slot, _)| segment.used_entries(slot.index));
    entries.filter_map(|index| described(segment, index))
}

/// The description of the last message of an entry that was put into the queue.
fn described(segment: &Segment, index: MessageIndex) -> Option<MessageInfo> {
    let entry = segment.message(index);
    let noted = entry.position.load(Ordering::Acquire);
    let life = segment.words(index).life();
    let position = match (noted, life) {
        // Its writer died after it reserved the slot, and before it set the position.
        (u64::MAX, Some(life)) if life.is_complete() => {
            find_in_queue(segment, MessageRef { index, generation: life.generation })?
        }
        (u64::MAX, _) => return None,
        (noted, _) => Position(noted),
    };
    let info = read_info(entry, position);
    fence(Ordering::Acquire);
    let same = match noted {
        u64::MAX => segment.words(index).life() == life,
        _ => entry.position.load(Ordering::Relaxed) == noted,
    };
    same.then_some(info)
}
