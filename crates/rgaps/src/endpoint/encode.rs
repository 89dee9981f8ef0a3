//! Metadata of any type, for publishers that do not know it.

use rgaps_shm::layout::META_BYTES_MAX;

use crate::dynamic::DynamicMeta;
use crate::types::{Meta, MetaError};

/// Metadata of a type that is known at compile time or at run time.
pub(crate) trait Encode {
    fn encode_into(&self, to: &mut [u8; META_BYTES_MAX]) -> usize;
    fn code(&self) -> u32;
    fn described_bytes(&self) -> u64;
    fn check_against(&self, payload_bytes: u64) -> Result<(), MetaError>;
}

impl<T: Meta> Encode for T {
    fn encode_into(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        self.encode(to)
    }

    fn code(&self) -> u32 {
        T::KIND
    }

    fn described_bytes(&self) -> u64 {
        self.payload_bytes()
    }

    fn check_against(&self, payload_bytes: u64) -> Result<(), MetaError> {
        self.check(payload_bytes)
    }
}

impl Encode for DynamicMeta {
    fn encode_into(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        self.encode(to)
    }

    fn code(&self) -> u32 {
        self.kind().code()
    }

    fn described_bytes(&self) -> u64 {
        self.payload_bytes()
    }

    fn check_against(&self, payload_bytes: u64) -> Result<(), MetaError> {
        self.check(payload_bytes)
    }
}
