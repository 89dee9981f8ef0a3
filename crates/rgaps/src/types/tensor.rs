//! Tensors: element type, shape and strides, like DLPack's.
//!
//! ```text
//! Tensor, 248 B
//!   0  Header               frame_id may hold the tensor's name
//! 104  u32     ndim         at most 8
//! 108  u8      code         DLDataTypeCode
//! 109  u8      bits         of a lane
//! 110  u16     lanes        of an element
//! 112  i64[8]  shape        elements of each dimension, those past ndim zero
//! 176  i64[8]  strides      elements (not bytes) from one to the next, those past ndim zero
//! 240  u64     byte_offset  of element (0, 0, ...) in the payload
//! 248
//! ```

use std::fmt;
use std::mem::{offset_of, size_of};

use rgaps_device::TensorView;
use rgaps_shm::layout::META_BYTES_MAX;

use super::meta::{HEADER_BYTES, Header, Meta, MetaError};
use super::wire::{Fields, Layout};

pub use rgaps_device::view::NDIM_MAX;

/// DLPack's codes of element types (DLDataTypeCode). An opaque handle (3) is refused, since it means nothing in another process.
///
/// ```
/// use rgaps::types::{DType, DTypeCode};
///
/// assert_eq!((DType::FLOAT32.code, DType::FLOAT32.bits), (DTypeCode::FLOAT, 32));
/// ```
pub struct DTypeCode;

impl DTypeCode {
    /// Signed integers.
    pub const INT: u8 = 0;
    /// Unsigned integers.
    pub const UINT: u8 = 1;
    /// IEEE floating point.
    pub const FLOAT: u8 = 2;
    /// A pointer: refused.
    pub const OPAQUE_HANDLE: u8 = 3;
    /// The upper half of an IEEE float of 32 bits.
    pub const BFLOAT: u8 = 4;
    /// Pairs of IEEE floats; `bits` counts both.
    pub const COMPLEX: u8 = 5;
    /// Booleans of one byte.
    pub const BOOL: u8 = 6;
    /// The last code of DLPack 1.1 (7 to 17 are floats of 8, 6 and 4 bits).
    pub const LAST: u8 = 17;
}

/// Type of a tensor's elements, like DLDataType.
///
/// ```
/// use rgaps::types::DType;
///
/// assert_eq!((DType::FLOAT32.bytes(), DType::FLOAT32.to_string()), (4, "float32".to_owned()));
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DType {
    /// One of `DTypeCode`.
    pub code: u8,
    /// Bits of a lane.
    pub bits: u8,
    /// Lanes of an element, usually one.
    pub lanes: u16,
}

impl DType {
    /// Floating point, 16 bits.
    pub const FLOAT16: Self = Self::scalar(DTypeCode::FLOAT, 16);
    /// Floating point, 32 bits.
    pub const FLOAT32: Self = Self::scalar(DTypeCode::FLOAT, 32);
    /// Floating point, 64 bits.
    pub const FLOAT64: Self = Self::scalar(DTypeCode::FLOAT, 64);
    /// Brain floating point, 16 bits.
    pub const BFLOAT16: Self = Self::scalar(DTypeCode::BFLOAT, 16);
    /// Signed, 8 bits.
    pub const INT8: Self = Self::scalar(DTypeCode::INT, 8);
    /// Signed, 16 bits.
    pub const INT16: Self = Self::scalar(DTypeCode::INT, 16);
    /// Signed, 32 bits.
    pub const INT32: Self = Self::scalar(DTypeCode::INT, 32);
    /// Signed, 64 bits.
    pub const INT64: Self = Self::scalar(DTypeCode::INT, 64);
    /// Unsigned, 8 bits.
    pub const UINT8: Self = Self::scalar(DTypeCode::UINT, 8);
    /// Unsigned, 16 bits.
    pub const UINT16: Self = Self::scalar(DTypeCode::UINT, 16);
    /// Unsigned, 32 bits.
    pub const UINT32: Self = Self::scalar(DTypeCode::UINT, 32);
    /// Unsigned, 64 bits.
    pub const UINT64: Self = Self::scalar(DTypeCode::UINT, 64);
    /// Booleans, one byte each.
    pub const BOOL: Self = Self::scalar(DTypeCode::BOOL, 8);
    /// Two floats of 32 bits.
    pub const COMPLEX64: Self = Self::scalar(DTypeCode::COMPLEX, 64);
    /// Two floats of 64 bits.
    pub const COMPLEX128: Self = Self::scalar(DTypeCode::COMPLEX, 128);

