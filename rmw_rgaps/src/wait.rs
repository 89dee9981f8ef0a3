//! Wait sets that contain GPU subscriptions or their events. The core says when those are ready; the inner RMW waits for the others, together with a
//! guard condition that the notifier's thread triggers.
//!
//! No wake-up is lost: the guard condition is armed before the core is checked, so a later message triggers it. If a trigger finds no message,
//! the wait continues for the remaining time.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::entity::Entity;
use crate::event::{self, Whose};
use crate::ffi::refuse;
use crate::inner::calls;
use crate::subscription;
use crate::support;
use crate::sys::*;
use crate::waiters::{List, Waiter};

/// The caller's arrays of a wait; null ones are empty.
struct Arrays {
    subscriptions: *mut rmw_subscriptions_t,
    guards: *mut rmw_guard_conditions_t,
    services: *mut rmw_services_t,
    clients: *mut rmw_clients_t,
    events: *mut rmw_events_t,
}

/// An array's pointer and length.
macro_rules! parts {
    ($array:expr, $data:ident, $count:ident) => {
        // SAFETY: null, or an array of the caller's.
        unsafe { $array.as_ref() }.map_or((std::ptr::null_mut(), 0), |array| (array.$data, array.$count))
    };
}

impl Arrays {
    fn parts(&self) -> [(*mut *mut c_void, usize); 5] {
        [
            parts!(self.subscriptions, subscribers, subscriber_count),
            parts!(self.guards, guard_conditions, guard_condition_count),
            parts!(self.services, services, service_count),
            parts!(self.clients, clients, client_count),
            parts!(self.events, events, event_count),
        ]
    }
}

/// Finds the entity of a wait set's pointer, if it is the layer's.
type Finder = fn(*mut c_void) -> Option<Arc<Entity>>;

fn subscription_of(data: *mut c_void) -> Option<Arc<Entity>> {
    subscription::by_data(data)
}

fn event_of(event: *mut c_void) -> Option<Arc<Entity>> {
    // SAFETY: the events of a wait are pointers to events.
    match unsafe { event::whose(event.cast()) } {
        Whose::Ours(entity) => entity,
        Whose::Inner => None,
    }
}

/// The first of the layer's entities, if there is one.
fn first_of_ours(arrays: &Arrays) -> Option<Arc<Entity>> {
    let [subscriptions, .., events] = arrays.parts();
    let find = |(array, count): (*mut *mut c_void, usize), whose: Finder| {
        let places: &[*mut c_void] = match array.is_null() {
            true => &[],
            // SAFETY: an array of the caller's with so many places.
            false => unsafe { std::slice::from_raw_parts(array, count) },
        };
        places.iter().copied().filter(|pointer| !pointer.is_null()).find_map(whose)
    };
    find(subscriptions, subscription_of).or_else(|| find(events, event_of))
}

// SAFETY: what rmw asks of its callers.
pub(crate) unsafe fn rmw_wait(
    subscriptions: *mut rmw_subscriptions_t,
    guards: *mut rmw_guard_conditions_t,
    services: *mut rmw_services_t,
    clients: *mut rmw_clients_t,
    events: *mut rmw_events_t,
    wait_set: *mut rmw_wait_set_t,
    timeout: *const rmw_time_t,
) -> rmw_ret_t {
    let arrays = Arrays { subscriptions, guards, services, clients, events };
    let first = if subscription::there_are_none() { None } else { first_of_ours(&arrays) };
    let Some(first) = first else {
        // SAFETY: the caller's own arguments.
        return unsafe { calls::rmw_wait(subscriptions, guards, services, clients, events, wait_set, timeout) };
    };
    if wait_set.is_null() {
        return refuse(RMW_RET_INVALID_ARGUMENT, format_args!("the wait set is null"));
    }
    if !first.is_owner() {
        return support::forked(&first.topic);
    }
    // SAFETY: null or a time of the caller's.
    let timeout = unsafe { timeout.as_ref() }
        .map(|time| Duration::new(time.sec, 0).saturating_add(Duration::from_nanos(time.nsec)));
    let Some(mut waiter) = first.waiters.get() else { return RMW_RET_ERROR };
    let whose: [Finder; 5] = [subscription_of, |_| None, |_| None, |_| None, event_of];
    for ((list, (array, count)), whose) in waiter.lists().into_iter().zip(arrays.parts()).zip(whose) {
        // SAFETY: an array of the caller's with so many places.
        unsafe { list.fill(array, count, whose) };
    }
    waiter.arm();
    let result = waiter.wait(wait_set, timeout);
    waiter.disarm();
    let message: fn(&Entity) -> bool = Entity::is_ready;
    let is_ready = [message, message, message, message, event::is_ready];
    for ((list, (array, _)), is_ready) in waiter.lists().into_iter().zip(arrays.parts()).zip(is_ready) {
        // SAFETY: the array that the list was filled from.
        unsafe { list.tell(array, is_ready) };
        list.clear();
    }
    first.waiters.put(waiter);
    result
}

