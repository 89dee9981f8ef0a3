//! Subscribers.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rgaps::device::Stream;
use rgaps::dynamic::{DynamicSample, DynamicSubscriber, Kind};
use rgaps::{Node, SubscriberQos, TakeByHandleError};

use crate::handle::{BadHandle, Table, What};
use crate::node::{look_up as look_up_node, rgaps_node_t};
use crate::raw;
use crate::sample::{hand_out, rgaps_message_handle_t, rgaps_sample_t};
use crate::simple::release_pulled;
use crate::status::rgaps_status_t::*;
use crate::status::{Failure, guard, guard_or, rgaps_status_t};
use crate::types::{rgaps_subscriber_qos_t, rgaps_subscriber_statistics_t};

/// Takes messages of one kind from one topic. Usable from any thread.
pub struct rgaps_subscriber_t {
    _handle: c_void,
}

#[derive(Clone)]
pub(crate) struct SubscriberObject {
    pub(crate) node: Node,
    pub(crate) subscriber: DynamicSubscriber,
    pub(crate) state: Arc<State>,
}

/// The state behind a subscriber's handle.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The handle of the message that `rgaps_subscriber_pull` returned last.
    pub(crate) pulled: Mutex<u64>,
    /// The handle is destroyed; waiting calls return an error.
    is_ended: AtomicBool,
    /// `rgaps_subscriber_interrupt` was called; no call waits any more.
    is_interrupted: AtomicBool,
}

impl Drop for State {
    fn drop(&mut self) {
        // A pull may have stored its message after the handle was destroyed.
        release_pulled(self);
    }
}

impl SubscriberObject {
    pub(crate) fn is_over(&self) -> bool {
        self.state.is_ended.load(Ordering::Acquire) || self.state.is_interrupted.load(Ordering::Acquire)
    }

    /// The reason why a wait ended early, if it did.
    fn check_over(&self) -> Result<(), Failure> {
        if self.state.is_ended.load(Ordering::Acquire) {
            return Err(BadHandle::Released(What::Subscriber).into());
        }
        if self.state.is_interrupted.load(Ordering::Acquire) {
            let topic = self.subscriber.topic();
            return Err(Failure::new(
                RGAPS_TIMED_OUT,
                format_args!("{topic}: waits of this subscriber were interrupted"),
            ));
        }
        Ok(())
    }
}

pub(crate) static SUBSCRIBERS: Table<SubscriberObject> = Table::new(What::Subscriber);

/// ROS 2's default QoS: reliable, volatile, keep-last 10.
///
/// ```c
/// rgaps_subscriber_t *viewer;
/// rgaps_subscriber_qos_t qos = rgaps_subscriber_qos_default();
/// qos.depth = 1;  // only the newest message
/// check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, &qos, &viewer));
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_subscriber_qos_default() -> rgaps_subscriber_qos_t {
    rgaps_subscriber_qos_t::of(&SubscriberQos::default())
}

/// Creates a subscriber, and the topic if it does not exist. The topic's type must be of this kind. The subscriber gets every message that is
/// published after this call returns.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &subscriber));
/// rgaps_subscriber_destroy(subscriber);
/// ```
///
/// @param topic       a ROS name; the leading slash is optional
/// @param kind        an rgaps_kind_t
/// @param qos         NULL takes the default
/// @param subscriber  the subscriber; destroy it with `rgaps_subscriber_destroy`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_create(
    node: *const rgaps_node_t,
    topic: *const c_char,
    kind: u32,
    qos: Option<&rgaps_subscriber_qos_t>,
    subscriber: Option<&mut MaybeUninit<*mut rgaps_subscriber_t>>,
) -> rgaps_status_t {
    guard(|| {
        let node = look_up_node(node)?;
        let out = subscriber.ok_or_else(|| Failure::null("subscriber"))?;
        let qos = qos.map(rgaps_subscriber_qos_t::check).transpose()?.unwrap_or_default();
        let subscriber = DynamicSubscriber::new(&node, raw::text(topic, "topic")?, Kind::from_code(kind)?, qos)?;
        let object = SubscriberObject { node, subscriber, state: Arc::default() };
        out.write(crate::node::handle(&SUBSCRIBERS, object)?);
        Ok(())
    })
}

