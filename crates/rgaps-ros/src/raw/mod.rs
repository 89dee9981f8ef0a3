//! Access to ROS's C libraries that no client offers: the type support of rgaps_msgs, memory of r2r's messages, and a topic's name after remapping.

mod type_support;
pub(crate) use type_support::type_support;

#[cfg(feature = "r2r")]
mod messages;
mod remap;
pub(crate) use remap::resolved;
