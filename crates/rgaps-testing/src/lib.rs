//! Helpers for tests and the demo: several hosts on one machine, processes that die at named steps, and clean-up of everything.
//!
//! `again` runs a test in its own process. `hosts` makes network namespaces joined by a switch, with cables that can be pulled, or by a
//! `bad_network`, which loses, delays and damages frames. `child` holds a process that does not outlive its guard. `crash` arms a crash point in a
//! child and waits until the child has reached it. `example_host` gives the examples of API documentation a manager. `programs` finds built programs. `proxy` damages the bytes of connections. `manager` runs rgapsd.
//! `runtime_dir` makes a runtime directory. `system_calls` checks that code makes no system call. `until` waits for what other processes do.
//! `watchdog` ends a test that hangs. `skip` reports, by name, tests that cannot run here.
//!
//! Of the libraries and programs of the workspace, only `rgaps-cli`, for its demo of two hosts, and `rgaps-bench` depend on this crate
//! (docs/decisions/008-testing-crate-in-the-command.md).

#![deny(unsafe_code)]

pub mod again;
pub mod bad_network;
pub mod child;
pub mod crash;
mod example_host;
pub mod hosts;
pub mod manager;
pub mod programs;
pub mod proxy;
#[allow(unsafe_code)]
mod raw;
pub mod runtime_dir;
pub mod skip;
pub mod system_calls;
pub mod until;
pub mod watchdog;

pub use again::{again_with, is_again};
pub use bad_network::{BadNetwork, Conditions, Passage};
pub use child::{Child, Ended, kill_9};
pub use crash::{Action, CrashPoint};
pub use example_host::example_host;
pub use hosts::{Counters, Host, Hosts, HostsError};
pub use proxy::{Proxy, Swap, Toward};
pub use raw::exit_main_thread;
pub use runtime_dir::RuntimeDir;
pub use skip::skipped;
pub use until::{pause, until};
pub use watchdog::Watchdog;
