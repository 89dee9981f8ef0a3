//! Makes views kernel arguments: cudarc's `builder.arg(&view)` passes one by value.

use cudarc::driver::DeviceRepr;

use crate::view::{FieldView, ImageView, PointCloudView, TensorView};

// SAFETY: a C struct of integers without padding, with the same layout on host and device.
unsafe impl DeviceRepr for ImageView {}
// SAFETY: as above.
unsafe impl DeviceRepr for PointCloudView {}
// SAFETY: as above.
unsafe impl DeviceRepr for FieldView {}
// SAFETY: as above.
unsafe impl DeviceRepr for TensorView {}
