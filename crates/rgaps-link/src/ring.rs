//! The state of the ring's two ends: where the next record goes, and whether there is room for it. No memory, no I/O.
//!
//! A record is contiguous. If it does not fit between the tail and the physical end of the ring, it starts at the next multiple of
//! the ring's size, and the bytes in between are skipped. Both ends compute the skip from the payload's length alone (`place`).
//!
//! The thesis' "exceed" check, with X = write cursor after the record and Y = read cursor, has two cases. *Linear*: the data in the
//! ring do not wrap; free space is from the tail to the end of memory and from its start to Y. *Wrapped*: the data wrap; free space is
//! between tail and Y. On offsets these are two comparisons, and a full ring looks like an empty one. On positions they are one
//! comparison: X − Y > ring. The tests compare the two forms.
//!
//! Invariants  production, consumption, lag (`invariants`), asserted after every step in debug builds.
//! Source      Jiang, master's thesis (RGAPS), 2026, section 3.4: figure 3.4 for the check, "The conservative write strategy" for a sender that
//!             decides by its own copy of the head (full title in lib.rs). Without flow control: Hoang et al., RocketBufs, section 3.3.

use crate::credit::{CreditError, CreditPair};
use crate::geometry::{FlowControl, RingGeometry, RingOptions, Watermark};
use crate::invariants::{self, Violation};
use crate::position::{Position, RingOffset, RingSpan};
use crate::record::{GrantNumber, HEADER_BYTES, MessageId, RecordError, RecordHeader, RecordSequence};
use crate::unacked::{UNACKED_MAX, Unacked};

/// A record's place in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Start of the header.
    pub start: Position,
    /// End of the padding: where the next record may start.
    pub end: Position,
    /// Unused bytes before `start`, at the physical end of the ring.
    pub skip: u64,
}

impl Placement {
    /// The payload in the ring's memory.
    pub fn payload(&self, geometry: &RingGeometry, payload_bytes: u32) -> RingSpan {
        RingSpan { offset: self.header(geometry).forward(HEADER_BYTES as u64), bytes: u64::from(payload_bytes) }
    }

    /// The header's first byte in the ring's memory.
    pub fn header(&self, geometry: &RingGeometry) -> RingOffset {
        geometry.offset(self.start)
    }
}

/// Computes where a record goes when the tail is at `tail`. Both ends get the same result.
///
/// ```
/// use rgaps_link::position::Position;
/// use rgaps_link::ring::place;
/// use rgaps_link::{RingGeometry, RingOptions};
///
/// let options = RingOptions { ring_bytes: 1024, chunk_bytes: 192, ..RingOptions::default() };
/// let placed = place(&RingGeometry::new(options)?, Position::new(896), 192);
/// assert_eq!(placed.skip, 128); // 256 B do not fit before the physical end
/// assert_eq!((placed.start, placed.end), (Position::new(1024), Position::new(1280)));
/// # Ok::<(), rgaps_link::geometry::GeometryError>(())
/// ```
pub fn place(geometry: &RingGeometry, tail: Position, payload_bytes: u32) -> Placement {
    place_landed(geometry, tail, payload_bytes, payload_bytes)
}

/// As `place`, for a record of whose payload only `bytes_in_ring` are in the ring: only they have to be contiguous. It takes as much credit as if the
/// data were there, too, so that the ring bounds what is under way, and the head says how far the receiver is.
pub fn place_landed(geometry: &RingGeometry, tail: Position, bytes_in_ring: u32, payload_bytes: u32) -> Placement {
    let rest = geometry.linear_rest(tail);
    let skip = if geometry.record_bytes(bytes_in_ring) > rest { rest } else { 0 };
    let start = tail.forward(skip);
    let end = start.forward(geometry.record_bytes(payload_bytes.max(bytes_in_ring)));
    Placement { start, end, skip }
}

