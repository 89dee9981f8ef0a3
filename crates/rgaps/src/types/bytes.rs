//! Raw bytes: a payload described by its length alone.
//!
//! ```text
//! Bytes, 112 B
//!   0  Header
//! 104  u64  bytes  length of the payload
//! 112
//! ```

use std::mem::{offset_of, size_of};

use rgaps_shm::layout::META_BYTES_MAX;

use super::meta::{HEADER_BYTES, Header, Meta, MetaError};
use super::wire::{Fields, Layout};

/// Metadata of a payload of raw bytes.
///
/// ```
/// use rgaps::types::{Bytes, Meta};
///
/// assert_eq!(Bytes::new(64).payload_bytes(), 64);
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bytes {
    /// Stamp, frame and the application's bytes.
    pub header: Header,
    /// Length of the payload.
    pub bytes: u64,
}

const _: () = assert!(size_of::<Bytes>() == Bytes::ENCODED_BYTES && offset_of!(Bytes, bytes) == HEADER_BYTES);

impl Bytes {
    /// Describes a payload of `bytes` bytes.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Bytes, Meta, Stamp}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("logger")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let packet = b"hello";
    /// publisher.push(&Bytes::new(packet.len() as u64).stamped(Stamp::now()), packet)?;
    /// # assert_eq!(subscriber.take()?.ok_or("no message")?.bytes(), packet);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(bytes: u64) -> Self {
        Self { header: Header::default(), bytes }
    }
}

impl Meta for Bytes {
    const KIND: u32 = 0;
    const TYPE_NAME: &'static str = "rgaps/Bytes";
    const ENCODED_BYTES: usize = 112;

    fn encode(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        let mut to = Layout::into(to);
        self.header.encode(&mut to);
        to.u64(self.bytes);
        to.written()
    }

    fn decode(bytes: &[u8]) -> Result<Self, MetaError> {
        let mut fields = Fields::of(Self::TYPE_NAME, bytes, Self::ENCODED_BYTES)?;
        Ok(Self { header: Header::decode(&mut fields)?, bytes: fields.u64() })
    }

    fn payload_bytes(&self) -> u64 {
        self.bytes
    }

    fn check_shape(&self) -> Result<(), MetaError> {
        self.header.check()
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn header_mut(&mut self) -> &mut Header {
        &mut self.header
    }
}

#[cfg(test)]
mod tests {
    use super::super::meta::tests::survives_its_bytes;
    use super::*;

    #[test]
    fn raw_bytes_survive_their_encoding_and_describe_their_length() {
        let bytes = Bytes::new(1 << 33).with_user([7; 32]);
        survives_its_bytes(&bytes);
        bytes.check(1 << 33).unwrap();
        assert!(bytes.check(0).is_err());
    }
}
