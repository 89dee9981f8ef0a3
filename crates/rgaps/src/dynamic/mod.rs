//! Publishers, subscribers and messages whose type is a run-time value, for bindings to other languages, recorders and bridges.
//!
//! ```text
//!   Kind ──▶ DynamicPublisher ──loan──▶ DynamicLoan ──▶ publish        DynamicMeta: metadata of any kind
//!   Kind ──▶ DynamicSubscriber ──take──▶ DynamicSample, which can be shared
//! ```
//!
//! Each is an enum over the typed ones of this crate, and costs the same.
//!
//! ```
//! use rgaps::dynamic::{DynamicMeta, DynamicPublisher, DynamicSubscriber, Kind};
//! use rgaps::types::Bytes;
//! use rgaps::{Node, PublisherQos, SubscriberQos};
//!
//! # let _host = rgaps_testing::example_host();
//! let (node, kind) = (Node::new("bridge")?, "bytes".parse::<Kind>()?);
//! let publisher = DynamicPublisher::new(&node, "raw", kind, PublisherQos::default())?;
//! let subscriber = DynamicSubscriber::new(&node, "raw", kind, SubscriberQos::default())?;
//! let mut loan = publisher.loan(&DynamicMeta::Bytes(Bytes::new(5)))?;
//! loan.bytes_mut().copy_from_slice(b"hello");
//! loan.publish()?;
//! let sample = subscriber.take()?.ok_or("no message")?;
//! assert_eq!((sample.kind(), sample.to_host()?), (Kind::Bytes, &b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod endpoints;
mod sample;

use std::fmt;
use std::str::FromStr;

use rgaps_device::DeviceRange;
use rgaps_shm::layout::META_BYTES_MAX;

use crate::dlpack::UnmanagedTensor;
use crate::types::{Bytes, Header, Image, Meta, MetaError, Payload, PointCloud, Tensor, ViewError};

pub use endpoints::{DynamicLoan, DynamicPublisher, DynamicSubscriber};
pub use sample::DynamicSample;

/// Matches on the kind: evaluates `$each` for the typed value inside.
macro_rules! by_kind {
    ($any:ident, $value:expr, $inner:ident => $each:expr) => {
        match $value {
            $any::Bytes($inner) => $each,
            $any::Image($inner) => $each,
            $any::PointCloud($inner) => $each,
            $any::Tensor($inner) => $each,
        }
    };
}

/// A kind of message, with the code that the segment and the wire use.
///
/// ```
/// use rgaps::dynamic::Kind;
///
/// let kind: Kind = "point_cloud".parse()?;
/// assert_eq!((kind, kind.code(), kind.type_name()), (Kind::PointCloud, 2, "rgaps/PointCloud"));
/// # Ok::<(), rgaps::dynamic::UnknownKind>(())
/// ```
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Raw bytes.
    Bytes = Bytes::KIND,
    /// Images.
    Image = Image::KIND,
    /// Point clouds.
    PointCloud = PointCloud::KIND,
    /// Tensors.
    Tensor = Tensor::KIND,
}

/// A name or code of no known kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no kind of message '{0}'; there are bytes (0), image (1), point_cloud (2) and tensor (3)")]
pub struct UnknownKind(pub String);

impl Kind {
    /// All kinds, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Bytes, Self::Image, Self::PointCloud, Self::Tensor];

