//! The core's events in the log of rcutils.

use std::fmt::Write;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::rcutils::{self, Severity};

/// From now on. Programs' own subscribers see nothing of it: this library has the core, and tracing, to itself.
pub(crate) fn start() {
    // Set before by an earlier context.
    let _ = tracing::subscriber::set_global_default(ToRcutils);
}

struct ToRcutils;

impl Subscriber for ToRcutils {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && rcutils::is_enabled(severity(metadata.level()))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        rcutils::log(severity(event.metadata().level()), format_args!("{}{}", line.message, line.fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn severity(level: &Level) -> Severity {
    match *level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        _ => Severity::Debug,
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        let text = rgaps::text::plain(&text);
        // A String takes everything.
        let _ = match field.name() {
            "message" => write!(self.message, "{text}"),
            name => write!(self.fields, " {name}={text}"),
        };
    }
}