    /// An element of one lane.
    ///
    /// ```
    /// use rgaps::types::{DType, DTypeCode};
    ///
    /// const FLOAT8_E4M3: DType = DType::scalar(10, 8); // kDLFloat8_e4m3fn
    /// assert_eq!((FLOAT8_E4M3.bytes(), DType::scalar(DTypeCode::INT, 16)), (1, DType::INT16));
    /// ```
    pub const fn scalar(code: u8, bits: u8) -> Self {
        Self { code, bits, lanes: 1 }
    }

    /// Bytes of an element, all lanes.
    pub fn bytes(self) -> u64 {
        u64::from(self.bits) * u64::from(self.lanes) / 8
    }

    fn check(self) -> Result<(), MetaError> {
        let Self { code, bits, lanes } = self;
        let reason = match () {
            () if code == DTypeCode::OPAQUE_HANDLE => "is a pointer, which means nothing in another process",
            () if code > DTypeCode::LAST => "is not known to this version",
            () if bits == 0 || lanes == 0 => "has no bits",
            () if u32::from(bits) * u32::from(lanes) % 8 != 0 => {
                "is no whole number of bytes; pack more lanes into an element"
            }
            () => return Ok(()),
        };
        Err(MetaError::DType { code, bits, lanes, reason })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            DTypeCode::INT => write!(f, "int{}", self.bits)?,
            DTypeCode::UINT => write!(f, "uint{}", self.bits)?,
            DTypeCode::FLOAT => write!(f, "float{}", self.bits)?,
            DTypeCode::BFLOAT => write!(f, "bfloat{}", self.bits)?,
            DTypeCode::COMPLEX => write!(f, "complex{}", self.bits)?,
            DTypeCode::BOOL => write!(f, "bool")?,
            code => write!(f, "code{code}:{}", self.bits)?,
        }
        if self.lanes == 1 { Ok(()) } else { write!(f, "x{}", self.lanes) }
    }
}

/// Metadata of a tensor, like DLTensor.
///
/// ```
/// use rgaps::types::{DType, Meta, Tensor};
///
/// let tensor = Tensor::new(DType::FLOAT32, &[1, 3, 224, 224])?.in_frame("activations")?;
/// assert_eq!((tensor.strides(), tensor.payload_bytes()), (&[150_528, 50_176, 224, 1][..], 602_112));
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// Stamp, frame or name, the application's bytes.
    pub header: Header,
    ndim: u32,
    dtype: DType,
    shape: [i64; NDIM_MAX],
    strides: [i64; NDIM_MAX],
    byte_offset: u64,
}

const _: () = assert!(size_of::<Tensor>() == Tensor::ENCODED_BYTES && offset_of!(Tensor, ndim) == HEADER_BYTES);
const _: () = assert!(offset_of!(Tensor, shape) == 112 && offset_of!(Tensor, strides) == 176);
const _: () = assert!(offset_of!(Tensor, dtype) == 108 && offset_of!(Tensor, byte_offset) == 240);

impl Tensor {
    /// A tensor in C order: the last dimension is contiguous, without gaps and without offset.
    ///
    /// ```
    /// use rgaps::types::{DType, Meta, Tensor};
    ///
    /// let image_batch = Tensor::new(DType::FLOAT16, &[8, 3, 224, 224])?.in_frame("images")?; // a frame can be a name
    /// assert_eq!((image_batch.elements(), image_batch.payload_bytes()), (1_204_224, 2_408_448));
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn new(dtype: DType, shape: &[i64]) -> Result<Self, MetaError> {
        let mut strides = [0; NDIM_MAX];
        let strides = strides.get_mut(..shape.len()).ok_or(Self::too_many(shape.len()))?;
        let mut stride = 1_i64;
        for (place, &elements) in strides.iter_mut().zip(shape).rev() {
            *place = stride;
            // An empty dimension counts as one element in the strides of the others. Saturated strides fail the extent check.
            stride = stride.saturating_mul(elements.max(1));
        }
        Self::strided(dtype, shape, strides, 0)
    }

