//! Stream-ordered memory: the call returns the address at once; the memory is accessible from the allocation to the free in stream order.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Out, Status};
use crate::config::config;
use crate::memory::{GRANULARITY, Memory};
use crate::operation::Operation;
use crate::range::{Piece, Range};
use crate::reservation::Reservation;
use crate::state::{Ordered, driver};

use super::stream::{find, push};

calls! {
    /// Allocates memory of the stream's device, which only that device may access.
    fn cuMemAllocAsync(at: Out<u64>, bytes: usize, stream: u64) {
        at.give(|| allocate(bytes as u64, stream))
    }

    /// Frees it, in a failed context too.
    fn cuMemFreeAsync(at: u64, stream: u64) {
        let mut driver = driver()?;
        let context = find(&driver, stream)?.context.clone();
        let allocation = driver.ordered.get_mut(&at).filter(|allocation| !allocation.is_freed).ok_or(INVALID_VALUE)?;
        allocation.is_freed = true;
        if let Err(code) = context.check() {
            // No operation runs in a failed context, so free it now.
            driver.free_ordered(at);
            return Err(code);
        }
        push(driver, stream, Operation::Free { address: at })
    }
}

fn allocate(bytes: u64, stream: u64) -> Status<u64> {
    if !config().memory_pools {
        return Err(NOT_SUPPORTED);
    }
    let bytes = bytes.checked_next_multiple_of(GRANULARITY).ok_or(OUT_OF_MEMORY)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let mut driver = driver()?;
    let context = find(&driver, stream)?.context.clone();
    context.check()?;
    let used = driver.device(context.device as c_int)?.1.used.clone();
    let memory = Arc::new(Memory::create((context.device, false), bytes, config().memory, &used)?);
    let reservation = Reservation::new(bytes, GRANULARITY)?;
    let (address, access) = (reservation.base, vec![0; driver.devices.len()]);
    let pieces = BTreeMap::from([(address, Piece { bytes, memory, access })]);
    driver.ranges.0.insert(address, Range { reservation, pieces });
    driver.ordered.insert(address, Ordered { context: context.id, is_freed: false });
    push(driver, stream, Operation::Allocate { address, bytes })?;
    Ok(address)
}
