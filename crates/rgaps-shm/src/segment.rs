//! A mapped segment: made by the manager, attached by everybody else after every number in its header has been checked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rgaps_os::{Access, MapError, Mapping, memfd};

use crate::history::MessageRef;
use crate::layout::{
    Geometry, HEADER_BYTES, Header, LAYOUT_VERSION, MAGIC, MessageEntry, PUBLISHERS_MAX, PublisherSlot, SlotState,
    SubscriberSlot,
};
use crate::message::{MessageWords, SUBSCRIBERS_MAX, Tenancy, ready_word};
use crate::queue::{MessageIndex, Queue};
use crate::raw::view;

/// A topic's segment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The descriptor is not what was announced, or could not be mapped.
    #[error("the topic's segment cannot be mapped: {0}")]
    Map(#[from] MapError),
    /// No segment.
    #[error("the topic's segment starts with {found:#018x} where {MAGIC:#018x} marks one of RGAPS")]
    Magic {
        /// The first eight bytes.
        found: u64,
    },
    /// Another version of RGAPS made it.
    #[error(
        "the topic's segment has layout version {found}, this program speaks {LAYOUT_VERSION}; run one version of RGAPS on a host"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// The numbers in its header contradict each other.
    #[error(
        "the topic's segment claims {messages} messages and {queue_slots} queue slots in {claimed} B, and has {mapped} B; \
         restart rgapsd"
    )]
    Geometry {
        /// Message entries claimed.
        messages: u32,
        /// Queue slots claimed.
        queue_slots: u32,
        /// Length claimed.
        claimed: u64,
        /// Length found.
        mapped: u64,
    },
    /// It belongs to another topic.
    #[error("the segment belongs to another topic than the one asked for")]
    Topic,
}

/// A topic's segment in this process.
#[derive(Debug)]
pub struct Segment {
    mapping: Arc<Mapping>,
    geometry: Geometry,
    topic: [u8; 16],
    fd: OwnedFd,
}

impl Segment {
    /// Makes a segment. Only the manager does.
    pub fn create(topic: [u8; 16], geometry: Geometry) -> Result<Self, AttachError> {
        let bytes = geometry.segment_bytes();
        let fd = memfd::create("rgaps-topic", bytes).map_err(|source| MapError::Os { bytes, source })?;
        let mapping = Mapping::map(&fd, bytes, Access::ReadWrite)?;
        let segment = Self { mapping: Arc::new(mapping), geometry, topic, fd };
        let header = segment.header();
        header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        header.messages.store(geometry.messages, Ordering::Relaxed);
        header.queue_slots.store(geometry.queue_slots, Ordering::Relaxed);
        header.segment_bytes.store(bytes, Ordering::Relaxed);
        let [low, high] = halves(topic);
        header.topic[0].store(low, Ordering::Relaxed);
        header.topic[1].store(high, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// Maps a segment that came through the manager's socket.
    pub fn attach(fd: OwnedFd, topic: [u8; 16]) -> Result<Self, AttachError> {
        Self::open(fd, topic, Access::ReadWrite)
    }

    /// Maps a segment for looking only: a write faults.
    pub fn observe(fd: OwnedFd, topic: [u8; 16]) -> Result<Self, AttachError> {
        Self::open(fd, topic, Access::ReadOnly)
    }

    fn open(fd: OwnedFd, topic: [u8; 16], access: Access) -> Result<Self, AttachError> {
        let mapped = file_bytes(&fd)?;
        let mapping = Mapping::map(&fd, mapped, access)?;
        if mapped < HEADER_BYTES {
            return Err(AttachError::Geometry { messages: 0, queue_slots: 0, claimed: 0, mapped });
        }
        let header = match view::header(&mapping) {
            Ok(header) => header,
            Err(_) => unreachable!("the mapping holds a header, as checked above"),
        };
        let geometry = check_header(header, topic, mapped)?;
        Ok(Self { mapping: Arc::new(mapping), geometry, topic, fd })
    }

    /// The topic's identity.
    pub fn topic(&self) -> [u8; 16] {
        self.topic
    }

    /// The shape, as checked at attach.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The memory, for a device whose streams write readiness and holder words.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Bytes of memory that the segment occupies.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        memfd::resident_bytes(&self.fd)
    }

    /// The first page.
    pub fn header(&self) -> &Header {
        inside(view::header(&self.mapping))
    }

    /// A publisher slot; `None` past the last.
    pub fn publisher(&self, slot: u8) -> Option<&PublisherSlot> {
        let offset = Geometry::publishers_offset() + u64::from(slot) * size_of::<PublisherSlot>() as u64;
        (usize::from(slot) < PUBLISHERS_MAX).then(|| inside(view::publisher(&self.mapping, offset)))
    }

    /// A subscriber slot; `None` past the last.
    pub fn subscriber(&self, slot: u8) -> Option<&SubscriberSlot> {
        let offset = Geometry::subscribers_offset() + u64::from(slot) * size_of::<SubscriberSlot>() as u64;
        (usize::from(slot) < SUBSCRIBERS_MAX).then(|| inside(view::subscriber(&self.mapping, offset)))
    }

    /// A message entry; `None` past the last, whatever a slot of the queue says.
    pub fn message(&self, index: MessageIndex) -> Option<&MessageEntry> {
        let offset = self.geometry.message_offset(index);
        (u32::from(index.0) < self.geometry.messages).then(|| inside(view::message(&self.mapping, offset)))
    }

    /// Where a message says that its bytes are there: the offset of a 32-bit word, and the value from which on they are, or never will be.
    pub fn ready_word(&self, message: MessageRef) -> (u64, u32) {
        (self.geometry.ready_offset(message.index), ready_word(message.generation))
    }

    /// The queue.
    pub fn queue(&self) -> Queue<'_> {
        let slots = inside(self.mapping.atomics_u64(Geometry::queue_offset(), self.geometry.queue_slots as usize));
        Queue::new(&self.header().tail.0, slots)
    }