    /// A tensor with strides in elements, whose element (0, 0, ...) is `byte_offset` bytes into the payload.
    ///
    /// ```
    /// use rgaps::types::{DType, Meta, Tensor};
    ///
    /// // Fortran order: the first dimension is contiguous.
    /// let columns = Tensor::strided(DType::FLOAT64, &[3, 4], &[1, 3], 0)?;
    /// assert_eq!(columns.payload_bytes(), 96);
    /// // A window of 2 x 2 in an array with rows of 10, from row 1, column 1 on.
    /// let window = Tensor::strided(DType::UINT8, &[2, 2], &[10, 1], 11)?;
    /// assert_eq!(window.payload_bytes(), 23); // up to its last element
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn strided(dtype: DType, shape: &[i64], strides: &[i64], byte_offset: u64) -> Result<Self, MetaError> {
        if shape.len() != strides.len() {
            return Err(MetaError::Rank { shape: shape.len(), strides: strides.len() });
        }
        if shape.len() > NDIM_MAX {
            return Err(Self::too_many(shape.len()));
        }
        let (mut own_shape, mut own_strides) = ([0; NDIM_MAX], [0; NDIM_MAX]);
        own_shape[..shape.len()].copy_from_slice(shape);
        own_strides[..strides.len()].copy_from_slice(strides);
        let ndim = shape.len() as u32;
        let tensor =
            Self { header: Header::default(), byte_offset, shape: own_shape, strides: own_strides, ndim, dtype };
        tensor.check_shape()?;
        Ok(tensor)
    }

    /// Elements of each dimension.
    pub fn shape(&self) -> &[i64] {
        &self.shape[..self.ndim as usize]
    }

    /// Elements from one to the next in each dimension.
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.ndim as usize]
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Byte offset of element (0, 0, ...) in the payload.
    pub fn byte_offset(&self) -> u64 {
        self.byte_offset
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape().iter().fold(1, |product: u64, &n| product.saturating_mul(n.unsigned_abs()))
    }

    pub(super) fn with_header(self, header: Header) -> Self {
        Self { header, ..self }
    }

    /// The kernel argument for a tensor whose element (0, 0, ...) is at `data`.
    pub(crate) fn view_at(&self, data: u64) -> TensorView {
        let &Self { ndim, dtype, shape, strides, .. } = self;
        TensorView { data, ndim, dtype: dtype.into(), shape, strides }
    }

    fn too_many(found: usize) -> MetaError {
        MetaError::TooMany { what: "dimensions", found, limit: NDIM_MAX }
    }

    /// The first byte of the lowest element and the byte after the highest. `None` if the products (8 of 63 x 63 bits, one of 20 bits) overflow 128
    /// bits.
    fn extent(&self) -> Option<(i128, i128)> {
        let offset = i128::from(self.byte_offset);
        if self.shape().contains(&0) {
            return Some((offset, offset));
        }
        let (mut lowest, mut highest) = (0_i128, 0_i128);
        for (&elements, &stride) in self.shape().iter().zip(self.strides()) {
            let reach = (i128::from(elements) - 1).checked_mul(i128::from(stride))?;
            let end = if reach < 0 { &mut lowest } else { &mut highest };
            *end = end.checked_add(reach)?;
        }
        let bytes = i128::from(self.dtype.bytes());
        let lowest = lowest.checked_mul(bytes)?.checked_add(offset)?;
        let end = highest.checked_add(1)?.checked_mul(bytes)?.checked_add(offset)?;
        Some((lowest, end))
    }
}

impl Meta for Tensor {
    const KIND: u32 = 3;
    const TYPE_NAME: &'static str = "rgaps/Tensor";
    const ENCODED_BYTES: usize = 248;

    fn encode(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        let mut to = Layout::into(to);
        self.header.encode(&mut to);
        to.u32(self.ndim).u8(self.dtype.code).u8(self.dtype.bits).u16(self.dtype.lanes);
        for value in self.shape.into_iter().chain(self.strides) {
            to.i64(value);
        }
        to.u64(self.byte_offset);
        to.written()
    }

    fn decode(bytes: &[u8]) -> Result<Self, MetaError> {
        let mut fields = Fields::of(Self::TYPE_NAME, bytes, Self::ENCODED_BYTES)?;
        let header = Header::decode(&mut fields)?;
        let ndim = fields.u32() as usize;
        let dtype = DType { code: fields.u8(), bits: fields.u8(), lanes: fields.u16() };
        let shape = [(); NDIM_MAX].map(|()| fields.i64());
        let strides = [(); NDIM_MAX].map(|()| fields.i64());
        let byte_offset = fields.u64();
        let (Some(shape), Some(strides)) = (shape.get(..ndim), strides.get(..ndim)) else {
            return Err(Self::too_many(ndim));
        };
        Ok(Self { header, ..Self::strided(dtype, shape, strides, byte_offset)? })
    }

