//! Views as arguments of kernels: `builder.arg(&view)` of cudarc passes one by value.

use cudarc::driver::DeviceRepr;

use crate::view::{FieldView, ImageView, PointCloudView, TensorView};

// SAFETY: a struct of C without padding, of integers alone, with the same layout on host and device.
unsafe impl DeviceRepr for ImageView {}
// SAFETY: as above.
unsafe impl DeviceRepr for PointCloudView {}
// SAFETY: as above.
unsafe impl DeviceRepr for FieldView {}
// SAFETY: as above.
unsafe impl DeviceRepr for TensorView {}
