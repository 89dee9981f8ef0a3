//! Point clouds: the layout of points in the payload and the fields of a point, like sensor_msgs/PointCloud2.
//!
//! ```text
//! PointCloud, 832 B                          PointField, 44 B
//!   0  Header                                  0  u8[32]  name      UTF-8, filled up with zero bytes; not empty
//! 104  u32    width         points of a row   32  u32     offset    first byte in a point
//! 108  u32    height        rows              36  u32     datatype  ROS PointField codes 1 to 8
//! 112  u32    point_step    bytes of a point  40  u32     count     elements
//! 116  u32    row_step      bytes of a row    44
//! 120  u32    field_count   at most 16
//! 124  u8     is_bigendian  0 or 1
//! 125  u8     is_dense      0 or 1: 1 if no point is invalid (NaN or infinite)
//! 126  u8[2]  reserved      0
//! 128  PointField[16]       those past field_count are zero
//! 832
//! ```

use std::fmt;
use std::mem::{offset_of, size_of};

use rgaps_shm::layout::META_BYTES_MAX;

use super::meta::{HEADER_BYTES, Header, Meta, MetaError, Text};
use super::tensor::DType;
use super::wire::{Fields, Layout};

/// Maximum number of fields of a point.
pub const FIELDS_MAX: usize = 16;
/// Maximum length of a field's name in bytes.
pub const FIELD_NAME_BYTES: usize = 32;

/// Type of the elements of a field, with the codes of sensor_msgs/PointField.
///
/// ```
/// use rgaps::types::Datatype;
///
/// assert_eq!((Datatype::Float32 as u32, Datatype::Float32.bytes()), (7, 4));
/// ```
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Datatype {
    /// Signed byte.
    Int8 = 1,
    /// Unsigned byte.
    Uint8 = 2,
    /// Signed, 16 bits.
    Int16 = 3,
    /// Unsigned, 16 bits.
    Uint16 = 4,
    /// Signed, 32 bits.
    Int32 = 5,
    /// Unsigned, 32 bits.
    Uint32 = 6,
    /// Floating point, 32 bits.
    #[default]
    Float32 = 7,
    /// Floating point, 64 bits.
    Float64 = 8,
}

impl Datatype {
    /// All types, in the order of their codes from 1.
    pub const ALL: [Self; 8] =
        [Self::Int8, Self::Uint8, Self::Int16, Self::Uint16, Self::Int32, Self::Uint32, Self::Float32, Self::Float64];

    /// The type with this code.
    ///
    /// ```
    /// use rgaps::types::Datatype;
    ///
    /// assert_eq!(Datatype::from_code(7), Some(Datatype::Float32)); // sensor_msgs/PointField.FLOAT32
    /// assert_eq!(Datatype::from_code(0), None);
    /// ```
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|datatype| datatype.code() == code)
    }

    /// Its code in sensor_msgs/PointField.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// Bytes of an element.
    pub fn bytes(self) -> u32 {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    /// The same type for the elements of a tensor.
    pub fn dtype(self) -> DType {
        match self {
            Self::Int8 => DType::INT8,
            Self::Uint8 => DType::UINT8,
            Self::Int16 => DType::INT16,
            Self::Uint16 => DType::UINT16,
            Self::Int32 => DType::INT32,
            Self::Uint32 => DType::UINT32,
            Self::Float32 => DType::FLOAT32,
            Self::Float64 => DType::FLOAT64,
        }
    }

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int16 => "int16",
            Self::Uint16 => "uint16",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One field of every point.
///
/// ```
/// use rgaps::types::{Datatype, PointCloud, PointField};
///
/// let rgb = PointField::new("rgb", 12, Datatype::Uint8)?.with_count(3);
/// assert_eq!(PointCloud::new(640, 480, 16, &[rgb])?.points(), 307_200);
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PointField {
    /// Its name, such as x or intensity.
    pub name: Text<FIELD_NAME_BYTES>,
    /// Its first byte in a point.
    pub offset: u32,
    /// Type of its elements.
    pub datatype: Datatype,
    /// Its elements, usually one.
    pub count: u32,
}

const FIELD_BYTES: usize = 44;
const _: () = assert!(size_of::<PointField>() == FIELD_BYTES && offset_of!(PointField, datatype) == 36);

impl PointField {
    /// A field of one element.
    pub fn new(name: &str, offset: u32, datatype: Datatype) -> Result<Self, MetaError> {
        Ok(Self { name: Text::new("field name", name)?, offset, count: 1, datatype })
    }

    /// Sets the number of elements.
    #[must_use]
    pub fn with_count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// First byte after the field in a point.
    pub fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.count) * u64::from(self.datatype.bytes())
    }

    fn unused() -> Self {
        Self { name: Text::default(), offset: 0, count: 0, datatype: Datatype::default() }
    }

    fn check(&self, point_step: u32) -> Result<(), MetaError> {
        if self.name.as_str().is_empty() || self.count == 0 || self.end() > u64::from(point_step) {
            let (name, start, end) = (self.name.to_string(), u64::from(self.offset), self.end());
            return Err(MetaError::Field { name, start, end, point_step });
        }
        Ok(())
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self, MetaError> {
        let name = Text::decode("field name", fields.array())?;
        let (offset, code, count) = (fields.u32(), fields.u32(), fields.u32());
        let datatype = Datatype::from_code(code).ok_or(MetaError::Code { field: "datatype", code })?;
        Ok(Self { name, offset, count, datatype })
    }

    fn encode(&self, to: &mut Layout<'_>) {
        to.bytes(self.name.bytes()).u32(self.offset).u32(self.datatype.code()).u32(self.count);
    }
}