/// There is no room until more credit arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceed {
    /// The record would overwrite bytes that the receiver has not released.
    #[error(
        "record would end at {end}, {missing} B beyond the bytes that the receiver has released (delayed head {delayed_head})"
    )]
    Bytes {
        /// Where the record would end.
        end: Position,
        /// The receiver has released everything before this position.
        delayed_head: Position,
        /// Bytes of credit missing.
        missing: u64,
    },
    /// Too many messages are unacknowledged.
    #[error("{UNACKED_MAX} messages are not acknowledged yet")]
    Messages,
}

/// The sender's end: tail and delayed head.
///
/// ```
/// use rgaps_link::credit::CreditPair;
/// use rgaps_link::position::Position;
/// use rgaps_link::record::MessageId;
/// use rgaps_link::ring::SenderRing;
/// use rgaps_link::{RingGeometry, RingOptions};
///
/// let options = RingOptions { ring_bytes: 1024, chunk_bytes: 192, ..RingOptions::default() };
/// let mut ring = SenderRing::new(RingGeometry::new(options)?);
/// for message in 1..=4 {
///     ring.place(192, Some(MessageId(message)))?; // a record of 256 B
/// }
/// assert!(ring.check(192).is_err()); // full: the next record would overwrite unread bytes
/// ring.credit(CreditPair::new(Position::new(256)))?; // the receiver has consumed the first record
/// assert_eq!(ring.next_acknowledged(), Some(MessageId(1)));
/// assert!(ring.check(192).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SenderRing {
    geometry: RingGeometry,
    tail: Position,
    delayed_head: Position,
    next: RecordSequence,
    unacked: Unacked,
}

impl SenderRing {
    /// An empty ring.
    pub fn new(geometry: RingGeometry) -> Self {
        let (tail, delayed_head) = (Position::START, Position::START);
        Self { geometry, tail, delayed_head, next: RecordSequence(0), unacked: Unacked::default() }
    }

    /// The shape.
    pub fn geometry(&self) -> &RingGeometry {
        &self.geometry
    }

    /// The end of the last record.
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// The receiver's head in the last accepted credit.
    pub fn delayed_head(&self) -> Position {
        self.delayed_head
    }

    /// The number of the next record.
    pub fn next_record(&self) -> RecordSequence {
        self.next
    }

    /// Where a record would go, or why it must wait. With flow control off it never waits.
    pub fn check(&self, payload_bytes: u32) -> Result<Placement, Exceed> {
        self.check_landed(payload_bytes, payload_bytes)
    }

    fn check_landed(&self, bytes_in_ring: u32, payload_bytes: u32) -> Result<Placement, Exceed> {
        let placement = place_landed(&self.geometry, self.tail, bytes_in_ring, payload_bytes);
        if self.geometry.flow_control() == FlowControl::Off {
            return Ok(placement);
        }
        if !self.unacked.has_room(self.delayed_head) {
            return Err(Exceed::Messages);
        }
        let limit = self.delayed_head.forward(self.geometry.ring_bytes());
        match placement.end.since(limit) {
            0 => Ok(placement),
            missing => Err(Exceed::Bytes { end: placement.end, delayed_head: self.delayed_head, missing }),
        }
    }

    /// Places a record and advances the tail. `completes` is the message that this record ends, if any.
    pub fn place(&mut self, payload_bytes: u32, completes: Option<MessageId>) -> Result<Placement, Exceed> {
        self.place_landed(payload_bytes, payload_bytes, completes)
    }

    /// The same for a record of whose payload only `bytes_in_ring` are in the ring.
    pub fn place_landed(
        &mut self,
        bytes_in_ring: u32,
        payload_bytes: u32,
        completes: Option<MessageId>,
    ) -> Result<Placement, Exceed> {
        let placement = self.check_landed(bytes_in_ring, payload_bytes)?;
        self.tail = placement.end;
        self.next = self.next.next();
        if self.geometry.flow_control() == FlowControl::On {
            if let Some(message) = completes {
                self.unacked.push(message, placement.end);
            }
            debug_assert_eq!(invariants::production(self.tail, self.delayed_head, self.geometry.ring_bytes()), Ok(()));
        }
        Ok(placement)
    }

