//! The record: a 64-byte header and a payload, one chunk of one message.
//!
//! ```text
//!  0 magic "RGLK"   4 version u16   6 flags u16      8 record sequence u64
//! 16 message id u64                                 24 publisher id u64
//! 32 message sequence u64                           40 offset u64 (of this chunk in the message)
//! 48 total u64 (bytes of the message)               56 payload u32 (envelope and data)   60 envelope u32
//! ```
//!
//! All little endian. The payload of a FIRST record starts with the envelope: opaque bytes that describe the message and count neither
//! in offset nor in total. A peer's header is trusted only after `decode` and `check_chunk`; each violation has its own error.
//!
//! The data of a LANDED record are in memory that the receiver has granted. In the ring are its header, its envelope, and the number of the grant.

use crate::geometry::RingGeometry;
use crate::payload::Data;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// The largest envelope.
pub const ENVELOPE_BYTES_MAX: u32 = 4096;
/// Bytes of a grant's number, which follows the envelope of a landed record.
pub const GRANT_NUMBER_BYTES: u32 = 8;
/// "RGLK".
pub const MAGIC: u32 = u32::from_le_bytes(*b"RGLK");
/// Version of the layout above; raise it with every change.
pub const VERSION: u16 = 1;

/// A message's number on its link, from 1, in the order in which messages begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

/// A message's publisher and sequence number; the pair identifies it on all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageName {
    /// The publisher's id.
    pub publisher: u64,
    /// The publisher's sequence number, from 1.
    pub sequence: u64,
}

/// A record's number on its link, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordSequence(pub u64);

impl RecordSequence {
    /// The immediate of its RDMA WRITE: the low 32 bits.
    pub fn immediate(self) -> u32 {
        self.0 as u32
    }

    /// The next number.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The number of a grant on its link, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantNumber(pub u64);

/// A record's role in its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// The message's first record.
    pub const FIRST: Self = Self(1);
    /// The message's last record.
    pub const LAST: Self = Self(2);
    /// The sender aborts the message; the receiver frees its part.
    pub const ABORT: Self = Self(4);
    /// Its data were written to memory that the receiver has granted, instead of the ring. Only over rdma.
    pub const LANDED: Self = Self(8);
    /// A record in the middle.
    pub const NONE: Self = Self(0);

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A record header: received and checked by `decode`, or to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its role in its message.
    pub flags: Flags,
    /// Its number on the link.
    pub record: RecordSequence,
    /// Its message.
    pub message: MessageId,
    /// The message's publisher and sequence.
    pub name: MessageName,
    /// Offset of its data in the message.
    pub offset: u64,
    /// Bytes of the whole message.
    pub total: u64,
    /// Bytes that follow the header: envelope and data.
    pub payload_bytes: u32,
    /// Bytes of the envelope.
    pub envelope_bytes: u32,
}

/// Why a header is invalid. The peer is broken or no RGAPS program; close the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not a record header.
    #[error("record header has magic {found:#010x} instead of {MAGIC:#010x}; the stream is garbage or out of step")]
    Magic {
        /// What was found.
        found: u32,
    },
    /// Another version of this protocol.
    #[error(
        "record header has version {found}, this side speaks {VERSION}; run the same release of RGAPS on both hosts"
    )]
    Version {
        /// What was found.
        found: u16,
    },
    /// Unknown or contradicting flags.
    #[error("record header has the invalid flags {found:#06x}")]
    Flags {
        /// What was found.
        found: u16,
    },
    /// The envelope is too long, longer than the payload, or not in a first record.
    #[error(
        "envelope of {envelope} B in a payload of {payload} B; at most {ENVELOPE_BYTES_MAX} B, and only in a first record"
    )]
    Envelope {
        /// Bytes of the envelope, as stated.
        envelope: u32,
        /// Bytes of the payload.
        payload: u32,
    },
    /// The chunk is outside its message.
    #[error("chunk of {data} B at offset {offset} is outside its message of {total} B")]
    Bounds {
        /// Its offset.
        offset: u64,
        /// Its length.
        data: u64,
        /// The message's length.
        total: u64,
    },
    /// A first record has an offset other than 0.
    #[error("first record of a message has offset {offset} instead of 0")]
    FirstOffset {
        /// Its offset.
        offset: u64,
    },
    /// LAST is set although the message does not end, or missing although it does.
    #[error("record ends at {end} of {total} B, but its flags say that it is {}the last", if *says_last { "" } else { "not " })]
    Last {
        /// The end of its data.
        end: u64,
        /// The message's length.
        total: u64,
        /// Whether LAST is set.
        says_last: bool,
    },
    /// A record without data, which is not the first.
    #[error("record without data in the middle of a message, at offset {offset}")]
    Empty {
        /// Its offset.
        offset: u64,
    },
    /// An abort with a payload.
    #[error("abort record with a payload of {payload} B")]
    AbortPayload {
        /// Bytes of the payload.
        payload: u32,
    },
    /// Its data are in memory of a device that the link does not read.
    #[error("data in memory of a device, which this link does not read; stage them, or register the memory")]
    DeviceMemory,
    /// The header's length differs from the length in the work completion.
    #[error("record header says {said} B, but the peer wrote {landed} B")]
    Length {
        /// Bytes according to the header, header included.
        said: u32,
        /// Bytes written.
        landed: u32,
    },
    /// The payload is larger than the agreed chunk.
    #[error("record has a payload of {payload} B, but chunks of at most {chunk_bytes} B were agreed")]
    Chunk {
        /// Bytes of the payload.
        payload: u32,
        /// The agreed chunk.
        chunk_bytes: u32,
    },
}

