//! Jobs that wait for the manager, done by a thread that ends when none is left: middleware calls this crate from threads that must not wait.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::gid::lock;

/// How many jobs wait at most: messages ask for some, and others may send any.
const JOBS_MAX: usize = 4096;

/// Jobs, done in order.
#[derive(Debug)]
pub(super) struct Work<J>(Mutex<Queue<J>>);

#[derive(Debug)]
struct Queue<J> {
    jobs: VecDeque<J>,
    is_running: bool,
}

impl<J> Default for Work<J> {
    fn default() -> Self {
        Self(Mutex::new(Queue { jobs: VecDeque::new(), is_running: false }))
    }
}

impl<J> Work<J> {
    /// Adds a job; false if there are too many. `thread` starts a thread that calls `run`; if that fails, the next job tries again.
    pub(super) fn add(&self, job: J, thread: impl FnOnce() -> bool) -> bool {
        let mut queue = lock(&self.0);
        let has_room = queue.jobs.len() < JOBS_MAX;
        if has_room {
            queue.jobs.push_back(job);
        }
        if !queue.is_running {
            queue.is_running = thread();
        }
        has_room
    }

    /// Does all jobs.
    pub(super) fn run(&self, body: impl Fn(J)) {
        let running = Running(self);
        loop {
            let mut queue = lock(&self.0);
            let Some(job) = queue.jobs.pop_front() else {
                // Before the lock is given up: what is added later starts a thread.
                queue.is_running = false;
                std::mem::forget(running);
                return;
            };
            drop(queue);
            body(job);
        }
    }
}

/// A thread that runs. If a job panics, the next one starts another.
struct Running<'a, J>(&'a Work<J>);

impl<J> Drop for Running<'_, J> {
    fn drop(&mut self) {
        lock(&self.0.0).is_running = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn jobs_go_on_after_one_that_panics() {
        let work = Arc::new(Work::default());
        let thread = |work: &Arc<Work<u32>>| {
            let work = work.clone();
            move || std::thread::spawn(move || work.run(|job| assert_ne!(job, 1))).join().is_err()
        };
        // As if a thread had been started; the test starts it below.
        let later = |job| work.add(job, || true);
        assert!(later(1) && later(2));
        assert!(thread(&work)(), "it panics");
        assert!(!lock(&work.0).is_running && lock(&work.0).jobs.len() == 1);
        assert!(!thread(&work)());
        assert!(lock(&work.0).jobs.is_empty());
    }
}
