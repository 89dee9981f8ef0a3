//! What the backend is compared with: copies of pageable memory, as a program makes them that knows nothing of pinned memory.
//!
//! The driver copies them through its own pinned memory, and the call returns when they are done. For benches only (feature `baseline`).

use std::ffi::{c_int, c_void};

use cudarc::driver::sys::{self, CUdeviceptr};
use rgaps_os::SharedBytes;

use super::driver::{Driver, symbol};
use super::memory::DeviceAccess;
use super::{CudaBackend, Target};
use crate::backend::PoolPart;
use crate::error::DeviceError;

const TO_HOST: &str = "cuMemcpyDtoH_v2";
const TO_DEVICE: &str = "cuMemcpyHtoD_v2";

type ToHost = unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize) -> c_int;
type ToDevice = unsafe extern "C" fn(CUdeviceptr, *const c_void, usize) -> c_int;

impl CudaBackend {
    fn here(&self, part: PoolPart<'_>, bytes: u64, access: DeviceAccess) -> Result<CUdeviceptr, DeviceError> {
        match self.address(part, bytes, access)? {
            Target::Direct(at) => Ok(at),
            Target::NoPeer(_) => Err(DeviceError::Failed("benches run on the device of the pools".to_owned())),
        }
    }

    /// Copies part of a pool into pageable memory: cuMemcpyDtoH. It is there when the call returns. An error if the part is not in the pool,
    /// if it has no memory yet, or if the driver refuses; `to` then holds anything.
    pub fn copy_to_pageable(&self, from: PoolPart<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        let at = self.here(from, to.len() as u64, DeviceAccess::Read)?;
        let call: ToHost = find(TO_HOST)?;
        let _entered = self.device.enter()?;
        // SAFETY: the symbol has this signature in cuda.h; the part was checked, the slice is ours until the call returns.
        let code = unsafe { call(to.as_mut_ptr().cast(), at, to.len()) };
        Ok(self.device.driver().check(TO_HOST, code)?)
    }

    /// Copies pageable memory into part of a pool: cuMemcpyHtoD. It is there when the call returns. Errors as for `copy_to_pageable`.
    pub fn copy_from_pageable<'a>(
        &self,
        from: impl Into<SharedBytes<'a>>,
        to: PoolPart<'_>,
    ) -> Result<(), DeviceError> {
        let from = from.into();
        let at = self.here(to, from.len() as u64, DeviceAccess::ReadWrite)?;
        let call: ToDevice = find(TO_DEVICE)?;
        let _entered = self.device.enter()?;
        // SAFETY: as above.
        let code = unsafe { call(at, from.address() as *const _, from.len()) };
        Ok(self.device.driver().check(TO_DEVICE, code)?)
    }
}

/// A function of the driver that this process has loaded.
fn find<F: Copy>(name: &str) -> Result<F, DeviceError> {
    Driver::load().map_err(DeviceError::Failed)?;
    // SAFETY: the driver is loaded, so this neither searches nor panics; it stays so.
    let library = unsafe { sys::culib() };
    symbol(library, name).map_err(DeviceError::Failed)
}
