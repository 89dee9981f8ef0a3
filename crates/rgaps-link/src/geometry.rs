//! The ring's shape: its size, the largest chunk, the watermark. Both ends must agree on it exactly.
//!
//! The rule `record ≤ (ring − watermark) / 2` prevents a deadlock: the receiver may withhold less than a watermark of credit, and a
//! record that does not fit before the physical end costs a skip of less than a record; the rest still has room for one whole record.

use crate::position::{Position, RingOffset};
use crate::record::HEADER_BYTES;

/// Whether the sender waits for the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowControl {
    /// The sender writes only bytes that the receiver has released (up to the delayed head plus one ring); nothing is lost.
    #[default]
    On,
    /// The sender never waits and overwrites the oldest bytes; the receiver discards torn records and counts them. Hoang et al., RocketBufs,
    /// DEBS 2020, section 3.3.
    Off,
}

/// How a link detects bytes damaged by the network, beside the network's own checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Integrity {
    /// A CRC32C over each header, each record and each credit. It is no authentication: an attacker can compute the sum too.
    #[default]
    Crc32c,
    /// No check. Only TCP's 16-bit sum remains, which does not detect swapped words.
    None,
}

/// How much the receiver consumes before it returns credit, as a part of the ring (Jiang 2026, section 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watermark {
    /// After every record.
    Zero,
    /// After an eighth of the ring.
    Eighth,
    /// After a quarter of the ring.
    #[default]
    Quarter,
    /// After half of the ring.
    Half,
}

impl Watermark {
    /// All watermarks, for benches and tests.
    pub const ALL: [Self; 4] = [Self::Zero, Self::Eighth, Self::Quarter, Self::Half];

    /// The watermark in bytes.
    pub const fn bytes(self, ring_bytes: u64) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Eighth => ring_bytes / 8,
            Self::Quarter => ring_bytes / 4,
            Self::Half => ring_bytes / 2,
        }
    }

    /// Its code on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The watermark with that code on the wire.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }
}

/// The requested shape of a ring, unchecked.
///
/// ```
/// use rgaps_link::{RingGeometry, RingOptions, Watermark};
///
/// let small = RingOptions { ring_bytes: 4 << 20, chunk_bytes: 256 << 10, watermark: Watermark::Quarter, ..RingOptions::default() };
/// assert!(RingGeometry::new(small).is_ok());
/// let error = RingGeometry::new(RingOptions { chunk_bytes: 2 << 20, ..small }).unwrap_err();
/// println!("{error}"); // the largest valid chunk of this ring
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Bytes of the ring's memory.
    pub ring_bytes: u64,
    /// The largest payload of one record. The default makes a record exactly 1 MiB.
    pub chunk_bytes: u32,
    /// When credit is returned.
    pub watermark: Watermark,
    /// Records start at multiples of this. It bounds the records in a ring, and thus the receives that rdma must post.
    pub alignment: u32,
    /// Whether the sender waits for the receiver.
    pub flow_control: FlowControl,
    /// How a tcp link detects damage. Rdma does not need it: its packets have the invariant CRC (ICRC).
    pub integrity: Integrity,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 64 << 20,
            chunk_bytes: (1 << 20) - HEADER_BYTES as u32,
            watermark: Watermark::default(),
            alignment: ALIGNMENT_MIN,
            flow_control: FlowControl::default(),
            integrity: Integrity::default(),
        }
    }
}

/// Records are aligned at least to a cache line, which is also the size of the header.
pub const ALIGNMENT_MIN: u32 = 64;
/// Records are aligned at most to 64 KiB.
pub const ALIGNMENT_MAX: u32 = 1 << 16;
/// The largest ring: 1 TiB.
pub const RING_BYTES_MAX: u64 = 1 << 40;

/// Why a shape is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The alignment is out of range or not a power of two.
    #[error("record alignment {found} B; it must be a power of two from {ALIGNMENT_MIN} to {ALIGNMENT_MAX} B")]
    Alignment {
        /// The requested alignment.
        found: u32,
    },
    /// The ring is too large, empty, or not a multiple of the alignment.
    #[error("ring of {found} B; it must be a multiple of {alignment} B, at least one and at most {RING_BYTES_MAX} B")]
    RingBytes {
        /// The requested bytes.
        found: u64,
        /// The alignment that it must be a multiple of.
        alignment: u32,
    },
    /// The chunk is too large for the ring.
    #[error(
        "a chunk of {chunk_bytes} B makes records of {record_bytes} B, more than half of the ring of {ring_bytes} B without its watermark of \
         {watermark_bytes} B; use a chunk of at most {chunk_bytes_max} B or a larger ring"
    )]
    Chunk {
        /// The requested chunk.
        chunk_bytes: u32,
        /// Bytes of a record with that chunk.
        record_bytes: u64,
        /// The ring.
        ring_bytes: u64,
        /// The watermark.
        watermark_bytes: u64,
        /// The largest valid chunk.
        chunk_bytes_max: u64,
    },
    /// A record would have no payload.
    #[error("a chunk of 0 B carries no data; use at least 1 B")]
    ChunkEmpty,
}

/// A valid shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingGeometry {
    options: RingOptions,
}

