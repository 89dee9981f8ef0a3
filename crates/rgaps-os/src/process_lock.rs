//! A lock that the kernel releases when its process ends in any way, so no time-out is needed to tell whether the process lives.
//!
//! ```text
//!   byte 0   POSIX record lock (fcntl(2), "Advisory record locking"): held by one process
//!   byte 1   open file description lock (the same page): held by that process and its forked children
//! ```
//!
//! The kernel releases the lock on byte 0 when the last thread of the process is gone. It keeps that lock while the process is stopped, and does not
//! pass it to a forked child. It releases the lock on byte 1 when the last process has closed the file descriptor, by exit or execve. Until then a
//! forked child has everything open that its parent had, such as a GPU. Any process that has the file open can query both locks, from any PID
//! namespace.
//!
//! Both are read locks (F_RDLCK), which the kernel grants on a read-only file descriptor: the holder may not write into the file, which may be
//! another user's. `holder` tests whether a write lock could be taken, which a lock of any other process prevents. Two processes with file
//! descriptors of the file could both hold the lock. But each file is given to one process, and a process that passes its file on harms only itself.
//!
//! Invariants  PL1 the kernel releases byte 0 as soon as its process closes *any* file descriptor of the file. So each lock has a file of its own, and
//!             a process that holds one never opens that file again: `take` is given the one file descriptor and keeps it.
//!             PL2 a process does not see its own lock on byte 0, so only other processes may call `holder`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Locked by the process alone.
const OF_PROCESS: libc::off_t = 0;
/// Locked by the process and its forked children.
const OF_FORKS: libc::off_t = 1;

/// The lock of a file, held by this process until it is dropped or the process ends.
#[derive(Debug)]
pub struct ProcessLock(#[expect(dead_code, reason = "closing it gives the lock up")] OwnedFd);

impl ProcessLock {
    /// Takes the lock of a file that is open for reading.
    pub fn take(file: OwnedFd) -> io::Result<Self> {
        lock(&file, libc::F_SETLK, libc::F_RDLCK, OF_PROCESS)?;
        lock(&file, libc::F_OFD_SETLK, libc::F_RDLCK, OF_FORKS)?;
        Ok(Self(file))
    }
}

/// Which process holds the lock of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No process, except perhaps the calling one.
    Nobody,
    /// The process with this id in the caller's PID namespace.
    Process(u32),
    /// A process that the caller's PID namespace does not show.
    OutOfSight,
}

/// Which process holds the lock of a file. The caller must not hold it: it would not see its own lock, and would lose it by closing the file.
pub fn holder(file: &File) -> io::Result<Holder> {
    let found = lock(file, libc::F_GETLK, libc::F_WRLCK, OF_PROCESS)?;
    Ok(match u32::try_from(found.l_pid) {
        _ if is_free(&found) => Holder::Nobody,
        Ok(pid) if pid > 0 => Holder::Process(pid),
        _ => Holder::OutOfSight,
    })
}

/// Whether a process that took the lock, or a child forked from it, still has the file open.
pub fn is_open_in_a_fork(file: &File) -> io::Result<bool> {
    Ok(!is_free(&lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, OF_FORKS)?))
}

fn is_free(found: &libc::flock) -> bool {
    found.l_type == libc::F_UNLCK as libc::c_short
}

