//! Subscriptions of GPU topics: an inner subscription, for the graph, matching and QoS events, and a core subscriber, from which messages are
//! taken.
//!
//! The handle's first member is rmw's handle, with this layer's identifier and the inner handle's `data`, by which wait sets name it.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};

use rgaps::SubscriberQos;
use rgaps::dynamic::{DynamicSubscriber, Kind};
use rgaps_ros_policy::qos::{Profile, RmwProfile};

use crate::context::Context;
use crate::entity::{Entity, Parts};
use crate::ffi::{fail, refuse};
use crate::inner::calls;
use crate::notifier::Woken;
use crate::own::Origin;
use crate::rcutils::{self, Severity};
use crate::support;
use crate::sys::*;

/// The identifier in the handle of every GPU subscription, known by its address.
static IDENTIFIER: [u8; 23] = *b"rmw_rgaps_subscription\0";

/// Number of living GPU subscriptions, so that a wait without any has no extra cost.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Entities by their `data`.
static ENTITIES: RwLock<BTreeMap<usize, Arc<Entity>>> = RwLock::new(BTreeMap::new());

/// The handle that rmw_create_subscription returns.
#[repr(C)]
struct GpuSubscription {
    handle: rmw_subscription_t,
    entity: Arc<Entity>,
    context: Arc<Context>,
}

// SAFETY: `entity` is that of a subscription which is not destroyed before this callback is taken away.
unsafe extern "C" fn inner_message(entity: *const c_void, _count: usize) {
    // SAFETY: as above.
    let entity = unsafe { &*entity.cast::<Entity>() };
    crate::ffi::guard_callback("a message of the inner RMW", || entity.note_inner_message());
}

/// Whether there are no GPU subscriptions.
pub(crate) fn there_are_none() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// The entity that a wait set or an event names by `data`.
pub(crate) fn by_data(data: *const c_void) -> Option<Arc<Entity>> {
    let entities = ENTITIES.read().unwrap_or_else(PoisonError::into_inner);
    entities.get(&(data as usize)).cloned()
}

/// The entity of a handle; None for the inner RMW's own handles.
// SAFETY: null, or a subscription that is not destroyed meanwhile.
pub(crate) unsafe fn of<'a>(subscription: *const rmw_subscription_t) -> Option<&'a Arc<Entity>> {
    // SAFETY: as the caller says.
    let handle = unsafe { subscription.as_ref() }?;
    if !std::ptr::eq(handle.implementation_identifier, IDENTIFIER.as_ptr().cast::<c_char>()) {
        return None;
    }
    // SAFETY: only this file hands out that identifier, in the first member of this struct.
    Some(unsafe { &(*subscription.cast::<GpuSubscription>()).entity })
}

// SAFETY: as for `of`.
unsafe fn inner_of(subscription: *const rmw_subscription_t) -> *mut rmw_subscription_t {
    // SAFETY: as for `of`.
    let entity = unsafe { of(subscription) };
    entity.map_or(subscription.cast_mut(), |entity| entity.inner.0)
}

// SAFETY: what rmw asks of its callers, here and in all functions of its names below.
pub(crate) unsafe fn rmw_create_subscription(
    node: *const rmw_node_t,
    type_support: *const rosidl_message_type_support_t,
    topic: *const c_char,
    qos: *const rmw_qos_profile_t,
    options: *const rmw_subscription_options_t,
) -> *mut rmw_subscription_t {
    // SAFETY: null or a type support.
    let Some(kind) = (unsafe { support::kind_of(type_support) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_create_subscription(node, type_support, topic, qos, options) };
    };
    // SAFETY: null or options.
    let mut own_options = unsafe { options.as_ref() }.copied();
    if let Some(options) = &mut own_options
        && !options.content_filter_options.is_null()
    {
        // It would filter descriptors of the inner topic, which are not delivered.
        options.content_filter_options = std::ptr::null_mut();
        // SAFETY: null or a name that ends with a zero.
        let topic = unsafe { support::text(topic) }.unwrap_or_default().to_string_lossy();
        let what = "GPU topics have no content filter, so every message comes; filter in the callback";
        rcutils::log(Severity::Warn, format_args!("{topic}: {what}"));
    }
    let options = own_options.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the caller's arguments, options of this function's own.
    let inner = unsafe { calls::rmw_create_subscription(node, type_support, topic, qos, options) };
    if inner.is_null() {
        return inner;
    }
    let ignores_local = own_options.is_some_and(|options| options.ignore_local_publications);
    // SAFETY: the inner RMW has accepted the node and the topic.
    match unsafe { make(node, type_support, topic, inner, kind, ignores_local) } {
        Ok(subscription) => Box::into_raw(subscription).cast(),
        Err(why) => {
            // SAFETY: made above on this node.
            let _ = unsafe { calls::rmw_destroy_subscription(node.cast_mut(), inner) };
            // SAFETY: the topic's name was accepted above.
            let topic = unsafe { support::text(topic) }.unwrap_or_default().to_string_lossy();
            fail(format_args!("{topic} ({}): {why}", support::type_name(kind)))
        }
    }
}

