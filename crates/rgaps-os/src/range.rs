//! The right to write one part of a mapping, as a value that cannot be copied or made up.
//!
//! `Mapping::allocation_right` gives one `AllocationRight` a mapping; its holder (an allocator) carves `OwnedRange`s from it that
//! never overlap; `Mapping::owned_bytes` and `bytes_mut` turn a range into a slice. So safe code can fill a loaned block in place.

use std::num::NonZeroU64;

/// The right to carve ranges out of one mapping. There is at most one a mapping.
#[derive(Debug)]
pub struct AllocationRight {
    pub(crate) mapping: NonZeroU64,
    pub(crate) bytes: u64,
}

impl AllocationRight {
    /// The right to `bytes` bytes that no mapping of this process holds, such as a GPU's: its ranges open no mapping.
    pub fn elsewhere(bytes: u64) -> Self {
        Self { mapping: crate::mapping::next_id(), bytes }
    }

    /// Bytes of the mapping.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A range of the mapping.
    ///
    /// # Safety
    /// The range lies inside the mapping and overlaps no other living `OwnedRange` of this right.
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
    /// Whether it was carved from this right, and not from that of another mapping.
    #[inline]
    pub fn is_of(&self, right: &AllocationRight) -> bool {
        self.mapping == right.mapping
    }

    /// First byte, from the start of the mapping.
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
