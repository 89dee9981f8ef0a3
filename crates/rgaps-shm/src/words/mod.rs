//! Lock-free protocols over borrowed words. Loom and shuttle run these functions too: they need no memory that a process maps.
//!
//! `queue` orders messages. `message` decides who may read a message and who frees its block. `join` fixes the first position that a new subscriber
//! gets. `history` says which messages late joiners get. `wake_up` decides whether a sleeper must be woken.

#[cfg(not(loom))]
pub mod history;
pub mod join;
#[cfg(all(test, loom))]
mod loom_models;
pub mod message;
pub mod queue;
#[cfg(all(test, shuttle))]
mod shuttle_flows;
pub(crate) mod sync;
pub(crate) mod wake_up;
