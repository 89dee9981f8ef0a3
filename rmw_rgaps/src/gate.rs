//! What keeps a user's callback and the end of what it is of apart, though the callback may be the one that ends it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::context::lock;

/// A lock that the thread which has it passes freely.
#[derive(Default)]
pub(crate) struct Gate {
    lock: Mutex<()>,
    /// The thread that is inside; 0 for none.
    inside: AtomicUsize,
}

/// That this thread is inside, until it is dropped.
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
    _lock: MutexGuard<'a, ()>,
}

impl Gate {
    /// Waits for whoever is inside. None if this thread is, further up its stack.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        // What another thread has written here is never this thread's.
        if self.inside.load(Ordering::Relaxed) == this_thread() {
            return None;
        }
        let lock = lock(&self.lock);
        self.inside.store(this_thread(), Ordering::Relaxed);
        Some(Inside { gate: self, _lock: lock })
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.inside.store(0, Ordering::Relaxed);
    }
}

/// Another one for each living thread, and never 0.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_inside_passes_and_others_wait_for_it() {
        let gate = Gate::default();
        let inside = gate.enter().unwrap();
        assert!(gate.enter().is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter().is_some());
            assert!(gate.enter().is_none() && !waiting.is_finished());
            drop(inside);
            assert!(waiting.join().unwrap());
        });
        assert!(gate.enter().is_some(), "everybody has left");
    }
}
