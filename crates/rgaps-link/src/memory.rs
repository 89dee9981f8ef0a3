//! The ring's memory: a memfd of exactly the ring's size, mapped once. A device backend can map it too, by its file descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rgaps_os::{Access, MapError, Mapping, memfd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::geometry::RingGeometry;
use crate::position::RingSpan;
use crate::raw;

/// Ring memory could not be allocated or mapped, or a span is outside it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingMemoryError {
    /// The kernel refused the memory.
    #[error("ring memory of {bytes} B could not be allocated: {errno}; lower ring_bytes or raise the memory limit")]
    Create {
        /// Bytes requested.
        bytes: u64,
        /// The kernel's error.
        errno: Errno,
    },
    /// It could not be mapped, or the file descriptor is no memfd of that size.
    #[error("ring memory of {bytes} B could not be mapped: {reason}")]
    Map {
        /// Bytes requested.
        bytes: u64,
        /// Why not.
        reason: String,
    },
    /// The memory and the ring differ in size.
    #[error("the ring has {ring_bytes} B, but its memory has {found} B; both must be the same")]
    Size {
        /// Bytes of the ring.
        ring_bytes: u64,
        /// Bytes of the memory.
        found: u64,
    },
    /// A span outside the ring.
    #[error("{} B at offset {} are outside a ring of {ring_bytes} B", span.bytes, span.offset.0)]
    Span {
        /// The span.
        span: RingSpan,
        /// Bytes of the ring.
        ring_bytes: u64,
    },
}

/// The memory of one ring.
#[derive(Debug)]
pub struct RingMemory {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
}

impl RingMemory {
    /// Creates zeroed memory. The kernel allocates pages on first write, so an unused ring costs nothing.
    pub fn create(name: &str, bytes: u64) -> Result<Arc<Self>, RingMemoryError> {
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let fd = memfd::create(name, bytes).map_err(|error| RingMemoryError::Create { bytes, errno: errno(error) })?;
        Self::from_fd(fd, bytes)
    }

    /// Maps existing memory, for example registered with a device. Checks size and seals.
    pub fn from_fd(fd: OwnedFd, bytes: u64) -> Result<Arc<Self>, RingMemoryError> {
        let reason = |error: MapError| RingMemoryError::Map { bytes, reason: error.to_string() };
        let mapping = Mapping::map(&fd, bytes, Access::ReadWrite).map_err(reason)?;
        Ok(Arc::new(Self { fd, mapping: Arc::new(mapping) }))
    }

    /// Requests huge pages. Returns whether the kernel accepted the advice; the ring works either way.
    pub fn advise_huge_pages(&self) -> bool {
        raw::advise_huge_pages(&self.mapping).is_ok()
    }

    /// Frees all pages; the contents become zero. Only for memory that is not registered with a device, while the ring is empty and no thread
    /// writes it.
    pub(crate) fn give_back_pages(&self) -> bool {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, mode, 0, self.bytes()).is_ok()
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Its file descriptor, for a device backend to map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its mapping in this process.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Its mapping, for a device that registers it and keeps it alive.
    pub fn shared_mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Checks that it is exactly as large as the ring.
    pub fn check(&self, geometry: &RingGeometry) -> Result<(), RingMemoryError> {
        let (ring_bytes, found) = (geometry.ring_bytes(), self.bytes());
        if ring_bytes == found { Ok(()) } else { Err(RingMemoryError::Size { ring_bytes, found }) }
    }

    /// Copies bytes of a span, starting at `at` in the span. If the sender overwrites them at the same time, the copy is torn, but the call is
    /// sound.
    pub fn copy_out(&self, span: RingSpan, at: u64, to: &mut [u8]) -> Result<(), RingMemoryError> {
        let outside = RingMemoryError::Span { span, ring_bytes: self.bytes() };
        if at.checked_add(to.len() as u64).is_none_or(|end| end > span.bytes) {
            return Err(outside);
        }
        self.mapping.copy_out(span.offset.forward(at).0, to).map_err(|_| outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::RingOffset;

    #[test]
    fn spans_are_copied_out_within_their_bounds() {
        let memory = RingMemory::create("test", 4096).unwrap();
        memory.mapping().copy_in(100, b"hello").unwrap();
        let span = RingSpan { offset: RingOffset(100), bytes: 5 };
        let mut two = [0; 2];
        memory.copy_out(span, 3, &mut two).unwrap();
        assert_eq!(&two, b"lo");
        assert!(memory.copy_out(span, 4, &mut two).is_err());
        assert!(memory.copy_out(RingSpan { offset: RingOffset(u64::MAX), bytes: 5 }, 0, &mut two).is_err());
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let fd = memfd::create("test", 8192).unwrap();
        assert!(RingMemory::from_fd(fd, 4096).unwrap_err().to_string().contains("8192"));
    }

    #[test]
    fn advice_never_harms() {
        let memory = RingMemory::create("test", 4 << 20).unwrap();
        memory.mapping().copy_in(0, b"x").unwrap();
        memory.advise_huge_pages();
        let mut byte = [0];
        memory.copy_out(RingSpan { offset: RingOffset(0), bytes: 1 }, 0, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }
}
