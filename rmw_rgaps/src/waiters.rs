//! What a wait needs: a guard condition, and arrays. Both are kept from wait to wait.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use crate::guard_condition::Guard;
use crate::lock::lock;
use crate::support::Raw;
use crate::sys::rmw_context_t;

/// Idle waiters. Their guard conditions belong to the inner RMW and outlive every wait. A late trigger only makes the next wait check once
/// more.
pub(crate) struct Waiters<E> {
    context: Raw<rmw_context_t>,
    /// None once the context's GPU entities are gone.
    idle: Mutex<Option<Vec<Waiter<E>>>>,
}

impl<E> Waiters<E> {
    pub(crate) fn new(context: *mut rmw_context_t) -> Self {
        Self { context: Raw(context), idle: Mutex::new(Some(Vec::new())) }
    }

    /// The address of the rmw context.
    pub(crate) fn address(&self) -> usize {
        self.context.0 as usize
    }

    /// A waiter for one wait; None, with the inner RMW's error set, if none can be made.
    pub(crate) fn get(&self) -> Option<Waiter<E>> {
        let idle = lock(&self.idle).as_mut().and_then(Vec::pop);
        idle.or_else(|| {
            // SAFETY: the context outlives its nodes, and there are some as long as there are GPU entities.
            unsafe { Guard::new(self.context.0) }.map(Waiter::new)
        })
    }

    pub(crate) fn put(&self, waiter: Waiter<E>) {
        if let Some(idle) = &mut *lock(&self.idle) {
            return idle.push(waiter);
        }
        waiter.guard().destroy();
    }

    /// Destroys the idle waiters, and from now on each one that is put back.
    pub(crate) fn destroy(&self) {
        let idle = lock(&self.idle).take();
        idle.into_iter().flatten().for_each(|waiter| waiter.guard().destroy());
    }
}

/// A guard condition, and the arrays of one wait. It is reused from wait to wait, so that none allocates.
pub(crate) struct Waiter<E> {
    pub(crate) guard: Guard,
    pub(crate) subscriptions: List<E>,
    pub(crate) guards: List<E>,
    pub(crate) services: List<E>,
    pub(crate) clients: List<E>,
    pub(crate) events: List<E>,
}

impl<E> Waiter<E> {
    pub(crate) fn new(guard: Guard) -> Self {
        let list = List::new;
        Self { guard, subscriptions: list(), guards: list(), services: list(), clients: list(), events: list() }
    }

    pub(crate) fn guard(&self) -> Guard {
        self.guard
    }

    pub(crate) fn lists(&mut self) -> [&mut List<E>; 5] {
        [&mut self.subscriptions, &mut self.guards, &mut self.services, &mut self.clients, &mut self.events]
    }
}

/// One of a wait's arrays.
pub(crate) struct List<E> {
    /// The caller's array.
    asked: Vec<*mut c_void>,
    /// For each of these, its entity if it is the layer's.
    entities: Vec<Option<Arc<E>>>,
    /// The array for the inner RMW: the others.
    pub(crate) given: Vec<*mut c_void>,
}

// SAFETY: the pointers are looked at only within the wait that put them there.
unsafe impl<E: Send + Sync> Send for List<E> {}

impl<E> List<E> {
    fn new() -> Self {
        Self { asked: Vec::new(), entities: Vec::new(), given: Vec::new() }
    }

    // SAFETY: null or `count` pointers.
    pub(crate) unsafe fn fill(
        &mut self,
        array: *mut *mut c_void,
        count: usize,
        whose: impl Fn(*mut c_void) -> Option<Arc<E>>,
    ) {
        self.asked.clear();
        self.entities.clear();
        if !array.is_null() {
            // SAFETY: as the caller says.
            self.asked.extend_from_slice(unsafe { std::slice::from_raw_parts(array, count) });
        }
        self.entities.extend(self.asked.iter().map(|pointer| whose(*pointer)));
    }

    /// Fills the inner RMW's array again for each wait, since a wait nulls those that are not ready.
    pub(crate) fn give(&mut self) {
        self.given.clear();
        let others = self.asked.iter().zip(&self.entities).filter(|(_, entity)| entity.is_none());
        self.given.extend(others.map(|(pointer, _)| *pointer));
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.given.iter().any(|pointer| !pointer.is_null())
    }

    pub(crate) fn ours(&self) -> impl Iterator<Item = &Arc<E>> {
        self.entities.iter().flatten()
    }

    // SAFETY: the array that it was filled from.
    pub(crate) unsafe fn tell(&self, array: *mut *mut c_void, is_ready: impl Fn(&E) -> bool) {
        let mut given = self.given.iter();
        for (place, (asked, entity)) in self.asked.iter().zip(&self.entities).enumerate() {
            let told = match entity {
                Some(entity) if is_ready(entity) => *asked,
                Some(_) => std::ptr::null_mut(),
                None => given.next().copied().unwrap_or(std::ptr::null_mut()),
            };
            // SAFETY: as the caller says, so many places.
            let place = unsafe { array.add(place) };
            // SAFETY: as above.
            unsafe { place.write(told) };
        }
    }

    pub(crate) fn clear(&mut self) {
        self.asked.clear();
        self.entities.clear();
        self.given.clear();
    }
}
