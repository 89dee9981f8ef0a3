//! Pixel formats: the names of sensor_msgs/image_encodings, each with its code in metadata.
//!
//! A code never changes its meaning; rgaps_msgs/GpuImage has the same codes. Three formats have two planes, in V4L2's layout: the luma plane, then
//! the chroma plane with pairs of samples at `step * height`. nv12 and nv21 have one pair for 2 x 2 pixels (half as many rows of `step` bytes). nv24
//! has one pair for each pixel (rows of `2 * step` bytes).

use std::ffi::CStr;
use std::fmt;
use std::str::FromStr;

use rgaps_control::text::plain;

use super::tensor::{DType, DTypeCode};

/// How pixels share chroma samples and planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sampling {
    /// Every pixel has all its channels.
    Full,
    /// One plane; two neighbours in a row share their chroma (4:2:2).
    Pairs,
    /// Two planes; 2 x 2 pixels share their chroma (4:2:0).
    Quads,
    /// Two planes; every pixel has its own chroma (4:4:4).
    FullInTwoPlanes,
}

macro_rules! encodings {
    ($($variant:ident = $code:literal, $name:literal, $channels:literal x $bits:literal, $sampling:ident;)*) => {
        /// A pixel format.
        ///
        /// ```
        /// use rgaps::types::Encoding;
        ///
        /// let encoding: Encoding = "rgb8".parse()?;
        /// assert_eq!((encoding, encoding.bytes_per_pixel()), (Encoding::Rgb8, 3));
        /// # Ok::<(), rgaps::types::UnknownEncoding>(())
        /// ```
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Encoding {
            $(#[doc = concat!("`", $name, "`")] $variant = $code,)*
        }

        impl Encoding {
            /// All encodings, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The encoding with this code.
            pub fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its name in ROS.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Its name in ROS, as a C string.
            pub fn c_name(self) -> &'static CStr {
                match self {
                    $(Self::$variant => const {
                        match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name has no zero inside"),
                        }
                    },)*
                }
            }

            /// Channels of a pixel in the first plane, bits of a channel, and chroma sampling.
            fn layout(self) -> (u32, u32, Sampling) {
                match self {
                    $(Self::$variant => ($channels, $bits, Sampling::$sampling),)*
                }
            }
        }
    };
}

encodings! {
    Mono8 = 0x01, "mono8", 1 x 8, Full;
    Mono16 = 0x02, "mono16", 1 x 16, Full;
    Rgb8 = 0x03, "rgb8", 3 x 8, Full;
    Bgr8 = 0x04, "bgr8", 3 x 8, Full;
    Rgba8 = 0x05, "rgba8", 4 x 8, Full;
    Bgra8 = 0x06, "bgra8", 4 x 8, Full;
    Rgb16 = 0x07, "rgb16", 3 x 16, Full;
    Bgr16 = 0x08, "bgr16", 3 x 16, Full;
    Rgba16 = 0x09, "rgba16", 4 x 16, Full;
    Bgra16 = 0x0a, "bgra16", 4 x 16, Full;

    U8C1 = 0x21, "8UC1", 1 x 8, Full;
    U8C2 = 0x22, "8UC2", 2 x 8, Full;
    U8C3 = 0x23, "8UC3", 3 x 8, Full;
    U8C4 = 0x24, "8UC4", 4 x 8, Full;
    S8C1 = 0x31, "8SC1", 1 x 8, Full;
    S8C2 = 0x32, "8SC2", 2 x 8, Full;
    S8C3 = 0x33, "8SC3", 3 x 8, Full;
    S8C4 = 0x34, "8SC4", 4 x 8, Full;
    U16C1 = 0x41, "16UC1", 1 x 16, Full;
    U16C2 = 0x42, "16UC2", 2 x 16, Full;
    U16C3 = 0x43, "16UC3", 3 x 16, Full;
    U16C4 = 0x44, "16UC4", 4 x 16, Full;
    S16C1 = 0x51, "16SC1", 1 x 16, Full;
    S16C2 = 0x52, "16SC2", 2 x 16, Full;
    S16C3 = 0x53, "16SC3", 3 x 16, Full;
    S16C4 = 0x54, "16SC4", 4 x 16, Full;
    S32C1 = 0x61, "32SC1", 1 x 32, Full;
    S32C2 = 0x62, "32SC2", 2 x 32, Full;
    S32C3 = 0x63, "32SC3", 3 x 32, Full;
    S32C4 = 0x64, "32SC4", 4 x 32, Full;
    F32C1 = 0x71, "32FC1", 1 x 32, Full;
    F32C2 = 0x72, "32FC2", 2 x 32, Full;
    F32C3 = 0x73, "32FC3", 3 x 32, Full;
    F32C4 = 0x74, "32FC4", 4 x 32, Full;
    F64C1 = 0x81, "64FC1", 1 x 64, Full;
    F64C2 = 0x82, "64FC2", 2 x 64, Full;
    F64C3 = 0x83, "64FC3", 3 x 64, Full;
    F64C4 = 0x84, "64FC4", 4 x 64, Full;

    BayerRggb8 = 0x91, "bayer_rggb8", 1 x 8, Full;
    BayerBggr8 = 0x92, "bayer_bggr8", 1 x 8, Full;
    BayerGbrg8 = 0x93, "bayer_gbrg8", 1 x 8, Full;
    BayerGrbg8 = 0x94, "bayer_grbg8", 1 x 8, Full;
    BayerRggb16 = 0x95, "bayer_rggb16", 1 x 16, Full;
    BayerBggr16 = 0x96, "bayer_bggr16", 1 x 16, Full;
    BayerGbrg16 = 0x97, "bayer_gbrg16", 1 x 16, Full;
    BayerGrbg16 = 0x98, "bayer_grbg16", 1 x 16, Full;

    Uyvy = 0xa1, "uyvy", 2 x 8, Pairs;
    Yuv422 = 0xa2, "yuv422", 2 x 8, Pairs;
    Yuyv = 0xa3, "yuyv", 2 x 8, Pairs;
    Yuv422Yuy2 = 0xa4, "yuv422_yuy2", 2 x 8, Pairs;
    Nv12 = 0xb1, "nv12", 1 x 8, Quads;
    Nv21 = 0xb2, "nv21", 1 x 8, Quads;
    Nv24 = 0xb3, "nv24", 1 x 8, FullInTwoPlanes;
}

