//! What ROS's C libraries have and no client gives: the type support of rgaps_msgs, and for r2r the remapping of names and its messages' memory.

mod type_support;
pub(crate) use type_support::type_support;

#[cfg(feature = "r2r")]
mod messages;
#[cfg(feature = "r2r")]
mod remap;
#[cfg(feature = "r2r")]
pub(crate) use remap::remapped;
