//! Pools that publishers of several topics share, and their buffers.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rgaps::dynamic::{DynamicPublisher, Kind};
use rgaps::{FrozenBuffer, Node, Pool, PoolBuffer};

use crate::handle::{Table, What};
use crate::node::{handle, look_up as look_up_node, rgaps_node_t};
use crate::publisher::{PUBLISHERS, PublisherObject, rgaps_publisher_t, say};
use crate::raw;
use crate::sample::rgaps_message_handle_t;
use crate::status::{Failure, guard, guard_or, rgaps_status_t};
use crate::types::{rgaps_meta_t, rgaps_publisher_qos_t};

/// A pool that publishers of several topics share. Usable from any thread.
pub struct rgaps_pool_t {
    _handle: c_void,
}

/// A buffer of a shared pool. Fill it from one thread; once it is frozen, any thread may read and publish it.
pub struct rgaps_buffer_t {
    _handle: c_void,
}

#[derive(Clone)]
struct PoolObject {
    node: Node,
    pool: Pool,
}

enum Content {
    Filling(PoolBuffer),
    Frozen(FrozenBuffer),
    /// Freezing has failed.
    Lost,
}

#[derive(Clone)]
struct BufferObject {
    node: Node,
    content: Arc<Mutex<Content>>,
}

static POOLS: Table<PoolObject> = Table::new(What::Pool);
static BUFFERS: Table<BufferObject> = Table::new(What::Buffer);

impl BufferObject {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn filling<R>(&self, body: impl FnOnce(&mut PoolBuffer) -> Result<R, Failure>) -> Result<R, Failure> {
        match &mut *self.lock() {
            Content::Filling(buffer) => body(buffer),
            Content::Frozen(_) => Err(Failure::argument("the buffer is frozen: allocate another one, and fill that")),
            Content::Lost => Err(lost()),
        }
    }

    fn frozen(&self) -> Result<FrozenBuffer, Failure> {
        match &*self.lock() {
            Content::Frozen(buffer) => Ok(buffer.clone()),
            Content::Filling(_) => Err(Failure::argument("the buffer is not frozen: call rgaps_buffer_freeze first")),
            Content::Lost => Err(lost()),
        }
    }
}

fn lost() -> Failure {
    Failure::argument("freezing the buffer has failed: release it, and allocate another one")
}

/// Creates a pool of `bytes` bytes that publishers of several topics share: one buffer of it can be a message of each.
///
/// ```c
/// rgaps_pool_t *pool;
/// rgaps_publisher_t *left, *right;
/// rgaps_buffer_t *buffer;
/// rgaps_meta_t meta;
/// void *data;
/// check(rgaps_pool_create(node, 64 << 20, NULL, &pool));
/// check(rgaps_publisher_create_in_pool(pool, "left", RGAPS_KIND_BYTES, NULL, &left));
/// check(rgaps_publisher_create_in_pool(pool, "right", RGAPS_KIND_BYTES, NULL, &right));
/// check(rgaps_pool_allocate(pool, 5, &buffer));
/// check(rgaps_buffer_data(buffer, &data, NULL));
/// memcpy(data, "hello", 5);
/// check(rgaps_buffer_freeze(buffer, NULL));
/// check(rgaps_meta_bytes(&meta, 5));
/// check(rgaps_publisher_publish_buffer(left, &meta, buffer, NULL, NULL));
/// check(rgaps_publisher_publish_buffer(right, &meta, buffer, NULL, NULL));  // the same bytes, not a copy
/// rgaps_buffer_release(buffer);
/// rgaps_pool_destroy(pool);
/// ```
///
/// @param qos   its `exhaustion` and `exhaustion_timeout_ms` say what `rgaps_pool_allocate` does when the pool is full; NULL takes the default
/// @param pool  destroy it with `rgaps_pool_destroy`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_pool_create(
    node: *const rgaps_node_t,
    bytes: u64,
    qos: Option<&rgaps_publisher_qos_t>,
    pool: Option<&mut MaybeUninit<*mut rgaps_pool_t>>,
) -> rgaps_status_t {
    guard(|| {
        let node = look_up_node(node)?;
        let out = pool.ok_or_else(|| Failure::null("pool"))?;
        let qos = qos.map(rgaps_publisher_qos_t::check).transpose()?.unwrap_or_default();
        let pool = node.pool(bytes, qos.exhaustion)?;
        out.write(handle(&POOLS, PoolObject { node, pool })?);
        Ok(())
    })
}

