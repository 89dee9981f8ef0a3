//! Descriptors: ROS messages of GPU topics, byte for byte. A handle, then the core's metadata.

use std::ffi::c_void;

use rgaps::dynamic::{DynamicMeta, Kind};
use rgaps::{Described, Handle, MessageInfo};

/// Most bytes of metadata that the core keeps for a message.
const META_BYTES_MAX: usize = 1024;
const BYTES_MAX: usize = Handle::BYTES + META_BYTES_MAX;

/// Memory for a message of any of the types, in the layout of C and C++.
#[repr(C, align(8))]
#[derive(Clone)]
pub(crate) struct Descriptor([u8; BYTES_MAX]);

/// Length of a descriptor in memory: its fields are aligned to 8 bytes at most.
pub(crate) const fn bytes_of(encoded: usize) -> usize {
    (Handle::BYTES + encoded).next_multiple_of(8)
}

impl Descriptor {
    /// All zeros.
    pub(crate) fn zeroed() -> Self {
        Self([0; BYTES_MAX])
    }

    /// A descriptor that does not name a message yet.
    pub(crate) fn empty(kind: Kind) -> Self {
        let handle = Handle { layout_version: Handle::LAYOUT_VERSION, kind: kind.code(), ..Handle::default() };
        let mut descriptor = Self::zeroed();
        descriptor.0[..Handle::BYTES].copy_from_slice(&handle.to_bytes());
        descriptor
    }

    /// The descriptor of a taken message.
    pub(crate) fn of(message: &Described<DynamicMeta>) -> Self {
        let mut descriptor = Self::zeroed();
        let (handle, meta) = descriptor.0.split_at_mut(Handle::BYTES);
        handle.copy_from_slice(&message.handle.to_bytes());
        if let Some((meta, _)) = meta.split_first_chunk_mut() {
            message.meta.encode(meta);
        }
        descriptor
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> Handle {
        self.0.first_chunk().map(Handle::from_bytes).unwrap_or_default()
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// Copies it into a ROS message of its type.
    // SAFETY: a message of this kind is there, and no thread reads it meanwhile.
    pub(crate) unsafe fn copy_to(&self, kind: Kind, message: *mut c_void) {
        // SAFETY: the message is so long, as the caller says; the descriptor is longer; they are different memory.
        unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr(), message.cast(), bytes_of(kind.encoded_bytes())) };
    }
}

/// The handle at the start of a ROS message.
// SAFETY: a message of one of the types is there, and no thread writes it meanwhile.
pub(crate) unsafe fn handle_of(message: *const c_void) -> Handle {
    // SAFETY: every one of the types begins with these bytes, which may be any.
    Handle::from_bytes(&unsafe { message.cast::<[u8; Handle::BYTES]>().read() })
}

/// A publisher's gid, of rmw's 16 or 24 bytes: its own identity, then its host's.
pub(crate) fn gid(info: &MessageInfo, to: &mut [u8]) {
    let publisher = info.publisher.to_ne_bytes();
    to.iter_mut().zip(publisher.iter().chain(&info.source_host)).for_each(|(to, byte)| *to = *byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_descriptor_has_its_layout_and_kind_and_names_no_message() {
        let handle = Descriptor::empty(Kind::Tensor).handle();
        assert_eq!((handle.layout_version, handle.kind), (Handle::LAYOUT_VERSION, Kind::Tensor.code()));
        assert_eq!((handle.publisher, handle.sequence), (0, 0));
    }

    #[test]
    fn every_kind_has_room() {
        for kind in Kind::ALL {
            assert!(bytes_of(kind.encoded_bytes()) <= size_of::<Descriptor>(), "{kind}");
        }
    }
}
