//! Several hosts, each a network namespace with its own manager, running the real programs.
//!
//! `cargo build -p rgaps-cli -p rgaps-manager` puts the programs beside the test's folder. Each host has its own runtime directory and knows the
//! others by address (no multicast, except in `range.rs` and `routers.rs`). Tests wait for visible states: a line of a program's output,
//! `rgaps topic info --json`, the end of a process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_networks;
mod buffers;
mod client;
mod clouds;
mod containers;
mod cuts;
mod deaths;
mod events;
mod fanout;
mod idle;
mod large;
mod mismatches;
mod qos;
mod range;
mod rdma;
mod readiness;
mod routers;
mod world;
