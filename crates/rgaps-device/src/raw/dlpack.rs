//! DLPack's structures for array libraries, and `ManagedTensor`, which owns the object that keeps the memory alive.
//!
//! ```text
//! DLManagedTensorVersioned, 80 B           DLTensor, 48 B
//!   0  u32, u32  version      major, minor   0  void*       data         of the first element
//!   8  void*     manager_ctx  what it owns   8  i32, i32    device       type, number
//!  16  fn        deleter                    16  i32         ndim
//!  24  u64       flags        1: read only  20  u8, u8, u16 dtype        code, bits, lanes
//!  32  DLTensor  dl_tensor                  24  i64*        shape        ndim extents
//!  80                                       32  i64*        strides      ndim, in elements
//!                                           40  u64         byte_offset  always 0 here
//!                                           48
//! ```
//!
//! A byte offset is added to `data` instead, because consumers have ignored the field (pytorch/pytorch issue 168177, NVIDIA/cuda-python
//! issue 2592).
//!
//! `DLManagedTensor` is the 64 B structure from before DLPack 1.0: the DLTensor, then manager_ctx and deleter.
//!
//! Source      DLPack 1.1, include/dlpack/dlpack.h of dmlc/dlpack, on a 64-bit machine.

use std::ffi::c_void;
use std::mem::{ManuallyDrop, offset_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::view::{NDIM_MAX, TensorView};

/// The DLPack version of these structures and codes.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };
/// DLPACK_FLAG_BITMASK_READ_ONLY: the consumer must not write.
pub const FLAG_READ_ONLY: u64 = 1;

/// A DLPack version. Structures of another major version have another layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Version of the layout.
    pub major: u32,
    /// Version of the codes.
    pub minor: u32,
}

/// The device that owns memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDevice {
    /// A DLDeviceType.
    pub device_type: i32,
    /// Its ordinal of that type in this process; 0 for host memory.
    pub device_id: i32,
}

impl DLDevice {
    /// kDLCPU: host memory.
    pub const CPU: Self = Self { device_type: 1, device_id: 0 };

    /// kDLCUDA: an NVIDIA GPU, by its number in this process.
    pub const fn cuda(ordinal: u32) -> Self {
        Self { device_type: 2, device_id: ordinal as i32 }
    }
}

/// Type of elements, with the codes of DLDataTypeCode: 0 signed, 1 unsigned, 2 IEEE floating point, 4 bfloat, 5 complex, 6 bool.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDataType {
    /// Code.
    pub code: u8,
    /// Bits of a lane.
    pub bits: u8,
    /// Lanes of an element.
    pub lanes: u16,
}

impl DLDataType {
    /// Bytes of an element, all lanes.
    pub fn bytes(self) -> u64 {
        u64::from(self.bits) * u64::from(self.lanes) / 8
    }
}

/// A tensor in memory that it does not own.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// Device address of the first element; null if there are no elements.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// Dimensions.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// Elements of each dimension.
    pub shape: *mut i64,
    /// Distance between neighbours in each dimension, in elements.
    pub strides: *mut i64,
    /// Bytes to add to `data`.
    pub byte_offset: u64,
}

/// A tensor that keeps its memory alive.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// Version of this structure.
    pub version: DLPackVersion,
    /// The producer's context.
    pub manager_ctx: *mut c_void,
    /// Frees the tensor and its memory. The consumer calls it once, on any thread.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// `FLAG_READ_ONLY` or 0.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// A tensor that keeps its memory alive, for libraries from before DLPack 1.0. It has no read-only flag.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's context.
    pub manager_ctx: *mut c_void,
    /// Frees the tensor and its memory. The consumer calls it once, on any thread.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

const _: () = assert!(size_of::<DLManagedTensor>() == 64 && offset_of!(DLManagedTensor, deleter) == 56);
const _: () = assert!(size_of::<DLTensor>() == 48 && offset_of!(DLTensor, device) == 8);
const _: () = assert!(offset_of!(DLTensor, ndim) == 16 && offset_of!(DLTensor, dtype) == 20);
const _: () = assert!(offset_of!(DLTensor, shape) == 24 && offset_of!(DLTensor, strides) == 32);
const _: () = assert!(offset_of!(DLTensor, byte_offset) == 40);
const _: () = assert!(size_of::<DLManagedTensorVersioned>() == 80 && size_of::<DLDataType>() == 4);
const _: () = assert!(offset_of!(DLManagedTensorVersioned, manager_ctx) == 8);
const _: () = assert!(offset_of!(DLManagedTensorVersioned, deleter) == 16);
const _: () = assert!(offset_of!(DLManagedTensorVersioned, flags) == 24);
const _: () = assert!(offset_of!(DLManagedTensorVersioned, dl_tensor) == 32);
const _: () = assert!(offset_of!(Context<u128>, shape) == 0 && offset_of!(Context<u128>, strides) == NDIM_MAX * 8);

