//! Saying by name what cannot run here: `skipped: <test>: <why>`.

use std::io::Write;

/// A file that `./dev test` reads at the end, to name once more what was skipped. (Variables that begin with RGAPS_ are configuration.)
pub const LIST_VARIABLE: &str = "SKIPPED_TESTS_LIST";

/// Prints that the running test is skipped and why. Past libtest's capture, so that the line is seen when the test "passes".
pub fn skipped(why: impl std::fmt::Display) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}\n", thread.name().unwrap_or("unnamed"));
    // A test that cannot even write this line has nobody to tell.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = std::env::var_os(LIST_VARIABLE) {
        // One write to a file opened for appending: lines of tests that run at the same time do not mix.
        let list = std::fs::OpenOptions::new().append(true).open(list);
        let _ = list.and_then(|mut list| list.write_all(line.as_bytes()));
    }
}
