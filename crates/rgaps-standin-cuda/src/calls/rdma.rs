//! GPUDirect RDMA: memory that network cards read and write, and the flush of what they wrote.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;

use crate::abi::{FLUSH_SCOPES, INVALID_VALUE, NOT_SUPPORTED, Out, RANGE_DMA_BUF, Status};
use crate::config::config;
use crate::control;
use crate::current::check_current;
use crate::state::driver;

const PAGE: u64 = 4096;

calls! {
    /// A file descriptor of mapped memory for other devices. It is the memory's memfd and no dma-buf, so that a test maps it and writes into it as a
    /// network card would. Memory of several handles has none.
    fn cuMemGetHandleForAddressRange(fd: Out<c_int>, at: u64, bytes: usize, kind: u32, flags: u64) {
        begin()?;
        if !config().dma_buf {
            return Err(NOT_SUPPORTED);
        }
        fd.give(|| {
            let bytes = bytes as u64;
            if kind != RANGE_DMA_BUF || flags != 0 || bytes == 0 || !(at | bytes).is_multiple_of(PAGE) {
                return Err(INVALID_VALUE);
            }
            let driver = driver()?;
            let piece = driver.ranges.at(at).and_then(|range| range.pieces.get(&at)).ok_or(INVALID_VALUE)?;
            if piece.bytes < bytes || !piece.memory.is_rdma_capable {
                return Err(NOT_SUPPORTED);
            }
            Ok(piece.memory.export()?.into_raw_fd())
        })
    }

    /// Makes what network cards wrote visible. Here it is visible at once, so the call tells a test that it was made.
    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        begin()?;
        if target != 0 || !FLUSH_SCOPES.contains(&scope) {
            return Err(INVALID_VALUE);
        }
        control::flushed();
        Ok(())
    }
}

fn begin() -> Status {
    drop(driver()?);
    check_current()?;
    if config().gpu_direct { Ok(()) } else { Err(NOT_SUPPORTED) }
}
