//! The ring's two ends: where the next record goes, and whether it may go there. No memory, no I/O.
//!
//! A record is contiguous. If it does not fit between the tail and the physical end of the ring, it starts at the next multiple of
//! the ring's size, and the bytes in between are skipped. Both ends compute the skip from the payload's length alone (`place`).
//!
//! The paper's "exceed" check (§3.4), with X = write cursor after the record and Y = read cursor, has two cases. *Linear*: the data in
//! the ring do not wrap, free space is from the tail to the end of memory and from its start to Y. *Wrapped*: they do, free space is
//! what is sandwiched between tail and Y. On offsets these are two comparisons, and "full" looks like "empty"; on positions they
//! are one: X − Y > ring. The tests hold the two against each other.
//!
//! Invariants  production, consumption, lag (`invariants`), asserted after every step in debug builds.

use crate::credit::{CreditError, CreditPair};
use crate::geometry::{FlowControl, RingGeometry, RingOptions, Watermark};
use crate::invariants::{self, Violation};
use crate::position::{Position, RingOffset, RingSpan};
use crate::record::{HEADER_BYTES, MessageId, RecordError, RecordHeader, RecordSequence};
use crate::unacked::{UNACKED_MAX, Unacked};

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its header's first byte.
    pub start: Position,
    /// The end of its padding: where the next record may start.
    pub end: Position,
    /// Bytes before `start` that were left unused at the end of the ring.
    pub skip: u64,
}

impl Placement {
    /// The first byte of the payload in the ring's memory.
    pub fn payload(&self, geometry: &RingGeometry, payload_bytes: u32) -> RingSpan {
        RingSpan { offset: self.header(geometry).forward(HEADER_BYTES as u64), bytes: u64::from(payload_bytes) }
    }

    /// The header in the ring's memory.
    pub fn header(&self, geometry: &RingGeometry) -> RingOffset {
        geometry.offset(self.start)
    }
}

/// Where a record goes that is written at `tail`. The same on both sides.
pub fn place(geometry: &RingGeometry, tail: Position, payload_bytes: u32) -> Placement {
    let bytes = geometry.record_bytes(payload_bytes);
    let rest = geometry.linear_rest(tail);
    let skip = if bytes > rest { rest } else { 0 };
    let start = tail.forward(skip);
    Placement { start, end: start.forward(bytes), skip }
}

/// There is no room now; credit will bring it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceed {
    /// The record would overwrite bytes that were not given back.
    #[error(
        "record would end at {end}, {missing} B beyond what the receiver has given back (delayed head {delayed_head})"
    )]
    Bytes {
        /// Where the record would end.
        end: Position,
        /// What the receiver has given back.
        delayed_head: Position,
        /// How much credit is missing.
        missing: u64,
    },
    /// Too many messages are waiting to be acknowledged.
    #[error("{UNACKED_MAX} messages are not acknowledged yet")]
    Messages,
}

/// The sender's end: tail and delayed head.
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

    /// Where the next record goes, skip not counted.
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// What the receiver has given back, as far as is known here.
    pub fn delayed_head(&self) -> Position {
        self.delayed_head
    }

    /// The number of the next record.
    pub fn next_record(&self) -> RecordSequence {
        self.next
    }

    /// Where a record would go, or why it must wait. With flow control off it never does.
    pub fn check(&self, payload_bytes: u32) -> Result<Placement, Exceed> {
        let placement = place(&self.geometry, self.tail, payload_bytes);
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

    /// Takes the place; `completes` names the message that this record ends.
    pub fn place(&mut self, payload_bytes: u32, completes: Option<MessageId>) -> Result<Placement, Exceed> {
        let placement = self.check(payload_bytes)?;
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

    /// Takes a credit, if it can be true.
    pub fn credit(&mut self, pair: CreditPair) -> Result<Position, CreditError> {
        self.delayed_head = pair.accept(self.delayed_head, self.tail)?;
        debug_assert_eq!(invariants::consumption(self.delayed_head, self.tail), Ok(()));
        Ok(self.delayed_head)
    }

    /// The next message that the receiver has consumed to its end. Each is named once, in the order of their last records. With flow
    /// control off nothing is acknowledged.
    pub fn next_acknowledged(&mut self) -> Option<MessageId> {
        self.unacked.pop(self.delayed_head)
    }

    /// How many messages were sent whole and are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.unacked.count(self.delayed_head)
    }
}