impl RecordHeader {
    /// Bytes of the message in this record.
    pub fn data_bytes(&self) -> u32 {
        self.payload_bytes.saturating_sub(self.envelope_bytes)
    }

    /// Bytes after the header in the ring: the payload, or what of a landed record is there.
    pub fn bytes_in_ring(&self) -> u32 {
        match self.flags.contains(Flags::LANDED) {
            true => self.envelope_bytes.saturating_add(GRANT_NUMBER_BYTES),
            false => self.payload_bytes,
        }
    }

    /// Whether it is the final record of its message: last or abort.
    pub fn ends_message(&self) -> bool {
        self.flags.contains(Flags::LAST) || self.flags.contains(Flags::ABORT)
    }

    /// Encodes it for the wire and the ring.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.flags.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.record.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.message.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.name.publisher.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.name.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.offset.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.total.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.envelope_bytes.to_le_bytes());
        bytes
    }

    /// Decodes a header and checks its fields against each other. Ring and assembler check it against the stream.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, RecordError> {
        let (magic, version, flags) = (u32_at(bytes, 0), u16_at(bytes, 4), u16_at(bytes, 6));
        if magic != MAGIC {
            return Err(RecordError::Magic { found: magic });
        }
        if version != VERSION {
            return Err(RecordError::Version { found: version });
        }
        let header = Self {
            flags: Flags(flags),
            record: RecordSequence(u64_at(bytes, 8)),
            message: MessageId(u64_at(bytes, 16)),
            name: MessageName { publisher: u64_at(bytes, 24), sequence: u64_at(bytes, 32) },
            offset: u64_at(bytes, 40),
            total: u64_at(bytes, 48),
            payload_bytes: u32_at(bytes, 56),
            envelope_bytes: u32_at(bytes, 60),
        };
        header.check()?;
        Ok(header)
    }

    /// Checks the payload against the agreed chunk. Call it before reading any payload.
    pub fn check_chunk(&self, geometry: &RingGeometry) -> Result<(), RecordError> {
        let (payload, chunk_bytes) = (self.payload_bytes.max(self.bytes_in_ring()), geometry.chunk_bytes());
        if payload > chunk_bytes { Err(RecordError::Chunk { payload, chunk_bytes }) } else { Ok(()) }
    }

    fn check(&self) -> Result<(), RecordError> {
        let first = self.flags.contains(Flags::FIRST);
        let last = self.flags.contains(Flags::LAST);
        if self.flags.contains(Flags::ABORT) {
            return self.check_abort();
        }
        if self.flags.0 & !Flags::FIRST.with(Flags::LAST).with(Flags::LANDED).0 != 0 {
            return Err(RecordError::Flags { found: self.flags.0 });
        }
        let (envelope, payload) = (self.envelope_bytes, self.payload_bytes);
        if envelope > ENVELOPE_BYTES_MAX || envelope > payload || (envelope > 0 && !first) {
            return Err(RecordError::Envelope { envelope, payload });
        }
        let (offset, total, data) = (self.offset, self.total, u64::from(self.data_bytes()));
        if first && offset != 0 {
            return Err(RecordError::FirstOffset { offset });
        }
        let Some(end) = offset.checked_add(data).filter(|end| *end <= total) else {
            return Err(RecordError::Bounds { offset, data, total });
        };
        if last != (end == total) {
            return Err(RecordError::Last { end, total, says_last: last });
        }
        // The envelope may be sent alone, while the device still copies the data.
        if data == 0 && !first {
            return Err(RecordError::Empty { offset });
        }
        Ok(())
    }

    fn check_abort(&self) -> Result<(), RecordError> {
        if self.flags != Flags::ABORT {
            return Err(RecordError::Flags { found: self.flags.0 });
        }
        if self.payload_bytes != 0 || self.envelope_bytes != 0 {
            return Err(RecordError::AbortPayload { payload: self.payload_bytes });
        }
        if self.offset > self.total {
            return Err(RecordError::Bounds { offset: self.offset, data: 0, total: self.total });
        }
        Ok(())
    }
}

