//! Errors of the core as exceptions of `rgaps._errors`: the same text, with its numbers as attributes.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rgaps::device::DeviceError;
use rgaps::dynamic::Kind;
use rgaps::types::{MetaError, ViewError};
use rgaps::{
    LoanError, NoSpace, NodeError, PublishAllError, PublishError, Refusal, SessionError, TakeByHandleError, TakeError,
};

/// A number or name that an exception carries.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Text(&'a str),
}

/// Makes an exception of the package by its name. The text may quote other processes, so control characters are removed.
fn exception(class: &str, text: &str, carried: &[(&str, Value<'_>)]) -> PyErr {
    let text = &*rgaps::text::plain_lines(text);
    Python::attach(|py| {
        let made = || {
            let keywords = PyDict::new(py);
            for (name, value) in carried {
                match value {
                    Value::Number(number) => keywords.set_item(name, number)?,
                    Value::Text(text) => keywords.set_item(name, text)?,
                }
            }
            py.import("rgaps._errors")?.getattr(class)?.call((text,), Some(&keywords))
        };
        // If the package is damaged and its exceptions cannot be made, raise the text all the same.
        made().map_or_else(|_| PyRuntimeError::new_err(text.to_owned()), PyErr::from_value)
    })
}

/// A closed object was used.
pub(crate) fn closed(what: &str) -> PyErr {
    exception("ClosedError", &format!("the {what} is closed"), &[])
}

/// Whether it says that a closed object was used.
pub(crate) fn is_closed(py: Python<'_>, error: &PyErr) -> bool {
    let class = py.import("rgaps._errors").and_then(|errors| errors.getattr("ClosedError"));
    class.is_ok_and(|class| error.is_instance(py, &class))
}

/// A sample or loan was used after its end.
pub(crate) fn released(what: &str) -> PyErr {
    exception("ReleasedError", what, &[])
}

/// Wrong metadata, or an array that does not match it.
pub(crate) fn metadata(text: &str) -> PyErr {
    exception("MetadataError", text, &[])
}

/// The device cannot do what was requested.
pub(crate) fn device(text: &str) -> PyErr {
    exception("DeviceError", text, &[])
}

pub(crate) fn of_meta(error: &MetaError) -> PyErr {
    of_meta_in(error, &error.to_string(), &[])
}

fn of_meta_in(error: &MetaError, text: &str, context: &[(&str, Value<'_>)]) -> PyErr {
    let mut carried = context.to_vec();
    let class = match error {
        MetaError::Kind { wanted, found } => {
            carried.extend([("wanted", Value::Text(wanted)), ("found", Value::Text(found))]);
            "TypeMismatchError"
        }
        MetaError::PayloadLength { described, found, .. } => {
            carried.extend([("described", Value::Number(*described)), ("given", Value::Number(*found))]);
            "MetadataError"
        }
        MetaError::TextLength { found, limit, .. } | MetaError::TooMany { found, limit, .. } => {
            carried.extend([("found", Value::Number(*found as u64)), ("limit", Value::Number(*limit as u64))]);
            "MetadataError"
        }
        _ => "MetadataError",
    };
    exception(class, text, &carried)
}

pub(crate) fn of_view(error: &ViewError) -> PyErr {
    of_view_in(error, &error.to_string(), &[])
}

fn of_view_in(error: &ViewError, text: &str, context: &[(&str, Value<'_>)]) -> PyErr {
    match error {
        ViewError::Meta(source) => of_meta_in(source, text, context),
        _ => exception("MetadataError", text, context),
    }
}

fn of_device_in(error: &DeviceError, text: &str, context: &[(&str, Value<'_>)]) -> PyErr {
    let mut carried = context.to_vec();
    let class = match error {
        DeviceError::TimedOut(after) => {
            carried.push(("waited_ms", Value::Number(after.as_millis() as u64)));
            "DeviceTimeoutError"
        }
        DeviceError::OutOfMemory { bytes, free, total, .. } => {
            let numbers = [("wanted", *bytes), ("free", *free), ("capacity", *total)];
            carried.extend(numbers.map(|(name, number)| (name, Value::Number(number))));
            "NoSpaceError"
        }
        _ => "DeviceError",
    };
    exception(class, text, &carried)
}

pub(crate) fn of_device(error: &DeviceError) -> PyErr {
    of_device_in(error, &error.to_string(), &[])
}

pub(crate) fn of_node(error: &NodeError) -> PyErr {
    of_node_in(error, &error.to_string(), &[])
}

fn of_node_in(error: &NodeError, text: &str, context: &[(&str, Value<'_>)]) -> PyErr {
    let mut carried = context.to_vec();
    let class = match error {
        NodeError::Forked => "ForkedError",
        NodeError::Device(source) => return of_device_in(source, text, context),
        NodeError::Name(_) => "TopicNameError",
        NodeError::Session(SessionError::TimedOut { waited_ms, .. }) => {
            carried.push(("waited_ms", Value::Number(*waited_ms)));
            "NodeTimeoutError"
        }
        NodeError::Session(SessionError::Refused(Refusal::Type { topic, existing, wanted })) => {
            let names = [("topic", topic), ("found", existing), ("wanted", wanted)];
            carried.extend(names.map(|(name, text)| (name, Value::Text(text))));
            "TypeMismatchError"
        }
        _ => "NodeError",
    };
    exception(class, text, &carried)
}

fn of_loan(error: &LoanError, text: &str, topic: &str) -> PyErr {
    let mut carried = vec![("topic", Value::Text(topic))];
    let mut full = |numbers: &[(&'static str, u64)]| {
        carried.extend(numbers.iter().map(|(name, number)| (*name, Value::Number(*number))));
    };
    let class = match error {
        LoanError::Pool(pool) => {
            full(&[("wanted", pool.wanted), ("free", pool.free), ("capacity", pool.capacity)]);
            "NoSpaceError"
        }
        LoanError::TooLarge { wanted, capacity } => {
            full(&[("wanted", *wanted), ("capacity", *capacity)]);
            "NoSpaceError"
        }
        LoanError::Messages(count) => {
            full(&[("messages", u64::from(*count))]);
            "NoSpaceError"
        }
        LoanError::CutOff(_) => "CutOffError",
        LoanError::TimedOut { waited_ms, full: missing, keeper } => {
            full(&[("waited_ms", *waited_ms)]);
            if let Some(keeper) = keeper {
                full(&[("keeper_pid", u64::from(keeper.pid))]);
            }
            match missing {
                NoSpace::Pool(pool) => {
                    full(&[("wanted", pool.wanted), ("free", pool.free), ("capacity", pool.capacity)]);
                }
                NoSpace::Messages(count) => full(&[("messages", u64::from(*count))]),
            }
            "NoSpaceTimeoutError"
        }
    };
    exception(class, text, &carried)
}

pub(crate) fn of_publish(error: &PublishError) -> PyErr {
    of_publish_in(error, &error.to_string())
}

/// Also carries the place of the loan that failed.
pub(crate) fn of_publish_all<L>(error: &PublishAllError<L>) -> PyErr {
    of_loan_in_batch(of_publish_in(&error.source, &error.to_string()), error.index)
}

/// The same exception with the `index` of the loan in its batch. If it cannot be set, the text names it all the same.
pub(crate) fn of_loan_in_batch(made: PyErr, index: usize) -> PyErr {
    Python::attach(|py| drop(made.value(py).setattr("index", index)));
    made
}

fn of_publish_in(error: &PublishError, text: &str) -> PyErr {
    match error {
        PublishError::NoSpace { topic, source } => of_loan(source, text, topic),
        PublishError::Metadata { topic, source } => of_meta_in(source, text, &[("topic", Value::Text(topic))]),
        PublishError::View { topic, source } => of_view_in(source, text, &[("topic", Value::Text(topic))]),
        PublishError::Device { topic, source } => of_device_in(source, text, &[("topic", Value::Text(topic))]),
        PublishError::Memory { topic, source } => of_node_in(source, text, &[("topic", Value::Text(topic))]),
        PublishError::Length { topic, described, given } => {
            let numbers = [("described", Value::Number(*described)), ("given", Value::Number(*given))];
            exception("MetadataError", text, &[&[("topic", Value::Text(topic))], &numbers[..]].concat())
        }
        PublishError::Forked { topic } => exception("ForkedError", text, &[("topic", Value::Text(topic))]),
        PublishError::CutOff { topic } => exception("CutOffError", text, &[("topic", Value::Text(topic))]),
        PublishError::Topic { topic, .. }
        | PublishError::Block { topic, .. }
        | PublishError::AnotherPublisher { topic, .. }
        | PublishError::AnotherPool { topic } => exception("PublishError", text, &[("topic", Value::Text(topic))]),
    }
}

pub(crate) fn of_take(error: &TakeError) -> PyErr {
    let text = error.to_string();
    let message = |topic: &str, sequence: u64, class: &str| {
        exception(class, &text, &[("topic", Value::Text(topic)), ("sequence", Value::Number(sequence))])
    };
    match error {
        TakeError::Pool { topic, source, .. } => of_node_in(source, &text, &[("topic", Value::Text(topic))]),
        TakeError::Device { topic, source } => of_device_in(source, &text, &[("topic", Value::Text(topic))]),
        TakeError::Poisoned { topic, sequence } => message(topic, *sequence, "PoisonedError"),
        TakeError::OutOfBounds { topic, sequence, .. } => message(topic, *sequence, "TakeError"),
        TakeError::Metadata { topic, sequence, source } => {
            let context = [("topic", Value::Text(topic)), ("sequence", Value::Number(*sequence))];
            of_meta_in(source, &text, &context)
        }
        TakeError::View { topic, sequence, source } => {
            let context = [("topic", Value::Text(topic)), ("sequence", Value::Number(*sequence))];
            of_view_in(source, &text, &context)
        }
        TakeError::CutOff { topic } => exception("CutOffError", &text, &[("topic", Value::Text(topic))]),
        TakeError::TooManyHeld { topic, held } => {
            let held = Value::Number(u64::from(*held));
            exception("TooManyHeldError", &text, &[("topic", Value::Text(topic)), ("held", held)])
        }
        TakeError::Wait { topic, .. } => exception("TakeError", &text, &[("topic", Value::Text(topic))]),
        TakeError::Forked { topic } => exception("ForkedError", &text, &[("topic", Value::Text(topic))]),
    }
}

pub(crate) fn of_take_by_handle(error: &TakeByHandleError) -> PyErr {
    let text = error.to_string();
    let carried = |topic, numbers: &[(&'static str, u64)]| {
        let mut carried = vec![("topic", Value::Text(topic))];
        carried.extend(numbers.iter().map(|(name, number)| (*name, Value::Number(*number))));
        carried
    };
    let stale = |reason, topic, numbers| {
        let mut carried = carried(topic, numbers);
        carried.push(("reason", Value::Text(reason)));
        exception("StaleError", &text, &carried)
    };
    match error {
        TakeByHandleError::Layout { topic, found } => {
            exception("MetadataError", &text, &carried(topic, &[("found", u64::from(*found))]))
        }
        TakeByHandleError::Kind { topic, found, wanted } => {
            let found = Kind::from_code(*found).map_or("unknown", Kind::type_name);
            let names = [("topic", topic.as_str()), ("found", found), ("wanted", wanted.type_name())];
            exception("TypeMismatchError", &text, &names.map(|(name, text)| (name, Value::Text(text))))
        }
        TakeByHandleError::EarlierRun { topic, sequence, found, now } => {
            stale("earlier_run", topic, &[("sequence", *sequence), ("found", *found), ("now", *now)])
        }
        TakeByHandleError::Stale { topic, publisher, sequence, found, now } => {
            let (found, now) = (u64::from(*found), u64::from(*now));
            let numbers = [("publisher", *publisher), ("sequence", *sequence), ("found", found), ("now", now)];
            stale("stale", topic, &numbers)
        }
        TakeByHandleError::Early { topic, publisher, sequence } => {
            stale("early", topic, &[("publisher", *publisher), ("sequence", *sequence)])
        }
        TakeByHandleError::Gone { topic, publisher, sequence } => {
            stale("gone", topic, &[("publisher", *publisher), ("sequence", *sequence)])
        }
        TakeByHandleError::NotHere { topic, publisher, sequence, waited_ms } => {
            let waited = u64::try_from(*waited_ms).unwrap_or(u64::MAX);
            let numbers = [("publisher", *publisher), ("sequence", *sequence), ("waited_ms", waited)];
            exception("HandleTimeoutError", &text, &carried(topic, &numbers))
        }
        TakeByHandleError::Take(source) => of_take(source),
    }
}
