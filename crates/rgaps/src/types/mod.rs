//! Typed metadata: what the payload of a message is, in a fixed number of bytes that travel beside it.
//!
//! `meta` holds the trait and what all types share, `image`, `cloud`, `tensor` and `bytes` are the types, `encoding` names pixel formats,
//! `payload` is the shape of the bytes that a type describes.
//!
//! The encoded bytes are those of the `#[repr(C)]` struct of the same name on a little-endian machine, without implicit padding
//! inside. What follows the header has the layout of the ROS messages of rgaps_msgs, field by field. Each type's file draws its own. Nothing that is decoded is
//! trusted: it came from another process.

pub mod bytes;
pub mod cloud;
pub mod encoding;
pub mod image;
pub mod meta;
pub mod payload;
pub mod tensor;
mod wire;

pub use bytes::Bytes;
pub use cloud::{Datatype, FIELD_NAME_BYTES, FIELDS_MAX, PointCloud, PointField};
pub use encoding::{Encoding, UnknownEncoding};
pub use image::Image;
pub use meta::{FRAME_ID_BYTES, Header, Meta, MetaError, Stamp, Text, USER_BYTES};
pub use payload::{Payload, ViewError};
pub use rgaps_shm::layout::META_BYTES_MAX;
pub use tensor::{DType, DTypeCode, NDIM_MAX, Tensor};
