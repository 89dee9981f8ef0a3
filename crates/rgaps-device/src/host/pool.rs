//! A host pool: one slab, one memfd.
//!
//! Invariants  Its size is sealed on creation, so no mapping of it faults (SIGBUS). After `seal` the kernel refuses new writable mappings,
//!             write(2) and hole punching; the existing mappings of the manager and the writer stay writable.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rgaps_os::{Access, AllocationRight, Mapping, OutOfRange, OwnedRange, Seals, SharedBytes, memfd};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals};

use crate::buffer::whole_pages;
use crate::error::{DescriptionError, DeviceError};
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec, SlabDescription};
use crate::raw;

/// A pool in host memory.
#[derive(Debug)]
pub struct HostPool {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    name: String,
}

impl HostPool {
    pub(crate) fn create(spec: &PoolSpec) -> Result<Self, DeviceError> {
        let bytes = whole_pages(spec.bytes);
        let memory = memory_bytes();
        if bytes > memory {
            // A memfd may be larger than memory; the OOM killer would then end the process that touches its last page.
            return Err(DeviceError::TooLarge { name: spec.name.clone(), bytes, memory });
        }
        let create = |source| DeviceError::Create { name: spec.name.clone(), bytes, source };
        let fd = memfd::create_to_be_sealed(&spec.name, bytes).map_err(create)?;
        // Writable in the manager too: ibv_reg_mr registers only writable pages, and after the seal no new writable mapping is possible.
        Self::map(fd, bytes, Access::ReadWrite, &spec.name)
    }

    pub(crate) fn import(
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Self, DeviceError> {
        description.check((DeviceKind::Host, DeviceId::default()), 1, slabs.len())?;
        let Some(fd) = slabs.into_iter().next() else {
            return Err(DescriptionError::FileDescriptors { described: 1, came: 0 }.into());
        };
        let name = "a pool".to_owned();
        if role != PoolRole::Writer {
            memfd::check(&fd, description.bytes, Seals::SizeAndFutureWrite)
                .map_err(|source| DeviceError::Map { name: name.clone(), source: source.into() })?;
        }
        let access = match role {
            PoolRole::Writer => Access::ReadWrite,
            PoolRole::Reader | PoolRole::Successor => Access::ReadOnly,
        };
        Self::map(fd, description.bytes, access, &name)
    }

    fn map(fd: OwnedFd, bytes: u64, access: Access, name: &str) -> Result<Self, DeviceError> {
        let mapping =
            Mapping::map(&fd, bytes, access).map_err(|source| DeviceError::Map { name: name.to_owned(), source })?;
        Ok(Self { fd, mapping: Arc::new(mapping), name: name.to_owned() })
    }

    fn failed(&self, what: &'static str, offset: u64, bytes: u64, error: rustix::io::Errno) -> DeviceError {
        DeviceError::Pages { name: self.name.clone(), what, offset, bytes, source: error.into() }
    }

    fn is_sealed(&self) -> bool {
        fcntl_get_seals(&self.fd).is_ok_and(|seals| seals.contains(SealFlags::FUTURE_WRITE))
    }

    pub(crate) fn shared_mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The mapping in this process.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl PoolMemory for HostPool {
    fn host_mapping(&self) -> Option<Arc<Mapping>> {
        (self.mapping.access() == Access::ReadWrite).then(|| self.mapping.clone())
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Host
    }

    fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    fn export(&self) -> Result<(PoolDescription, Vec<OwnedFd>), DeviceError> {
        let bytes = self.bytes();
        let fd =
            self.fd.try_clone().map_err(|source| DeviceError::Create { name: self.name.clone(), bytes, source })?;
        let slab = SlabDescription { index: 0, generation: 1, bytes };
        let description =
            PoolDescription { kind: DeviceKind::Host, device: DeviceId::default(), bytes, slabs: vec![slab] };
        Ok((description, vec![fd]))
    }

    fn seal(&self) -> Result<(), DeviceError> {
        memfd::seal_future_write(&self.fd).map_err(|source| DeviceError::Seal { name: self.name.clone(), source })
    }

    fn allocation_right(&self) -> Option<AllocationRight> {
        self.mapping.allocation_right()
    }

    fn block_mut<'a>(&'a self, block: &'a mut OwnedRange) -> Result<&'a mut [u8], OutOfRange> {
        self.mapping.bytes_mut(block)
    }

    fn block<'a>(&'a self, block: &'a OwnedRange) -> Result<&'a [u8], OutOfRange> {
        self.mapping.owned_bytes(block)
    }

    fn shared(&self, offset: u64, bytes: u64) -> Result<SharedBytes<'_>, OutOfRange> {
        self.mapping.shared(offset, bytes)
    }

    fn device_address(&self, offset: u64) -> Result<u64, OutOfRange> {
        let mapped = self.bytes();
        if offset >= mapped {
            Err(OutOfRange { offset, bytes: 1, mapped })
        } else {
            Ok(self.mapping.address() + offset)
        }
    }

    fn advise_huge_pages(&self) -> Result<(), DeviceError> {
        raw::advise_huge_pages(&self.mapping)
            .map_err(|error| self.failed("advised to be huge pages", 0, self.bytes(), error))
    }

    fn populate(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let pages = raw::Pages::of(&self.mapping, offset, bytes)?;
        raw::populate(&self.mapping, pages).map_err(|error| self.failed("populated", offset, bytes, error))
    }

    fn release_unused(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        raw::Pages::of(&self.mapping, offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.fd, mode, offset, bytes).map_err(|error| match error {
            rustix::io::Errno::PERM if self.is_sealed() => DeviceError::Kept { name: self.name.clone(), bytes },
            error => self.failed("given back", offset, bytes, error),
        })
    }

    fn identity(&self) -> (u64, u64) {
        memfd::identity(&self.fd).unwrap_or_default()
    }

    fn resident_bytes(&self) -> u64 {
        memfd::resident_bytes(&self.fd).unwrap_or_default()
    }

    fn as_host(&self) -> Option<&HostPool> {
        Some(self)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// All memory of this machine.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)))
}
