//! Credit, as it comes from another host, against any state of the ring.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_link::credit::fuzz_credit(data));
