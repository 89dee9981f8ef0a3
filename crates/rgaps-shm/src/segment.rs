//! A mapped segment. The manager creates it; every other process checks all numbers in its header before it attaches.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rgaps_os::{Access, ForkGuard, MapError, Mapping, SealError, memfd};

use crate::layout::{
    ArrivalRecord, Header, LAYOUT_VERSION, MAGIC, MessageEntry, PUBLISHERS_MAX, PublisherRecord, QUEUE_OFFSET,
    QUEUE_SLOTS, READY_BYTES, READY_OFFSET, SEGMENT_BYTES, SlotState, SubscriberRecord, arrival_record_offset,
    message_offset, pages_of_messages, publisher_offset, subscriber_offset,
};
use crate::notify::wake_all;
use crate::raw::view;
use crate::slot::{PublisherSlot, SubscriberSlot};
use crate::words::history::MessageRef;
use crate::words::message::{Life, MessageWords, ready_word};
use crate::words::queue::{MESSAGES_MAX, MessageIndex, Named, Position, Queue};

/// Why a topic's segment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The file descriptor is not what was announced, or could not be mapped.
    #[error("the topic's segment cannot be mapped: {0}")]
    Map(#[from] MapError),
    /// The memory is neither a segment nor a subscriber's words.
    #[error("the topic's segment, or a file of it, starts with {found:#018x} where {wanted:#018x} marks one of RGAPS")]
    Magic {
        /// The first eight bytes.
        found: u64,
        /// The first eight bytes of a segment, or of a subscriber's words.
        wanted: u64,
    },
    /// Another version of RGAPS made it.
    #[error(
        "the topic's segment has layout version {found}, this program speaks {LAYOUT_VERSION}; run one version of RGAPS on a host"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// Its length is not that of this layout.
    #[error(
        "the topic's segment claims {claimed} B and has {mapped} B, where its layout has {SEGMENT_BYTES} B; restart rgapsd"
    )]
    Length {
        /// Length claimed.
        claimed: u64,
        /// Length found.
        mapped: u64,
    },
    /// It belongs to another topic, or a subscriber's words to another subscriber.
    #[error(
        "the segment, or a subscriber's words, belong to another topic or slot than the requested one; create the publisher or subscriber again"
    )]
    Topic,
    /// It is not the memory that rgapsd made for the topic.
    #[error("the segment is not the one that rgapsd made for the topic; create the publisher or subscriber again")]
    Another,
}

/// A topic's segment, mapped in this process. It is not mapped in a forked child, which must not read it.
#[derive(Debug)]
pub struct Segment {
    mapping: Arc<Mapping>,
    topic: [u8; 16],
    fd: OwnedFd,
    identity: (u64, u64),
    fork: ForkGuard,
}

