//! What the parts of the `rgaps` command share.
//!
//! `output` prints for people or programs, `device` opens the device of a command that starts its own hosts.

#![forbid(unsafe_code)]

pub mod device;
pub mod output;