    /// Every message entry there is.
    pub fn indices(&self) -> impl Iterator<Item = MessageIndex> + use<> {
        (0..self.geometry.messages as u16).map(MessageIndex)
    }

    /// Who occupies a subscriber slot now.
    pub fn tenant(&self, slot: usize) -> Option<Tenancy> {
        let state = self.subscriber(u8::try_from(slot).ok()?)?.state.load(Ordering::Acquire);
        match SlotState::decode(state) {
            (generation, Some(SlotState::Active)) => Some(Tenancy::new(generation)),
            _ => None,
        }
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl MessageEntry {
    /// The words of message.rs.
    pub fn words(&self) -> MessageWords<'_> {
        MessageWords::new(&self.life, &self.ready, &self.history, &self.holders.0)
    }
}

/// Slots whose bit is set.
pub(crate) fn bits(mask: &AtomicU64) -> impl Iterator<Item = u8> + use<> {
    let mut rest = mask.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        let slot = rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
        (slot < 64).then_some(slot as u8)
    })
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

fn check_header(header: &Header, topic: [u8; 16], mapped: u64) -> Result<Geometry, AttachError> {
    let found = header.magic.load(Ordering::Acquire);
    if found != MAGIC {
        return Err(AttachError::Magic { found });
    }
    let found = header.version.load(Ordering::Relaxed);
    if found != LAYOUT_VERSION {
        return Err(AttachError::Version { found });
    }
    let messages = header.messages.load(Ordering::Relaxed);
    let queue_slots = header.queue_slots.load(Ordering::Relaxed);
    let claimed = header.segment_bytes.load(Ordering::Relaxed);
    let geometry = Geometry { messages, queue_slots };
    if !geometry.is_valid() || geometry.segment_bytes() != mapped || claimed != mapped {
        return Err(AttachError::Geometry { messages, queue_slots, claimed, mapped });
    }
    if [header.topic[0].load(Ordering::Relaxed), header.topic[1].load(Ordering::Relaxed)] != halves(topic) {
        return Err(AttachError::Topic);
    }
    Ok(geometry)
}

fn file_bytes(fd: &OwnedFd) -> Result<u64, AttachError> {
    memfd::bytes(fd).map_err(|source| AttachError::Map(MapError::Os { bytes: 0, source }))
}

fn inside<T>(found: Result<T, rgaps_os::OutOfRange>) -> T {
    match found {
        Ok(found) => found,
        Err(error) => unreachable!("geometry was checked at attach, yet {error}"),
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
        let made = Segment::create([7; 16], Geometry::new(16)).unwrap();
        let attached = Segment::attach(fd(&made), [7; 16]).unwrap();
        let named = crate::queue::Named { message: MessageIndex(3), generation: 1 };
        let position = made.queue().publish(named).unwrap();
        assert_eq!(attached.queue().read(position), crate::queue::Slot::Message(named));
        assert_ne!(made.mapping.address(), attached.mapping.address());
    }

    #[test]
    fn every_lie_in_the_header_is_refused_by_name() {
        let made = Segment::create([7; 16], Geometry::new(16)).unwrap();
        assert!(matches!(Segment::attach(fd(&made), [8; 16]), Err(AttachError::Topic)));
        made.header().messages.store(4096, Ordering::Relaxed);
        assert!(matches!(Segment::attach(fd(&made), [7; 16]), Err(AttachError::Geometry { messages: 4096, .. })));
        made.header().messages.store(16, Ordering::Relaxed);
        made.header().segment_bytes.store(u64::MAX, Ordering::Relaxed);
        assert!(matches!(Segment::attach(fd(&made), [7; 16]), Err(AttachError::Geometry { .. })));
        made.header().version.store(99, Ordering::Relaxed);
        assert!(matches!(Segment::attach(fd(&made), [7; 16]), Err(AttachError::Version { found: 99 })));
        made.header().magic.store(1, Ordering::Relaxed);
        assert!(matches!(Segment::attach(fd(&made), [7; 16]), Err(AttachError::Magic { found: 1 })));
        let short = memfd::create("short", 100).unwrap();
        assert!(Segment::attach(short, [7; 16]).is_err());
    }

    #[test]
    fn indices_past_the_table_are_refused() {
        let made = Segment::create([7; 16], Geometry::new(16)).unwrap();
        assert!(made.message(MessageIndex(15)).is_some());
        assert!(made.message(MessageIndex(16)).is_none());
        assert!(made.publisher(64).is_none() && made.subscriber(64).is_none());
    }

    #[test]
    fn an_identity_survives_its_halves() {
        let id = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(whole(halves(id)), id);
    }
}
