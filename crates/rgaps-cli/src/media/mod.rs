//! Files of the outside world as payloads with typed metadata, and back: PNG, JPEG, PCD, PLY and NPY in; PNG, PCD and NPY out.
//!
//! `input` finds and loads files, `save` writes what a subscriber received, `picture`, `pcd`, `ply` and `npy` each know one format,
//! `header` reads the lines they begin with, `mark` is the frame number and checksum that a message carries.
//!
//! Files come from strangers: every length is checked against the bytes that are there before memory is taken for it, and what is
//! wrong is said with the file, the line and the remedy. What a saved file holds reads back exactly.

mod error;
mod header;
pub mod input;
mod lzf;
mod mark;
pub mod npy;
pub mod pcd;
pub mod picture;
pub mod ply;
pub mod save;
#[cfg(test)]
mod tests;

use rgaps::types::{Header, Image, Meta, PointCloud, Tensor};

pub use error::{FormatError, LoadError, Location, Problem, SaveError};
pub use input::{Kind, Selection, load, select};
pub use mark::Mark;
pub use save::{save, save_cloud, save_image, save_tensor};

/// Bytes that a file or a saved array may have, at most.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// A payload and what it is.
#[expect(clippy::large_enum_variant, reason = "one value a file: a box would save nothing that counts")]
#[derive(Clone, Debug, PartialEq)]
pub enum Media {
    /// A picture.
    Image {
        /// What the bytes are.
        meta: Image,
        /// Rows of pixels.
        bytes: Vec<u8>,
    },
    /// Points.
    Cloud {
        /// What the bytes are.
        meta: PointCloud,
        /// Rows of points.
        bytes: Vec<u8>,
    },
    /// An array.
    Tensor {
        /// What the bytes are.
        meta: Tensor,
        /// Elements.
        bytes: Vec<u8>,
    },
}

impl Media {
    /// What it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Image { .. } => Kind::Image,
            Self::Cloud { .. } => Kind::Cloud,
            Self::Tensor { .. } => Kind::Tensor,
        }
    }

    /// The type of a topic that carries it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Image { .. } => Image::TYPE_NAME,
            Self::Cloud { .. } => PointCloud::TYPE_NAME,
            Self::Tensor { .. } => Tensor::TYPE_NAME,
        }
    }

    /// The payload.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Image { bytes, .. } | Self::Cloud { bytes, .. } | Self::Tensor { bytes, .. } => bytes,
        }
    }

    /// Stamp, frame and the application's bytes.
    pub fn header_mut(&mut self) -> &mut Header {
        match self {
            Self::Image { meta, .. } => meta.header_mut(),
            Self::Cloud { meta, .. } => meta.header_mut(),
            Self::Tensor { meta, .. } => meta.header_mut(),
        }
    }
}

/// CRC-32 of a payload.
pub fn checksum(payload: &[u8]) -> u32 {
    crc32fast::hash(payload)
}
