//! The sender's slots: what of each record under way is not its data, in memory that the device reads.
//!
//! Invariants  A slot is filled again only when the record that used it has completed: the sender has at most `SLOTS` records under way.

use std::sync::Arc;

use rgaps_os::SharedBytes;

use crate::memory::RingMemoryError;
use crate::position::{RingOffset, RingSpan};
use crate::rdma::domain::Region;
use crate::record::{ENVELOPE_BYTES_MAX, GRANT_NUMBER_BYTES, GrantNumber, HEADER_BYTES, RecordHeader};

/// Most records posted and not completed.
pub(super) const SLOTS: u64 = 256;
/// Bytes of all slots.
pub(super) const SLOTS_BYTES: u64 = SLOTS * SLOT_BYTES;
/// A header, the largest envelope, and the number of a grant.
const SLOT_BYTES: u64 = HEADER_BYTES as u64 + ENVELOPE_BYTES_MAX as u64 + GRANT_NUMBER_BYTES as u64;

#[derive(Debug)]
pub(super) struct Slots {
    region: Arc<Region>,
}

impl Slots {
    /// `region`: `SLOTS_BYTES` of registered memory.
    pub(super) fn new(region: Arc<Region>) -> Self {
        Self { region }
    }

    /// The local key.
    pub(super) fn key(&self) -> u32 {
        self.region.local_key()
    }

    /// Writes header, envelope, and the number of its grant, if it has one, to a record's slot. Returns them.
    pub(super) fn fill(
        &self,
        header: &RecordHeader,
        envelope: &[u8],
        grant: Option<GrantNumber>,
    ) -> Result<SharedBytes<'_>, RingMemoryError> {
        let at = (header.record.0 % SLOTS) * SLOT_BYTES;
        let (memory, mut end) = (self.region.mapping(), at);
        let outside = |_| {
            let span = RingSpan { offset: RingOffset(at), bytes: SLOT_BYTES };
            RingMemoryError::Span { span, ring_bytes: memory.bytes() }
        };
        let number = grant.map(|grant| grant.0.to_le_bytes());
        for part in [&header.encode()[..], envelope, number.as_ref().map_or(&[], |number| &number[..])] {
            memory.copy_in(end, part).map_err(outside)?;
            end += part.len() as u64;
        }
        memory.shared(at, end - at).map_err(outside)
    }
}
