//! Views: structs that describe a payload in device memory to a kernel, which gets them by value.
//!
//! ```text
//! ImageView, 32 B          FieldView, 32 B          PointCloudView, 24 B     TensorView, 144 B
//!   0  u64  data             0  u64  data             0  u64  data             0  u64     data
//!   8  u32  width            8  u32  width            8  u32  width            8  u32     ndim
//!  12  u32  height          12  u32  height          12  u32  height          12  dtype   dtype
//!  16  u32  step            16  u32  point_step      16  u32  point_step      16  i64[8]  shape
//!  20  u32  channels        20  u32  row_step        20  u32  row_step        80  i64[8]  strides
//!  24  dtype dtype          24  u32  count           24                      144
//!  28  u32  encoding        28  dtype dtype
//!  32                       32                       dtype: u8 code, u8 bits, u16 lanes
//! ```
//!
//! Each is a C struct without padding, aligned to 8 bytes. `data` is a device address. Steps are in bytes, strides of tensors in elements.
//! A view does not keep its memory alive: the loan or the sample does. The functions only compute addresses; they return `None` for one
//! outside the payload.

use std::mem::{offset_of, size_of};

use crate::raw::dlpack::{DLDataType, DLDevice};

/// Most dimensions of a tensor.
pub const NDIM_MAX: usize = 8;

/// Where a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// Device address of the first byte; on the host backend, a pointer. 0 if there is none.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The device, in DLPack's terms.
    pub device: DLDevice,
    /// Whether it may only be read.
    pub is_read_only: bool,
}

/// An image: rows of pixels with interleaved channels. For an encoding with two planes, the first plane; the second follows at
/// `step * height`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageView {
    /// Address of the first pixel.
    pub data: u64,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from row to row; a multiple of a channel's bytes.
    pub step: u32,
    /// Channels of a pixel.
    pub channels: u32,
    /// Type of a channel.
    pub dtype: DLDataType,
    /// Pixel format code, the same as in the metadata.
    pub encoding: u32,
}

impl ImageView {
    /// Address of pixel `x` of row `y`.
    ///
    /// ```
    /// use rgaps_device::{ImageView, dlpack::DLDataType};
    ///
    /// let dtype = DLDataType { code: 1, bits: 8, lanes: 1 };
    /// let view = ImageView { data: 0x1000, width: 640, height: 480, step: 2048, channels: 3, dtype, encoding: 3 };
    /// assert_eq!(view.pixel(2, 1), Some(0x1000 + 2048 + 2 * 3));
    /// assert_eq!(view.pixel(640, 0), None);
    /// ```
    pub fn pixel(&self, x: u32, y: u32) -> Option<u64> {
        if x >= self.width || y >= self.height {
            return None;
        }
        let pixel_bytes = u64::from(self.channels) * self.dtype.bytes();
        let offset = (u64::from(y) * u64::from(self.step)).checked_add(u64::from(x).checked_mul(pixel_bytes)?)?;
        self.data.checked_add(offset)
    }
}

/// A point cloud: rows of points. The kernel interprets the bytes of a point.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointCloudView {
    /// Address of the first point.
    pub data: u64,
    /// Points of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from point to point.
    pub point_step: u32,
    /// Bytes from row to row.
    pub row_step: u32,
}

impl PointCloudView {
    /// Address of a point, counted row by row.
    pub fn point(&self, number: u64) -> Option<u64> {
        place_of_point(number, self.width, self.height, self.point_step, self.row_step)?.checked_add(self.data)
    }
}

/// One field of all points of a cloud.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldView {
    /// Address of the field in the first point.
    pub data: u64,
    /// Points of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from point to point; a multiple of an element's bytes.
    pub point_step: u32,
    /// Bytes from row to row; a multiple of an element's bytes.
    pub row_step: u32,
    /// Elements of the field in a point.
    pub count: u32,
    /// Type of an element.
    pub dtype: DLDataType,
}

impl FieldView {
    /// Address of the field's first element in a point, counted row by row; its `count` elements are contiguous.
    pub fn point(&self, number: u64) -> Option<u64> {
        place_of_point(number, self.width, self.height, self.point_step, self.row_step)?.checked_add(self.data)
    }
}

fn place_of_point(number: u64, width: u32, height: u32, point_step: u32, row_step: u32) -> Option<u64> {
    let (row, column) = (number.checked_div(u64::from(width))?, number.checked_rem(u64::from(width))?);
    if row >= u64::from(height) {
        return None;
    }
    (row * u64::from(row_step)).checked_add(column * u64::from(point_step))
}

/// A tensor of up to eight dimensions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// Address of element (0, 0, ...).
    pub data: u64,
    /// Dimensions.
    pub ndim: u32,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// Elements of each dimension, those past `ndim` zero.
    pub shape: [i64; NDIM_MAX],
    /// Distance between neighbours in each dimension, in elements (not bytes), those past `ndim` zero.
    pub strides: [i64; NDIM_MAX],
}

impl TensorView {
    /// Elements of each dimension.
    pub fn shape(&self) -> &[i64] {
        self.shape.get(..self.ndim as usize).unwrap_or(&self.shape)
    }

    /// Distance between neighbours in each dimension, in elements.
    pub fn strides(&self) -> &[i64] {
        self.strides.get(..self.ndim as usize).unwrap_or(&self.strides)
    }

    /// Address of an element, by its index in each dimension.
    ///
    /// ```
    /// use rgaps_device::{TensorView, dlpack::DLDataType, view::NDIM_MAX};
    ///
    /// let (mut shape, mut strides) = ([0; NDIM_MAX], [0; NDIM_MAX]);
    /// (shape[0], shape[1], strides[0], strides[1]) = (2, 3, 3, 1);
    /// let dtype = DLDataType { code: 2, bits: 32, lanes: 1 };
    /// let view = TensorView { data: 0x1000, ndim: 2, dtype, shape, strides };
    /// assert_eq!(view.element(&[1, 2]), Some(0x1000 + (3 + 2) * 4));
    /// assert_eq!(view.element(&[2, 0]), None);
    /// ```
    pub fn element(&self, place: &[i64]) -> Option<u64> {
        if place.len() != self.shape().len() {
            return None;
        }
        let mut elements = 0_i64;
        for ((&at, &extent), &stride) in place.iter().zip(self.shape()).zip(self.strides()) {
            if !(0..extent).contains(&at) {
                return None;
            }
            elements = elements.checked_add(at.checked_mul(stride)?)?;
        }
        let bytes = elements.checked_mul(i64::try_from(self.dtype.bytes()).ok()?)?;
        self.data.checked_add_signed(bytes)
    }
}

const _: () = assert!(size_of::<ImageView>() == 32 && offset_of!(ImageView, dtype) == 24);
const _: () = assert!(size_of::<FieldView>() == 32 && offset_of!(FieldView, dtype) == 28);
const _: () = assert!(size_of::<PointCloudView>() == 24 && offset_of!(PointCloudView, row_step) == 20);
const _: () = assert!(size_of::<TensorView>() == 144 && offset_of!(TensorView, strides) == 80);
