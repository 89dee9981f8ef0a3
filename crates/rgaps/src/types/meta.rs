//! The parts that all types of metadata share: the trait, the header (stamp, frame, the application's bytes) and the errors.
//!
//! ```text
//! Header, 104 B, the start of every type
//!   0  i32      sec       as in builtin_interfaces/Time
//!   4  u32      nanosec   < 1 000 000 000
//!   8  u8[64]   frame_id  UTF-8, padded with zero bytes; all 64 may be used
//!  72  u8[32]   user      the application's own; RGAPS carries it and never reads it
//! 104
//! ```

use std::fmt;
use std::mem::{offset_of, size_of};

use rgaps_control::text::plain;
use rgaps_shm::layout::META_BYTES_MAX;

use super::wire::{Fields, Layout};

/// Maximum length of a frame id in bytes.
pub const FRAME_ID_BYTES: usize = 64;
/// Bytes of a header that belong to the application.
pub const USER_BYTES: usize = 32;
/// Encoded length of a header.
pub const HEADER_BYTES: usize = 104;

/// Metadata that describes the payload of a message. Its type is the type of the topic.
///
/// ```
/// use rgaps::types::{Bytes, META_BYTES_MAX, Meta};
///
/// let (meta, mut encoded) = (Bytes::new(64), [0; META_BYTES_MAX]);
/// let length = meta.encode(&mut encoded);
/// assert_eq!(Bytes::decode(&encoded[..length])?, meta);
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
pub trait Meta: Clone + fmt::Debug + PartialEq + Send + Sync + Sized + 'static {
    /// The type's code in the segment and on the wire.
    const KIND: u32;
    /// The type's name in the topic directory.
    const TYPE_NAME: &'static str;
    /// Encoded length.
    const ENCODED_BYTES: usize;

    /// Writes the encoded form to the start of `to`; returns its length, `ENCODED_BYTES`.
    fn encode(&self, to: &mut [u8; META_BYTES_MAX]) -> usize;

    /// Decodes what `encode` wrote, possibly in another process. The result is consistent in itself; `check` compares it with the payload.
    fn decode(bytes: &[u8]) -> Result<Self, MetaError>;

    /// Bytes of the payload that it describes; `u64::MAX` if the numbers overflow.
    fn payload_bytes(&self) -> u64;

    /// Checks that it is consistent in itself.
    fn check_shape(&self) -> Result<(), MetaError>;

    /// The header: stamp, frame and the application's bytes.
    fn header(&self) -> &Header;

    /// The header, mutable.
    fn header_mut(&mut self) -> &mut Header;

    /// Checks that it is consistent in itself and describes exactly `payload_bytes` of payload.
    ///
    /// ```
    /// use rgaps::types::{Encoding, Image, Meta, MetaError};
    ///
    /// let image = Image::new(64, 48, Encoding::Rgb8)?;
    /// assert_eq!(image.check(64 * 48 * 3), Ok(()));
    /// assert!(matches!(image.check(100), Err(MetaError::PayloadLength { described: 9216, found: 100, .. })));
    /// # Ok::<(), MetaError>(())
    /// ```
    fn check(&self, payload_bytes: u64) -> Result<(), MetaError> {
        self.check_shape()?;
        let described = self.payload_bytes();
        if described != payload_bytes {
            return Err(MetaError::PayloadLength { type_name: Self::TYPE_NAME, described, found: payload_bytes });
        }
        Ok(())
    }

    /// Sets the stamp.
    #[must_use]
    fn stamped(mut self, stamp: Stamp) -> Self {
        self.header_mut().stamp = stamp;
        self
    }

    /// Sets the coordinate frame.
    ///
    /// ```
    /// use rgaps::types::{Bytes, Meta};
    ///
    /// let scan = Bytes::new(64).in_frame("lidar_front")?;
    /// assert_eq!(scan.header.frame_id.as_str(), "lidar_front");
    /// assert!(Bytes::new(64).in_frame(&"a".repeat(65)).is_err(), "at most 64 B");
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    fn in_frame(mut self, frame_id: &str) -> Result<Self, MetaError> {
        self.header_mut().frame_id = Text::new("frame_id", frame_id)?;
        Ok(self)
    }

    /// Sets the application's bytes.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Bytes, Meta, USER_BYTES}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("tracker")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let mut user = [0; USER_BYTES];
    /// user[..8].copy_from_slice(&42_u64.to_le_bytes()); // a frame number
    /// publisher.push(&Bytes::new(5).with_user(user), b"hello")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// assert_eq!(sample.meta().header.user[0], 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    fn with_user(mut self, user: [u8; USER_BYTES]) -> Self {
        self.header_mut().user = user;
        self
    }
}

