//! The first bytes of a data connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_link::tcp::fuzz_hello(data));