impl Segment {
    /// Creates a segment. Only the manager calls this.
    pub fn create(topic: [u8; 16]) -> Result<Self, AttachError> {
        let os = |source| MapError::Os { bytes: SEGMENT_BYTES, source };
        let fd = memfd::create("rgaps-topic", SEGMENT_BYTES).map_err(os)?;
        let mapping = Mapping::map(&fd, SEGMENT_BYTES, Access::ReadWrite)?;
        let segment = Self::of(mapping, topic, fd)?;
        let header = segment.header();
        header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        header.segment_bytes.store(SEGMENT_BYTES, Ordering::Relaxed);
        let [low, high] = halves(topic);
        header.topic[0].store(low, Ordering::Relaxed);
        header.topic[1].store(high, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// Maps a segment that came through the manager's socket, for a publisher, or for the manager.
    pub fn attach(fd: OwnedFd, topic: [u8; 16]) -> Result<Self, AttachError> {
        Self::open(fd, topic, Access::ReadWrite)
    }

    /// Like `attach`, for a manager that gets the segment from a client of its predecessor. The file descriptor may be read-only. `identity` is that
    /// of the predecessor's segment; any other file is refused.
    pub fn take_over(fd: OwnedFd, topic: [u8; 16], identity: (u64, u64)) -> Result<Self, AttachError> {
        // The client may have sent any file, and fstat(2) of a file that is not memory may block: check that it is memory first.
        memfd::check_own(&fd, SEGMENT_BYTES).map_err(MapError::from)?;
        if identity_of(&fd)? != identity {
            return Err(AttachError::Another);
        }
        let fd = memfd::writable(fd, SEGMENT_BYTES).map_err(MapError::from)?;
        Self::open(fd, topic, Access::ReadWrite)
    }

    /// Maps a segment for reading, for a subscriber or an observer: a write faults.
    pub fn observe(fd: OwnedFd, topic: [u8; 16]) -> Result<Self, AttachError> {
        Self::open(fd, topic, Access::ReadOnly)
    }

    fn open(fd: OwnedFd, topic: [u8; 16], access: Access) -> Result<Self, AttachError> {
        let mapped = memfd::bytes(&fd).map_err(|source| MapError::Os { bytes: 0, source })?;
        let mapping = Mapping::map(&fd, mapped, access)?;
        // Magic and version are at the start of the header in every layout version.
        let header = view::header(&mapping).map_err(|_| AttachError::Length { claimed: 0, mapped })?;
        check_header(header, topic, mapped)?;
        Self::of(mapping, topic, fd)
    }

    fn of(mapping: Mapping, topic: [u8; 16], fd: OwnedFd) -> Result<Self, AttachError> {
        let fork = ForkGuard::new().map_err(|source| MapError::Os { bytes: 4096, source })?;
        let identity = identity_of(&fd)?;
        Ok(Self { mapping: Arc::new(mapping), topic, fd, identity, fork })
    }

    /// Whether it is mapped in this process. False in a child that was forked from the process that mapped it.
    pub fn is_here(&self) -> bool {
        self.fork.is_owner()
    }

    /// A file descriptor for subscribers and observers, which can be mapped for reading only.
    pub fn read_only(&self) -> Result<OwnedFd, SealError> {
        memfd::read_only(&self.fd, SEGMENT_BYTES)
    }

    /// The topic's identity.
    pub fn topic(&self) -> [u8; 16] {
        self.topic
    }

    /// Device and inode of its memory: the same in every process that maps it, while any process has it open.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Bytes of memory that the segment occupies.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        memfd::resident_bytes(&self.fd)
    }

    /// The header, at the start of the segment.
    pub fn header(&self) -> &Header {
        inside(view::header(&self.mapping))
    }

    /// A publisher slot; `None` past the last.
    pub fn publisher(&self, index: u16) -> Option<&PublisherRecord> {
        Some(inside(view::publisher(&self.mapping, publisher_offset(index)?)))
    }

    /// Publisher slots that were ever occupied, each with its state. The manager gives out the lowest free slot, so these come first, and the pages
    /// of the others are never touched.
    pub fn publishers(&self) -> impl Iterator<Item = (PublisherSlot, Option<SlotState>)> + '_ {
        (0..PUBLISHERS_MAX as u16).map_while(|index| {
            let (generation, state) = SlotState::decode(self.publisher(index)?.state.load(Ordering::Acquire));
            (generation != 0).then_some((PublisherSlot { index, generation }, state))
        })
    }

    /// A subscriber slot; `None` past the last.
    pub fn subscriber(&self, index: u16) -> Option<&SubscriberRecord> {
        Some(inside(view::subscriber(&self.mapping, subscriber_offset(index)?)))
    }

    /// A record of arrivals; `None` past the last.
    pub fn arrival_record(&self, place: u32) -> Option<&ArrivalRecord> {
        Some(inside(view::arrival_record(&self.mapping, arrival_record_offset(place)?)))
    }

    /// A message entry.
    pub fn message(&self, index: MessageIndex) -> &MessageEntry {
        inside(view::message(&self.mapping, message_offset(index)))
    }

