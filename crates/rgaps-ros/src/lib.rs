//! GPU topics in ROS 2 nodes written in Rust, under any RMW.
//!
//! ```text
//!   Publisher    ──payload──▶ core (shared pools, links between hosts) ──────────▶ core subscriber of the Subscription
//!                ──descriptor──▶ ROS publisher ──any RMW──▶ ROS subscription ──take──┘──▶ Sample
//! ```
//!
//! A publisher publishes in the core of RGAPS first, then a descriptor of rgaps_msgs (GpuImage, GpuPointCloud, GpuTensor) as an ordinary ROS
//! message. A subscription has a core subscriber of its own and an ordinary ROS subscription to the descriptor, whose callback takes the sample
//! that it names. Topics have their names, remapping, QoS and graph from ROS; payloads never pass through the RMW.
//!
//! `rclrs` and `r2r` (features of the same names) have what lives on a node of theirs. `core` is what both are made of, without ROS: another
//! client needs a `Descriptors`, a `Parameters` and a `Profile`.
//!
//! The messages are types of this crate (`descriptor`): fixed bytes, laid out as rosidl lays out the C structs. So no message crate has to be
//! generated, and a conversion is a copy of some hundred bytes. rgaps_msgs itself must be built and sourced: its type support is found when the
//! program runs.

#![deny(unsafe_code)]

pub mod core;
pub mod descriptor;
#[cfg(feature = "rclrs")]
mod diagnostics;
mod error;
pub mod parameters;
pub mod profile;
#[cfg(any(feature = "rclrs", feature = "r2r"))]
#[allow(unsafe_code)]
mod raw;

#[cfg(feature = "r2r")]
pub mod r2r;
#[cfg(feature = "rclrs")]
pub mod rclrs;

pub use descriptor::{Descriptor, GpuImage, GpuPointCloud, GpuTensor, RosKind};
pub use error::Error;
