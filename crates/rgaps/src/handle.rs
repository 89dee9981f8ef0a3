//! Handles: the name of a message outside RGAPS, usually inside a ROS message.
//!
//! ```text
//!   publish ──▶ MessageHandle ──any middleware──▶ MessageHandle ──take──▶ Sample
//! ```
//!
//! A handle is plain data. Having one does not hold the message, and it may come from any source. `Subscriber::take_by_handle` checks whether it
//! still names a message.

use rgaps_shm::info::MessageInfo;
use rgaps_shm::reader::seen_publishers::MessageName;
use rgaps_shm::words::history::MessageRef;

/// The name of a message. rgaps_msgs/GpuHandle and `rgaps_message_handle_t` in C have the same bytes.
///
/// (`source_host`, `host_epoch`, `publisher`, `sequence`) name the message on every host. (`topic_id`, `position`, `entry`, `generation`) locate it in
/// one host's segment, and are valid on that host only.
///
/// ```
/// use rgaps::MessageHandle;
///
/// let handle = MessageHandle { publisher: 7, sequence: 3, ..MessageHandle::default() };
/// assert_eq!(MessageHandle::from_bytes(&handle.to_bytes()), handle);
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MessageHandle {
    /// Host of the publisher.
    pub source_host: [u8; 16],
    /// The topic's segment on the host that wrote this handle.
    pub topic_id: [u8; 16],
    /// When the publisher's host started, in ns since 1970 on its clock. It differs for each run of the host.
    pub host_epoch: u64,
    /// Identity of the publisher.
    pub publisher: u64,
    /// The publisher's sequence number, from 1.
    pub sequence: u64,
    /// Position in the topic's order on the host that wrote this handle.
    pub position: u64,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// Index of the message's entry in that host's message table.
    pub entry: u32,
    /// Generation of the entry.
    pub generation: u32,
    /// Version of this layout. A take refuses other versions.
    pub layout_version: u32,
    /// The kind of message (`dynamic::Kind`).
    pub kind: u32,
}

impl MessageHandle {
    /// Length of the encoded handle.
    pub const BYTES: usize = 88;
    /// The present `layout_version`; equals GpuHandle.LAYOUT_VERSION.
    pub const LAYOUT_VERSION: u32 = 1;

    pub(crate) fn new(topic_id: [u8; 16], message: MessageRef, info: &MessageInfo) -> Self {
        Self {
            source_host: info.source_host,
            topic_id,
            host_epoch: info.host_epoch,
            publisher: info.publisher,
            sequence: info.sequence,
            position: info.position,
            payload_bytes: info.bytes,
            entry: message.index.0.into(),
            generation: message.generation.0,
            layout_version: Self::LAYOUT_VERSION,
            kind: info.kind,
        }
    }

    /// The handle's bytes, as in memory and in a ROS message.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.source_host);
        bytes[16..32].copy_from_slice(&self.topic_id);
        let words = [self.host_epoch, self.publisher, self.sequence, self.position, self.payload_bytes];
        let halves = [self.entry, self.generation, self.layout_version, self.kind];
        bytes[32..72].as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_ne_bytes());
        bytes[72..].as_chunks_mut().0.iter_mut().zip(halves).for_each(|(to, half)| *to = half.to_ne_bytes());
        bytes
    }

    /// Reads the bytes of `to_bytes`. Any bytes are accepted; only a take checks what they name.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rgaps::{MessageHandle, Node, TakeByHandleError, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let subscriber = Node::new("relay")?.subscriber::<Bytes>("raw")?;
    /// let forged = MessageHandle::from_bytes(&[0xff; MessageHandle::BYTES]);
    /// let refused = subscriber.take_by_handle(&forged, Duration::from_secs(1)).map(drop);
    /// assert!(matches!(refused, Err(TakeByHandleError::Layout { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |place: usize| u64::from_ne_bytes(bytes[32..72].as_chunks().0[place]);
        let half = |place: usize| u32::from_ne_bytes(bytes[72..].as_chunks().0[place]);
        let identity = |place: usize| bytes.as_chunks().0[place];
        Self {
            source_host: identity(0),
            topic_id: identity(1),
            host_epoch: word(0),
            publisher: word(1),
            sequence: word(2),
            position: word(3),
            payload_bytes: word(4),
            entry: half(0),
            generation: half(1),
            layout_version: half(2),
            kind: half(3),
        }
    }

    /// The message's name.
    ///
    /// ```
    /// use std::collections::HashSet;
    ///
    /// use rgaps::MessageHandle;
    ///
    /// // The same message, as two hosts name it.
    /// let here = MessageHandle { publisher: 7, sequence: 3, position: 10, ..MessageHandle::default() };
    /// let there = MessageHandle { position: 24, ..here };
    /// let seen: HashSet<_> = [here.name(), there.name()].into();
    /// assert_eq!(seen.len(), 1);
    /// ```
    pub fn name(&self) -> MessageName {
        MessageName { publisher: self.publisher, sequence: self.sequence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_its_bytes_whatever_they_are() {
        assert_eq!(size_of::<MessageHandle>(), MessageHandle::BYTES);
        let mut bytes = [0; MessageHandle::BYTES];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = place as u8;
        }
        let handle = MessageHandle::from_bytes(&bytes);
        assert_eq!(handle.to_bytes(), bytes);
        assert_eq!((handle.source_host[1], handle.topic_id[1]), (1, 17));
        assert_eq!(handle.host_epoch.to_ne_bytes()[0], 32);
        assert_eq!(handle.kind.to_ne_bytes()[3], 87);
    }
}
