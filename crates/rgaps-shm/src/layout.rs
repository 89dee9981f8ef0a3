//! The layout of a topic's files. Every word is atomic, every struct is `#[repr(C)]`, and words are addressed by offset, so each process may map
//! a file at another address.
//!
//! ```text
//!   the segment, which the manager and publishers can write:
//!   Header │ SubscriberRecord[16] │ PublisherRecord[256] │ SubscriberRecord[1008] │ queue, 2^16 × 8 B │ ready words, 2^16 × 4 B │ MessageEntry[2^16]
//!          └───── by the manager; each publisher writes its own record ──────┘  by publishers      by producers' streams     by its publisher
//!   │ ArrivalRecord[4096]
//!     by the manager
//!
//!   one file per client, with one place per subscriber; the manager creates it, the client writes it (pages.rs):
//!   SubscriberWords, 64 KiB │ hold words, 2^16 × 4 B
//! ```
//!
//! The files are sparse and have room for every maximum: a page takes memory only once it is written. A publisher gets a run of the message table
//! when it joins. The run is its quota, which no other publisher can use up. Ready words, hold words and subscribers' places are mapped by
//! themselves, so each begins at a multiple of the largest page that kernels for 64-bit ARM have.
//!
//! Trusts      nothing: attach checks magic, version and length (segment.rs). Bump `LAYOUT_VERSION` with every change of the layout.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::words::queue::{MESSAGES_MAX, MessageIndex};

/// Marks a segment: "RGAPSSEG" in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RGAPSSEG");
/// Marks a subscriber's own words: "RGAPSSUB" in memory order.
pub const PAGES_MAGIC: u64 = u64::from_le_bytes(*b"RGAPSSUB");
/// Version of the layout in this file.
pub const LAYOUT_VERSION: u32 = 12;
/// Publisher slots of one topic on one host. The manager occupies one for each remote host that publishes.
pub const PUBLISHERS_MAX: usize = 256;
/// Subscriber slots of one topic on one host, including those of the manager's senders.
pub const SUBSCRIBERS_MAX: usize = 1024;
/// Slots of the queue. A reader that lags further behind loses positions, and counts them.
pub const QUEUE_SLOTS: usize = MESSAGES_MAX as usize;
/// Largest keep-last depth. A subscriber that asks for more gets this one.
pub const DEPTH_MAX: u32 = QUEUE_SLOTS as u32 / 2;
/// Largest typed metadata of a message, in bytes.
pub const META_BYTES_MAX: usize = 1024;

/// Most publishers of other hosts with a record of what has arrived (`arrival_records.rs` shares them out). Of others, a manager's successor knows what
/// the message table still has.
pub const ARRIVAL_RECORDS_MAX: u32 = 4096;

/// The smallest page of a kernel.
const PAGE_BYTES: u64 = 4096;
/// The largest page of a kernel. mmap(2) takes only multiples of the kernel's page as offsets.
const PAGE_BYTES_MAX: u64 = 65_536;

/// A cache line of its own, so that words with different writers do not share one.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line<T>(pub T);

/// One bit per slot.
pub type PublisherMask = [AtomicU64; PUBLISHERS_MAX / 64];
/// One bit per slot.
pub type SubscriberMask = [AtomicU64; SUBSCRIBERS_MAX / 64];

/// Start of the segment.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// `MAGIC`.
    pub magic: AtomicU64,
    /// `LAYOUT_VERSION`.
    pub version: AtomicU32,
    /// First life of an entry whose memory was given back. It is later than every life that such an entry had.
    pub first_generation: AtomicU32,
    /// Length of the segment in bytes.
    pub segment_bytes: AtomicU64,
    /// The topic's identity, as two little-endian halves.
    pub topic: [AtomicU64; 2],
    /// First queue position that is not reserved, or slightly less (queue.rs).
    pub tail: Line<AtomicU64>,
    /// Futex word that subscribers sleep on. It counts wake-ups, and sleepers pass the value they saw. Each subscriber announces its sleep in its
    /// own words.
    pub publications: Line<AtomicU32>,
    /// Futex word that publishers sleep on while they wait for space.
    pub space: Line<WakeWords>,
    /// Subscriber slots that are occupied.
    pub subscribers: Line<SubscriberMask>,
    /// Publisher slots that are occupied by living publishers.
    pub publishers: Line<PublisherMask>,
    /// Subscriber slots whose occupants have eventfds.
    pub event_fds: Line<SubscriberMask>,
    /// Records of arrivals that were ever used, counted from the first.
    pub arrival_records: AtomicU32,
    /// How many ports of remote hosts have ended.
    pub ended_ports: AtomicU32,
}