impl Waiter<Entity> {
    fn arm(&self) {
        self.subscriptions.ours().chain(self.events.ours()).for_each(|entity| entity.arm(self.guard));
    }

    fn disarm(&self) {
        self.subscriptions.ours().chain(self.events.ours()).for_each(|entity| entity.disarm(self.guard));
    }

    fn has_ready_of_ours(&self) -> bool {
        self.subscriptions.ours().any(|entity| entity.is_ready())
            || self.events.ours().any(|entity| event::is_ready(entity))
    }

    /// Waits until something is ready, or the time is over.
    fn wait(&mut self, wait_set: *mut rmw_wait_set_t, timeout: Option<Duration>) -> rmw_ret_t {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let is_ready = self.has_ready_of_ours();
            // If one of ours is ready already, check the others without waiting.
            let left = match deadline {
                _ if is_ready => Some(Duration::ZERO),
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => timeout,
            };
            let result = self.wait_for_others(wait_set, left);
            if result != RMW_RET_OK && result != RMW_RET_TIMEOUT {
                return result;
            }
            let others = [&self.subscriptions, &self.guards, &self.services, &self.clients, &self.events];
            if others.iter().any(|list| list.has_ready()) || self.has_ready_of_ours() {
                return RMW_RET_OK;
            }
            // Nothing is ready: another thread took the message that triggered, or the time is over.
            if left.is_some_and(|left| left.is_zero()) && !is_ready {
                return RMW_RET_TIMEOUT;
            }
        }
    }

    /// The inner RMW's wait, with our guard condition added; it is removed from the result.
    fn wait_for_others(&mut self, wait_set: *mut rmw_wait_set_t, left: Option<Duration>) -> rmw_ret_t {
        self.lists().into_iter().for_each(List::give);
        self.guards.given.push(self.guard.data());
        let [subscriptions, guards, services, clients, events] = self.lists().map(|list| &mut list.given);
        let mut subscriptions =
            rmw_subscriptions_t { subscriber_count: subscriptions.len(), subscribers: subscriptions.as_mut_ptr() };
        let mut guards =
            rmw_guard_conditions_t { guard_condition_count: guards.len(), guard_conditions: guards.as_mut_ptr() };
        let mut services = rmw_services_t { service_count: services.len(), services: services.as_mut_ptr() };
        let mut clients = rmw_clients_t { client_count: clients.len(), clients: clients.as_mut_ptr() };
        let mut events = rmw_events_t { event_count: events.len(), events: events.as_mut_ptr() };
        let time = left.map(|left| rmw_time_t { sec: left.as_secs(), nsec: left.subsec_nanos().into() });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: arrays of this waiter, of what the caller gave and a guard condition of the same context.
        let result = unsafe {
            calls::rmw_wait(
                &raw mut subscriptions,
                &raw mut guards,
                &raw mut services,
                &raw mut clients,
                &raw mut events,
                wait_set,
                time,
            )
        };
        self.guards.given.pop();
        result
    }
}