/// Metadata of a point cloud, like sensor_msgs/PointCloud2.
///
/// ```
/// use rgaps::types::{Datatype, Meta, PointCloud};
///
/// let fields = [("x", Datatype::Float32), ("y", Datatype::Float32), ("z", Datatype::Float32)];
/// let cloud = PointCloud::packed(1000, &fields)?;
/// assert_eq!((cloud.point_step, cloud.payload_bytes()), (12, 12_000));
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PointCloud {
    /// Stamp, frame and the application's bytes.
    pub header: Header,
    /// Points of a row.
    pub width: u32,
    /// Rows; 1 for an unordered cloud.
    pub height: u32,
    /// Bytes from point to point.
    pub point_step: u32,
    /// Bytes from row to row.
    pub row_step: u32,
    field_count: u32,
    /// Whether elements have their high byte first.
    pub is_bigendian: bool,
    /// Whether every point is valid.
    pub is_dense: bool,
    fields: [PointField; FIELDS_MAX],
}

const _: () = assert!(size_of::<PointCloud>() == PointCloud::ENCODED_BYTES);
const _: () = assert!(offset_of!(PointCloud, width) == HEADER_BYTES && offset_of!(PointCloud, row_step) == 116);
const _: () = assert!(offset_of!(PointCloud, is_dense) == 125 && offset_of!(PointCloud, fields) == 128);

impl PointCloud {
    /// A cloud of `width` x `height` points of `point_step` bytes that follow each other without gaps; dense, little-endian.
    ///
    /// ```
    /// use rgaps::types::{Datatype, Meta, PointCloud, PointField};
    ///
    /// // x, y, z, padding to 16 B, then intensity and ring, in 32 B: as many lidar drivers lay points out.
    /// let mut fields = Vec::new();
    /// for (offset, name) in [(0, "x"), (4, "y"), (8, "z"), (16, "intensity")] {
    ///     fields.push(PointField::new(name, offset, Datatype::Float32)?);
    /// }
    /// fields.push(PointField::new("ring", 20, Datatype::Uint16)?);
    /// let cloud = PointCloud::new(1024, 64, 32, &fields)?;
    /// assert_eq!((cloud.points(), cloud.payload_bytes()), (65_536, 2_097_152));
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn new(width: u32, height: u32, point_step: u32, fields: &[PointField]) -> Result<Self, MetaError> {
        let needed = u64::from(width) * u64::from(point_step);
        let row_step = u32::try_from(needed).map_err(|_| MetaError::RowTooLong { needed })?;
        let mut own = [PointField::unused(); FIELDS_MAX];
        match own.get_mut(..fields.len()) {
            Some(own) => own.copy_from_slice(fields),
            None => return Err(MetaError::TooMany { what: "point fields", found: fields.len(), limit: FIELDS_MAX }),
        }
        let cloud = Self {
            header: Header::default(),
            height,
            width,
            point_step,
            row_step,
            is_bigendian: false,
            is_dense: true,
            field_count: fields.len() as u32,
            fields: own,
        };
        cloud.check_shape()?;
        Ok(cloud)
    }

