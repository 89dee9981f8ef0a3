//! Where the warnings of this crate go in programs that have no subscriber of the crate `tracing`: C, C++, Python, and plug-ins of ROS.

use std::fmt::Write as _;
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::text::plain;

/// Another log, for `forward_to`.
pub trait Log: Send + Sync + 'static {
    /// Whether it takes lines of this level now.
    fn takes(&self, level: Level) -> bool;

    /// Writes a line, which has neither control characters nor line ends.
    fn write(&self, level: Level, line: &str);

    /// The most detailed level that it ever takes.
    fn most_detailed(&self) -> LevelFilter {
        LevelFilter::TRACE
    }
}

/// Writes what RGAPS logs in this process to another log. False if the program has a subscriber of `tracing` already, which then keeps it.
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use tracing::Level;
///
/// struct Lines(Sender<String>);
///
/// impl rgaps::log::Log for Lines {
///     fn takes(&self, level: Level) -> bool {
///         level <= Level::WARN // an error is less than a warning
///     }
///
///     fn write(&self, _: Level, line: &str) {
///         let _ = self.0.send(line.to_owned());
///     }
/// }
///
/// let (lines, written) = channel();
/// assert!(rgaps::log::forward_to(Lines(lines)));
/// tracing::warn!(topic = "/raw", "a depth is granted in part");
/// tracing::info!("a detail");
/// assert_eq!(written.try_iter().collect::<Vec<_>>(), ["a depth is granted in part topic=\"/raw\""]);
/// assert!(!rgaps::log::to_standard_error());
/// ```
pub fn forward_to(log: impl Log) -> bool {
    tracing::subscriber::set_global_default(Forwarder(log)).is_ok()
}

/// Writes warnings and errors of RGAPS to standard error; RGAPS_LOG names another level, of `off`, `error`, `warn`, `info`, `debug` and `trace`.
/// False if the program has a subscriber of `tracing` already, which then keeps them.
pub fn to_standard_error() -> bool {
    let text = std::env::var("RGAPS_LOG").unwrap_or_default();
    // The managers of a launch take filters, as `warn,rgaps_manager=info`.
    let level = text.split(',').filter(|part| !part.is_empty()).find_map(|part| part.parse().ok());
    let is_ours = forward_to(StandardError(level.unwrap_or(LevelFilter::WARN)));
    if is_ours && level.is_none() && !text.is_empty() {
        tracing::warn!(
            "RGAPS_LOG is {text:?}; it must have a level: off, error, warn, info, debug or trace; warn is taken"
        );
    }
    is_ours
}

struct StandardError(LevelFilter);

impl Log for StandardError {
    fn takes(&self, level: Level) -> bool {
        level <= self.0
    }

    fn write(&self, level: Level, line: &str) {
        // There is nobody to tell if this fails.
        let _ = writeln!(std::io::stderr().lock(), "{level:>5} rgaps: {line}");
    }

    fn most_detailed(&self) -> LevelFilter {
        self.0
    }
}

struct Forwarder<L>(L);

impl<L: Log> Subscriber for Forwarder<L> {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.0.takes(*metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.most_detailed())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.write(*event.metadata().level(), &format!("{}{}", line.message, line.fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        let text = plain(&text);
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{text}"),
            name => write!(self.fields, " {name}={text}"),
        };
    }
}
