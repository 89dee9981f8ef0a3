//! The host manager: what runs as `rgapsd`, one a host.
//!
//! `manager` is its one thread of decisions: clients, topics, other hosts. It owns the three parts of the paper as modules:
//! `device_memory` makes pools and hands them out, `publish` decides which hosts get a topic and runs a `sender` for each (paths 1 and
//! 2), `subscribe` offers rings to hosts that publish and runs an `arrival` for each (path 3). `successor` takes topics over from a
//! manager that died, as `adoption` decides. `inbox` holds what the network says until the manager has time for it, `others` does what follows, and
//! `answers` takes answers to zenoh. `log` is what `rgapsd` writes. `budgets` bounds what others may use up: `arrived` the memory for what comes, `links` their number, `callers` who has not said
//! hello, `shares` what one client may have. Workers are threads of their own; they talk to the manager through `event`, and share nothing but the budgets.

#![forbid(unsafe_code)]

mod addresses;
mod adoption;
mod answers;
mod arrival;
mod arrived;
mod budgets;
mod callers;
mod clients;
pub mod daemon;
mod deferred;
mod departures;
mod device_memory;
pub mod envelope;
mod event;
mod inbox;
mod links;
pub mod log;
mod manager;
mod notices;
mod others;
mod outbox;
#[cfg(test)]
mod pair;
mod premises;
mod publish;
mod received;
mod requests;
mod sender;
mod shares;
mod staging;
mod subscribe;
mod successor;
mod topics;
mod verbs;

pub use addresses::fuzz_addresses;
pub use sender::fuzz_answer;
