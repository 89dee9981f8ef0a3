//! What comes with a message.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|input: &[u8]| -> Corpus {
    match rgaps_fuzz::parse(rgaps_fuzz::meta::PARSERS, input) {
        Some(_) => Corpus::Keep,
        None => Corpus::Reject,
    }
});
