//! A pool on a GPU that shares the host's memory (Jetson): a host pool registered with the device. CPU and GPU read the same bytes in
//! place, and links send from it directly.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rgaps_os::{AllocationRight, Mapping, OutOfRange, OwnedRange, SharedBytes};

use super::device::Device;
use super::memory::Registration;
use crate::error::{DescriptionError, DeviceError};
use crate::host::HostPool;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};

/// Pinned host memory as a pool of a device.
#[derive(Debug)]
pub struct IntegratedPool {
    // Declared first, so that it is unregistered before it is unmapped.
    registration: Registration,
    host: HostPool,
    device: DeviceId,
}

impl IntegratedPool {
    pub(super) fn create(device: &Arc<Device>, spec: &PoolSpec) -> Result<Self, DeviceError> {
        Self::of(device, HostPool::create(spec)?)
    }

    pub(super) fn import(
        device: &Arc<Device>,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Self, DeviceError> {
        let id = device.properties().id;
        if (description.kind, description.device) != (DeviceKind::Cuda, id) {
            return Err(DescriptionError::Device { wanted: DeviceKind::Cuda, found: description.kind }.into());
        }
        let of_host = PoolDescription { kind: DeviceKind::Host, device: DeviceId::default(), ..description.clone() };
        Self::of(device, HostPool::import(&of_host, slabs, role)?)
    }

    fn of(device: &Arc<Device>, host: HostPool) -> Result<Self, DeviceError> {
        let registration = Registration::of(device, host.shared_mapping())?;
        Ok(Self { registration, host, device: device.properties().id })
    }

    /// The device address of a part; an error for a write to a pool that this process maps read-only.
    pub(super) fn address_for(&self, offset: u64, bytes: u64, to_write: bool) -> Result<u64, OutOfRange> {
        self.host.shared(offset, bytes)?;
        if to_write && self.host.host_mapping().is_none() {
            return Err(OutOfRange { offset, bytes, mapped: 0 });
        }
        Ok(self.registration.device_address() + offset)
    }
}

impl PoolMemory for IntegratedPool {
    fn host_mapping(&self) -> Option<Arc<Mapping>> {
        self.host.host_mapping()
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn bytes(&self) -> u64 {
        self.host.bytes()
    }

    fn export(&self) -> Result<(PoolDescription, Vec<OwnedFd>), DeviceError> {
        let (description, slabs) = self.host.export()?;
        Ok((PoolDescription { kind: DeviceKind::Cuda, device: self.device, ..description }, slabs))
    }

    fn seal(&self) -> Result<(), DeviceError> {
        self.host.seal()
    }

    fn allocation_right(&self) -> Option<AllocationRight> {
        self.host.allocation_right()
    }

    fn block_mut<'a>(&'a self, block: &'a mut OwnedRange) -> Result<&'a mut [u8], OutOfRange> {
        self.host.block_mut(block)
    }

    fn block<'a>(&'a self, block: &'a OwnedRange) -> Result<&'a [u8], OutOfRange> {
        self.host.block(block)
    }

    fn shared(&self, offset: u64, bytes: u64) -> Result<SharedBytes<'_>, OutOfRange> {
        self.host.shared(offset, bytes)
    }

    fn device_address(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.address_for(offset, 1, false)
    }

    fn advise_huge_pages(&self) -> Result<(), DeviceError> {
        self.host.advise_huge_pages()
    }

    fn populate(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.host.populate(offset, bytes)
    }

    fn release_unused(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.shared(offset, bytes)?;
        // The device has pinned the pages.
        Err(DeviceError::Kept { name: "a pool registered with an integrated GPU".to_owned(), bytes })
    }

    fn identity(&self) -> (u64, u64) {
        self.host.identity()
    }

    fn resident_bytes(&self) -> u64 {
        self.host.resident_bytes()
    }

    fn as_host(&self) -> Option<&HostPool> {
        None
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
