//! Host memory that devices reach.

use std::thread;

use crate::abi::{Out, Status};
use crate::context;
use crate::state::driver;
use crate::stream::POLL;

calls! {
    /// Registers host memory, all of which must be mapped, and writable unless it is registered for reading.
    fn cuMemHostRegister_v2(start: u64, bytes: usize, flags: u32) {
        let context = context::current()?;
        driver()?.registrations.register(start, bytes as u64, flags, context.id)
    }

    /// Takes a registration away, when the operations that run are done with it. What is queued for it fails.
    fn cuMemHostUnregister(start: u64) {
        let context = context::current_even_failed()?;
        while !is_unregistered(start)? {
            thread::sleep(POLL);
        }
        context.check()
    }

    /// Where devices see registered memory.
    fn cuMemHostGetDevicePointer_v2(at: Out<u64>, start: u64, _flags: u32) {
        context::current()?;
        at.set(driver()?.registrations.device_address(start)?)
    }
}

fn is_unregistered(start: u64) -> Status<bool> {
    Ok(driver()?.registrations.unregister(start)?.is_some())
}