/// Why metadata is invalid: it contradicts itself, its payload or its type. Its message is unusable; other messages are not affected.
///
/// ```
/// use rgaps::types::{Encoding, Image};
///
/// let error = Image::new(640, 480, Encoding::Rgb8)?.with_step(1000).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "a row needs 1920 B, its step is 1000 B; leave the step to the constructor or raise it"
/// );
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// The encoded form has the wrong length.
    #[error(
        "metadata of {type_name} has {found} B instead of {expected} B: publisher and subscriber have different types or versions"
    )]
    EncodedLength {
        /// The expected type.
        type_name: &'static str,
        /// Its encoded length.
        expected: usize,
        /// The length found.
        found: usize,
    },
    /// The metadata is not of the topic's type.
    #[error("the metadata is of {found}, where {wanted} is needed")]
    Kind {
        /// The required type.
        wanted: &'static str,
        /// The metadata's type.
        found: &'static str,
    },
    /// The payload does not have the number of bytes that the metadata describes.
    #[error(
        "metadata of {type_name} describes {described} B, but the payload has {found} B; compute the payload's size by payload_bytes()"
    )]
    PayloadLength {
        /// The type.
        type_name: &'static str,
        /// Bytes that the metadata describes.
        described: u64,
        /// Bytes of the payload.
        found: u64,
    },
    /// A text is too long.
    #[error("{field} has {found} B; at most {limit} B fit, shorten it")]
    TextLength {
        /// The text's field.
        field: &'static str,
        /// Its length in bytes.
        found: usize,
        /// Maximum length.
        limit: usize,
    },
    /// A text has a zero byte inside or is not UTF-8.
    #[error("{field} is not UTF-8 without zero bytes")]
    Text {
        /// The text's field.
        field: &'static str,
    },
    /// A flag is neither 0 nor 1.
    #[error("{field} is {value}, neither 0 nor 1")]
    Flag {
        /// The flag.
        field: &'static str,
        /// Its value.
        value: u8,
    },
    /// A stamp's nanoseconds are a second or more.
    #[error("the stamp has {nanosec} ns beside its seconds; it must be below 1000000000")]
    Stamp {
        /// Its nanoseconds.
        nanosec: u32,
    },
    /// A code is not known to this version.
    #[error("{field} has code {code}, which this version does not know")]
    Code {
        /// The code's field.
        field: &'static str,
        /// The code.
        code: u32,
    },
    /// An image has no pixels.
    #[error("an image of {width} x {height} has no pixels")]
    NoPixels {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
    },
    /// Pairs of pixels share chroma samples, and one pixel has no partner.
    #[error("{encoding} needs an even {what}, this image is {width} x {height}; crop it by one pixel")]
    Odd {
        /// The encoding.
        encoding: &'static str,
        /// "width" or "height".
        what: &'static str,
        /// Width of the image.
        width: u32,
        /// Height of the image.
        height: u32,
    },
    /// A row is longer than its step.
    #[error("a row needs {needed} B, its step is {step} B; leave the step to the constructor or raise it")]
    Step {
        /// Bytes of a row.
        needed: u64,
        /// Bytes from row to row.
        step: u32,
    },
    /// A row has more bytes than a 32-bit step can express.
    #[error("a row needs {needed} B; a step holds at most 4294967295 B, use more rows")]
    RowTooLong {
        /// Bytes of a row.
        needed: u64,
    },
    /// A list has too many items.
    #[error("{found} {what}; at most {limit} fit")]
    TooMany {
        /// The items.
        what: &'static str,
        /// Their number.
        found: usize,
        /// Maximum number.
        limit: usize,
    },
    /// A field of a point extends beyond the point, or has no name or no elements.
    #[error(
        "field '{}' takes bytes {start}..{end} of a point of {point_step} B; it must have a name, elements, and lie inside",
        plain(.name)
    )]
    Field {
        /// Its name.
        name: String,
        /// Its first byte.
        start: u64,
        /// The byte after its last.
        end: u64,
        /// Bytes of a point.
        point_step: u32,
    },
    /// The element type cannot be used between processes.
    #[error("dtype (code {code}, {bits} bits, {lanes} lanes) {reason}")]
    DType {
        /// DLPack type code.
        code: u8,
        /// Bits of a lane.
        bits: u8,
        /// Lanes of an element.
        lanes: u16,
        /// The reason.
        reason: &'static str,
    },
    /// A dimension is negative.
    #[error("dimension {index} of the tensor has {shape} elements at a stride of {stride}; shape must not be negative")]
    Dimension {
        /// The dimension, from 0.
        index: usize,
        /// Its elements.
        shape: i64,
        /// Its stride in elements.
        stride: i64,
    },
    /// Shape and strides have different numbers of dimensions.
    #[error("the shape has {shape} dimensions, the strides have {strides}")]
    Rank {
        /// Dimensions of the shape.
        shape: usize,
        /// Dimensions of the strides.
        strides: usize,
    },
    /// The tensor begins before the payload, or ends beyond what 64 bits can count.
    #[error(
        "the tensor reaches from byte {lowest} to byte {end} of its payload; correct shape, strides or byte_offset"
    )]
    Extent {
        /// Its lowest byte.
        lowest: i128,
        /// The byte after its highest.
        end: i128,
    },
}

