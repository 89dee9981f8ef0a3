//! The structs of the header, and conversions to the Rust types of the same names.
//!
//! Metadata has the encoded layout of its kind (crates/rgaps/src/types), so that `decode` checks it like any other metadata. Enumerations (kinds,
//! policies) are plain integers here, because a C program may store any number in them.

use std::ffi::c_char;
use std::mem::{offset_of, size_of};

use rgaps::device::dlpack::DLDevice;
use rgaps::dynamic::{DynamicMeta, Kind};
use rgaps::types::{
    DType, Datatype, Encoding, FIELD_NAME_BYTES, FIELDS_MAX, FRAME_ID_BYTES, META_BYTES_MAX, Meta, NDIM_MAX, Text,
    USER_BYTES,
};
use rgaps::{
    Durability, Exhaustion, History, MessageInfo, PublisherQos, PublisherStatistics, Reliability, SubscriberQos,
    SubscriberStatistics,
};

use crate::raw;
use crate::status::Failure;

/// Bytes of the longest metadata: a point cloud's.
pub(crate) const META_BYTES: usize = 832;

/// A kind of message: the type of a topic.
#[repr(C)]
pub enum rgaps_kind_t {
    /// Raw bytes.
    RGAPS_KIND_BYTES = 0,
    /// Images.
    RGAPS_KIND_IMAGE = 1,
    /// Point clouds.
    RGAPS_KIND_POINT_CLOUD = 2,
    /// Tensors.
    RGAPS_KIND_TENSOR = 3,
}

/// The start of all metadata. 104 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_header_t {
    /// Seconds since 1970-01-01 UTC, as in builtin_interfaces/Time.
    pub sec: i32,
    /// Nanoseconds of that second.
    pub nanosec: u32,
    /// Coordinate frame; for a tensor also its name. UTF-8, padded with zeros; all 64 bytes may be used.
    pub frame_id: [c_char; 64],
    /// The application's own bytes.
    pub user: [u8; 32],
}

/// Metadata of an image, like sensor_msgs/Image. Initialise it with `rgaps_meta_image`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_image_t {
    /// Stamp, frame, the application's bytes.
    pub header: rgaps_header_t,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from one row of the first plane to the next.
    pub step: u32,
    /// Code of the pixel format: `rgaps_encoding_code`, `rgaps_encoding_name`.
    pub encoding: u32,
    /// 1 if channels of more than 8 bits have their high byte first, else 0.
    pub is_bigendian: u8,
    /// 0.
    pub reserved: [u8; 3],
}

/// Type of the elements of a field, with the codes of sensor_msgs/PointField.
#[repr(C)]
pub enum rgaps_datatype_t {
    /// Signed byte.
    RGAPS_INT8 = 1,
    /// Unsigned byte.
    RGAPS_UINT8 = 2,
    /// Signed, 16 bits.
    RGAPS_INT16 = 3,
    /// Unsigned, 16 bits.
    RGAPS_UINT16 = 4,
    /// Signed, 32 bits.
    RGAPS_INT32 = 5,
    /// Unsigned, 32 bits.
    RGAPS_UINT32 = 6,
    /// Floating point, 32 bits.
    RGAPS_FLOAT32 = 7,
    /// Floating point, 64 bits.
    RGAPS_FLOAT64 = 8,
}

/// Type of a tensor's elements, with the codes of DLPack's DLDataTypeCode. Their size is given separately, in bits.
#[repr(C)]
pub enum rgaps_type_code_t {
    /// Signed integers.
    RGAPS_INT = 0,
    /// Unsigned integers.
    RGAPS_UINT = 1,
    /// Floating point.
    RGAPS_FLOAT = 2,
    /// The upper half of a float of 32 bits.
    RGAPS_BFLOAT = 4,
    /// Pairs of floats; the bits count both.
    RGAPS_COMPLEX = 5,
    /// Booleans of 8 bits.
    RGAPS_BOOL = 6,
}

/// One field of every point. Add it with `rgaps_meta_add_field`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_point_field_t {
    /// Name in UTF-8, padded with zeros; all 32 bytes may be used.
    pub name: [c_char; 32],
    /// Its first byte in a point.
    pub offset: u32,
    /// An rgaps_datatype_t.
    pub datatype: u32,
    /// Its elements, usually one.
    pub count: u32,
}

