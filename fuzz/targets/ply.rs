//! A point cloud in a PLY file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_cli::media::ply::fuzz_ply(data));