    /// The kind with this code.
    ///
    /// ```
    /// use rgaps::dynamic::Kind;
    ///
    /// assert_eq!(Kind::from_code(1), Ok(Kind::Image)); // as in `MessageHandle::kind`
    /// let error = Kind::from_code(9).unwrap_err();
    /// assert!(error.to_string().starts_with("there is no kind of message '9'"));
    /// ```
    pub fn from_code(code: u32) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.code() == code).ok_or_else(|| UnknownKind(code.to_string()))
    }

    /// Its code.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Image => "image",
            Self::PointCloud => "point_cloud",
            Self::Tensor => "tensor",
        }
    }

    /// The type's name in the topic directory.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Bytes => Bytes::TYPE_NAME,
            Self::Image => Image::TYPE_NAME,
            Self::PointCloud => PointCloud::TYPE_NAME,
            Self::Tensor => Tensor::TYPE_NAME,
        }
    }

    /// Encoded length of its metadata.
    pub fn encoded_bytes(self) -> usize {
        match self {
            Self::Bytes => Bytes::ENCODED_BYTES,
            Self::Image => Image::ENCODED_BYTES,
            Self::PointCloud => PointCloud::ENCODED_BYTES,
            Self::Tensor => Tensor::ENCODED_BYTES,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text || kind.type_name() == text);
        found.ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

/// Metadata of any kind.
///
/// ```
/// use rgaps::dynamic::{DynamicMeta, Kind};
/// use rgaps::types::{Encoding, Image};
///
/// let meta = DynamicMeta::from(Image::new(640, 480, Encoding::Rgb8)?);
/// assert_eq!((meta.kind(), meta.payload_bytes()), (Kind::Image, 921_600));
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // It is a short-lived value on the stack.
pub enum DynamicMeta {
    /// Metadata of raw bytes.
    Bytes(Bytes),
    /// Metadata of an image.
    Image(Image),
    /// Metadata of a point cloud.
    PointCloud(PointCloud),
    /// Metadata of a tensor.
    Tensor(Tensor),
}

impl DynamicMeta {
    /// The kind of message.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Bytes(_) => Kind::Bytes,
            Self::Image(_) => Kind::Image,
            Self::PointCloud(_) => Kind::PointCloud,
            Self::Tensor(_) => Kind::Tensor,
        }
    }

    /// Decodes the `kind.encoded_bytes()` bytes that `encode` wrote, possibly in another language.
    ///
    /// ```
    /// use rgaps::dynamic::{DynamicMeta, Kind};
    /// use rgaps::types::{Bytes, META_BYTES_MAX};
    ///
    /// let (meta, mut encoded) = (DynamicMeta::from(Bytes::new(64)), [0; META_BYTES_MAX]);
    /// let length = meta.encode(&mut encoded);
    /// assert_eq!(DynamicMeta::decode(Kind::Bytes, &encoded[..length])?, meta);
    /// assert!(DynamicMeta::decode(Kind::Image, &encoded[..length]).is_err());
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn decode(kind: Kind, bytes: &[u8]) -> Result<Self, MetaError> {
        match kind {
            Kind::Bytes => Bytes::decode(bytes).map(Self::Bytes),
            Kind::Image => Image::decode(bytes).map(Self::Image),
            Kind::PointCloud => PointCloud::decode(bytes).map(Self::PointCloud),
            Kind::Tensor => Tensor::decode(bytes).map(Self::Tensor),
        }
    }

    /// Writes the encoded form to the start of `to`; returns its length.
    pub fn encode(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        by_kind!(Self, self, meta => meta.encode(to))
    }

    /// Bytes of the payload that it describes.
    pub fn payload_bytes(&self) -> u64 {
        by_kind!(Self, self, meta => meta.payload_bytes())
    }

    /// Checks that it is consistent in itself.
    pub fn check_shape(&self) -> Result<(), MetaError> {
        by_kind!(Self, self, meta => meta.check_shape())
    }

    /// Checks that it is consistent in itself and describes exactly `payload_bytes` of payload.
    pub fn check(&self, payload_bytes: u64) -> Result<(), MetaError> {
        by_kind!(Self, self, meta => meta.check(payload_bytes))
    }

    /// The payload as a tensor, with the same header.
    ///
    /// ```
    /// use rgaps::dynamic::DynamicMeta;
    /// use rgaps::types::{DType, Encoding, Image};
    ///
    /// let meta = DynamicMeta::from(Image::new(640, 480, Encoding::Mono16)?);
    /// assert_eq!((meta.tensor()?.shape(), meta.tensor()?.dtype()), (&[480, 640][..], DType::UINT16));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tensor(&self) -> Result<Tensor, ViewError> {
        by_kind!(Self, self, meta => Payload::tensor(meta))
    }

    /// Describes the payload in a range of device memory for an array library.
    pub(crate) fn describe(&self, range: &DeviceRange) -> Result<UnmanagedTensor, ViewError> {
        by_kind!(Self, self, meta => meta.describe(range))
    }

    /// Describes one field of the points for an array library. An error if it does not describe a point cloud.
    pub(crate) fn describe_field(&self, name: &str, range: &DeviceRange) -> Result<UnmanagedTensor, ViewError> {
        match self {
            Self::PointCloud(meta) => meta.describe_field(name, range),
            other => Err(another_kind(Kind::PointCloud, other.kind()).into()),
        }
    }

    /// The header: stamp, frame and the application's bytes.
    pub fn header(&self) -> &Header {
        by_kind!(Self, self, meta => meta.header())
    }

    /// The header, mutable.
    ///
    /// ```
    /// use rgaps::dynamic::DynamicMeta;
    /// use rgaps::types::{Bytes, Stamp, Text};
    ///
    /// let mut meta = DynamicMeta::from(Bytes::new(64));
    /// meta.header_mut().stamp = Stamp { sec: 7, nanosec: 0 };
    /// meta.header_mut().frame_id = Text::new("frame_id", "lidar")?;
    /// assert_eq!(meta.header().frame_id.as_str(), "lidar");
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn header_mut(&mut self) -> &mut Header {
        by_kind!(Self, self, meta => meta.header_mut())
    }
}

