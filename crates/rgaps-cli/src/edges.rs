//! Edge images: the Sobel gradient of an image, read in place from its payload.
//!
//! A pixel of the result is min(255, (|gx| + |gy|) / 2) of the brightness around it; beyond the border, the outermost pixels repeat. Three rows of
//! brightness are kept at a time, so the payload is read once, row by row.

use std::path::Path;

use rgaps::types::{Encoding, Image, Meta, MetaError};

use rgaps_media::{SaveError, save_image};

/// An edge image could not be made.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum EdgeError {
    /// The brightness of its pixels cannot be read.
    #[error("no edge picture of {0}; publish rgb8, bgr8, rgba8, bgra8, mono8, mono16, yuyv, uyvy or nv12")]
    Encoding(Encoding),
    /// Metadata and payload do not match.
    #[error(transparent)]
    Metadata(#[from] MetaError),
}

/// An edge image, and the rows needed to compute one. Reused for every sample.
#[derive(Clone, Debug, Default)]
pub struct EdgePicture {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
    rows: [Vec<i16>; 3],
    sums: Vec<i16>,
    differences: Vec<i16>,
}

impl EdgePicture {
    /// Computes the edge image of an image. Allocates only if the image is larger than any before.
    pub fn trace(&mut self, meta: &Image, payload: &[u8]) -> Result<(), EdgeError> {
        meta.check(payload.len() as u64)?;
        let brightness = Brightness::of(meta).ok_or(EdgeError::Encoding(meta.encoding))?;
        let (width, height, step) = (meta.width as usize, meta.height as usize, meta.step as usize);
        self.resize(meta.width, meta.height);
        let row = |y: usize| &payload[y * step..(y + 1) * step];
        let [above, middle, below] = &mut self.rows;
        brightness.read(row(0), middle);
        above.copy_from_slice(middle);
        for (y, to) in self.pixels.chunks_exact_mut(width).enumerate() {
            match y + 1 < height {
                true => brightness.read(row(y + 1), below),
                false => below.copy_from_slice(middle),
            }
            gradient(above, middle, below, &mut self.sums, &mut self.differences, to);
            std::mem::swap(above, middle);
            std::mem::swap(middle, below);
        }
        Ok(())
    }

    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The pixels, one byte each, rows without gaps.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Saves it as `prefix`.png; returns the path.
    pub fn save(&self, prefix: &Path) -> Result<std::path::PathBuf, SaveError> {
        let meta_error = |source| SaveError::Metadata { path: prefix.to_owned(), source };
        let meta = Image::new(self.width, self.height, Encoding::Mono8).map_err(meta_error)?;
        save_image(prefix, &meta, &self.pixels)
    }

    fn resize(&mut self, width: u32, height: u32) {
        (self.width, self.height) = (width, height);
        let width = width as usize;
        self.pixels.resize(width * height as usize, 0);
        // One extra pixel on either side, so that a row's ends need no special case.
        for row in self.rows.iter_mut().chain([&mut self.sums, &mut self.differences]) {
            row.resize(width + 2, 0);
        }
    }
}

/// Where the brightness of a pixel is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brightness {
    /// In one byte of each pixel.
    Byte { pixel_bytes: usize, at: usize },
    /// In three bytes of each pixel, red first or last.
    Color { pixel_bytes: usize, red: usize },
}

impl Brightness {
    fn of(meta: &Image) -> Option<Self> {
        use Encoding as E;
        match meta.encoding {
            E::Rgb8 => Some(Self::Color { pixel_bytes: 3, red: 0 }),
            E::Bgr8 | E::U8C3 => Some(Self::Color { pixel_bytes: 3, red: 2 }),
            E::Rgba8 => Some(Self::Color { pixel_bytes: 4, red: 0 }),
            E::Bgra8 | E::U8C4 => Some(Self::Color { pixel_bytes: 4, red: 2 }),
            // The first plane of the nv formats is all brightness.
            E::Mono8 | E::U8C1 | E::Nv12 | E::Nv21 | E::Nv24 => Some(Self::Byte { pixel_bytes: 1, at: 0 }),
            E::Yuyv | E::Yuv422Yuy2 => Some(Self::Byte { pixel_bytes: 2, at: 0 }),
            E::Uyvy | E::Yuv422 => Some(Self::Byte { pixel_bytes: 2, at: 1 }),
            // The high byte is enough for an 8-bit result.
            E::Mono16 | E::U16C1 => Some(Self::Byte { pixel_bytes: 2, at: usize::from(!meta.is_bigendian) }),
            _ => None,
        }
    }

