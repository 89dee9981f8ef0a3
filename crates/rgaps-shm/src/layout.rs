//! The segment's layout. All of it is atomics, `#[repr(C)]`, and addressed by offset, so every process may map it elsewhere.
//!
//! ```text
//!   0            4096                     + 64 × 128 B            + 64 × 256 B            + Q × 8 B        + M × 1792 B
//!   ┌────────────┬────────────────────────┬───────────────────────┬───────────────────────┬────────────────┐
//!   │ Header     │ PublisherSlot[64]      │ SubscriberSlot[64]    │ queue slots, Q        │ MessageEntry[M]│
//!   └────────────┴────────────────────────┴───────────────────────┴───────────────────────┴────────────────┘
//! ```
//!
//! Trusts      the header is read once, at attach, into a `Geometry` that the process keeps to itself (segment.rs). A changed
//!             layout bumps `LAYOUT_VERSION`.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::message::SUBSCRIBERS_MAX;
use crate::queue::{MESSAGES_MAX, MessageIndex};

/// "RGAPSSEG" in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RGAPSSEG");
/// Of everything on this page.
pub const LAYOUT_VERSION: u32 = 3;
/// Publishers of one topic on one host.
pub const PUBLISHERS_MAX: usize = 64;
/// Bytes of typed metadata a message.
pub const META_BYTES_MAX: usize = 1024;
/// Bytes of the page that the header has to itself.
pub const HEADER_BYTES: u64 = 4096;

/// A cache line of its own, so that words with different writers do not share one.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line<T>(pub T);

/// First page of the segment.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// `MAGIC`.
    pub magic: AtomicU64,
    /// `LAYOUT_VERSION`.
    pub version: AtomicU32,
    /// Entries of the message table.
    pub messages: AtomicU32,
    /// Slots of the queue; a power of two, at least `messages`.
    pub queue_slots: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Length of the segment in bytes.
    pub segment_bytes: AtomicU64,
    /// The topic's identity, as two little-endian halves.
    pub topic: [AtomicU64; 2],
    /// First unclaimed queue position.
    pub tail: Line<AtomicU64>,
    /// What subscribers sleep on.
    pub arrivals: Line<WakeWords>,
    /// What publishers sleep on while they wait for space.
    pub space: Line<WakeWords>,
    /// Bit s: subscriber slot s is occupied.
    pub subscribers: Line<AtomicU64>,
    /// Bit p: publisher slot p is occupied by a living publisher.
    pub publishers: AtomicU64,
    /// Bit s: the subscriber in slot s has an event descriptor.
    pub descriptors: AtomicU64,
}

/// A futex word and who sleeps on it.
#[repr(C)]
#[derive(Debug)]
pub struct WakeWords {
    /// Counts events; sleepers pass the value they saw.
    pub count: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Bit s: the process in slot s sleeps, so a wake-up is worth its system call.
    pub sleepers: AtomicU64,
}

/// A publisher of this host, or the manager on behalf of a remote host.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct PublisherSlot {
    /// Occupation count in the upper half, `SlotState` below.
    pub state: AtomicU64,
    /// The publisher's identity; for the manager's, that of the remote host's link.
    pub publisher: AtomicU64,
    /// Process id, in the publisher's own namespace; for people.
    pub pid: AtomicU64,
    /// Bytes of the pool.
    pub pool_bytes: AtomicU64,
    /// 1 if messages come from another host.
    pub remote: AtomicU64,
    /// Messages published.
    pub published: AtomicU64,
    /// Bytes published.
    pub published_bytes: AtomicU64,
    /// Bytes of the pool in use, for people.
    pub used_bytes: AtomicU64,
    /// Messages refused or timed out for lack of space.
    pub refused: AtomicU64,
    /// Counts messages whose last holder may have let go, so that the owner knows when to look.
    pub released: AtomicU64,
}

/// A subscriber of this host, or the manager's sender to a remote host.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct SubscriberSlot {
    /// Occupation count in the upper half, `SlotState` below.
    pub state: AtomicU64,
    /// Keep-last depth; 0 is keep-all.
    pub depth: AtomicU64,
    /// The next position that the subscriber will look at; written by it, a hint for others.
    pub cursor: AtomicU64,
    /// Up to here keep-last has been applied by some writer.
    pub trimmed: AtomicU64,
    /// Process id, in the subscriber's own namespace; for people.
    pub pid: AtomicU64,
    /// 1 if this is the sender to a remote host.
    pub remote: AtomicU64,
    /// Messages taken.
    pub taken: AtomicU64,
    /// Messages revoked by keep-last, by exhaustion, or lost on the way from another host (`Janitor::count_lost`).
    pub lost: AtomicU64,
    /// Messages taken and found poisoned.
    pub poisoned: AtomicU64,
    /// Messages held now; written by the subscriber.
    pub held: AtomicU64,
    /// Bytes that were copied for this subscriber alone. Stays 0: what is read is the publisher's block.
    pub copied_bytes: AtomicU64,
    /// The first position that was addressed to it; by the manager, before anybody can see the slot.
    pub joined: AtomicU64,
}

/// State of a publisher or subscriber slot, the low half of its state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Free.
    Free,
    /// Occupied.
    Active,
    /// A publisher that left or died, some of whose messages are still held.
    Buried,
}

