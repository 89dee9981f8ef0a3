//! A host pool: one slab, one memfd.

use std::os::fd::OwnedFd;

use rgaps_os::{Access, AllocationRight, Mapping, OutOfRange, OwnedRange, Seals, memfd};

use crate::error::DeviceError;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec, SlabDescription};

/// A pool in host memory.
#[derive(Debug)]
pub struct HostPool {
    fd: OwnedFd,
    mapping: Mapping,
    name: String,
}

impl HostPool {
    pub(super) fn create(spec: &PoolSpec) -> Result<Self, DeviceError> {
        let bytes = spec.bytes.max(1).checked_next_multiple_of(4096).unwrap_or(u64::MAX);
        let create = |source| DeviceError::Create { name: spec.name.clone(), bytes, source };
        let fd = memfd::create(&spec.name, bytes).map_err(create)?;
        // Writable, also in the manager: a NIC registers only what is (facts of the verbs API), and after the seal it is too late.
        Self::map(fd, bytes, Access::ReadWrite, &spec.name)
    }

    pub(super) fn import(
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Self, DeviceError> {
        let fd = check(description, slabs)?;
        let name = "a pool".to_owned();
        if role == PoolRole::Reader {
            memfd::check(&fd, description.bytes, Seals::SizeAndFutureWrite)
                .map_err(|source| DeviceError::Map { name: name.clone(), source: source.into() })?;
        }
        let access = match role {
            PoolRole::Writer => Access::ReadWrite,
            PoolRole::Reader => Access::ReadOnly,
        };
        Self::map(fd, description.bytes, access, &name)
    }

    fn map(fd: OwnedFd, bytes: u64, access: Access, name: &str) -> Result<Self, DeviceError> {
        let mapping =
            Mapping::map(&fd, bytes, access).map_err(|source| DeviceError::Map { name: name.to_owned(), source })?;
        Ok(Self { fd, mapping, name: name.to_owned() })
    }

    /// Its mapping in this process.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl PoolMemory for HostPool {
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
        let slab = SlabDescription { index: 0, generation: 0, bytes };
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

    fn host_bytes(&self, offset: u64, bytes: u64) -> Result<&[u8], OutOfRange> {
        self.mapping.shared_bytes(offset, bytes)
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
}

fn check(description: &PoolDescription, slabs: Vec<OwnedFd>) -> Result<OwnedFd, DeviceError> {
    let refuse = |text: String| Err(DeviceError::Description(text));
    if description.kind != DeviceKind::Host || description.device != DeviceId::default() {
        return refuse(format!("it lies on a {:?} device, this process uses host memory", description.kind));
    }
    if description.slabs.len() != 1 || slabs.len() != 1 {
        let (said, came) = (description.slabs.len(), slabs.len());
        return refuse(format!("a host pool has 1 slab; {said} were described and {came} came"));
    }
    if description.slabs[0].bytes != description.bytes {
        return refuse(format!("its slab has {} B, the pool {} B", description.slabs[0].bytes, description.bytes));
    }
    slabs.into_iter().next().ok_or_else(|| DeviceError::Description("no descriptor came".to_owned()))
}
