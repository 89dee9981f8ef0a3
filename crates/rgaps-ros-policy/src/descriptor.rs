//! Descriptors: the messages of rgaps_msgs as bytes, a handle and a copy of the message's metadata.
//!
//! ```text
//!   -4        0          88                    end of the metadata    multiple of 8
//!   | CDR     | GpuHandle | encoded metadata .. | padding .......... |
//! ```
//!
//! Every field of these messages is naturally aligned and there are no gaps. So rosidl's structs in C and C++, the message's CDR in little-endian
//! order, and the core's own bytes are the same.
//!
//! Trusts      nothing: a descriptor may come from a bag, another version, or a faulty program. `check` refuses one that contradicts itself; only a
//!             take tells whether its message exists. Padding and what follows it are not read: middleware leaves anything there.

use rgaps::MessageHandle;
use rgaps::dynamic::{DynamicMeta, Kind};
use rgaps::types::{META_BYTES_MAX, MetaError};

/// CDR's header: plain CDR in little-endian order.
const HEADER: [u8; 4] = [0, 1, 0, 0];
/// Plain CDR and plain CDR 2, both little-endian. They align fields of more than four bytes differently; these messages satisfy both.
const LITTLE_ENDIAN: [&[u8]; 2] = [&[0, 1], &[0, 7]];

/// The types that have descriptors, by their names in the package rgaps_msgs.
const TYPES: [(&str, Kind, &str); 3] = [
    ("GpuImage", Kind::Image, "rgaps_msgs/msg/GpuImage"),
    ("GpuPointCloud", Kind::PointCloud, "rgaps_msgs/msg/GpuPointCloud"),
    ("GpuTensor", Kind::Tensor, "rgaps_msgs/msg/GpuTensor"),
];

/// The kind whose descriptor has this name in the package, such as GpuImage.
pub fn kind_of_name(name: &str) -> Option<Kind> {
    TYPES.iter().find(|(known, ..)| *known == name).map(|(_, kind, _)| *kind)
}

/// The ROS type of a kind's descriptor.
pub fn type_name(kind: Kind) -> &'static str {
    TYPES.iter().find(|(_, known, _)| *known == kind).map_or("no ROS type", |(.., name)| name)
}

/// Bytes of a descriptor whose metadata has `encoded` bytes.
pub const fn bytes_of(encoded: usize) -> usize {
    (MessageHandle::BYTES + encoded).next_multiple_of(8)
}

/// Bytes of the longest descriptor.
pub const BYTES_MAX: usize = bytes_of(META_BYTES_MAX);

/// What is wrong with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A serialized message is neither plain CDR nor plain CDR 2 in little-endian order.
    ByteOrder,
    /// It is too short.
    Length,
    /// Its handle has another layout.
    Layout,
    /// Its handle names a message of another kind.
    Kind,
    /// Its handle has sequence number 0.
    Empty,
    /// Its metadata contradicts itself.
    Metadata,
    /// Its metadata contradicts its handle.
    Payload,
}

/// Why a descriptor is refused before its message is looked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {} {text}", type_name(*kind))]
pub struct DescriptorError {
    /// The wanted kind.
    pub kind: Kind,
    /// What is wrong.
    pub fault: Fault,
    /// The numbers.
    text: String,
}

impl DescriptorError {
    fn new(kind: Kind, fault: Fault, text: String) -> Self {
        Self { kind, fault, text }
    }
}

/// Checks layout version and kind of a handle, and that it names a message.
pub fn check_handle(kind: Kind, handle: &MessageHandle) -> Result<(), DescriptorError> {
    let (layout, spoken, found) = (handle.layout_version, MessageHandle::LAYOUT_VERSION, handle.kind);
    let (fault, text) = if layout != spoken {
        let text = format!("has layout version {layout}, but this program uses {spoken}; was it filled by RGAPS?");
        (Fault::Layout, text)
    } else if found != kind.code() {
        (Fault::Kind, format!("has a handle of kind {found}, where {} ({kind}) is needed", kind.code()))
    } else if handle.sequence == 0 {
        (Fault::Empty, "names no message; was it filled by RGAPS?".to_owned())
    } else {
        return Ok(());
    };
    Err(DescriptorError::new(kind, fault, text))
}