    /// A message's words.
    pub fn words(&self, index: MessageIndex) -> MessageWords<'_> {
        let ready = inside(self.mapping.atomic_u32(READY_OFFSET + u64::from(index.0) * 4));
        MessageWords::new(&self.message(index).life, ready)
    }

    /// The life that the queue names at a position, if the entry is still in it. A position before the one at which the entry's owner joined belongs
    /// to an earlier owner, even if the low bits of the life match.
    pub(crate) fn life_at(&self, position: Position, named: Named) -> Option<Life> {
        let joined = |owner| Some(self.publisher(owner)?.joined.load(Ordering::Relaxed));
        self.words(named.message).life_at(position.0, named.generation, joined)
    }

    /// A message's ready word: its offset in `ready_words`, and the value READY. At this value or a later one the bytes are there, or never will be.
    pub fn ready_word(&self, message: MessageRef) -> (u64, u32) {
        (u64::from(message.index.0) * 4, ready_word(message.generation))
    }

    /// A second mapping, of the ready words alone, for streams that write them or wait for them: memory that streams access is pinned, and the whole
    /// segment is large. A subscriber's mapping is read-only.
    pub fn ready_words(&self) -> Result<Arc<Mapping>, MapError> {
        let access = self.mapping.access();
        Ok(Arc::new(Mapping::map_part(&self.fd, SEGMENT_BYTES, READY_OFFSET, READY_BYTES, access)?))
    }

    /// Returns the whole pages of a run of message entries to the system. Returned entries read as free, in life 0.
    pub(crate) fn clear_entries(&self, first: u32, count: u32) {
        let (offset, bytes) = pages_of_messages(first, count);
        if bytes > 0 {
            // If this fails, the entries stay as they are, which is free.
            let _ = memfd::punch_hole(&self.fd, offset, bytes);
        }
    }

    /// The queue.
    pub fn queue(&self) -> Queue<'_> {
        let slots = inside(self.mapping.atomics_u64(QUEUE_OFFSET, QUEUE_SLOTS));
        Queue::new(&self.header().tail.0, slots)
    }

    /// The entries that a publisher slot's occupant has used: its first, and how many.
    pub fn used_entries(&self, index: u16) -> impl Iterator<Item = MessageIndex> + use<> {
        let (first, count) = self.publisher(index).map_or((0, 0), |words| {
            let (first, count) = entries_of(words);
            (first, count.min(words.used_entries.load(Ordering::Acquire) as u32))
        });
        (first..first + count).map(|index| MessageIndex(index as u16))
    }

    /// Wakes all sleepers, after a death, so that they look again. The segment must be mapped for writing.
    pub fn wake_everybody(&self) {
        wake_all(&self.header().publications.0);
        wake_all(&self.header().space.0.count);
    }

    /// The present occupant of a subscriber slot.
    pub fn occupant(&self, index: u16) -> Option<SubscriberSlot> {
        match SlotState::decode(self.subscriber(index)?.state.load(Ordering::Acquire)) {
            (generation, Some(SlotState::Active)) => Some(SubscriberSlot { index, generation }),
            _ => None,
        }
    }
}

fn identity_of(fd: &OwnedFd) -> Result<(u64, u64), MapError> {
    memfd::identity(fd).map_err(|source| MapError::Os { bytes: SEGMENT_BYTES, source })
}

/// A publisher's run of the message table: its first entry, and how many there are. Never past the table's end.
pub(crate) fn entries_of(words: &PublisherRecord) -> (u32, u32) {
    let found = words.entries.load(Ordering::Acquire);
    let first = (found >> 32).min(u64::from(MESSAGES_MAX)) as u32;
    (first, (found as u32).min(MESSAGES_MAX - first))
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Slots whose bit is set.
pub(crate) fn bits(mask: &[AtomicU64]) -> impl Iterator<Item = u16> {
    (0_u16..).zip(mask).flat_map(|(place, word)| {
        let mut rest = word.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let bit = rest.trailing_zeros() as u16;
            rest &= rest.wrapping_sub(1);
            (bit < 64).then_some(place * 64 + bit)
        })
    })
}

/// Sets a slot's bit.
pub(crate) fn set_bit(mask: &[AtomicU64], slot: u16) {
    if let Some(word) = mask.get(usize::from(slot / 64)) {
        word.fetch_or(1 << (slot % 64), Ordering::SeqCst);
    }
}

/// Clears a slot's bit.
pub(crate) fn clear_bit(mask: &[AtomicU64], slot: u16) {
    if let Some(word) = mask.get(usize::from(slot / 64)) {
        word.fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
    }
}

/// An identity as two words.
pub(crate) fn halves(id: [u8; 16]) -> [u64; 2] {
    let id = u128::from_le_bytes(id);
    [id as u64, (id >> 64) as u64]
}

/// The reverse of `halves`.
pub(crate) fn whole(halves: [u64; 2]) -> [u8; 16] {
    (u128::from(halves[0]) | u128::from(halves[1]) << 64).to_le_bytes()
}

fn check_header(header: &Header, topic: [u8; 16], mapped: u64) -> Result<(), AttachError> {
    let found = header.magic.load(Ordering::Acquire);
    if found != MAGIC {
        return Err(AttachError::Magic { found, wanted: MAGIC });
    }
    let found = header.version.load(Ordering::Relaxed);
    if found != LAYOUT_VERSION {
        return Err(AttachError::Version { found });
    }
    let claimed = header.segment_bytes.load(Ordering::Relaxed);
    if claimed != SEGMENT_BYTES || mapped != SEGMENT_BYTES {
        return Err(AttachError::Length { claimed, mapped });
    }
    if [header.topic[0].load(Ordering::Relaxed), header.topic[1].load(Ordering::Relaxed)] != halves(topic) {
        return Err(AttachError::Topic);
    }
    Ok(())
}

