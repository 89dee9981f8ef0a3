//! A subscriber's side of a topic.
//!
//! `port` takes the next message. `by_name` takes a message by its name, with what `seen_publishers` remembers of its publisher. `lost` counts what it is too late for. `held` is a message
//! that is being read, and `put_back` keeps messages that were taken and returned. `past` finds the messages that history keeps, `peek` reads
//! messages without holding them, and `ready_count` counts the messages that could be taken.

mod by_name;
pub mod held;
mod lost;
pub(crate) mod past;
pub(crate) mod peek;
pub mod port;
mod put_back;
pub mod ready_count;
pub mod seen_publishers;