/// A message to send: the fields common to all its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// Its id on the link. Ids increase in the order of first records.
    pub id: MessageId,
    /// Its publisher and sequence.
    pub name: MessageName,
    /// Its bytes, without the envelope.
    pub total: u64,
}

impl MessageHead {
    /// The first record: the envelope, and the data from offset 0, which may be empty if they are not ready.
    pub fn first<'a>(&self, envelope: &'a [u8], data: impl Into<Data<'a>>) -> Record<'a> {
        Record { head: *self, kind: RecordKind::First, offset: 0, envelope, data: data.into() }
    }

    /// A later record with the data from `offset`.
    pub fn part<'a>(&self, offset: u64, data: impl Into<Data<'a>>) -> Record<'a> {
        Record { head: *self, kind: RecordKind::Part, offset, envelope: &[], data: data.into() }
    }

    /// The record that aborts the message after `offset` bytes.
    pub fn abort(&self, offset: u64) -> Record<'static> {
        Record { head: *self, kind: RecordKind::Abort, offset, envelope: &[], data: Data::EMPTY }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordKind {
    First,
    Part,
    Abort,
}

/// A record to post. It borrows its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    head: MessageHead,
    kind: RecordKind,
    offset: u64,
    envelope: &'a [u8],
    data: Data<'a>,
}

impl<'a> Record<'a> {
    /// Its message.
    pub fn message(&self) -> MessageId {
        self.head.id
    }

    /// The payload's two parts: envelope, and data in memory that other processes or devices may write.
    pub fn payload(&self) -> (&'a [u8], Data<'a>) {
        (self.envelope, self.data)
    }

    /// Bytes of its message.
    pub fn total(&self) -> u64 {
        self.head.total
    }

    /// Offset of its data in the message.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether it begins its message.
    pub fn is_first(&self) -> bool {
        self.kind == RecordKind::First
    }

    /// Whether it completes its message.
    pub fn is_last(&self) -> bool {
        self.kind != RecordKind::Abort && self.offset.saturating_add(self.data.len() as u64) == self.head.total
    }

    /// Its header, checked by the receiver's rules, so that the caller gets the error.
    pub fn header(&self, record: RecordSequence, geometry: &RingGeometry) -> Result<RecordHeader, RecordError> {
        let mut flags = match self.kind {
            RecordKind::First => Flags::FIRST,
            RecordKind::Part => Flags::NONE,
            RecordKind::Abort => Flags::ABORT,
        };
        if self.is_last() {
            flags = flags.with(Flags::LAST);
        }
        let bytes = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let header = RecordHeader {
            flags,
            record,
            message: self.head.id,
            name: self.head.name,
            offset: self.offset,
            total: self.head.total,
            payload_bytes: bytes(self.envelope.len().saturating_add(self.data.len())),
            envelope_bytes: bytes(self.envelope.len()),
        };
        header.check_chunk(geometry)?;
        header.check()?;
        Ok(header)
    }
}

impl RecordHeader {
    /// As a record whose data go to granted memory.
    pub(crate) fn landed(self) -> Self {
        Self { flags: self.flags.with(Flags::LANDED), ..self }
    }
}

