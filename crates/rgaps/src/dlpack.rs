//! DLPack: payloads described to array libraries (NumPy, PyTorch, CuPy, JAX), and handed to them without a copy.
//!
//! ```text
//!   sample.describe() ──▶ Descriptor ──manage(owner)──▶ ManagedTensor ──into_raw──▶ the library, which calls the deleter
//!   sample.into_dlpack() ─────────────────────────────▶    (the owner is the sample: deleted, it is released)
//! ```
//!
//! Several tensors of one sample, such as the fields of a cloud, share it: `describe_field` for each, and an `Arc` of the sample as owner.
//!
//! Nothing here waits for a device. A library that works on the payload does so behind the work that brings it: on the stream that the sample
//! was taken on, or once `Sample::status` is ready. Its own work must be over, or given to that stream, when it calls the deleter.
//!
//! Memory of a GPU is kDLCUDA, with the number that the device has in this process; so is memory that an integrated GPU shares with the
//! host, because the address is the device's. Of the host backend it is kDLCPU.
//!
//! Source      DLPack 1.1, dlpack.h of dmlc/dlpack.

pub use rgaps_device::DeviceRange;
use rgaps_device::TensorView;
pub use rgaps_device::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, FLAG_READ_ONLY,
    ManagedTensor, VERSION,
};

use crate::types::{DType, Meta, Tensor, ViewError};

/// What an array library is told of a payload: a tensor of elements in a device's memory. All of it lies inside the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    tensor: Tensor,
    range: DeviceRange,
}

impl Descriptor {
    /// A tensor in memory that holds all of it. Elements must lie at multiples of their size (of a lane, of a part of a complex number).
    pub fn new(tensor: &Tensor, range: &DeviceRange) -> Result<Self, ViewError> {
        let (needed, &DeviceRange { address, bytes, .. }) = (tensor.payload_bytes(), range);
        if needed > bytes || address.checked_add(bytes).is_none() {
            return Err(ViewError::OutOfBounds { needed, address, bytes });
        }
        let descriptor = Self { tensor: *tensor, range: *range };
        let element = tensor.dtype().alignment();
        if tensor.elements() > 0 && !descriptor.data().is_multiple_of(element) {
            let is_the_offset = address.is_multiple_of(element);
            let (what, bytes) =
                if is_the_offset { ("byte offset", tensor.byte_offset()) } else { ("address", descriptor.data()) };
            return Err(ViewError::Unaligned { what, bytes, element });
        }
        Ok(descriptor)
    }

    /// Where the memory is.
    pub fn device(&self) -> DLDevice {
        self.range.device
    }

    /// The device's address of element (0, 0, ...).
    pub fn data(&self) -> u64 {
        self.range.address + self.tensor.byte_offset()
    }

    /// Bytes of the payload before that element.
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

    /// Whether the library must not write: so it is for a sample, and not for a loan.
    pub fn is_read_only(&self) -> bool {
        self.range.is_read_only
    }

    /// What a kernel is told of it.
    pub fn view(&self) -> TensorView {
        self.tensor.view_at(self.data())
    }

    /// A managed tensor, whose deleter drops `owner`: what keeps the payload where it is.
    pub fn manage<O: Send + 'static>(&self, owner: O) -> ManagedTensor {
        ManagedTensor::new(&self.view(), self.device(), self.is_read_only(), owner)
    }
}
