//! An array in an NPY file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_cli::media::npy::fuzz_npy(data));
