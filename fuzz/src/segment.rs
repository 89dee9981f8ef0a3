//! The shared memory of a topic, which each of its publishers may write.

use rgaps_shm::fuzz_segment;

use super::Parsers;

/// The parsers.
pub const PARSERS: Parsers = &[("words", fuzz_segment)];