impl SlotState {
    /// As stored.
    pub fn code(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Active => 1,
            Self::Buried => 2,
        }
    }

    /// As read: (occupation count, state).
    pub fn decode(word: u64) -> (u32, Option<Self>) {
        let state = match word & 0xffff_ffff {
            0 => Some(Self::Free),
            1 => Some(Self::Active),
            2 => Some(Self::Buried),
            _ => None,
        };
        ((word >> 32) as u32, state)
    }

    /// The state word of an occupation.
    pub fn word(self, generation: u32) -> u64 {
        u64::from(generation) << 32 | self.code()
    }
}

/// A message of the table.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct MessageEntry {
    /// See message.rs.
    pub life: AtomicU64,
    /// See message.rs.
    pub ready: AtomicU32,
    /// Kind of the typed metadata.
    pub kind: AtomicU32,
    /// See message.rs.
    pub history: AtomicU64,
    /// Queue position, or `u64::MAX` before it has one.
    pub position: AtomicU64,
    /// Offset of the block in its owner's pool.
    pub block_offset: AtomicU64,
    /// Bytes of the message (the block may be larger).
    pub block_bytes: AtomicU64,
    /// Occupation count of the owner's publisher slot, which names the pool.
    pub pool_generation: AtomicU32,
    /// Bytes of typed metadata in use.
    pub meta_bytes: AtomicU32,
    /// Identity of the publisher, wherever it is.
    pub publisher: AtomicU64,
    /// The publisher's count of its messages, from 1.
    pub sequence: AtomicU64,
    /// Host of the publisher, as two little-endian halves.
    pub source_host: [AtomicU64; 2],
    /// When that host came to life (`MessageInfo::host_epoch`).
    pub host_epoch: AtomicU64,
    /// Origin, route, reason and copies (`info::encode_path`).
    pub path: AtomicU64,
    /// Stage timestamps in ns since 1970: publish, staged, sent, landed, pooled.
    pub stamps: [AtomicU64; 5],
    /// See message.rs.
    pub holders: Line<[AtomicU64; SUBSCRIBERS_MAX]>,
    /// Typed metadata, little endian.
    pub meta: [AtomicU64; META_BYTES_MAX / 8],
}

const _: () = {
    assert!(size_of::<Header>() <= HEADER_BYTES as usize);
    assert!(size_of::<PublisherSlot>() == 128);
    assert!(size_of::<SubscriberSlot>() == 256);
    assert!(size_of::<MessageEntry>() == 1728);
};

/// A segment's shape: what each process copies at attach and checks every index against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Entries of the message table, 1 to 4096.
    pub messages: u32,
    /// Slots of the queue.
    pub queue_slots: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Self::new(256)
    }
}

impl Geometry {
    /// A table of `messages` entries (clamped to 1..=4096) and a queue in which no unread message is ever overrun.
    pub fn new(messages: u32) -> Self {
        let messages = messages.clamp(1, MESSAGES_MAX);
        Self { messages, queue_slots: messages.next_power_of_two() }
    }

    /// Whether the numbers make sense together.
    pub fn is_valid(&self) -> bool {
        (1..=MESSAGES_MAX).contains(&self.messages) && self.queue_slots == self.messages.next_power_of_two()
    }

    /// Offset of the publisher slots.
    pub const fn publishers_offset() -> u64 {
        HEADER_BYTES
    }

    /// Offset of the subscriber slots.
    pub const fn subscribers_offset() -> u64 {
        Self::publishers_offset() + (PUBLISHERS_MAX * size_of::<PublisherSlot>()) as u64
    }

    /// Offset of the queue slots.
    pub const fn queue_offset() -> u64 {
        Self::subscribers_offset() + (SUBSCRIBERS_MAX * size_of::<SubscriberSlot>()) as u64
    }

    /// Offset of the message table.
    pub fn messages_offset(&self) -> u64 {
        (Self::queue_offset() + u64::from(self.queue_slots) * 8).next_multiple_of(64)
    }

    /// Offset of a message's readiness word.
    pub fn ready_offset(&self, index: MessageIndex) -> u64 {
        self.message_offset(index) + offset_of!(MessageEntry, ready) as u64
    }

    /// Offset of the low half of a subscriber slot's holder word.
    pub fn holder_offset(&self, index: MessageIndex, slot: u8) -> u64 {
        let low_half = if cfg!(target_endian = "big") { 4 } else { 0 };
        self.message_offset(index) + offset_of!(MessageEntry, holders) as u64 + u64::from(slot) * 8 + low_half
    }

    /// Offset of a message entry.
    pub fn message_offset(&self, index: MessageIndex) -> u64 {
        self.messages_offset() + u64::from(index.0) * size_of::<MessageEntry>() as u64
    }

    /// Length of the segment in bytes, whole pages.
    pub fn segment_bytes(&self) -> u64 {
        (self.messages_offset() + u64::from(self.messages) * size_of::<MessageEntry>() as u64).next_multiple_of(4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_topic_of_default_geometry_is_under_a_mebibyte() {
        assert!(Geometry::default().segment_bytes() < 1 << 20);
    }

    #[test]
    fn geometry_is_clamped_and_lies_are_told_apart() {
        assert_eq!(Geometry::new(0).messages, 1);
        assert_eq!(Geometry::new(u32::MAX).messages, 4096);
        assert!(Geometry::new(100).is_valid());
        assert!(!Geometry { messages: 5000, queue_slots: 8192 }.is_valid());
        assert!(!Geometry { messages: 100, queue_slots: 64 }.is_valid());
    }
}
