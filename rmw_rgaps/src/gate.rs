//! Keeps a user's callback and the destruction of its entity apart, even if the callback itself destroys the entity.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::lock::lock;

/// A reentrant lock that no longer blocks any thread once it is closed.
#[derive(Default)]
pub(crate) struct Gate {
    /// The thread inside; 0 for none.
    inside: Mutex<usize>,
    left: Condvar,
    is_closed: AtomicBool,
}

/// Keeps other threads out until it is dropped. Holds nothing if this thread is already inside further up its stack, or if the gate is closed.
pub(crate) struct Inside<'a>(Option<&'a Gate>);

impl Gate {
    /// Waits for the thread inside, unless that thread has closed the gate: it may be waiting for this one.
    pub(crate) fn enter(&self) -> Inside<'_> {
        let own = this_thread();
        let mut inside = lock(&self.inside);
        while *inside != 0 && *inside != own && !self.is_closed() {
            inside = self.left.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
        if *inside != 0 || self.is_closed() {
            return Inside(None);
        }
        *inside = own;
        Inside(Some(self))
    }

    /// Waits for the thread inside, and lets no thread in any more.
    pub(crate) fn close(&self) {
        let _inside = self.enter();
        // With the lock held, so that no thread begins to wait in between.
        let _lock = lock(&self.inside);
        self.is_closed.store(true, Ordering::Release);
        self.left.notify_all();
    }

    /// Whether the entity is being destroyed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            *lock(&gate.inside) = 0;
            gate.left.notify_all();
        }
    }
}

/// A number for each living thread, never 0.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn the_thread_inside_enters_again_and_others_wait_for_it() {
        let gate = Gate::default();
        let inside = gate.enter();
        drop(gate.enter());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter().0.is_some());
            assert!(gate.enter().0.is_none() && !waiting.is_finished());
            drop(inside);
            assert!(waiting.join().unwrap());
        });
        assert!(gate.enter().0.is_some(), "everybody has left");
    }

    #[test]
    fn a_thread_that_closes_the_gate_from_inside_may_wait_for_those_outside() {
        let gate = Gate::default();
        let inside = gate.enter();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter().0.is_none() && gate.is_closed());
            gate.close();
            assert!(waiting.join().unwrap());
        });
        drop(inside);
        assert!(gate.enter().0.is_none());
    }

    #[test]
    fn closing_the_gate_waits_for_the_thread_inside() {
        let gate = Gate::default();
        let (is_over, starting) = (AtomicBool::new(false), Barrier::new(2));
        let inside = gate.enter();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| {
                starting.wait();
                gate.close();
                is_over.load(Ordering::Acquire)
            });
            starting.wait();
            assert!(!gate.is_closed());
            is_over.store(true, Ordering::Release);
            drop(inside);
            assert!(closing.join().unwrap(), "closed while a thread was inside");
        });
        assert!(gate.is_closed());
    }
}
