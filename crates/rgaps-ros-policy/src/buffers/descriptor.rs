//! What the middleware carries in place of the bytes: rgaps_msgs/BufferDescriptor.

use rgaps::MessageHandle;
use rgaps::dynamic::Kind;

use super::gid::Gid;

/// The name of a payload, for one subscription.
///
/// ```text
///   0                    88             104     120    136       144
///   | handle (GpuHandle) | subscription | topic | join | process |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The payload's message.
    pub handle: MessageHandle,
    /// The subscription that it is for.
    pub subscription: Gid,
    /// The subscription on whose topic the message is: this one, or another on its host.
    pub topic: Gid,
    /// The subscription whose topic this one is to join, for later payloads; all zeros for none.
    pub join: Gid,
    /// The publishing process, to be told of the join, or that the subscription cannot read the topic of another one any more; else zero.
    pub process: u64,
}

impl Descriptor {
    /// Bytes of a descriptor.
    pub const BYTES: usize = MessageHandle::BYTES + 56;

    /// Without a payload: its subscription is no longer reached, or the sender could not read the bytes. Reads of it fail.
    pub(super) fn without_payload(subscription: Gid, bytes: u64) -> Self {
        let handle = MessageHandle {
            payload_bytes: bytes,
            layout_version: MessageHandle::LAYOUT_VERSION,
            kind: Kind::Bytes.code(),
            ..MessageHandle::default()
        };
        Self { handle, subscription, topic: subscription, ..Self::default() }
    }

    pub(super) fn has_no_payload(&self) -> bool {
        self.handle.sequence == 0
    }

    /// The bytes, as in memory and in a ROS message.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..88].copy_from_slice(&self.handle.to_bytes());
        for (place, gid) in bytes[88..136].as_chunks_mut().0.iter_mut().zip([self.subscription, self.topic, self.join])
        {
            *place = gid.0;
        }
        bytes[136..].copy_from_slice(&self.process.to_ne_bytes());
        bytes
    }

    /// Reads the bytes of `to_bytes`. Any bytes are accepted; `Buffers::receive` checks what they name.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let handle = bytes.first_chunk().map(MessageHandle::from_bytes).unwrap_or_default();
        let [subscription, topic, join] = [0, 1, 2].map(|at| Gid(bytes[88..136].as_chunks().0[at]));
        let process = bytes.last_chunk().map(|chunk| u64::from_ne_bytes(*chunk)).unwrap_or_default();
        Self { handle, subscription, topic, join, process }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_read_as_it_was_written() {
        let descriptor = Descriptor {
            handle: MessageHandle { sequence: 3, payload_bytes: 99, ..MessageHandle::default() },
            subscription: Gid([9; 16]),
            topic: Gid([8; 16]),
            join: Gid([7; 16]),
            process: 6,
        };
        assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()), descriptor);
        assert!(!descriptor.has_no_payload() && Descriptor::without_payload(Gid([1; 16]), 5).has_no_payload());
    }
}
