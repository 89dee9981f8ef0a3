//! Operating-system memory and wake-ups, wrapped once: the leaf on which the segment, the pools and the rings stand.
//!
//! `memfd` makes and checks sealed anonymous files, `mapping` maps them, `range` is the right to write a part of one, `shared` is
//! what of one others may write,
//! `futex`, `eventfd`, `pidfd` and `poll` wake and watch processes, `process_lock` tells whether one lives, `fork` tells a forked child from its parent, `memlock` whether memory may be locked, `descriptors` how many may be open,
//! `inherited` what comes from whoever started the process, `linger` which sockets hold up who closes them, `closing` closes what others have sent,
//! `clock` is the one clock of all stage timestamps.

pub mod clock;
pub mod closing;
pub mod descriptors;
pub mod eventfd;
pub mod fork;
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

pub use eventfd::EventFd;
pub use fork::ForkGuard;
pub use mapping::{Access, MapError, Mapping, OutOfRange};
pub use memfd::{SealError, Seals};
pub use pidfd::PidFd;
pub use process_lock::{Holder, ProcessLock};
pub use range::{AllocationRight, OwnedRange};
pub use shared::SharedBytes;

/// Fills an array with random bytes of the kernel, for identities.
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
