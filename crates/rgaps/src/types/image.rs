//! Images: width, height, step and encoding of the pixels in the payload.
//!
//! ```text
//! Image, 124 B
//!   0  Header
//! 104  u32    width         pixels
//! 108  u32    height        pixels
//! 112  u32    step          bytes from one row of the first plane to the next
//! 116  u32    encoding      Encoding::code
//! 120  u8     is_bigendian  0 or 1; matters for channels of more than 8 bits
//! 121  u8[3]  reserved      0
//! 124
//! ```

use std::mem::{offset_of, size_of};

use rgaps_shm::layout::META_BYTES_MAX;

use super::encoding::Encoding;
use super::meta::{HEADER_BYTES, Header, Meta, MetaError};
use super::wire::{Fields, Layout};

/// Metadata of an image, like sensor_msgs/Image.
///
/// ```
/// use rgaps::types::{Encoding, Image, Meta, Stamp};
///
/// let image = Image::new(1920, 1080, Encoding::Rgb8)?.stamped(Stamp::now()).in_frame("camera_front")?;
/// assert_eq!((image.step, image.payload_bytes()), (5760, 6_220_800));
/// # Ok::<(), rgaps::types::MetaError>(())
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// Stamp, frame and the application's bytes.
    pub header: Header,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from one row of the first plane to the next.
    pub step: u32,
    /// Pixel format.
    pub encoding: Encoding,
    /// Whether channels of more than 8 bits have their high byte first.
    pub is_bigendian: bool,
}

const _: () = assert!(size_of::<Image>() == Image::ENCODED_BYTES && offset_of!(Image, width) == HEADER_BYTES);
const _: () = assert!(offset_of!(Image, step) == 112 && offset_of!(Image, encoding) == 116);
const _: () = assert!(offset_of!(Image, is_bigendian) == 120);

impl Image {
    /// An image whose rows follow each other without gaps.
    ///
    /// ```
    /// use rgaps::types::{Encoding, Image, Meta, MetaError};
    ///
    /// let image = Image::new(640, 480, Encoding::Nv12)?;
    /// assert_eq!((image.step, image.payload_bytes()), (640, 640 * 480 * 3 / 2)); // luma, then chroma
    /// assert!(matches!(Image::new(641, 480, Encoding::Nv12), Err(MetaError::Odd { .. })));
    /// # Ok::<(), MetaError>(())
    /// ```
    pub fn new(width: u32, height: u32, encoding: Encoding) -> Result<Self, MetaError> {
        let needed = u64::from(width) * u64::from(encoding.bytes_per_pixel());
        let step = u32::try_from(needed).map_err(|_| MetaError::RowTooLong { needed })?;
        let image = Self { header: Header::default(), width, height, step, encoding, is_bigendian: false };
        image.check_shape()?;
        Ok(image)
    }

    /// Sets the bytes from one row to the next.
    ///
    /// ```
    /// use rgaps::types::{Encoding, Image, Meta};
    ///
    /// // A camera that aligns rows to 256 B.
    /// let image = Image::new(1000, 10, Encoding::Rgb8)?.with_step(3072)?;
    /// assert_eq!((image.row_bytes(), image.payload_bytes()), (3000, 30_720));
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    pub fn with_step(mut self, step: u32) -> Result<Self, MetaError> {
        self.step = step;
        self.check_shape()?;
        Ok(self)
    }

    /// Sets the byte order of channels.
    ///
    /// ```
    /// use rgaps::types::{Encoding, Image, Payload, ViewError};
    ///
    /// let depth = Image::new(640, 480, Encoding::U16C1)?.with_bigendian(true);
    /// assert_eq!(depth.tensor(), Err(ViewError::ByteOrder { what: "image" })); // kernels expect the other order
    /// # Ok::<(), rgaps::types::MetaError>(())
    /// ```
    #[must_use]
    pub fn with_bigendian(mut self, is_bigendian: bool) -> Self {
        self.is_bigendian = is_bigendian;
        self
    }

    /// Bytes of a row of the first plane that carry pixels; the rest of `step` is padding.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.width) * u64::from(self.encoding.bytes_per_pixel())
    }
}

impl Meta for Image {
    const KIND: u32 = 1;
    const TYPE_NAME: &'static str = "rgaps/Image";
    const ENCODED_BYTES: usize = 124;

    fn encode(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        let mut to = Layout::into(to);
        self.header.encode(&mut to);
        to.u32(self.width).u32(self.height).u32(self.step).u32(self.encoding.code());
        to.u8(u8::from(self.is_bigendian)).bytes(&[0; 3]);
        to.written()
    }

