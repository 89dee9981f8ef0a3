//! What a person writes, in a configuration, a variable or a name, and what the kernel lists.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use rgaps::dynamic::Kind;
use rgaps::types::Encoding;
use rgaps_control::config::fuzz_config;
use rgaps_control::names::check_type;
use rgaps_control::network::fuzz_zenoh_config;
use rgaps_control::reach::Network;
use rgaps_control::{HostId, TopicKey, size, text};
use rgaps_device::Choice;
use rgaps_manager::fuzz_addresses;

use super::{Parsers, assert_plain};

/// The parsers.
pub const PARSERS: Parsers =
    &[("word", word), ("config", fuzz_config), ("zenoh_config", fuzz_zenoh_config), ("addresses", fuzz_addresses)];

/// One word: as a name, an identity, a size, a network, a device, a kind and an encoding. What is taken is read as the same once it is written.
fn word(data: &[u8]) -> bool {
    let Ok(word) = str::from_utf8(data) else { return false };
    match TopicKey::new(7, word) {
        Ok(key) => {
            assert_eq!(TopicKey::new(7, key.name()).as_ref(), Ok(&key));
            let written = serde_json::to_vec(&key).unwrap_or_default();
            assert_eq!(serde_json::from_slice::<TopicKey>(&written).ok(), Some(key.clone()));
            assert_plain(&key.to_string());
        }
        Err(error) => assert_plain(&error.to_string()),
    }
    match check_type(word) {
        Ok(()) => assert_plain(word),
        Err(error) => assert_plain(&error.to_string()),
    }
    survives::<HostId>(word);
    survives::<Choice>(word);
    survives::<Kind>(word);
    survives::<Encoding>(word);
    if let Some(bytes) = size::parse(word) {
        assert_eq!(size::parse(&size::in_words(bytes)), Some(bytes));
    }
    if let (Ok(network), Some(address)) = (word.parse::<Network>(), word.split('/').next()) {
        assert!(address.parse().is_ok_and(|address| network.contains(address)), "{word} is not in itself");
    }
    let shown = text::plain(word);
    assert_eq!(text::plain(&shown), shown);
    assert!(!text::plain_lines(word).chars().any(|c| c.is_control() && c != '\n'));
    let json = serde_json::to_string(word).unwrap_or_default();
    assert_eq!(serde_json::from_str::<String>(&text::plain_json(&json)).ok().as_deref(), Some(word));
    true
}

fn survives<T: FromStr + Display + PartialEq + Debug>(word: &str) {
    if let Ok(value) = word.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok(), Some(value));
    }
}