    fn payload_bytes(&self) -> u64 {
        let end = self.extent().map(|(_, end)| u64::try_from(end));
        end.and_then(Result::ok).unwrap_or(u64::MAX)
    }

    fn check_shape(&self) -> Result<(), MetaError> {
        self.header.check()?;
        self.dtype.check()?;
        for (index, (&shape, &stride)) in self.shape().iter().zip(self.strides()).enumerate() {
            if shape < 0 {
                return Err(MetaError::Dimension { index, shape, stride });
            }
        }
        match self.extent() {
            Some((0.., end)) if end < i128::from(u64::MAX) => Ok(()),
            Some((lowest, end)) => Err(MetaError::Extent { lowest, end }),
            None => Err(MetaError::Extent { lowest: i128::MIN, end: i128::MAX }),
        }
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn header_mut(&mut self) -> &mut Header {
        &mut self.header
    }
}

#[cfg(test)]
mod tests {
    use super::super::meta::tests::survives_its_bytes;
    use super::*;

    #[test]
    fn a_tensor_survives_its_bytes_with_any_number_of_dimensions() {
        for ndim in 0..=NDIM_MAX {
            let shape: Vec<i64> = (2..).take(ndim).collect();
            survives_its_bytes(&Tensor::new(DType::FLOAT32, &shape).unwrap().in_frame("activations").unwrap());
        }
        survives_its_bytes(&Tensor::strided(DType::INT16, &[4, 5], &[-5, 1], 30).unwrap());
    }

    #[test]
    fn the_encoded_bytes_are_where_the_layout_draws_them() {
        let mut encoded = [0; META_BYTES_MAX];
        Tensor::strided(DType::FLOAT64, &[3, 2], &[4, -1], 8).unwrap().encode(&mut encoded);
        assert_eq!((encoded[240], encoded[112], encoded[120], encoded[128]), (8, 3, 2, 0));
        assert_eq!((encoded[176], encoded[184], encoded[191]), (4, 0xff, 0xff));
        assert_eq!(encoded[104..112], [2, 0, 0, 0, 2, 64, 1, 0]);
    }

    #[test]
    fn the_payload_ends_with_the_highest_element() {
        let bytes = |tensor: Result<Tensor, MetaError>| tensor.unwrap().payload_bytes();
        assert_eq!(bytes(Tensor::new(DType::FLOAT32, &[1, 3, 224, 224])), 602_112);
        assert_eq!(bytes(Tensor::new(DType::FLOAT64, &[])), 8);
        assert_eq!(bytes(Tensor::new(DType::FLOAT64, &[4, 0, 2])), 0);
        assert_eq!(bytes(Tensor::strided(DType::UINT8, &[3, 4], &[1, 3], 0)), 12);
        assert_eq!(bytes(Tensor::strided(DType::UINT8, &[3, 4], &[16, 1], 5)), 41);
        assert_eq!(bytes(Tensor::strided(DType::INT16, &[4, 5], &[-5, 1], 30)), 40);
        assert_eq!(bytes(Tensor::strided(DType::FLOAT32, &[1 << 40, 2], &[0, 1], 0)), 8);
        assert_eq!(bytes(Tensor::new(DType { code: 17, bits: 4, lanes: 2 }, &[3])), 3);
    }

    #[test]
    fn a_tensor_that_contradicts_itself_is_refused_by_numbers() {
        let message = |tensor: Result<Tensor, MetaError>| tensor.unwrap_err().to_string();
        assert_eq!(message(Tensor::new(DType::INT8, &[1; 9])), "9 dimensions; at most 8 fit");
        assert!(message(Tensor::new(DType::INT8, &[2, -3])).starts_with("dimension 1 of the tensor has -3 elements"));
        assert!(message(Tensor::new(DType::scalar(3, 64), &[1])).contains("is a pointer"));
        assert!(message(Tensor::new(DType::scalar(99, 64), &[1])).contains("not known"));
        assert!(message(Tensor::new(DType::scalar(2, 0), &[1])).contains("has no bits"));
        assert!(message(Tensor::new(DType::scalar(0, 4), &[1])).contains("pack more lanes"));
        assert!(
            message(Tensor::strided(DType::INT16, &[4], &[-1], 4)).starts_with("the tensor reaches from byte -2 to")
        );
        assert!(message(Tensor::new(DType::FLOAT64, &[i64::MAX; 8])).starts_with("the tensor reaches from"));
        assert_eq!(
            message(Tensor::strided(DType::INT8, &[1], &[], 0)),
            "the shape has 1 dimensions, the strides have 0"
        );
    }
}