/// Metadata of a point cloud, like sensor_msgs/PointCloud2. Initialise it with `rgaps_meta_point_cloud`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_point_cloud_t {
    /// Stamp, frame, the application's bytes.
    pub header: rgaps_header_t,
    /// Points of a row.
    pub width: u32,
    /// Rows; 1 for an unordered cloud.
    pub height: u32,
    /// Bytes from point to point.
    pub point_step: u32,
    /// Bytes from row to row.
    pub row_step: u32,
    /// Number of fields, at most 16.
    pub field_count: u32,
    /// 1 if elements have their high byte first, else 0.
    pub is_bigendian: u8,
    /// 1 if every point is valid, 0 if some may be NaN or infinite.
    pub is_dense: u8,
    /// 0.
    pub reserved: [u8; 2],
    /// The fields; those past `field_count` are zero.
    pub fields: [rgaps_point_field_t; 16],
}

/// Metadata of a tensor, like DLPack's DLTensor. Initialise it with `rgaps_meta_tensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_tensor_t {
    /// Stamp, frame or name, the application's bytes.
    pub header: rgaps_header_t,
    /// Number of dimensions, at most 8.
    pub ndim: u32,
    /// An rgaps_type_code_t, or another DLDataTypeCode.
    pub code: u8,
    /// Bits of a lane.
    pub bits: u8,
    /// Lanes of an element, usually one.
    pub lanes: u16,
    /// Elements of each dimension.
    pub shape: [i64; 8],
    /// Elements (not bytes) from one to the next in each dimension.
    pub strides: [i64; 8],
    /// Byte offset of element (0, 0, ...) in the payload.
    pub byte_offset: u64,
}

/// Metadata of a payload of raw bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_bytes_t {
    /// Stamp, frame, the application's bytes.
    pub header: rgaps_header_t,
    /// Length of the payload.
    pub bytes: u64,
}

/// The metadata of one kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rgaps_any_meta_t {
    /// The start of all kinds.
    pub header: rgaps_header_t,
    /// Metadata of raw bytes.
    pub bytes: rgaps_bytes_t,
    /// Metadata of an image.
    pub image: rgaps_image_t,
    /// Metadata of a point cloud.
    pub point_cloud: rgaps_point_cloud_t,
    /// Metadata of a tensor.
    pub tensor: rgaps_tensor_t,
}

/// Metadata with its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_meta_t {
    /// An `rgaps_kind_t`: selects the member of `as`.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
    /// The metadata.
    pub r#as: rgaps_any_meta_t,
}

