//! The buffers of a shared pool.

use std::ops::{Deref, DerefMut};

use rgaps_device::{DeviceRange, PoolPart, Stream};

use crate::endpoint::publish_error::PublishError;
use crate::endpoint::shared_pool::{BufferInner, FrozenInner};

/// A buffer of a shared pool, to be filled. Dropping it gives its bytes back to the pool; all writes there must be complete by then.
///
/// On a GPU whose memory the CPU cannot map, fill it either by kernels (`device_range`, `part`) or as a slice, not both: the slice is host memory
/// that begins as zeros, and once it was borrowed mutably, `freeze` copies all of it over the block. The slice is empty in a forked child, where the
/// pool is not mapped.
///
/// ```
/// # use rgaps::{Exhaustion, Node};
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("camera")?;
/// # let pool = node.pool(1 << 20, Exhaustion::Refuse)?;
/// let mut buffer = pool.allocate(4)?;
/// buffer.copy_from_slice(&[1, 2, 3, 4]);
/// let frozen = buffer.freeze()?;
/// assert_eq!(frozen.bytes()?, [1, 2, 3, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a buffer that is dropped is given back to its pool"]
pub struct PoolBuffer {
    pub(crate) inner: BufferInner,
}

impl PoolBuffer {
    /// Ends the filling: from now on the bytes can be published, and no longer changed.
    pub fn freeze(self) -> Result<FrozenBuffer, PublishError> {
        Ok(FrozenBuffer { inner: self.inner.freeze(None)? })
    }

    /// Like `freeze`, in stream order: the work that the stream has so far fills the buffer. Publish it with `Publisher::publish_buffer_on`. If the
    /// device fails, the buffer is lost, and its bytes stay allocated until the process ends, since the device may still write them.
    ///
    /// ```
    /// # use rgaps::{Exhaustion, Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let pool = node.pool(1 << 20, Exhaustion::Refuse)?;
    /// # let (publisher, subscriber) = (pool.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// let stream = node.stream()?;
    /// let mut buffer = pool.allocate(5)?;
    /// let copy = node.device().copy_in(&stream, b"hello", buffer.part()?)?;
    /// let buffer = buffer.freeze_on(&stream)?;
    /// publisher.publish_buffer_on(&Bytes::new(5), &buffer, &stream)?; // subscribers get it after the copy
    /// # copy.wait(std::time::Duration::from_secs(1))?;
    /// # assert_eq!(subscriber.take()?.ok_or("no message")?.bytes(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn freeze_on(self, stream: &Stream) -> Result<FrozenBuffer, PublishError> {
        Ok(FrozenBuffer { inner: self.inner.freeze(Some(stream))? })
    }

    /// The memory for kernels, of the node's device: the block, or, if that device has no peer access to it, memory that `freeze` copies into it.
    /// All writes there must be complete before the buffer is frozen or dropped, or be in the stream that it is frozen on.
    pub fn device_range(&self) -> Result<DeviceRange, PublishError> {
        self.inner.device_range()
    }

    /// The memory as the target of copies on the device (`Backend::copy_in`, `copy_within`), under the same rules.
    pub fn part(&mut self) -> Result<PoolPart<'_>, PublishError> {
        self.inner.part()
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inner.bytes()
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.inner.bytes_mut()
    }
}

/// A filled buffer of a shared pool, for `Publisher::publish_buffer`. Cheap to clone; every clone is the same bytes. They are given back to the pool
/// when all clones are dropped, and subscribers have released all messages that have them. Drop the last clone only when device work that reads or
/// fills the bytes is complete. A message of `publish_buffer_on` keeps them until the work of its stream is complete.
#[derive(Clone, Debug)]
pub struct FrozenBuffer {
    pub(crate) inner: FrozenInner,
}

impl FrozenBuffer {
    /// The bytes. Returns an error if they were frozen on a stream of a GPU, or the CPU cannot read them (copy them out with `part`), and in a forked
    /// child.
    pub fn bytes(&self) -> Result<&[u8], PublishError> {
        self.inner.bytes()
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.inner.filled.bytes as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory for kernels to read: that which kernels filled. If the node's device has no peer access to the pool and the CPU wrote the bytes, they cannot:
    /// copy them out with `part`.
    pub fn device_range(&self) -> Result<DeviceRange, PublishError> {
        self.inner.device_range()
    }

    /// The memory as the source of copies on the device (`Backend::copy_out`, `copy_within`).
    pub fn part(&self) -> Result<PoolPart<'_>, PublishError> {
        self.inner.part()
    }
}
