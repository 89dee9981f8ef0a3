//! Tells, by two loads, whether this process created an object or was forked after that.
//!
//! Each process has a number in a private page that the kernel wipes in a forked child (`MADV_WIPEONFORK`, Linux 4.14). A child finds 0 there, and
//! takes the next number. Process ids would not do: a parent and a child in another PID namespace may have the same one.
//!
//! Invariants  The number of a process differs from that of each process that it was forked from. Siblings may have the same number, since neither
//!             has objects of the other.

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE_BYTES: usize = 4096;

/// The page with the number of this process: null until it is first needed, then never unmapped.
static PAGE: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
/// The next number. A child inherits it.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The number of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessNumber(u64);

impl ProcessNumber {
    /// The number of this process. Takes no lock: a child may be forked while another thread of its parent is in this function.
    pub(crate) fn own() -> io::Result<Self> {
        let word = word()?;
        let known = word.load(Ordering::Relaxed);
        if known != 0 {
            return Ok(Self(known));
        }
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
        Ok(Self(number.map_or_else(|of_another_thread| of_another_thread, |_| next)))
    }

    /// Whether this is the number of this process.
    pub(crate) fn is_own(self) -> bool {
        Self::own().is_ok_and(|own| own == self)
    }
}

/// A field of an object that a forked child must not use.
#[derive(Debug)]
pub struct ForkGuard(ProcessNumber);

impl ForkGuard {
    /// Marks this process as the owner.
    pub fn new() -> io::Result<Self> {
        ProcessNumber::own().map(Self)
    }

    /// False in a child that was forked after `new`.
    pub fn is_owner(&self) -> bool {
        self.0.is_own()
    }
}

fn word() -> io::Result<&'static AtomicU64> {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let made = wiped_on_fork()?;
        let kept = PAGE.compare_exchange(page, made, Ordering::Release, Ordering::Acquire);
        page = kept.map_or_else(|of_another_thread| of_another_thread, |_| made);
        if page != made {
            unmap(made);
        }
    }
    // SAFETY: the start of a page that stays mapped, and that is accessed only atomically.
    Ok(unsafe { AtomicU64::from_ptr(page) })
}

/// A page of zeros.
fn wiped_on_fork() -> io::Result<*mut u64> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, protection, MapFlags::PRIVATE) }?;
    // Miri has neither madvise nor fork.
    if cfg!(not(miri)) {
        // SAFETY: exactly the page mapped above; the advice only says what a fork does with it.
        let advised = unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) };
        advised.inspect_err(|_| unmap(page.cast()))?;
    }
    Ok(page.cast())
}

/// A page to which no other thread has a reference.
fn unmap(page: *mut u64) {
    // SAFETY: exactly one page of `wiped_on_fork`, to which there is no reference. A failure could only leak it.
    let _ = unsafe { munmap(page.cast(), PAGE_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_is_the_owner_and_a_forked_child_is_not() {
        let guard = ForkGuard::new().unwrap();
        assert!(guard.is_owner());
        // SAFETY: the child accesses two words and leaves by _exit, which is async-signal-safe.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let is_owner_of_its_own = ForkGuard::new().is_ok_and(|own| own.is_owner());
            let code = i32::from(guard.is_owner() || !is_owner_of_its_own);
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
