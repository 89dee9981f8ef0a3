//! Taken messages and their handles.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use rgaps::device::dlpack::DLManagedTensorVersioned;
use rgaps::dynamic::DynamicSample;
use rgaps::{MessageHandle, Node, Readiness};

use crate::handle::{Table, What};
use crate::node::handle;
use crate::raw;
use crate::status::{Failure, guard, rgaps_status_t};
use crate::types::{rgaps_info_t, rgaps_meta_t};

/// A taken message, in the memory where its publisher wrote it (or the manager, for a message from another host). It stays valid until it is
/// released, however many messages the publisher publishes, and may outlive its subscriber.
pub struct rgaps_sample_t {
    _handle: c_void,
}

/// The name of a message outside RGAPS: the bytes of rgaps_msgs/GpuHandle. It does not hold the message; `rgaps_subscriber_take_by_handle` checks
/// whether it still names one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_message_handle_t {
    /// Identity of the publisher's host.
    pub source_host: [u8; 16],
    /// The topic's segment on the host that wrote this.
    pub topic_id: [u8; 16],
    /// When the publisher's host started, in ns since 1970.
    pub host_epoch: u64,
    /// Identity of the publisher.
    pub publisher: u64,
    /// The publisher's sequence number, from 1.
    pub sequence: u64,
    /// Position in the topic's order on the host that wrote this.
    pub position: u64,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// Index of the message's entry in that host's message table.
    pub entry: u32,
    /// Generation of the entry.
    pub generation: u32,
    /// Version of this layout.
    pub layout_version: u32,
    /// An rgaps_kind_t.
    pub kind: u32,
}

const _: () = assert!(size_of::<rgaps_message_handle_t>() == MessageHandle::BYTES);

impl From<MessageHandle> for rgaps_message_handle_t {
    fn from(handle: MessageHandle) -> Self {
        let MessageHandle { source_host, topic_id, host_epoch, publisher, sequence, position, payload_bytes, .. } =
            handle;
        let MessageHandle { entry, generation, layout_version, kind, .. } = handle;
        Self {
            source_host,
            topic_id,
            host_epoch,
            publisher,
            sequence,
            position,
            payload_bytes,
            entry,
            generation,
            layout_version,
            kind,
        }
    }
}

impl From<rgaps_message_handle_t> for MessageHandle {
    fn from(handle: rgaps_message_handle_t) -> Self {
        let rgaps_message_handle_t { source_host, topic_id, host_epoch, publisher, sequence, position, .. } = handle;
        let rgaps_message_handle_t { payload_bytes, entry, generation, layout_version, kind, .. } = handle;
        Self {
            source_host,
            topic_id,
            host_epoch,
            publisher,
            sequence,
            position,
            payload_bytes,
            entry,
            generation,
            layout_version,
            kind,
        }
    }
}

#[derive(Clone)]
pub(crate) struct MessageObject {
    node: Node,
    message: DynamicSample,
}

static MESSAGES: Table<MessageObject> = Table::new(What::Message);

/// Gives a message a handle.
pub(crate) fn hand_out(node: &Node, message: DynamicSample) -> Result<*mut rgaps_sample_t, Failure> {
    handle(&MESSAGES, MessageObject { node: node.clone(), message })
}

/// The payload's pointer on its device.
pub(crate) fn device_pointer(message: *const rgaps_sample_t) -> Result<*const c_void, Failure> {
    let range = MESSAGES.look_up(message as u64)?.message.device_range()?;
    Ok(range.address as *const c_void)
}

/// Releases a message after the work of the caller's stream.
pub(crate) fn release(message: *mut rgaps_sample_t, stream: *mut c_void) -> Result<(), Failure> {
    let MessageObject { node, message } = MESSAGES.remove(message as u64)?;
    if let Some(stream) = raw::stream(&node, stream) {
        message.release_on(&stream)?;
    }
    Ok(())
}

/// The metadata, which describes the payload.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// rgaps_meta_t meta;
/// check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &subscriber));
/// check(rgaps_publisher_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &publisher));
/// check(rgaps_meta_image(&meta, 2, 2, "mono8"));
/// check(rgaps_publisher_push_host(publisher, &meta, "abcd", 4, NULL));
/// check(rgaps_subscriber_take(subscriber, &sample));
/// check(rgaps_sample_meta(sample, &meta));
/// assert(meta.kind == RGAPS_KIND_IMAGE && meta.as.image.width == 2);
/// check(rgaps_sample_release(sample, NULL));
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_meta(
    message: *const rgaps_sample_t,
    meta: Option<&mut MaybeUninit<rgaps_meta_t>>,
) -> rgaps_status_t {
    guard(|| {
        let message = MESSAGES.look_up(message as u64)?.message;
        meta.ok_or_else(|| Failure::null("meta"))?.write(rgaps_meta_t::of(&message.meta()));
        Ok(())
    })
}