/// A futex word, and the publishers that sleep on it.
#[repr(C)]
#[derive(Debug)]
pub struct WakeWords {
    /// Counts wake-ups; sleepers pass the value they saw.
    pub count: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Publisher slots that sleep. Subscribers make the system call only if a bit is set.
    pub sleepers: PublisherMask,
}

/// A publisher of this host, or the manager on behalf of a remote host.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct PublisherRecord {
    /// Generation in the upper half, `SlotState` in the lower.
    pub state: AtomicU64,
    /// The publisher's identity. 0 for a slot of the manager: its messages name the remote publishers.
    pub publisher: AtomicU64,
    /// Process id in rgapsd's PID namespace, for display only.
    pub pid: AtomicU64,
    /// Bytes of the pool.
    pub pool_bytes: AtomicU64,
    /// 1 if messages come from another host.
    pub remote: AtomicU64,
    /// First entry of its run of the message table in the upper half, length of the run in the lower.
    pub entries: AtomicU64,
    /// Entries of its run that it has ever used, counted from the first.
    pub used_entries: AtomicU64,
    /// First position that one of its messages can have.
    pub joined: AtomicU64,
    /// Messages published.
    pub published: AtomicU64,
    /// Bytes published.
    pub published_bytes: AtomicU64,
    /// Bytes of the pool in use, for display only.
    pub used_bytes: AtomicU64,
    /// Loans that were refused or timed out for lack of space.
    pub refused: AtomicU64,
}

/// A sender to a remote host that is not connected with it.
pub const NOT_LINKED: u64 = 1;
/// A sender to a remote host that is connected with it.
pub const LINKED: u64 = 2;

/// The manager's record of a subscriber of this host, or of its own sender to a remote host.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SubscriberRecord {
    /// Generation in the upper half, `SlotState` in the lower.
    pub state: AtomicU64,
    /// Keep-last depth; 0 is keep-all.
    pub depth: AtomicU64,
    /// First position that it gets from the queue; 0 while it joins (join.rs).
    pub joined: AtomicU64,
    /// Process id in rgapsd's PID namespace, for display only.
    pub pid: AtomicU64,
    /// `NOT_LINKED` or `LINKED` if this is the sender to a remote host, else 0.
    pub remote: AtomicU64,
    /// Messages lost on the way from another host (`SlotTable::count_lost`).
    pub lost: AtomicU64,
    /// Place of its own words in its client's file (pages.rs).
    pub place: AtomicU32,
}

/// Names the subscriber that a place belongs to. The manager writes it before another process uses the place.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct PagesHeader {
    /// `PAGES_MAGIC`.
    pub magic: AtomicU64,
    /// `LAYOUT_VERSION`.
    pub version: AtomicU32,
    /// The subscriber slot.
    pub slot: AtomicU32,
    /// The topic's identity, as two little-endian halves.
    pub topic: [AtomicU64; 2],
    /// Generation of the slot.
    pub generation: AtomicU32,
}

/// A subscriber's own words, without its hold words.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SubscriberWords {
    /// The subscriber that they belong to.
    pub header: PagesHeader,
    /// Next position that it will look at, or `joined` if that is larger. `u64::MAX` once it is closed.
    pub cursor: AtomicU64,
    /// Messages taken.
    pub taken: AtomicU64,
    /// Messages lost: older than its depth, dropped for their space, or skipped by takes by name.
    pub lost: AtomicU64,
    /// Messages taken and found poisoned.
    pub poisoned: AtomicU64,
    /// Messages held now.
    pub held: AtomicU64,
    /// Bytes copied for this subscriber alone. 0 if it reads the publisher's blocks in place.
    pub copied_bytes: AtomicU64,
    /// Messages taken and skipped because their description contradicts itself.
    pub malformed: AtomicU64,
    /// Not 0 while it sleeps or is about to: the count of publications that it sleeps on, or 1 for 0. Publishers make the system call only if a
    /// subscriber sleeps that they have not woken since.
    pub asleep: AtomicU32,
    /// Losses, here and in the record, before its first take by name, which do not count if takes by name come in order.
    pub forgiven: AtomicU64,
}

