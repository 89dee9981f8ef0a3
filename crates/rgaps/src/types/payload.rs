//! Payloads as arrays: the shape of a message's bytes, for kernels (`View`) and for array libraries (`dlpack::UnmanagedTensor`).
//!
//! | type | tensor |
//! |---|---|
//! | `Image` | height x width x channels, or height x width of one channel; rows are a step apart |
//! | `Image` of two planes (nv12, nv21, nv24) | rows of both planes x step, bytes |
//! | `PointCloud` | points x bytes of a point; rows x points x bytes if rows have gaps between them |
//! | field of a `PointCloud` | points, or points x count; with rows as first dimension if rows have gaps between them |
//! | `Tensor` | itself |
//! | `Bytes` | bytes |
//!
//! Like DLPack's, strides count elements, and elements are aligned to their size. Other steps or offsets are an error; read such payloads as bytes.

use rgaps_device::dlpack::DLDataType;
use rgaps_device::{DeviceRange, FieldView, ImageView, PointCloudView, TensorView};

use super::bytes::Bytes;
use super::cloud::{PointCloud, PointField};
use super::image::Image;
use super::meta::{Meta, MetaError};
use super::tensor::{DType, DTypeCode, Tensor};
use crate::dlpack::UnmanagedTensor;

/// Why a payload cannot be viewed as requested. The message is unchanged.
///
/// ```
/// use rgaps::types::{Encoding, Image, Payload, ViewError};
///
/// // Rows of 16-bit pixels that begin at odd bytes.
/// let image = Image::new(2, 2, Encoding::Mono16)?.with_step(5)?;
/// assert_eq!(image.tensor(), Err(ViewError::Unaligned { what: "step", bytes: 5, element: 2 }));
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// A step or an offset in bytes is not a multiple of the element's size.
    #[error(
        "the {what} of {bytes} B is not a multiple of the element's {element} B; align it where the message is made, or read the payload as bytes"
    )]
    Unaligned {
        /// The step or offset.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// Bytes of an element, or of one of its lanes.
        element: u64,
    },
    /// The elements are big-endian, and this machine is little-endian.
    #[error("the {what} has its high bytes first; swap them where the message is made, or read the payload as bytes")]
    ByteOrder {
        /// "image" or "cloud".
        what: &'static str,
    },
    /// The cloud has no field of that name.
    #[error("the cloud has no field '{name}'; it has: {fields}")]
    NoField {
        /// The requested name.
        name: String,
        /// The names of the cloud's fields.
        fields: String,
    },
    /// The memory is smaller than the payload that the metadata describes.
    #[error("the metadata describes {needed} B, the memory at address {address:#x} has {bytes} B")]
    OutOfBounds {
        /// Bytes that the metadata describes.
        needed: u64,
        /// First byte of the memory.
        address: u64,
        /// Bytes of the memory.
        bytes: u64,
    },
    /// No tensor can describe the payload, or the metadata contradicts itself.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Metadata whose payload can be viewed as an array.
///
/// ```
/// use rgaps::types::{Encoding, Image, Payload};
///
/// let tensor = Image::new(640, 480, Encoding::Rgb8)?.tensor()?;
/// assert_eq!(tensor.shape(), [480, 640, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Payload: Meta {
    /// The kernel argument that describes the payload.
    type View: Copy + std::fmt::Debug + Send + Sync + 'static;

    /// The payload as a tensor, with the same header.
    fn tensor(&self) -> Result<Tensor, ViewError>;

    /// The kernel argument for a payload in `range`, which must hold all of it.
    fn view(&self, range: &DeviceRange) -> Result<Self::View, ViewError>;

    /// Describes a payload in `range`, which must hold all of it, to an array library.
    fn describe(&self, range: &DeviceRange) -> Result<UnmanagedTensor, ViewError> {
        whole(self, range)?;
        UnmanagedTensor::new(&self.tensor()?, range)
    }
}

impl Payload for Image {
    type View = ImageView;

    fn tensor(&self) -> Result<Tensor, ViewError> {
        self.check_shape()?;
        let dtype = self.encoding.channel_type();
        native(self.is_bigendian, dtype, "image")?;
        let (width, channels) = (i64::from(self.width), i64::from(self.encoding.channels()));
        let row = elements("step", self.step.into(), dtype)?;
        let tensor = match (self.encoding.planes(), channels) {
            (1, 1) => Tensor::strided(dtype, &[i64::from(self.height), width], &[row, 1], 0),
            (1, _) => Tensor::strided(dtype, &[i64::from(self.height), width, channels], &[row, channels, 1], 0),
            _ => Tensor::strided(dtype, &[self.encoding.payload_rows(self.height) as i64, row], &[row, 1], 0),
        };
        Ok(tensor?.with_header(self.header))
    }

    fn view(&self, range: &DeviceRange) -> Result<ImageView, ViewError> {
        let described = self.describe(range)?;
        Ok(ImageView {
            data: described.data(),
            width: self.width,
            height: self.height,
            step: self.step,
            channels: self.encoding.channels(),
            dtype: described.dtype().into(),
            encoding: self.encoding.code(),
        })
    }
}

impl Payload for PointCloud {
    type View = PointCloudView;

    fn tensor(&self) -> Result<Tensor, ViewError> {
        self.check_shape()?;
        self.points_of(DType::UINT8, 0, Some(self.point_step))
    }

    fn view(&self, range: &DeviceRange) -> Result<PointCloudView, ViewError> {
        let &Self { width, height, point_step, row_step, .. } = self;
        Ok(PointCloudView { data: self.describe(range)?.data(), width, height, point_step, row_step })
    }
}

