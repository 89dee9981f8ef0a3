//! Positions: how far a ring has been written or read, counted in bytes since the link was set up.
//!
//! A position only grows, so that a full ring (positions one ring apart) and an empty one (positions equal) differ, and so that two
//! positions compare. A place in the ring's memory is the position modulo the ring's size. Rings start at zero and a link at
//! 100 GB/s needs five years to use up 64 bits; arithmetic saturates, so that a lie near the end cannot wrap round to a small number.

use std::fmt;

/// How many bytes, skipped ones included, lie before a point in the endless stream through a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    /// Where every ring starts.
    pub const START: Self = Self(0);

    /// A position from its count of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The count of bytes.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The position `bytes` further on.
    #[must_use]
    pub const fn forward(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }

    /// Bytes from `earlier` to here; 0 if `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A place in the ring's memory: below the ring's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingOffset(pub u64);

impl RingOffset {
    /// The place `bytes` further on. The caller knows that it is in the same record, hence in the ring.
    #[must_use]
    pub const fn forward(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

/// Bytes in a row in the ring's memory. Records never wrap, so neither does a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingSpan {
    /// The first byte.
    pub offset: RingOffset,
    /// How many.
    pub bytes: u64,
}
