//! The buffers of ROS messages (`rosidl::Buffer`), for the backend that ROS's middleware loads (crates/rgaps-ros-policy, `buffers`).

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, Once, PoisonError};

use rgaps::LoanError;
use rgaps_ros_policy::buffers::{Access, Buffer, BufferError, Descriptor, Gid, NotDescribed, ProcessBuffers};

use crate::handle::{FORKS, Table, What};
use crate::node::handle;
use crate::raw;
use crate::sample::rgaps_message_handle_t;
use crate::status::rgaps_status_t::*;
use crate::status::{Failure, guard, guard_or, rgaps_status_t};
use crate::types::rgaps_device_t;

/// The bytes of a ROS message, in the process's pool or in that of the publisher that they came from. Usable from any thread.
pub struct rgaps_ros_buffer_t {
    _handle: c_void,
}

/// What middleware carries in place of the bytes, for one subscription: the bytes of rgaps_msgs/BufferDescriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_ros_descriptor_t {
    /// The payload's name.
    pub handle: rgaps_message_handle_t,
    /// The identity of the subscription that it is for, in its middleware (rmw_gid_t).
    pub subscription: [u8; 16],
    /// The subscription on whose topic the payload is: this one, or another on its host.
    pub topic: [u8; 16],
    /// The subscription whose topic this one is to join; all zeros for none.
    pub join: [u8; 16],
    /// The publishing process, to be told of the join.
    pub process: u64,
}

impl From<Descriptor> for rgaps_ros_descriptor_t {
    fn from(descriptor: Descriptor) -> Self {
        let Descriptor { handle, subscription, topic, join, process } = descriptor;
        Self { handle: handle.into(), subscription: subscription.0, topic: topic.0, join: join.0, process }
    }
}

impl From<rgaps_ros_descriptor_t> for Descriptor {
    fn from(descriptor: rgaps_ros_descriptor_t) -> Self {
        let rgaps_ros_descriptor_t { handle, subscription, topic, join, process } = descriptor;
        Self { handle: handle.into(), subscription: Gid(subscription), topic: Gid(topic), join: Gid(join), process }
    }
}

const _: () = assert!(size_of::<rgaps_ros_descriptor_t>() == Descriptor::BYTES);

/// Counters of a process's buffers, since its start.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_ros_buffers_statistics_t {
    /// Buffers that were allocated.
    pub allocated: u64,
    /// Payloads that were published, once for each subscription.
    pub published: u64,
    /// Messages that a subscription which accepts these buffers got as bytes: it was not reached, the bytes were being written, or the payload could not
    /// be published. Subscriptions that take only bytes are not counted.
    pub as_bytes: u64,
    /// Copies on the device: of buffers that were written after publication, came from another process, or were cloned while they were filled.
    pub copied: u64,
    /// Descriptors that were received.
    pub received: u64,
    /// Descriptors whose payload turned out to be missing, lost or invalid.
    pub refused: u64,
    /// Subscriptions, in this process and others, that a payload of this process reaches now.
    pub reached: u64,
    /// Bytes of the pool that are in use.
    pub used_bytes: u64,
}

/// A read or write of a buffer that has begun. It keeps what it reads.
pub struct rgaps_ros_access_t {
    _handle: c_void,
}

#[derive(Clone)]
struct RosBufferObject(Arc<Buffer>);

#[derive(Clone)]
struct RosAccessObject {
    buffer: Arc<Buffer>,
    begun: Arc<Mutex<Option<Access>>>,
}

impl RosAccessObject {
    fn new(buffer: Arc<Buffer>, begun: Access) -> Self {
        Self { buffer, begun: Arc::new(Mutex::new(Some(begun))) }
    }
}

/// Of this process and of its forebears, indexed by forks: a child touches nothing of its parent's.
static PROCESSES: [ProcessBuffers; FORKS as usize] = [const { ProcessBuffers::new() }; FORKS as usize];
static ROS_ACCESSES: Table<RosAccessObject> = Table::new(What::RosAccess);
static ROS_BUFFERS: Table<RosBufferObject> = Table::new(What::RosBuffer);

