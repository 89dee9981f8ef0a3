//! Backend `host`: pools in host memory. A device pointer is a host pointer, and every operation is done when its call returns.

mod pool;

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use pool::HostPool;
use rgaps_os::Mapping;

use crate::backend::{Backend, BufferPart, PayloadAccess, PoolPart};
use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::raw::DevicePart;
use crate::stream::{Completion, Stream, StreamMemory};

/// Host memory as a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBackend;

impl HostBackend {
    /// Always succeeds: every machine has host memory.
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

    fn host_buffer_from_fd(&self, spec: &BufferSpec, fd: OwnedFd) -> Result<HostBuffer, DeviceError> {
        HostBuffer::from_fd(spec, fd)
    }

    fn stream_memory(&self, mapping: &Arc<Mapping>) -> Result<Arc<dyn StreamMemory>, DeviceError> {
        Ok(Arc::new(HostStreamMemory(mapping.clone())))
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
        from.check_read(bytes)?;
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
        to.check_fill(bytes)?;
        let pool = own(to.pool)?;
        pool.mapping().copy_from(to.offset, from.buffer.mapping(), from.offset, bytes)?;
        Ok(Completion::of(stream))
    }

    fn copy_in(&self, stream: &Stream, from: &[u8], to: PoolPart<'_>) -> Result<Completion, DeviceError> {
        to.check_fill(from.len() as u64)?;
        own(to.pool)?.mapping().copy_in(to.offset, from)?;
        Ok(Completion::of(stream))
    }

    fn copy_out(&self, _: &Stream, from: PoolPart<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        from.check_read(to.len() as u64)?;
        Ok(own(from.pool)?.mapping().copy_out(from.offset, to)?)
    }

    fn copy_within(&self, _: &Stream, from: &DevicePart, to: PoolPart<'_>) -> Result<(), DeviceError> {
        to.check_fill(from.bytes())?;
        own(to.pool)?.mapping().copy_in(to.offset, from.as_host_bytes())?;
        Ok(())
    }

    fn copy_across(&self, stream: &Stream, from: PoolPart<'_>, to: PoolPart<'_>) -> Result<Completion, DeviceError> {
        to.check_fill(from.bytes())?;
        own(to.pool)?.mapping().copy_from(to.offset, own(from.pool)?.mapping(), from.offset, from.bytes())?;
        Ok(Completion::of(stream))
    }
}

/// A plain mapping: the CPU writes and reads the words itself.
#[derive(Debug)]
struct HostStreamMemory(Arc<Mapping>);

impl StreamMemory for HostStreamMemory {
    fn mapping(&self) -> &Mapping {
        &self.0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn own(pool: &dyn PoolMemory) -> Result<&HostPool, DeviceError> {
    pool.as_host().ok_or(DeviceError::Foreign { wanted: DeviceKind::Host, found: pool.kind() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pool(bytes: u64) -> Arc<dyn PoolMemory> {
        HostBackend::new().create_pool(&PoolSpec { name: "rgaps-test".to_owned(), bytes }).unwrap()
    }

    #[test]
    fn the_host_backend_keeps_the_contract() {
        crate::testing::contract::check(&HostBackend::new());
    }

    #[test]
    fn a_pool_larger_than_memory_is_refused_with_both_sizes() {
        let spec = |bytes| PoolSpec { name: "/camera".to_owned(), bytes };
        for bytes in [1 << 45, u64::MAX - 5, u64::MAX] {
            let error = HostBackend::new().create_pool(&spec(bytes)).unwrap_err();
            assert!(matches!(error, DeviceError::TooLarge { memory, .. } if memory > MIB), "{error}");
            assert!(error.to_string().contains("lower pool_bytes"), "{error}");
        }
    }

    #[test]
    fn a_fresh_pool_costs_nothing_and_a_populated_part_costs_what_it_says() {
        let pool = pool(8 * MIB);
        assert_eq!(pool.resident_bytes(), 0);
        pool.populate(MIB, 2 * MIB).unwrap();
        // Huge pages may round it up.
        assert!((2 * MIB..8 * MIB).contains(&pool.resident_bytes()));
        assert!(matches!(pool.populate(8 * MIB, 1), Err(DeviceError::Range(_))));
        assert!(matches!(pool.populate(u64::MAX, 2), Err(DeviceError::Range(_))));
    }

    #[test]
    fn a_pool_frees_pages_before_the_seal_and_keeps_them_after_it() {
        let pool = pool(8 * MIB);
        pool.populate(0, 8 * MIB).unwrap();
        pool.release_unused(2 * MIB, 4 * MIB).unwrap();
        assert_eq!(pool.resident_bytes(), 4 * MIB);
        pool.release_unused(8 * MIB, 0).unwrap();
        assert!(matches!(pool.release_unused(8 * MIB, 1), Err(DeviceError::Range(_))));
        pool.seal().unwrap();
        let error = pool.release_unused(0, MIB).unwrap_err();
        assert!(matches!(error, DeviceError::Kept { bytes: MIB, .. }), "{error}");
        assert_eq!(pool.resident_bytes(), 4 * MIB, "nothing was given back");
    }

    #[test]
    fn huge_pages_are_advice_that_a_pool_accepts() {
        match pool(4 * MIB).advise_huge_pages() {
            Ok(()) => {}
            Err(DeviceError::Pages { source, .. }) if source.kind() == std::io::ErrorKind::InvalidInput => {
                eprintln!("skipped: this kernel has no transparent huge pages");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_write_through_a_sealed_pools_file_descriptor_is_refused() {
        use std::io::Write;
        let pool = pool(4096);
        pool.seal().unwrap();
        let (_, mut slabs) = pool.export().unwrap();
        let mut file = std::fs::File::from(slabs.remove(0));
        assert_eq!(file.write(b"x").unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_readers_pages_are_read_only_in_proc_self_maps() {
        let made = pool(8192);
        let (description, slabs) = made.export().unwrap();
        made.seal().unwrap();
        let reader = HostBackend::new().import_pool(&description, slabs, PoolRole::Reader).unwrap();
        let address = reader.device_address(0).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{address:x}-"))).unwrap();
        assert!(line.contains(" r--s "), "{line}");
    }
}