/// A record that must not be taken into the ring. The link is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// A record is missing, doubled or out of order.
    #[error("record {} where {} was expected; the stream is out of step", found.0, expected.0)]
    Sequence {
        /// What should have come.
        expected: RecordSequence,
        /// What came.
        found: RecordSequence,
    },
    /// The immediate of an RDMA WRITE does not belong to the record that was expected.
    #[error("immediate {found:#010x} where record {} was expected; the stream is out of step", expected.0)]
    Immediate {
        /// What should have come.
        expected: RecordSequence,
        /// What came.
        found: u32,
    },
    /// Its payload is larger than agreed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The peer exceeds its credit.
    #[error("the peer writes without credit: {0}")]
    Production(Violation),
}

/// The receiver's end, where records land: how far the ring is written, and what comes next.
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

    /// How far the ring is written, the record under way included.
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// How far it is consumed, as last told.
    pub fn head(&self) -> Position {
        self.head
    }

    /// The number of the next record.
    pub fn expected(&self) -> RecordSequence {
        self.expected
    }

    /// The consumer has got as far as `head`.
    pub fn consumed(&mut self, head: Position) -> Result<(), Violation> {
        invariants::consumption(head, self.tail)?;
        self.head = self.head.max(head);
        Ok(())
    }

    /// Whether the immediate is that of the next record. Of use to rdma alone, where header and immediate travel apart.
    pub fn check_immediate(&self, immediate: u32) -> Result<(), AdmitError> {
        if immediate == self.expected.immediate() {
            return Ok(());
        }
        Err(AdmitError::Immediate { expected: self.expected, found: immediate })
    }

    /// Takes the next record in: where it goes, if it is the expected one, fits the agreement and overwrites nothing unread.
    pub fn admit(&mut self, header: &RecordHeader) -> Result<Placement, AdmitError> {
        if header.record != self.expected {
            return Err(AdmitError::Sequence { expected: self.expected, found: header.record });
        }
        header.check_chunk(&self.geometry)?;
        let placement = place(&self.geometry, self.tail, header.payload_bytes);
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

/// Whether a record that started at `start` is still whole when the ring has been, or is being, written up to `written`.
pub fn is_intact(geometry: &RingGeometry, start: Position, written: Position) -> bool {
    written <= start.forward(geometry.ring_bytes())
}

/// Fuzz entry: the shape of a ring, then headers, after each of which the consumer may take what is there. What is admitted lies in the ring, and
/// over nothing that is unread.
pub fn fuzz_ring(data: &[u8]) {
    let Some((&[size, chunk, code, rest], headers)) = data.split_first_chunk::<4>() else { return };
    let options = RingOptions {
        ring_bytes: u64::from(size) << 8,
        chunk_bytes: u32::from(chunk) << 4,
        watermark: Watermark::from_code(u32::from(code % 4)).unwrap_or_default(),
        flow_control: if rest & 1 == 0 { FlowControl::On } else { FlowControl::Off },
        ..RingOptions::default()
    };
    let Ok(geometry) = RingGeometry::new(options) else { return };
    let mut ring = ReceiverRing::new(geometry);
    for (turn, bytes) in headers.as_chunks::<HEADER_BYTES>().0.iter().enumerate() {
        let Ok(header) = RecordHeader::decode(bytes) else { continue };
        let (tail, expected) = (ring.tail(), ring.expected());
        let Ok(placement) = ring.admit(&RecordHeader { record: expected, ..header }) else {
            assert_eq!((ring.tail(), ring.expected()), (tail, expected), "what is refused changes nothing");
            continue;
        };
        let payload = placement.payload(&geometry, header.payload_bytes);
        assert!(placement.start >= tail && placement.end == ring.tail());
        assert!(payload.offset.0 + payload.bytes <= options.ring_bytes, "{placement:?} leaves the ring");
        if options.flow_control == FlowControl::On {
            assert!(placement.end <= ring.head().forward(options.ring_bytes), "{placement:?} overwrites the unread");
        }
        if rest >> (turn % 7 + 1) & 1 == 1 {
            assert_eq!(ring.consumed(placement.end), Ok(()));
        }
    }
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
        // Nothing wraps: Y at 0, tail moves towards the end of a ring of 1024 B in records of 256 B.
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
        // 128 B to the physical end and 448 B given back: a record of 256 B needs the skip as well, 384 B in all.
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
    fn the_receiver_refuses_what_is_out_of_step_too_large_or_without_credit() {
        let mut ring = ReceiverRing::new(geometry(1024, 192));
        let header = |record, payload_bytes| RecordHeader {
            flags: crate::record::Flags::FIRST,
            record: RecordSequence(record),
            message: MessageId(1),
            origin: crate::record::Origin::default(),
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