/// Destroys a subscriber. Waits and takes by handle in other threads return `RGAPS_INVALID_HANDLE`. Taken messages stay valid until they are
/// released, except the last one of `rgaps_subscriber_pull`. NULL is not an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_destroy(subscriber: *mut rgaps_subscriber_t) {
    let _ = guard(|| {
        if subscriber.is_null() {
            return Ok(());
        }
        let object = SUBSCRIBERS.remove(subscriber as u64)?;
        object.state.is_ended.store(true, Ordering::Release);
        object.subscriber.wake_waiters();
        release_pulled(&object.state);
        Ok(())
    });
}

/// Ends the subscriber's waits and takes by handle in other threads, with `RGAPS_TIMED_OUT`. Later calls do not wait, but take messages that are
/// ready. For a program that shuts down.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_subscriber_interrupt(subscriber));  // as another thread does
/// rgaps_status_t status = rgaps_subscriber_wait(subscriber, UINT64_MAX, &sample);
/// assert(status == RGAPS_TIMED_OUT);
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_interrupt(subscriber: *const rgaps_subscriber_t) -> rgaps_status_t {
    guard(|| {
        let object = SUBSCRIBERS.look_up(subscriber as u64)?;
        object.state.is_interrupted.store(true, Ordering::Release);
        object.subscriber.wake_waiters();
        Ok(())
    })
}

/// Takes the next message if one is ready; else returns `RGAPS_NO_MESSAGE`.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// rgaps_meta_t meta;
/// const void *data;
/// uint64_t bytes;
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_meta_bytes(&meta, 5));
/// check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, NULL));
/// while (rgaps_subscriber_take(subscriber, &sample) == RGAPS_OK) {
///   check(rgaps_sample_data(sample, &data, &bytes));
///   assert(bytes == 5 && memcmp(data, "hello", 5) == 0);  // read in place
///   check(rgaps_sample_release(sample, NULL));
/// }
/// ```
///
/// @param message  release it with `rgaps_sample_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_take(
    subscriber: *const rgaps_subscriber_t,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
) -> rgaps_status_t {
    give(subscriber, message, RGAPS_NO_MESSAGE, |object| Ok(object.subscriber.take()?))
}

/// Takes the next message in stream order: its bytes may not be written yet, and later work of the stream waits for them. The call does not wait for
/// the device. After synchronising the stream, `rgaps_sample_readiness` tells whether the bytes were written.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// const void *pointer;
/// check(rgaps_subscriber_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &subscriber));
/// if (rgaps_subscriber_take_on(subscriber, NULL, &sample) == RGAPS_OK) {
///   check(rgaps_sample_device_pointer(sample, &pointer, NULL));
///   // here a kernel that reads `pointer` starts on the same stream
///   check(rgaps_sample_release(sample, NULL));  // after the kernel
/// }
/// ```
///
/// @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. On the host backend this is
///                 `rgaps_subscriber_take`.
/// @param message  release it with `rgaps_sample_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_take_on(
    subscriber: *const rgaps_subscriber_t,
    stream: *mut c_void,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
) -> rgaps_status_t {
    give(subscriber, message, RGAPS_NO_MESSAGE, |object| match raw::stream(&object.node, stream) {
        Some(stream) => Ok(object.subscriber.take_on(&stream)?),
        None => Ok(object.subscriber.take()?),
    })
}

