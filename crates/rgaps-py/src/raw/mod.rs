//! What Python and other libraries hand over as addresses: capsules, buffers, streams. The only unsafe code of this crate.

mod buffer;
mod capsule;
mod copy;

pub(crate) use buffer::Buffer;
pub(crate) use capsule::{ForeignTensor, IS_COPIED, capsule};
pub(crate) use copy::{Gather, OutOfBlock};

use rgaps::device::cuda::CudaBackend;
use rgaps::device::{DevicePart, Stream};

/// A stream of another library's, by its handle. Python has no types that could promise its life: the package's documentation asks that
/// the stream outlive the samples, arrays and messages that were put in its order, and the node keeps the objects that it was named by.
pub(crate) fn borrow_stream(cuda: &CudaBackend, handle: u64) -> Stream {
    // SAFETY: the caller of the package's functions promises it, as DLPack asks of whoever passes a stream.
    unsafe { cuda.borrow_stream(handle) }
}

/// Device memory of an array that its caller keeps until the stream has got there.
pub(crate) fn device_part(address: u64, bytes: u64) -> DevicePart {
    // SAFETY: the array's library said in its exchange structure that the bytes are there, and the publisher keeps the array.
    unsafe { DevicePart::new(address, bytes) }
}

/// Lends the bytes of a packed array in this process's memory to `work`.
pub(crate) fn with_bytes<R>(address: u64, bytes: u64, work: impl FnOnce(&[u8]) -> R) -> R {
    if bytes == 0 {
        return work(&[]);
    }
    // SAFETY: the array's library said that the bytes are there, and the caller keeps the array. Another thread of Python's may write them
    // meanwhile, as with every copy that numpy makes without the GIL: then the bytes are some mixture, of which nothing is assumed.
    work(unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) })
}

/// Copies an array into a bytearray of ours that stands for a block of `bytes` bytes.
pub(crate) fn gather_into_staging(plan: &Gather, from: u64, staging: &Buffer, bytes: u64) -> Result<(), OutOfBlock> {
    let bytes = bytes as usize;
    let place = staging.address() as *mut u8;
    if staging.item_bytes() != 1 || staging.shape() != [bytes as i64] || bytes == 0 {
        return if bytes == 0 { Ok(()) } else { Err(OutOfBlock) };
    }
    // SAFETY: so many bytes of a bytearray, which cannot be resized while `staging` is there. numpy arrays of it may be written meanwhile by
    // another thread of Python's, as with every copy that numpy makes without the GIL.
    let block = unsafe { std::slice::from_raw_parts_mut(place, bytes) };
    gather(plan, from, block)
}

/// Copies an array in this process's memory into a block.
pub(crate) fn gather(gather: &Gather, address: u64, block: &mut [u8]) -> Result<(), OutOfBlock> {
    // SAFETY: as in `with_bytes`: its library's word for shape and strides, and the caller keeps the array.
    unsafe { gather.copy(address, block) }
}