const _: () = assert!(size_of::<rgaps_header_t>() == 104 && size_of::<rgaps_point_field_t>() == 44);
const _: () = assert!(size_of::<rgaps_image_t>() == rgaps::types::Image::ENCODED_BYTES);
const _: () = assert!(size_of::<rgaps_point_cloud_t>() == rgaps::types::PointCloud::ENCODED_BYTES);
const _: () = assert!(size_of::<rgaps_tensor_t>() == rgaps::types::Tensor::ENCODED_BYTES);
const _: () = assert!(size_of::<rgaps_bytes_t>() == rgaps::types::Bytes::ENCODED_BYTES);
const _: () = assert!(size_of::<rgaps_any_meta_t>() == META_BYTES && offset_of!(rgaps_meta_t, r#as) == 8);
// The header has these lengths as numbers.
const _: () =
    assert!(FRAME_ID_BYTES == 64 && USER_BYTES == 32 && FIELD_NAME_BYTES == 32 && FIELDS_MAX == 16 && NDIM_MAX == 8);

impl rgaps_meta_t {
    pub(crate) fn of(meta: &DynamicMeta) -> Self {
        let mut encoded = [0; META_BYTES_MAX];
        let length = meta.encode(&mut encoded);
        raw::meta_of(meta.kind().code(), &encoded[..length])
    }

    pub(crate) fn check(&self) -> Result<DynamicMeta, Failure> {
        let kind = Kind::from_code(self.kind)?;
        let meta = DynamicMeta::decode(kind, raw::meta_bytes(self, kind.encoded_bytes()))?;
        meta.check_shape()?;
        Ok(meta)
    }
}

/// Whether a publisher matches subscribers that request reliable delivery.
#[repr(C)]
pub enum rgaps_reliability_t {
    /// Does not match a subscriber that requests reliable.
    RGAPS_BEST_EFFORT = 0,
    /// Matches every subscriber. Every link sends unacknowledged messages again after a cut, whatever the reliability.
    RGAPS_RELIABLE = 1,
}

/// Whether late joiners get earlier messages.
#[repr(C)]
pub enum rgaps_durability_t {
    /// No.
    RGAPS_VOLATILE = 0,
    /// Yes, the publisher's last `history_depth` messages. A full pool gives up the oldest of them.
    RGAPS_TRANSIENT_LOCAL = 1,
}

/// What a publisher does when its pool is full. It first gives up history that no subscriber needs.
#[repr(C)]
pub enum rgaps_exhaustion_t {
    /// Waits at most `exhaustion_timeout_ms` until subscribers release messages. Then drops the oldest unread messages of keep-last subscribers that
    /// read nothing meanwhile; if that is not enough, returns `RGAPS_TIMED_OUT`.
    RGAPS_WAIT = 0,
    /// Takes the oldest unread messages from keep-last subscribers.
    RGAPS_DROP_OLDEST = 1,
    /// Returns `RGAPS_NO_SPACE`.
    RGAPS_REFUSE = 2,
}

/// The QoS that a publisher offers. Start from `rgaps_publisher_qos_default`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_publisher_qos_t {
    /// An `rgaps_reliability_t`.
    pub reliability: u32,
    /// An `rgaps_durability_t`.
    pub durability: u32,
    /// How many of the last messages are kept for late joiners, and for a link that was cut to send again.
    pub history_depth: u32,
    /// An `rgaps_exhaustion_t`.
    pub exhaustion: u32,
    /// Maximum wait for space in a full pool, in ms.
    pub exhaustion_timeout_ms: u64,
    /// Bytes of the publisher's pool; 0 takes the configured size.
    pub pool_bytes: u64,
    /// Not 0: links wait for credit. 0: they do not, and a slow receiver's oldest messages are overwritten and counted.
    pub flow_control: u32,
    /// 0.
    pub reserved: u32,
}

/// The QoS that a subscriber requests. Start from `rgaps_subscriber_qos_default`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_subscriber_qos_t {
    /// An `rgaps_reliability_t`.
    pub reliability: u32,
    /// An `rgaps_durability_t`.
    pub durability: u32,
    /// How many unread messages are kept (keep-last); older ones are lost and counted. 0 is keep-all: publishers wait.
    pub depth: u32,
    /// 0.
    pub reserved: u32,
}

fn reliability(code: u32) -> Result<Reliability, Failure> {
    match code {
        0 => Ok(Reliability::BestEffort),
        1 => Ok(Reliability::Reliable),
        _ => {
            Err(Failure::argument(format_args!("reliability is {code}, neither RGAPS_BEST_EFFORT nor RGAPS_RELIABLE")))
        }
    }
}

fn durability(code: u32) -> Result<Durability, Failure> {
    match code {
        0 => Ok(Durability::Volatile),
        1 => Ok(Durability::TransientLocal),
        _ => Err(Failure::argument(format_args!(
            "durability is {code}, neither RGAPS_VOLATILE nor RGAPS_TRANSIENT_LOCAL"
        ))),
    }
}

impl rgaps_publisher_qos_t {
    pub(crate) fn of(qos: &PublisherQos) -> Self {
        let (exhaustion, exhaustion_timeout_ms) = match qos.exhaustion {
            Exhaustion::Wait { timeout_ms } => (0, timeout_ms),
            Exhaustion::DropOldest => (1, 0),
            Exhaustion::Refuse => (2, 0),
        };
        Self {
            reliability: u32::from(qos.reliability == Reliability::Reliable),
            durability: u32::from(qos.durability == Durability::TransientLocal),
            history_depth: qos.history_depth,
            exhaustion,
            exhaustion_timeout_ms,
            pool_bytes: qos.pool_bytes.unwrap_or(0),
            flow_control: u32::from(qos.flow_control),
            reserved: 0,
        }
    }

