//! Tasks that wait for a subscriber's messages (`Subscriber::next`). The node's thread wakes them when a message may be ready.
//!
//! ```text
//!  node's thread ──eventfd readable──▶ Tasks ──wakes all and clears the list──▶ each takes, or waits again
//! ```
//!
//! Invariants  T1 a task enlists before it looks for a message, so it misses no message between its look and its sleep. T2 all listed tasks are
//!             woken at once, so a task that is woken and dropped loses no wake-up of another. T3 when the last task is gone, the node's thread
//!             stops watching the eventfd. T4 a take that resets the eventfd and then gets a message makes it readable again
//!             (`SubscriberInner::next_held`): other tasks take the rest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Wake, Waker};

use rgaps_os::EventFd;

use crate::endpoint::node::NodeInner;
use crate::endpoint::sleepers::wake;

/// The tasks that wait on one subscriber. The node's thread wakes this object, which wakes them all.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    wakers: Mutex<HashMap<u64, Waker>>,
    /// Counts the tasks' numbers.
    last: AtomicU64,
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        let woken = std::mem::take(&mut *self.lock());
        // Not under the lock: a waker may poll its task at once.
        woken.into_values().for_each(wake);
    }
}

/// A task's place on the list of tasks to wake. Its future owns it; dropping the future removes the task.
#[derive(Debug)]
pub(crate) struct Enlistment<'a> {
    tasks: &'a Arc<Tasks>,
    node: &'a NodeInner,
    event: &'a OnceLock<Arc<EventFd>>,
    number: u64,
}

impl<'a> Enlistment<'a> {
    pub(crate) fn new(tasks: &'a Arc<Tasks>, node: &'a NodeInner, event: &'a OnceLock<Arc<EventFd>>) -> Self {
        Self { tasks, node, event, number: tasks.last.fetch_add(1, Ordering::Relaxed) }
    }

    /// Puts the task on the list: it will be woken once, together with all others.
    pub(crate) fn enlist(&self, waker: &Waker) {
        let former = self.tasks.lock().insert(self.number, waker.clone());
        // Not under the lock: dropping the waker may drop its task, whose `Enlistment` takes the lock.
        drop(former);
    }

    /// Makes the node's thread wake all listed tasks when the eventfd is readable, if there is one.
    pub(crate) fn watch(&self) {
        // Under the lock, so that a task that leaves does not undo this.
        let wakers = self.tasks.lock();
        match self.event.get() {
            Some(event) if wakers.contains_key(&self.number) => {
                self.node.wake_when_readable(event, Some(Waker::from(self.tasks.clone())));
            }
            _ => {}
        }
    }
}

impl Drop for Enlistment<'_> {
    fn drop(&mut self) {
        // In a forked child the lock may be that of its parent's thread, which never releases it there.
        if !self.node.is_owner() {
            return;
        }
        let mut wakers = self.tasks.lock();
        let own = wakers.remove(&self.number);
        // Also if this task was woken: the thread may watch again for other tasks, which may have been woken since.
        if wakers.is_empty()
            && let Some(event) = self.event.get()
        {
            self.node.wake_when_readable(event, None);
        }
        drop(wakers);
        // Not under the lock: dropping the waker may drop its task.
        drop(own);
    }
}
