//! Host buffers: staging and receive rings. Each is a memfd, so that the link can map it too, and is registered with the device once.
//!
//! Other threads, the link's mapping, the kernel and a device write into it, so callers use it only through `mapping()`: by copies, and as
//! `SharedBytes`.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rgaps_os::{Access, Mapping, memfd};

use crate::error::DeviceError;
use crate::raw;

/// A buffer to create.
#[derive(Clone, Debug)]
pub struct BufferSpec {
    /// The name that /proc/PID/maps shows.
    pub name: String,
    /// Bytes; rounded up to whole pages.
    pub bytes: u64,
}

/// Host memory that a device copies to and from.
#[derive(Debug)]
pub struct HostBuffer {
    /// The device's registration. Declared first, so that it is dropped before the memory.
    registration: Option<Arc<dyn Any + Send + Sync>>,
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    name: String,
}

impl HostBuffer {
    /// Allocates the memory. Backends call it and register the result with their device.
    pub fn new(spec: &BufferSpec) -> Result<Self, DeviceError> {
        let bytes = whole_pages(spec.bytes);
        let create = |source| DeviceError::Create { name: spec.name.clone(), bytes, source };
        let fd = memfd::create(&spec.name, bytes).map_err(create)?;
        Self::map(fd, bytes, &spec.name)
    }

    /// Uses existing memory: a memfd of exactly `spec.bytes` whose size is sealed.
    pub fn from_fd(spec: &BufferSpec, fd: OwnedFd) -> Result<Self, DeviceError> {
        Self::map(fd, spec.bytes, &spec.name)
    }

    fn map(fd: OwnedFd, bytes: u64, name: &str) -> Result<Self, DeviceError> {
        let mapping = Mapping::map(&fd, bytes, Access::ReadWrite)
            .map_err(|source| DeviceError::Map { name: name.to_owned(), source })?;
        Ok(Self { registration: None, fd, mapping: Arc::new(mapping), name: name.to_owned() })
    }

    /// Attaches a device registration, which lives as long as the buffer.
    pub(crate) fn kept_by(self, registration: Arc<dyn Any + Send + Sync>) -> Self {
        Self { registration: Some(registration), ..self }
    }

    /// Whether a device has pinned its pages. Punching a hole would then leave the device with the old pages and the mapping with new ones.
    pub fn is_registered(&self) -> bool {
        self.registration.is_some()
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Its file descriptor, for others that map it too.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its mapping, to register with a NIC that reads it by DMA.
    pub fn shared_mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Its mapping in this process.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Bytes of memory that it occupies now.
    pub fn resident_bytes(&self) -> u64 {
        memfd::resident_bytes(&self.fd).unwrap_or_default()
    }

    /// Faults in every page, so that no copy pays for a first touch.
    pub fn populate(&self) -> Result<(), DeviceError> {
        let pages = raw::Pages::of(&self.mapping, 0, self.bytes())?;
        raw::populate(&self.mapping, pages).map_err(|error| self.failed("populated", error))
    }

    /// Locks its pages in memory for as long as it lives. Counts against RLIMIT_MEMLOCK.
    pub fn pin(&self) -> Result<(), DeviceError> {
        raw::pin(&self.mapping).map_err(|error| {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            match (error, limit) {
                // mlock(2): EPERM without any allowance, ENOMEM beyond it, EAGAIN if some pages could not be locked.
                (rustix::io::Errno::PERM | rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN, Some(limit)) => {
                    DeviceError::Memlock { name: self.name.clone(), bytes: self.bytes(), limit }
                }
                _ => self.failed("pinned", error),
            }
        })
    }

    fn failed(&self, what: &'static str, error: rustix::io::Errno) -> DeviceError {
        DeviceError::Pages { name: self.name.clone(), what, offset: 0, bytes: self.bytes(), source: error.into() }
    }
}

impl AsFd for HostBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// Rounds up to whole pages, at least one. Saturates on overflow, so that the kernel refuses the size.
pub(crate) fn whole_pages(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(rgaps_os::page_bytes()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn buffer(bytes: u64) -> HostBuffer {
        HostBuffer::new(&BufferSpec { name: "rgaps-test".to_owned(), bytes }).unwrap()
    }

    #[test]
    fn a_fresh_buffer_occupies_nothing_until_it_is_populated() {
        let buffer = buffer(4 * MIB);
        assert_eq!(buffer.resident_bytes(), 0);
        buffer.populate().unwrap();
        assert_eq!(buffer.resident_bytes(), 4 * MIB);
        assert!(!buffer.is_registered());
    }

    #[test]
    fn sizes_are_whole_pages_and_impossible_ones_are_refused() {
        assert_eq!(buffer(1).bytes(), rgaps_os::page_bytes());
        assert_eq!(buffer(0).bytes(), rgaps_os::page_bytes());
        for bytes in [u64::MAX, 1 << 63, i64::MAX as u64] {
            let error = HostBuffer::new(&BufferSpec { name: "rgaps-test".to_owned(), bytes }).unwrap_err();
            assert!(error.to_string().contains("rgaps-test"), "{error}");
        }
    }

    #[test]
    fn a_buffer_from_an_fd_is_the_same_memory_and_must_have_the_announced_size() {
        let one = buffer(MIB);
        let spec = |bytes| BufferSpec { name: "rgaps-twin".to_owned(), bytes };
        let two = HostBuffer::from_fd(&spec(MIB), one.fd().try_clone_to_owned().unwrap()).unwrap();
        one.mapping().copy_in(4096, b"same").unwrap();
        let mut found = [0; 4];
        two.mapping().copy_out(4096, &mut found).unwrap();
        assert_eq!(&found, b"same");
        let lie = HostBuffer::from_fd(&spec(MIB / 2), one.fd().try_clone_to_owned().unwrap());
        assert!(matches!(lie, Err(DeviceError::Map { .. })));
    }

    #[test]
    fn pinning_beyond_the_limit_names_the_limit_and_the_remedy() {
        let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Memlock).current else {
            eprintln!("skipped: the limit on locked memory is unlimited");
            return;
        };
        let buffer = buffer(limit + MIB);
        // Capabilities belong to a thread: only this one loses the right to ignore the limit.
        let error = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let mut mine = rustix::thread::capabilities(None).unwrap();
                    mine.effective.remove(rustix::thread::CapabilitySet::IPC_LOCK);
                    rustix::thread::set_capabilities(None, mine).unwrap();
                    buffer.pin().unwrap_err()
                })
                .join()
                .unwrap()
        });
        assert!(matches!(&error, DeviceError::Memlock { limit: found, .. } if *found == limit), "{error}");
        assert!(error.to_string().contains("ulimit -l"), "{error}");
    }

    #[test]
    fn a_small_buffer_can_be_pinned() {
        let buffer = buffer(4096);
        buffer.pin().unwrap();
        assert!(buffer.resident_bytes() >= buffer.bytes());
    }
}
