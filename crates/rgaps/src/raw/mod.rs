//! The payload of a sample as a plain slice: the only unsafe code of this crate.
//!
//! Only two holders may use plain slices of pool memory: the holder of a loan for its block (`OwnedRange`, no unsafe code), and the holder of a
//! sample for its payload, from when its bytes are written until its release. All other code copies (`SharedBytes`).
//!
//! While a device copy may fill a part of a loan, no slice of the block can exist:
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
//! A part gives no access to the pool, in which other loans are slices:
//!
//! ```compile_fail,E0616
//! # use rgaps::{Loan, types::Bytes};
//! fn peek(mut own: Loan<Bytes>) {
//!     assert!(own.part().unwrap().pool.bytes() > 0);
//! }
//! ```

use rgaps_device::Completion;
use rgaps_shm::Held;
use rgaps_shm::words::message::Readiness;

use crate::endpoint::sample::SampleInner;

/// The payload in place, if its bytes are written and the CPU can map them.
pub(crate) fn payload(sample: &SampleInner) -> Option<&[u8]> {
    let is_held = sample.held.as_ref().is_some_and(|held| held.readiness() == Readiness::Ready && is_of(sample, held));
    let is_copy = sample.copied.as_ref().is_some_and(Completion::is_complete);
    if !is_held && !is_copy {
        return None;
    }
    let bytes = sample.pool.shared(sample.offset, sample.info.bytes).ok()?;
    // SAFETY: Either `pool` is the held message's pool (`SubscriberInner::memory_of`) and `bytes` is its payload: the publisher has committed it, and
    // no writer gets it again before `held` is dropped, which needs the sample mutably or by value. Or `bytes` is a complete copy: nothing writes to
    // it any more, and no code can get a part to write (`Sample::part` is for reading).
    Some(unsafe { bytes.as_slice() })
}

/// Whether the sample's memory is the message's own, not a copy.
fn is_of(sample: &SampleInner, held: &Held) -> bool {
    sample.copied.is_none() && held.info().bytes == sample.info.bytes
}
