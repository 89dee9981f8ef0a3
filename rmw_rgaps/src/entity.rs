//! A GPU subscription, without its handle: messages of the core, and the callbacks and waits that they wake.
//!
//! Locks       `gate`: held by the notifier's thread while it handles the entity, by a call that sets a callback (it may call the callback at
//!             once), and by the entity's destruction. So no callback runs after it was removed. A callback may do all of that itself. If it
//!             destroys the context's last entity, it waits for the notifier's thread, which may be waiting at the gate. Closing the gate
//!             first lets that thread pass. `attended`: used by the notifier's thread alone. `taking`: around takes and their counters; never
//!             held while the inner RMW, the manager or a callback is called.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rgaps::dynamic::{DynamicSubscriber, Kind};
use rgaps::{Node, TakeError};

use crate::gate::Gate;
use crate::guard_condition::Guard;
use crate::hook::Hook;
use crate::loans::Loans;
use crate::lock::lock;
use crate::notifier::{Shared, Woken};
use crate::observed::Observed;
use crate::own::Origin;
use crate::replay::{Replays, Subscribed};
use crate::support::Raw;
use crate::sys::{rmw_event_callback_t, rmw_subscription_t, rosidl_message_type_support_t};
use crate::taking::Taking;
use crate::waiters::Waiters;

/// Most messages reported to a callback at once: as many as a topic can have.
const COUNTED_MAX: usize = 4096;

/// How long takes do not ask a manager that has not answered.
const ASK_AGAIN: Duration = Duration::from_secs(5);

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
    pub(crate) waiters: Arc<Waiters<Self>>,
    notifier: Arc<Shared>,
    waiting: Mutex<Vec<Guard>>,
    on_message: Hook,
    on_lost: Hook,
    /// Messages have arrived over the inner topic.
    is_drain_due: AtomicBool,
    /// The inner RMW does not report new messages, so the inner topic is drained at takes.
    is_deaf: AtomicBool,
    /// A take has found that the subscription was cut off from its topic.
    is_end_told: AtomicBool,
    /// When the manager last did not answer a take.
    unanswered: Mutex<Option<Instant>>,
    /// Closed when the entity is being destroyed.
    gate: Gate,
    attended: Mutex<Attended>,
}

/// What a new entity is made of.
pub(crate) struct Parts {
    pub(crate) inner: *mut rmw_subscription_t,
    /// The address by which wait sets name it.
    pub(crate) key: usize,
    pub(crate) kind: Kind,
    pub(crate) topic: String,
    pub(crate) type_support: *const rosidl_message_type_support_t,
    pub(crate) ignores_local: bool,
    pub(crate) node: Node,
    pub(crate) core: DynamicSubscriber,
    pub(crate) place: Origin,
    pub(crate) waiters: Arc<Waiters<Entity>>,
    pub(crate) notifier: Arc<Shared>,
}

/// An entity's state that only the notifier's thread uses.
#[derive(Default)]
struct Attended {
    guards: Vec<Guard>,
    replays: Replays,
}

impl Entity {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { inner, key, kind, topic, type_support, ignores_local, node, core, place, waiters, notifier } =
            parts;
        Self {
            inner: Raw(inner),
            key,
            kind,
            type_support: Raw(type_support.cast_mut()),
            ignores_local,
            core,
            observed: Observed::new(node.clone(), topic.clone()),
            node,
            topic,
            place,
            turn: Mutex::default(),
            taking: Mutex::default(),
            loans: Loans::default(),
            waiters,
            notifier,
            waiting: Mutex::default(),
            on_message: Hook::default(),
            on_lost: Hook::default(),
            is_drain_due: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
            is_end_told: AtomicBool::new(false),
            unanswered: Mutex::default(),
            gate: Gate::default(),
            attended: Mutex::default(),
        }
    }

    /// Notes that the inner RMW does not report new messages.
    pub(crate) fn note_deaf(&self) {
        self.is_deaf.store(true, Ordering::Relaxed);
    }

    /// Waits for a wake-up in progress, which is the last; returns at once in its callback.
    pub(crate) fn close(&self) {
        self.gate.close();
    }

    /// Whether there is a message to take, or an end that no take has found yet.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready_count(1) > 0
    }

    /// How many messages can be taken, at most `limit`. One that was cut off counts as a message, until a take has found it.
    fn ready_count(&self, limit: usize) -> usize {
        match self.core.ready_count(limit) {
            0 if !self.is_end_told.load(Ordering::Relaxed) => usize::from(self.is_cut_off()),
            count => count,
        }
    }

    fn is_cut_off(&self) -> bool {
        matches!(self.core.event_fd(), Err(TakeError::CutOff { .. }))
    }

    /// A take has found that it was cut off. Whether it is the first one.
    pub(crate) fn note_end_told(&self) -> bool {
        !self.is_end_told.swap(true, Ordering::Relaxed)
    }

    /// The manager has not answered a take.
    pub(crate) fn note_unanswered(&self) {
        *lock(&self.unanswered) = Some(Instant::now());
    }

    /// Whether takes do not ask the manager again yet: each would wait for it.
    pub(crate) fn rests_from_asking(&self) -> bool {
        lock(&self.unanswered).is_some_and(|at| at.elapsed() < ASK_AGAIN)
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

    fn wake(&self) {
        let guards = &mut lock(&self.attended).guards;
        // Copied, because the inner RMW is called without the lock.
        guards.clear();
        guards.extend(lock(&self.waiting).iter());
        guards.iter().for_each(|guard| guard.trigger());
    }

    fn drain(&self) {
        if self.is_drain_due.swap(false, Ordering::AcqRel) {
            let Self { inner, kind, topic, node, taking, .. } = self;
            let subscribed = Subscribed { inner: *inner, kind: *kind, topic, node, taking };
            lock(&self.attended).replays.drain(&subscribed);
        }
    }

    fn call_for_new(&self) {
        self.on_message.call(|| {
            let mut taking = lock(&self.taking);
            let unread = self.ready_count(COUNTED_MAX);
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
    pub(crate) fn set_on_message(&self, callback: rmw_event_callback_t, user_data: *const c_void) {
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
    pub(crate) fn note_inner_message(&self) {
        if !self.is_drain_due.swap(true, Ordering::AcqRel) {
            self.notifier.kick();
        }
    }
}

impl Woken for Entity {
    fn key(&self) -> usize {
        self.key
    }

    fn look_after(&self) {
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
}
