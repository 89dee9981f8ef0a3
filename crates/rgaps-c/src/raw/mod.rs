//! C's pointers as Rust's values: the only place where they are followed, but for references in the calls' own signatures.

use std::ffi::{CStr, c_char, c_void};
use std::mem::{MaybeUninit, size_of};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rgaps::Node;
use rgaps::device::{DevicePart, Stream};

use crate::status::Failure;
use crate::types::{META_BYTES, rgaps_meta_t};

/// Forks between the process that first asked and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many processes this one was forked from since the first of them asked.
pub(crate) fn forks() -> u32 {
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        // SAFETY: the function stays as long as the library, which is never unloaded, and does nothing but count, as a child may.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// A text of the caller's, which may be NULL.
pub(crate) fn optional_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so by the contract of every call it ends with a zero, and stays for the call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format_args!("{name} is not UTF-8")))
}

/// A text of the caller's.
pub(crate) fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    optional_text(text, name)?.ok_or_else(|| Failure::null(name))
}

/// `count` values of the caller's.
pub(crate) fn slice<'a, T>(from: *const T, count: u64, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let length = fitting::<T>(from.is_null(), count, name)?;
    // SAFETY: not null, no longer than an object can be, and by the contract of every call so many values that nobody writes meanwhile.
    Ok(unsafe { std::slice::from_raw_parts(from, length) })
}

/// Places for `count` values of the caller's.
pub(crate) fn places<'a, T>(to: *mut T, count: u64, name: &str) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    let length = fitting::<T>(to.is_null(), count, name)?;
    // SAFETY: not null, no longer than an object can be, and by the contract of every call so many places that nobody else uses meanwhile.
    Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), length) })
}

fn fitting<T>(is_null: bool, count: u64, name: &str) -> Result<usize, Failure> {
    if is_null {
        return Err(Failure::null(name));
    }
    let fits = count.checked_mul(size_of::<T>() as u64).is_some_and(|bytes| bytes <= isize::MAX as u64);
    if !fits {
        return Err(Failure::argument(format_args!("{count} {name} are more than any memory holds")));
    }
    Ok(count as usize)
}

/// The first `length` bytes of metadata: those of its kind.
pub(crate) fn meta_bytes(meta: &rgaps_meta_t, length: usize) -> &[u8] {
    assert!(length <= META_BYTES);
    let start = std::ptr::from_ref(&meta.r#as).cast::<u8>();
    // SAFETY: inside the union; the caller has filled the member of this kind, which has no padding.
    unsafe { std::slice::from_raw_parts(start, length) }
}

/// Metadata of a kind whose encoded form is `bytes`; what follows is zero.
pub(crate) fn meta_of(kind: u32, bytes: &[u8]) -> rgaps_meta_t {
    // SAFETY: numbers, of which all may be zero.
    let mut meta: rgaps_meta_t = unsafe { MaybeUninit::zeroed().assume_init() };
    meta.kind = kind;
    let room = (&raw mut meta.r#as).cast::<[u8; META_BYTES]>();
    // SAFETY: the whole union, which is of numbers that may have any value.
    let room = unsafe { &mut *room };
    room[..bytes.len()].copy_from_slice(bytes);
    meta
}

/// A stream of the caller's on the node's device; `None` on the host backend, where work is done when its call returns.
pub(crate) fn stream(node: &Node, stream: *mut c_void) -> Option<Stream> {
    let cuda = node.device().as_cuda()?;
    // SAFETY: the contract of every call that takes a stream: of the device's primary context, and alive until what was given to it is done.
    Some(unsafe { cuda.borrow_stream(stream as u64) })
}

/// Memory of the caller's that a device reads in the order of a stream.
pub(crate) fn device_part(from: *const c_void, bytes: u64) -> DevicePart {
    // SAFETY: the contract of `rgaps_publisher_push_message`: it stays and nobody writes it until the stream has got there.
    unsafe { DevicePart::new(from as u64, bytes) }
}
