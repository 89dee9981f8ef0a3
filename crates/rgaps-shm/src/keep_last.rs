//! Keep-last, which publishers apply to subscribers: what is older than a subscriber's depth when a newer message is there, and not held, is
//! taken from it.

use std::sync::atomic::Ordering;

use crate::layout::SubscriberSlot;
use crate::message::Tenancy;
use crate::queue::{Named, Position, Slot};
use crate::segment::{Segment, bits};

/// Keep-last: what a subscriber has not taken and is older than its depth is revoked and counted. Returns who lost any, as bits of slots.
pub(crate) fn trim_keep_last(segment: &Segment, published: Position) -> u64 {
    let queue = segment.queue();
    let mut losers = 0;
    for slot in bits(&segment.header().subscribers.0) {
        let Some((tenancy, subscriber)) = keep_last_tenant(segment, slot) else { continue };
        let depth = subscriber.depth.load(Ordering::Relaxed);
        let until = published.next().0.saturating_sub(depth);
        let from = subscriber.trimmed.load(Ordering::Acquire).max(subscriber.cursor.load(Ordering::Acquire));
        let from = from.max(published.next().0.saturating_sub(queue.capacity()));
        for position in from..until {
            if let Slot::Message(named) = queue.read(Position(position)) {
                losers |= u64::from(revoke_named(segment, slot, tenancy, named, subscriber)) << slot;
            }
        }
        subscriber.trimmed.fetch_max(until, Ordering::AcqRel);
    }
    losers
}

fn revoke_named(segment: &Segment, slot: u8, tenancy: Tenancy, named: Named, subscriber: &SubscriberSlot) -> bool {
    let Some(entry) = segment.message(named.message) else { return false };
    let Some(life) = entry.words().life() else { return false };
    let same_life = life.generation.low() == named.generation;
    let is_revoked = same_life && entry.words().revoke(usize::from(slot), life.generation, tenancy);
    if is_revoked {
        subscriber.lost.fetch_add(1, Ordering::Relaxed);
    }
    is_revoked
}

/// Who has the slot, if it is a keep-last subscriber.
pub(crate) fn keep_last_tenant(segment: &Segment, slot: u8) -> Option<(Tenancy, &SubscriberSlot)> {
    let tenancy = segment.tenant(usize::from(slot))?;
    let subscriber = segment.subscriber(slot)?;
    (subscriber.depth.load(Ordering::Relaxed) != 0).then_some((tenancy, subscriber))
}
