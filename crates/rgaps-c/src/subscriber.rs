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

/// What the users of a subscriber's handle share.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The message that `rgaps_subscriber_pull` gave out last: its handle.
    pub(crate) pulled: Mutex<u64>,
    /// Its handle is released; whoever still waits gives up.
    is_ended: AtomicBool,
    /// Nobody is to wait any more.
    is_interrupted: AtomicBool,
}

impl Drop for State {
    fn drop(&mut self) {
        // A pull that was under way when the handle was released.
        release_pulled(self);
    }
}

impl SubscriberObject {
    fn is_over(&self) -> bool {
        self.state.is_ended.load(Ordering::Acquire) || self.state.is_interrupted.load(Ordering::Acquire)
    }

    /// Why nothing was waited for, if it was for that.
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
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_subscriber_qos_default() -> rgaps_subscriber_qos_t {
    rgaps_subscriber_qos_t::of(&SubscriberQos::default())
}

/// Makes a subscriber. The topic is made if it does not exist; its type must be of this kind. From the return on, no message is missed.
///
/// @param topic       a ROS name; with or without the leading slash it is one
/// @param kind        an rgaps_kind_t
/// @param qos         NULL takes the default
/// @param subscriber  the subscriber; `rgaps_subscriber_destroy` ends it
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

/// Ends a subscriber; threads that wait for its messages, or for one that they take by handle, are told that it is gone (`RGAPS_INVALID_HANDLE`). Messages that it has taken stay
/// until they are released, but for the one that `rgaps_subscriber_pull` gave out. NULL is no error.
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

/// Ends the waits and takes by handle of a subscriber that other threads are in, with `RGAPS_TIMED_OUT`, and lets no later one wait: what is there is taken
/// and taken as before. For a program that shuts down.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_interrupt(subscriber: *const rgaps_subscriber_t) -> rgaps_status_t {
    guard(|| {
        let object = SUBSCRIBERS.look_up(subscriber as u64)?;
        object.state.is_interrupted.store(true, Ordering::Release);
        object.subscriber.wake_waiters();
        Ok(())
    })
}

/// The next message if one is ready, with its bytes there; else `RGAPS_NO_MESSAGE`.
///
/// @param message  ends with `rgaps_sample_release`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_take(
    subscriber: *const rgaps_subscriber_t,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
) -> rgaps_status_t {
    give(subscriber, message, RGAPS_NO_MESSAGE, |object| Ok(object.subscriber.take()?))
}

/// The next message, whose bytes the device may still have to bring: later work of the stream waits for them. The call does not wait for the
/// device. `rgaps_sample_readiness` tells, after the stream has been synchronised, whether they came.
///
/// @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. On the host backend this is
///                 `rgaps_subscriber_take`.
/// @param message  ends with `rgaps_sample_release`
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

/// Everything that can be taken now, oldest first, at most `capacity` messages. What fails after the first one ends the batch; it is told by a
/// call that takes nothing, and so by the next one if it lasts, as RGAPS_TOO_MANY_HELD does while the batch is held.
///
/// @param messages  `capacity` places; each message that was given out ends with `rgaps_sample_release`
/// @param count     how many there are; 0 if the call fails
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

/// The next message, with its bytes there; `RGAPS_TIMED_OUT` if none came in time. Other threads may use the subscriber meanwhile.
///
/// @param timeout_ns  ns to wait at most; UINT64_MAX for as long as it takes
/// @param message     ends with `rgaps_sample_release`
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

fn timeout_of(timeout_ns: u64) -> Duration {
    if timeout_ns == u64::MAX { Duration::MAX } else { Duration::from_nanos(timeout_ns) }
}

/// The message that a handle names, as this subscriber gets it: in its order or out of it. Waits at most `timeout_ns` for it to come from
/// another host. Messages before it stay as if they had not been read, for later takes by handle and in turn; of a keep-all subscriber, the newest 64.
///
/// `RGAPS_STALE` if the handle names nothing that this subscriber has or will have: of an earlier run (replayed), released, or taken before.
/// `RGAPS_EARLY` if it was published before the subscriber was there; that is said of as many of a publisher as the subscriber is deep (64 at
/// most), and more of them are `RGAPS_STALE`.
///
/// @param handle      from a publisher of this topic, or another subscriber, by any way; it may be wrong
/// @param timeout_ns  ns to wait at most; UINT64_MAX for as long as it takes
/// @param stream      as for `rgaps_subscriber_take_on`: NULL with a node on a GPU is CUDA's default stream
/// @param message     ends with `rgaps_sample_release`
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

/// As `rgaps_subscriber_take_by_handle_on`, with the message's bytes there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_take_by_handle(
    subscriber: *const rgaps_subscriber_t,
    handle: Option<&rgaps_message_handle_t>,
    timeout_ns: u64,
    message: Option<&mut MaybeUninit<*mut rgaps_sample_t>>,
) -> rgaps_status_t {
    give(subscriber, message, RGAPS_TIMED_OUT, |object| take_by_handle(object, handle, timeout_ns, None))
}

/// From now on takes by handle come in the order in which each publisher has published: what lies before a message that is taken, of its publisher,
/// is released and not kept for later takes by handle. It counts as lost, but for what came before the first take by handle of that publisher.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_expect_handles_in_order(
    subscriber: *const rgaps_subscriber_t,
) -> rgaps_status_t {
    guard(|| {
        SUBSCRIBERS.look_up(subscriber as u64)?.subscriber.expect_handles_in_order();
        Ok(())
    })
}

/// A descriptor that is readable while a message may be ready, for epoll, poll and select. Do not read or close it: take until there is no
/// message, which silences it. It is the subscriber's, and ends with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_fd(
    subscriber: *const rgaps_subscriber_t,
    fd: Option<&mut MaybeUninit<i32>>,
) -> rgaps_status_t {
    guard(|| {
        let subscriber = SUBSCRIBERS.look_up(subscriber as u64)?.subscriber;
        let out = fd.ok_or_else(|| Failure::null("fd"))?;
        out.write(subscriber.descriptor()?.as_raw_fd());
        Ok(())
    })
}

/// The counters of a subscriber.
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

/// Gives a message out if there is one; if not, says `none`.
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
