//! An RMW that is a layer: it exports what the distro's rmw headers declare and forwards to an inner RMW, except for publishers and
//! subscriptions of rgaps_msgs/msg/{GpuImage,GpuPointCloud,GpuTensor}, whose messages are taken from the core.
//!
//! ```text
//!   rcl ──▶ forward.rs ──▶ inner.rs ──▶ lib$RGAPS_INNER_RMW.so        every entity but those
//! ```
//!
//! Handles of ordinary entities are the inner's own, untouched.

mod ffi;
mod forward;
mod inner;
mod rcutils;
mod sys;
