//! Messages that have been taken.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use rgaps::device::dlpack::DLManagedTensorVersioned;
use rgaps::dynamic::DynamicSample;
use rgaps::{Handle, Node, Readiness};

use crate::handle::{Table, What};
use crate::node::handle;
use crate::raw;
use crate::status::{Failure, guard, rgaps_status_t};
use crate::types::{rgaps_info_t, rgaps_meta_t};

/// A message that is being read, in the memory where its publisher (or, from another host, the manager) put it. It stays as it is until it is
/// released, however far the publisher runs ahead, and outlives its subscriber.
pub struct rgaps_sample_t {
    _handle: c_void,
}

/// Names a message outside RGAPS: the bytes of rgaps_msgs/GpuHandle. It holds nothing; `rgaps_subscriber_take_by_handle` says what it still names.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_message_handle_t {
    /// Identity of the publisher's host.
    pub source_host: [u8; 16],
    /// The topic's segment on the host that wrote this.
    pub topic_id: [u8; 16],
    /// ns since 1970 when the publisher's host came to life.
    pub host_epoch: u64,
    /// Identity of the publisher.
    pub publisher: u64,
    /// The publisher's count of its messages, from 1.
    pub sequence: u64,
    /// Place in the order of the topic on the host that wrote this.
    pub position: u64,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// Entry of that host's message table.
    pub slot: u32,
    /// Which of the entry's lives.
    pub generation: u32,
    /// Of this layout.
    pub layout_version: u32,
    /// An rgaps_kind_t.
    pub kind: u32,
}

const _: () = assert!(size_of::<rgaps_message_handle_t>() == Handle::BYTES);

impl From<Handle> for rgaps_message_handle_t {
    fn from(handle: Handle) -> Self {
        let Handle { source_host, topic_id, host_epoch, publisher, sequence, position, payload_bytes, .. } = handle;
        let Handle { slot, generation, layout_version, kind, .. } = handle;
        Self {
            source_host,
            topic_id,
            host_epoch,
            publisher,
            sequence,
            position,
            payload_bytes,
            slot,
            generation,
            layout_version,
            kind,
        }
    }
}

impl From<rgaps_message_handle_t> for Handle {
    fn from(handle: rgaps_message_handle_t) -> Self {
        let rgaps_message_handle_t { source_host, topic_id, host_epoch, publisher, sequence, position, .. } = handle;
        let rgaps_message_handle_t { payload_bytes, slot, generation, layout_version, kind, .. } = handle;
        Self {
            source_host,
            topic_id,
            host_epoch,
            publisher,
            sequence,
            position,
            payload_bytes,
            slot,
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

/// Lets a message go behind a stream of the caller's.
pub(crate) fn release(message: *mut rgaps_sample_t, stream: *mut c_void) -> Result<(), Failure> {
    let MessageObject { node, message } = MESSAGES.remove(message as u64)?;
    if let Some(stream) = raw::stream(&node, stream) {
        message.release_on(&stream)?;
    }
    Ok(())
}

/// What the payload is.
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

/// Where the message came from, the path that it took and when it passed each stage.
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

/// What names the message outside RGAPS.
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

/// The payload for the CPU: in place where it can read it; from a GPU a copy, fetched at the first call and counted
/// (`rgaps_subscriber_statistics_t::copied_bytes`). Valid until the message is released. It must not be written: the memory is mapped for
/// reading, and writing there ends the process.
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

/// Where the payload lies on the device, for a kernel or a copy to read it; on the host backend a plain pointer. Valid until the message is
/// released; what reads it is given to the stream that it is released on. NULL for a payload without bytes. It must not be written.
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

/// Whether the message's bytes are there: an rgaps_readiness_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_readiness(
    message: *const rgaps_sample_t,
    readiness: Option<&mut MaybeUninit<u32>>,
) -> rgaps_status_t {
    guard(|| {
        let message = MESSAGES.look_up(message as u64)?.message;
        let status = match message.status() {
            Readiness::Pending => 0,
            Readiness::Ready => 1,
            Readiness::Poisoned => 2,
        };
        readiness.ok_or_else(|| Failure::null("readiness"))?.write(status);
        Ok(())
    })
}

/// A message as a DLPack tensor for an array library to read. The tensor holds the message, whatever becomes of its handle, until its deleter
/// is called, and then releases it behind the work that the stream has got by then.
///
/// @param field   of a cloud, one field of its points; NULL for the whole payload
/// @param stream  on which the library works, as for `rgaps_sample_release`; it must live until the deleter has been called
/// @param tensor  a DLManagedTensorVersioned of dlpack.h, read only
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

/// Lets a message go. On a GPU behind the work given to the stream so far, which reads it; the call does not wait for it. The handle is
/// released, whatever is returned.
///
/// A stream that is being captured into a CUDA graph takes no message back, which is the error: the message is held until the capture is
/// over and `rgaps_subscriber_statistics` counts it no longer, and the stream has to live for so long.
///
/// @param stream  a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
///                backend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_sample_release(message: *mut rgaps_sample_t, stream: *mut c_void) -> rgaps_status_t {
    guard(|| release(message, stream))
}
