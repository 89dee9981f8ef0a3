//! A message that a subscriber holds. Its block is not freed before this is dropped.
//!
//! Trusts      nothing: the payload's mapping checks block offset and length.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::crash;
use crate::info::{MessageInfo, Stamps, decode_path};
use crate::layout::{META_BYTES_MAX, MessageEntry, PUBLISHERS_MAX};
use crate::notify::wake_waiting_publishers;
use crate::pages::SubscriberPages;
use crate::segment::{Segment, whole};
use crate::slot::PublisherSlot;
use crate::words::history::MessageRef;
use crate::words::message::{Readiness, released_word};
use crate::words::queue::Position;

/// How many messages a reader holds of the publisher in each slot. Shared with the messages that it has given out.
#[derive(Debug)]
pub(crate) struct HeldCounts([AtomicU32; PUBLISHERS_MAX]);

impl HeldCounts {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    pub(crate) fn of(&self, publisher: u16) -> Option<&AtomicU32> {
        self.0.get(usize::from(publisher))
    }
}

/// A message that is being read. Its bytes stay until it is dropped, which releases it.
#[derive(Debug)]
pub struct Held {
    pub(crate) segment: Arc<Segment>,
    pub(crate) pages: Arc<SubscriberPages>,
    pub(crate) message: MessageRef,
    pub(crate) owner: u16,
    pub(crate) info: MessageInfo,
    pub(crate) counts: Arc<HeldCounts>,
    /// It was put back, and does not count as taken (`ReaderPort::put_back`).
    pub(crate) is_put_back: bool,
}

impl Held {
    /// Its description: origin, route, stamps.
    pub fn info(&self) -> &MessageInfo {
        &self.info
    }

    /// The publisher whose pool has its block.
    pub fn pool(&self) -> PublisherSlot {
        PublisherSlot { index: self.owner, generation: self.entry().pool_generation.load(Ordering::Relaxed) }
    }

    /// Its entry of the table, and the entry's life.
    pub fn message(&self) -> MessageRef {
        self.message
    }

    /// Offset of its first byte in that pool. Another process wrote the offset: check it against the pool's mapping.
    pub fn offset(&self) -> u64 {
        self.entry().block_offset.load(Ordering::Relaxed)
    }

    /// How many of its publisher's last messages late joiners get, as of this message.
    pub fn history_depth(&self) -> u32 {
        self.entry().history_depth.load(Ordering::Relaxed)
    }

    /// Copies its typed metadata; returns the bytes in use.
    pub fn copy_meta(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        let entry = self.entry();
        let bytes = (entry.meta_bytes.load(Ordering::Relaxed) as usize).min(META_BYTES_MAX);
        for (to, word) in to.chunks_mut(8).zip(&entry.meta).take(bytes.div_ceil(8)) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }

    /// Whether its bytes are there yet.
    pub fn readiness(&self) -> Readiness {
        self.segment.words(self.message.index).readiness(self.message.generation)
    }

    /// The word on which a stream waits for its bytes (`Segment::ready_word`).
    pub fn ready_word(&self) -> (u64, u32) {
        self.segment.ready_word(self.message)
    }

    /// What a stream writes to release it: the offset of a 32-bit word of `SubscriberPages::hold_words`, and the value. Keep this until the
    /// stream has written, then drop it: the drop wakes the publisher.
    pub fn release_word(&self) -> (u64, u32) {
        (u64::from(self.message.index.0) * 4, released_word(self.message.generation))
    }

    fn entry(&self) -> &MessageEntry {
        self.segment.message(self.message.index)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A forked child has none of these words mapped, and its parent releases the message.
        if !self.segment.is_here() {
            return;
        }
        if let Some(count) = self.counts.of(self.owner) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        // A stream may have released it already. If the slot has another occupant now, no publisher reads these words.
        self.pages.hold(self.message.index).release(self.message.generation);
        self.pages.words().held.fetch_sub(1, Ordering::Relaxed);
        crash::point("release.done");
        wake_waiting_publishers(&self.segment.header().space.0);
    }
}

/// Reads a message's description. It may be torn unless the caller holds the message.
pub(crate) fn read_info(entry: &MessageEntry, position: Position) -> MessageInfo {
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let mut info = MessageInfo {
        position: position.0,
        publisher: load(&entry.publisher),
        sequence: load(&entry.sequence),
        source_host: whole([load(&entry.source_host[0]), load(&entry.source_host[1])]),
        host_epoch: load(&entry.host_epoch),
        kind: entry.kind.load(Ordering::Relaxed),
        bytes: load(&entry.block_bytes),
        stamps: Stamps {
            published: load(&entry.stamps[0]),
            staged: load(&entry.stamps[1]),
            sent: load(&entry.stamps[2]),
            landed: load(&entry.stamps[3]),
            pooled: load(&entry.stamps[4]),
        },
        ..MessageInfo::default()
    };
    decode_path(load(&entry.path), &mut info);
    info
}