/// A point in time, like builtin_interfaces/Time.
///
/// ```
/// use rgaps::types::Stamp;
///
/// assert_eq!(Stamp::from_ns(1_500_000_000), Stamp { sec: 1, nanosec: 500_000_000 });
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Seconds since 1970-01-01 UTC.
    pub sec: i32,
    /// Nanoseconds of that second.
    pub nanosec: u32,
}

impl Stamp {
    /// The present time on this host's clock.
    pub fn now() -> Self {
        Self::from_ns(rgaps_os::clock::realtime_ns())
    }

    /// From nanoseconds since 1970. Times after 2038 saturate at the last one that 32-bit seconds can express.
    pub fn from_ns(ns: u64) -> Self {
        match i32::try_from(ns / 1_000_000_000) {
            Ok(sec) => Self { sec, nanosec: (ns % 1_000_000_000) as u32 },
            Err(_) => Self { sec: i32::MAX, nanosec: 999_999_999 },
        }
    }

    /// Nanoseconds since 1970; negative for earlier times.
    ///
    /// ```
    /// use rgaps::types::Stamp;
    ///
    /// let (exposed, now) = (Stamp { sec: 7, nanosec: 900_000_000 }, Stamp { sec: 8, nanosec: 0 });
    /// assert_eq!(now.to_ns() - exposed.to_ns(), 100_000_000); // 100 ms ago
    /// ```
    pub fn to_ns(self) -> i64 {
        i64::from(self.sec) * 1_000_000_000 + i64::from(self.nanosec)
    }
}

/// Text of at most `N` bytes of UTF-8, padded with zero bytes.
///
/// ```
/// use rgaps::types::Text;
///
/// let name = Text::<8>::new("name", "front")?;
/// assert_eq!((name.as_str(), name.bytes()), ("front", b"front\0\0\0"));
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// Copies `text`. If it does not fit, the error names `field`.
    pub fn new(field: &'static str, text: &str) -> Result<Self, MetaError> {
        if text.len() > N {
            return Err(MetaError::TextLength { field, found: text.len(), limit: N });
        }
        if text.contains('\0') {
            return Err(MetaError::Text { field });
        }
        let mut bytes = [0; N];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self(bytes))
    }

    /// Decodes the text before the first zero byte, or all of `bytes`. Bytes after a zero are dropped.
    pub(super) fn decode(field: &'static str, bytes: [u8; N]) -> Result<Self, MetaError> {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(N);
        let text = str::from_utf8(&bytes[..end]).map_err(|_| MetaError::Text { field })?;
        Self::new(field, text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(N);
        str::from_utf8(&self.0[..end]).unwrap_or_default()
    }

    /// All bytes, with the padding.
    pub fn bytes(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Escapes control characters, so that the text is safe on a terminal. `as_str` returns it unescaped.
impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&plain(self.as_str()), f)
    }
}

