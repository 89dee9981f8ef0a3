//! What a person writes, and what the kernel lists.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|input: &[u8]| -> Corpus {
    match rgaps_fuzz::parse(rgaps_fuzz::text::PARSERS, input) {
        Some(_) => Corpus::Keep,
        None => Corpus::Reject,
    }
});
