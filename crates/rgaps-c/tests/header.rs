//! rgaps.h is what cbindgen generates from the library.

// In a test program every failure is a failed test.
#![allow(clippy::unwrap_used)]

use std::path::Path;

/// The header that cbindgen generates from the crate.
fn made() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_header_is_what_cbindgen_generates() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/rgaps.h");
    let made = made();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "include/rgaps.h is out of date: run UPDATE=1 cargo test -p rgaps-c --test header");
}