    fn decode(bytes: &[u8]) -> Result<Self, MetaError> {
        let mut fields = Fields::of(Self::TYPE_NAME, bytes, Self::ENCODED_BYTES)?;
        let header = Header::decode(&mut fields)?;
        let (width, height, step, code) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
        let encoding = Encoding::from_code(code).ok_or(MetaError::Code { field: "encoding", code })?;
        let is_bigendian = fields.flag("is_bigendian")?;
        let image = Self { header, width, height, step, encoding, is_bigendian };
        image.check_shape()?;
        Ok(image)
    }

    fn payload_bytes(&self) -> u64 {
        u64::from(self.step).saturating_mul(self.encoding.payload_rows(self.height))
    }

    fn check_shape(&self) -> Result<(), MetaError> {
        let &Self { width, height, step, encoding, .. } = self;
        self.header.check()?;
        if width == 0 || height == 0 {
            return Err(MetaError::NoPixels { width, height });
        }
        let (even_width, even_height) = encoding.even();
        for (must, size, what) in [(even_width, width, "width"), (even_height, height, "height")] {
            if must && size % 2 != 0 {
                return Err(MetaError::Odd { encoding: encoding.name(), what, width, height });
            }
        }
        if self.row_bytes() > u64::from(step) {
            return Err(MetaError::Step { needed: self.row_bytes(), step });
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
    use super::super::meta::{Stamp, tests::survives_its_bytes};
    use super::*;

    fn image() -> Image {
        let image = Image::new(640, 480, Encoding::Mono16).unwrap().with_bigendian(true).with_step(1536).unwrap();
        let image =
            image.stamped(Stamp { sec: 17, nanosec: 999_999_999 }).with_user(*b"the application's thirty-two byt");
        image.in_frame("camera_front_optical").unwrap()
    }

    #[test]
    fn an_image_survives_its_bytes() {
        survives_its_bytes(&image());
        for &encoding in Encoding::ALL {
            survives_its_bytes(&Image::new(4, 2, encoding).unwrap());
        }
    }

    #[test]
    fn the_encoded_bytes_are_where_the_layout_draws_them() {
        let mut encoded = [0; META_BYTES_MAX];
        image().encode(&mut encoded);
        assert_eq!(encoded[..8], [17, 0, 0, 0, 0xff, 0xc9, 0x9a, 0x3b]);
        assert_eq!(encoded[8..29], *b"camera_front_optical\0");
        assert_eq!(encoded[72..104], *b"the application's thirty-two byt");
        assert_eq!(encoded[104..124], [0x80, 2, 0, 0, 0xe0, 1, 0, 0, 0, 6, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn the_payload_counts_every_plane() {
        let bytes = |encoding| Image::new(640, 480, encoding).unwrap().payload_bytes();
        assert_eq!(bytes(Encoding::Rgb8), 640 * 480 * 3);
        assert_eq!(bytes(Encoding::U16C1), 640 * 480 * 2);
        assert_eq!(bytes(Encoding::Yuyv), 640 * 480 * 2);
        assert_eq!(bytes(Encoding::Nv12), 640 * 480 * 3 / 2);
        assert_eq!(bytes(Encoding::Nv24), 640 * 480 * 3);
        assert_eq!(bytes(Encoding::F64C4), 640 * 480 * 32);
    }

    #[test]
    fn an_image_that_contradicts_itself_is_refused_by_numbers() {
        let message = |result: Result<Image, MetaError>| result.unwrap_err().to_string();
        assert_eq!(message(Image::new(0, 480, Encoding::Rgb8)), "an image of 0 x 480 has no pixels");
        assert!(
            message(Image::new(641, 480, Encoding::Yuyv))
                .starts_with("yuyv needs an even width, this image is 641 x 480")
        );
        assert!(message(Image::new(640, 481, Encoding::Nv21)).starts_with("nv21 needs an even height"));
        assert!(message(Image::new(u32::MAX, 1, Encoding::Rgb8)).starts_with("a row needs 12884901885 B"));
        assert!(message(image().with_step(1279)).starts_with("a row needs 1280 B, its step is 1279 B"));
        let error = image().check(1536 * 479).unwrap_err();
        assert!(
            error.to_string().starts_with("metadata of rgaps/Image describes 737280 B, but the payload has 735744 B")
        );
        let impossible = Image { height: u32::MAX, step: u32::MAX, encoding: Encoding::Nv24, ..image() };
        assert_eq!(impossible.payload_bytes(), u64::MAX);
    }
}