/// Takes a lock on one byte, or returns a lock that prevents it (fcntl(2)).
fn lock(file: impl AsFd, command: libc::c_int, kind: libc::c_int, byte: libc::off_t) -> io::Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the file descriptor is borrowed, so it is open; these commands read and write one `flock`, which lives through the call.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut lock) };
    if result == 0 { Ok(lock) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pidfd::Signal;
    use rustix::process::{Pid, WaitOptions, kill_process, waitpid};
    use std::io::{Read, Write};
    use std::path::PathBuf;

    fn scratch(name: &str) -> (PathBuf, File) {
        let path = std::env::temp_dir().join(format!("rgaps-lock-{}-{name}", std::process::id()));
        File::create(&path).unwrap();
        (path.clone(), File::open(path).unwrap())
    }

    /// A child that takes the lock, says so, and stays.
    fn holding_child(file: File) -> Pid {
        let (mut said, mut says) = io::pipe().unwrap();
        // SAFETY: the child makes system calls only, and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let lock = ProcessLock::take(file.into());
            let _ = says.write_all(&[u8::from(lock.is_ok())]);
            loop {
                // SAFETY: waits for a signal; no arguments.
                unsafe { libc::pause() };
            }
        }
        drop((says, file));
        let mut word = [0];
        said.read_exact(&mut word).unwrap();
        assert_eq!(word, [1], "the child has the lock");
        Pid::from_raw(pid).unwrap()
    }

    fn wait_for(child: Pid, options: WaitOptions) {
        waitpid(Some(child), options).unwrap();
    }

    #[test]
    fn a_lock_is_kept_by_a_stopped_process_and_goes_with_a_dead_one() {
        let (path, file) = scratch("stopped");
        let asks = File::open(&path).unwrap();
        assert_eq!(holder(&asks).unwrap(), Holder::Nobody);
        let child = holding_child(file);
        let held = Holder::Process(child.as_raw_nonzero().get().unsigned_abs());
        assert_eq!(holder(&asks).unwrap(), held);
        let again = ProcessLock::take(File::open(&path).unwrap().into()).unwrap();
        assert_eq!(holder(&asks).unwrap(), held, "a second holder does not hide the first");
        drop(again);
        kill_process(child, Signal::STOP).unwrap();
        wait_for(child, WaitOptions::UNTRACED);
        assert_eq!(holder(&asks).unwrap(), held);
        kill_process(child, Signal::KILL).unwrap();
        wait_for(child, WaitOptions::empty());
        assert_eq!(holder(&asks).unwrap(), Holder::Nobody);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_forked_child_has_no_part_in_its_parents_lock() {
        let (path, file) = scratch("forked");
        let _lock = ProcessLock::take(file.into()).unwrap();
        let (mut said, mut says) = io::pipe().unwrap();
        // SAFETY: the child opens a file, asks for its lock and leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let parents = Some(Holder::Process(std::os::unix::process::parent_id()));
            let found = File::open(&path).and_then(|file| holder(&file)).ok();
            let _ = says.write_all(&[u8::from(found.is_some() && found == parents)]);
            // SAFETY: ends the child without its parent's destructors.
            unsafe { libc::_exit(0) };
        }
        let mut word = [0];
        said.read_exact(&mut word).unwrap();
        assert_eq!(word, [1], "the parent has it, not the child");
        wait_for(Pid::from_raw(pid).unwrap(), WaitOptions::empty());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_dead_processs_file_is_open_until_the_child_that_it_forked_has_ended() {
        let (path, file) = scratch("fork");
        let asks = File::open(&path).unwrap();
        let (waits, ends) = io::pipe().unwrap();
        let (mut said, mut says) = io::pipe().unwrap();
        // SAFETY: parent and child make system calls only, and leave by _exit.
        let parent = unsafe { libc::fork() };
        if parent == 0 {
            let lock = ProcessLock::take(file.into());
            // SAFETY: as above.
            if unsafe { libc::fork() } == 0 {
                drop(ends);
                let _ = (&waits).read(&mut [0]);
                drop(lock);
                let _ = says.write_all(&[1]);
            }
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        drop((file, waits, says));
        wait_for(Pid::from_raw(parent).unwrap(), WaitOptions::empty());
        assert_eq!((holder(&asks).unwrap(), is_open_in_a_fork(&asks).unwrap()), (Holder::Nobody, true));
        drop(ends);
        said.read_exact(&mut [0]).unwrap();
        assert!(!is_open_in_a_fork(&asks).unwrap());
        std::fs::remove_file(path).unwrap();
    }
}
