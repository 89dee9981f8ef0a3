//! Checks whether code makes system calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use crate::raw;

/// Runs `body` on a thread that the kernel kills at its first system call other than read, write and exit (seccomp(2), strict mode). Returns whether
/// the thread reached the end of `body`. It ends without destructors, so values that `body` owns leak. If `body` takes a lock, or memory from the
/// allocator, it may die with the lock held.
pub fn makes_no_system_call(body: impl FnOnce() + Send + 'static) -> bool {
    let lived = Arc::new(AtomicBool::new(false));
    let (say, thread) = channel();
    let of_thread = lived.clone();
    std::thread::spawn(move || {
        say.send(rustix::thread::gettid()).expect("the caller waits for it");
        raw::give_up_system_calls().expect("seccomp's strict mode");
        body();
        of_thread.store(true, Ordering::Release);
        raw::exit_thread()
    });
    let thread = thread.recv().expect("the thread says its number").as_raw_nonzero();
    while std::fs::exists(format!("/proc/self/task/{thread}")).expect("/proc is there") {
        std::thread::yield_now();
    }
    lived.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::makes_no_system_call;

    #[test]
    fn a_system_call_is_detected() {
        assert!(makes_no_system_call(|| ()));
        assert!(!makes_no_system_call(std::thread::yield_now));
    }
}
