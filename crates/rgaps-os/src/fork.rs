//! Tells a forked child from the process that created an object, at the cost of one load.
//!
//! The kernel wipes one private page in a child (`MADV_WIPEONFORK`, Linux 4.14): it holds 1 in the parent and 0 in the child.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mapping::Mapping;

/// A member of an object that must not be used after a fork.
#[derive(Debug)]
pub struct ForkGuard(Mapping);

impl ForkGuard {
    /// Marks this process as the owner.
    pub fn new() -> io::Result<Self> {
        let page = Mapping::wiped_on_fork(4096)?;
        let guard = Self(page);
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// False in a child that was forked after `new`.
    pub fn is_owner(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1
    }

    fn word(&self) -> &AtomicU32 {
        match self.0.atomic_u32(0) {
            Ok(word) => word,
            Err(_) => unreachable!("a page holds its first word"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_is_the_owner_and_a_forked_child_is_not() {
        let guard = ForkGuard::new().unwrap();
        assert!(guard.is_owner());
        // SAFETY: the child only reads one word and leaves by _exit, which is async-signal-safe.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(guard.is_owner());
            // SAFETY: ends the child without running its parent's destructors.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is a valid place for the result.
        let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(waited, pid);
        assert_eq!(status, 0, "the child took itself for the owner");
    }
}
