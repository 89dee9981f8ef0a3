//! Typed views of a mapped segment: every struct of layout.rs is made of atomics alone, so a shared reference is always sound.

use rgaps_os::{Mapping, OutOfRange};

use crate::layout::{ArrivalRecord, Header, MessageEntry, PublisherRecord, SubscriberRecord, SubscriberWords};

/// Structs that consist of atomics only and are valid for every bit pattern.
///
/// # Safety
/// The type is `#[repr(C)]`, has no padding that matters, no pointers, and nothing but atomic integers in it.
unsafe trait AllAtomic {}
// SAFETY: see layout.rs; integers in atomics only.
unsafe impl AllAtomic for Header {}
// SAFETY: see layout.rs; integers in atomics only.
unsafe impl AllAtomic for PublisherRecord {}
// SAFETY: see layout.rs; integers in atomics only.
unsafe impl AllAtomic for SubscriberRecord {}
// SAFETY: see layout.rs; integers in atomics only.
unsafe impl AllAtomic for SubscriberWords {}
// SAFETY: see layout.rs; integers in atomics only.
unsafe impl AllAtomic for MessageEntry {}
// SAFETY: see layout.rs; integers in atomics only.
unsafe impl AllAtomic for ArrivalRecord {}

pub(crate) fn header(mapping: &Mapping) -> Result<&Header, OutOfRange> {
    at(mapping, 0)
}

pub(crate) fn publisher(mapping: &Mapping, offset: u64) -> Result<&PublisherRecord, OutOfRange> {
    at(mapping, offset)
}

pub(crate) fn subscriber(mapping: &Mapping, offset: u64) -> Result<&SubscriberRecord, OutOfRange> {
    at(mapping, offset)
}

pub(crate) fn subscriber_words(mapping: &Mapping) -> Result<&SubscriberWords, OutOfRange> {
    at(mapping, 0)
}

pub(crate) fn arrival_record(mapping: &Mapping, offset: u64) -> Result<&ArrivalRecord, OutOfRange> {
    at(mapping, offset)
}

pub(crate) fn message(mapping: &Mapping, offset: u64) -> Result<&MessageEntry, OutOfRange> {
    at(mapping, offset)
}

fn at<T: AllAtomic>(mapping: &Mapping, offset: u64) -> Result<&T, OutOfRange> {
    let bytes = size_of::<T>() as u64;
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= mapping.bytes());
    if !inside || !offset.is_multiple_of(align_of::<T>() as u64) {
        return Err(OutOfRange { offset, bytes, mapped: mapping.bytes() });
    }
    let pointer = (mapping.address() + offset) as *const T;
    // SAFETY: in bounds and aligned (a mapping starts on a page), mapped while `mapping` is borrowed, any bit pattern is valid, and every process
    // accesses it atomically.
    Ok(unsafe { &*pointer })
}
