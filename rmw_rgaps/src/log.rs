//! Writes what the core logs to the log of rcutils.

use rgaps::log::Log;
use tracing::Level;

use crate::rcutils::{self, Severity};

/// Starts logging. A program's own tracing subscriber is not affected: this library has its own copy of the core and of tracing.
pub(crate) fn start() {
    // False if an earlier context has started it.
    let _ = rgaps::log::forward_to(ToRcutils);
}

struct ToRcutils;

impl Log for ToRcutils {
    fn takes(&self, level: Level) -> bool {
        rcutils::is_enabled(severity(level))
    }

    fn write(&self, level: Level, line: &str) {
        rcutils::log(severity(level), format_args!("{line}"));
    }
}

fn severity(level: Level) -> Severity {
    match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        _ => Severity::Debug,
    }
}