    /// Reads the brightness of a row of pixels, with its first and last pixel repeated.
    fn read(self, row: &[u8], to: &mut [i16]) {
        let Some(end) = to.len().checked_sub(1) else { return };
        let inner = &mut to[1..end];
        // Separate constants in each case let the compiler unroll it.
        match self {
            Self::Byte { pixel_bytes: 1, .. } => {
                inner.iter_mut().zip(row).for_each(|(to, &from)| *to = i16::from(from))
            }
            Self::Byte { at, .. } => {
                let pixels = row.as_chunks::<2>().0;
                inner.iter_mut().zip(pixels).for_each(|(to, pixel)| *to = i16::from(pixel[at & 1]));
            }
            Self::Color { pixel_bytes: 3, red: 0 } => weigh(row.as_chunks().0, inner, |&[r, g, b]| luma(r, g, b)),
            Self::Color { pixel_bytes: 3, .. } => weigh(row.as_chunks().0, inner, |&[b, g, r]| luma(r, g, b)),
            Self::Color { red: 0, .. } => weigh(row.as_chunks().0, inner, |&[r, g, b, _]| luma(r, g, b)),
            Self::Color { .. } => weigh(row.as_chunks().0, inner, |&[b, g, r, _]| luma(r, g, b)),
        }
        to[0] = to[1];
        to[end] = to[end - 1];
    }
}

fn weigh<const N: usize>(pixels: &[[u8; N]], to: &mut [i16], weight: impl Fn(&[u8; N]) -> i16) {
    to.iter_mut().zip(pixels).for_each(|(to, pixel)| *to = weight(pixel));
}

/// Brightness with the weights of ITU-R BT.601, in 256ths.
fn luma(red: u8, green: u8, blue: u8) -> i16 {
    let [red, green, blue] =
        [(red, 77), (green, 150), (blue, 29)].map(|(color, weight)| u16::from(color).wrapping_mul(weight));
    (red.wrapping_add(green).wrapping_add(blue) >> 8) as i16
}

/// Nothing here wraps: brightness is below 256, and four times that and twice that difference are far below 2^15. Written as wrapping arithmetic
/// because overflow checks would keep the compiler from vectorizing it.
fn weigh_121(first: i16, second: i16, third: i16) -> i16 {
    first.wrapping_add(second << 1).wrapping_add(third)
}

