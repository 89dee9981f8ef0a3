//! GPU topics in ROS 2 nodes written in Rust, under any RMW.
//!
//! ```text
//!   Publisher    ──payload──▶ core (shared pools, links between hosts) ──────────▶ core subscriber of the Subscription
//!                ──descriptor──▶ ROS publisher ──any RMW──▶ ROS subscription ──take──┘──▶ Sample
//! ```
//!
//! A publisher first publishes in the core of RGAPS, then publishes a descriptor of rgaps_msgs (GpuImage, GpuPointCloud, GpuTensor) as an ordinary
//! ROS message. A subscription has its own core subscriber and an ordinary ROS subscription to the descriptor, whose callback takes the sample.
//! Topic names, remapping, QoS and graph are those of ROS; payloads never pass through the RMW.
//!
//! `rclrs` and `r2r` (features of the same names) have the types for their nodes. `core` is their common part, without ROS: another client
//! implements `Descriptors` and `Parameters`, and makes a `Profile`. What all ROS clients do alike is in rgaps-ros-policy.
//!
//! The messages are types of this crate (`descriptor`): fixed bytes, in rosidl's layout of the C structs. So no message crate must be generated,
//! and a conversion copies a few hundred bytes. rgaps_msgs itself must be built and sourced: its type support is found at run time.

#![deny(unsafe_code)]

pub mod core;
pub mod descriptor;
#[cfg(feature = "rclrs")]
mod diagnostics;
mod error;
pub mod parameters;
#[cfg(any(feature = "rclrs", feature = "r2r"))]
#[allow(unsafe_code)]
mod raw;

#[cfg(feature = "r2r")]
pub mod r2r;
#[cfg(feature = "rclrs")]
pub mod rclrs;

pub use descriptor::{Descriptor, GpuImage, GpuPointCloud, GpuTensor, RosKind};
pub use error::Error;
pub use rgaps_ros_policy::payloads::Severity;
pub use rgaps_ros_policy::qos::{Policy, Profile};
