//! The host manager, which runs as `rgapsd`, one per host.
//!
//! `manager` is the one thread that decides about clients, topics and other hosts. It owns the three parts of the thesis (Jiang 2026, sections 3.1
//! and 3.2; full title in rgaps-link) as modules: `device_memory` makes pools and hands them out. `publish` decides which hosts get a topic and runs
//! a `sender` for each (paths 1 and 2). `subscribe` offers rings to publishing hosts and runs an `arrival` for each (path 3).
//!
//! `successor` takes topics over from a manager that died; `adoption` decides how. `network_inbox` queues events of the network, `remote_hosts` handles
//! them, and `answers` sends replies through zenoh. `log` is the log of `rgapsd`. `budgets` bounds what others may use up: `arrival_budget` the memory of
//! arriving messages, `links` the number of links, `pending_connections` connections that have not identified themselves, `client_budgets` the
//! resources of one client. Workers are threads. They report to the manager through `event`, and share only the budgets.

#![forbid(unsafe_code)]

mod addresses;
mod adoption;
mod answers;
mod arrival;
mod arrival_budget;
mod budgets;
mod client_budgets;
mod clients;
pub mod daemon;
mod deferred;
mod departures;
mod device_access;
mod device_memory;
mod dispatch;
pub mod envelope;
mod error;
mod event;
mod inbound;
mod links;
pub mod log;
mod manager;
mod network_inbox;
mod notices;
mod offered_ring;
mod outbound;
mod outbox;
#[cfg(test)]
mod pair;
mod pending_connections;
mod publish;
mod rdma_devices;
mod received;
mod refusals;
mod remote_hosts;
mod removed_files;
mod requests;
mod runtime_files;
mod sender;
mod sent;
mod skipped;
mod staging;
mod state;
mod subscribe;
mod successor;
mod topics;
mod without_pool;

pub use addresses::fuzz_addresses;
pub use offered_ring::fuzz_answer;
