//! A GPU and this process's context on it.
//!
//! Invariants  The context is current only during a call (`Device::enter`), so the caller's current context is restored. It is the primary
//!             context, which cudarc, the runtime API and PyTorch use too, so their streams and pointers work here. Driver calls here do
//!             not invalidate a CUDA graph capture of another thread.

use std::ffi::{c_int, c_uint};
use std::fmt::Write;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUuuid};
use rgaps_os::ForkGuard;

use super::driver::{self, Driver, DriverError};
use super::gpu_direct::{Says, Visibility, judge};
use crate::error::DeviceError;
use crate::pool::DeviceId;

/// What a device can do, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Its ordinal in this process.
    pub ordinal: u32,
    /// Its UUID, the same in every process.
    pub id: DeviceId,
    /// Its product name.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Whether its memory is the host's (Jetson).
    pub is_integrated: bool,
    /// Whether memory can be mapped and shared piece by piece (VMM with POSIX file descriptors).
    pub has_slabs: bool,
    /// Whether it can access registered host memory (cuMemHostRegister); if it is integrated, also read-only mappings.
    pub has_registration: bool,
    /// Whether this process can register host memory that it may only read (CU_MEMHOSTREGISTER_READ_ONLY).
    pub has_read_only_registration: bool,
    /// Whether its streams have stream memory operations on 32-bit words.
    pub has_stream_words: bool,
    /// Whether it has the stream-ordered allocator (cuMemAllocAsync).
    pub has_memory_pools: bool,
    /// Whether network cards can access its memory (GPUDirect RDMA), and when what they write is visible; or why not.
    pub gpu_direct: Result<Visibility, &'static str>,
    /// Compute capability.
    pub capability: (u32, u32),
}

/// A GPU, with its primary context retained while this lives.
#[derive(Debug)]
pub struct Device {
    driver: &'static Driver,
    handle: CUdevice,
    context: CUcontext,
    properties: Properties,
    /// The device of the pools: this one, or one to which it has peer access.
    home: Properties,
    /// Detects a fork: the driver does not work in a forked child.
    fork: ForkGuard,
}

// SAFETY: a context handle may be used from any thread; the current context belongs to a thread, and `enter` sets it.
unsafe impl Send for Device {}
// SAFETY: as above; the driver locks its contexts itself.
unsafe impl Sync for Device {}

/// Keeps the device's context current in this thread until dropped.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    device: &'a Device,
    /// This thread's capture mode before.
    capture_mode: c_uint,
    /// Not `Send`: the current context belongs to a thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: reads and stores one integer; after a failure the mode stays relaxed, which refuses no call.
        let _ = unsafe { self.device.driver.exchange_capture_mode(&raw mut self.capture_mode) };
        self.device.pop();
    }
}

impl Device {
    /// The number of devices that this process sees; an error says why there is no driver.
    pub fn count() -> Result<u32, String> {
        let driver = Driver::load()?;
        let mut count: c_int = 0;
        // SAFETY: stores one integer.
        unsafe { driver.device_count(&raw mut count) }.map_err(|error| error.to_string())?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Whether no driver is installed at all, which is normal on a machine without a GPU.
    pub(crate) fn has_no_driver() -> bool {
        driver::is_absent()
    }

    /// The newest CUDA version that the driver supports, as (major, minor).
    pub fn driver_version() -> Result<(u32, u32), String> {
        let driver = Driver::load()?;
        let mut version: c_int = 0;
        // SAFETY: stores one integer.
        unsafe { driver.driver_version(&raw mut version) }.map_err(|error| error.to_string())?;
        let version = version as u32;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Reads a device's properties without creating a context.
    pub fn properties_of(ordinal: u32) -> Result<Properties, String> {
        let driver = Driver::load()?;
        Ok(look(driver, ordinal)?.1)
    }

    /// Opens a device by ordinal.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, String> {
        let driver = Driver::load()?;
        let (handle, properties) = look(driver, ordinal)?;
        let fork = ForkGuard::new().map_err(|error| format!("no page for the fork guard: {error}"))?;
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: stores one handle; released in `drop`.
        unsafe { driver.retain_context(&raw mut context, handle) }.map_err(|error| error.to_string())?;
        let home = properties.clone();
        Ok(Arc::new(Self { driver, handle, context, properties, home, fork }))
    }

    /// Opens device `ordinal` to work on pools of device `home`, and returns whether it has peer access to them. If not, its `home` is itself.
    pub fn open_beside(ordinal: u32, home: u32) -> Result<(Arc<Self>, bool), String> {
        let (_, home) = look(Driver::load()?, home)?;
        let mut device = Self::open(ordinal)?;
        let reaches = device.reaches(home.ordinal).map_err(|error| error.to_string())?;
        if let Some(device) = Arc::get_mut(&mut device).filter(|_| reaches) {
            device.home = home;
        }
        Ok((device, reaches))
    }

    /// The ordinal of the device with this UUID.
    pub fn with_id(id: DeviceId) -> Result<u32, String> {
        let count = Self::count()?;
        let found = (0..count).find(|ordinal| Self::properties_of(*ordinal).is_ok_and(|found| found.id == id));
        found.ok_or_else(|| format!("device {} is not among the {count} that this process sees", uuid_text(id)))
    }

    /// Its properties.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The device of the pools.
    pub fn home(&self) -> &Properties {
        &self.home
    }

    /// Whether this device has peer access to another's memory (cuDeviceCanAccessPeer).
    pub fn reaches(&self, ordinal: u32) -> Result<bool, DeviceError> {
        let mut peer: CUdevice = 0;
        // SAFETY: stores one handle.
        unsafe { self.driver.device(&raw mut peer, ordinal as c_int) }?;
        let mut can: c_int = 0;
        // SAFETY: stores one integer.
        unsafe { self.driver.can_access_peer(&raw mut can, self.handle, peer) }?;
        Ok(can != 0)
    }

    /// Its free and total bytes of memory.
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: stores two integers.
        unsafe { self.driver.memory_info(&raw mut free, &raw mut total) }?;
        Ok((free as u64, total as u64))
    }