/// Checks the kind of a descriptor's metadata, where the metadata says its kind.
pub fn check_kind_of_metadata(kind: Kind, found: u32) -> Result<(), DescriptorError> {
    if found == kind.code() {
        return Ok(());
    }
    let text = format!("has metadata of kind {found}, where {} ({kind}) is needed", kind.code());
    Err(DescriptorError::new(kind, Fault::Kind, text))
}

/// Checks the parts of a descriptor: the handle, and the encoded metadata, which must describe the payload that the handle names.
pub fn check(kind: Kind, handle: &MessageHandle, encoded: &[u8]) -> Result<DynamicMeta, DescriptorError> {
    check_handle(kind, handle)?;
    let named = handle.payload_bytes;
    let decoded = DynamicMeta::decode(kind, encoded).and_then(|meta| meta.check_shape().map(|()| meta));
    let names = format_args!("its handle names a payload of {named} B");
    let meta = decoded.map_err(|source| {
        DescriptorError::new(kind, Fault::Metadata, format!("contradicts itself: {source}; {names}"))
    })?;
    let described = meta.payload_bytes();
    if described == named {
        return Ok(meta);
    }
    Err(DescriptorError::new(kind, Fault::Payload, format!("describes {described} B, but {names}")))
}

/// Reads and checks a descriptor's bytes in memory.
pub fn read(kind: Kind, bytes: &[u8]) -> Result<(MessageHandle, DynamicMeta), DescriptorError> {
    let (handle, encoded) = split(kind, bytes)?;
    Ok((handle, check(kind, &handle, encoded)?))
}

/// Handle and encoded metadata of a descriptor's bytes in memory, unchecked.
fn split(kind: Kind, bytes: &[u8]) -> Result<(MessageHandle, &[u8]), DescriptorError> {
    let (found, wanted) = (bytes.len(), bytes_of(kind.encoded_bytes()));
    let Some((handle, rest)) = bytes.split_first_chunk().filter(|_| found >= wanted) else {
        return Err(DescriptorError::new(kind, Fault::Length, format!("has {found} B instead of {wanted} B")));
    };
    Ok((MessageHandle::from_bytes(handle), &rest[..kind.encoded_bytes()]))
}

/// Writes a descriptor's bytes in memory, at least as many as `bytes_of` says; the rest is zeroed.
pub fn write(handle: &MessageHandle, meta: &DynamicMeta, to: &mut [u8]) {
    let mut encoded = [0; META_BYTES_MAX];
    let length = meta.encode(&mut encoded);
    to.fill(0);
    to[..MessageHandle::BYTES].copy_from_slice(&handle.to_bytes());
    to[MessageHandle::BYTES..][..length].copy_from_slice(&encoded[..length]);
}

/// Whether a serialized message has the byte order that `deserialize` reads. The middleware can translate another one.
pub fn is_little_endian(serialized: &[u8]) -> bool {
    LITTLE_ENDIAN.iter().any(|order| serialized.starts_with(order))
}

/// Reads and checks a serialized descriptor. Bytes after it are ignored: some middleware pads a message, or appends a number of its own.
pub fn deserialize(kind: Kind, serialized: &[u8]) -> Result<(MessageHandle, DynamicMeta), DescriptorError> {
    read(kind, body(kind, serialized)?)
}

/// Handle and metadata of a serialized descriptor, of which only the metadata is checked, in itself.
pub fn deserialize_unchecked(
    kind: Kind,
    serialized: &[u8],
) -> Result<(MessageHandle, Result<DynamicMeta, MetaError>), DescriptorError> {
    let (handle, encoded) = split(kind, body(kind, serialized)?)?;
    Ok((handle, DynamicMeta::decode(kind, encoded)))
}

