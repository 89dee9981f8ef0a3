//! Pictures: PNG and JPEG in, PNG out. PNGs with a palette or few bits are widened to whole channels.

use std::io::{Cursor, Write};

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{DynamicImage, ExtendedColorType, ImageEncoder, ImageError, ImageReader, ImageResult, Limits};
use rgaps::types::{Encoding, Image, Meta};

/// Most pixels of a side.
const SIDE_MAX: u32 = 1 << 15;
/// Most bytes that a decoder may allocate.
const DECODED_BYTES_MAX: u64 = 1 << 30;

/// The picture in a PNG or JPEG file, recognized by its content: mono8, rgb8, rgba8, mono16, rgb16 or rgba16.
pub fn decode(file: &[u8]) -> ImageResult<(Image, Vec<u8>)> {
    let mut reader = ImageReader::new(Cursor::new(file)).with_guessed_format().map_err(ImageError::IoError)?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODED_BYTES_MAX);
    reader.limits(limits);
    let picture = reader.decode()?;
    let (width, height) = (picture.width(), picture.height());
    let (encoding, bytes) = match picture {
        DynamicImage::ImageLuma8(pixels) => (Encoding::Mono8, pixels.into_raw()),
        DynamicImage::ImageRgb8(pixels) => (Encoding::Rgb8, pixels.into_raw()),
        DynamicImage::ImageRgba8(pixels) => (Encoding::Rgba8, pixels.into_raw()),
        DynamicImage::ImageLuma16(pixels) => (Encoding::Mono16, little_endian(&pixels)),
        DynamicImage::ImageRgb16(pixels) => (Encoding::Rgb16, little_endian(&pixels)),
        DynamicImage::ImageRgba16(pixels) => (Encoding::Rgba16, little_endian(&pixels)),
        grey @ DynamicImage::ImageLumaA8(_) => (Encoding::Rgba8, grey.into_rgba8().into_raw()),
        grey @ DynamicImage::ImageLumaA16(_) => (Encoding::Rgba16, little_endian(&grey.into_rgba16())),
        // PNG and JPEG never decode to the other types.
        other => (Encoding::Rgb8, other.into_rgb8().into_raw()),
    };
    let meta = Image::new(width, height, encoding)
        .map_err(|error| ImageError::IoError(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))?;
    Ok((meta, bytes))
}

fn little_endian(channels: &[u16]) -> Vec<u8> {
    channels.iter().flat_map(|channel| channel.to_le_bytes()).collect()
}

/// How an encoding's bytes are converted to a PNG's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recipe {
    color: ExtendedColorType,
    /// Swap blue and red.
    swap: bool,
}

/// How PNG holds this encoding exactly, if it can.
fn recipe(encoding: Encoding) -> Option<Recipe> {
    use Encoding as E;
    let (color, swap) = match encoding {
        E::Mono8 | E::U8C1 | E::BayerRggb8 | E::BayerBggr8 | E::BayerGbrg8 | E::BayerGrbg8 => {
            (ExtendedColorType::L8, false)
        }
        E::Mono16 | E::U16C1 | E::BayerRggb16 | E::BayerBggr16 | E::BayerGbrg16 | E::BayerGrbg16 => {
            (ExtendedColorType::L16, false)
        }
        E::Rgb8 => (ExtendedColorType::Rgb8, false),
        E::Bgr8 | E::U8C3 => (ExtendedColorType::Rgb8, true),
        E::Rgba8 => (ExtendedColorType::Rgba8, false),
        E::Bgra8 | E::U8C4 => (ExtendedColorType::Rgba8, true),
        E::Rgb16 => (ExtendedColorType::Rgb16, false),
        E::Bgr16 | E::U16C3 => (ExtendedColorType::Rgb16, true),
        E::Rgba16 => (ExtendedColorType::Rgba16, false),
        E::Bgra16 | E::U16C4 => (ExtendedColorType::Rgba16, true),
        _ => return None,
    };
    Some(Recipe { color, swap })
}

/// Whether PNG holds this encoding exactly. OpenCV's names without colours (8UC3, 16UC4, ...) are assumed to be in OpenCV's order, blue first.
pub fn png_holds(encoding: Encoding) -> bool {
    recipe(encoding).is_some()
}

/// Writes the picture as PNG. `false` if PNG cannot hold the encoding. The payload must have been checked against `meta`.
pub fn encode(meta: &Image, payload: &[u8], to: impl Write) -> ImageResult<bool> {
    let Some(recipe) = recipe(meta.encoding) else { return Ok(false) };
    let encoder = PngEncoder::new_with_quality(to, CompressionType::Fast, FilterType::Adaptive);
    encoder.write_image(&packed(meta, payload, recipe.swap), meta.width, meta.height, recipe.color)?;
    Ok(true)
}

/// The rows without padding, red first, 16-bit channels in native byte order as the encoder expects.
fn packed(meta: &Image, payload: &[u8], swap: bool) -> Vec<u8> {
    let row_bytes = meta.row_bytes() as usize;
    let mut pixels = Vec::with_capacity(row_bytes * meta.height as usize);
    for row in payload.chunks(meta.step as usize).take(meta.height as usize) {
        pixels.extend_from_slice(&row[..row_bytes]);
    }
    let channel_bytes = meta.encoding.bits_per_channel() as usize / 8;
    if channel_bytes == 2 && meta.is_bigendian != cfg!(target_endian = "big") {
        pixels.as_chunks_mut::<2>().0.iter_mut().for_each(|channel| channel.reverse());
    }
    if swap {
        for pixel in pixels.chunks_exact_mut(meta.encoding.bytes_per_pixel() as usize) {
            let (blue, rest) = pixel.split_at_mut(channel_bytes);
            blue.swap_with_slice(&mut rest[channel_bytes..2 * channel_bytes]);
        }
    }
    pixels
}

/// For the fuzzer: any bytes are decoded or refused, and a decoded picture has the stated size and survives saving. Pictures of more than 65536
/// pixels are skipped to save time.
pub fn fuzz_picture(data: &[u8]) -> bool {
    let reader = ImageReader::new(Cursor::new(data)).with_guessed_format().map(ImageReader::into_dimensions);
    if !matches!(reader, Ok(Ok((width, height))) if u64::from(width) * u64::from(height) <= 1 << 16) {
        return false;
    }
    let Ok((meta, payload)) = decode(data) else { return false };
    assert_eq!(meta.check(payload.len() as u64), Ok(()));
    let mut file = Vec::new();
    assert!(encode(&meta, &payload, &mut file).is_ok_and(|written| written), "PNG holds what PNG and JPEG give");
    assert!(decode(&file).is_ok_and(|again| again == (meta, payload)));
    true
}