/// A name that is not one of sensor_msgs/image_encodings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown image encoding '{}'; use a name of sensor_msgs/image_encodings such as rgb8, mono8, 16UC1 or nv12", plain(.0)
)]
pub struct UnknownEncoding(pub String);

impl Encoding {
    /// Its code in metadata.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// Bytes of a pixel in the first plane. If two pixels share chroma, half the bytes of the pair.
    pub fn bytes_per_pixel(self) -> u32 {
        let (channels, bits, _) = self.layout();
        channels * bits / 8
    }

    /// Channels of a pixel in the first plane.
    pub fn channels(self) -> u32 {
        self.layout().0
    }

    /// Bits of a channel.
    pub fn bits_per_channel(self) -> u32 {
        self.layout().1
    }

    /// Type of a channel.
    ///
    /// ```
    /// use rgaps::types::{DType, Encoding};
    ///
    /// assert_eq!(Encoding::Rgb8.channel_type(), DType::UINT8);
    /// assert_eq!((Encoding::F32C3.channel_type(), Encoding::F32C3.channels()), (DType::FLOAT32, 3));
    /// ```
    pub fn channel_type(self) -> DType {
        // The upper four bits of a code are OpenCV's depth where the name is OpenCV's.
        let code = match self.code() >> 4 {
            0x3 | 0x5 | 0x6 => DTypeCode::INT,
            0x7 | 0x8 => DTypeCode::FLOAT,
            _ => DTypeCode::UINT,
        };
        DType::scalar(code, self.bits_per_channel() as u8)
    }

    /// Number of planes; they follow each other in the payload.
    ///
    /// ```
    /// use rgaps::types::Encoding;
    ///
    /// let one_plane: Vec<_> = Encoding::ALL.iter().filter(|encoding| encoding.planes() == 1).collect();
    /// assert_eq!(one_plane.len(), Encoding::ALL.len() - 3); // all but nv12, nv21 and nv24
    /// ```
    pub fn planes(self) -> u32 {
        match self.layout().2 {
            Sampling::Full | Sampling::Pairs => 1,
            Sampling::Quads | Sampling::FullInTwoPlanes => 2,
        }
    }

    /// Rows of `step` bytes in the payload of an image of `height` rows, all planes together.
    ///
    /// ```
    /// use rgaps::types::Encoding;
    ///
    /// assert_eq!(Encoding::Rgb8.payload_rows(480), 480);
    /// assert_eq!(Encoding::Nv12.payload_rows(480), 480 + 240); // chroma has half as many rows
    /// ```
    pub fn payload_rows(self, height: u32) -> u64 {
        let height = u64::from(height);
        match self.layout().2 {
            Sampling::Full | Sampling::Pairs => height,
            Sampling::Quads => height + height.div_ceil(2),
            Sampling::FullInTwoPlanes => height * 3,
        }
    }

    /// Whether width and height must be even, because pixels share chroma.
    pub(super) fn even(self) -> (bool, bool) {
        match self.layout().2 {
            Sampling::Full | Sampling::FullInTwoPlanes => (false, false),
            Sampling::Pairs => (true, false),
            Sampling::Quads => (true, true),
        }
    }
}

impl FromStr for Encoding {
    type Err = UnknownEncoding;

    fn from_str(name: &str) -> Result<Self, UnknownEncoding> {
        let known = Self::ALL.iter().find(|encoding| encoding.name() == name);
        known.copied().ok_or_else(|| UnknownEncoding(name.to_owned()))
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_is_found_by_its_code_and_its_name() {
        assert_eq!(Encoding::ALL.len(), 53);
        for &encoding in Encoding::ALL {
            assert_eq!(Encoding::from_code(encoding.code()), Some(encoding));
            assert_eq!(encoding.name().parse(), Ok(encoding));
            assert!(encoding.bytes_per_pixel() > 0);
        }
        assert_eq!(Encoding::from_code(0), None);
        assert!("rgb9".parse::<Encoding>().unwrap_err().to_string().contains("'rgb9'"));
    }

    #[test]
    fn opencv_names_say_bits_and_channels() {
        for &encoding in Encoding::ALL {
            let Some((depth, channels)) = encoding.name().split_once('C') else { continue };
            assert_eq!(channels.parse(), Ok(encoding.channels()), "{encoding}");
            assert_eq!(depth[..depth.len() - 1].parse(), Ok(encoding.bits_per_channel()), "{encoding}");
        }
    }

    #[test]
    fn a_channel_has_the_type_that_the_name_says() {
        for &encoding in Encoding::ALL {
            let opencv = encoding.name().split_once('C').map(|(depth, _)| depth.trim_start_matches(char::is_numeric));
            let kind = match opencv {
                Some("S") => "int",
                Some("F") => "float",
                _ => "uint",
            };
            assert_eq!(
                encoding.channel_type().to_string(),
                format!("{kind}{}", encoding.bits_per_channel()),
                "{encoding}"
            );
        }
    }
}