    /// Its context, retained while this lives.
    pub(crate) fn context(&self) -> CUcontext {
        self.context
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Makes the context current in this thread until the result is dropped.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DriverError> {
        if !self.fork.is_owner() {
            return Err(DriverError::forked());
        }
        // SAFETY: the context is retained while `self` lives.
        unsafe { self.driver.push_context(self.context) }?;
        let capture_mode = self.driver.relax_capture_mode().inspect_err(|_| self.pop())?;
        Ok(Entered { device: self, capture_mode, _thread: std::marker::PhantomData })
    }

    /// Restores the context that was current before `enter`.
    fn pop(&self) {
        let mut popped: CUcontext = std::ptr::null_mut();
        // SAFETY: pops what `enter` pushed; after a failure the context stays current, which is harmless.
        let _ = unsafe { self.driver.pop_context(&raw mut popped) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.fork.is_owner() {
            // SAFETY: retained once by `open`; every object of the context holds this device, so all are dropped.
            let _ = unsafe { self.driver.release_context(self.handle) };
        }
    }
}

fn look(driver: &'static Driver, ordinal: u32) -> Result<(CUdevice, Properties), String> {
    let count = Device::count()?;
    if ordinal >= count {
        return Err(format!("there is no device {ordinal}: this process sees {count} (CUDA_VISIBLE_DEVICES)"));
    }
    let mut handle: CUdevice = 0;
    // SAFETY: stores one handle.
    unsafe { driver.device(&raw mut handle, ordinal as c_int) }.map_err(|error| error.to_string())?;
    let properties = read(driver, handle, ordinal).map_err(|error| error.to_string())?;
    Ok((handle, properties))
}

fn read(driver: &Driver, handle: CUdevice, ordinal: u32) -> Result<Properties, DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let attribute = |which: Attribute| {
        let mut value: c_int = 0;
        // SAFETY: stores one integer; an attribute that the driver does not know is an error.
        unsafe { driver.device_attribute(&raw mut value, which as c_uint, handle) }.map(|()| value)
    };
    let number = |which| match attribute(which) {
        // An older driver does not know newer attributes.
        Err(error) if error.is_invalid_value() => Ok(0),
        known => known,
    };
    let has = |which| number(which).map(|value| value != 0);
    let mut name = [0; 256];
    // SAFETY: the driver writes at most the given number of bytes, the last a zero.
    unsafe { driver.device_name(name.as_mut_ptr(), name.len() as c_int, handle) }?;
    let name: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: stores 16 bytes.
    unsafe { driver.device_uuid(&raw mut uuid, handle) }?;
    let mut memory_bytes = 0_usize;
    // SAFETY: stores one integer.
    unsafe { driver.device_memory(&raw mut memory_bytes, handle) }?;
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let is_integrated = has(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)?;
    let has_read_only_registration = has(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)?;
    let gpu_direct = judge(Says {
        is_integrated,
        has_rdma: has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?,
        has_rdma_for_slabs: has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
        has_dma_buf: has(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
        has_calls: driver.has_gpu_direct(),
        flush_options: number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?,
        ordering: number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?,
    });
    Ok(Properties {
        ordinal,
        id: DeviceId(uuid.bytes.map(|byte| byte as u8)),
        name: String::from_utf8_lossy(&name).into_owned(),
        memory_bytes: memory_bytes as u64,
        is_integrated,
        has_slabs: has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)?
            && has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
        has_registration: has(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)?
            && (!is_integrated || has_read_only_registration),
        has_read_only_registration,
        // There is no attribute for the 32-bit v2 operations alone; a device with the 64-bit ones has them too.
        has_stream_words: driver.has_stream_words()
            && (has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?
                || has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1)?),
        has_memory_pools: has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?,
        gpu_direct,
        capability: (capability.0 as u32, capability.1 as u32),
    })
}

/// The UUID in nvidia-smi's format.
pub fn uuid_text(id: DeviceId) -> String {
    let mut text = "GPU-".to_owned();
    for (index, byte) in id.0.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The reverse of `uuid_text`.
pub fn parse_uuid(text: &str) -> Option<DeviceId> {
    let digits: Vec<u8> = text.strip_prefix("GPU-")?.bytes().filter(|byte| *byte != b'-').collect();
    let digits: Vec<u8> = digits.iter().map(|c| char::from(*c).to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks(2).filter_map(|pair| Some(pair.first()? << 4 | pair.get(1)?)).collect();
    (digits.len() == 32).then(|| DeviceId(bytes.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_written_as_nvidia_smi_does_and_read_back() {
        let id = DeviceId([0x5a, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff]);
        assert_eq!(uuid_text(id), "GPU-5a010203-0405-0607-0809-0a0b0c0d0eff");
        assert_eq!(parse_uuid(&uuid_text(id)), Some(id));
        for wrong in
            ["", "GPU-", "5a010203-0405-0607-0809-0a0b0c0d0eff", "GPU-5a01", "GPU-zz010203-0405-0607-0809-0a0b0c0d0eff"]
        {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }
}