// SAFETY: a node, a type support and a name for which `inner` was made.
unsafe fn make(
    node: *const rmw_node_t,
    type_support: *const rosidl_message_type_support_t,
    topic: *const c_char,
    inner: *mut rmw_subscription_t,
    kind: Kind,
    ignores_local: bool,
) -> Result<Box<GpuSubscription>, String> {
    // SAFETY: the inner RMW has accepted the node.
    let context = unsafe { Context::of(node) }?;
    // SAFETY: the inner RMW has accepted the name.
    let topic = unsafe { support::text(topic) }.unwrap_or_default().to_string_lossy().into_owned();
    // SAFETY: made by the inner RMW and not destroyed.
    let qos = unsafe { core_qos(inner) }?;
    let core = DynamicSubscriber::new(&context.node, &topic, kind, qos).map_err(|error| error.to_string())?;
    let place = Origin { context: context.address(), topic: topic.clone() };
    // SAFETY: a handle of the inner RMW's.
    let mut handle = unsafe { *inner };
    handle.implementation_identifier = IDENTIFIER.as_ptr().cast();
    handle.can_loan_messages = true;
    let entity = Arc::new(Entity::new(Parts {
        inner,
        key: handle.data as usize,
        kind,
        topic,
        type_support,
        ignores_local,
        node: context.node.clone(),
        core,
        place,
        waiters: context.waiters.clone(),
        notifier: context.notifier.shared().clone(),
    }));
    let event_fd = entity.core.event_fd().map_err(|error| error.to_string())?;
    context
        .notifier
        .add(entity.clone(), event_fd)
        .map_err(|error| format!("it cannot be added to the wake-up thread: {error}"))?;
    let user_data = Arc::as_ptr(&entity).cast::<c_void>();
    // SAFETY: taken away again before the entity goes.
    if unsafe { calls::rmw_subscription_set_on_new_message_callback(inner, Some(inner_message), user_data) }
        != RMW_RET_OK
    {
        entity.note_deaf();
        crate::rcutils::reset_error();
    }
    ENTITIES.write().unwrap_or_else(PoisonError::into_inner).insert(entity.key(), entity.clone());
    COUNT.fetch_add(1, Ordering::AcqRel);
    Ok(Box::new(GpuSubscription { handle, entity, context }))
}

/// The core's QoS for the actual QoS of the inner subscription.
// SAFETY: a subscription of the inner RMW's.
unsafe fn core_qos(inner: *const rmw_subscription_t) -> Result<SubscriberQos, String> {
    // SAFETY: numbers, for which zeros are values.
    let mut qos: rmw_qos_profile_t = unsafe { std::mem::zeroed() };
    // SAFETY: as the caller says.
    if unsafe { calls::rmw_subscription_get_actual_qos(inner, &raw mut qos) } != RMW_RET_OK {
        return Err("the inner RMW does not return the subscription's QoS".to_owned());
    }
    Ok(qos_of(&qos))
}

// The numbers of the sourced ROS are those that the policy knows.
const _: () = assert!(
    RMW_QOS_POLICY_RELIABILITY_RELIABLE == RmwProfile::RELIABLE
        && RMW_QOS_POLICY_RELIABILITY_BEST_EFFORT == RmwProfile::BEST_EFFORT
        && RMW_QOS_POLICY_DURABILITY_TRANSIENT_LOCAL == RmwProfile::TRANSIENT_LOCAL
        && RMW_QOS_POLICY_DURABILITY_VOLATILE == RmwProfile::VOLATILE
        && RMW_QOS_POLICY_HISTORY_KEEP_ALL == RmwProfile::KEEP_ALL
);

/// Without slack: messages come from the core's own queue, so none arrives later than its descriptor.
fn qos_of(qos: &rmw_qos_profile_t) -> SubscriberQos {
    Profile::from(RmwProfile {
        reliability: qos.reliability,
        durability: qos.durability,
        history: qos.history,
        depth: qos.depth as u64,
    })
    .requested(0)
}

