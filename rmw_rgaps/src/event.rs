//! The message-lost event of GPU subscriptions, from the core's counter. The inner RMW provides all other events.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use crate::entity::Entity;
use crate::ffi::refuse;
use crate::inner::calls;
use crate::lock::lock;
use crate::notifier::Woken;
use crate::subscription;
use crate::support;
use crate::sys::*;

/// The identifier in every event of the layer, known by its address; the event's `data` is the subscription's.
static IDENTIFIER: [u8; 16] = *b"rmw_rgaps_event\0";

/// Whether an event is the layer's, and its subscription if that still exists.
pub(crate) enum Whose {
    Inner,
    Ours(Option<Arc<Entity>>),
}

// SAFETY: null, or an event.
pub(crate) unsafe fn whose(event: *const rmw_event_t) -> Whose {
    // SAFETY: as the caller says.
    match unsafe { event.as_ref() } {
        Some(event) if std::ptr::eq(event.implementation_identifier, IDENTIFIER.as_ptr().cast::<c_char>()) => {
            Whose::Ours(subscription::by_data(event.data))
        }
        _ => Whose::Inner,
    }
}

/// Whether messages were lost since the event was last taken.
pub(crate) fn is_ready(entity: &Entity) -> bool {
    let lost = entity.core.statistics().lost;
    lock(&entity.taking).untold_losses(lost) > 0
}

// SAFETY: what rmw asks of its callers, here and in all functions of its names below.
pub(crate) unsafe fn rmw_subscription_event_init(
    event: *mut rmw_event_t,
    subscription: *const rmw_subscription_t,
    event_type: rmw_event_type_t,
) -> rmw_ret_t {
    // SAFETY: null or a subscription.
    let entity = unsafe { subscription::of(subscription) };
    let Some(entity) = entity else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_subscription_event_init(event, subscription, event_type) };
    };
    if event_type != RMW_EVENT_MESSAGE_LOST {
        // SAFETY: the caller's own arguments, with the handle that the inner RMW knows.
        return unsafe { calls::rmw_subscription_event_init(event, entity.inner.0, event_type) };
    }
    // SAFETY: null or an event of the caller's.
    let Some(event) = (unsafe { event.as_mut() }) else {
        return refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: the event is null", entity.topic));
    };
    if !event.implementation_identifier.is_null() {
        return refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: the event is initialised already", entity.topic));
    }
    event.implementation_identifier = IDENTIFIER.as_ptr().cast();
    event.data = entity.key() as *mut c_void;
    event.event_type = event_type;
    RMW_RET_OK
}

pub(crate) unsafe fn rmw_take_event(event: *const rmw_event_t, info: *mut c_void, taken: *mut bool) -> rmw_ret_t {
    // SAFETY: null or an event.
    let entity = match unsafe { whose(event) } {
        // SAFETY: the caller's own arguments.
        Whose::Inner => return unsafe { calls::rmw_take_event(event, info, taken) },
        Whose::Ours(None) => return gone(),
        Whose::Ours(Some(entity)) => entity,
    };
    if !entity.is_owner() {
        return support::forked(&entity.topic);
    }
    if info.is_null() || taken.is_null() {
        let why = "a pointer for the event's status is null";
        return refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{}: {why}", entity.topic));
    }
    let lost = entity.core.statistics().lost;
    let change = lock(&entity.taking).tell_losses(lost);
    let status = rmw_message_lost_status_t { total_count: lost as usize, total_count_change: change };
    // SAFETY: for this type of event it is such a status.
    unsafe { info.cast::<rmw_message_lost_status_t>().write(status) };
    // SAFETY: not null, and the caller's.
    unsafe { taken.write(true) };
    RMW_RET_OK
}

pub(crate) unsafe fn rmw_event_set_callback(
    event: *mut rmw_event_t,
    callback: rmw_event_callback_t,
    user_data: *const c_void,
) -> rmw_ret_t {
    // SAFETY: null or an event.
    let entity = match unsafe { whose(event) } {
        // SAFETY: the caller's own arguments.
        Whose::Inner => return unsafe { calls::rmw_event_set_callback(event, callback, user_data) },
        Whose::Ours(None) => return gone(),
        Whose::Ours(Some(entity)) => entity,
    };
    if !entity.is_owner() {
        return support::forked(&entity.topic);
    }
    entity.set_on_lost(callback, user_data);
    RMW_RET_OK
}

fn gone() -> rmw_ret_t {
    refuse(RMW_RET_ERROR, format_args!("the event's subscription was destroyed"))
}
