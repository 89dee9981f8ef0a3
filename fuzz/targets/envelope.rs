//! What travels with a message between hosts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_manager::envelope::fuzz_envelope(data));
