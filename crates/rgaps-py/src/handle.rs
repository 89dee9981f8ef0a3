//! Handles: names of messages outside RGAPS, above all in ROS messages.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::info::{Identity, mapping};

mapping! {
    /// Names a message outside RGAPS: 88 bytes, those of rgaps_msgs/GpuHandle. A handle does not hold its message;
    /// `Subscriber.take_by_handle` takes the message if it still exists.
    ///
    /// `bytes(handle)` and `MessageHandle.from_bytes` turn it into bytes and back.
    ///
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> rgaps.MessageHandle.from_bytes(bytes(handle)) == handle, handle.sequence
    /// (True, 1)
    MessageHandle {
        /// Host of the publisher, 16 bytes.
        source_host: Identity,
        /// The topic's segment on the host that wrote this handle, 16 bytes.
        topic_id: Identity,
        /// When the publisher's host started, in ns since 1970 on its clock. It tells handles of earlier runs apart.
        host_epoch: u64,
        /// Identity of the publisher.
        publisher: u64,
        /// The publisher's sequence number of the message, from 1.
        sequence: u64,
        /// Position in the topic's order on the host that wrote this handle.
        position: u64,
        /// Bytes of the payload.
        payload_bytes: u64,
        /// Index in that host's message table.
        entry: u32,
        /// Generation of the entry.
        generation: u32,
        /// Version of the handle's layout; other versions are refused.
        layout_version: u32,
        /// The kind of message: 1 for images, 2 for point clouds, 3 for tensors, 0 for bytes.
        kind: u32,
    } {
        /// Makes a handle of 88 bytes: bytes, or anything with a buffer. Only a take tells whether it names a message.
        #[staticmethod]
        fn from_bytes(bytes: &Bound<'_, PyAny>) -> PyResult<Self> {
            read(bytes).map(Self::from)
        }

        fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
            PyBytes::new(py, &rgaps::MessageHandle::from(self).to_bytes())
        }
    }
}

/// Reads a handle, or 88 bytes that form one.
pub(crate) fn of_python(object: &Bound<'_, PyAny>) -> PyResult<rgaps::MessageHandle> {
    match object.cast::<MessageHandle>() {
        Ok(handle) => Ok(rgaps::MessageHandle::from(handle.get())),
        Err(_) => read(object),
    }
}

fn read(object: &Bound<'_, PyAny>) -> PyResult<rgaps::MessageHandle> {
    // `bytes(object)` would turn a number into that many zeros, and fail on a str for want of an encoding.
    let found = object.get_type();
    let view = object.py().import("builtins")?.getattr("memoryview")?.call1((object,));
    let Ok(view) = view else {
        return Err(PyTypeError::new_err(format!("a handle must be an rgaps.MessageHandle or its bytes, not {found}")));
    };
    let bytes = view.call_method0("tobytes")?;
    let bytes = bytes.cast::<PyBytes>()?.as_bytes();
    let wrong = |_| {
        errors::metadata(&format!("a handle has {} B, but {} B were given", rgaps::MessageHandle::BYTES, bytes.len()))
    };
    Ok(rgaps::MessageHandle::from_bytes(bytes.try_into().map_err(wrong)?))
}

impl From<rgaps::MessageHandle> for MessageHandle {
    fn from(handle: rgaps::MessageHandle) -> Self {
        Self {
            source_host: Identity(handle.source_host),
            topic_id: Identity(handle.topic_id),
            host_epoch: handle.host_epoch,
            publisher: handle.publisher,
            sequence: handle.sequence,
            position: handle.position,
            payload_bytes: handle.payload_bytes,
            entry: handle.entry,
            generation: handle.generation,
            layout_version: handle.layout_version,
            kind: handle.kind,
        }
    }
}

impl From<&MessageHandle> for rgaps::MessageHandle {
    fn from(handle: &MessageHandle) -> Self {
        Self {
            source_host: handle.source_host.0,
            topic_id: handle.topic_id.0,
            host_epoch: handle.host_epoch,
            publisher: handle.publisher,
            sequence: handle.sequence,
            position: handle.position,
            payload_bytes: handle.payload_bytes,
            entry: handle.entry,
            generation: handle.generation,
            layout_version: handle.layout_version,
            kind: handle.kind,
        }
    }
}
