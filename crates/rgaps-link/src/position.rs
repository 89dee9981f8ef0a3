//! Positions: how far a ring has been written or read, in bytes since the link was set up.
//!
//! Positions only grow, so two positions can be compared, and a full ring (positions one ring apart) differs from an empty one (positions
//! equal). The offset in the ring's memory is the position modulo the ring's size. Positions start at zero, and a link at 100 GB/s needs
//! five years to use up 64 bits. Arithmetic saturates, so a false position near the end cannot wrap to a small number.

use std::fmt;

/// The number of bytes, including skipped ones, before a point of the stream through a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    /// The start of every ring.
    pub const START: Self = Self(0);

    /// A position from its count of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The count of bytes.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The position `bytes` later.
    #[must_use]
    pub const fn forward(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }

    /// Bytes from `earlier` to this position; 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An offset in the ring's memory: less than the ring's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingOffset(pub u64);

impl RingOffset {
    /// The offset `bytes` later. The caller makes sure that it is in the same record, hence in the ring.
    #[must_use]
    pub const fn forward(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

/// Contiguous bytes in the ring's memory. Records never wrap, so spans do not either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingSpan {
    /// The first byte.
    pub offset: RingOffset,
    /// Number of bytes.
    pub bytes: u64,
}
