//! The demo's messages: a moving photograph, a rippling point cloud and an array, each made in place in a loaned block.
//!
//! Every frame differs from the others, and the user bytes of its metadata hold its number and checksum (`rgaps_media::Mark`). So a subscriber can check
//! a frame without knowing how it was made. Preparation happens once; a frame costs little more than a copy.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use image::{DynamicImage, ImageFormat, ImageReader};
use rgaps::types::{DType, Datatype, Encoding, Image, Meta, MetaError, PointCloud, Stamp, Tensor};

use rgaps_media::Mark;

/// A photograph by Rachel Michetti, CC0; see examples/data/README.md.
const PHOTOGRAPH: &[u8] = include_bytes!("../../../examples/data/coffee.png");
/// Pixels that the photograph moves to the left in each frame.
const SCROLL: usize = 8;
/// Width in pixels of a cell of the stripe that shows the frame number in bits.
const CELL_WIDTH: usize = 30;
const STRIPE_HEIGHT: usize = 16;
/// Points of the cloud in x and y.
const GRID: (usize, usize) = (400, 250);
/// Steps in one period of the ripple.
const RIPPLE: usize = 64;
const POINT_BYTES: usize = 16;
/// Width and height of the array's pictures.
const SIDE: usize = 224;

/// A scene could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    /// The bundled photograph cannot be decoded.
    #[error("the bundled photograph is damaged ({0}); build rgaps again")]
    Photograph(#[from] image::ImageError),
    /// The user's picture cannot be read.
    #[error("{path}: {source}; give a PNG or JPEG picture")]
    Input {
        /// The file.
        path: PathBuf,
        /// Why.
        source: image::ImageError,
    },
    /// The metadata of a frame contradicts itself.
    #[error(transparent)]
    Metadata(#[from] MetaError),
    /// The block has another length than a frame.
    #[error("a frame needs a block of {needed} B, {given} B were given")]
    Block {
        /// Bytes of a frame.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
}

/// A source of frames.
pub trait Scene: Send {
    /// The type of its topic.
    type Type: Meta;

    /// The metadata of a frame, before it is made.
    fn meta(&self) -> Self::Type;

    /// Writes the frame with this number into every byte of `block`.
    fn draw(&self, frame: u64, block: &mut [u8]);

    /// Makes the frame with this number in `block`; returns its metadata with stamp, number and checksum.
    fn make(&self, frame: u64, block: &mut [u8]) -> Result<Self::Type, SceneError> {
        let meta = self.meta();
        let (needed, given) = (meta.payload_bytes() as usize, block.len());
        if needed != given {
            return Err(SceneError::Block { needed, given });
        }
        self.draw(frame, block);
        Ok(meta.stamped(Stamp::now()).with_user(Mark::of(frame, block).to_user()))
    }
}

/// A 1920 x 1080 rgb8 photograph that moves to the left. A stripe of black and white cells above it shows the frame number.
#[derive(Clone, Debug)]
pub struct Photograph {
    meta: Image,
    pixels: Vec<u8>,
}

impl Photograph {
    /// The bundled photograph.
    pub fn new() -> Result<Self, SceneError> {
        Self::of(bundled()?)
    }

    /// The user's picture.
    pub fn from_file(path: &Path) -> Result<Self, SceneError> {
        let reader = ImageReader::open(path)
            .map_err(image::ImageError::IoError)
            .map_err(|source| SceneError::Input { path: path.to_owned(), source })?;
        Self::of(reader.decode().map_err(|source| SceneError::Input { path: path.to_owned(), source })?)
    }

    /// Crops and resizes a picture.
    fn of(picture: DynamicImage) -> Result<Self, SceneError> {
        let (width, height) = (1920, 1080);
        let meta = Image::new(width, height, Encoding::Rgb8)?.in_frame("camera_optical")?;
        let pixels = picture.resize_to_fill(width, height, FilterType::Triangle).into_rgb8().into_raw();
        Ok(Self { meta, pixels })
    }
}

fn bundled() -> Result<DynamicImage, SceneError> {
    Ok(ImageReader::with_format(Cursor::new(PHOTOGRAPH), ImageFormat::Png).decode()?)
}

impl Scene for Photograph {
    type Type = Image;

    fn meta(&self) -> Image {
        self.meta
    }

    fn draw(&self, frame: u64, block: &mut [u8]) {
        let row_bytes = self.meta.step as usize;
        let shift = moved(frame, SCROLL, self.meta.width as usize) * 3;
        for (from, to) in self.pixels.chunks_exact(row_bytes).zip(block.chunks_exact_mut(row_bytes)) {
            rotate(from, to, shift);
        }
        let stripe = stripe(frame);
        for row in block.chunks_exact_mut(row_bytes).take(STRIPE_HEIGHT) {
            row[..stripe.len()].copy_from_slice(&stripe);
        }
    }
}

/// The bits of a frame number, lowest first, as a row of cells.
fn stripe(frame: u64) -> [u8; 64 * CELL_WIDTH * 3] {
    let mut row = [0; 64 * CELL_WIDTH * 3];
    for (bit, cell) in row.chunks_exact_mut(CELL_WIDTH * 3).enumerate() {
        cell.fill(if frame >> bit & 1 == 1 { 255 } else { 0 });
    }
    row
}

/// How far frame `frame` has moved around a circle of `length` steps.
fn moved(frame: u64, speed: usize, length: usize) -> usize {
    ((frame % length as u64) as usize * speed) % length
}

/// Copies `from` rotated, so that it starts at `shift`.
fn rotate(from: &[u8], to: &mut [u8], shift: usize) {
    let (start, end) = from.split_at(shift);
    let (to_start, to_end) = to.split_at_mut(end.len());
    to_start.copy_from_slice(end);
    to_end.copy_from_slice(start);
}

/// 100,000 points (x, y, z, intensity) of a surface with waves that run outwards.
#[derive(Clone, Debug)]
pub struct Ripples {
    meta: PointCloud,
    /// x and y of each point, and its place in the ripple's period.
    points: Vec<([u8; 8], usize)>,
    /// z and intensity over the ripple's period.
    wave: [[u8; 8]; RIPPLE],
}

impl Ripples {
    /// The surface.
    pub fn new() -> Result<Self, SceneError> {
        let (columns, rows) = GRID;
        let fields = ["x", "y", "z", "intensity"].map(|name| (name, Datatype::Float32));
        let meta = PointCloud::packed((columns * rows) as u32, &fields)?.in_frame("lidar")?;
        let place = |i: usize| {
            let x = (i % columns) as f32 * 0.02 - 4.0;
            let y = (i / columns) as f32 * 0.02 - 2.5;
            (pair(x, y), ((x * x + y * y).sqrt() * 40.0) as usize)
        };
        let wave = std::array::from_fn(|i| {
            let height = (i as f32 / RIPPLE as f32 * std::f32::consts::TAU).sin();
            pair(height * 0.1, height.mul_add(0.5, 0.5))
        });
        Ok(Self { meta, points: (0..columns * rows).map(place).collect(), wave })
    }
}

fn pair(first: f32, second: f32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_le_bytes());
    bytes[4..].copy_from_slice(&second.to_le_bytes());
    bytes
}

impl Scene for Ripples {
    type Type = PointCloud;

    fn meta(&self) -> PointCloud {
        self.meta
    }

    fn draw(&self, frame: u64, block: &mut [u8]) {
        let back = RIPPLE - moved(frame, 1, RIPPLE);
        let points = block.as_chunks_mut::<POINT_BYTES>().0;
        for (to, (place, along)) in points.iter_mut().zip(&self.points) {
            to[..8].copy_from_slice(place);
            to[8..].copy_from_slice(&self.wave[(along + back) % RIPPLE]);
        }
        // After a full period the ripples look the same, so the first intensity tells frames apart.
        if let Some(first) = points.first_mut() {
            first[12..].copy_from_slice(&((frame % (1 << 24)) as f32 / (1 << 24) as f32).to_le_bytes());
        }
    }
}

/// An array of 1 x 3 x 224 x 224 floats, a network's input: the photograph by colour channels, from 0 to 1, moving to the left.
#[derive(Clone, Debug)]
pub struct Planes {
    meta: Tensor,
    elements: Vec<u8>,
}

impl Planes {
    /// The bundled photograph.
    pub fn new() -> Result<Self, SceneError> {
        let side = SIDE as u32;
        let meta = Tensor::new(DType::FLOAT32, &[1, 3, SIDE as i64, SIDE as i64])?.in_frame("input")?;
        let picture = bundled()?.resize_to_fill(side, side, FilterType::Triangle).into_rgb8();
        let mut elements = Vec::with_capacity(meta.payload_bytes() as usize);
        for channel in 0..3 {
            for pixel in picture.pixels() {
                elements.extend_from_slice(&(f32::from(pixel.0[channel]) / 255.0).to_le_bytes());
            }
        }
        Ok(Self { meta, elements })
    }
}

impl Scene for Planes {
    type Type = Tensor;

    fn meta(&self) -> Tensor {
        self.meta
    }

    fn draw(&self, frame: u64, block: &mut [u8]) {
        let row_bytes = SIDE * 4;
        let shift = moved(frame, 1, SIDE) * 4;
        for (from, to) in self.elements.chunks_exact(row_bytes).zip(block.chunks_exact_mut(row_bytes)) {
            rotate(from, to, shift);
        }
        // After a full turn the picture looks the same, so the first element tells frames apart.
        if let Some(first) = block.first_chunk_mut() {
            *first = ((frame % (1 << 24)) as f32 / (1 << 24) as f32).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames have the promised length, all differ, all bytes are written, and they carry their number and checksum.
    fn frames_prove_themselves<S: Scene>(scene: &S) {
        let bytes = scene.meta().payload_bytes() as usize;
        let mut seen = std::collections::HashSet::new();
        for frame in [0, 1, 2, 239, 240, 1 << 23, u64::from(u32::MAX)] {
            let (mut block, mut other) = (vec![0x00; bytes], vec![0xff; bytes]);
            let meta = scene.make(frame, &mut block).unwrap();
            scene.make(frame, &mut other).unwrap();
            assert!(block == other, "frame {frame} leaves old bytes in its block");
            meta.check(bytes as u64).unwrap();
            let mark = Mark::from_user(&meta.header().user).unwrap();
            assert_eq!(mark.frame, frame);
            assert!(mark.matches(&block));
            assert!(seen.insert(mark.crc), "frame {frame} looks like another");
        }
        let error = scene.make(0, &mut vec![0; bytes - 1]).unwrap_err();
        assert_eq!(error.to_string(), format!("a frame needs a block of {bytes} B, {} B were given", bytes - 1));
    }

    #[test]
    fn frames_of_the_photograph_are_distinct_complete_and_marked() {
        let scene = Photograph::new().unwrap();
        assert_eq!(scene.meta().payload_bytes(), 1920 * 1080 * 3);
        frames_prove_themselves(&scene);
    }

    #[test]
    fn frames_of_the_cloud_are_distinct_complete_and_marked() {
        let scene = Ripples::new().unwrap();
        assert_eq!((scene.meta().points(), scene.meta().point_step), (100_000, 16));
        frames_prove_themselves(&scene);
    }

    #[test]
    fn frames_of_the_array_are_distinct_complete_and_marked() {
        let scene = Planes::new().unwrap();
        assert_eq!(scene.meta().shape(), [1, 3, 224, 224]);
        frames_prove_themselves(&scene);
    }

    #[test]
    fn the_stripe_shows_the_bits_of_the_frame_number() {
        let scene = Photograph::new().unwrap();
        let mut block = vec![0; scene.meta().payload_bytes() as usize];
        scene.make(0b101, &mut block).unwrap();
        let cells: Vec<u8> = block[..64 * CELL_WIDTH * 3].chunks(CELL_WIDTH * 3).map(|cell| cell[40]).collect();
        assert_eq!(cells[..4], [255, 0, 255, 0]);
        assert!(cells[4..].iter().all(|&cell| cell == 0));
    }
}