/// The message's origin, its route and the time of each stage.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// rgaps_meta_t meta;
/// rgaps_info_t info;
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_meta_bytes(&meta, 5));
/// check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, NULL));
/// check(rgaps_subscriber_take(subscriber, &sample));
/// check(rgaps_sample_info(sample, &info));
/// printf("message %llu\n", (unsigned long long)info.sequence);
/// check(rgaps_sample_release(sample, NULL));
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_info(
    message: *const rgaps_sample_t,
    info: Option<&mut MaybeUninit<rgaps_info_t>>,
) -> rgaps_status_t {
    guard(|| {
        let message = MESSAGES.look_up(message as u64)?.message;
        let told = rgaps_info_t::new(message.info(), message.taken_ns(), message.mapped_from());
        info.ok_or_else(|| Failure::null("info"))?.write(told);
        Ok(())
    })
}

/// The handle that names the message outside RGAPS.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// rgaps_meta_t meta;
/// rgaps_message_handle_t published, taken;
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_meta_bytes(&meta, 5));
/// check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, &published));
/// check(rgaps_subscriber_take(subscriber, &sample));
/// check(rgaps_sample_handle(sample, &taken));
/// assert(taken.publisher == published.publisher && taken.sequence == published.sequence);
/// check(rgaps_sample_release(sample, NULL));
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_handle(
    message: *const rgaps_sample_t,
    handle: Option<&mut MaybeUninit<rgaps_message_handle_t>>,
) -> rgaps_status_t {
    guard(|| {
        let message = MESSAGES.look_up(message as u64)?.message;
        handle.ok_or_else(|| Failure::null("handle"))?.write(message.handle().into());
        Ok(())
    })
}

/// The payload for the CPU: in place if the CPU can read it there, else a copy that the first call makes and counts
/// (`rgaps_subscriber_statistics_t::copied_bytes`). Valid until the message is released. Do not write to it: the memory is mapped read-only, and
/// writing ends the process.
///
/// @param bytes  may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_data(
    message: *const rgaps_sample_t,
    data: Option<&mut MaybeUninit<*const c_void>>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let message = MESSAGES.look_up(message as u64)?.message;
        let data = data.ok_or_else(|| Failure::null("data"))?;
        let payload = message.to_host()?;
        data.write(payload.as_ptr().cast());
        if let Some(bytes) = bytes {
            bytes.write(payload.len() as u64);
        }
        Ok(())
    })
}

/// The payload's pointer on the device, for a kernel or a copy to read it; a plain pointer on the host backend. Valid until the message is released.
/// Work that reads it must be in the stream that the message is released on. NULL for an empty payload. Do not write to it.
///
/// @param bytes  may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_device_pointer(
    message: *const rgaps_sample_t,
    pointer: Option<&mut MaybeUninit<*const c_void>>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let out = pointer.ok_or_else(|| Failure::null("pointer"))?;
        let range = MESSAGES.look_up(message as u64)?.message.device_range()?;
        out.write(range.address as *const c_void);
        if let Some(bytes) = bytes {
            bytes.write(range.bytes);
        }
        Ok(())
    })
}

/// Whether the message's bytes are written: an rgaps_readiness_t.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// uint32_t readiness;
/// check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &subscriber));
/// if (rgaps_subscriber_take_on(subscriber, NULL, &sample) == RGAPS_OK) {
///   // here the program synchronizes the stream
///   check(rgaps_sample_readiness(sample, &readiness));
///   if (readiness != RGAPS_READINESS_READY) puts("the bytes must not be used");
///   check(rgaps_sample_release(sample, NULL));
/// }
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_readiness(
    message: *const rgaps_sample_t,
    readiness: Option<&mut MaybeUninit<u32>>,
) -> rgaps_status_t {
    guard(|| {
        let message = MESSAGES.look_up(message as u64)?.message;
        let value = match message.readiness() {
            Readiness::Pending => 0,
            Readiness::Ready => 1,
            Readiness::Poisoned => 2,
        };
        readiness.ok_or_else(|| Failure::null("readiness"))?.write(value);
        Ok(())
    })
}

/// A message as a DLPack tensor for an array library to read. The tensor holds the message, even after its handle is released. Its deleter releases
/// the message after the work that the stream has by then.
///
/// @param field   a field of a cloud's points; NULL for the whole payload
/// @param stream  the library's stream, as for `rgaps_sample_release`; it must exist until the deleter has been called
/// @param tensor  a DLManagedTensorVersioned of dlpack.h, read-only
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_dlpack(
    message: *const rgaps_sample_t,
    field: *const c_char,
    stream: *mut c_void,
    tensor: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> rgaps_status_t {
    guard(|| {
        let MessageObject { node, message } = MESSAGES.look_up(message as u64)?;
        let out = tensor.ok_or_else(|| Failure::null("tensor"))?;
        let described = match raw::optional_text(field, "field")? {
            Some(name) => message.describe_field(name)?,
            None => message.describe()?,
        };
        let tensor = message.to_dlpack(&described, raw::stream(&node, stream).as_ref())?;
        out.write(tensor.into_raw().as_ptr());
        Ok(())
    })
}

/// Releases a message. On a GPU, after the work that the stream has so far, without waiting for it. The handle is released even if the call fails.
///
/// The call fails if the stream is being captured into a CUDA graph. The message is then held until the capture ends, and the stream must exist
/// until `rgaps_subscriber_statistics` no longer counts the message as held.
///
/// @param stream  a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
///                backend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_release(message: *mut rgaps_sample_t, stream: *mut c_void) -> rgaps_status_t {
    guard(|| release(message, stream))
}
