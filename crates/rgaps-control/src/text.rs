//! Text of others: whatever another process or host says is shown on terminals and in logs, and must not act there.
//!
//! A terminal obeys control characters, a log has a line for each newline, and characters that turn the direction of text make it read as what it
//! is not. So text is *plain* before anything else is done with it: each character that cannot be printed is written as its escape, `\u{1b}`.
//!
//! Invariants  `from_json` reads every message of the local protocol and of other hosts, and makes every string in it plain: whoever shows one
//!             later cannot forget it. What has a grammar (topics, types: `names`) is refused by it afterwards, since no grammar has a `\`.
//!             Plain text stays as it is when it is made plain again: backslashes and quotes are not escaped.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Text that can be shown: control characters, newlines, and what turns the direction of text are written as escapes.
pub fn plain(text: &str) -> Cow<'_, str> {
    match text.chars().all(is_plain) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(escaped(text, is_plain)),
    }
}

/// As `plain`, for text of our own that has lines.
pub fn plain_lines(text: &str) -> Cow<'_, str> {
    let keeps = |c: char| c == '\n' || is_plain(c);
    match text.chars().all(keeps) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(escaped(text, keeps)),
    }
}

/// JSON that can be shown: serde_json escapes what ends a string and control characters below 0x20 only.
pub fn plain_json(json: &str) -> Cow<'_, str> {
    if json.chars().all(is_plain) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match is_plain(c) {
            true => shown.push(c),
            // Outside of strings JSON has ASCII only, so this is inside of one.
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown += &format!("\\u{unit:04x}")),
        }
    }
    Cow::Owned(shown)
}

/// Reads a message of another process or host; every string in it is plain.
pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let mut value: Value = serde_json::from_slice(bytes)?;
    make_plain(&mut value);
    serde_json::from_value(value)
}

fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = plain(text) {
                *text = shown;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_plain),
        Value::Object(map) => {
            // Names too: an error says which one is unknown.
            if map.keys().any(|name| !name.chars().all(is_plain)) {
                *map =
                    std::mem::take(map).into_iter().map(|(name, value)| (plain(&name).into_owned(), value)).collect();
            }
            map.values_mut().for_each(make_plain);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a character can be printed and acts on nothing.
fn is_plain(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // The lines of tables, of which a page has more than of all else.
    if matches!(c, '\u{2500}'..='\u{257f}') {
        return true;
    }
    // `str::escape_debug` knows what is printable, and keeps a mark that combines with the letter before it.
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
    fn what_acts_on_a_terminal_is_escaped_and_what_can_be_read_stays() {
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
    fn json_that_is_shown_is_the_same_json_without_characters_that_act() {
        let value = serde_json::json!({ "a\u{202e}": "\x1b\u{7f}\u{9b}\u{e0001}ä" });
        let shown = plain_json(&value.to_string()).into_owned();
        assert!(shown.chars().all(is_plain) && shown.contains('ä'), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
    }

    #[test]
    fn every_string_of_a_message_is_plain_once_it_is_read() {
        let read: Value =
            from_json(br#"{"a\nb":["\u001b",{"c":"\u202e","n":18446744073709551615}],"d":null}"#).unwrap();
        let wanted = serde_json::json!({ r"a\nb": [r"\u{1b}", { "c": r"\u{202e}", "n": u64::MAX }], "d": null });
        assert_eq!(read, wanted);
        let error = from_json::<crate::local::Request>(b"{\"id\":1,\"body\":\"\\u001b[31m\"}").unwrap_err().to_string();
        assert!(error.contains(r"\u{1b}[31m"), "{error}");
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
