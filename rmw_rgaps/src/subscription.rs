//! Subscriptions of GPU topics: an inner subscription, for the graph, matching and QoS events, and a core subscriber, from which messages are
//! taken.
//!
//! The handle's first member is rmw's handle, with this layer's identifier and the inner handle's `data`, by which wait sets name it.
//!
//! Locks       `gate`: held by the notifier's thread while it handles the entity, by a call that sets a callback (it may call the callback at
//!             once), and by the entity's destruction. So no callback runs after it was removed. A callback may do all of that itself: if it
//!             destroys the context's last entity, it waits for the notifier's thread, which may wait at the gate; closing the gate lets that
//!             thread pass. `attended`: used by the notifier's thread alone. `taking`: around takes and their counters; never held while the
//!             inner RMW, the manager or a callback is called.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use rgaps::dynamic::{DynamicSubscriber, Kind};
use rgaps::{Durability, History, Node, Reliability, SubscriberQos};

use crate::context::{Context, Guard, Waiters, lock};
use crate::ffi::{fail, refuse};
use crate::gate::Gate;
use crate::hook::Hook;
use crate::inner::calls;
use crate::loans::Loans;
use crate::notifier::Shared;
use crate::observed::Observed;
use crate::own::Origin;
use crate::replay::Replays;
use crate::support::{self, Raw};
use crate::sys::*;
use crate::take::Taking;

/// The identifier in the handle of every GPU subscription, known by its address.
static IDENTIFIER: [u8; 23] = *b"rmw_rgaps_subscription\0";

/// Number of living GPU subscriptions, so that a wait without any has no extra cost.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Entities by their `data`.
static ENTITIES: RwLock<BTreeMap<usize, Arc<Entity>>> = RwLock::new(BTreeMap::new());

/// Most messages reported to a callback at once: as many as a topic can have.
const COUNTED_MAX: usize = 4096;

/// The handle that rmw_create_subscription returns.
#[repr(C)]
struct GpuSubscription {
    handle: rmw_subscription_t,
    entity: Arc<Entity>,
    context: Arc<Context>,
}

/// A GPU subscription.
pub(crate) struct Entity {
    pub(crate) inner: Raw<rmw_subscription_t>,
    key: usize,
    pub(crate) kind: Kind,
    pub(crate) topic: String,
    pub(crate) type_support: Raw<rosidl_message_type_support_t>,
    pub(crate) ignores_local: bool,
    pub(crate) node: Node,
    pub(crate) core: DynamicSubscriber,
    pub(crate) observed: Observed,
    pub(crate) place: Origin,
    /// Held during a take, and during all takes of a sequence.
    pub(crate) turn: Mutex<()>,
    pub(crate) taking: Mutex<Taking>,
    pub(crate) loans: Loans,
    pub(crate) waiters: Arc<Waiters>,
    notifier: Arc<Shared>,
    waiting: Mutex<Vec<Guard>>,
    on_message: Hook,
    on_lost: Hook,
    /// Messages have arrived over the inner topic.
    is_drain_due: AtomicBool,
    /// The inner RMW does not report new messages, so the inner topic is drained at takes.
    is_deaf: AtomicBool,
    /// Closed when the entity is being destroyed.
    gate: Gate,
    attended: Mutex<Attended>,
}

/// An entity's state that only the notifier's thread uses.
#[derive(Default)]
struct Attended {
    guards: Vec<Guard>,
    replays: Replays,
}

impl Entity {
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    /// Whether a message can be taken.
    pub(crate) fn is_ready(&self) -> bool {
        self.core.ready_count(1) > 0
    }

    /// Makes the next message trigger the guard condition.
    pub(crate) fn arm(&self, guard: Guard) {
        lock(&self.waiting).push(guard);
    }

    pub(crate) fn disarm(&self, guard: Guard) {
        let mut waiting = lock(&self.waiting);
        if let Some(place) = waiting.iter().position(|other| other.is(guard)) {
            waiting.swap_remove(place);
        }
    }

    /// Messages may have arrived: wakes waiting threads and calls the callbacks.
    pub(crate) fn look_after(&self) {
        let _inside = self.gate.enter();
        if self.gate.is_closed() {
            return;
        }
        self.wake();
        for step in [Self::call_for_new, Self::call_for_lost, Self::drain] {
            step(self);
            // A callback may have destroyed the subscription.
            if self.gate.is_closed() {
                return;
            }
        }
    }

    fn wake(&self) {
        let guards = &mut lock(&self.attended).guards;
        // Copied, because the inner RMW is called without the lock.
        guards.clear();
        guards.extend(lock(&self.waiting).iter());
        guards.iter().for_each(|guard| guard.trigger());
    }

    fn drain(&self) {
        if self.is_drain_due.swap(false, Ordering::AcqRel) {
            lock(&self.attended).replays.drain(self);
        }
    }

    fn call_for_new(&self) {
        self.on_message.call(|| {
            let mut taking = lock(&self.taking);
            let unread = self.core.ready_count(COUNTED_MAX);
            taking.report(unread)
        });
    }

    fn call_for_lost(&self) {
        self.on_lost.call(|| lock(&self.taking).report_lost(self.core.statistics().lost));
    }

    /// Sets the callback for lost messages. Calls it at once if messages were lost since the event was last taken.
    pub(crate) fn set_on_lost(&self, callback: rmw_event_callback_t, user_data: *const c_void) {
        let _inside = self.gate.enter();
        if self.on_lost.set(callback, user_data) {
            lock(&self.taking).forget_loss_reports();
            self.call_for_lost();
        }
    }

