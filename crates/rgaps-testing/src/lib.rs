//! What tests, and the demo, need to be several hosts on one machine, to kill processes at named steps, and to leave nothing behind.
//!
//! `again` runs a test in a process of its own. `hosts` makes network namespaces joined by a switch, with cables that can be pulled,
//! or by a `bad_network`, which loses, delays and damages frames. `child` holds a process that does not outlive
//! its guard. `crash` arms a crash point in a child and waits for what it does there. `programs` finds what was built. `proxy` damages what passes it. `manager` runs rgapsd. `runtime_dir` is a manager's runtime directory of its
//! own. `watchdog` ends a test that hangs. `skip` says by name what cannot run here.
//!
//! No library of the workspace depends on this crate; of its programs only `rgaps`, whose demo shows two hosts, does.

#![deny(unsafe_code)]

pub mod again;
pub mod bad_network;
pub mod child;
pub mod crash;
pub mod hosts;
pub mod manager;
pub mod programs;
pub mod proxy;
#[allow(unsafe_code)]
mod raw;
pub mod runtime_dir;
pub mod skip;
pub mod system_calls;
pub mod watchdog;

pub use again::{again_with, is_again};
pub use bad_network::{BadNetwork, Conditions, Passage};
pub use child::{Child, Ended, kill_9};
pub use crash::{Action, CrashPoint};
pub use hosts::{Counters, Host, Hosts, HostsError};
pub use proxy::{Proxy, Swap, Toward};
pub use runtime_dir::RuntimeDir;
pub use skip::skipped;
pub use watchdog::Watchdog;