    /// Checks a credit and advances the delayed head to it.
    pub fn credit(&mut self, pair: CreditPair) -> Result<Position, CreditError> {
        self.delayed_head = pair.accept(self.delayed_head, self.tail)?;
        debug_assert_eq!(invariants::consumption(self.delayed_head, self.tail), Ok(()));
        Ok(self.delayed_head)
    }

    /// The next message that the receiver has consumed whole. Returns each once, in the order of their last records; always `None` with
    /// flow control off.
    pub fn next_acknowledged(&mut self) -> Option<MessageId> {
        self.unacked.pop(self.delayed_head)
    }

    /// Messages that were sent whole and are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.unacked.count(self.delayed_head)
    }
}

/// Why the receiver must not accept a record. Close the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// A record is missing, doubled or out of order.
    #[error("record {} where {} was expected; the stream is out of step", found.0, expected.0)]
    Sequence {
        /// The number expected.
        expected: RecordSequence,
        /// The number received.
        found: RecordSequence,
    },
    /// The immediate of an RDMA WRITE does not match the expected record.
    #[error("immediate {found:#010x} where record {} was expected; the stream is out of step", expected.0)]
    Immediate {
        /// The record expected.
        expected: RecordSequence,
        /// The immediate received.
        found: u32,
    },
    /// Its payload is larger than the agreed chunk.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The peer exceeds its credit.
    #[error("the peer writes without credit: {0}")]
    Production(Violation),
    /// It lands in memory that is not granted for it.
    #[error(transparent)]
    Grant(#[from] GrantError),
}

/// Why a record does not belong into the granted memory that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// There is no such grant, or it has ended, or another message uses it.
    #[error("message {} lands in grant {}, which is not granted to it", message.0, number.0)]
    NotGranted {
        /// The message.
        message: MessageId,
        /// The grant that it names.
        number: GrantNumber,
    },
    /// The message is larger than the granted memory.
    #[error("message {} of {total} B lands in grant {}, which has {granted} B", message.0, number.0)]
    TooLarge {
        /// The message.
        message: MessageId,
        /// The grant that it names.
        number: GrantNumber,
        /// Bytes of the message.
        total: u64,
        /// Bytes of the grant.
        granted: u64,
    },
    /// A transport without grants.
    #[error("message {} lands in granted memory, but nothing is ever granted over this transport", message.0)]
    NoGrants {
        /// The message.
        message: MessageId,
    },
}

/// The receiver's end: tail, head and the next expected record.
#[derive(Clone, Debug)]
pub struct ReceiverRing {
    geometry: RingGeometry,
    tail: Position,
    head: Position,
    expected: RecordSequence,
}

impl ReceiverRing {
    /// An empty ring.
    pub fn new(geometry: RingGeometry) -> Self {
        Self { geometry, tail: Position::START, head: Position::START, expected: RecordSequence(0) }
    }

    /// The shape.
    pub fn geometry(&self) -> &RingGeometry {
        &self.geometry
    }

    /// End of the last admitted record, which may still be under way.
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// The head last passed to `consumed`.
    pub fn head(&self) -> Position {
        self.head
    }

    /// The number of the next record.
    pub fn expected(&self) -> RecordSequence {
        self.expected
    }

    /// Advances the head: the consumer has released everything before it.
    pub fn consumed(&mut self, head: Position) -> Result<(), Violation> {
        invariants::consumption(head, self.tail)?;
        self.head = self.head.max(head);
        Ok(())
    }

    /// Checks that the immediate matches the next record. Only rdma needs it: there the header is in the ring and the immediate in the
    /// completion.
    pub fn check_immediate(&self, immediate: u32) -> Result<(), AdmitError> {
        if immediate == self.expected.immediate() {
            return Ok(());
        }
        Err(AdmitError::Immediate { expected: self.expected, found: immediate })
    }