/// Fuzz entry: any bytes as a header. An accepted header encodes to the same bytes.
pub fn fuzz_record(data: &[u8]) -> bool {
    let Some(bytes) = data.first_chunk::<HEADER_BYTES>() else { return false };
    let Ok(header) = RecordHeader::decode(bytes) else { return false };
    assert_eq!(&header.encode(), bytes);
    assert!(u64::from(header.data_bytes()) <= header.total);
    true
}

fn u16_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::RingOptions;

    fn good() -> RecordHeader {
        RecordHeader {
            flags: Flags::FIRST,
            record: RecordSequence(3),
            message: MessageId(5),
            name: MessageName { publisher: 7, sequence: 9 },
            offset: 0,
            total: 1000,
            payload_bytes: 164,
            envelope_bytes: 64,
        }
    }

    fn error_after(change: impl FnOnce(&mut RecordHeader)) -> RecordError {
        let mut header = good();
        change(&mut header);
        RecordHeader::decode(&header.encode()).unwrap_err()
    }

    #[test]
    fn a_header_survives_the_wire() {
        assert_eq!(RecordHeader::decode(&good().encode()), Ok(good()));
        assert_eq!(RecordSequence(0x1_2345_6789).immediate(), 0x2345_6789);
    }

    #[test]
    fn each_invalid_header_has_its_own_error() {
        assert!(matches!(RecordHeader::decode(&[0; 64]), Err(RecordError::Magic { found: 0 })));
        let mut other_version = good().encode();
        other_version[4] = 9;
        assert!(matches!(RecordHeader::decode(&other_version), Err(RecordError::Version { found: 9 })));
        assert!(matches!(error_after(|h| h.flags = Flags(16)), RecordError::Flags { found: 16 }));
        assert!(matches!(error_after(|h| h.flags = Flags(5)), RecordError::Flags { found: 5 }));
        assert!(matches!(error_after(|h| h.envelope_bytes = 165), RecordError::Envelope { .. }));
        assert!(matches!(error_after(|h| h.flags = Flags::NONE), RecordError::Envelope { .. }));
        let large = |h: &mut RecordHeader| (h.payload_bytes, h.envelope_bytes) = (8192, 4097);
        assert!(matches!(error_after(large), RecordError::Envelope { .. }));
        assert!(matches!(error_after(|h| h.total = 99), RecordError::Bounds { .. }));
        assert!(matches!(error_after(|h| h.offset = 1), RecordError::FirstOffset { offset: 1 }));
        assert!(matches!(error_after(|h| h.total = 100), RecordError::Last { says_last: false, .. }));
        assert!(matches!(error_after(|h| h.flags = Flags(3)), RecordError::Last { says_last: true, .. }));
        let beyond = |h: &mut RecordHeader| (h.flags, h.envelope_bytes, h.offset) = (Flags::NONE, 0, u64::MAX);
        assert!(matches!(error_after(beyond), RecordError::Bounds { .. }));
        let empty = |h: &mut RecordHeader| (h.flags, h.envelope_bytes, h.payload_bytes) = (Flags::NONE, 0, 0);
        assert!(matches!(error_after(empty), RecordError::Empty { .. }));
        assert!(matches!(error_after(|h| h.flags = Flags::ABORT), RecordError::AbortPayload { .. }));
        let geometry = RingGeometry::new(RingOptions { chunk_bytes: 163, ..RingOptions::default() }).unwrap();
        assert!(matches!(good().check_chunk(&geometry), Err(RecordError::Chunk { payload: 164, chunk_bytes: 163 })));
    }

    #[test]
    fn records_know_their_flags() {
        let geometry = RingGeometry::new(RingOptions::default()).unwrap();
        let head = MessageHead { id: MessageId(1), name: MessageName::default(), total: 4 };
        let flags = |record: Record<'_>| record.header(RecordSequence(0), &geometry).unwrap().flags;
        assert_eq!(flags(head.first(b"meta", b"data")), Flags(3));
        assert_eq!(flags(head.first(b"meta", b"")), Flags::FIRST);
        assert_eq!(flags(head.part(1, b"ata")), Flags::LAST);
        assert_eq!(flags(head.abort(2)), Flags::ABORT);
        assert!(head.part(2, b"too long").header(RecordSequence(0), &geometry).is_err());
        let empty = MessageHead { total: 0, ..head };
        assert_eq!(flags(empty.first(b"", b"")), Flags(3));
    }
}
