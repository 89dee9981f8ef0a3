//! The C types and functions of rmw: bindings that build.rs makes of abi/*.def and the headers of the ROS that is sourced.

#![allow(non_camel_case_types, missing_docs, clippy::missing_safety_doc)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