/// Takes all messages that are ready, oldest first, at most `capacity`. An error ends the batch and is returned only if the batch is empty. An error
/// that lasts (RGAPS_TOO_MANY_HELD while the batch is held) is therefore returned by the next call.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *batch[16];
/// uint64_t count;
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_subscriber_take_all(subscriber, batch, 16, &count));
/// for (uint64_t i = 0; i < count; i++) check(rgaps_sample_release(batch[i], NULL));
/// ```
///
/// @param messages  an array of `capacity` elements; release each message with `rgaps_sample_release`
/// @param count     the number of messages taken; 0 if the call fails
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_take_all(
    subscriber: *const rgaps_subscriber_t,
    messages: *mut *mut rgaps_sample_t,
    capacity: u64,
    count: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let object = SUBSCRIBERS.look_up(subscriber as u64)?;
        let places = raw::places(messages, capacity, "messages")?;
        let count = count.ok_or_else(|| Failure::null("count"))?.write(0);
        for place in places {
            let taken = object.subscriber.take().map_err(Failure::from);
            match taken.and_then(|message| message.map(|message| hand_out(&object.node, message)).transpose()) {
                Ok(Some(message)) => place.write(message),
                Err(failure) if *count == 0 => return Err(failure),
                Err(_) | Ok(None) => break,
            };
            *count += 1;
        }
        Ok(())
    })
}

/// Waits for the next message; returns `RGAPS_TIMED_OUT` if none arrives in time. Other threads may use the subscriber meanwhile.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// switch (rgaps_subscriber_wait(subscriber, 1000000, &sample)) {
///   case RGAPS_OK: check(rgaps_sample_release(sample, NULL)); break;
///   case RGAPS_TIMED_OUT: puts("no message within 1 ms"); break;
///   default: puts(rgaps_error_text());
/// }
/// ```
///
/// @param timeout_ns  maximum wait in ns; UINT64_MAX waits without limit
/// @param message     release it with `rgaps_sample_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_wait(
    subscriber: *const rgaps_subscriber_t,
    timeout_ns: u64,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
) -> rgaps_status_t {
    give(subscriber, message, RGAPS_TIMED_OUT, |object| wait(object, timeout_ns))
}

pub(crate) fn wait(object: &SubscriberObject, timeout_ns: u64) -> Result<Option<DynamicSample>, Failure> {
    let message = object.subscriber.wait_unless(timeout_of(timeout_ns), || object.is_over())?;
    if message.is_none() {
        object.check_over()?;
    }
    Ok(message)
}

fn take_by_handle(
    object: &SubscriberObject,
    handle: Option<&rgaps_message_handle_t>,
    timeout_ns: u64,
    stream: Option<Stream>,
) -> Result<Option<DynamicSample>, Failure> {
    let handle = (*handle.ok_or_else(|| Failure::null("handle"))?).into();
    let (timeout, is_over) = (timeout_of(timeout_ns), || object.is_over());
    let taken = object.subscriber.take_by_handle_unless(&handle, timeout, stream.as_ref(), is_over);
    if matches!(taken, Err(TakeByHandleError::NotHere { .. })) {
        object.check_over()?;
    }
    Ok(Some(taken?))
}

pub(crate) fn timeout_of(timeout_ns: u64) -> Duration {
    if timeout_ns == u64::MAX { Duration::MAX } else { Duration::from_nanos(timeout_ns) }
}

/// Takes the message that a handle names, in any order, and waits at most `timeout_ns` for it to arrive from another host. Earlier messages stay
/// untaken, for later takes of any kind. A keep-all subscriber keeps the newest 64 of them, and of each publisher at most half as many as it may have
/// messages; older ones are lost and counted.
///
/// Returns `RGAPS_STALE` if this subscriber neither has nor will get the message: it is of an earlier run (a replayed handle), released, or taken
/// already. Returns `RGAPS_EARLY` if the message was published before the subscriber joined: for as many handles of a publisher as the subscriber's
/// depth (64 at most), then `RGAPS_STALE`.
///
/// @param handle      a handle from a publisher or another subscriber of this topic; it may be wrong
/// @param timeout_ns  maximum wait in ns; UINT64_MAX waits without limit
/// @param stream      as for `rgaps_subscriber_take_on`: NULL with a node on a GPU is CUDA's default stream
/// @param message     release it with `rgaps_sample_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_take_by_handle_on(
    subscriber: *const rgaps_subscriber_t,
    handle: Option<&rgaps_message_handle_t>,
    timeout_ns: u64,
    stream: *mut c_void,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
) -> rgaps_status_t {
    give(subscriber, message, RGAPS_TIMED_OUT, |object| {
        take_by_handle(object, handle, timeout_ns, raw::stream(&object.node, stream))
    })
}

