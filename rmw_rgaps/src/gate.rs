//! What keeps a user's callback and the end of what it is of apart, though the callback may be the one that ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::context::lock;

/// A lock that the thread which has it passes freely, and everybody once it is closed.
#[derive(Default)]
pub(crate) struct Gate {
    /// The thread that is inside; 0 for none.
    inside: Mutex<usize>,
    left: Condvar,
    is_closed: AtomicBool,
}

/// What keeps others out until it is dropped: nothing if this thread is inside further up its stack, or the gate closed.
pub(crate) struct Inside<'a>(Option<&'a Gate>);

impl Gate {
    /// Waits for whoever is inside, but not for one who has closed the gate: that one may wait for this thread.
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

    /// Waits for whoever is inside and lets nobody in any more.
    pub(crate) fn close(&self) {
        let _inside = self.enter();
        // Within the lock, so that nobody goes to sleep in between.
        let _lock = lock(&self.inside);
        self.is_closed.store(true, Ordering::Release);
        self.left.notify_all();
    }

    /// What was to be kept apart from is over.
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

/// Another one for each living thread, and never 0.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn the_thread_inside_passes_and_others_wait_for_it() {
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
    fn who_is_inside_and_closes_the_gate_may_wait_for_those_who_wait_at_it() {
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
    fn who_closes_the_gate_waits_for_who_is_inside() {
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
            assert!(closing.join().unwrap(), "closed while somebody was inside");
        });
        assert!(gate.is_closed());
    }
}