macro_rules! from_meta {
    ($($kind:ident),*) => {$(
        impl From<$kind> for DynamicMeta {
            fn from(meta: $kind) -> Self {
                Self::$kind(meta)
            }
        }
    )*};
}
from_meta!(Bytes, Image, PointCloud, Tensor);

/// The error for metadata of another kind than the topic's or the request's.
fn another_kind(wanted: Kind, found: Kind) -> MetaError {
    MetaError::Kind { wanted: wanted.type_name(), found: found.type_name() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DType, Datatype, Encoding};

    #[test]
    fn every_kind_survives_its_bytes_and_no_other_reads_them() {
        let all: [DynamicMeta; 4] = [
            Bytes::new(7).into(),
            Image::new(4, 2, Encoding::Rgb8).unwrap().into(),
            PointCloud::packed(3, &[("x", Datatype::Float32)]).unwrap().into(),
            Tensor::new(DType::FLOAT32, &[2, 3]).unwrap().into(),
        ];
        for (meta, kind) in all.iter().zip(Kind::ALL) {
            let mut bytes = [0; META_BYTES_MAX];
            let length = meta.encode(&mut bytes);
            assert_eq!((meta.kind(), length), (kind, kind.encoded_bytes()));
            assert_eq!(DynamicMeta::decode(kind, &bytes[..length]).as_ref(), Ok(meta));
            for other in Kind::ALL.into_iter().filter(|other| *other != kind) {
                assert!(DynamicMeta::decode(other, &bytes[..length]).is_err(), "{kind} as {other}");
            }
        }
    }

    #[test]
    fn kinds_parse_by_name_and_code_and_an_unknown_one_is_refused_with_the_list() {
        for kind in Kind::ALL {
            assert_eq!((kind.name().parse(), kind.type_name().parse()), (Ok(kind), Ok(kind)));
            assert_eq!(Kind::from_code(kind.code()), Ok(kind));
        }
        let error = Kind::from_code(4).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no kind of message '4'; there are bytes (0), image (1), point_cloud (2) and tensor (3)"
        );
        assert!("picture".parse::<Kind>().is_err());
    }
}
