//! A record's header, as it comes from another host.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_link::record::fuzz_record(data));
