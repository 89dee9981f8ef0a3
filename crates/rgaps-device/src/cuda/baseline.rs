//! The baseline of the benches: copies of pageable memory, which a program makes that does not pin its memory.
//!
//! The driver copies them through its own pinned memory, and the call returns when they are done. For benches only (feature `baseline`).

use std::ffi::{c_int, c_void};

use cudarc::driver::sys::{self, CUdeviceptr};
use rgaps_os::SharedBytes;

use super::driver::{Driver, symbol};
use super::memory::DeviceAccess;
use super::{CudaBackend, PoolAddress};
use crate::backend::PoolPart;
use crate::error::DeviceError;

const TO_HOST: &str = "cuMemcpyDtoH_v2";
const TO_DEVICE: &str = "cuMemcpyHtoD_v2";

type ToHost = unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize) -> c_int;
type ToDevice = unsafe extern "C" fn(CUdeviceptr, *const c_void, usize) -> c_int;

impl CudaBackend {
    fn here(&self, part: PoolPart<'_>, bytes: u64, access: DeviceAccess) -> Result<CUdeviceptr, DeviceError> {
        match self.address(part, bytes, access)? {
            PoolAddress::Direct(at) => Ok(at),
            PoolAddress::NoPeer(_) => Err(DeviceError::Failed("benches run on the device of the pools".to_owned())),
        }
    }

    /// Copies part of a pool into pageable memory and waits for it: cuMemcpyDtoH. An error if the part is outside the pool or not mapped, or if
    /// the driver fails; `to` then has any content.
    pub fn copy_to_pageable(&self, from: PoolPart<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        let at = self.here(from, to.len() as u64, DeviceAccess::Read)?;
        let call: ToHost = find(TO_HOST)?;
        let _entered = self.device.enter()?;
        // SAFETY: the symbol has this signature in cuda.h; the part was checked; the slice is borrowed until the call returns.
        let code = unsafe { call(to.as_mut_ptr().cast(), at, to.len()) };
        Ok(self.device.driver().check(TO_HOST, code)?)
    }

    /// Copies pageable memory into part of a pool and waits for it: cuMemcpyHtoD. Same errors as `copy_to_pageable`.
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

/// Finds a function of the loaded driver.
fn find<F: Copy>(name: &str) -> Result<F, DeviceError> {
    Driver::load().map_err(DeviceError::Failed)?;
    // SAFETY: the driver is loaded and stays loaded, so this neither searches nor panics.
    let library = unsafe { sys::culib() };
    symbol(library, name).map_err(DeviceError::Failed)
}