impl RingGeometry {
    /// Checks a shape, which may come from a peer.
    pub fn new(options: RingOptions) -> Result<Self, GeometryError> {
        let RingOptions { ring_bytes, chunk_bytes, alignment, .. } = options;
        if !alignment.is_power_of_two() || !(ALIGNMENT_MIN..=ALIGNMENT_MAX).contains(&alignment) {
            return Err(GeometryError::Alignment { found: alignment });
        }
        if ring_bytes == 0 || ring_bytes > RING_BYTES_MAX || !ring_bytes.is_multiple_of(u64::from(alignment)) {
            return Err(GeometryError::RingBytes { found: ring_bytes, alignment });
        }
        if chunk_bytes == 0 {
            return Err(GeometryError::ChunkEmpty);
        }
        let geometry = Self { options };
        let (record_bytes, watermark_bytes) = (geometry.record_bytes(chunk_bytes), geometry.watermark_bytes());
        let record_bytes_max = (ring_bytes - watermark_bytes) / 2;
        if record_bytes > record_bytes_max {
            let chunk_bytes_max = (record_bytes_max & !u64::from(alignment - 1)).saturating_sub(HEADER_BYTES as u64);
            return Err(GeometryError::Chunk {
                chunk_bytes,
                record_bytes,
                ring_bytes,
                watermark_bytes,
                chunk_bytes_max,
            });
        }
        Ok(geometry)
    }

    /// The options of the shape.
    pub fn options(&self) -> &RingOptions {
        &self.options
    }

    /// Bytes of the ring's memory.
    pub fn ring_bytes(&self) -> u64 {
        self.options.ring_bytes
    }

    /// The largest payload of one record.
    pub fn chunk_bytes(&self) -> u32 {
        self.options.chunk_bytes
    }

    /// Whether the sender waits for the receiver.
    pub fn flow_control(&self) -> FlowControl {
        self.options.flow_control
    }

    /// How a tcp link detects damage.
    pub fn integrity(&self) -> Integrity {
        self.options.integrity
    }

    /// How many bytes the receiver consumes before it returns credit.
    pub fn watermark_bytes(&self) -> u64 {
        self.options.watermark.bytes(self.options.ring_bytes)
    }

    /// The most records that the ring can hold: the number of receives that rdma posts.
    pub fn records_max(&self) -> u64 {
        self.options.ring_bytes / u64::from(self.options.alignment)
    }

    /// Bytes of a record with this payload in the ring, header and padding included.
    pub fn record_bytes(&self, payload_bytes: u32) -> u64 {
        (HEADER_BYTES as u64 + u64::from(payload_bytes)).next_multiple_of(u64::from(self.options.alignment))
    }

    /// The offset of a position in the ring's memory.
    pub fn offset(&self, position: Position) -> RingOffset {
        RingOffset(position.value() % self.options.ring_bytes)
    }

    /// Bytes from a position to the physical end of the ring: never 0.
    pub fn linear_rest(&self, position: Position) -> u64 {
        self.options.ring_bytes - self.offset(position).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(ring_bytes: u64, chunk_bytes: u32, watermark: Watermark) -> RingOptions {
        RingOptions { ring_bytes, chunk_bytes, watermark, ..RingOptions::default() }
    }

    #[test]
    fn the_default_is_valid_and_its_records_are_one_mebibyte() {
        let geometry = RingGeometry::new(RingOptions::default()).unwrap();
        assert_eq!(geometry.record_bytes(geometry.chunk_bytes()), 1 << 20);
    }

    #[test]
    fn a_record_is_at_most_half_of_what_the_watermark_leaves() {
        for watermark in Watermark::ALL {
            let most = (4096 - watermark.bytes(4096)) / 2 - 64;
            RingGeometry::new(options(4096, most as u32, watermark)).unwrap();
            let refused = RingGeometry::new(options(4096, most as u32 + 1, watermark)).unwrap_err();
            assert!(
                matches!(refused, GeometryError::Chunk { chunk_bytes_max, .. } if chunk_bytes_max == most),
                "{refused}"
            );
        }
    }

    #[test]
    fn impossible_shapes_are_refused_by_name() {
        let bad = |change: fn(&mut RingOptions)| {
            let mut options = RingOptions::default();
            change(&mut options);
            RingGeometry::new(options).unwrap_err()
        };
        assert!(matches!(bad(|o| o.ring_bytes = 0), GeometryError::RingBytes { .. }));
        assert!(matches!(bad(|o| o.ring_bytes = u64::MAX), GeometryError::RingBytes { .. }));
        assert!(matches!(bad(|o| o.ring_bytes += 1), GeometryError::RingBytes { .. }));
        assert!(matches!(bad(|o| o.alignment = 96), GeometryError::Alignment { found: 96 }));
        assert!(matches!(bad(|o| o.alignment = 0), GeometryError::Alignment { .. }));
        assert!(matches!(bad(|o| o.chunk_bytes = 0), GeometryError::ChunkEmpty));
        assert!(matches!(bad(|o| o.chunk_bytes = u32::MAX), GeometryError::Chunk { .. }));
    }

    #[test]
    fn watermarks_survive_their_codes() {
        for watermark in Watermark::ALL {
            assert_eq!(Watermark::from_code(watermark.code()), Some(watermark));
        }
        assert_eq!(Watermark::from_code(4), None);
    }
}
