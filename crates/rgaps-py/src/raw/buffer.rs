//! Buffers of Python objects: bytes, memoryviews, numpy arrays.
//!
//! `Py_buffer` and the two functions joined the stable ABI in Python 3.11, with the layout and names of 3.10. They are declared here, so that
//! one library also serves 3.10.
//!
//! Source      PEP 3118; Include/cpython/object.h of 3.10, Include/pybuffer.h of 3.11 to 3.14.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

/// PyBUF_STRIDES (which has PyBUF_ND) and PyBUF_FORMAT; not PyBUF_WRITABLE.
const STRIDED_WITH_FORMAT: c_int = 0x0010 | 0x0008 | 0x0004;

#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

const _: () = assert!(size_of::<PyBuffer>() == 80 && offset_of!(PyBuffer, format) == 40);
const _: () = assert!(offset_of!(PyBuffer, strides) == 56 && offset_of!(PyBuffer, internal) == 72);

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
}

/// An object's exported buffer, locked until this is dropped: a bytearray cannot be resized meanwhile.
pub(crate) struct Buffer {
    /// Boxed, because exporters may keep pointers into it.
    view: Box<PyBuffer>,
}

// SAFETY: the view is only read, and its release attaches to Python.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Requests a read-only buffer with strides and format.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<PyBuffer>::zeroed());
        // SAFETY: an object and room for a view, on an attached thread.
        let status = unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), STRIDED_WITH_FORMAT) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: filled, since the call succeeded; zero is a value of every field besides.
        let view = unsafe { view.assume_init() };
        Ok(Self { view })
    }

    pub(crate) fn address(&self) -> u64 {
        self.view.buf as u64
    }

    pub(crate) fn item_bytes(&self) -> u64 {
        self.view.itemsize.unsigned_abs() as u64
    }

    /// The element format in the notation of the struct module; "B" if the exporter gives none.
    pub(crate) fn format(&self) -> String {
        if self.view.format.is_null() {
            return "B".to_owned();
        }
        // SAFETY: the exporter's text, ended by a zero, there until the release.
        unsafe { CStr::from_ptr(self.view.format) }.to_string_lossy().into_owned()
    }

    pub(crate) fn shape(&self) -> Vec<i64> {
        self.read(self.view.shape)
    }

    /// Strides in bytes.
    pub(crate) fn strides(&self) -> Vec<i64> {
        self.read(self.view.strides)
    }

    fn read(&self, from: *mut isize) -> Vec<i64> {
        let ndim = if from.is_null() { 0 } else { usize::try_from(self.view.ndim).unwrap_or(0) };
        // SAFETY: the exporter promises ndim elements, there until the release.
        (0..ndim).map(|index| unsafe { from.wrapping_add(index).read() } as i64).collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // If the interpreter is gone, there is nothing to release.
        Python::try_attach(|_| {
            // SAFETY: filled by `of`, released once, on an attached thread.
            unsafe { PyBuffer_Release(&raw mut *self.view) };
        });
    }
}
