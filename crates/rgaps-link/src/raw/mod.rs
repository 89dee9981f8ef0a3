//! Page advice: the only unsafe code of this crate outside `rdma`.

use rgaps_os::Mapping;
use rustix::mm::{Advice, madvise};

/// Requests huge pages for a mapping. The contents do not change, and the kernel may decline.
pub(crate) fn advise_huge_pages(mapping: &Mapping) -> rustix::io::Result<()> {
    let (start, bytes) = (mapping.address() as *mut std::ffi::c_void, mapping.bytes() as usize);
    // SAFETY: exactly the pages of a live mapping; MADV_HUGEPAGE changes neither contents nor protection.
    unsafe { madvise(start, bytes, Advice::LinuxHugepage) }
}