fn body(kind: Kind, serialized: &[u8]) -> Result<&[u8], DescriptorError> {
    if !is_little_endian(serialized) {
        let begin: String = serialized.iter().take(HEADER.len()).map(|byte| format!("{byte:02x}")).collect();
        let text = format!("of {} B begins with {begin}, which is not little-endian CDR", serialized.len());
        return Err(DescriptorError::new(kind, Fault::ByteOrder, text));
    }
    Ok(serialized.get(HEADER.len()..).unwrap_or_default())
}

/// The serialized descriptor of a message.
///
/// ```
/// use rgaps::MessageHandle;
/// use rgaps::dynamic::{DynamicMeta, Kind};
/// use rgaps::types::{Encoding, Image};
/// use rgaps_ros_policy::descriptor::{deserialize, serialize};
///
/// let meta = DynamicMeta::from(Image::new(640, 480, Encoding::Rgb8)?);
/// let handle = MessageHandle {
///     sequence: 1,
///     payload_bytes: meta.payload_bytes(),
///     layout_version: MessageHandle::LAYOUT_VERSION,
///     kind: Kind::Image.code(),
///     ..MessageHandle::default()
/// };
/// let message = serialize(&handle, &meta); // a rgaps_msgs/GpuImage
/// assert_eq!(deserialize(Kind::Image, &message)?, (handle, meta));
/// assert!(deserialize(Kind::Tensor, &message).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn serialize(handle: &MessageHandle, meta: &DynamicMeta) -> Vec<u8> {
    let mut serialized = vec![0; HEADER.len() + bytes_of(meta.kind().encoded_bytes())];
    let (header, body) = serialized.split_at_mut(HEADER.len());
    header.copy_from_slice(&HEADER);
    write(handle, meta, body);
    serialized
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps::types::{DType, Datatype, Encoding, Image, PointCloud, Tensor};

    fn metas() -> [DynamicMeta; 3] {
        [
            Image::new(64, 48, Encoding::Rgb8).unwrap().into(),
            PointCloud::packed(3, &[("x", Datatype::Float32)]).unwrap().into(),
            Tensor::new(DType::FLOAT32, &[2, 3]).unwrap().into(),
        ]
    }

    fn handle_for(meta: &DynamicMeta) -> MessageHandle {
        MessageHandle {
            sequence: 7,
            kind: meta.kind().code(),
            layout_version: MessageHandle::LAYOUT_VERSION,
            payload_bytes: meta.payload_bytes(),
            ..MessageHandle::default()
        }
    }

    fn bytes(handle: &MessageHandle, meta: &DynamicMeta) -> Vec<u8> {
        let mut bytes = vec![0xff; bytes_of(meta.kind().encoded_bytes())];
        write(handle, meta, &mut bytes);
        bytes
    }

    #[test]
    fn a_descriptor_holds_handle_and_metadata_with_the_lengths_of_rgaps_msgs() {
        for (meta, length) in metas().iter().zip([216, 920, 336]) {
            let (kind, handle) = (meta.kind(), handle_for(meta));
            let written = bytes(&handle, meta);
            assert_eq!(written.len(), length);
            assert!(written[MessageHandle::BYTES + kind.encoded_bytes()..].iter().all(|byte| *byte == 0));
            assert_eq!(read(kind, &written).unwrap(), (handle, *meta));
            let serialized = serialize(&handle, meta);
            assert_eq!((&serialized[..4], &serialized[4..]), (&HEADER[..], &written[..]));
            assert_eq!(deserialize(kind, &serialized).unwrap(), (handle, *meta));
        }
    }

    #[test]
    fn padding_and_bytes_of_the_middleware_after_a_descriptor_are_ignored() {
        for meta in metas() {
            let mut serialized = serialize(&handle_for(&meta), &meta);
            let end = HEADER.len() + MessageHandle::BYTES + meta.kind().encoded_bytes();
            serialized[end..].fill(0xee);
            serialized.extend([0xee; 4]);
            serialized[1] = 7;
            assert_eq!(deserialize(meta.kind(), &serialized).unwrap().1, meta, "plain CDR 2");
        }
    }

    #[test]
    fn another_byte_order_or_length_is_refused_with_what_was_found() {
        let [image, ..] = metas();
        let serialized = serialize(&handle_for(&image), &image);
        let why = |bytes: &[u8]| deserialize(Kind::Image, bytes).unwrap_err().to_string();
        let mut big_endian = serialized.clone();
        big_endian[1] = 0;
        assert!(!is_little_endian(&big_endian) && is_little_endian(&serialized));
        let text = "a rgaps_msgs/msg/GpuImage of 220 B begins with 00000000, which is not little-endian CDR";
        assert_eq!(why(&big_endian), text);
        assert_eq!(why(&serialized[..219]), "a rgaps_msgs/msg/GpuImage has 215 B instead of 216 B");
        assert!(why(&[]).contains("of 0 B begins with ,") && why(&[0, 1]).contains("has 0 B"));
        for length in 0..serialized.len() {
            assert!(deserialize(Kind::Image, &serialized[..length]).is_err());
        }
    }

    #[test]
    fn a_descriptor_that_contradicts_itself_is_refused_with_the_numbers() {
        let image = DynamicMeta::from(Image::new(64, 48, Encoding::Mono8).unwrap());
        let good = handle_for(&image);
        let why = |handle: MessageHandle| read(Kind::Image, &bytes(&handle, &image)).unwrap_err().to_string();
        assert_eq!(
            why(MessageHandle { layout_version: 2, ..good }),
            "a rgaps_msgs/msg/GpuImage has layout version 2, but this program uses 1; was it filled by RGAPS?"
        );
        assert_eq!(
            why(MessageHandle { kind: 3, ..good }),
            "a rgaps_msgs/msg/GpuImage has a handle of kind 3, where 1 (image) is needed"
        );
        assert!(why(MessageHandle { sequence: 0, ..good }).contains("names no message"));
        assert_eq!(
            why(MessageHandle { payload_bytes: 3071, ..good }),
            "a rgaps_msgs/msg/GpuImage describes 3072 B, but its handle names a payload of 3071 B"
        );
        let mut torn = bytes(&good, &image);
        torn[MessageHandle::BYTES + 112..][..4].fill(0);
        let why = read(Kind::Image, &torn).unwrap_err().to_string();
        assert!(why.contains("contradicts itself") && why.ends_with("its handle names a payload of 3072 B"), "{why}");
    }

    #[test]
    fn any_bytes_are_read_or_refused_with_a_text() {
        // A xorshift generator; half of the rounds pass the first checks.
        let mut state = 20_261_125_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..3000 {
            for meta in metas() {
                let mut any = bytes(&handle_for(&meta), &meta);
                let start = if round % 2 == 0 { 0 } else { MessageHandle::BYTES };
                any[start..].fill_with(|| random() as u8);
                if let Err(error) = read(meta.kind(), &any) {
                    assert!(error.to_string().contains("rgaps_msgs/msg/Gpu"));
                }
            }
        }
    }

    #[test]
    fn types_are_known_by_their_names() {
        for (name, kind, full) in TYPES {
            assert_eq!((kind_of_name(name), type_name(kind)), (Some(kind), full));
        }
        assert_eq!((kind_of_name("GpuHandle"), type_name(Kind::Bytes)), (None, "no ROS type"));
        assert!(Kind::ALL.iter().all(|kind| bytes_of(kind.encoded_bytes()) <= BYTES_MAX));
    }
}
