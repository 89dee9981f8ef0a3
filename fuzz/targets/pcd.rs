//! A point cloud in a PCD file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_cli::media::pcd::fuzz_pcd(data));
