//! Checksums of a tcp link's records and credits, which detect damage by the network before the data is used.
//!
//! ```text
//!  record  header 64 B | CRC32C of it, 4 B | payload | CRC32C of header and payload, 4 B
//!  credit  head 8 B, complement 8 B | CRC32C of both, 4 B
//! ```
//!
//! All little endian; with `Integrity::None` there are no sums. The header has its own sum because the receiver uses its length before it
//! has the payload: with a damaged length it would wait for bytes that are never sent, or read the next record as payload. The second sum
//! follows the payload, so that sender and receiver sum each piece while it is in the cache: just before sending, just after reading.
//!
//! CRC32C detects every error burst of up to 32 bits, and misses one in 2^32 of other errors. TCP's own checksum (RFC 1071) does not detect
//! reordered words.
//!
//! Source      the polynomial: Castagnoli, Bräuer and Herrmann, "Optimization of cyclic redundancy-check codes with 24 and 32 parity bits", IEEE
//!             Transactions on Communications 41 (6), 1993. iSCSI (RFC 7143, section 13.1) and SCTP (RFC 9260, appendix A) use it, too.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};
use rgaps_os::SharedBytes;

use crate::credit::{CREDIT_BYTES, CreditPair};
use crate::error::LinkError;
use crate::geometry::Integrity;

/// Bytes of a sum.
pub(crate) const SUM_BYTES: usize = 4;
/// Bytes of a credit with its sum.
pub(crate) const CREDIT_FRAME_BYTES: usize = CREDIT_BYTES + SUM_BYTES;
/// Bytes that are copied and summed at a time; they fit the first-level cache.
const BLOCK_BYTES: usize = 8 << 10;

impl Integrity {
    /// Bytes of each sum on the wire.
    pub(crate) fn sum_bytes(self) -> usize {
        match self {
            Self::Crc32c => SUM_BYTES,
            Self::None => 0,
        }
    }
}

/// The CRC32C of private bytes.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    digest.finalize() as u32
}

/// Encodes a credit with its sum, and returns how many of the bytes to send.
pub(crate) fn credit_frame(pair: CreditPair, integrity: Integrity) -> ([u8; CREDIT_FRAME_BYTES], usize) {
    let mut frame = [0; CREDIT_FRAME_BYTES];
    let credit = pair.encode();
    frame[..CREDIT_BYTES].copy_from_slice(&credit);
    frame[CREDIT_BYTES..].copy_from_slice(&sum(&credit).to_le_bytes());
    (frame, CREDIT_BYTES + integrity.sum_bytes())
}

/// Checks and decodes a complete credit frame.
pub(crate) fn open_credit(frame: &[u8; CREDIT_FRAME_BYTES], integrity: Integrity) -> Result<CreditPair, LinkError> {
    let credit: [u8; CREDIT_BYTES] = std::array::from_fn(|i| frame[i]);
    if integrity == Integrity::Crc32c {
        check("a credit", std::array::from_fn(|i| frame[CREDIT_BYTES + i]), sum(&credit))?;
    }
    Ok(CreditPair::decode(credit))
}

/// Compares a received sum with the computed one.
pub(crate) fn check(what: &'static str, sent: [u8; SUM_BYTES], found: u32) -> Result<(), LinkError> {
    let sent = u32::from_le_bytes(sent);
    if sent == found { Ok(()) } else { Err(LinkError::Corrupt { what, sent, found }) }
}

/// Computes the sum of a record piece by piece.
pub struct Summer {
    digest: Digest,
    block: Box<[u8; BLOCK_BYTES]>,
}

impl Summer {
    /// A sum of nothing.
    #[expect(clippy::new_without_default, reason = "it allocates")]
    pub fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc32Iscsi), block: Box::new([0; BLOCK_BYTES]) }
    }

    /// Starts a record, and returns the sum of its header.
    pub fn begin(&mut self, header: &[u8]) -> u32 {
        self.digest.reset();
        self.digest.update(header);
        self.sum()
    }

    /// Adds payload. Other processes may write it, so it is first copied to a block that stays in the cache; that is cheaper than reading
    /// memory twice.
    pub fn add(&mut self, bytes: SharedBytes<'_>) {
        for at in (0..bytes.len()).step_by(BLOCK_BYTES) {
            let block = &mut self.block[..BLOCK_BYTES.min(bytes.len() - at)];
            // In bounds: the block is at most the rest of the bytes.
            let _ = bytes.copy_out(at, block);
            self.digest.update(block);
        }
    }

    /// The sum of everything since `begin`.
    pub fn sum(&self) -> u32 {
        self.digest.finalize() as u32
    }
}

impl fmt::Debug for Summer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Summer({:#010x})", self.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_matches_the_vectors_of_iscsi() {
        // RFC 3720, B.4.
        assert_eq!(sum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(sum(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(sum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_sum_in_pieces_of_any_length_is_the_sum_of_the_whole() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 5).map(|i| ((i * 31) >> 3) as u8).collect();
        let mut summer = Summer::new();
        for cut in [0, 1, 63, 64, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, bytes.len()] {
            assert_eq!(summer.begin(&bytes[..cut.min(64)]), sum(&bytes[..cut.min(64)]));
            summer.add(bytes[cut.min(64)..cut].into());
            summer.add(bytes[cut..].into());
            assert_eq!(summer.sum(), sum(&bytes));
        }
    }

    #[test]
    fn every_error_within_32_bits_and_every_swap_of_two_words_changes_the_sum() {
        let bytes: Vec<u8> = (0..68_u32).map(|i| (i * i * 7 + i) as u8).collect();
        let whole = sum(&bytes);
        for at in 0..bytes.len() - 3 {
            for flip in [1_u32, 0x8000_0001, 0xffff_ffff, 0x00ff_ff00] {
                let mut damaged = bytes.clone();
                damaged[at..at + 4].iter_mut().zip(flip.to_le_bytes()).for_each(|(byte, flip)| *byte ^= flip);
                assert_ne!(sum(&damaged), whole);
            }
        }
        for (first, second) in (0..34).flat_map(|a| (a + 1..34).map(move |b| (2 * a, 2 * b))) {
            let mut damaged = bytes.clone();
            damaged.swap(first, second);
            damaged.swap(first + 1, second + 1);
            assert!(damaged == bytes || sum(&damaged) != whole);
        }
    }
}