impl From<BufferError> for Failure {
    fn from(error: BufferError) -> Self {
        match error {
            BufferError::Pool(error) => error.into(),
            BufferError::Full { source: LoanError::CutOff(_) } => Self::new(RGAPS_CUT_OFF, error),
            BufferError::Full { .. } => Self::new(RGAPS_NO_SPACE, error),
            BufferError::Publish(error) => error.into(),
            BufferError::Device(_) => Self::new(RGAPS_DEVICE_ERROR, error),
            BufferError::Take(error) => error.into(),
            BufferError::Lost(_) => Self::new(RGAPS_STALE, error),
            BufferError::Length { .. } | BufferError::TooLong { .. } | BufferError::BeingWritten => {
                Self::argument(error)
            }
        }
    }
}

impl From<NotDescribed> for Failure {
    fn from(error: NotDescribed) -> Self {
        match error {
            NotDescribed::Buffer(error) => (*error).into(),
            NotDescribed::Publisher { .. } => Self::new(RGAPS_REFUSED, error),
            NotDescribed::Unknown(_) | NotDescribed::Unreached(_) => Self::new(RGAPS_NO_MESSAGE, error),
        }
    }
}

fn process() -> &'static ProcessBuffers {
    static LOG: Once = Once::new();
    // If the program has a subscriber of `tracing`, that has them.
    LOG.call_once(|| _ = rgaps::log::to_standard_error());
    &PROCESSES[(raw::forks() % FORKS) as usize]
}

fn gid(bytes: *const u8) -> Result<Gid, Failure> {
    let bytes = raw::slice(bytes, 16, "gid")?;
    bytes.try_into().map(Gid).map_err(|_| Failure::argument("a gid has 16 bytes"))
}

fn look_up(buffer: *const rgaps_ros_buffer_t) -> Result<Arc<Buffer>, Failure> {
    Ok(ROS_BUFFERS.look_up(buffer as u64)?.0)
}

fn hand_out(out: &mut MaybeUninit<*mut rgaps_ros_buffer_t>, buffer: Buffer) -> Result<(), Failure> {
    out.write(handle(&ROS_BUFFERS, RosBufferObject(Arc::new(buffer)))?);
    Ok(())
}

/// The text with which middleware announces an endpoint of this process (letters, digits, '-' and ':').
///
/// @param text      ends with a zero
/// @param capacity  at least 128
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffers_metadata(text: *mut c_char, capacity: u64) -> rgaps_status_t {
    guard(|| {
        let places = raw::places(text, capacity, "text")?;
        let made = process().metadata();
        if made.len() as u64 >= capacity {
            return Err(Failure::argument(format_args!("{capacity} B are too few for a text of {} B", made.len())));
        }
        for (place, byte) in places.iter_mut().zip(made.bytes().chain([0])) {
            place.write(byte as c_char);
        }
        Ok(())
    })
}

/// To be called when a subscription of this process is created, before others hear of it.
///
/// @param gid    16 bytes
/// @param depth  how many messages its middleware keeps; 0 if that is unknown
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffers_subscription_created(gid: *const u8, depth: u64) -> rgaps_status_t {
    guard(|| {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        process().subscription_created(self::gid(gid)?, (depth > 0).then_some(depth))?;
        Ok(())
    })
}

/// To be called when a subscription is discovered that may get messages of this process. RGAPS_NO_MESSAGE: it is of another version, and gets bytes.
///
/// @param gid       16 bytes
/// @param metadata  the text that announced it
/// @param others    16 bytes for each endpoint that its publisher here knows already
/// @param count     how many they are
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffers_subscription_discovered(
    gid: *const u8,
    metadata: *const c_char,
    others: *const u8,
    count: u64,
) -> rgaps_status_t {
    let discovered = guard_or(|| {
        let others = raw::slice(others, count.saturating_mul(16), "others")?;
        let others: Vec<Gid> = others.as_chunks().0.iter().copied().map(Gid).collect();
        let takes = process().subscription_discovered(self::gid(gid)?, raw::text(metadata, "metadata")?, &others);
        Ok(if takes { RGAPS_OK } else { RGAPS_NO_MESSAGE })
    });
    discovered.unwrap_or_else(|status| status)
}

/// To be called when a subscription of this process that takes buffers discovers a publisher. Starts a manager if none runs.
/// RGAPS_NO_MESSAGE: it is of another version, and sends bytes.
///
/// @param metadata  the text that announced it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffers_publisher_discovered(metadata: *const c_char) -> rgaps_status_t {
    let discovered = guard_or(|| {
        let sends = process().publisher_discovered(raw::text(metadata, "metadata")?)?;
        Ok(if sends { RGAPS_OK } else { RGAPS_NO_MESSAGE })
    });
    discovered.unwrap_or_else(|status| status)
}

