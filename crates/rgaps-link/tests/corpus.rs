//! Replays the corpus of every parser, so that what a fuzzer once found stays found.

use std::fs;
use std::path::Path;

use rgaps_link::assemble::fuzz_assemble;
use rgaps_link::credit::fuzz_credit;
use rgaps_link::record::fuzz_record;
use rgaps_link::tcp::fuzz_hello;

/// Runs every file of a corpus, each also cut short, extended and with every byte changed once. An empty corpus fails.
fn replay(name: &str, fuzz: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files = 0;
    for entry in fs::read_dir(&directory).expect("the corpus is there") {
        let mut data = fs::read(entry.expect("a file").path()).expect("it can be read");
        files += 1;
        for end in 0..=data.len() {
            fuzz(&data[..end]);
        }
        for i in 0..data.len() {
            for flip in [0x01, 0x80, 0xff] {
                data[i] ^= flip;
                fuzz(&data);
                data[i] ^= flip;
            }
        }
        data.push(0xff);
        fuzz(&data);
    }
    assert!(files > 0, "{} is empty", directory.display());
}

#[test]
fn records_of_the_corpus_are_parsed_or_refused() {
    replay("record", fuzz_record);
}

#[test]
fn credits_of_the_corpus_are_taken_or_refused() {
    replay("credit", fuzz_credit);
}

#[test]
fn hellos_of_the_corpus_are_parsed_or_refused() {
    replay("hello", fuzz_hello);
}

#[test]
fn streams_of_the_corpus_are_assembled_or_refused() {
    replay("assemble", fuzz_assemble);
}
