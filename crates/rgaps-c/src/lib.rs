//! The C API, `include/rgaps.h`: everything that Rust programs can do, for programs that cannot call Rust.
//!
//! `handle` has the handles that C programs hold, `status` what they are told, `types` the structs of the header; `node`, `metadata`,
//! `publisher`, `subscriber` and `message` have the calls, `simple` those of the paper. `raw` turns C's pointers into Rust's values.
//!
//! Invariants  C1 a handle is never followed as a pointer: NULL, released, foreign and wrong handles are errors. C2 no panic leaves a call.
//!             C3 outputs are written on success only. C4 a caller's pointer is not kept beyond the call.
//! Trusts      pointers to memory of the caller's: null is an error, any other is followed, as every C library does.
//!
//! The header is made of these files by cbindgen; `tests/header.rs` keeps it so.

// The names of the C API.
#![allow(non_camel_case_types)]
// The docs are the header's, whose preamble says what all calls ask of their pointers.
#![allow(clippy::missing_safety_doc)]

pub mod handle;
pub mod metadata;
pub mod node;
pub mod publisher;
mod raw;
pub mod sample;
pub mod simple;
pub mod status;
pub mod subscriber;
pub mod types;
