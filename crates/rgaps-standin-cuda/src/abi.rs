//! Types and constants of the driver's ABI (cuda.h) that are used here.
//!
//! Handles of contexts, streams and events are pointers in C and integers here, since they are never dereferenced. Pointers to results
//! and structs are `Out` and `In`, which have the size of a pointer and check for null.

use std::ffi::{CStr, c_char, c_int, c_void};

/// A `CUresult`.
pub type Code = c_int;
/// The outcome of a call: its error is a `CUresult` other than 0.
pub type Status<T = ()> = Result<T, Code>;

/// `CUDA_SUCCESS`.
pub const SUCCESS: Code = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub const NOT_INITIALIZED: Code = 3;
/// `CUDA_ERROR_NO_DEVICE`.
pub const NO_DEVICE: Code = 100;
/// `CUDA_ERROR_INVALID_DEVICE`.
pub const INVALID_DEVICE: Code = 101;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub const INVALID_CONTEXT: Code = 201;
/// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`.
pub const PEER_ACCESS_UNSUPPORTED: Code = 217;
/// `CUDA_ERROR_OPERATING_SYSTEM`.
pub const OPERATING_SYSTEM: Code = 304;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: Code = 400;
/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: Code = 600;
/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub const ILLEGAL_ADDRESS: Code = 700;
/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
pub const CONTEXT_IS_DESTROYED: Code = 709;
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
pub const ALREADY_REGISTERED: Code = 712;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
pub const NOT_REGISTERED: Code = 713;
/// `CUDA_ERROR_NOT_PERMITTED`.
pub const NOT_PERMITTED: Code = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: Code = 801;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub const CAPTURE_UNSUPPORTED: Code = 900;
/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
pub const CAPTURE_INVALIDATED: Code = 901;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`.
pub const CAPTURE_IMPLICIT: Code = 906;
/// `CUDA_ERROR_UNKNOWN`.
pub const UNKNOWN: Code = 999;

/// `CU_MEM_ACCESS_FLAGS_PROT_READ`.
pub const PROT_READ: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub const PROT_READWRITE: u32 = 3;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub const ALLOCATION_PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const HANDLE_FD: u32 = 1;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`.
pub const REGISTER_DEVICEMAP: u32 = 2;
/// `CU_MEMHOSTREGISTER_READ_ONLY`.
pub const REGISTER_READ_ONLY: u32 = 8;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub const RANGE_DMA_BUF: u32 = 1;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER` and `_TO_ALL_DEVICES`.
pub const FLUSH_SCOPES: [u32; 2] = [100, 200];
/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`, another name of the null stream.
pub const STREAM_LEGACY: u64 = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// `CUmemLocationType`.
    pub kind: u32,
    /// The device's ordinal.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// `CUmemAllocationType`.
    pub kind: u32,
    /// `CUmemAllocationHandleType`.
    pub handle_types: u32,
    /// The device of the memory.
    pub location: Location,
    /// For Windows.
    pub win32: *mut c_void,
    /// Compression, zero here.
    pub compression: u8,
    /// gpuDirectRDMACapable: 1 if network cards are to access the memory.
    pub rdma_capable: u8,
    /// Usage, zero here, and reserved bytes.
    pub rest: [u8; 6],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    /// The device that may access it.
    pub location: Location,
    /// `CUmemAccess_flags`.
    pub flags: u32,
}

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

/// `CUhostFn`.
pub type HostFn = Option<unsafe extern "C" fn(*mut c_void)>;

const _: () = assert!(size_of::<AllocationProp>() == 32);
const _: () = assert!(size_of::<AccessDesc>() == 12);

/// A pointer to a result: null, or valid for one write. Results are written only on success.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> From<&mut T> for Out<T> {
    fn from(to: &mut T) -> Self {
        Self(to)
    }
}

impl<T> Out<T> {
    /// A null pointer.
    pub fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    pub(crate) fn check(self) -> Status {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Makes a result, then writes it. Does nothing if the pointer is null.
    pub(crate) fn give(self, make: impl FnOnce() -> Status<T>) -> Status {
        self.check()?;
        self.set(make()?)
    }

    pub(crate) fn set(self, value: T) -> Status {
        self.check()?;
        // SAFETY: not null, and the caller of the exported function promises that it is valid for a write of this type.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

impl Out<u32> {
    /// The argument's value before the result is written.
    pub(crate) fn get(self) -> Status<u32> {
        self.check()?;
        // SAFETY: not null, and an in-out argument of its function: valid for a read.
        Ok(unsafe { self.0.read() })
    }
}

impl Out<c_char> {
    /// Writes a text and its zero into `length` bytes; truncates a longer text.
    pub(crate) fn set_text(self, text: &str, length: usize) -> Status {
        self.check()?;
        let bytes = text.len().min(length.checked_sub(1).ok_or(INVALID_VALUE)?);
        // SAFETY: the caller promises `length` writable bytes, and `bytes` is less.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), self.0, bytes) };
        // SAFETY: `bytes` is less than `length`.
        let end = unsafe { self.0.add(bytes) };
        Out(end).set(0)
    }
}

/// A pointer to an argument: null, or valid for reading.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> From<&T> for In<T> {
    fn from(from: &T) -> Self {
        Self(from)
    }
}

impl From<&CStr> for In<c_char> {
    fn from(text: &CStr) -> Self {
        Self(text.as_ptr())
    }
}

impl<T: Copy> In<T> {
    /// A null pointer.
    pub fn null() -> Self {
        Self(std::ptr::null())
    }

    pub(crate) fn get(self) -> Status<T> {
        self.at(0)
    }

    /// The element with this index, which the caller promises exists.
    pub(crate) fn at(self, index: usize) -> Status<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes an array that is longer than `index`.
        let element = unsafe { self.0.add(index) };
        // SAFETY: not null, and inside that array.
        Ok(unsafe { element.read() })
    }
}

impl In<c_char> {
    /// The text, if there is one and it is UTF-8.
    pub(crate) fn text(&self) -> Option<&str> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller promises a zero at its end; it is read before the call returns.
        unsafe { CStr::from_ptr(self.0) }.to_str().ok()
    }
}
