//! Feeds every input of the fuzzers' corpora to its parser, without a fuzzer, so that past findings stay fixed.

// A test program: a panic is a failed test.
#![allow(clippy::unwrap_used)]

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::fuzz::{Parsers, TARGETS, parse, parser};

/// Most positions at which an input is cut and changed.
const PLACES: usize = 48;

fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let files = files.map(|entry| entry.unwrap().path());
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Parses every input of a target unchanged, cut short, extended, and with a byte changed.
fn replay(target: &str) {
    let (_, parsers): (_, Parsers) = *TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    for (path, mut input) in inputs(target) {
        assert!(parse(parsers, &input).is_some(), "{}: its first byte names no parser", path.display());
        let step = input.len().div_ceil(PLACES).max(1);
        for at in (1..input.len()).step_by(step) {
            parse(parsers, &input[..at]);
            for flip in [0x01, 0x80, 0xff] {
                input[at] ^= flip;
                parse(parsers, &input);
                input[at] ^= flip;
            }
        }
        input.push(0xff);
        parse(parsers, &input);
    }
}

#[test]
fn input_from_other_hosts_is_parsed_or_refused() {
    replay("link");
}

#[test]
fn input_from_other_processes_is_parsed_or_refused() {
    replay("local");
}

#[test]
fn input_from_users_is_parsed_or_refused() {
    replay("text");
}

#[test]
fn untrusted_files_are_parsed_or_refused() {
    replay("files");
}

#[test]
fn data_beside_a_message_is_parsed_or_refused() {
    replay("meta");
}

#[test]
fn arbitrary_words_in_a_segment_are_survived() {
    replay("segment");
}

/// An input that was accepted when it was written may be of an old version now.
#[test]
fn every_parser_accepts_one_of_its_inputs() {
    for (target, parsers) in TARGETS {
        let inputs = inputs(target);
        let accepted: BTreeSet<u8> =
            inputs.iter().filter(|(_, input)| parse(parsers, input) == Some(true)).map(|(_, input)| input[0]).collect();
        let without: Vec<&str> = (b'a'..)
            .zip(parsers)
            .filter(|(letter, _)| !accepted.contains(letter))
            .map(|(_, (name, _))| *name)
            .collect();
        assert!(without.is_empty(), "no input of fuzz/corpus/{target} is accepted by {without:?}");
    }
}

#[test]
fn every_parser_has_inputs() {
    for (target, parsers) in TARGETS {
        let inputs = inputs(target);
        let letters: BTreeSet<u8> = inputs.iter().filter_map(|(_, input)| input.first().copied()).collect();
        let without: Vec<&str> =
            (b'a'..).zip(parsers).filter(|(letter, _)| !letters.contains(letter)).map(|(_, (name, _))| *name).collect();
        assert!(without.is_empty(), "no input of fuzz/corpus/{target} is for {without:?}");
        assert!(
            inputs.iter().all(|(_, input)| parser(parsers, input).is_some()),
            "an input of {target} is for no parser"
        );
    }
}
