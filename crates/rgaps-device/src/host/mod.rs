//! Backend `host`: pools in host memory. A device pointer is a host pointer, and every operation is done when its call returns.

mod pool;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use pool::HostPool;

use crate::backend::{Backend, BufferPart, PayloadAccess, PoolPart};
use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::stream::{Completion, Stream};

/// Host memory as a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBackend;

impl HostBackend {
    /// Always there.
    pub fn new() -> Self {
        Self
    }
}

impl Backend for HostBackend {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Host
    }

    fn device(&self) -> DeviceId {
        DeviceId::default()
    }

    fn payload_access(&self) -> PayloadAccess {
        PayloadAccess::Direct
    }

    fn create_pool(&self, spec: &PoolSpec) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        Ok(Arc::new(HostPool::create(spec)?))
    }

    fn import_pool(
        &self,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Arc<dyn PoolMemory>, DeviceError> {
        Ok(Arc::new(HostPool::import(description, slabs, role)?))
    }

    fn host_buffer(&self, spec: &BufferSpec) -> Result<HostBuffer, DeviceError> {
        HostBuffer::new(spec)
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        Ok(Stream::immediate())
    }

    fn copy_to_host(
        &self,
        stream: &Stream,
        from: PoolPart<'_>,
        to: BufferPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        let pool = own(from.pool)?;
        to.buffer.mapping().copy_from(to.offset, pool.mapping(), from.offset, bytes)?;
        Ok(Completion::of(stream))
    }

    fn copy_to_device(
        &self,
        stream: &Stream,
        from: BufferPart<'_>,
        to: PoolPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError> {
        let pool = own(to.pool)?;
        pool.mapping().copy_from(to.offset, from.buffer.mapping(), from.offset, bytes)?;
        Ok(Completion::of(stream))
    }
}

fn own(pool: &dyn PoolMemory) -> Result<&HostPool, DeviceError> {
    pool.as_host().ok_or(DeviceError::Foreign { wanted: DeviceKind::Host, found: pool.kind() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_backend_keeps_the_contract() {
        crate::contract::check(&HostBackend::new());
    }

    #[test]
    fn a_write_through_a_readers_mapping_is_impossible() {
        let backend = HostBackend::new();
        let made = backend.create_pool(&PoolSpec { name: "rgaps-proof".to_owned(), bytes: 8192 }).unwrap();
        let (description, slabs) = made.export().unwrap();
        made.seal().unwrap();
        let reader = backend.import_pool(&description, slabs, PoolRole::Reader).unwrap();
        let address = reader.as_host().unwrap().mapping().address();
        // What the kernel says of the page: r--s, no w. A store to it is a SIGSEGV, not an error of ours.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{address:x}-"))).unwrap();
        assert!(line.contains(" r--s "), "{line}");
    }
}