/// Counters. All zero before the first use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffers_statistics(
    statistics: Option<&mut MaybeUninit<rgaps_ros_buffers_statistics_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = statistics.ok_or_else(|| Failure::null("statistics"))?;
        let made = process().made();
        let found = made.as_ref().map(|buffers| buffers.statistics()).unwrap_or_default();
        out.write(rgaps_ros_buffers_statistics_t {
            allocated: found.allocated,
            published: found.published,
            as_bytes: found.as_bytes,
            copied: found.copied,
            received: found.received,
            refused: found.refused,
            reached: found.reached,
            used_bytes: made.map_or(0, |buffers| buffers.used_bytes()),
        });
        Ok(())
    })
}

/// Allocates a buffer in the process's pool (`pool_bytes` of the configuration). Starts a manager if none runs. A full pool gives up what
/// subscriptions have not taken, oldest first; if that is not enough, RGAPS_NO_SPACE.
///
/// @param buffer  give it back with `rgaps_ros_buffer_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_allocate(
    bytes: u64,
    buffer: Option<&mut MaybeUninit<*mut rgaps_ros_buffer_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = buffer.ok_or_else(|| Failure::null("buffer"))?;
        hand_out(out, process().get()?.allocate(bytes)?)
    })
}

/// How many bytes it has. Until a read succeeds, a received buffer has only what its descriptor says, less than 4 GiB. 0 if the handle is invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_bytes(buffer: *const rgaps_ros_buffer_t) -> u64 {
    guard_or(|| Ok(look_up(buffer)?.len())).unwrap_or(0)
}

/// Another buffer with the same bytes: shared if they were published or received, else copied on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_clone(
    buffer: *const rgaps_ros_buffer_t,
    clone: Option<&mut MaybeUninit<*mut rgaps_ros_buffer_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = clone.ok_or_else(|| Failure::null("clone"))?;
        hand_out(out, look_up(buffer)?.duplicate()?)
    })
}

/// Waits at most a second for a payload that is later than its descriptor. RGAPS_STALE if it cannot be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_await(buffer: *const rgaps_ros_buffer_t) -> rgaps_status_t {
    guard(|| Ok(look_up(buffer)?.await_payload()?))
}

/// Begins a write by work of a stream, which follows all earlier work on the bytes. On the host backend the CPU writes. A buffer that is published
/// already, or that came from a publisher, is first copied on the device: what others read does not change. End it before the buffer is published.
///
/// @param stream   a CUstream or cudaStream_t of the device's primary context; of no meaning on the host backend
/// @param address  on the device; valid until the end of the write
/// @param access   end it with `rgaps_ros_access_end`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_begin_write(
    buffer: *const rgaps_ros_buffer_t,
    stream: *mut c_void,
    address: Option<&mut MaybeUninit<*mut c_void>>,
    access: Option<&mut MaybeUninit<*mut rgaps_ros_access_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = address.ok_or_else(|| Failure::null("address"))?;
        let access = access.ok_or_else(|| Failure::null("access"))?;
        let buffer = look_up(buffer)?;
        let begun = buffer.begin_write(raw::stream(buffer.node(), stream).as_ref())?;
        let at = begun.address;
        access.write(handle(&ROS_ACCESSES, RosAccessObject::new(buffer, begun))?);
        out.write(at as *mut c_void);
        Ok(())
    })
}

/// Begins a read by work of a stream, which follows the work that fills the bytes. On the host backend the CPU reads. Waits like
/// `rgaps_ros_buffer_await`. The bytes stay, whatever becomes of the buffer, until the read has ended and the stream's work then is done.
///
/// @param address  on the device, only for reading; valid until the end of the read
/// @param access   end it with `rgaps_ros_access_end`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_begin_read(
    buffer: *const rgaps_ros_buffer_t,
    stream: *mut c_void,
    address: Option<&mut MaybeUninit<*const c_void>>,
    access: Option<&mut MaybeUninit<*mut rgaps_ros_access_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = address.ok_or_else(|| Failure::null("address"))?;
        let access = access.ok_or_else(|| Failure::null("access"))?;
        let buffer = look_up(buffer)?;
        let begun = buffer.begin_read(raw::stream(buffer.node(), stream).as_ref())?;
        let at = begun.address;
        access.write(handle(&ROS_ACCESSES, RosAccessObject::new(buffer, begun))?);
        out.write(at as *const c_void);
        Ok(())
    })
}

