//! Reports tests that cannot run here: `skipped: <test>: <why>`.

use std::io::Write;

/// Names a file that `./dev test` reads at the end, to list the skipped tests again. (Variables that begin with RGAPS_ are configuration.)
pub const LIST_VARIABLE: &str = "SKIPPED_TESTS_LIST";

/// Prints that the running test is skipped and why. It bypasses libtest's capture, so that the line is visible when the test "passes".
pub fn skipped(why: impl std::fmt::Display) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}\n", thread.name().unwrap_or("unnamed"));
    // If even this write fails, there is no one left to report to.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = std::env::var_os(LIST_VARIABLE) {
        // One write to a file opened for appending: lines of tests that run at the same time do not mix.
        let list = std::fs::OpenOptions::new().append(true).open(list);
        let _ = list.and_then(|mut list| list.write_all(line.as_bytes()));
    }
}