pub(crate) fn inside<T>(found: Result<T, rgaps_os::OutOfRange>) -> T {
    match found {
        Ok(found) => found,
        Err(error) => unreachable!("the length was checked at attach, yet {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd(segment: &Segment) -> OwnedFd {
        segment.as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn two_mappings_of_a_segment_lie_elsewhere_and_show_the_same_queue() {
        let made = Segment::create([7; 16]).unwrap();
        let attached = Segment::attach(fd(&made), [7; 16]).unwrap();
        let named = crate::words::queue::Named { message: MessageIndex(3), generation: 1 };
        let position = made.queue().publish(named).unwrap();
        assert_eq!(attached.queue().read(position), crate::words::queue::Slot::Message(named));
        assert_ne!(made.mapping.address(), attached.mapping.address());
    }

    #[test]
    fn every_lie_in_the_header_is_refused_by_name() {
        let made = Segment::create([7; 16]).unwrap();
        assert!(matches!(Segment::attach(fd(&made), [8; 16]), Err(AttachError::Topic)));
        made.header().segment_bytes.store(u64::MAX, Ordering::Relaxed);
        assert!(matches!(Segment::attach(fd(&made), [7; 16]), Err(AttachError::Length { claimed: u64::MAX, .. })));
        made.header().version.store(99, Ordering::Relaxed);
        assert!(matches!(Segment::attach(fd(&made), [7; 16]), Err(AttachError::Version { found: 99 })));
        made.header().magic.store(1, Ordering::Relaxed);
        assert!(matches!(Segment::attach(fd(&made), [7; 16]), Err(AttachError::Magic { found: 1, .. })));
        let short = memfd::create("short", 100).unwrap();
        assert!(matches!(Segment::attach(short, [7; 16]), Err(AttachError::Length { mapped: 100, .. })));
    }

    #[test]
    fn a_segment_is_taken_over_from_whoever_may_read_it_and_no_other_one_is() {
        let (made, another) = (Segment::create([7; 16]).unwrap(), Segment::create([7; 16]).unwrap());
        let take_over = |segment: &Segment| Segment::take_over(segment.read_only().unwrap(), [7; 16], made.identity());
        let taken = take_over(&made).unwrap();
        taken.header().version.store(99, Ordering::Relaxed);
        assert_eq!(made.header().version.load(Ordering::Relaxed), 99, "it is written by the next manager");
        assert!(matches!(take_over(&another), Err(AttachError::Another)));
        let short = memfd::create("short", 100).unwrap();
        assert!(matches!(Segment::take_over(short, [7; 16], made.identity()), Err(AttachError::Map(_))));
    }

    #[test]
    fn slots_past_the_last_are_refused_and_the_last_ones_are_there() {
        let made = Segment::create([7; 16]).unwrap();
        assert!(made.publisher(255).is_some() && made.publisher(256).is_none());
        assert!(made.subscriber(1023).is_some() && made.subscriber(1024).is_none());
        made.message(MessageIndex(u16::MAX)).position.store(1, Ordering::Relaxed);
    }

    #[test]
    fn a_segment_with_a_publisher_and_a_subscriber_that_are_idle_takes_three_pages() {
        let made = Segment::create([7; 16]).unwrap();
        assert!(made.resident_bytes().unwrap() <= rgaps_os::page_bytes());
        let slot_table = crate::SlotTable::new(Arc::new(made));
        slot_table.admit_publisher(&crate::PublisherSpec::default()).unwrap();
        let slot =
            slot_table.admit_subscriber(&crate::SubscriberSpec::default(), &crate::SubscriberFile::create().unwrap());
        let slot = slot.unwrap();
        let own = slot_table.pages(slot).unwrap().resident_bytes();
        assert!(slot_table.segment().resident_bytes().unwrap() + own <= 3 * rgaps_os::page_bytes());
    }

    #[test]
    fn who_looks_on_can_neither_write_nor_seal() {
        let made = Segment::create([7; 16]).unwrap();
        let looking = made.read_only().unwrap();
        assert!(Mapping::map(&looking, SEGMENT_BYTES, Access::ReadWrite).is_err());
        assert!(memfd::seal_future_write(&looking).is_err());
        assert!(memfd::seal_future_write(&made).is_err(), "nor can anybody else");
        Segment::observe(looking, [7; 16]).unwrap();
    }

    #[test]
    fn bits_are_found_set_and_cleared_in_every_word() {
        let mask: [AtomicU64; 16] = Default::default();
        for slot in [0, 63, 64, 1023] {
            set_bit(&mask, slot);
        }
        set_bit(&mask, 1024);
        assert_eq!(bits(&mask).collect::<Vec<_>>(), [0, 63, 64, 1023]);
        clear_bit(&mask, 64);
        assert_eq!(bits(&mask).count(), 3);
    }

    #[test]
    fn an_identity_survives_its_halves() {
        let id = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(whole(halves(id)), id);
    }
}
