//! A row of records that another host sends in any order.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rgaps_link::assemble::fuzz_assemble(data));