/// State of a publisher or subscriber slot, the low half of its state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Free.
    Free,
    /// Occupied.
    Active,
    /// Its publisher left or died, and subscribers still need some of its messages.
    Draining,
}

impl SlotState {
    /// The code in a state word.
    pub fn code(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Active => 1,
            Self::Draining => 2,
        }
    }

    /// Decodes a state word: (generation, state).
    pub fn decode(word: u64) -> (u32, Option<Self>) {
        let state = match word & 0xffff_ffff {
            0 => Some(Self::Free),
            1 => Some(Self::Active),
            2 => Some(Self::Draining),
            _ => None,
        };
        ((word >> 32) as u32, state)
    }

    /// The state word of an occupant with this generation.
    pub fn word(self, generation: u32) -> u64 {
        u64::from(generation) << 32 | self.code()
    }
}

/// An entry of the message table.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct MessageEntry {
    /// See message.rs.
    pub life: AtomicU64,
    /// Queue position, or `u64::MAX` before it has one.
    pub position: AtomicU64,
    /// Offset of the block in its owner's pool.
    pub block_offset: AtomicU64,
    /// Bytes of the message (the block may be larger).
    pub block_bytes: AtomicU64,
    /// Generation of the owner's publisher slot; slot and generation name the pool.
    pub pool_generation: AtomicU32,
    /// Bytes of typed metadata in use.
    pub meta_bytes: AtomicU32,
    /// Identity of the publisher, on this host or a remote one.
    pub publisher: AtomicU64,
    /// The publisher's count of its messages, from 1.
    pub sequence: AtomicU64,
    /// Subscribers whose `joined` is below this do not get the message: it was published to them before. 0: every subscriber gets it.
    pub since: AtomicU64,
    /// Subscribers that looked for history before so many ports had ended do not get the message: a former port gave it to them. 0: every subscriber gets it.
    pub since_ports: AtomicU32,
    /// 1: only subscribers that want history get the message.
    pub is_history: AtomicU32,
    /// For subscribers whose `joined` is at or above this the message may be older than they are: beyond their depth it is not lost. `u64::MAX`:
    /// for none.
    pub history_since: AtomicU64,
    /// Host of the publisher, as two little-endian halves.
    pub source_host: [AtomicU64; 2],
    /// Epoch of that host (`MessageInfo::host_epoch`).
    pub host_epoch: AtomicU64,
    /// Origin, route, reason and copies (`info::encode_path`).
    pub path: AtomicU64,
    /// Kind of the typed metadata.
    pub kind: AtomicU32,
    /// How many of the publisher's last messages late joiners get, as of this message.
    pub history_depth: AtomicU32,
    /// Stage timestamps in ns since 1970: publish, staged, sent, landed, pooled.
    pub stamps: [AtomicU64; 5],
    /// Typed metadata, little endian.
    pub meta: [AtomicU64; META_BYTES_MAX / 8],
}

/// What has arrived from a publisher of another host, for a manager's successor (arrival_records.rs).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ArrivalRecord {
    /// The publisher's host, as two little-endian halves.
    pub source_host: [AtomicU64; 2],
    /// The publisher's identity.
    pub publisher: AtomicU64,
    /// The last of its messages that arrived or was counted as lost; 0 if the record is free.
    pub sequence: AtomicU64,
    /// Position of the last of its messages that arrived.
    pub position: AtomicU64,
    /// The last of its messages in the present port (`PortHistory`).
    pub last_in_port: AtomicU64,
    /// The last of its messages in the last port that had one, and has ended.
    pub last_in_ended: AtomicU64,
    /// How many ports had ended when that one had.
    pub ended_ports: AtomicU32,
    /// The same for the port before that had later messages.
    pub ended_ports_beyond: AtomicU32,
}

const _: () = {
    assert!(size_of::<ArrivalRecord>() == 64);
    assert!(size_of::<Header>() as u64 <= FIRST_SUBSCRIBERS_OFFSET);
    assert!(PUBLISHERS_OFFSET.is_multiple_of(128));
    assert!(size_of::<PublisherRecord>() == 128);
    assert!(size_of::<SubscriberRecord>() == 64);
    assert!(size_of::<SubscriberWords>() == 192);
    assert!(size_of::<MessageEntry>() == 1216);
    // Attach checks these words; in one cache line, they are all there or all missing.
    assert!(offset_of!(Header, topic) < 64);
    assert!(READY_OFFSET.is_multiple_of(PAGE_BYTES_MAX));
    assert!(HOLDS_OFFSET.is_multiple_of(PAGE_BYTES_MAX));
    assert!(SUBSCRIBER_PAGES_BYTES.is_multiple_of(PAGE_BYTES_MAX));
};

