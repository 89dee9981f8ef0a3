//! The ROS messages of rgaps_msgs against the core: after the handle, a message is the metadata of its type, byte for byte.
//!
//! `msgs/check` compares `msgs/layout.def` with the C and C++ structs; this test compares it with what Rust encodes.

// A test program: a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use rgaps::MessageHandle;
use rgaps::types::{
    Bytes, DType, Datatype, Encoding, Image, META_BYTES_MAX, Meta, PointCloud, PointField, Stamp, Tensor,
};
use rgaps_ros_policy::buffers::{Descriptor, Gid};

const HANDLE: &str = "GpuHandle";

/// Offset and size of a field in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    offset: usize,
    bytes: usize,
}

/// `layout.def`: sizes of the messages, offsets of their fields.
#[derive(Debug, Default)]
struct Layouts {
    messages: BTreeMap<String, usize>,
    fields: BTreeMap<(String, String), Field>,
}

impl Layouts {
    fn read() -> Self {
        let mut layouts = Self::default();
        for line in read("tests/msgs/layout.def").lines() {
            let Some((what, rest)) = line.strip_suffix(')').and_then(|line| line.split_once('(')) else { continue };
            let words: Vec<&str> = rest.split(", ").collect();
            match (what, &words[..]) {
                ("MESSAGE", [message, bytes]) => {
                    layouts.messages.insert((*message).to_owned(), bytes.parse().unwrap());
                }
                ("FIELD", [message, field, offset, bytes]) => {
                    let place = Field { offset: offset.parse().unwrap(), bytes: bytes.parse().unwrap() };
                    layouts.fields.insert(((*message).to_owned(), (*field).to_owned()), place);
                }
                _ => panic!("layout.def: {line}"),
            }
        }
        assert!(layouts.messages.len() >= 5 && layouts.fields.len() > layouts.messages.len(), "{layouts:?}");
        layouts
    }

    fn bytes(&self, message: &str) -> usize {
        self.messages[message]
    }

    fn place(&self, message: &str, field: &str) -> Field {
        self.fields[&(message.to_owned(), field.to_owned())]
    }
}

/// A message as another language sees it: an empty handle, then the metadata.
struct Message<'a> {
    layouts: &'a Layouts,
    name: &'static str,
    bytes: Vec<u8>,
}

impl<'a> Message<'a> {
    fn new<T: Meta>(layouts: &'a Layouts, name: &'static str, meta: &T) -> Self {
        let mut encoded = [0; META_BYTES_MAX];
        let length = meta.encode(&mut encoded);
        assert_eq!(length, T::ENCODED_BYTES);
        let mut bytes = vec![0; layouts.bytes(HANDLE)];
        bytes.extend_from_slice(&encoded[..length]);
        // A message may only have padding to a multiple of 8 at its end.
        assert_eq!(bytes.len().next_multiple_of(8), layouts.bytes(name), "{name}");
        bytes.resize(layouts.bytes(name), 0);
        Self { layouts, name, bytes }
    }

    fn field(&self, field: &str) -> &[u8] {
        let place = self.layouts.place(self.name, field);
        &self.bytes[place.offset..place.offset + place.bytes]
    }

    fn number(&self, field: &str) -> u64 {
        let mut number = [0; 8];
        let field = self.field(field);
        number[..field.len()].copy_from_slice(field);
        u64::from_le_bytes(number)
    }

    fn text(&self, field: &str) -> String {
        String::from_utf8(self.field(field).to_vec()).unwrap().trim_end_matches('\0').to_owned()
    }

    fn check_header(&self) {
        assert_eq!((self.number("stamp_sec"), self.number("stamp_nanosec")), (12, 34), "{}", self.name);
        assert_eq!(self.text("frame_id"), "front", "{}", self.name);
        assert_eq!(self.field("user"), [7; 32], "{}", self.name);
    }
}

fn with_header<T: Meta>(meta: T) -> T {
    meta.stamped(Stamp { sec: 12, nanosec: 34 }).in_frame("front").unwrap().with_user([7; 32])
}

