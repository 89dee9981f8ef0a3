//! State shared by the GPU entities of one rmw context: a node of the core, the thread that wakes waiters, and the guard conditions they wait on.
//!
//! It is made for a context's first GPU entity and dropped with the last.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rgaps::Node;

use crate::inner::calls;
use crate::log;
use crate::notifier::Notifier;
use crate::support::Raw;
use crate::sys::{rmw_context_t, rmw_guard_condition_t, rmw_node_t};
use crate::wait::Waiter;

/// The contexts that have GPU entities, by the address of their rmw context.
static CONTEXTS: Mutex<Vec<(usize, Weak<Context>)>> = Mutex::new(Vec::new());

/// The core's half of an rmw context.
pub(crate) struct Context {
    // First, so that it is stopped before the fields that it uses are dropped.
    pub(crate) notifier: Notifier,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) node: Node,
}

impl Context {
    /// The context of a node; made if there is none.
    // SAFETY: a node that the inner RMW has made and not destroyed, and accepted for an entity.
    pub(crate) unsafe fn of(node: *const rmw_node_t) -> Result<Arc<Self>, String> {
        // SAFETY: as the caller says.
        let rmw_context = unsafe { (*node).context };
        let mut contexts = lock(&CONTEXTS);
        let address = rmw_context as usize;
        contexts.retain(|(_, context)| context.strong_count() > 0);
        let mut known =
            contexts.iter().filter(|(known, _)| *known == address).filter_map(|(_, context)| context.upgrade());
        // A forked child may reuse the address of a context of its parent; that one is skipped.
        if let Some(context) = known.find(|context| context.node.is_owner()) {
            return Ok(context);
        }
        drop(known);
        // SAFETY: a node's context outlives it, and is initialised.
        let domain = unsafe { (*rmw_context).actual_domain_id };
        let domain = u32::try_from(domain).map_err(|_| format!("ROS domain id {domain} is too large"))?;
        log::start();
        let node = Node::builder().domain(domain).ros_node().build().map_err(|error| {
            format!(
                "the core cannot be reached: {error}; is rgapsd installed, or running (RGAPSD, RGAPS_AUTOSTART), for this \
                 runtime directory (RGAPS_RUNTIME_DIR)?"
            )
        })?;
        let notifier = Notifier::start().map_err(|error| format!("no thread to wait for messages: {error}"))?;
        let waiters = Arc::new(Waiters { context: Raw(rmw_context), idle: Mutex::new(Some(Vec::new())) });
        let context = Arc::new(Self { notifier, waiters, node });
        contexts.push((address, Arc::downgrade(&context)));
        Ok(context)
    }

    /// Its key: the address of the rmw context.
    pub(crate) fn address(&self) -> usize {
        self.waiters.context.0 as usize
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.notifier.stop();
        self.waiters.destroy();
    }
}

/// Idle waiters. Their guard conditions belong to the inner RMW and outlive every wait. A late trigger only makes the next wait check once
/// more.
pub(crate) struct Waiters {
    context: Raw<rmw_context_t>,
    /// None once the context's GPU entities are gone.
    idle: Mutex<Option<Vec<Waiter>>>,
}

impl Waiters {
    /// A waiter for one wait; None, with the inner RMW's error set, if none can be made.
    pub(crate) fn get(&self) -> Option<Waiter> {
        let idle = lock(&self.idle).as_mut().and_then(Vec::pop);
        idle.or_else(|| {
            // SAFETY: the context outlives its nodes, and there are some as long as there are GPU entities.
            let guard = unsafe { calls::rmw_create_guard_condition(self.context.0) };
            (!guard.is_null()).then(|| Waiter::new(Guard::new(guard)))
        })
    }

    pub(crate) fn put(&self, waiter: Waiter) {
        if let Some(idle) = &mut *lock(&self.idle) {
            return idle.push(waiter);
        }
        waiter.guard().destroy();
    }

    fn destroy(&self) {
        let idle = lock(&self.idle).take();
        idle.into_iter().flatten().for_each(|waiter| waiter.guard().destroy());
    }
}

/// A guard condition of the inner RMW.
#[derive(Clone, Copy)]
pub(crate) struct Guard(Raw<rmw_guard_condition_t>);

impl Guard {
    fn new(guard: *mut rmw_guard_condition_t) -> Self {
        Self(Raw(guard))
    }

    /// Its entry in a wait set.
    pub(crate) fn data(self) -> *mut c_void {
        // SAFETY: it lives as long as its context's GPU entities.
        unsafe { (*self.0.0).data }
    }

    /// Wakes the wait that includes it.
    pub(crate) fn trigger(self) {
        // SAFETY: it lives as long as its context's GPU entities; triggering is for every thread.
        let _ = unsafe { calls::rmw_trigger_guard_condition(self.0.0) };
    }

    /// Call it after the notifier's thread has ended, so that no trigger follows.
    fn destroy(self) {
        // SAFETY: made by `Waiters::get`, and destroyed once, by the owner of its waiter.
        let _ = unsafe { calls::rmw_destroy_guard_condition(self.0.0) };
    }

    pub(crate) fn is(self, other: Self) -> bool {
        self.0.0 == other.0.0
    }
}

/// Locks a mutex even if another thread panicked: the data behind the mutexes here is consistent between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
