//! Where the data of records are: in memory of this host, or in memory of a device that a network card reads and writes itself.

use std::sync::Arc;

use rgaps_os::{Access, DmaBuf, Mapping, SharedBytes};

/// Memory from which a link sends data, or into which it brings them.
#[derive(Clone, Debug)]
pub enum PayloadMemory {
    /// Memory of this host.
    Host(Arc<Mapping>),
    /// Memory of a device. Only a network card can use it.
    Device(Arc<DmaBuf>),
}

impl PayloadMemory {
    /// The mapping, if it is memory of this host.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match self {
            Self::Host(mapping) => Some(mapping),
            Self::Device(_) => None,
        }
    }

    /// Whether `bytes` bytes from `offset` may be written.
    pub(crate) fn has_room(&self, offset: u64, bytes: u64) -> bool {
        match self {
            Self::Host(mapping) => mapping.access() == Access::ReadWrite && mapping.shared(offset, bytes).is_ok(),
            Self::Device(memory) => memory.check(offset, bytes).is_ok(),
        }
    }

    /// The address of an offset, as the device that accesses it knows it.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        match self {
            Self::Host(mapping) => mapping.address() + offset,
            Self::Device(memory) => memory.address() + offset,
        }
    }

    /// Whether both are the same memory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Host(one), Self::Host(other)) => Arc::ptr_eq(one, other),
            (Self::Device(one), Self::Device(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl From<Arc<Mapping>> for PayloadMemory {
    fn from(mapping: Arc<Mapping>) -> Self {
        Self::Host(mapping)
    }
}

impl From<Arc<DmaBuf>> for PayloadMemory {
    fn from(memory: Arc<DmaBuf>) -> Self {
        Self::Device(memory)
    }
}

/// The data of a record.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In memory of this host.
    Host(SharedBytes<'a>),
    /// `bytes` bytes from `offset` of memory of a device, which the link has registered (`LinkSender::register`).
    Device {
        /// The memory.
        memory: &'a Arc<DmaBuf>,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: usize,
    },
}

impl<'a> Data<'a> {
    /// No data.
    pub const EMPTY: Self = Self::Host(SharedBytes::empty());

    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(data) => data.len(),
            Self::Device { bytes, .. } => *bytes,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are in memory of this host.
    pub fn in_host_memory(self) -> Option<SharedBytes<'a>> {
        match self {
            Self::Host(data) => Some(data),
            Self::Device { .. } => None,
        }
    }

    /// The address of the first byte, for a device.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Host(data) => data.address(),
            Self::Device { memory, offset, .. } => memory.address() + offset,
        }
    }
}

impl<'a> From<SharedBytes<'a>> for Data<'a> {
    fn from(data: SharedBytes<'a>) -> Self {
        Self::Host(data)
    }
}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(data: &'a [u8]) -> Self {
        Self::Host(data.into())
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Data<'a> {
    fn from(data: &'a [u8; N]) -> Self {
        Self::Host(data.into())
    }
}

impl<'a> From<&'a Vec<u8>> for Data<'a> {
    fn from(data: &'a Vec<u8>) -> Self {
        Self::Host(data.into())
    }
}
