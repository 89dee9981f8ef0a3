//! Addresses that Python and other libraries hand over: capsules, buffers, streams. The only unsafe code of this crate.

mod buffer;
mod capsule;
mod copy;

pub(crate) use buffer::Buffer;
pub(crate) use capsule::{ForeignTensor, IS_COPIED, capsule};
pub(crate) use copy::{Gather, OutOfBlock};

use rgaps::device::cuda::CudaBackend;
use rgaps::device::{DevicePart, Stream};

/// Borrows a stream of another library by its handle. Python cannot express lifetimes: the package's documentation requires the stream to
/// outlive the samples, arrays and messages ordered on it, and the node keeps the objects that streams were passed as.
pub(crate) fn borrow_stream(cuda: &CudaBackend, handle: u64) -> Stream {
    // SAFETY: the package's caller promises it; DLPack requires the same of stream arguments.
    unsafe { cuda.borrow_stream(handle) }
}

/// Device memory of an array that the caller keeps alive until the stream has copied it.
pub(crate) fn device_part(address: u64, bytes: u64) -> DevicePart {
    // SAFETY: the array's library said in its exchange structure that the bytes are there, and the publisher keeps the array.
    unsafe { DevicePart::new(address, bytes) }
}

/// Lends the bytes of a packed array in this process's memory to `work`.
pub(crate) fn with_bytes<R>(address: u64, bytes: u64, work: impl FnOnce(&[u8]) -> R) -> R {
    if bytes == 0 {
        return work(&[]);
    }
    // SAFETY: the array's library said that the bytes are there, and the caller keeps the array. Another Python thread may write them meanwhile,
    // as with every copy that numpy makes without the GIL. The bytes may then be a mixture, and nothing is assumed of them.
    work(unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) })
}

/// Copies an array into our bytearray that stands for a block of `bytes` bytes.
pub(crate) fn gather_into_staging(plan: &Gather, from: u64, staging: &Buffer, bytes: u64) -> Result<(), OutOfBlock> {
    let bytes = bytes as usize;
    let place = staging.address() as *mut u8;
    if staging.item_bytes() != 1 || staging.shape() != [bytes as i64] || bytes == 0 {
        return if bytes == 0 { Ok(()) } else { Err(OutOfBlock) };
    }
    // SAFETY: that many bytes of a bytearray, which cannot be resized while `staging` exists. Another Python thread may write numpy arrays of it
    // meanwhile, as with every copy that numpy makes without the GIL.
    let block = unsafe { std::slice::from_raw_parts_mut(place, bytes) };
    gather(plan, from, block)
}

/// Copies an array in this process's memory into a block.
pub(crate) fn gather(gather: &Gather, address: u64, block: &mut [u8]) -> Result<(), OutOfBlock> {
    // SAFETY: as in `with_bytes`: shape and strides are those that the array's library gave, and the caller keeps the array.
    unsafe { gather.copy(address, block) }
}
