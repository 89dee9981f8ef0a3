//! For tests and benches of this crate and of others (feature `testing`): what every backend must do, and a backend that is always late.

pub mod contract;
pub mod deferred;
