//! What pages and launch files say of the configuration is what the code takes.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rgaps_control::Given;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_setting_of_the_launch_files_is_accepted() {
    let mut settings = Vec::new();
    for file in fs::read_dir(root().join("launch")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let quoted = text.split("'--set', '").skip(1).map(|rest| rest.split_once('\'').unwrap().0.to_owned());
        settings.extend(quoted);
    }
    assert!(settings.len() >= 2, "the launch files set {settings:?}");
    for setting in settings {
        let (key, value) = setting.split_once('=').unwrap();
        let flags = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Given::from_sources(None, &BTreeMap::new(), &flags).unwrap();
    }
}
