//! Text from other processes and hosts: it is shown on terminals and in logs, and must have no effect there.
//!
//! A terminal obeys control characters, a newline forges a line of a log, and bidirectional characters make text read differently. So text is made
//! *plain* as it is read: each character that cannot be printed becomes its escape, `\u{1b}`.
//!
//! Invariants  `from_json` reads every message of the local protocol and of other hosts, and makes every string in it plain, so no later code can
//!             forget to. Names with a grammar (topics, types: `names`) are then refused if anything was escaped, since no grammar has a `\`.
//!             Making plain text plain again changes nothing: backslashes and quotes are not escaped.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Bytes of a text in a hand-shake, at most: names of topics and types are shorter, and so are the sentences that RGAPS writes.
const SHOWN_BYTES_MAX: usize = 1024;

/// Makes text safe to show: writes control characters, newlines and bidirectional characters as escapes.
pub fn plain(text: &str) -> Cow<'_, str> {
    match text.chars().all(is_plain) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(escaped(text, is_plain)),
    }
}

/// Like `plain`, but keeps newlines, for text of our own.
pub fn plain_lines(text: &str) -> Cow<'_, str> {
    let keeps = |c: char| c == '\n' || is_plain(c);
    match text.chars().all(keeps) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(escaped(text, keeps)),
    }
}

/// Makes JSON safe to show: serde_json escapes only quotes, backslashes and control characters below 0x20.
pub fn plain_json(json: &str) -> Cow<'_, str> {
    if json.chars().all(is_plain) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match is_plain(c) {
            true => shown.push(c),
            // JSON is ASCII outside of strings, so this character is inside one.
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown += &format!("\\u{unit:04x}")),
        }
    }
    Cow::Owned(shown)
}

/// Reads a message of another process or host, and makes every string in it plain.
pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let mut value: Value = serde_json::from_slice(bytes)?;
    make_plain(&mut value, usize::MAX);
    serde_json::from_value(value)
}

/// Like `from_json`, for another host, whose texts are kept and shown: cuts strings, and the error, to `SHOWN_BYTES_MAX`.
pub fn from_json_of_host<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let read = || {
        let mut value: Value = serde_json::from_slice(bytes)?;
        make_plain(&mut value, SHOWN_BYTES_MAX);
        serde_json::from_value(value)
    };
    read().map_err(|error: serde_json::Error| cut(error.to_string(), SHOWN_BYTES_MAX))
}

/// Cuts a text to at most `bytes_max` bytes.
pub fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max.saturating_sub("...".len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text += "...";
    }
    text
}

fn make_plain(value: &mut Value, bytes_max: usize) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = plain(text) {
                *text = shown;
            }
            if text.len() > bytes_max {
                *text = cut(std::mem::take(text), bytes_max);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| make_plain(value, bytes_max)),
        Value::Object(map) => {
            // Names of fields too: an error quotes an unknown one.
            if map.keys().any(|name| !name.chars().all(is_plain)) {
                *map =
                    std::mem::take(map).into_iter().map(|(name, value)| (plain(&name).into_owned(), value)).collect();
            }
            map.values_mut().for_each(|value| make_plain(value, bytes_max));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a character is printable and has no effect on a terminal.
fn is_plain(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // A shortcut for the lines of tables, the most frequent non-ASCII characters of our output.
    if matches!(c, '\u{2500}'..='\u{257f}') {
        return true;
    }
    // `str::escape_debug` knows what is printable, and keeps a combining mark after a letter.
    let mut text = [b'a', 0, 0, 0, 0];
    let bytes = c.encode_utf8(&mut text[1..]).len();
    str::from_utf8(&text[..=bytes]).is_ok_and(|text| text.escape_debug().nth(1) == Some(c))
}

fn escaped(text: &str, keeps: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if keeps(c) { shown.push(c) } else { shown.extend(c.escape_debug()) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn characters_that_affect_a_terminal_are_escaped_and_readable_ones_stay() {
        assert_eq!(plain("a\x1b[2J\r\n\t\x07\u{7f}\u{9b}"), r"a\u{1b}[2J\r\n\t\u{7}\u{7f}\u{9b}");
        for c in
            ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}').chain("\u{2028}\u{2029}\u{200e}\u{feff}".chars())
        {
            assert_eq!(plain(&format!("a{c}b")), format!("a\\u{{{:x}}}b", u32::from(c)));
        }
        for text in ["Rückfahrkamera №5 “links”", "カメラ", "e\u{301}", r#"it's a "name" \n"#, "🤖"] {
            assert!(matches!(plain(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        assert_eq!(plain_lines("a\nb\x1b"), "a\nb\\u{1b}");
    }

    #[test]
    fn plain_json_is_the_same_json_without_characters_that_affect_a_terminal() {
        let value = serde_json::json!({ "a\u{202e}": "\x1b\u{7f}\u{9b}\u{e0001}ä" });
        let shown = plain_json(&value.to_string()).into_owned();
        assert!(shown.chars().all(is_plain) && shown.contains('ä'), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
    }

    #[test]
    fn reading_a_message_makes_every_string_in_it_plain() {
        let read: Value =
            from_json(br#"{"a\nb":["\u001b",{"c":"\u202e","n":18446744073709551615}],"d":null}"#).unwrap();
        let wanted = serde_json::json!({ r"a\nb": [r"\u{1b}", { "c": r"\u{202e}", "n": u64::MAX }], "d": null });
        assert_eq!(read, wanted);
        let error = from_json::<crate::local::Request>(b"{\"id\":1,\"body\":\"\\u001b[31m\"}").unwrap_err().to_string();
        assert!(error.contains(r"\u{1b}[31m"), "{error}");
    }

    #[test]
    fn texts_of_another_host_are_cut_to_a_readable_length() {
        let long = serde_json::json!({ "a": "\u{202e}".repeat(20_000), "b": ["é".repeat(600)], "c": "short" });
        let read: Value = from_json_of_host(long.to_string().as_bytes()).unwrap();
        let texts = [&read["a"], &read["b"][0]].map(|text| text.as_str().unwrap());
        assert!(texts.iter().all(|text| text.len() <= SHOWN_BYTES_MAX && text.ends_with("...")), "{texts:?}");
        assert_eq!(read["c"], "short");
        let error = from_json_of_host::<crate::local::Role>(format!("\"{}\"", "x".repeat(50_000)).as_bytes());
        assert!(error.unwrap_err().len() <= SHOWN_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn plain_text_stays_as_it_is(text in any::<String>()) {
            let once = plain(&text).into_owned();
            prop_assert!(!once.chars().any(char::is_control));
            prop_assert_eq!(plain(&once), once.as_str());
        }
    }
}
