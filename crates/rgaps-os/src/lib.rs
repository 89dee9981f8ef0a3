//! Memory, wake-ups and limits of the operating system, wrapped once: the leaf crate below the segment, the pools and the rings.
//!
//! * Memory: `memfd` creates and checks sealed anonymous files, `mapping` maps them, `range` is the right to write one part of a mapping,
//!   `shared` is a part that another process may write. `dma_buf` is memory of a device that another device may access.
//! * Waiting: `futex`, `eventfd` and `poll` sleep and wake. `clock` is the clock of all stage timestamps and time-outs.
//! * Processes: `pidfd` and `process_lock` say whether a process lives, `fork` tells a forked child from its parent, `peer` identifies the other
//!   end of a Unix socket, `inherited` resets what a process inherits from its parent.
//! * Limits: `memlock` checks the limit on locked memory, `fds` counts open file descriptors and raises their limit.
//! * Files: `found` looks at a file before it opens it.
//! * Closing: `linger` finds sockets whose close waits for the peer, `closing` closes file descriptors on a thread of its own.

pub mod clock;
pub mod closing;
pub mod dma_buf;
pub mod eventfd;
pub mod fds;
pub mod fork;
pub mod found;
pub mod futex;
pub mod inherited;
pub mod linger;
pub mod mapping;
pub mod memfd;
pub mod memlock;
pub mod peer;
pub mod pidfd;
pub mod poll;
pub mod process_lock;
pub mod range;
pub mod shared;

pub use dma_buf::DmaBuf;
pub use eventfd::EventFd;
pub use fork::ForkGuard;
pub use found::{Found, Links};
pub use mapping::{Access, MapError, Mapping, OutOfRange};
pub use memfd::{SealError, Seals};
pub use pidfd::PidFd;
pub use process_lock::{Holder, ProcessLock};
pub use range::{AllocationRight, OwnedRange};
pub use shared::SharedBytes;

/// Bytes of this kernel's pages: 4096 on x86-64, and 4096, 16,384 or 65,536 on 64-bit ARM.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// An array of random bytes from the kernel, for identities.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0_u8; N];
    let mut filled = 0;
    // getrandom(2) of up to 256 B is never short; the loop is for larger arrays and for signals.
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}
