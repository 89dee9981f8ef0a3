//! Files that somebody else has made.

use rgaps_media::npy::fuzz_npy;
use rgaps_media::pcd::fuzz_pcd;
use rgaps_media::picture::fuzz_picture;
use rgaps_media::ply::fuzz_ply;

use super::Parsers;

/// The parsers.
pub const PARSERS: Parsers = &[("pcd", fuzz_pcd), ("ply", fuzz_ply), ("npy", fuzz_npy), ("picture", fuzz_picture)];