    /// Sets the callback for new messages. Calls it at once if there are messages, even those that an earlier callback was told of.
    fn set_on_message(&self, callback: rmw_event_callback_t, user_data: *const c_void) {
        let _inside = self.gate.enter();
        if self.on_message.set(callback, user_data) {
            lock(&self.taking).forget_reports();
            self.call_for_new();
        }
    }

    /// False in a forked child, which lacks the notifier's thread and the core's segment.
    pub(crate) fn is_owner(&self) -> bool {
        self.node.is_owner()
    }

    /// Notes a take: a message with its descriptor may have arrived over the inner topic.
    pub(crate) fn note_take(&self) {
        if self.is_deaf.load(Ordering::Relaxed) {
            self.note_inner_message();
        }
    }

    /// The inner RMW has a message. Called on the inner RMW's threads, so it only wakes the notifier's thread.
    fn note_inner_message(&self) {
        if !self.is_drain_due.swap(true, Ordering::AcqRel) {
            self.notifier.kick();
        }
    }
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
    if let Some(options) = &mut own_options {
        // It would filter descriptors of the inner topic, which are not delivered.
        options.content_filter_options = std::ptr::null_mut();
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
    let observed = Observed::new(context.node.clone(), topic.clone());
    let place = Origin { context: context.address(), topic: topic.clone() };
    // SAFETY: a handle of the inner RMW's.
    let mut handle = unsafe { *inner };
    handle.implementation_identifier = IDENTIFIER.as_ptr().cast();
    handle.can_loan_messages = true;
    let entity = Arc::new(Entity {
        inner: Raw(inner),
        key: handle.data as usize,
        kind,
        topic,
        type_support: Raw(type_support.cast_mut()),
        ignores_local,
        node: context.node.clone(),
        core,
        observed,
        place,
        turn: Mutex::default(),
        taking: Mutex::default(),
        loans: Loans::default(),
        waiters: context.waiters.clone(),
        notifier: context.notifier.shared().clone(),
        waiting: Mutex::default(),
        on_message: Hook::default(),
        on_lost: Hook::default(),
        is_drain_due: AtomicBool::new(false),
        is_deaf: AtomicBool::new(false),
        gate: Gate::default(),
        attended: Mutex::default(),
    });
    let event_fd = entity.core.event_fd().map_err(|error| error.to_string())?;
    context
        .notifier
        .add(&entity, event_fd)
        .map_err(|error| format!("it cannot be added to the wake-up thread: {error}"))?;
    let user_data = Arc::as_ptr(&entity).cast::<c_void>();
    // SAFETY: taken away again before the entity goes.
    if unsafe { calls::rmw_subscription_set_on_new_message_callback(inner, Some(inner_message), user_data) }
        != RMW_RET_OK
    {
        entity.is_deaf.store(true, Ordering::Relaxed);
        crate::rcutils::reset_error();
    }
    ENTITIES.write().unwrap_or_else(PoisonError::into_inner).insert(entity.key, entity.clone());
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

fn qos_of(qos: &rmw_qos_profile_t) -> SubscriberQos {
    SubscriberQos {
        reliability: match qos.reliability {
            RMW_QOS_POLICY_RELIABILITY_RELIABLE => Reliability::Reliable,
            // A policy left to the middleware requests the weakest level, which matches every publisher.
            _ => Reliability::BestEffort,
        },
        durability: match qos.durability {
            RMW_QOS_POLICY_DURABILITY_TRANSIENT_LOCAL => Durability::TransientLocal,
            _ => Durability::Volatile,
        },
        history: match qos.history {
            RMW_QOS_POLICY_HISTORY_KEEP_ALL => History::KeepAll,
            _ => History::KeepLast(u32::try_from(qos.depth).unwrap_or(u32::MAX).max(1)),
        },
    }
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
        if let Some(parents) = entities.and_then(|mut entities| entities.remove(&entity.key)) {
            std::mem::forget(parents);
            COUNT.fetch_sub(1, Ordering::AcqRel);
        }
        // SAFETY: made on this node, and destroyed once.
        return unsafe { calls::rmw_destroy_subscription(node, entity.inner.0) };
    }
    // SAFETY: handed out by `rmw_create_subscription`, and destroyed once.
    let own = unsafe { Box::from_raw(subscription.cast::<GpuSubscription>()) };
    ENTITIES.write().unwrap_or_else(PoisonError::into_inner).remove(&entity.key);
    COUNT.fetch_sub(1, Ordering::AcqRel);
    own.context.notifier.remove(&entity, entity.core.event_fd().ok());
    // SAFETY: the inner RMW's own subscription. From its return on the callback is not called.
    let _ = unsafe { calls::rmw_subscription_set_on_new_message_callback(entity.inner.0, None, std::ptr::null()) };
    crate::rcutils::reset_error();
    // Waits for a wake-up in progress, which is the last; returns at once in its callback.
    entity.gate.close();
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
    use super::*;

    #[test]
    fn qos_is_translated() {
        // SAFETY: numbers, for which zeros are values.
        let mut qos: rmw_qos_profile_t = unsafe { std::mem::zeroed() };
        qos.depth = 7;
        let least = SubscriberQos {
            reliability: Reliability::BestEffort,
            history: History::KeepLast(7),
            ..SubscriberQos::default()
        };
        assert_eq!(qos_of(&qos), least);
        qos.reliability = RMW_QOS_POLICY_RELIABILITY_RELIABLE;
        qos.durability = RMW_QOS_POLICY_DURABILITY_TRANSIENT_LOCAL;
        qos.history = RMW_QOS_POLICY_HISTORY_KEEP_ALL;
        let all = SubscriberQos {
            reliability: Reliability::Reliable,
            durability: Durability::TransientLocal,
            history: History::KeepAll,
        };
        assert_eq!(qos_of(&qos), all);
    }
}
