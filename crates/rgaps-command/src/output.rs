//! Output of commands: tables for people or JSON for programs, never both.

use std::io::{IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use rgaps_control::config::variable;
use rgaps_control::text::{plain, plain_json, plain_lines};
use serde::Serialize;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tables, and progress bars if standard error is a terminal.
    Human,
    /// One JSON document a line.
    Json,
}

impl Format {
    /// From the `--json` flag.
    pub fn from_json_flag(json: bool) -> Self {
        if json { Self::Json } else { Self::Human }
    }

    /// Whether a progress bar would be seen.
    pub fn shows_progress(self) -> bool {
        self == Self::Human && std::io::stderr().is_terminal()
    }
}

/// An empty table in the project's style.
pub fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header);
    table
}

/// Prints one or more lines to standard output, without control characters that act on a terminal. If the reader is gone (`rgaps ... | head`), the
/// command ends quietly.
pub fn line(text: impl std::fmt::Display) {
    if writeln!(std::io::stdout(), "{}", plain_lines(&text.to_string())).is_err() {
        std::process::exit(0);
    }
}

/// Prints a line to standard error in the same way. Ignores errors.
pub fn complain(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{}", plain_lines(&text.to_string()));
}

/// Starts logging events to standard error: those that RGAPS_LOG selects, else warnings. Each event is one line.
pub fn log() {
    let filter = variable("RGAPS_LOG").and_then(|_| EnvFilter::try_from_env("RGAPS_LOG").ok());
    let fields = format::debug_fn(|writer, field, value| match (field.name(), plain(&format!("{value:?}"))) {
        ("message", text) => write!(writer, "{text}"),
        (name, text) => write!(writer, "{name}={text}"),
    });
    let log = tracing_subscriber::fmt().with_env_filter(filter.unwrap_or_else(|| EnvFilter::new("warn")));
    let log = log.without_time().fmt_fields(fields.delimited(" ")).with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).log_internal_errors(false).init();
}

/// Prints a value as one line of JSON.
pub fn json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => line(plain_json(&text)),
        Err(error) => line(format_args!("{{\"error\":\"{error}\"}}")),
    }
}

/// Bytes for people, such as 6.22 MB; decimal units, like link rates.
pub fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let power = if count < 1000.0 { 0 } else { ((count.log10() / 3.0) as usize).min(UNITS.len() - 1) };
    let value = count / 1000_f64.powi(power as i32);
    if power == 0 { format!("{value:.0} B") } else { format!("{value:.2} {}", UNITS[power]) }
}

/// Messages a second for people, measured from the first message to the last: a single message has no rate.
pub fn rate(messages: u64, seconds: f64) -> String {
    if messages < 2 || seconds <= 0.0 { "-".to_owned() } else { format!("{:.1} Hz", (messages - 1) as f64 / seconds) }
}

/// A list for people.
pub fn list(parts: &[String]) -> String {
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// Microseconds for people.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(bytes(6_220_800.0), "6.22 MB");
        assert_eq!(bytes(2.5e15), "2500.00 TB");
        assert_eq!((rate(1, 1e-9), rate(2, 0.0), rate(3, 0.1)), ("-".to_owned(), "-".to_owned(), "20.0 Hz".to_owned()));
        assert_eq!((list(&[]), list(&["tcp".to_owned(), "rdma".to_owned()])), ("-".to_owned(), "tcp, rdma".to_owned()));
        assert_eq!(micros(12.34), "12.3 us");
        assert_eq!(micros(1234.0), "1.23 ms");
    }
}
