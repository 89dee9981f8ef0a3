//! What ROS's C libraries have and no client gives: the type support of rgaps_msgs, and for r2r its messages' memory; and the name that a topic will have.

mod type_support;
pub(crate) use type_support::type_support;

#[cfg(feature = "r2r")]
mod messages;
mod remap;
pub(crate) use remap::resolved;
