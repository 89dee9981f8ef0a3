//! The right to write one part of a mapping, as a value that safe code can neither copy nor forge.
//!
//! `Mapping::allocation_right` gives one `AllocationRight` per mapping. Its holder (an allocator) carves `OwnedRange`s from it that never
//! overlap. `Mapping::owned_bytes` and `bytes_mut` turn a range into a slice. So safe code can fill a loaned block in place.

use std::num::NonZeroU64;

/// The right to carve ranges out of one mapping. There is at most one per mapping.
#[derive(Debug)]
pub struct AllocationRight {
    pub(crate) mapping: NonZeroU64,
    pub(crate) bytes: u64,
}

impl AllocationRight {
    /// A right to `bytes` bytes that this process has not mapped, such as a GPU's. No mapping accepts its ranges.
    pub fn elsewhere(bytes: u64) -> Self {
        Self { mapping: crate::mapping::next_id(), bytes }
    }

    /// Bytes of the mapping.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Carves a range out of the mapping.
    ///
    /// # Safety
    /// The range is inside the mapping and overlaps no other living `OwnedRange` of this right.
    #[inline]
    pub unsafe fn carve(&self, offset: u64, bytes: u64) -> OwnedRange {
        debug_assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        OwnedRange { mapping: self.mapping, offset, bytes }
    }
}

/// Exclusive use of `bytes` at `offset` of one mapping.
#[derive(Debug)]
pub struct OwnedRange {
    pub(crate) mapping: NonZeroU64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl OwnedRange {
    /// Whether it was carved from this right.
    #[inline]
    pub fn is_of(&self, right: &AllocationRight) -> bool {
        self.mapping == right.mapping
    }

    /// Offset of the first byte in the mapping.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
