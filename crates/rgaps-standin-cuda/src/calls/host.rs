//! Registered host memory.

use std::thread;

use crate::abi::{Out, Status};
use crate::current;
use crate::state::driver;
use crate::stream::POLL;

calls! {
    /// Registers host memory, all of which must be mapped, and writable unless it is registered read-only.
    fn cuMemHostRegister_v2(start: u64, bytes: usize, flags: u32) {
        let context = current::current()?;
        driver()?.registrations.register(start, bytes as u64, flags, context.id)
    }

    /// Unregisters host memory once no running operation uses it. Queued operations that need it fail.
    fn cuMemHostUnregister(start: u64) {
        let context = current::current_even_failed()?;
        while !is_unregistered(start)? {
            thread::sleep(POLL);
        }
        context.check()
    }

    /// The device address of registered memory.
    fn cuMemHostGetDevicePointer_v2(at: Out<u64>, start: u64, _flags: u32) {
        current::current()?;
        at.set(driver()?.registrations.device_address(start)?)
    }
}

fn is_unregistered(start: u64) -> Status<bool> {
    Ok(driver()?.registrations.unregister(start)?.is_some())
}
