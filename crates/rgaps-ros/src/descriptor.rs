//! Descriptors as types of this crate: fixed bytes, for which the clients' traits are implemented. `rgaps_ros_policy::descriptor` has their layout
//! and checks.

use rgaps::MessageHandle;
use rgaps::dynamic::Kind;
use rgaps::types::{Image, Meta, MetaError, PointCloud, Tensor};
pub use rgaps_ros_policy::descriptor::DescriptorError;
use rgaps_ros_policy::descriptor::{self as layout, bytes_of};

/// A message of rgaps_msgs.
pub trait Descriptor: Clone + Default + std::fmt::Debug + Send + Sync + 'static {
    /// The metadata in it.
    type Meta: RosKind<Message = Self>;
    /// The kind of message.
    const KIND: Kind;
    /// Its name in ROS.
    const TYPE_NAME: &'static str;
    /// Its length.
    const BYTES: usize;

    /// The descriptor of a published message.
    fn new(handle: &MessageHandle, meta: &Self::Meta) -> Self;

    /// Its bytes in memory.
    fn as_bytes(&self) -> &[u8];

    /// Reads the bytes of `as_bytes`, perhaps of another program; `None` if the length differs.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;

    /// The handle. Only a take tells whether its message exists.
    fn handle(&self) -> MessageHandle {
        self.as_bytes().first_chunk().map(MessageHandle::from_bytes).unwrap_or_default()
    }

    /// The handle, if the descriptor does not contradict itself.
    fn checked(&self) -> Result<MessageHandle, DescriptorError> {
        layout::read(Self::KIND, self.as_bytes()).map(|(handle, _)| handle)
    }

    /// The metadata; an error if it breaks the rules of its type.
    fn meta(&self) -> Result<Self::Meta, MetaError> {
        Self::Meta::decode(&self.as_bytes()[MessageHandle::BYTES..][..Self::Meta::ENCODED_BYTES])
    }
}

/// A kind of payload that has a descriptor in ROS.
pub trait RosKind: Meta {
    /// Its descriptor.
    type Message: Descriptor<Meta = Self>;
}

macro_rules! message {
    ($(#[$doc:meta])* $name:ident of $kind:ident) => {
        $(#[$doc])*
        #[repr(C, align(8))]
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name([u8; bytes_of($kind::ENCODED_BYTES)]);

        const _: () = assert!(size_of::<$name>() == $name::BYTES);

        impl Descriptor for $name {
            type Meta = $kind;
            const KIND: Kind = Kind::$kind;
            const TYPE_NAME: &'static str = concat!("rgaps_msgs/msg/", stringify!($name));
            const BYTES: usize = bytes_of($kind::ENCODED_BYTES);

            fn new(handle: &MessageHandle, meta: &$kind) -> Self {
                let mut message = Self::default();
                layout::write(handle, &(*meta).into(), &mut message.0);
                message
            }

            fn as_bytes(&self) -> &[u8] {
                &self.0
            }

            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self([0; bytes_of($kind::ENCODED_BYTES)])
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("handle", &self.handle()).field("meta", &self.meta()).finish()
            }
        }

        impl RosKind for $kind {
            type Message = $name;
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                bytes::serialize(&self.0, serializer)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                bytes::deserialize(deserializer).map(Self)
            }
        }
    };
}

message! {
    /// An image.
    GpuImage of Image
}
message! {
    /// A point cloud.
    GpuPointCloud of PointCloud
}
message! {
    /// A tensor.
    GpuTensor of Tensor
}

/// Bytes as a serde tuple, which CDR writes one after another.
#[cfg(feature = "serde")]
mod bytes {
    use serde::de::{Deserializer, Error, SeqAccess, Visitor};
    use serde::ser::{SerializeTuple, Serializer};

    pub(super) fn serialize<S: Serializer, const N: usize>(bytes: &[u8; N], serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(N)?;
        bytes.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<[u8; N], D::Error> {
        from.deserialize_tuple(N, Bytes)
    }

    struct Bytes<const N: usize>;

    impl<'de, const N: usize> Visitor<'de> for Bytes<N> {
        type Value = [u8; N];

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{N} bytes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<[u8; N], A::Error> {
            let mut bytes = [0; N];
            for (place, byte) in bytes.iter_mut().enumerate() {
                *byte = from.next_element()?.ok_or_else(|| A::Error::invalid_length(place, &self))?;
            }
            Ok(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps::types::{DType, Datatype, Encoding};

    fn survives<T: RosKind>(meta: T, name: &str) {
        let (kind, layout_version, payload_bytes) = (T::KIND, MessageHandle::LAYOUT_VERSION, meta.payload_bytes());
        let handle = MessageHandle { sequence: 7, kind, layout_version, payload_bytes, ..MessageHandle::default() };
        let message = T::Message::new(&handle, &meta);
        assert_eq!((T::Message::TYPE_NAME, message.as_bytes().len()), (name, T::Message::BYTES));
        assert_eq!(T::Message::TYPE_NAME, layout::type_name(T::Message::KIND));
        assert_eq!((message.handle(), message.meta().unwrap(), message.checked()), (handle, meta, Ok(handle)));
        let again = T::Message::from_bytes(message.as_bytes()).unwrap();
        assert_eq!(again.as_bytes(), message.as_bytes());
        assert!(T::Message::from_bytes(&message.as_bytes()[1..]).is_none());
        assert!(T::Message::default().checked().is_err());
    }

    #[test]
    fn a_descriptor_holds_handle_and_metadata_and_round_trips_as_bytes() {
        survives(Image::new(64, 48, Encoding::Rgb8).unwrap(), "rgaps_msgs/msg/GpuImage");
        survives(PointCloud::packed(3, &[("x", Datatype::Float32)]).unwrap(), "rgaps_msgs/msg/GpuPointCloud");
        survives(Tensor::new(DType::FLOAT32, &[2, 3]).unwrap(), "rgaps_msgs/msg/GpuTensor");
    }

    #[test]
    fn invalid_metadata_is_an_error_and_no_panic() {
        let nonsense = GpuImage::from_bytes(&[0xff; 216]).unwrap();
        assert!(nonsense.meta().is_err());
        assert!(format!("{nonsense:?}").contains("handle"));
    }
}
