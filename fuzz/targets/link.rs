//! What another host sends.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|input: &[u8]| -> Corpus {
    match rgaps_fuzz::parse(rgaps_fuzz::link::PARSERS, input) {
        Some(_) => Corpus::Keep,
        None => Corpus::Reject,
    }
});
