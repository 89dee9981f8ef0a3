//! DLPack capsules, in both directions: given to array libraries and consumed from them.
//!
//! ```text
//!   PyCapsule "dltensor_versioned" ──consumed──▶ "used_dltensor_versioned"   the consumer calls the deleter
//!             "dltensor"           ──consumed──▶ "used_dltensor"             (before DLPack 1.0)
//!                                  ──freed unconsumed──▶                     the capsule's destructor calls it
//! ```
//!
//! Source      "Python Specification for DLPack", dmlc/dlpack, docs/source/python_spec.rst, of DLPack 1.1.

use std::ffi::CStr;
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use rgaps::dlpack::{DLManagedTensor, DLManagedTensorVersioned, DLTensor, ManagedTensor, VERSION};

/// DLPACK_FLAG_BITMASK_IS_COPIED: the consumer owns the memory.
pub(crate) const IS_COPIED: u64 = 2;

const VERSIONED: &CStr = c"dltensor_versioned";
const LEGACY: &CStr = c"dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
const USED_LEGACY: &CStr = c"used_dltensor";

/// A capsule that owns the tensor until it is consumed; unversioned (before DLPack 1.0) if the consumer knows no other.
pub(crate) fn capsule(py: Python<'_>, tensor: ManagedTensor, versioned: bool, flags: u64) -> PyResult<Py<PyAny>> {
    let (pointer, name, destructor): (_, _, ffi::PyCapsule_Destructor) = if versioned {
        let mut raw = tensor.into_raw();
        // SAFETY: given away to this function alone.
        let managed = unsafe { raw.as_mut() };
        managed.flags |= flags;
        (raw.as_ptr().cast(), VERSIONED, drop_versioned)
    } else {
        (tensor.into_legacy().as_ptr().cast(), LEGACY, drop_legacy)
    };
    // SAFETY: the pointer is not null, the name is static, and the destructor is the one for this pointer.
    let made = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor)) };
    // SAFETY: a new reference, or null with an exception set.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, made) };
    // If no capsule can be made, memory is exhausted: the tensor's memory leaks.
    Ok(capsule?.unbind())
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls it with the capsule that dies, on an attached thread.
    let Some(pointer) = (unsafe { unconsumed(capsule, VERSIONED) }) else { return };
    drop(ForeignTensor::Versioned(pointer.cast()));
}

unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    let Some(pointer) = (unsafe { unconsumed(capsule, LEGACY) }) else { return };
    drop(ForeignTensor::Legacy(pointer.cast()));
}

/// The pointer in a capsule that still has this name.
///
/// # Safety
/// `capsule` is an object, and this thread is attached.
unsafe fn unconsumed(capsule: *mut ffi::PyObject, name: &CStr) -> Option<NonNull<std::ffi::c_void>> {
    // SAFETY: the caller's promise.
    let is_valid = unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) };
    if is_valid == 0 {
        return None;
    }
    // SAFETY: a valid capsule of this name.
    NonNull::new(unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) })
}

/// A tensor consumed from a capsule, another library's or ours. Dropping it calls the deleter.
#[derive(Debug)]
pub(crate) enum ForeignTensor {
    Versioned(NonNull<DLManagedTensorVersioned>),
    Legacy(NonNull<DLManagedTensor>),
}

// SAFETY: DLPack lets the deleter be called on any thread, and nothing else is done with the tensor but reading it.
unsafe impl Send for ForeignTensor {}
// SAFETY: shared, it is only read.
unsafe impl Sync for ForeignTensor {}

impl ForeignTensor {
    /// Consumes a capsule.
    pub(crate) fn consume(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let object = capsule.as_ptr();
        // SAFETY: an object, on an attached thread.
        if let Some(pointer) = unsafe { unconsumed(object, VERSIONED) } {
            rename(capsule, USED_VERSIONED)?;
            let tensor = Self::Versioned(pointer.cast());
            let major = match &tensor {
                // SAFETY: the version comes first in every version of the structure.
                Self::Versioned(managed) => unsafe { managed.as_ref() }.version.major,
                Self::Legacy(_) => VERSION.major,
            };
            if major != VERSION.major {
                let text = format!("the array uses DLPack {major}, this package {}: update one of them", VERSION.major);
                return Err(PyBufferError::new_err(text));
            }
            return Ok(tensor);
        }
        // SAFETY: an object, on an attached thread.
        if let Some(pointer) = unsafe { unconsumed(object, LEGACY) } {
            rename(capsule, USED_LEGACY)?;
            return Ok(Self::Legacy(pointer.cast()));
        }
        Err(PyTypeError::new_err("__dlpack__ returned no unconsumed DLPack capsule"))
    }

    /// The tensor itself.
    pub(crate) fn tensor(&self) -> &DLTensor {
        match self {
            // SAFETY: the producer keeps it until its deleter is called, which `drop` does.
            Self::Versioned(managed) => unsafe { &managed.as_ref().dl_tensor },
            // SAFETY: as above.
            Self::Legacy(managed) => unsafe { &managed.as_ref().dl_tensor },
        }
    }

    /// Its shape, and its strides in elements; C order if it has no strides.
    pub(crate) fn shape_and_strides(&self) -> (Vec<i64>, Vec<i64>) {
        let tensor = self.tensor();
        let ndim = usize::try_from(tensor.ndim).unwrap_or(0);
        let read = |from: *mut i64| {
            // SAFETY: DLPack promises ndim elements behind a pointer that is not null.
            (0..ndim).map(|index| unsafe { from.wrapping_add(index).read() }).collect::<Vec<i64>>()
        };
        let shape = if tensor.shape.is_null() { vec![0; ndim] } else { read(tensor.shape) };
        let strides = if tensor.strides.is_null() { c_order(&shape) } else { read(tensor.strides) };
        (shape, strides)
    }
}

fn c_order(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1_i64; shape.len()];
    for index in (1..shape.len()).rev() {
        strides[index - 1] = strides[index].saturating_mul(shape[index].max(1));
    }
    strides
}

fn rename(capsule: &Bound<'_, PyAny>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: a capsule, on an attached thread; the name is static.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

impl Drop for ForeignTensor {
    fn drop(&mut self) {
        match self {
            Self::Versioned(managed) => {
                // SAFETY: alive until its deleter is called.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: its own deleter, called here and nowhere else.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Self::Legacy(managed) => {
                // SAFETY: alive until its deleter is called.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: its own deleter, called here and nowhere else.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        }
    }
}