/// The context of a managed tensor. The tensor points to its shape, the first field, and to its strides, the second.
#[repr(C)]
struct Context<O> {
    shape: [i64; NDIM_MAX],
    strides: [i64; NDIM_MAX],
    owner: O,
}

/// A `DLManagedTensorVersioned` that no consumer has yet. Dropping it calls its deleter.
#[derive(Debug)]
pub struct ManagedTensor(NonNull<DLManagedTensorVersioned>);

// SAFETY: all of it is behind the pointer, and `new` requires an owner that any thread may drop (`Send`).
unsafe impl Send for ManagedTensor {}

impl ManagedTensor {
    /// A tensor whose deleter drops `owner`, on the thread on which the consumer calls it. The caller makes sure that the view's memory stays
    /// for as long as `owner` lives.
    pub fn new<O: Send + 'static>(view: &TensorView, device: DLDevice, is_read_only: bool, owner: O) -> Self {
        let context = Box::into_raw(Box::new(Context { shape: view.shape, strides: view.strides, owner }));
        let shape = context.cast::<i64>();
        let is_empty = view.shape().contains(&0);
        let managed = DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx: context.cast(),
            deleter: Some(delete::<O>),
            flags: if is_read_only { FLAG_READ_ONLY } else { 0 },
            dl_tensor: DLTensor {
                data: if is_empty { std::ptr::null_mut() } else { view.data as *mut c_void },
                device,
                ndim: view.shape().len() as i32,
                dtype: view.dtype,
                shape,
                strides: shape.wrapping_add(NDIM_MAX),
                byte_offset: 0,
            },
        };
        Self(NonNull::from(Box::leak(Box::new(managed))))
    }

    /// The structure that the consumer will see.
    pub fn as_raw(&self) -> &DLManagedTensorVersioned {
        // SAFETY: made by `new`, and exclusively ours until `into_raw`.
        unsafe { self.0.as_ref() }
    }

    /// Transfers ownership: the holder of the pointer calls the deleter, once.
    pub fn into_raw(self) -> NonNull<DLManagedTensorVersioned> {
        ManuallyDrop::new(self).0
    }

    /// Transfers ownership to a library from before DLPack 1.0, which calls the deleter, once.
    pub fn into_legacy(self) -> NonNull<DLManagedTensor> {
        let DLTensor { data, device, ndim, dtype, shape, strides, byte_offset } = self.as_raw().dl_tensor;
        let dl_tensor = DLTensor { data, device, ndim, dtype, shape, strides, byte_offset };
        let manager_ctx = self.into_raw().as_ptr().cast();
        NonNull::from(Box::leak(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(delete_legacy) })))
    }
}