    /// An unordered cloud whose fields, each of one element, follow each other without gaps.
    ///
    /// Kernels and array libraries see a field only if its offset and the point's size are multiples of its element's size. With fields of different
    /// sizes, lay the point out with gaps by `PointCloud::new`.
    ///
    /// ```
    /// use rgaps::types::{Datatype, PointCloud};
    ///
    /// let xyz = ["x", "y", "z"].map(|name| (name, Datatype::Float32));
    /// let cloud = PointCloud::packed(1000, &xyz)?;
    /// let offsets: Vec<u32> = cloud.fields().iter().map(|field| field.offset).collect();
    /// assert_eq!((offsets, cloud.point_step), (vec![0, 4, 8], 12));
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn packed(points: u32, fields: &[(&str, Datatype)]) -> Result<Self, MetaError> {
        let mut point_step = 0;
        let mut packed = Vec::with_capacity(fields.len());
        for &(name, datatype) in fields {
            packed.push(PointField::new(name, point_step, datatype)?);
            point_step += datatype.bytes();
        }
        Self::new(points, 1, point_step, &packed)
    }

    /// Sets the bytes from one row to the next.
    ///
    /// ```
    /// use rgaps::types::{Datatype, Meta, PointCloud, PointField};
    ///
    /// // An organised cloud whose rows begin at multiples of 256 B.
    /// let depth = PointField::new("z", 0, Datatype::Float32)?;
    /// let cloud = PointCloud::new(100, 50, 4, &[depth])?.with_row_step(512)?;
    /// assert_eq!(cloud.payload_bytes(), 25_600);
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn with_row_step(mut self, row_step: u32) -> Result<Self, MetaError> {
        self.row_step = row_step;
        self.check_shape()?;
        Ok(self)
    }

    /// Sets whether every point is valid.
    ///
    /// ```
    /// use rgaps::types::{Datatype, PointCloud};
    ///
    /// // A lidar that writes NaN where it measured nothing.
    /// let cloud = PointCloud::packed(1000, &["x", "y", "z"].map(|name| (name, Datatype::Float32)))?.with_dense(false);
    /// assert!(!cloud.is_dense);
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    #[must_use]
    pub fn with_dense(mut self, is_dense: bool) -> Self {
        self.is_dense = is_dense;
        self
    }

    /// Sets the byte order of elements.
    #[must_use]
    pub fn with_bigendian(mut self, is_bigendian: bool) -> Self {
        self.is_bigendian = is_bigendian;
        self
    }

    /// The fields of a point.
    pub fn fields(&self) -> &[PointField] {
        &self.fields[..self.field_count as usize]
    }

    /// The field of this name.
    ///
    /// ```
    /// use rgaps::types::{Datatype, PointCloud};
    ///
    /// let cloud = PointCloud::packed(1000, &[("x", Datatype::Float32), ("intensity", Datatype::Float32)])?;
    /// match cloud.field("intensity") {
    ///     Some(field) => assert_eq!((field.offset, field.datatype), (4, Datatype::Float32)),
    ///     None => println!("a cloud without intensities"),
    /// }
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn field(&self, name: &str) -> Option<&PointField> {
        self.fields().iter().find(|field| field.name.as_str() == name)
    }