/// Destroys a pool. Its buffers and publishers can still be used; its memory is freed after the last of them. NULL is not an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_pool_destroy(pool: *mut rgaps_pool_t) {
    let _ = guard(|| {
        if !pool.is_null() {
            POOLS.remove(pool as u64)?;
        }
        Ok(())
    });
}

/// Bytes in blocks: of buffers, and of messages that are not released. 0 if the handle is invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_pool_used_bytes(pool: *const rgaps_pool_t) -> u64 {
    guard_or(|| Ok(POOLS.look_up(pool as u64)?.pool.used_bytes())).unwrap_or(0)
}

/// Creates a publisher in a pool, like `rgaps_publisher_create`; `pool_bytes` has no effect. Its loans and pushes use the pool, too.
///
/// @param kind       an rgaps_kind_t
/// @param qos        NULL takes the default
/// @param publisher  the publisher; destroy it with `rgaps_publisher_destroy`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_create_in_pool(
    pool: *const rgaps_pool_t,
    topic: *const c_char,
    kind: u32,
    qos: Option<&rgaps_publisher_qos_t>,
    publisher: Option<&mut MaybeUninit<*mut rgaps_publisher_t>>,
) -> rgaps_status_t {
    guard(|| {
        let PoolObject { node, pool } = POOLS.look_up(pool as u64)?;
        let out = publisher.ok_or_else(|| Failure::null("publisher"))?;
        let qos = qos.map(rgaps_publisher_qos_t::check).transpose()?.unwrap_or_default();
        let kind = Kind::from_code(kind)?;
        let publisher = DynamicPublisher::in_pool(&pool, raw::text(topic, "topic")?, kind, qos)?;
        out.write(handle(&PUBLISHERS, PublisherObject { node, publisher })?);
        Ok(())
    })
}

/// Allocates a buffer. Its bytes are not cleared: fill all of them. If the pool is full, it depends on the pool's QoS:
/// - RGAPS_REFUSE: RGAPS_NO_SPACE.
/// - RGAPS_DROP_OLDEST: gives up messages of all topics in the pool, what keep-last subscribers have not read, oldest first, then history; if that is
///   not enough, RGAPS_NO_SPACE.
/// - RGAPS_WAIT: waits at most `exhaustion_timeout_ms`, then gives up the same of subscribers that read nothing meanwhile, or RGAPS_TIMED_OUT.
///
/// Never given up are buffers, held messages, and what keep-all subscribers have not read.
///
/// @param buffer  give it back with `rgaps_buffer_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_pool_allocate(
    pool: *const rgaps_pool_t,
    bytes: u64,
    buffer: Option<&mut MaybeUninit<*mut rgaps_buffer_t>>,
) -> rgaps_status_t {
    guard(|| {
        let PoolObject { node, pool } = POOLS.look_up(pool as u64)?;
        let out = buffer.ok_or_else(|| Failure::null("buffer"))?;
        let content = Arc::new(Mutex::new(Content::Filling(pool.allocate(bytes)?)));
        out.write(handle(&BUFFERS, BufferObject { node, content })?);
        Ok(())
    })
}

/// The memory in which the CPU fills a buffer: the block itself, or, if the CPU cannot map it, host memory of zeros that freezing copies over the
/// whole block; so call it only if the CPU fills the buffer. Valid until the buffer is frozen or released. A frozen buffer is refused.
///
/// @param bytes  may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_buffer_data(
    buffer: *const rgaps_buffer_t,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let data = data.ok_or_else(|| Failure::null("data"))?;
        BUFFERS.look_up(buffer as u64)?.filling(|buffer| {
            data.write(buffer.as_mut_ptr().cast());
            if let Some(bytes) = bytes {
                bytes.write(buffer.len() as u64);
            }
            Ok(())
        })
    })
}

