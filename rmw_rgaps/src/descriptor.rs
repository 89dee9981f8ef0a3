//! Memory for ROS messages of GPU topics. `rgaps_ros_policy::descriptor` has their layout and checks; of those, the layer needs the handle's alone,
//! because it delivers the core's metadata and not the message's copy.

use std::ffi::c_void;

use rgaps::dynamic::{DynamicMeta, Kind};
use rgaps::{Described, MessageHandle, MessageInfo};
use rgaps_ros_policy::descriptor::{BYTES_MAX, bytes_of, write};

/// Memory for a message of any of the types, in the layout of C and C++.
#[repr(C, align(8))]
#[derive(Clone)]
pub(crate) struct Descriptor([u8; BYTES_MAX]);

impl Descriptor {
    /// All zeros.
    pub(crate) fn zeroed() -> Self {
        Self([0; BYTES_MAX])
    }

    /// A descriptor that does not name a message yet.
    pub(crate) fn empty(kind: Kind) -> Self {
        let handle = MessageHandle {
            layout_version: MessageHandle::LAYOUT_VERSION,
            kind: kind.code(),
            ..MessageHandle::default()
        };
        let mut descriptor = Self::zeroed();
        descriptor.0[..MessageHandle::BYTES].copy_from_slice(&handle.to_bytes());
        descriptor
    }

    /// The descriptor of a taken message.
    pub(crate) fn of(message: &Described<DynamicMeta>) -> Self {
        let mut descriptor = Self::zeroed();
        write(&message.handle, &message.meta, &mut descriptor.0);
        descriptor
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> MessageHandle {
        self.0.first_chunk().map(MessageHandle::from_bytes).unwrap_or_default()
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
pub(crate) unsafe fn handle_of(message: *const c_void) -> MessageHandle {
    // SAFETY: every one of the types begins with these bytes, which may be any.
    MessageHandle::from_bytes(&unsafe { message.cast::<[u8; MessageHandle::BYTES]>().read() })
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
        assert_eq!((handle.layout_version, handle.kind), (MessageHandle::LAYOUT_VERSION, Kind::Tensor.code()));
        assert_eq!((handle.publisher, handle.sequence), (0, 0));
    }
}
