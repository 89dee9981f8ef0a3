//! Tasks that wait for a subscriber's messages (`Subscriber::next`): each is woken when one may be ready.
//!
//! ```text
//!  node's thread ──descriptor readable──▶ Tasks ──wakes all, and forgets them──▶ each takes, or waits again
//! ```
//!
//! Invariants  T1 A task is on the list before it looks for a message, so none comes between its look and its sleep unseen. T2 All tasks of the
//!             list are woken at once: one that is woken and dropped takes no wake-up along. T3 When the last
//!             task is gone, the node's thread releases the descriptor. T4 Who finds the descriptor readable, silences it and then takes a message makes it readable
//!             again (`Subscriber::next_held`): what it did not take is for the others.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Wake, Waker};

use rgaps_os::EventFd;

use crate::node::NodeInner;

/// The tasks that wait on one subscriber. It is itself what the node's thread wakes.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    wakers: HashMap<u64, Waker>,
    next: u64,
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        let woken = std::mem::take(&mut self.lock().wakers);
        // Not under the lock: a waker may poll its task at once.
        woken.into_values().for_each(wake);
    }
}

/// Wakes a task whose executor may panic: that is not to end the thread that wakes, nor to leave others asleep.
pub(crate) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("the waker of a task panicked; the task may sleep on, its node goes on");
    }
}

/// What wakes when which descriptor is readable: one waker a descriptor, the last that was given.
#[derive(Debug, Default)]
pub(crate) struct Sleepers(Mutex<Vec<(Arc<EventFd>, Waker)>>);

impl Sleepers {
    /// Whether that changed anything: a waker always does.
    pub(crate) fn set(&self, event: &Arc<EventFd>, waker: Option<Waker>) -> bool {
        let mut sleepers = self.lock();
        let before = sleepers.len();
        sleepers.retain(|(known, _)| !Arc::ptr_eq(known, event));
        let is_changed = waker.is_some() || sleepers.len() < before;
        sleepers.extend(waker.map(|waker| (event.clone(), waker)));
        is_changed
    }

    pub(crate) fn all(&self) -> Vec<(Arc<EventFd>, Waker)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<EventFd>, Waker)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One task on the list of those to be woken, given up with its future.
#[derive(Debug)]
pub(crate) struct Enlistment<'a> {
    tasks: &'a Arc<Tasks>,
    node: &'a NodeInner,
    event: &'a OnceLock<Arc<EventFd>>,
    number: u64,
}

impl<'a> Enlistment<'a> {
    pub(crate) fn new(tasks: &'a Arc<Tasks>, node: &'a NodeInner, event: &'a OnceLock<Arc<EventFd>>) -> Self {
        let mut waiting = tasks.lock();
        waiting.next += 1;
        Self { tasks, node, event, number: waiting.next }
    }

    /// Has the task woken, once, with all others.
    pub(crate) fn enlist(&self, waker: &Waker) {
        let former = self.tasks.lock().wakers.insert(self.number, waker.clone());
        // Not under the lock: the task may end with its waker, and its end come back here.
        drop(former);
    }

    /// Has all that are on the list woken when a message may be ready, if the descriptor is there.
    pub(crate) fn watch(&self) {
        // Under the lock, so that nobody who leaves ends what begins here.
        let waiting = self.tasks.lock();
        match self.event.get() {
            Some(event) if waiting.wakers.contains_key(&self.number) => {
                self.node.wake_when_readable(event, Some(Waker::from(self.tasks.clone())));
            }
            _ => {}
        }
    }
}

impl Drop for Enlistment<'_> {
    fn drop(&mut self) {
        let mut waiting = self.tasks.lock();
        let own = waiting.wakers.remove(&self.number);
        // Also if it has been woken: others may have told the thread anew since, and have been woken with it.
        if waiting.wakers.is_empty()
            && let Some(event) = self.event.get()
        {
            self.node.wake_when_readable(event, None);
        }
        drop(waiting);
        // The task may end with its waker, and its end come back here.
        drop(own);
    }
}
