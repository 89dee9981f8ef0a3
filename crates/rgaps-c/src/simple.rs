//! The paper's six calls: publishers and subscribers of raw bytes, each created from a topic name alone. They use the same handles as the other
//! calls, so statistics, file descriptors and time-outs work for them too.
//!
//! Source      Jiang, master's thesis (RGAPS), 2026, section 3.7, with the prefix `rgaps_` added to names. Decided here, since it does not say:
//!             each handle has its own node; the kind is bytes; device work is in CUDA's default stream; a pull waits, and releases the previous
//!             message, because there is no call for that.

use std::ffi::{c_char, c_void};
use std::sync::PoisonError;

use rgaps::Node;
use rgaps::dynamic::{DynamicMeta, DynamicPublisher, DynamicSubscriber, Kind};
use rgaps::types::Bytes;
use rgaps::{PublisherQos, SubscriberQos};

use crate::node::{check_abi, handle};
use crate::publisher::{PUBLISHERS, PublisherObject, rgaps_publisher_t};
use crate::raw;
use crate::sample::{device_pointer, hand_out, release, rgaps_sample_t};
use crate::status::{Failure, guard, guard_or, rgaps_status_t};
use crate::subscriber::{SUBSCRIBERS, State, SubscriberObject, rgaps_subscriber_t, wait};

/// Maximum wait of a pull in ns.
pub const RGAPS_PULL_TIMEOUT_NS: u64 = 1_000_000_000;

/// Creates a publisher of raw bytes with its own node. Call it through `rgaps_publisher_init`.
///
/// @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
/// @return             NULL on failure: see `rgaps_error_text`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_init_abi(
    abi_version: u32,
    topic_name: *const c_char,
) -> *mut rgaps_publisher_t {
    let made = guard_or(|| {
        check_abi(abi_version)?;
        let topic = raw::text(topic_name, "topic_name")?;
        let node = Node::builder().build()?;
        let publisher = DynamicPublisher::new(&node, topic, Kind::Bytes, PublisherQos::default())?;
        handle(&PUBLISHERS, PublisherObject { node, publisher })
    });
    made.unwrap_or(std::ptr::null_mut())
}

/// Publishes one message of raw bytes.
///
/// @param device_pointer  `message_size` bytes of device memory; of plain memory on the host backend. The copy follows the work that CUDA's default
///                        stream has so far. Do not change the memory before that stream has made the copy.
/// @return                0, or an rgaps_status_t
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_push(
    publisher: *mut rgaps_publisher_t,
    message_size: usize,
    device_pointer: *const c_void,
) -> i32 {
    let status = guard(|| {
        let PublisherObject { node, publisher } = PUBLISHERS.look_up(publisher as u64)?;
        let bytes = message_size as u64;
        if device_pointer.is_null() && bytes > 0 {
            return Err(Failure::null("device_pointer"));
        }
        let meta = DynamicMeta::Bytes(Bytes::new(bytes));
        match raw::stream(&node, std::ptr::null_mut()) {
            Some(stream) => publisher.push_on(&meta, &raw::device_part(device_pointer, bytes), &stream)?,
            None => publisher.push(&meta, raw::slice(device_pointer.cast(), bytes, "device_pointer")?)?,
        };
        Ok(())
    });
    status as i32
}

/// Creates a subscriber of raw bytes with its own node. Call it through `rgaps_subscriber_init`.
///
/// @param abi_version  RGAPS_ABI_VERSION of the header that the program was built with
/// @return             NULL on failure: see `rgaps_error_text`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_init_abi(
    abi_version: u32,
    topic_name: *const c_char,
) -> *mut rgaps_subscriber_t {
    let made = guard_or(|| {
        check_abi(abi_version)?;
        let topic = raw::text(topic_name, "topic_name")?;
        let node = Node::builder().build()?;
        let subscriber = DynamicSubscriber::new(&node, topic, Kind::Bytes, SubscriberQos::default())?;
        handle(&SUBSCRIBERS, SubscriberObject { node, subscriber, state: Default::default() })
    });
    made.unwrap_or(std::ptr::null_mut())
}

/// Takes one message; waits at most RGAPS_PULL_TIMEOUT_NS for it. Releases the message that this handle pulled before, after the work that CUDA's
/// default stream has by then.
///
/// ```c
/// rgaps_subscriber_t *subscriber = rgaps_subscriber_init("raw");
/// rgaps_publisher_t *publisher = rgaps_publisher_init("raw");
/// if (rgaps_publisher_push(publisher, 5, "hello") != RGAPS_OK) puts(rgaps_error_text());
/// const char *pulled = rgaps_subscriber_pull(subscriber);
/// if (pulled == NULL) puts(rgaps_error_text());
/// rgaps_publisher_destroy(publisher);
/// rgaps_subscriber_destroy(subscriber);
/// ```
///
/// @return  the payload on the device, a plain pointer on the host backend. Do not write to it. It is valid until the handle's next pull or destroy.
///          NULL if no message arrived (`rgaps_error_status` is RGAPS_TIMED_OUT), if the message has no bytes (RGAPS_OK: see
///          `rgaps_subscriber_pulled`), or on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_pull(subscriber: *mut rgaps_subscriber_t) -> *mut c_void {
    let pulled = guard_or(|| {
        let object = SUBSCRIBERS.look_up(subscriber as u64)?;
        release_pulled(&object.state);
        let Some(message) = wait(&object, RGAPS_PULL_TIMEOUT_NS)? else {
            let text = format!(
                "{}: no message came within {} ms",
                object.subscriber.topic(),
                RGAPS_PULL_TIMEOUT_NS / 1_000_000
            );
            return Err(Failure::new(rgaps_status_t::RGAPS_TIMED_OUT, text));
        };
        let message = hand_out(&object.node, message)?;
        let before =
            std::mem::replace(&mut *object.state.pulled.lock().unwrap_or_else(PoisonError::into_inner), message as u64);
        if before != 0 {
            // Another thread has pulled with the same handle meanwhile. This pull ends the validity of its pointer, as documented.
            let _ = release(before as *mut rgaps_sample_t, std::ptr::null_mut());
        }
        Ok(device_pointer(message)?.cast_mut())
    });
    pulled.unwrap_or(std::ptr::null_mut())
}

/// The message that a handle pulled last, for its size and metadata; NULL if there is none. The handle owns it: do not release it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_subscriber_pulled(subscriber: *const rgaps_subscriber_t) -> *const rgaps_sample_t {
    let pulled = guard_or(|| {
        let object = SUBSCRIBERS.look_up(subscriber as u64)?;
        let pulled = *object.state.pulled.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(pulled as *const rgaps_sample_t)
    });
    pulled.unwrap_or(std::ptr::null())
}

/// Releases the message that a handle pulled last, unless the program has released it.
pub(crate) fn release_pulled(state: &State) {
    let pulled = std::mem::take(&mut *state.pulled.lock().unwrap_or_else(PoisonError::into_inner));
    if pulled != 0 {
        let _ = release(pulled as *mut rgaps_sample_t, std::ptr::null_mut());
    }
}