/// The device that has the bytes of a read or write, in DLPack's terms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_access_device(
    access: *const rgaps_ros_access_t,
    device: Option<&mut MaybeUninit<rgaps_device_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = device.ok_or_else(|| Failure::null("device"))?;
        let RosAccessObject { begun, .. } = ROS_ACCESSES.look_up(access as u64)?;
        let begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
        // Only `rgaps_ros_access_end` takes it, in another thread.
        out.write(begun.as_ref().ok_or_else(|| Failure::argument("the access has ended"))?.device.into());
        Ok(())
    })
}

/// Ends a read or write: later work on the bytes follows the work that the stream has so far. The stream may be destroyed afterwards.
///
/// @param stream  that of the read or write
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_access_end(access: *mut rgaps_ros_access_t, stream: *mut c_void) -> rgaps_status_t {
    guard(|| {
        let RosAccessObject { buffer, begun } = ROS_ACCESSES.remove(access as u64)?;
        let begun = begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        match begun {
            Some(begun) => Ok(begun.end(raw::stream(buffer.node(), stream).as_ref())?),
            None => Ok(()),
        }
    })
}

/// Copies host memory into all of a buffer.
///
/// @param bytes  the buffer's
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_copy_in(
    buffer: *const rgaps_ros_buffer_t,
    from: *const c_void,
    bytes: u64,
) -> rgaps_status_t {
    guard(|| Ok(look_up(buffer)?.copy_in(raw::slice(from.cast(), bytes, "from")?)?))
}

/// Copies all of a buffer into host memory, after the work that fills it. Waits like `rgaps_ros_buffer_await`.
///
/// @param to     initialized memory, as of a std::vector
/// @param bytes  the buffer's
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_copy_out(
    buffer: *const rgaps_ros_buffer_t,
    to: *mut c_void,
    bytes: u64,
) -> rgaps_status_t {
    guard(|| Ok(look_up(buffer)?.copy_out(raw::bytes_mut(to, bytes, "to")?)?))
}

/// Publishes a buffer to one subscription, in the order of its writes. RGAPS_NO_MESSAGE: the subscription takes no such buffers, or is not reached
/// (yet); it gets bytes. `rgaps_error_text` says why.
///
/// @param gid         16 bytes: the subscription
/// @param descriptor  what the middleware carries in place of the bytes
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_describe(
    buffer: *const rgaps_ros_buffer_t,
    gid: *const u8,
    descriptor: Option<&mut MaybeUninit<rgaps_ros_descriptor_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = descriptor.ok_or_else(|| Failure::null("descriptor"))?;
        out.write(process().get()?.describe(look_up(buffer)?.as_ref(), self::gid(gid)?)?.into());
        Ok(())
    })
}

/// The buffer that a descriptor names. It does not wait for the payload, and one that cannot be read is an error of the buffer's reads.
///
/// @param descriptor  as it came; it may be wrong
/// @param buffer      give it back with `rgaps_ros_buffer_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_receive(
    descriptor: Option<&rgaps_ros_descriptor_t>,
    buffer: Option<&mut MaybeUninit<*mut rgaps_ros_buffer_t>>,
) -> rgaps_status_t {
    guard(|| {
        let out = buffer.ok_or_else(|| Failure::null("buffer"))?;
        let descriptor = descriptor.ok_or_else(|| Failure::null("descriptor"))?;
        let buffers = process()
            .made()
            .ok_or_else(|| Failure::new(RGAPS_STALE, "this process has no subscription that takes buffers"))?;
        hand_out(out, buffers.receive(&(*descriptor).into()))
    })
}

/// Gives a buffer back. The bytes stay until the work of its reads and writes is done, and until subscriptions have released them. NULL is not an
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_ros_buffer_release(buffer: *mut rgaps_ros_buffer_t) {
    let _ = guard(|| {
        if !buffer.is_null() {
            ROS_BUFFERS.remove(buffer as u64)?;
        }
        Ok(())
    });
}
