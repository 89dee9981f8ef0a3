//! The payload of a sample as a plain slice: the only unsafe code of this crate.
//!
//! Who may read plain slices of pool memory, and when: the holder of a loan those of its block (`OwnedRange`, no unsafe code), and the holder of a
//! sample those of its payload, from when its bytes are there until it is released. Everybody else copies (`SharedBytes`).
//!
//! A part of a loan is there to be filled while nobody sees the block as a slice:
//!
//! ```compile_fail,E0502
//! # use rgaps::{Loan, types::Bytes};
//! fn fill(device: &dyn rgaps::device::Backend, loan: &mut Loan<Bytes>) {
//!     let before: &[u8] = &*loan;
//!     let part = loan.part().unwrap();
//!     device.copy_in(&device.stream().unwrap(), &[1; 8], part).unwrap();
//!     assert_eq!(before[0], 0);
//! }
//! ```
//!
//! And it does not lead to the pool, in which other loans are slices:
//!
//! ```compile_fail,E0616
//! # use rgaps::{Loan, types::Bytes};
//! fn peek(mut own: Loan<Bytes>) {
//!     assert!(own.part().unwrap().pool.bytes() > 0);
//! }
//! ```

use rgaps_device::Completion;
use rgaps_shm::Held;
use rgaps_shm::message::Readiness;

use crate::sample::Sample;

/// The payload where it lies, if its bytes are there and the CPU can read them there.
pub(crate) fn payload<T>(sample: &Sample<T>) -> Option<&[u8]> {
    let is_held = sample.held.as_ref().is_some_and(|held| held.readiness() == Readiness::Ready && is_of(sample, held));
    let is_copy = sample.copied.as_ref().is_some_and(Completion::is_complete);
    if !is_held && !is_copy {
        return None;
    }
    let bytes = sample.pool.shared(sample.offset, sample.info.bytes).ok()?;
    // SAFETY: `pool` is the memory of the held message's pool (`SubscriberInner::memory_of`), and the bytes those of the message, which its publisher
    // has committed and which no writer has again before `held` is dropped: that takes the sample mutably or by value. Or they are a copy that is
    // made, which nobody writes and of which nobody gets a part to write (`Sample::part` is for reading).
    Some(unsafe { bytes.as_slice() })
}

/// Whether the sample's place is that of the message; a copy has taken the place of the pool otherwise.
fn is_of<T>(sample: &Sample<T>, held: &Held) -> bool {
    sample.copied.is_none() && held.info().bytes == sample.info.bytes
}
