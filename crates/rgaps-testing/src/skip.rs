//! Saying by name what cannot run here: `skipped: <test>: <why>`.

use std::io::Write;

/// Prints that the running test is skipped and why. Past libtest's capture, so that the line is seen when the test "passes".
pub fn skipped(why: impl std::fmt::Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed");
    // A test that cannot even write this line has nobody to tell.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