    /// Admits the next record and returns its place. An error if it is not the expected record, is too large, or would overwrite unread bytes.
    pub fn admit(&mut self, header: &RecordHeader) -> Result<Placement, AdmitError> {
        if header.record != self.expected {
            return Err(AdmitError::Sequence { expected: self.expected, found: header.record });
        }
        header.check_chunk(&self.geometry)?;
        let placement = place_landed(&self.geometry, self.tail, header.bytes_in_ring(), header.payload_bytes);
        if self.geometry.flow_control() == FlowControl::On {
            invariants::production(placement.end, self.head, self.geometry.ring_bytes())
                .map_err(AdmitError::Production)?;
        }
        self.tail = placement.end;
        self.expected = self.expected.next();
        debug_assert_eq!(invariants::consumption(self.head, self.tail), Ok(()));
        Ok(placement)
    }
}

/// Whether a record that starts at `start` is still whole when the sender has written, or is writing, up to `written`.
pub fn is_intact(geometry: &RingGeometry, start: Position, written: Position) -> bool {
    written <= start.forward(geometry.ring_bytes())
}

/// Fuzz entry: the shape of a ring, then headers; after each the consumer may release everything. An admitted record is inside the ring and
/// overwrites no unread bytes.
pub fn fuzz_ring(data: &[u8]) -> bool {
    let Some((&[size, chunk, code, rest], headers)) = data.split_first_chunk::<4>() else { return false };
    let options = RingOptions {
        ring_bytes: u64::from(size) << 8,
        chunk_bytes: u32::from(chunk) << 4,
        watermark: Watermark::from_code(u32::from(code % 4)).unwrap_or_default(),
        flow_control: if rest & 1 == 0 { FlowControl::On } else { FlowControl::Off },
        ..RingOptions::default()
    };
    let Ok(geometry) = RingGeometry::new(options) else { return false };
    let mut ring = ReceiverRing::new(geometry);
    for (turn, bytes) in headers.as_chunks::<HEADER_BYTES>().0.iter().enumerate() {
        let Ok(header) = RecordHeader::decode(bytes) else { continue };
        let (tail, expected) = (ring.tail(), ring.expected());
        let Ok(placement) = ring.admit(&RecordHeader { record: expected, ..header }) else {
            assert_eq!((ring.tail(), ring.expected()), (tail, expected), "a refused header changes nothing");
            continue;
        };
        let payload = placement.payload(&geometry, header.bytes_in_ring());
        assert!(placement.start >= tail && placement.end == ring.tail());
        assert!(payload.offset.0 + payload.bytes <= options.ring_bytes, "{placement:?} leaves the ring");
        if options.flow_control == FlowControl::On {
            assert!(placement.end <= ring.head().forward(options.ring_bytes), "{placement:?} overwrites the unread");
        }
        if rest >> (turn % 7 + 1) & 1 == 1 {
            assert_eq!(ring.consumed(placement.end), Ok(()));
        }
    }
    ring.tail() > Position::START
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(ring_bytes: u64, chunk_bytes: u32) -> RingGeometry {
        let watermark = Watermark::Zero;
        RingGeometry::new(RingOptions { ring_bytes, chunk_bytes, watermark, ..RingOptions::default() }).unwrap()
    }

    fn head_to(ring: &mut SenderRing, position: Position) {
        ring.credit(CreditPair::new(position)).unwrap();
    }

    #[test]
    fn linear_case_x_must_not_pass_the_end_of_the_gap() {
        // The data do not wrap: Y at 0, the tail moves to the end of a ring of 1024 B in records of 256 B.
        let mut ring = SenderRing::new(geometry(1024, 192));
        for i in 0..4 {
            let placement = ring.place(192, None).unwrap();
            assert_eq!((placement.start, placement.skip), (Position::new(i * 256), 0));
        }
        let exceed = ring.place(1, None).unwrap_err();
        assert!(matches!(exceed, Exceed::Bytes { missing: 128, .. }), "{exceed}");
        assert_eq!(ring.tail(), Position::new(1024), "an exceed changes nothing");
    }

    #[test]
    fn wrapped_case_x_must_not_pass_y() {
        let mut ring = SenderRing::new(geometry(1024, 192));
        for _ in 0..4 {
            ring.place(192, None).unwrap();
        }
        // Y at offset 512, tail at offset 0 of the next lap: 512 B are sandwiched between them.
        head_to(&mut ring, Position::new(512));
        ring.place(192, None).unwrap();
        ring.place(192, None).unwrap();
        assert!(ring.place(0, None).is_err());
        head_to(&mut ring, Position::new(576));
        ring.place(0, None).unwrap();
    }

    #[test]
    fn a_record_that_does_not_fit_in_the_linear_rest_starts_at_the_next_lap() {
        let mut ring = SenderRing::new(geometry(1024, 400));
        ring.place(384, None).unwrap();
        ring.place(384, None).unwrap();
        head_to(&mut ring, Position::new(896));
        let placement = ring.place(192, None).unwrap();
        assert_eq!((placement.start, placement.skip), (Position::new(1024), 128));
        assert_eq!(placement.header(ring.geometry()), RingOffset(0));
        assert_eq!(placement.payload(ring.geometry(), 192), RingSpan { offset: RingOffset(64), bytes: 192 });
    }

    #[test]
    fn a_skip_counts_against_the_credit() {
        let mut ring = SenderRing::new(geometry(1024, 400));
        ring.place(384, None).unwrap();
        ring.place(384, None).unwrap();
        // 128 B to the physical end and 448 B released: a record of 256 B also needs the skip, 384 B in all.
        head_to(&mut ring, Position::new(448));
        assert_eq!(ring.place(192, None).unwrap().end, Position::new(1024 + 256));
        assert!(ring.place(192, None).is_err());
    }

    #[test]
    fn without_flow_control_nothing_exceeds_and_nothing_is_acknowledged() {
        let options =
            RingOptions { ring_bytes: 1024, chunk_bytes: 64, flow_control: FlowControl::Off, ..RingOptions::default() };
        let mut ring = SenderRing::new(RingGeometry::new(options).unwrap());
        for i in 0..10_000 {
            ring.place(64, Some(MessageId(i))).unwrap();
        }
        assert_eq!(ring.unacknowledged(), 0);
    }

    #[test]
    fn messages_are_acknowledged_when_the_delayed_head_passes_their_last_record() {
        let mut ring = SenderRing::new(geometry(1024, 64));
        ring.place(64, None).unwrap();
        ring.place(64, Some(MessageId(1))).unwrap();
        head_to(&mut ring, Position::new(128));
        assert_eq!(ring.next_acknowledged(), None);
        head_to(&mut ring, Position::new(256));
        assert_eq!(ring.next_acknowledged(), Some(MessageId(1)));
        assert_eq!(ring.next_acknowledged(), None);
    }

    #[test]
    fn the_receiver_refuses_records_out_of_sequence_too_large_or_without_credit() {
        let mut ring = ReceiverRing::new(geometry(1024, 192));
        let header = |record, payload_bytes| RecordHeader {
            flags: crate::record::Flags::FIRST,
            record: RecordSequence(record),
            message: MessageId(1),
            name: crate::record::MessageName::default(),
            offset: 0,
            total: 1 << 20,
            payload_bytes,
            envelope_bytes: 0,
        };
        assert!(matches!(ring.admit(&header(1, 64)), Err(AdmitError::Sequence { .. })));
        assert!(matches!(ring.admit(&header(0, 193)), Err(AdmitError::Record(RecordError::Chunk { .. }))));
        for i in 0..4 {
            ring.check_immediate(i as u32).unwrap();
            ring.admit(&header(i, 192)).unwrap();
        }
        assert!(matches!(ring.check_immediate(5), Err(AdmitError::Immediate { found: 5, .. })));
        assert!(matches!(ring.admit(&header(4, 0)), Err(AdmitError::Production(Violation::Production { .. }))));
        ring.consumed(Position::new(256)).unwrap();
        ring.admit(&header(4, 0)).unwrap();
        assert!(matches!(ring.consumed(Position::new(4096)), Err(Violation::Consumption { .. })));
    }

    #[test]
    fn a_record_is_intact_until_the_writer_laps_it() {
        let geometry = geometry(1024, 192);
        assert!(is_intact(&geometry, Position::new(64), Position::new(1088)));
        assert!(!is_intact(&geometry, Position::new(64), Position::new(1089)));
    }
}