/// Computes one row of edges from three rows of brightness: first down the columns (sum and difference), then along the row.
fn gradient(above: &[i16], middle: &[i16], below: &[i16], sums: &mut [i16], differences: &mut [i16], to: &mut [u8]) {
    let width = to.len();
    let (above, middle, below) = (&above[..width + 2], &middle[..width + 2], &below[..width + 2]);
    let (sums, differences) = (&mut sums[..width + 2], &mut differences[..width + 2]);
    for x in 0..width + 2 {
        sums[x] = weigh_121(above[x], middle[x], below[x]);
        differences[x] = below[x].wrapping_sub(above[x]);
    }
    // Equal lengths that the compiler knows: no bounds checks, eight pixels at a time.
    let (left, right) = (&sums[..width], &sums[2..width + 2]);
    let (first, second, third) = (&differences[..width], &differences[1..width + 1], &differences[2..width + 2]);
    for x in 0..width {
        let across = right[x].wrapping_sub(left[x]);
        let down = weigh_121(first[x], second[x], third[x]);
        to[x] = (across.unsigned_abs().wrapping_add(down.unsigned_abs()) >> 1).min(255) as u8;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By the definition, pixel by pixel.
    fn naive(meta: &Image, payload: &[u8]) -> Vec<u8> {
        let (width, height) = (i64::from(meta.width), i64::from(meta.height));
        let brightness = |x: i64, y: i64| {
            let (x, y) = (x.clamp(0, width - 1) as usize, y.clamp(0, height - 1) as usize);
            let row = &payload[y * meta.step as usize..];
            let color = |red: usize, blue: usize, bytes: usize| {
                let pixel = &row[x * bytes..];
                (i32::from(pixel[red]) * 77 + i32::from(pixel[1]) * 150 + i32::from(pixel[blue]) * 29) / 256
            };
            match meta.encoding {
                Encoding::Rgb8 => color(0, 2, 3),
                Encoding::Bgr8 => color(2, 0, 3),
                Encoding::Rgba8 => color(0, 2, 4),
                Encoding::Bgra8 => color(2, 0, 4),
                Encoding::Yuyv => i32::from(row[2 * x]),
                Encoding::Uyvy | Encoding::Mono16 => i32::from(row[2 * x + 1]),
                _ => i32::from(row[x]),
            }
        };
        let mut edges = Vec::new();
        for y in 0..height {
            for x in 0..width {
                let (mut across, mut down) = (0, 0);
                for (i, weight) in [(-1, 1), (0, 2), (1, 1)] {
                    across += weight * (brightness(x + 1, y + i) - brightness(x - 1, y + i));
                    down += weight * (brightness(x + i, y + 1) - brightness(x + i, y - 1));
                }
                edges.push(((across.abs() + down.abs()) / 2).min(255) as u8);
            }
        }
        edges
    }

    proptest! {
        #[test]
        fn edges_are_those_of_the_definition_for_every_encoding_size_and_step(
            width in (1..20_u32).prop_map(|half| half * 2),
            height in (1..10_u32).prop_map(|half| half * 2),
            odd in any::<bool>(),
            padding in 0..7_u32,
            which in 0..9_usize,
            seed in proptest::collection::vec(any::<u8>(), 64),
        ) {
            let encodings = [
                Encoding::Mono8, Encoding::Rgb8, Encoding::Bgr8, Encoding::Rgba8, Encoding::Bgra8, Encoding::Mono16,
                Encoding::Yuyv, Encoding::Uyvy, Encoding::Nv12,
            ];
            let less = u32::from(odd && which < 6);
            let tight = Image::new(width - less, height - less, encodings[which]).unwrap();
            let meta = tight.with_step(tight.step + padding).unwrap();
            let bytes = meta.payload_bytes() as usize;
            let payload: Vec<u8> = (0..bytes).map(|i| seed[(i * i + i / 7) % 64].wrapping_add(i as u8)).collect();
            let mut edges = EdgePicture::default();
            edges.trace(&Image::new(50, 3, Encoding::Mono8).unwrap(), &[9; 150]).unwrap();
            edges.trace(&meta, &payload).unwrap();
            prop_assert_eq!((edges.width(), edges.height()), (meta.width, meta.height));
            prop_assert_eq!(edges.pixels(), naive(&meta, &payload));
        }
    }

    #[test]
    fn a_step_in_brightness_is_a_line_and_a_flat_picture_has_no_edges() {
        let meta = Image::new(6, 3, Encoding::Mono8).unwrap();
        let mut edges = EdgePicture::default();
        edges.trace(&meta, &[0, 0, 0, 200, 200, 200].repeat(3)).unwrap();
        assert_eq!(edges.pixels(), [0, 0, 255, 255, 0, 0].repeat(3));
        edges.trace(&meta, &[255; 18]).unwrap();
        assert_eq!(edges.pixels(), [0; 18]);
    }

    #[test]
    fn images_without_brightness_and_short_payloads_are_refused() {
        let mut edges = EdgePicture::default();
        let meta = Image::new(2, 2, Encoding::F32C1).unwrap();
        let error = edges.trace(&meta, &[0; 16]).unwrap_err();
        assert!(error.to_string().starts_with("no edge picture of 32FC1; publish rgb8"), "{error}");
        let meta = Image::new(2, 2, Encoding::Mono8).unwrap();
        assert!(matches!(edges.trace(&meta, &[0; 3]), Err(EdgeError::Metadata(_))));
    }

    #[test]
    fn an_edge_picture_is_saved_as_png() {
        let meta = Image::new(6, 3, Encoding::Mono8).unwrap();
        let mut edges = EdgePicture::default();
        edges.trace(&meta, &[0, 0, 0, 200, 200, 200].repeat(3)).unwrap();
        let prefix = std::env::temp_dir().join(format!("rgaps-edges-{}", std::process::id()));
        let path = edges.save(&prefix).unwrap();
        let loaded = rgaps_media::load(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((path.extension().unwrap(), loaded.bytes()), ("png".as_ref(), edges.pixels()));
    }
}