fn read(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Constants of a .msg file whose names begin with `prefix`, without the prefix.
fn constants(file: &str, prefix: &str) -> BTreeMap<String, u32> {
    let text = read(file);
    let constants = text.lines().filter_map(|line| {
        let (declaration, value) = line.split_once(" = ")?;
        let name = declaration.split_once(' ')?.1.strip_prefix(prefix)?;
        Some((name.to_owned(), value.parse().unwrap()))
    });
    constants.collect()
}

#[test]
fn an_image_has_the_layout_of_gpu_image() {
    let layouts = Layouts::read();
    let image = Image::new(1920, 1080, Encoding::Rgb16).unwrap().with_step(16384).unwrap().with_bigendian(true);
    let message = Message::new(&layouts, "GpuImage", &with_header(image));
    message.check_header();
    let numbers = ["width", "height", "step", "encoding", "is_bigendian"].map(|field| message.number(field));
    assert_eq!(numbers, [1920, 1080, 16384, u64::from(Encoding::Rgb16.code()), 1]);
}

#[test]
fn a_point_cloud_has_the_layout_of_gpu_point_cloud() {
    let layouts = Layouts::read();
    let fields = [
        PointField::new("x", 0, Datatype::Float32).unwrap(),
        PointField::new("rgb", 4, Datatype::Uint8).unwrap().with_count(3),
    ];
    let cloud = PointCloud::new(100, 2, 8, &fields).unwrap().with_row_step(1024).unwrap().with_dense(true);
    let message = Message::new(&layouts, "GpuPointCloud", &with_header(cloud));
    message.check_header();
    let numbers = ["width", "height", "point_step", "row_step", "field_count", "is_bigendian", "is_dense"]
        .map(|field| message.number(field));
    assert_eq!(numbers, [100, 2, 8, 1024, 2, 0, 1]);
    let second = &message.field("fields")[layouts.bytes("GpuPointField")..];
    let number = |field| {
        let place = layouts.place("GpuPointField", field);
        u32::from_le_bytes(second[place.offset..place.offset + place.bytes].try_into().unwrap())
    };
    assert!(second.starts_with(b"rgb\0"));
    assert_eq!([number("offset"), number("datatype"), number("count")], [4, Datatype::Uint8.code(), 3]);
}

#[test]
fn a_tensor_has_the_layout_of_gpu_tensor() {
    let layouts = Layouts::read();
    let tensor = Tensor::strided(DType::FLOAT32, &[2, 3], &[4, 1], 64).unwrap();
    let message = Message::new(&layouts, "GpuTensor", &with_header(tensor));
    message.check_header();
    let numbers = ["ndim", "dtype_code", "dtype_bits", "dtype_lanes", "byte_offset"].map(|field| message.number(field));
    assert_eq!(numbers, [2, 2, 32, 1, 64]);
    let first_two = |field| {
        message.field(field)[..16].as_chunks().0.iter().map(|value| i64::from_le_bytes(*value)).collect::<Vec<_>>()
    };
    assert_eq!(first_two("shape"), [2, 3]);
    assert_eq!(first_two("strides"), [4, 1]);
}

#[test]
fn a_handle_has_the_layout_of_gpu_handle() {
    let layouts = Layouts::read();
    let handle = MessageHandle {
        source_host: [1; 16],
        topic_id: [2; 16],
        host_epoch: 3,
        publisher: 4,
        sequence: 5,
        position: 6,
        payload_bytes: 7,
        entry: 8,
        generation: 9,
        layout_version: 10,
        kind: 11,
    };
    let message = Message { layouts: &layouts, name: HANDLE, bytes: handle.to_bytes().to_vec() };
    assert_eq!(message.bytes.len(), layouts.bytes(HANDLE));
    assert_eq!((message.field("source_host"), message.field("topic_id")), (&[1; 16][..], &[2; 16][..]));
    let numbers = ["host_epoch", "publisher", "sequence", "position", "payload_bytes", "entry", "generation"];
    let numbers = numbers.into_iter().chain(["layout_version", "kind"]);
    assert_eq!(numbers.map(|field| message.number(field)).collect::<Vec<_>>(), (3..=11).collect::<Vec<u64>>());
    let versions = constants("rgaps_msgs/msg/GpuHandle.msg", "LAYOUT_");
    assert_eq!(versions, [("VERSION".to_owned(), MessageHandle::LAYOUT_VERSION)].into());
}

#[test]
fn a_descriptor_of_a_buffer_has_the_layout_of_buffer_descriptor() {
    let layouts = Layouts::read();
    let [subscription, topic, join] = [1, 2, 3].map(|number| Gid([number; 16]));
    let handle = MessageHandle { sequence: 4, ..MessageHandle::default() };
    let descriptor = Descriptor { handle, subscription, topic, join, process: 5 };
    let message = Message { layouts: &layouts, name: "BufferDescriptor", bytes: descriptor.to_bytes().to_vec() };
    assert_eq!(message.bytes.len(), layouts.bytes("BufferDescriptor"));
    assert_eq!(message.field("handle"), handle.to_bytes());
    let gids = ["subscription", "topic", "join"].map(|field| message.field(field));
    assert_eq!(gids, [&subscription.0[..], &topic.0, &join.0]);
    assert_eq!(message.number("process"), 5);
}

#[test]
fn codes_and_kinds_are_those_of_the_messages() {
    let encodings = constants("rgaps_msgs/msg/GpuImage.msg", "ENCODING_");
    let ours = Encoding::ALL.iter().map(|encoding| (encoding.name().to_uppercase(), encoding.code()));
    assert_eq!(encodings, ours.collect());
    let datatypes = constants("rgaps_msgs/msg/GpuPointField.msg", "");
    let ours = Datatype::ALL.iter().map(|datatype| (datatype.name().to_uppercase(), datatype.code()));
    assert_eq!(datatypes, ours.collect());
    let kinds = constants("rgaps_msgs/msg/GpuHandle.msg", "KIND_");
    assert_eq!(
        kinds,
        [("BYTES", Bytes::KIND), ("IMAGE", Image::KIND), ("POINT_CLOUD", PointCloud::KIND), ("TENSOR", Tensor::KIND)]
            .map(|(name, kind)| (name.to_owned(), kind))
            .into()
    );
}