    pub(crate) fn check(&self) -> Result<PublisherQos, Failure> {
        let exhaustion = match self.exhaustion {
            0 => Exhaustion::Wait { timeout_ms: self.exhaustion_timeout_ms },
            1 => Exhaustion::DropOldest,
            2 => Exhaustion::Refuse,
            code => {
                let text = "neither RGAPS_WAIT nor RGAPS_DROP_OLDEST nor RGAPS_REFUSE";
                return Err(Failure::argument(format_args!("exhaustion is {code}, {text}")));
            }
        };
        Ok(PublisherQos {
            reliability: reliability(self.reliability)?,
            durability: durability(self.durability)?,
            history_depth: self.history_depth,
            exhaustion,
            pool_bytes: Some(self.pool_bytes).filter(|bytes| *bytes > 0),
            flow_control: self.flow_control != 0,
        })
    }
}

impl rgaps_subscriber_qos_t {
    pub(crate) fn of(qos: &SubscriberQos) -> Self {
        Self {
            reliability: u32::from(qos.reliability == Reliability::Reliable),
            durability: u32::from(qos.durability == Durability::TransientLocal),
            depth: qos.depth(),
            reserved: 0,
        }
    }

    pub(crate) fn check(&self) -> Result<SubscriberQos, Failure> {
        let history = if self.depth == 0 { History::KeepAll } else { History::KeepLast(self.depth) };
        Ok(SubscriberQos {
            reliability: reliability(self.reliability)?,
            durability: durability(self.durability)?,
            history,
        })
    }
}

/// Whether a message's bytes are written.
#[repr(C)]
pub enum rgaps_readiness_t {
    /// Not yet: a device still has to write them. Only for messages of `rgaps_subscriber_take_on`.
    RGAPS_READINESS_PENDING = 0,
    /// Yes.
    RGAPS_READINESS_READY = 1,
    /// Never: the publisher died, or its device failed.
    RGAPS_READINESS_POISONED = 2,
}

/// A message's origin, its route and the time of each stage.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_info_t {
    /// Position in the topic's order on this host.
    pub position: u64,
    /// Identity of the publisher.
    pub publisher: u64,
    /// The publisher's sequence number, from 1.
    pub sequence: u64,
    /// Bytes of the payload.
    pub bytes: u64,
    /// Identity of the publisher's host.
    pub source_host: [u8; 16],
    /// When it was published, in ns since 1970 on the publisher's host. This and the following times are 0 if there was no such stage.
    pub published_ns: u64,
    /// When the publisher's manager took it.
    pub staged_ns: u64,
    /// When its first byte was given to the link.
    pub sent_ns: u64,
    /// When its last byte was in the receive ring, on this host.
    pub landed_ns: u64,
    /// When its last byte was in this host's pool.
    pub pooled_ns: u64,
    /// When it was taken.
    pub taken_ns: u64,
    /// Device number of the pool's file. This and the next two are the same for every subscriber of a host.
    pub pool_device: u64,
    /// Inode of the pool's file.
    pub pool_inode: u64,
    /// Offset of the payload in the pool.
    pub pool_offset: u64,
    /// An `rgaps_kind_t`.
    pub kind: u32,
    /// How it was published: 0 unknown, 1 loaned, 2 pushed.
    pub origin: u8,
    /// How it reached this host: 0 published here, 1 over TCP, 2 over RDMA.
    pub route: u8,
    /// Why it took no better route: 0 there is none, 1 pushed, 2 by configuration, 3 no RDMA device, 4 RDMA failed, 5 no flow control.
    pub route_reason: u8,
    /// Copies into the block: by a push, or of a loan that was filled in other memory.
    pub copies_pushed: u8,
    /// Copies from the device to staging.
    pub copies_staged: u8,
    /// Copies into this host's pool.
    pub copies_pooled: u8,
    /// 0.
    pub reserved: [u8; 6],
}