/// The deleter of a tensor of `into_legacy`. It ignores a null pointer.
unsafe extern "C" fn delete_legacy(legacy: *mut DLManagedTensor) {
    if legacy.is_null() {
        return;
    }
    // SAFETY: `into_legacy` leaked it from a box, and the consumer calls a deleter once.
    let legacy = unsafe { Box::from_raw(legacy) };
    drop(NonNull::new(legacy.manager_ctx.cast()).map(ManagedTensor));
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        if let Some(deleter) = self.as_raw().deleter {
            // SAFETY: its own deleter, which has not been called.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

/// The deleter of a tensor that owns an `O`. It ignores a null pointer.
unsafe extern "C" fn delete<O>(managed: *mut DLManagedTensorVersioned) {
    if managed.is_null() {
        return;
    }
    // SAFETY: `new` leaked it from a box, and the consumer calls a deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above; `new` chose this deleter for this type of owner.
    let context = unsafe { Box::from_raw(managed.manager_ctx.cast::<Context<O>>()) };
    // The consumer is not Rust code, so a panic of the owner's drop must not unwind into it. The panic hook has printed it.
    let _ = catch_unwind(AssertUnwindSafe(move || drop(context.owner)));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn view(shape: &[i64]) -> TensorView {
        let mut view = TensorView {
            data: 0x7000,
            ndim: shape.len() as u32,
            dtype: DLDataType { code: 2, bits: 32, lanes: 1 },
            shape: [0; NDIM_MAX],
            strides: [0; NDIM_MAX],
        };
        view.shape[..shape.len()].copy_from_slice(shape);
        view.strides[..shape.len()].copy_from_slice(&vec![-3; shape.len()]);
        view
    }

    #[test]
    fn a_consumer_reads_the_layout_of_dlpack_h() {
        let tensor = ManagedTensor::new(&view(&[4, 5]), DLDevice::cuda(3), true, ());
        let raw = tensor.as_raw();
        assert_eq!((raw.version, raw.flags), (DLPackVersion { major: 1, minor: 1 }, 1));
        // SAFETY: the structure is plain bytes without padding, all initialised.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(raw).cast::<u8>(), 80) };
        assert_eq!(bytes[..8], [1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[24..32], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32..40], 0x7000_u64.to_le_bytes());
        assert_eq!(bytes[40..56], [2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 32, 1, 0]);
        assert_eq!(bytes[72..80], [0; 8]);
        let (shape, strides) = (raw.dl_tensor.shape, raw.dl_tensor.strides);
        // SAFETY: ndim elements each, alive with the tensor.
        let read = |from: *mut i64| unsafe { std::slice::from_raw_parts(from, 2) };
        assert_eq!((read(shape), read(strides)), ([4, 5].as_slice(), [-3, -3].as_slice()));
        let writable = ManagedTensor::new(&view(&[]), DLDevice::CPU, false, ());
        assert_eq!((writable.as_raw().flags, writable.as_raw().dl_tensor.ndim), (0, 0));
    }

    #[test]
    fn a_tensor_without_elements_has_no_address() {
        let tensor = ManagedTensor::new(&view(&[4, 0]), DLDevice::CPU, true, ());
        assert!(tensor.as_raw().dl_tensor.data.is_null());
    }

    #[test]
    fn the_owner_is_dropped_once_by_the_holder_of_the_tensor() {
        let owner = Arc::new(());
        let tensor = ManagedTensor::new(&view(&[1; NDIM_MAX]), DLDevice::CPU, true, owner.clone());
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(tensor);
        assert_eq!(Arc::strong_count(&owner), 1);

        let raw = ManagedTensor::new(&view(&[1]), DLDevice::CPU, true, owner.clone()).into_raw().as_ptr() as usize;
        assert_eq!(Arc::strong_count(&owner), 2, "given away, not dropped");
        let on_another_thread = std::thread::spawn(move || {
            let raw = raw as *mut DLManagedTensorVersioned;
            // SAFETY: given away to this thread alone.
            let deleter = unsafe { (*raw).deleter };
            // SAFETY: called once.
            unsafe { deleter.unwrap()(raw) };
        });
        on_another_thread.join().unwrap();
        assert_eq!(Arc::strong_count(&owner), 1);
        // SAFETY: null is no tensor.
        unsafe { delete::<()>(std::ptr::null_mut()) };
    }

    #[test]
    fn a_library_from_before_dlpack_1_sees_the_same_tensor_and_drops_its_owner() {
        let owner = Arc::new(());
        let tensor = ManagedTensor::new(&view(&[4, 5]), DLDevice::CPU, true, owner.clone());
        let legacy = tensor.into_legacy().as_ptr();
        // SAFETY: given away to this test alone.
        let seen = unsafe { &*legacy };
        assert_eq!((seen.dl_tensor.data as u64, seen.dl_tensor.ndim, seen.dl_tensor.dtype.bits), (0x7000, 2, 32));
        // SAFETY: ndim elements, alive with the tensor.
        assert_eq!(unsafe { std::slice::from_raw_parts(seen.dl_tensor.shape, 2) }, [4, 5]);
        let deleter = seen.deleter.unwrap();
        // SAFETY: called once.
        unsafe { deleter(legacy) };
        assert_eq!(Arc::strong_count(&owner), 1);
        // SAFETY: null is no tensor.
        unsafe { delete_legacy(std::ptr::null_mut()) };
    }

    #[test]
    fn an_owner_that_panics_does_not_unwind_into_the_consumer() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        drop(ManagedTensor::new(&view(&[1]), DLDevice::CPU, true, Panics));
    }
}