pub(crate) unsafe fn rmw_destroy_subscription(
    node: *mut rmw_node_t,
    subscription: *mut rmw_subscription_t,
) -> rmw_ret_t {
    // SAFETY: null or a subscription.
    let Some(entity) = (unsafe { of(subscription) }).cloned() else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_destroy_subscription(node, subscription) };
    };
    // SAFETY: a subscription of the inner RMW's.
    let maker = unsafe { (*entity.inner.0).implementation_identifier };
    // SAFETY: null or a node.
    if let Err(refused) = unsafe { support::check_node(node, maker, &entity.topic) } {
        return refused;
    }
    if !entity.is_owner() {
        // In a forked child, the layer's state is the parent's, including the notifier's epoll. Only remove the map's key, which may be reused.
        let entities = match ENTITIES.try_write() {
            Ok(entities) => Some(entities),
            Err(TryLockError::Poisoned(entities)) => Some(entities.into_inner()),
            // A thread of the parent held the lock during the fork.
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(parents) = entities.and_then(|mut entities| entities.remove(&entity.key())) {
            std::mem::forget(parents);
            COUNT.fetch_sub(1, Ordering::AcqRel);
        }
        // SAFETY: made on this node, and destroyed once.
        return unsafe { calls::rmw_destroy_subscription(node, entity.inner.0) };
    }
    // SAFETY: handed out by `rmw_create_subscription`, and destroyed once.
    let own = unsafe { Box::from_raw(subscription.cast::<GpuSubscription>()) };
    ENTITIES.write().unwrap_or_else(PoisonError::into_inner).remove(&entity.key());
    COUNT.fetch_sub(1, Ordering::AcqRel);
    own.context.notifier.remove(entity.as_ref(), entity.core.event_fd().ok());
    // SAFETY: the inner RMW's own subscription. From its return on the callback is not called.
    let _ = unsafe { calls::rmw_subscription_set_on_new_message_callback(entity.inner.0, None, std::ptr::null()) };
    crate::rcutils::reset_error();
    entity.close();
    // SAFETY: made on this node, and destroyed once.
    unsafe { calls::rmw_destroy_subscription(node, entity.inner.0) }
}

pub(crate) unsafe fn rmw_subscription_set_on_new_message_callback(
    subscription: *mut rmw_subscription_t,
    callback: rmw_event_callback_t,
    user_data: *const c_void,
) -> rmw_ret_t {
    // Cloned, since the callback may destroy the subscription.
    // SAFETY: null or a subscription.
    let Some(entity) = (unsafe { of(subscription) }).cloned() else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_subscription_set_on_new_message_callback(subscription, callback, user_data) };
    };
    if !entity.is_owner() {
        return support::forked(&entity.topic);
    }
    entity.set_on_message(callback, user_data);
    RMW_RET_OK
}

pub(crate) unsafe fn rmw_subscription_set_content_filter(
    subscription: *mut rmw_subscription_t,
    options: *const rmw_subscription_content_filter_options_t,
) -> rmw_ret_t {
    // SAFETY: null or a subscription.
    if let Some(entity) = unsafe { of(subscription) } {
        let next = "take every message and filter in the callback";
        return refuse(
            RMW_RET_UNSUPPORTED,
            format_args!("{}: a GPU topic has no content filters; {next}", entity.topic),
        );
    }
    // SAFETY: the caller's own arguments.
    unsafe { calls::rmw_subscription_set_content_filter(subscription, options) }
}

macro_rules! inner_ones {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        pub(crate) unsafe fn $name(subscription: *const rmw_subscription_t, $($arg: $type),*) -> rmw_ret_t {
            // SAFETY: null or a subscription.
            let inner = unsafe { inner_of(subscription) };
            // SAFETY: the caller's own arguments, with the handle that the inner RMW knows.
            unsafe { calls::$name(inner, $($arg),*) }
        }
    )*};
}
inner_ones! {
    rmw_subscription_count_matched_publishers(count: *mut usize);
    rmw_subscription_get_actual_qos(qos: *mut rmw_qos_profile_t);
    rmw_subscription_get_content_filter(allocator: *mut rcutils_allocator_t, options: *mut rmw_subscription_content_filter_options_t);
    rmw_subscription_get_network_flow_endpoints(allocator: *mut rcutils_allocator_t, endpoints: *mut rmw_network_flow_endpoint_array_t);
}

#[cfg(test)]
mod tests {
    use rgaps::{Durability, History, Reliability};

    use super::*;

    #[test]
    fn policies_have_the_numbers_of_the_sourced_ros() {
        // SAFETY: numbers, for which zeros are values.
        let mut qos: rmw_qos_profile_t = unsafe { std::mem::zeroed() };
        qos.depth = 7;
        let (reliability, durability) = (Reliability::BestEffort, Durability::Volatile);
        assert_eq!(qos_of(&qos), SubscriberQos { reliability, durability, history: History::KeepLast(7) });
        qos.reliability = RMW_QOS_POLICY_RELIABILITY_RELIABLE;
        qos.durability = RMW_QOS_POLICY_DURABILITY_TRANSIENT_LOCAL;
        qos.history = RMW_QOS_POLICY_HISTORY_KEEP_ALL;
        let (reliability, durability) = (Reliability::Reliable, Durability::TransientLocal);
        assert_eq!(qos_of(&qos), SubscriberQos { reliability, durability, history: History::KeepAll });
    }
}