/// Like `rgaps_subscriber_take_by_handle_on`, but without a stream: waits for the message's bytes, too.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// rgaps_meta_t meta;
/// rgaps_message_handle_t handle;  // 88 bytes that other middleware may carry
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_meta_bytes(&meta, 5));
/// check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, &handle));
/// check(rgaps_subscriber_take_by_handle(subscriber, &handle, 1000000000, &sample));
/// check(rgaps_sample_release(sample, NULL));
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_take_by_handle(
    subscriber: *const rgaps_subscriber_t,
    handle: Option<&rgaps_message_handle_t>,
    timeout_ns: u64,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
) -> rgaps_status_t {
    give(subscriber, message, RGAPS_TIMED_OUT, |object| take_by_handle(object, handle, timeout_ns, None))
}

/// Promises that from now on takes by handle follow each publisher's order of publication. Taking a message then releases that publisher's earlier
/// untaken messages. They count as lost, except those before the first take by handle of that publisher.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_subscriber_expect_handles_in_order(subscriber));  // one thread will take all handles
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_expect_handles_in_order(
    subscriber: *const rgaps_subscriber_t,
) -> rgaps_status_t {
    guard(|| {
        SUBSCRIBERS.look_up(subscriber as u64)?.subscriber.expect_handles_in_order();
        Ok(())
    })
}

/// A file descriptor that is readable while a message may be ready, for epoll, poll and select. Do not read or close it. Take until there is no
/// message, which resets it. The subscriber owns it and closes it.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// rgaps_sample_t *sample;
/// struct pollfd watched = {.events = POLLIN};
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_subscriber_event_fd(subscriber, &watched.fd));
/// if (poll(&watched, 1, 1) > 0)
///   while (rgaps_subscriber_take(subscriber, &sample) == RGAPS_OK) check(rgaps_sample_release(sample, NULL));
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_event_fd(
    subscriber: *const rgaps_subscriber_t,
    fd: Option<&mut MaybeUninit<i32>>,
) -> rgaps_status_t {
    guard(|| {
        let subscriber = SUBSCRIBERS.look_up(subscriber as u64)?.subscriber;
        let out = fd.ok_or_else(|| Failure::null("fd"))?;
        out.write(subscriber.event_fd()?.as_raw_fd());
        Ok(())
    })
}

/// The counters of a subscriber.
///
/// ```c
/// rgaps_subscriber_t *subscriber;
/// rgaps_subscriber_statistics_t statistics;
/// check(rgaps_subscriber_create(node, "raw", RGAPS_KIND_BYTES, NULL, &subscriber));
/// check(rgaps_subscriber_statistics(subscriber, &statistics));
/// if (statistics.lost > 0) puts("too slow for this topic");
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_statistics(
    subscriber: *const rgaps_subscriber_t,
    statistics: Option<&mut MaybeUninit<rgaps_subscriber_statistics_t>>,
) -> rgaps_status_t {
    guard(|| {
        let subscriber = SUBSCRIBERS.look_up(subscriber as u64)?.subscriber;
        statistics.ok_or_else(|| Failure::null("statistics"))?.write(subscriber.statistics().into());
        Ok(())
    })
}

/// Returns a message's handle if there is a message, else the status `none`.
fn give(
    subscriber: *const rgaps_subscriber_t,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
    none: rgaps_status_t,
    take: impl FnOnce(&SubscriberObject) -> Result<Option<DynamicSample>, Failure>,
) -> rgaps_status_t {
    let given = guard_or(|| {
        let object = SUBSCRIBERS.look_up(subscriber as u64)?;
        let out = message.ok_or_else(|| Failure::null("message"))?;
        let Some(taken) = take(&object)? else {
            return match none {
                RGAPS_TIMED_OUT => {
                    Err(Failure::new(none, format_args!("{}: no message came in time", object.subscriber.topic())))
                }
                _ => Ok(none),
            };
        };
        out.write(hand_out(&object.node, taken)?);
        Ok(RGAPS_OK)
    });
    given.unwrap_or_else(|status| status)
}
