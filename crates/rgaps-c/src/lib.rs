//! The C API, `include/rgaps.h`: the whole Rust API for programs in other languages.
//!
//! `handle` has the handles that C programs hold, `status` the statuses and error texts, `types` the structs of the header. `node`, `metadata`,
//! `publisher`, `pool`, `subscriber` and `sample` have the calls, `simple` the calls of the paper, `ros` what ROS clients share. `raw` converts C's pointers to Rust's values.
//!
//! Invariants  CC1 a handle is never followed as a pointer: NULL, released, foreign and wrong handles are errors. CC2 no panic leaves a call.
//!             CC3 outputs are written on success only. CC4 no pointer of the caller is kept after the
//!             call, except the context of a log function.
//! Trusts      the caller's pointers to memory: null is an error, any other is followed, as in every C library.
//!
//! cbindgen generates the header from these files; `tests/header.rs` checks that it is current.

// The names of the C API.
#![allow(non_camel_case_types)]
// These docs become the header's, whose preamble states the rules for pointers.
#![allow(clippy::missing_safety_doc)]

pub mod handle;
pub mod metadata;
pub mod node;
pub mod pool;
pub mod publisher;
mod raw;
pub mod ros;
pub mod ros_buffers;
pub mod sample;
pub mod simple;
pub mod status;
pub mod subscriber;
pub mod types;
