//! Host buffers: staging and receive rings. A memfd, so that the link can map it too, registered with the device once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rgaps_os::{Access, Mapping, memfd};

use crate::error::DeviceError;

/// A buffer to be made.
#[derive(Clone, Debug)]
pub struct BufferSpec {
    /// Shows in /proc/PID/maps, for people.
    pub name: String,
    /// Bytes; rounded up to whole pages.
    pub bytes: u64,
}

/// Host memory that a device copies to and from.
#[derive(Debug)]
pub struct HostBuffer {
    fd: OwnedFd,
    mapping: Mapping,
}

impl HostBuffer {
    pub(crate) fn new(spec: &BufferSpec) -> Result<Self, DeviceError> {
        let bytes = spec.bytes.next_multiple_of(4096);
        let fd = memfd::create(&spec.name, bytes).map_err(|source| DeviceError::Create {
            name: spec.name.clone(),
            bytes,
            source,
        })?;
        let mapping = Mapping::map(&fd, bytes, Access::ReadWrite)
            .map_err(|source| DeviceError::Map { name: spec.name.clone(), source })?;
        Ok(Self { fd, mapping })
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Its mapping in this process.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl AsFd for HostBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