/// Offset of the first subscriber slots. They share a page with the header and the first publisher slots, so that a small topic takes one page.
const FIRST_SUBSCRIBERS_OFFSET: u64 = 1024;
const FIRST_SUBSCRIBERS: u16 = 16;
/// Offset of the publisher slots.
const PUBLISHERS_OFFSET: u64 =
    FIRST_SUBSCRIBERS_OFFSET + FIRST_SUBSCRIBERS as u64 * size_of::<SubscriberRecord>() as u64;
/// Offset of the other subscriber slots.
const SUBSCRIBERS_OFFSET: u64 =
    (PUBLISHERS_OFFSET + (PUBLISHERS_MAX * size_of::<PublisherRecord>()) as u64).next_multiple_of(PAGE_BYTES);
/// Offset of the queue slots.
pub(crate) const QUEUE_OFFSET: u64 = SUBSCRIBERS_OFFSET + (SUBSCRIBERS_MAX * size_of::<SubscriberRecord>()) as u64;
/// Offset of the ready words.
pub(crate) const READY_OFFSET: u64 = (QUEUE_OFFSET + QUEUE_SLOTS as u64 * 8).next_multiple_of(PAGE_BYTES_MAX);
/// Bytes of the ready words.
pub(crate) const READY_BYTES: u64 = MESSAGES_MAX as u64 * 4;
const MESSAGES_OFFSET: u64 = (READY_OFFSET + READY_BYTES).next_multiple_of(PAGE_BYTES);
const ARRIVAL_RECORDS_OFFSET: u64 =
    (MESSAGES_OFFSET + MESSAGES_MAX as u64 * size_of::<MessageEntry>() as u64).next_multiple_of(PAGE_BYTES);
/// Length of the segment, nearly all of it holes.
pub const SEGMENT_BYTES: u64 = ARRIVAL_RECORDS_OFFSET + ARRIVAL_RECORDS_MAX as u64 * size_of::<ArrivalRecord>() as u64;
/// Offset of the hold words in a subscriber's own place.
pub(crate) const HOLDS_OFFSET: u64 = PAGE_BYTES_MAX;
/// Bytes of a subscriber's own place, nearly all of them holes.
pub const SUBSCRIBER_PAGES_BYTES: u64 = HOLDS_OFFSET + MESSAGES_MAX as u64 * 4;

/// Offset of a publisher slot; `None` past the last.
pub(crate) fn publisher_offset(slot: u16) -> Option<u64> {
    let offset = PUBLISHERS_OFFSET + u64::from(slot) * size_of::<PublisherRecord>() as u64;
    (usize::from(slot) < PUBLISHERS_MAX).then_some(offset)
}

/// Offset of a subscriber slot; `None` past the last.
pub(crate) fn subscriber_offset(slot: u16) -> Option<u64> {
    let (start, place) = match slot.checked_sub(FIRST_SUBSCRIBERS) {
        None => (FIRST_SUBSCRIBERS_OFFSET, slot),
        Some(place) => (SUBSCRIBERS_OFFSET, place),
    };
    let offset = start + u64::from(place) * size_of::<SubscriberRecord>() as u64;
    (usize::from(slot) < SUBSCRIBERS_MAX).then_some(offset)
}

/// Offset of a record of arrivals; `None` past the last.
pub(crate) fn arrival_record_offset(place: u32) -> Option<u64> {
    (place < ARRIVAL_RECORDS_MAX)
        .then_some(ARRIVAL_RECORDS_OFFSET + u64::from(place) * size_of::<ArrivalRecord>() as u64)
}

/// Offset and bytes of the kernel's whole pages within a run of message entries.
pub(crate) fn pages_of_messages(first: u32, count: u32) -> (u64, u64) {
    let at = |index: u32| MESSAGES_OFFSET + u64::from(index) * size_of::<MessageEntry>() as u64;
    let page = rgaps_os::page_bytes();
    let (start, end) = (at(first).next_multiple_of(page), at(first + count) / page * page);
    (start, end.saturating_sub(start))
}

/// Offset of a message entry.
pub(crate) fn message_offset(index: MessageIndex) -> u64 {
    MESSAGES_OFFSET + u64::from(index.0) * size_of::<MessageEntry>() as u64
}