    /// Points of the cloud.
    pub fn points(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

impl Meta for PointCloud {
    const KIND: u32 = 2;
    const TYPE_NAME: &'static str = "rgaps/PointCloud";
    const ENCODED_BYTES: usize = 128 + FIELDS_MAX * FIELD_BYTES;

    fn encode(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        let mut to = Layout::into(to);
        self.header.encode(&mut to);
        to.u32(self.width).u32(self.height).u32(self.point_step).u32(self.row_step).u32(self.field_count);
        to.u8(u8::from(self.is_bigendian)).u8(u8::from(self.is_dense)).bytes(&[0; 2]);
        for field in self.fields() {
            field.encode(&mut to);
        }
        for _ in self.fields().len()..FIELDS_MAX {
            to.bytes(&[0; FIELD_BYTES]);
        }
        to.written()
    }

    fn decode(bytes: &[u8]) -> Result<Self, MetaError> {
        let mut from = Fields::of(Self::TYPE_NAME, bytes, Self::ENCODED_BYTES)?;
        let header = Header::decode(&mut from)?;
        let (width, height, point_step, row_step) = (from.u32(), from.u32(), from.u32(), from.u32());
        let field_count = from.u32();
        let (is_bigendian, is_dense) = (from.flag("is_bigendian")?, from.flag("is_dense")?);
        let [_, _] = from.array();
        let mut fields = [PointField::unused(); FIELDS_MAX];
        let found = field_count as usize;
        let Some(used) = fields.get_mut(..found) else {
            return Err(MetaError::TooMany { what: "point fields", found, limit: FIELDS_MAX });
        };
        for field in used {
            *field = PointField::decode(&mut from)?;
        }
        let cloud = Self { header, height, width, point_step, row_step, is_bigendian, is_dense, field_count, fields };
        cloud.check_shape()?;
        Ok(cloud)
    }

    fn payload_bytes(&self) -> u64 {
        u64::from(self.row_step) * u64::from(self.height)
    }

    fn check_shape(&self) -> Result<(), MetaError> {
        self.header.check()?;
        for field in self.fields() {
            field.check(self.point_step)?;
        }
        let needed = u64::from(self.width) * u64::from(self.point_step);
        if needed > u64::from(self.row_step) {
            return Err(MetaError::Step { needed, step: self.row_step });
        }
        Ok(())
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

    fn fields(count: usize) -> Vec<PointField> {
        (0..count).map(|i| PointField::new(&format!("f{i}"), i as u32 * 8, Datatype::ALL[i % 8]).unwrap()).collect()
    }

    #[test]
    fn a_cloud_survives_its_bytes_with_any_number_of_fields() {
        for count in 0..=FIELDS_MAX {
            let cloud = PointCloud::new(100, 3, 128, &fields(count)).unwrap().with_dense(false).with_row_step(13_000);
            survives_its_bytes(&cloud.unwrap());
        }
        let named = PointField::new(&"n".repeat(32), 4, Datatype::Float64).unwrap().with_count(33);
        survives_its_bytes(&PointCloud::new(7, 1, 268, &[named]).unwrap().with_bigendian(true));
    }

    #[test]
    fn a_packed_cloud_lays_its_fields_side_by_side() {
        let cloud =
            PointCloud::packed(10, &[("x", Datatype::Float32), ("t", Datatype::Float64), ("ring", Datatype::Uint16)]);
        let cloud = cloud.unwrap();
        assert_eq!((cloud.point_step, cloud.row_step, cloud.payload_bytes(), cloud.points()), (14, 140, 140, 10));
        assert_eq!(cloud.field("ring").map(|field| field.offset), Some(12));
        assert_eq!(cloud.field("y"), None);
    }

    #[test]
    fn the_encoded_bytes_are_where_the_layout_draws_them() {
        let cloud = PointCloud::packed(2, &[("x", Datatype::Float32), ("y", Datatype::Int16)]).unwrap();
        let mut encoded = [0; META_BYTES_MAX];
        assert_eq!(cloud.encode(&mut encoded), 832);
        assert_eq!(encoded[104..128], [2, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!((encoded[172], encoded[204], encoded[208], encoded[212]), (b'y', 4, 3, 1));
        assert!(encoded[216..832].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_cloud_that_contradicts_itself_is_refused_by_numbers() {
        let outside = PointCloud::new(1, 1, 15, &fields(2)[1..]).map(drop);
        assert_eq!(outside, Ok(()));
        let error = PointCloud::new(1, 1, 8, &fields(2)).unwrap_err();
        assert!(error.to_string().starts_with("field 'f1' takes bytes 8..9 of a point of 8 B"), "{error}");
        let error = PointCloud::new(1, 1, 800, &fields(17)).unwrap_err();
        assert_eq!(error.to_string(), "17 point fields; at most 16 fit");
        let error = PointField::new(&"n".repeat(33), 0, Datatype::Int8).unwrap_err();
        assert_eq!(error.to_string(), "field name has 33 B; at most 32 B fit, shorten it");
        assert!(PointCloud::new(1, 1, 8, &[fields(1)[0].with_count(u32::MAX)]).is_err());
        assert!(PointCloud::new(1, 1, 8, &[fields(1)[0].with_count(0)]).is_err());
        assert!(matches!(PointCloud::new(1 << 20, 1, 1 << 20, &[]), Err(MetaError::RowTooLong { .. })));
        let cloud = PointCloud::new(10, 2, 8, &fields(1)).unwrap();
        assert!(matches!(cloud.with_row_step(79), Err(MetaError::Step { needed: 80, step: 79 })));
        assert!(matches!(cloud.check(161), Err(MetaError::PayloadLength { described: 160, found: 161, .. })));
    }
}
