//! The parsers of what another host, another process, a person or a file gives, by fuzz target. The first byte of an input says which parser has the
//! rest: `a` the first of its target, `b` the second.
//!
//! A parser that other crates can call is called here, with what must hold of its result. One that they cannot has its `fuzz_NAME` beside it.

pub mod files;
pub mod link;
pub mod local;
pub mod meta;
pub mod segment;
pub mod text;

/// Parses bytes, and panics if the result is not as it must be. False if it refused them.
pub type Parser = fn(&[u8]) -> bool;
/// Parsers by their names. A new one comes last, since the corpora have the letters.
pub type Parsers = &'static [(&'static str, Parser)];

/// All targets.
pub const TARGETS: [(&str, Parsers); 6] = [
    ("link", link::PARSERS),
    ("local", local::PARSERS),
    ("text", text::PARSERS),
    ("files", files::PARSERS),
    ("meta", meta::PARSERS),
    ("segment", segment::PARSERS),
];

/// The parser that an input of a target is for, and what it is to parse.
pub fn parser(parsers: Parsers, input: &[u8]) -> Option<(Parser, &[u8])> {
    let (letter, rest) = input.split_first()?;
    let (_, parse) = parsers.get(usize::from(letter.checked_sub(b'a')?))?;
    Some((*parse, rest))
}

/// Gives an input to its parser. `None` if it is for none; false if the parser refused it.
pub fn parse(parsers: Parsers, input: &[u8]) -> Option<bool> {
    parser(parsers, input).map(|(parse, rest)| parse(rest))
}

/// Text that strangers wrote can be shown once it is read.
fn assert_plain(shown: &str) {
    assert_eq!(rgaps_control::text::plain(shown), shown);
}

/// As `assert_plain`, for each string of a message.
fn assert_all_plain(message: &serde_json::Value) {
    match message {
        serde_json::Value::String(text) => assert_plain(text),
        serde_json::Value::Array(items) => items.iter().for_each(assert_all_plain),
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            assert_plain(name);
            assert_all_plain(value);
        }),
        _ => {}
    }
}