impl rgaps_info_t {
    pub(crate) fn new(info: &MessageInfo, taken_ns: u64, mapped_from: ((u64, u64), u64)) -> Self {
        let ((pool_device, pool_inode), pool_offset) = mapped_from;
        let [origin, route, route_reason, ..] = info.path_codes();
        Self {
            position: info.position,
            publisher: info.publisher,
            sequence: info.sequence,
            bytes: info.bytes,
            source_host: info.source_host,
            published_ns: info.stamps.published,
            staged_ns: info.stamps.staged,
            sent_ns: info.stamps.sent,
            landed_ns: info.stamps.landed,
            pooled_ns: info.stamps.pooled,
            taken_ns,
            pool_device,
            pool_inode,
            pool_offset,
            kind: info.kind,
            origin,
            route,
            route_reason,
            copies_pushed: info.copies.pushed,
            copies_staged: info.copies.staged,
            copies_pooled: info.copies.pooled,
            reserved: [0; 6],
        }
    }
}

/// A publisher's counters.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_publisher_statistics_t {
    /// Messages published.
    pub published: u64,
    /// Payload bytes published.
    pub published_bytes: u64,
    /// Loans that were refused or timed out.
    pub refused: u64,
    /// Capacity of the pool in bytes.
    pub pool_bytes: u64,
    /// Bytes of the pool in use.
    pub used_bytes: u64,
    /// Messages that subscribers still need or history keeps.
    pub outstanding: u64,
}

impl From<PublisherStatistics> for rgaps_publisher_statistics_t {
    fn from(all: PublisherStatistics) -> Self {
        let PublisherStatistics { published, published_bytes, refused, pool_bytes, used_bytes, outstanding } = all;
        Self { published, published_bytes, refused, pool_bytes, used_bytes, outstanding }
    }
}

/// A subscriber's counters.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_subscriber_statistics_t {
    /// Messages taken.
    pub taken: u64,
    /// Messages lost: they exceeded the depth, their publisher needed their space, or they were lost between hosts.
    pub lost: u64,
    /// Messages whose bytes were never written.
    pub poisoned: u64,
    /// Messages held now.
    pub held: u64,
    /// Bytes that were copied for this subscriber: device memory copied to the host, or to a GPU without peer access. Usually 0.
    pub copied_bytes: u64,
    /// Messages that were skipped because their metadata does not fit their payload, or their bytes are outside their pool.
    pub malformed: u64,
}

impl From<SubscriberStatistics> for rgaps_subscriber_statistics_t {
    fn from(all: SubscriberStatistics) -> Self {
        let SubscriberStatistics { taken, lost, poisoned, malformed, held, copied_bytes, .. } = all;
        Self { taken, lost, poisoned, held, copied_bytes, malformed }
    }
}

/// A device in DLPack's terms.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_device_t {
    /// A DLDeviceType: 1 host memory, 2 an NVIDIA GPU.
    pub device_type: i32,
    /// Its number in this process; 0 for the host.
    pub device_id: i32,
}

impl From<DLDevice> for rgaps_device_t {
    fn from(DLDevice { device_type, device_id }: DLDevice) -> Self {
        Self { device_type, device_id }
    }
}

/// Copies a text into a fixed-size array of C.
pub(crate) fn fixed_text<const N: usize>(field: &'static str, text: &str) -> Result<[c_char; N], Failure> {
    Ok(Text::<N>::new(field, text)?.bytes().map(|byte| byte as c_char))
}

/// The encoding of a name.
pub(crate) fn encoding_of(name: &str) -> Result<Encoding, Failure> {
    Ok(name.parse()?)
}

/// The field type with this code.
pub(crate) fn datatype_of(code: u32) -> Result<Datatype, Failure> {
    Datatype::from_code(code)
        .ok_or_else(|| Failure::argument(format_args!("datatype is {code}; there are 1 (int8) to 8 (float64)")))
}

/// The type of a tensor's elements.
pub(crate) fn dtype(code: u32, bits: u32) -> Result<DType, Failure> {
    match (u8::try_from(code), u8::try_from(bits)) {
        (Ok(code), Ok(bits)) => Ok(DType::scalar(code, bits)),
        _ => Err(Failure::argument(format_args!("there is no element type of code {code} and {bits} bits"))),
    }
}
