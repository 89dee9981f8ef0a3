//! What gives way when a publisher's pool is full: the oldest unread messages of keep-last subscribers, or of those only that read nothing.
//!
//! Invariants  What is held, or is a keep-all subscriber's to read, never gives way. What gives way is counted as lost.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::history::MessageRef;
use crate::keep_last::keep_last_tenant;
use crate::message::{Holding, Tenancy};
use crate::segment::{Segment, bits};

/// Keep-last subscribers, and what each had taken, at a moment.
#[derive(Debug, Default)]
pub struct Readers(Vec<(u8, Tenancy, u64)>);

impl Readers {
    pub(crate) fn of(segment: &Segment) -> Self {
        let mut readers = Vec::new();
        for slot in bits(&segment.header().subscribers.0) {
            if let Some((tenancy, subscriber)) = keep_last_tenant(segment, slot) {
                readers.push((slot, tenancy, subscriber.taken.load(Ordering::Relaxed)));
            }
        }
        Self(readers)
    }

    /// Whether one of them has read nothing since.
    fn has_idle(&self, segment: &Segment, slot: u8) -> bool {
        let now = keep_last_tenant(segment, slot);
        now.is_some_and(|(tenancy, it)| self.0.contains(&(slot, tenancy, it.taken.load(Ordering::Relaxed))))
    }

    /// Revokes the oldest message that nobody but those of them who have read nothing since waits for or holds. False if there is none.
    pub(crate) fn drop_oldest(&self, segment: &Segment, outstanding: &VecDeque<MessageRef>) -> bool {
        !self.0.is_empty()
            && outstanding.iter().any(|message| {
                let Some(entry) = segment.message(message.index) else { return false };
                let is_in_the_way = |slot: u8| {
                    let Some(tenancy) = segment.tenant(usize::from(slot)) else { return false };
                    match entry.words().holding(usize::from(slot), message.generation, tenancy) {
                        Holding::Held => true,
                        Holding::Pending => !self.has_idle(segment, slot),
                        Holding::Free | Holding::Released => false,
                    }
                };
                let readers = || bits(&segment.header().subscribers.0);
                let idle = readers().filter(|slot| self.has_idle(segment, *slot));
                !readers().any(is_in_the_way) && revoke(segment, message, idle)
            })
    }
}

/// Revokes the oldest message that some keep-last subscriber has not taken. False if there is none.
pub(crate) fn drop_oldest_unread(segment: &Segment, outstanding: &VecDeque<MessageRef>) -> bool {
    outstanding.iter().any(|message| revoke(segment, message, bits(&segment.header().subscribers.0)))
}

/// Takes an unread message from keep-last subscribers. False if none of them had it to read.
fn revoke(segment: &Segment, message: &MessageRef, slots: impl Iterator<Item = u8>) -> bool {
    let Some(entry) = segment.message(message.index) else { return false };
    let mut revoked = false;
    for slot in slots {
        let Some((tenancy, subscriber)) = keep_last_tenant(segment, slot) else { continue };
        if entry.words().revoke(usize::from(slot), message.generation, tenancy) {
            subscriber.lost.fetch_add(1, Ordering::Relaxed);
            revoked = true;
        }
    }
    revoked
}
