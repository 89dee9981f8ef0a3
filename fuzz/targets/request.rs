//! A request of a client on the local socket.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_control::local::fuzz_request(data));
