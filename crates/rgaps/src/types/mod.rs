//! Typed metadata: a fixed number of bytes that describe the payload of a message and travel with it.
//!
//! `meta` has the trait and what all types share. `image`, `cloud`, `tensor` and `bytes` are the types. `encoding` names pixel formats. `payload`
//! maps each type to arrays.
//!
//! The encoded bytes are those of the `#[repr(C)]` struct of the same name on a little-endian machine; the struct has no implicit padding. After the
//! header, the fields have the layout of the ROS messages of rgaps_msgs. Each type's file draws its layout. Decoding trusts nothing: the bytes come
//! from another process.

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
