//! DLPack: payloads described to array libraries (NumPy, PyTorch, CuPy, JAX), and handed to them without a copy.
//!
//! ```text
//!   sample.describe() ──▶ UnmanagedTensor ──manage(owner)──▶ ManagedTensor ──into_raw──▶ the library, which calls the deleter
//!   sample.into_dlpack() ──────────────────────────────────▶    (the owner is the sample: the deleter releases it)
//! ```
//!
//! Several tensors can share one sample, for example the fields of a cloud: call `describe_field` for each, with an `Arc` of the sample as owner.
//!
//! Nothing here waits for a device. A library must order its work after the work that writes the payload: on the stream that the sample was taken
//! on, or once `Sample::readiness` is `Ready`. When it calls the deleter, its own work must be complete or in that stream.
//!
//! GPU memory is kDLCUDA, with the device's number in this process. Memory that an integrated GPU shares with the host is kDLCUDA too, because the
//! address is the device's. Memory of the host backend is kDLCPU.
//!
//! Source      DLPack 1.1, dlpack.h of dmlc/dlpack.

pub use rgaps_device::DeviceRange;
use rgaps_device::TensorView;
pub use rgaps_device::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, FLAG_READ_ONLY,
    ManagedTensor, VERSION,
};

use crate::types::{DType, Meta, Tensor, ViewError};

/// Describes a payload to an array library: a tensor in device memory, entirely inside the payload. It does not keep the payload there.
///
/// ```
/// use rgaps::dlpack::{DLDevice, DeviceRange, UnmanagedTensor};
/// use rgaps::types::{DType, Tensor};
///
/// let data = [0_f32; 6];
/// let range = DeviceRange { address: data.as_ptr() as u64, bytes: 24, device: DLDevice::CPU, is_read_only: true };
/// let unmanaged = UnmanagedTensor::new(&Tensor::new(DType::FLOAT32, &[2, 3])?, &range)?;
/// assert_eq!((unmanaged.shape(), unmanaged.strides()), (&[2, 3][..], &[3, 1][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmanagedTensor {
    tensor: Tensor,
    range: DeviceRange,
}

impl UnmanagedTensor {
    /// Describes `tensor` in `range`, which must hold all of it. Elements must be aligned to their size (of a lane; of a part of a complex number).
    pub fn new(tensor: &Tensor, range: &DeviceRange) -> Result<Self, ViewError> {
        let (needed, &DeviceRange { address, bytes, .. }) = (tensor.payload_bytes(), range);
        if needed > bytes || address.checked_add(bytes).is_none() {
            return Err(ViewError::OutOfBounds { needed, address, bytes });
        }
        let unmanaged = Self { tensor: *tensor, range: *range };
        let element = tensor.dtype().alignment();
        if tensor.elements() > 0 && !unmanaged.data().is_multiple_of(element) {
            let is_the_offset = address.is_multiple_of(element);
            let (what, bytes) =
                if is_the_offset { ("byte offset", tensor.byte_offset()) } else { ("address", unmanaged.data()) };
            return Err(ViewError::Unaligned { what, bytes, element });
        }
        Ok(unmanaged)
    }

    /// The device that has the memory.
    pub fn device(&self) -> DLDevice {
        self.range.device
    }

    /// The device's address of element (0, 0, ...).
    pub fn data(&self) -> u64 {
        self.range.address + self.tensor.byte_offset()
    }

    /// Byte offset of element (0, 0, ...) in the payload.
    pub fn byte_offset(&self) -> u64 {
        self.tensor.byte_offset()
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Elements of each dimension.
    pub fn shape(&self) -> &[i64] {
        self.tensor.shape()
    }

    /// Elements (not bytes) from one to the next in each dimension.
    pub fn strides(&self) -> &[i64] {
        self.tensor.strides()
    }

    /// Whether the library must not write: true for samples, false for loans.
    pub fn is_read_only(&self) -> bool {
        self.range.is_read_only
    }

    /// The tensor as a kernel argument.
    ///
    /// ```
    /// # use rgaps::dlpack::{DLDevice, DeviceRange, UnmanagedTensor};
    /// # use rgaps::types::{DType, Tensor};
    /// # let data = [0_f32; 6];
    /// # let range = DeviceRange { address: data.as_ptr() as u64, bytes: 24, device: DLDevice::CPU, is_read_only: true };
    /// let unmanaged = UnmanagedTensor::new(&Tensor::new(DType::FLOAT32, &[2, 3])?, &range)?;
    /// let view = unmanaged.view(); // the argument of a kernel
    /// assert_eq!(view.element(&[1, 0]), Some(range.address + 12));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn view(&self) -> TensorView {
        self.tensor.view_at(self.data())
    }

    /// A managed tensor whose deleter drops `owner`, which must keep the payload in place.
    ///
    /// ```
    /// use rgaps::dlpack::{DLDevice, DeviceRange, UnmanagedTensor};
    /// use rgaps::types::{DType, Tensor};
    ///
    /// let data = vec![1_f32, 2.0, 3.0];
    /// let range = DeviceRange { address: data.as_ptr() as u64, bytes: 12, device: DLDevice::CPU, is_read_only: true };
    /// let unmanaged = UnmanagedTensor::new(&Tensor::new(DType::FLOAT32, &[3])?, &range)?;
    /// let tensor = unmanaged.manage(data); // the deleter frees `data`
    /// assert_eq!(tensor.as_raw().dl_tensor.ndim, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn manage<O: Send + 'static>(&self, owner: O) -> ManagedTensor {
        ManagedTensor::new(&self.view(), self.device(), self.is_read_only(), owner)
    }
}
