//! Frame number and checksum of a message, in the user bytes of its metadata.
//!
//! ```text
//! user bytes of a header
//!  0  u8[4]  "rgck"
//!  4  u32    CRC-32 of the payload
//!  8  u64    frame number
//! 16  zero
//! ```

use rgaps::types::USER_BYTES;

use super::checksum;

const MAGIC: [u8; 4] = *b"rgck";

/// Frame number and checksum of a payload.
///
/// ```
/// use rgaps::types::{Bytes, Meta};
/// use rgaps_media::Mark;
///
/// let payload = b"hello";
/// let sent = Bytes::new(5).with_user(Mark::of(7, payload).to_user());
/// let mark = Mark::from_user(&sent.header.user).ok_or("no mark")?; // at the subscriber
/// assert!(mark.frame == 7 && mark.matches(payload) && !mark.matches(b"hallo"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The source's frame number.
    pub frame: u64,
    /// CRC-32 of the payload.
    pub crc: u32,
}

impl Mark {
    /// The mark of a payload.
    pub fn of(frame: u64, payload: &[u8]) -> Self {
        Self { frame, crc: checksum(payload) }
    }

    /// The mark as user bytes of a header.
    pub fn to_user(self) -> [u8; USER_BYTES] {
        let mut user = [0; USER_BYTES];
        user[..4].copy_from_slice(&MAGIC);
        user[4..8].copy_from_slice(&self.crc.to_le_bytes());
        user[8..16].copy_from_slice(&self.frame.to_le_bytes());
        user
    }

    /// The mark in user bytes, if there is one.
    pub fn from_user(user: &[u8; USER_BYTES]) -> Option<Self> {
        let (magic, rest) = user.split_first_chunk()?;
        let (crc, rest) = rest.split_first_chunk()?;
        let (frame, _) = rest.split_first_chunk()?;
        (*magic == MAGIC).then(|| Self { frame: u64::from_le_bytes(*frame), crc: u32::from_le_bytes(*crc) })
    }

    /// Whether this is the payload that was marked.
    pub fn matches(self, payload: &[u8]) -> bool {
        self.crc == checksum(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_the_user_bytes_and_tells_payloads_apart() {
        let mark = Mark::of(1 << 40, b"payload");
        assert_eq!(Mark::from_user(&mark.to_user()), Some(mark));
        assert!(mark.matches(b"payload") && !mark.matches(b"pay1oad"));
        assert_eq!(Mark::from_user(&[0; USER_BYTES]), None);
    }
}