/// The device memory of a buffer. Until it is frozen, kernels and copies fill it there; their work must be in the stream that the buffer is frozen
/// on. Then they may only read it. Valid until the buffer is frozen or released: ask again after freezing. On the host backend a pointer for the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_buffer_device_pointer(
    buffer: *const rgaps_buffer_t,
    pointer: Option<&mut MaybeUninit<*mut c_void>>,
) -> rgaps_status_t {
    guard(|| {
        let pointer = pointer.ok_or_else(|| Failure::null("pointer"))?;
        let range = match &*BUFFERS.look_up(buffer as u64)?.lock() {
            Content::Filling(buffer) => buffer.device_range()?,
            Content::Frozen(buffer) => buffer.device_range()?,
            Content::Lost => return Err(lost()),
        };
        pointer.write(range.address as *mut c_void);
        Ok(())
    })
}

/// Ends the filling of a buffer: from now on it can be published, and no longer changed. On a GPU in stream order: the work that the stream has so
/// far fills it, and `rgaps_publisher_publish_buffer` gets the same stream. If the device fails, the buffer can only be released, and its bytes stay
/// in use until the process ends.
///
/// @param stream  a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host backend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_buffer_freeze(buffer: *const rgaps_buffer_t, stream: *mut c_void) -> rgaps_status_t {
    guard(|| {
        let object = BUFFERS.look_up(buffer as u64)?;
        let mut content = object.lock();
        match std::mem::replace(&mut *content, Content::Lost) {
            Content::Filling(buffer) => {
                *content = Content::Frozen(match raw::stream(&object.node, stream) {
                    Some(stream) => buffer.freeze_on(&stream)?,
                    None => buffer.freeze()?,
                });
                Ok(())
            }
            Content::Frozen(frozen) => {
                *content = Content::Frozen(frozen);
                Err(Failure::argument("the buffer is frozen already"))
            }
            Content::Lost => Err(lost()),
        }
    })
}

/// Publishes a frozen buffer with a publisher of its pool, without a copy. It may be published again, on this topic and on others. A buffer that is
/// not frozen, of another pool or of another length than `meta` describes is RGAPS_INVALID_ARGUMENT.
///
/// @param meta    describes as many bytes as the buffer has
/// @param stream  the stream of `rgaps_buffer_freeze`, or one that waits for it; subscribers get the message after the work that it has so far
/// @param handle  names the message; may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_publish_buffer(
    publisher: *const rgaps_publisher_t,
    meta: Option<&rgaps_meta_t>,
    buffer: *const rgaps_buffer_t,
    stream: *mut c_void,
    handle: Option<&mut MaybeUninit<rgaps_message_handle_t>>,
) -> rgaps_status_t {
    guard(|| {
        let PublisherObject { node, publisher } = PUBLISHERS.look_up(publisher as u64)?;
        let meta = meta.ok_or_else(|| Failure::null("meta"))?.check()?;
        let buffer = BUFFERS.look_up(buffer as u64)?.frozen()?;
        let published = match raw::stream(&node, stream) {
            Some(stream) => publisher.publish_buffer_on(&meta, &buffer, &stream)?,
            None => publisher.publish_buffer(&meta, &buffer)?,
        };
        say(handle, published)
    })
}

/// Gives a buffer back. Messages that have it stay until subscribers release them. Device work that reads or writes it must be complete, except that
/// of a stream on which it was published. NULL is not an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_buffer_release(buffer: *mut rgaps_buffer_t) {
    let _ = guard(|| {
        if !buffer.is_null() {
            BUFFERS.remove(buffer as u64)?;
        }
        Ok(())
    });
}