/// The start of every type of metadata.
///
/// ```
/// use rgaps::types::{Encoding, Image, Meta, Stamp, Text};
///
/// let mut image = Image::new(64, 48, Encoding::Rgb8)?.stamped(Stamp { sec: 7, nanosec: 0 });
/// image.header_mut().frame_id = Text::new("frame_id", "camera_front")?;
/// assert_eq!((image.header().stamp.sec, image.header().frame_id.as_str()), (7, "camera_front"));
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// When the payload was measured.
    pub stamp: Stamp,
    /// Coordinate frame; for a tensor also its name.
    pub frame_id: Text<FRAME_ID_BYTES>,
    /// The application's own bytes. RGAPS carries them and never reads them.
    pub user: [u8; USER_BYTES],
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(offset_of!(Header, frame_id) == 8 && offset_of!(Header, user) == 72);

impl Header {
    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, MetaError> {
        let stamp = Stamp { sec: fields.i32(), nanosec: fields.u32() };
        let header = Self { stamp, frame_id: Text::decode("frame_id", fields.array())?, user: fields.array() };
        header.check()?;
        Ok(header)
    }

    pub(super) fn encode(&self, to: &mut Layout<'_>) {
        to.i32(self.stamp.sec).u32(self.stamp.nanosec).bytes(self.frame_id.bytes()).bytes(&self.user);
    }

    pub(super) fn check(&self) -> Result<(), MetaError> {
        match self.stamp.nanosec {
            0..1_000_000_000 => Ok(()),
            nanosec => Err(MetaError::Stamp { nanosec }),
        }
    }
}

/// Encoding and decoding checks for all types.
#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks that a value survives its bytes, that every other length is refused, and that no flipped bit panics.
    pub(in super::super) fn survives_its_bytes<T: Meta>(meta: &T) {
        let mut encoded = [0xa5; META_BYTES_MAX];
        let length = meta.encode(&mut encoded);
        assert_eq!(length, T::ENCODED_BYTES);
        assert!(encoded[length..].iter().all(|&byte| byte == 0xa5), "encode wrote past its length");
        assert_eq!(T::decode(&encoded[..length]).as_ref(), Ok(meta));
        for wrong in [0, 1, length - 1, length + 1, META_BYTES_MAX] {
            assert!(matches!(T::decode(&encoded[..wrong]), Err(MetaError::EncodedLength { .. })), "{wrong} B");
        }
        for bit in 0..length * 8 {
            let mut lie = encoded;
            lie[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = T::decode(&lie[..length]) {
                let _ = (read.payload_bytes(), read.check(meta.payload_bytes()));
            }
        }
    }

    #[test]
    fn a_text_is_displayed_escaped_and_stored_unchanged() {
        let text = Text::<64>::new("frame_id", "a\n\x1b[2J\u{202e}").unwrap();
        assert_eq!(text.as_str(), "a\n\x1b[2J\u{202e}");
        for shown in [text.to_string(), format!("{text:?}").trim_matches('"').to_owned()] {
            assert_eq!(shown, r"a\n\u{1b}[2J\u{202e}");
        }
    }

    #[test]
    fn a_text_keeps_its_limits() {
        let longest = "x".repeat(64);
        assert_eq!(Text::<64>::new("frame_id", &longest).unwrap().as_str(), longest);
        let error = Text::<64>::new("frame_id", &"x".repeat(65)).unwrap_err();
        assert_eq!(error.to_string(), "frame_id has 65 B; at most 64 B fit, shorten it");
        assert_eq!(Text::<4>::decode("name", *b"abcd").unwrap().as_str(), "abcd");
        assert_eq!(Text::<4>::decode("name", [0xff, 0, 0, 0]), Err(MetaError::Text { field: "name" }));
        assert_eq!(Text::<4>::new("name", "a\0b"), Err(MetaError::Text { field: "name" }));
        assert_eq!(Text::<4>::decode("name", *b"a\0zz").unwrap(), Text::new("name", "a").unwrap());
    }

    #[test]
    fn a_stamp_counts_nanoseconds_both_ways() {
        let stamp = Stamp::from_ns(1_700_000_000_123_456_789);
        assert_eq!(stamp, Stamp { sec: 1_700_000_000, nanosec: 123_456_789 });
        assert_eq!(stamp.to_ns(), 1_700_000_000_123_456_789);
        assert_eq!(Stamp::from_ns(u64::MAX), Stamp { sec: i32::MAX, nanosec: 999_999_999 });
        assert_eq!(Stamp { sec: i32::MIN, nanosec: 0 }.to_ns(), i64::from(i32::MIN) * 1_000_000_000);
    }
}
