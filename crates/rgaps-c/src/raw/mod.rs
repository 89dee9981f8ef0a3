//! Converts C's pointers to Rust's values: the only code that follows them, apart from references in the signatures of calls.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::{MaybeUninit, size_of};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rgaps::Node;
use rgaps::device::{DevicePart, Stream};

use crate::ros::rgaps_ros_log_t;
use crate::status::Failure;
use crate::types::{META_BYTES, rgaps_meta_t};

/// Number of forks between this process and the first one that called `forks`.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The number of forks between this process and the first one that called this.
pub(crate) fn forks() -> u32 {
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        // SAFETY: `count` exists as long as the library, which is never unloaded, and only increments an atomic, which is safe in a forked child.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// The caller's text, or `None` for NULL.
pub(crate) fn optional_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so by the contract of every call it ends with a zero, and exists during the call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format_args!("{name} is not UTF-8")))
}

/// The caller's text.
pub(crate) fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    optional_text(text, name)?.ok_or_else(|| Failure::null(name))
}

/// The caller's array of `count` values.
pub(crate) fn slice<'a, T>(from: *const T, count: u64, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let length = fitting::<T>(from.is_null(), count, name)?;
    // SAFETY: not null, not longer than an object can be, and by the contract of every call `count` values that no thread writes meanwhile.
    Ok(unsafe { std::slice::from_raw_parts(from, length) })
}

/// The caller's array for `count` output values.
pub(crate) fn places<'a, T>(to: *mut T, count: u64, name: &str) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    let length = fitting::<T>(to.is_null(), count, name)?;
    // SAFETY: not null, not longer than an object can be, and by the contract of every call `count` elements that no other thread uses meanwhile.
    Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), length) })
}

/// The caller's `bytes` initialized bytes of host memory, to be overwritten.
pub(crate) fn bytes_mut<'a>(to: *mut c_void, bytes: u64, name: &str) -> Result<&'a mut [u8], Failure> {
    if bytes == 0 {
        return Ok(&mut []);
    }
    let length = fitting::<u8>(to.is_null(), bytes, name)?;
    // SAFETY: not null, not longer than an object can be, and by the contract of `rgaps_ros_buffer_copy_out` initialized bytes that no other thread
    // uses meanwhile.
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

/// The first `length` bytes of metadata, the encoded form of its kind.
pub(crate) fn meta_bytes(meta: &rgaps_meta_t, length: usize) -> &[u8] {
    assert!(length <= META_BYTES);
    let start = std::ptr::from_ref(&meta.r#as).cast::<u8>();
    // SAFETY: within the union, and the caller has initialised the member of this kind, which has no padding.
    unsafe { std::slice::from_raw_parts(start, length) }
}

/// Metadata of a kind with the encoded form `bytes`, padded with zeros.
pub(crate) fn meta_of(kind: u32, bytes: &[u8]) -> rgaps_meta_t {
    // SAFETY: all members are integers, so all-zero is valid.
    let mut meta: rgaps_meta_t = unsafe { MaybeUninit::zeroed().assume_init() };
    meta.kind = kind;
    let room = (&raw mut meta.r#as).cast::<[u8; META_BYTES]>();
    // SAFETY: the whole union; its members are integers, so any bytes are valid.
    let room = unsafe { &mut *room };
    room[..bytes.len()].copy_from_slice(bytes);
    meta
}

/// The caller's stream on the node's device. `None` on the host backend, where work is complete when the call returns.
pub(crate) fn stream(node: &Node, stream: *mut c_void) -> Option<Stream> {
    let cuda = node.device().as_cuda()?;
    // SAFETY: by the contract of every call with a stream, it is of the device's primary context and exists until its work is complete.
    Some(unsafe { cuda.borrow_stream(stream as u64) })
}

/// The caller's memory, which a device reads in stream order.
pub(crate) fn device_part(from: *const c_void, bytes: u64) -> DevicePart {
    // SAFETY: by the contract of `rgaps_publisher_push_on`, it is neither freed nor changed before the stream has copied it.
    unsafe { DevicePart::new(from as u64, bytes) }
}

/// The caller's log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    function: rgaps_ros_log_t,
    /// The address of the caller's context.
    context: usize,
}

impl Log {
    pub(crate) fn new(function: rgaps_ros_log_t, context: *mut c_void) -> Self {
        Self { function, context: context as usize }
    }

    /// Writes a line.
    pub(crate) fn line(&self, is_warning: bool, text: &str) {
        let Some(function) = self.function else { return };
        let text = CString::new(rgaps::text::plain_lines(text).into_owned()).unwrap_or_default();
        // SAFETY: by the contract of `rgaps_ros_payloads_create`, the function takes this context from any thread, and does not throw.
        unsafe { function(self.context as *mut c_void, u32::from(is_warning), text.as_ptr()) };
    }
}
