//! Devices and their attributes, and names of errors.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{Code, INVALID_VALUE, Out, Uuid};
use crate::config::config;
use crate::errors::describe;
use crate::library::DEVICE_NAME;
use crate::state::{driver, start};

/// CUDA 12.8.
const VERSION: c_int = 12080;

calls! {
    /// Initialises the driver in this process.
    fn cuInit(flags: c_uint) {
        if flags == 0 { start() } else { Err(INVALID_VALUE) }
    }

    /// The newest CUDA version that it supports.
    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(VERSION)
    }

    /// The number of devices.
    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(driver()?.devices.len() as c_int)
    }

    /// A device by ordinal, which is also its handle.
    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        driver()?.device(ordinal)?;
        device.set(ordinal)
    }

    /// Its name, the same for all devices.
    fn cuDeviceGetName(name: Out<c_char>, bytes: c_int, device: c_int) {
        driver()?.device(device)?;
        name.set_text(DEVICE_NAME, usize::try_from(bytes).map_err(|_| INVALID_VALUE)?)
    }

    /// Its UUID, the same in every process.
    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: c_int) {
        let (index, _) = driver()?.device(device)?;
        let mut bytes = *b"RGAPS stand-in..";
        bytes[15] = index as u8;
        uuid.set(Uuid(bytes))
    }

    /// One of its attributes; an error for those that the tests do not need.
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) {
        driver()?.device(device)?;
        value.set(property(attribute).ok_or(INVALID_VALUE)?)
    }

    /// Bytes of its memory.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        driver()?.device(device)?;
        bytes.set(config().memory as usize)
    }

    /// Whether one device has peer access to another.
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let (device, _) = driver()?.device(device)?;
        let (peer, _) = driver()?.device(peer)?;
        can.set((device != peer && config().peer).into())
    }

    /// The name of a result code.
    fn cuGetErrorName(code: Code, name: Out<*const c_char>) {
        name.set(describe(code).ok_or(INVALID_VALUE)?.0.as_ptr())
    }

    /// The text of a result code.
    fn cuGetErrorString(code: Code, text: Out<*const c_char>) {
        text.set(describe(code).ok_or(INVALID_VALUE)?.1.as_ptr())
    }
}

/// The value of a `CUdevice_attribute`.
fn property(attribute: c_uint) -> Option<c_int> {
    let config = config();
    Some(match attribute {
        // INTEGRATED.
        18 => config.integrated.into(),
        // CAN_MAP_HOST_MEMORY, CONCURRENT_KERNELS, UNIFIED_ADDRESSING, HOST_REGISTER_SUPPORTED.
        19 | 31 | 41 | 99 => 1,
        // READ_ONLY_HOST_REGISTER_SUPPORTED.
        113 => config.read_only_register.into(),
        // ASYNC_ENGINE_COUNT.
        40 => 2,
        // COMPUTE_CAPABILITY_MAJOR and _MINOR.
        75 => 8,
        76 => 0,
        // CAN_USE_STREAM_MEM_OPS_V1, CAN_USE_64_BIT_STREAM_MEM_OPS_V1, CAN_USE_64_BIT_STREAM_MEM_OPS.
        92 | 93 | 122 => config.stream_memory_operations.into(),
        // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED.
        102 | 103 => config.vmm.into(),
        // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, GPU_DIRECT_RDMA_SUPPORTED, DMA_BUF_SUPPORTED.
        110 | 116 | 124 => config.gpu_direct.into(),
        // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: the host can flush.
        117 => config.gpu_direct.into(),
        // GPU_DIRECT_RDMA_WRITES_ORDERING.
        118 => config.rdma_ordering,
        // MEMORY_POOLS_SUPPORTED.
        115 => config.memory_pools.into(),
        _ => return None,
    })
}
