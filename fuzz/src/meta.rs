//! What comes with a message, from another process, another host or another middleware: typed metadata and handles.

use rgaps::MessageHandle;
use rgaps::dlpack::{DLDevice, DeviceRange, UnmanagedTensor};
use rgaps::dynamic::{DynamicMeta, Kind};
use rgaps::types::{META_BYTES_MAX, Meta, Payload, PointCloud, ViewError};
use rgaps_media::Mark;

use super::{Parsers, assert_plain};

/// The parsers.
pub const PARSERS: Parsers = &[
    ("bytes", |data| meta(Kind::Bytes, data)),
    ("image", |data| meta(Kind::Image, data)),
    ("point_cloud", |data| meta(Kind::PointCloud, data)),
    ("tensor", |data| meta(Kind::Tensor, data)),
    ("handle", handle),
];

/// Where payloads are said to lie.
const ADDRESS: u64 = 1 << 20;

/// Metadata. What is decoded keeps its own rules, is the same once it is encoded, and what array libraries and kernels are told of the payload lies in
/// it.
fn meta(kind: Kind, data: &[u8]) -> bool {
    let meta = match DynamicMeta::decode(kind, data) {
        Ok(meta) => meta,
        Err(error) => {
            assert_plain(&error.to_string());
            return false;
        }
    };
    let mut encoded = [0; META_BYTES_MAX];
    let bytes = meta.encode(&mut encoded);
    assert_eq!(DynamicMeta::decode(kind, &encoded[..bytes]), Ok(meta));
    assert_eq!(meta.check_shape(), Ok(()));
    assert_plain(&meta.header().frame_id.to_string());
    if let Some(mark) = Mark::from_user(&meta.header().user) {
        assert_eq!(Mark::from_user(&mark.to_user()), Some(mark));
    }
    match meta {
        DynamicMeta::Bytes(meta) => views(&meta),
        DynamicMeta::Image(meta) => views(&meta),
        DynamicMeta::PointCloud(meta) => {
            views(&meta);
            fields(&meta);
        }
        DynamicMeta::Tensor(meta) => views(&meta),
    }
    true
}

fn range(bytes: u64) -> DeviceRange {
    DeviceRange { address: ADDRESS, bytes, device: DLDevice::CPU, is_read_only: true }
}

/// What is told of a payload lies in it, and nothing is told of one that is too short.
fn views<M: Payload>(meta: &M) {
    let bytes = meta.payload_bytes();
    assert_eq!(meta.check(bytes), Ok(()));
    if let Ok(described) = meta.describe(&range(bytes)) {
        inside(&described, bytes);
    }
    if bytes > 0 {
        let short = meta.describe(&range(bytes - 1));
        assert!(matches!(short, Err(ViewError::OutOfBounds { .. })), "{short:?}");
        assert!(meta.view(&range(bytes - 1)).is_err());
    }
}

fn fields(cloud: &PointCloud) {
    let bytes = cloud.payload_bytes();
    for field in cloud.fields() {
        let name = field.name.as_str();
        if let Ok(described) = cloud.describe_field(name, &range(bytes)) {
            inside(&described, bytes);
        }
        if let Ok(view) = cloud.field_view(name, &range(bytes))
            && let Some(last) = cloud.points().checked_sub(1)
        {
            let field_bytes = u64::from(view.count) * view.dtype.bytes();
            assert!(
                view.point(last).is_some_and(|at| at >= ADDRESS && at + field_bytes <= ADDRESS + bytes),
                "{view:?}"
            );
            assert_eq!(view.point(last + 1), None);
        }
    }
}

/// The corners of a tensor are in a payload of so many bytes.
fn inside(described: &UnmanagedTensor, bytes: u64) {
    let (view, shape) = (described.view(), described.shape());
    // No address counts elements beyond 63 bits, and no memory has as many.
    if shape.contains(&0) || i64::try_from(bytes).is_err() {
        return;
    }
    for corner in 0..1_u32 << shape.len() {
        let at = |place: usize| if corner >> place & 1 == 1 { shape[place] - 1 } else { 0 };
        let place: Vec<i64> = (0..shape.len()).map(at).collect();
        let element = view.element(&place);
        let is_in = element.is_some_and(|at| at >= ADDRESS && at - ADDRESS + described.dtype().bytes() <= bytes);
        assert!(is_in, "element {place:?} at {element:?} of {bytes} B: {view:?}");
    }
}

/// A handle. Any bytes are one, and stay what they are.
fn handle(data: &[u8]) -> bool {
    let Some(bytes) = data.first_chunk() else { return false };
    assert_eq!(&MessageHandle::from_bytes(bytes).to_bytes(), bytes);
    true
}