impl PointCloud {
    /// One field of all points as a tensor: points, or points x count; with rows as first dimension if rows have gaps between them.
    ///
    /// ```
    /// use rgaps::types::{DType, Datatype, PointCloud};
    ///
    /// let xyz = ["x", "y", "z"].map(|name| (name, Datatype::Float32));
    /// let z = PointCloud::packed(1000, &xyz)?.field_tensor("z")?;
    /// assert_eq!((z.dtype(), z.shape(), z.strides(), z.byte_offset()), (DType::FLOAT32, &[1000][..], &[3][..], 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn field_tensor(&self, name: &str) -> Result<Tensor, ViewError> {
        self.check_shape()?;
        let field = self.known_field(name)?;
        let dtype = field.datatype.dtype();
        native(self.is_bigendian, dtype, "cloud")?;
        elements("field's offset", field.offset.into(), dtype)?;
        self.points_of(dtype, field.offset, (field.count > 1).then_some(field.count))
    }

    /// Describes one field of a cloud in `range` to an array library.
    pub fn describe_field(&self, name: &str, range: &DeviceRange) -> Result<UnmanagedTensor, ViewError> {
        whole(self, range)?;
        UnmanagedTensor::new(&self.field_tensor(name)?, range)
    }

    /// The kernel argument for one field of a cloud in `range`.
    pub fn field_view(&self, name: &str, range: &DeviceRange) -> Result<FieldView, ViewError> {
        let described = self.describe_field(name, range)?;
        let &Self { width, height, point_step, row_step, .. } = self;
        let (count, dtype) = (self.known_field(name)?.count, described.dtype().into());
        Ok(FieldView { data: described.data(), width, height, point_step, row_step, count, dtype })
    }

    fn known_field(&self, name: &str) -> Result<&PointField, ViewError> {
        self.field(name).ok_or_else(|| {
            let fields: Vec<&str> = self.fields().iter().map(|field| field.name.as_str()).collect();
            ViewError::NoField { name: name.to_owned(), fields: fields.join(", ") }
        })
    }

    /// A tensor of the elements at byte `offset` of every point: one element a point, or `side_by_side` elements as a last dimension.
    fn points_of(&self, dtype: DType, offset: u32, side_by_side: Option<u32>) -> Result<Tensor, ViewError> {
        let point = elements("point step", self.point_step.into(), dtype)?;
        let has_gaps = u64::from(self.width) * u64::from(self.point_step) < u64::from(self.row_step);
        let (inner, with_inner) = (side_by_side.map_or(0, i64::from), usize::from(side_by_side.is_some()));
        let offset = if self.points() > 0 { u64::from(offset) } else { 0 };
        let tensor = if self.height > 1 && has_gaps {
            let (rows, row) = (i64::from(self.height), elements("row step", self.row_step.into(), dtype)?);
            let (shape, strides) = ([rows, self.width.into(), inner], [row, point, 1]);
            Tensor::strided(dtype, &shape[..2 + with_inner], &strides[..2 + with_inner], offset)
        } else {
            // Saturates only if a point has no bytes, and so the tensor no elements.
            let points = i64::try_from(self.points()).unwrap_or(i64::MAX);
            let (shape, strides) = ([points, inner], [point, 1]);
            Tensor::strided(dtype, &shape[..1 + with_inner], &strides[..1 + with_inner], offset)
        };
        Ok(tensor?.with_header(self.header))
    }
}

impl Payload for Tensor {
    type View = TensorView;

    fn tensor(&self) -> Result<Tensor, ViewError> {
        Ok(*self)
    }

    fn view(&self, range: &DeviceRange) -> Result<TensorView, ViewError> {
        Ok(self.describe(range)?.view())
    }
}

impl Payload for Bytes {
    type View = TensorView;

    fn tensor(&self) -> Result<Tensor, ViewError> {
        // The extent check refuses a length beyond any memory.
        let bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        Ok(Tensor::new(DType::UINT8, &[bytes])?.with_header(self.header))
    }

    fn view(&self, range: &DeviceRange) -> Result<TensorView, ViewError> {
        Ok(self.describe(range)?.view())
    }
}

impl From<DType> for DLDataType {
    fn from(DType { code, bits, lanes }: DType) -> Self {
        Self { code, bits, lanes }
    }
}

impl DType {
    /// Alignment of an element in bytes: the size of a lane; of a complex number, the size of a part. 1 if that is not a power of two of whole bytes.
    pub(crate) fn alignment(self) -> u64 {
        let bits = u64::from(if self.code == DTypeCode::COMPLEX { self.bits / 2 } else { self.bits });
        if bits % 8 == 0 && bits.is_power_of_two() { bits / 8 } else { 1 }
    }
}

/// Checks that the range holds the whole payload.
fn whole<T: Meta>(meta: &T, range: &DeviceRange) -> Result<(), ViewError> {
    let &DeviceRange { address, bytes, .. } = range;
    let needed = meta.payload_bytes();
    if needed > bytes || address.checked_add(bytes).is_none() {
        return Err(ViewError::OutOfBounds { needed, address, bytes });
    }
    Ok(())
}

/// Converts a step or offset from bytes to elements.
fn elements(what: &'static str, bytes: u64, dtype: DType) -> Result<i64, ViewError> {
    let element = dtype.bytes();
    match bytes % element {
        0 => Ok((bytes / element) as i64),
        _ => Err(ViewError::Unaligned { what, bytes, element }),
    }
}

/// Checks that elements are in this machine's byte order, which DLPack assumes.
fn native(is_bigendian: bool, dtype: DType, what: &'static str) -> Result<(), ViewError> {
    match is_bigendian && dtype.bytes() > 1 {
        true => Err(ViewError::ByteOrder { what }),
        false => Ok(()),
    }
}
