//! Writes the core's tracing events to the log of rcutils.

use std::fmt::Write;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::rcutils::{self, Severity};

/// Starts logging. A program's own tracing subscriber is not affected: this library has its own copy of the core and of tracing.
pub(crate) fn start() {
    // Fails if an earlier context has set it.
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
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{text}"),
            name => write!(self.fields, " {name}={text}"),
        };
    }
}
