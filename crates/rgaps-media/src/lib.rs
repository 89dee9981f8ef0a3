//! Converts files to payloads with typed metadata, and back: PNG, JPEG, PCD, PLY and NPY in; PNG, PCD and NPY out.
//!
//! `input` finds and loads files, `save` writes received messages, `picture`, `pcd`, `ply` and `npy` each handle one format, `header` reads text
//! headers, `mark` is the frame number and checksum that a message carries.
//!
//! Files are not trusted: every length is checked against the bytes present before memory is allocated for it, and an error names the file, the
//! line and the remedy. Saved files read back exactly.
//!
//! PNG and JPEG are read by the crate `image`. The parsers of NPY, PCD and PLY are ours, because the crates that were looked at in November 2026
//! trust a file's own lengths or keep a point as many small objects, and none of their errors names a line:
//!
//! | Crate | Finding |
//! |---|---|
//! | npyz 0.9.1 | allocates the header length that the file declares, up to 4 GiB; nested brackets cost 35 ms in 60 kB |
//! | pcd-rs 0.13.0 | allocates both declared lengths of compressed points, up to 4 GiB each; one vector for each field of each point |
//! | ply-rs-bw 4.0.1 | one map for each vertex: 90 MB for a file of 2.4 MB |

#![forbid(unsafe_code)]

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
pub use input::{FileKind, Selection, load, select};
pub use mark::Mark;
pub use save::{save, save_cloud, save_image, save_tensor};

/// Most bytes of a file or a saved array.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// A payload with its metadata.
#[expect(clippy::large_enum_variant, reason = "one value a file: a box would save nothing that counts")]
#[derive(Clone, Debug, PartialEq)]
pub enum Media {
    /// A picture.
    Image {
        /// Metadata.
        meta: Image,
        /// Rows of pixels.
        bytes: Vec<u8>,
    },
    /// Points.
    Cloud {
        /// Metadata.
        meta: PointCloud,
        /// Rows of points.
        bytes: Vec<u8>,
    },
    /// An array.
    Tensor {
        /// Metadata.
        meta: Tensor,
        /// Elements.
        bytes: Vec<u8>,
    },
}

impl Media {
    /// Its kind.
    pub fn kind(&self) -> FileKind {
        match self {
            Self::Image { .. } => FileKind::Image,
            Self::Cloud { .. } => FileKind::Cloud,
            Self::Tensor { .. } => FileKind::Tensor,
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

    /// Stamp, frame and user bytes.
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
