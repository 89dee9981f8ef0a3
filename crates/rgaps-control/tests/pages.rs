//! The documentation and the launch files agree with the configuration that the code reads.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rgaps_control::limits::is_bytes;
use rgaps_control::{Config, Given, size};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_setting_of_the_launch_files_is_accepted() {
    let keys = toml::Table::try_from(Config::default()).unwrap();
    let mut settings = BTreeSet::new();
    for file in fs::read_dir(root().join("launch")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        // Settings are quoted: key=value, or key={an argument's value}. (Function arguments have no quotes, and options do not start with a letter.)
        for quoted in text.split(['\'', '"']) {
            let Some((key, value)) = quoted.split_once('=') else { continue };
            let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if is_key && !value.starts_with(['=', ' ']) && !value.contains(['\n', ',']) {
                settings.insert((key.to_owned(), value.to_owned()));
            }
        }
    }
    let given: Vec<_> = settings.iter().filter(|(_, value)| !value.contains('{')).collect();
    assert!(given.len() >= 3 && settings.len() > given.len(), "the launch files set {settings:?}");
    for (key, value) in &settings {
        assert!(keys.contains_key(key), "{key}={value}: there is no such key");
    }
    for (key, value) in given {
        let flags = BTreeMap::from([(key.clone(), value.clone())]);
        Given::from_sources(None, &BTreeMap::new(), &flags).unwrap();
    }
}

/// The keys with the text of their comments, in the order of the code.
fn documented_keys() -> Vec<(String, String)> {
    let structs = [("config.rs", "Config"), ("limits.rs", "Limits")];
    structs.into_iter().flat_map(|(file, name)| keys_of(file, name)).collect()
}

fn keys_of(file: &str, name: &str) -> Vec<(String, String)> {
    let code = fs::read_to_string(root().join("crates/rgaps-control/src").join(file)).unwrap();
    let (_, fields) = code.split_once(&format!("pub struct {name} {{")).unwrap();
    let (fields, _) = fields.split_once("\n}").unwrap();
    let fields = fields.split("    #[serde(flatten)]").next().unwrap();
    let mut keys = Vec::new();
    let mut meaning = Vec::new();
    for line in fields.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("/// ") {
            Some(text) => meaning.push(text),
            None => {
                let key = line.strip_prefix("pub ").unwrap().split_once(':').unwrap().0;
                keys.push((key.to_owned(), meaning.join(" ")));
                meaning.clear();
            }
        }
    }
    keys
}

fn shown(key: &str, default: &toml::Value) -> String {
    match default {
        toml::Value::Integer(bytes) if is_bytes(key) => size::in_words(u64::try_from(*bytes).unwrap()),
        toml::Value::String(text) if text.is_empty() => "empty".to_owned(),
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(list) if list.is_empty() => "empty".to_owned(),
        value => value.to_string(),
    }
}

#[test]
fn the_page_lists_every_key_with_its_default_its_variable_and_its_meaning() {
    let mut defaults = toml::Table::try_from(Config::default()).unwrap();
    let mut rows = vec!["| Key | Default | Variable | Meaning |".to_owned(), "|---|---|---|---|".to_owned()];
    for (key, meaning) in documented_keys() {
        let default = shown(&key, &defaults.remove(&key).unwrap());
        rows.push(format!("| `{key}` | {default} | `RGAPS_{}` | {meaning} |", key.to_ascii_uppercase()));
    }
    assert!(defaults.is_empty(), "keys that the struct's text does not have: {defaults:?}");
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let (_, section) = page.split_once("## Keys\n\n").unwrap();
    let (listed, _) = section.split_once("\n\n").unwrap();
    assert_eq!(listed, rows.join("\n"), "docs/configuration.md should have this instead:\n{}\n", rows.join("\n"));
}
