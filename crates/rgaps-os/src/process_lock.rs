//! A lock that ends with its process, whatever ends it: the kernel's own word for "alive" that needs no time-out.
//!
//! A POSIX record lock (fcntl(2), "Advisory record locking") of a whole file. The kernel gives it up when the last thread of the process is
//! gone, keeps it while the process is stopped, and does not give it to a forked child. (A lock of the open file description would live
//! on in a child, and flock(2) is one.) Whoever has the file asks who holds it, from any PID namespace.
//!
//! It is a lock for reading (F_RDLCK): the kernel gives one on a descriptor that is open for reading alone, so that who holds it can write nothing into the
//! file, which may be another user's. The question is whether a lock for writing could be had, and is answered by any lock of another process. Two
//! processes that have the file may both hold it: each file is given to one process, and what that passes on is its own loss.
//!
//! Invariants  L1 the kernel gives the lock up as soon as its process closes *any* descriptor of the file. So each lock has a file of its
//!             own, and a process that holds one never opens that file again: `take` is given the one descriptor and keeps it.
//!             L2 a file's own process does not see its lock: `holder` is for others.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FlockOperation, fcntl_lock};

/// Held by this process until it is dropped or the process ends.
#[derive(Debug)]
pub struct ProcessLock(#[expect(dead_code, reason = "closing it gives the lock up")] OwnedFd);

impl ProcessLock {
    /// Takes the lock of a file that is open for reading.
    pub fn take(file: OwnedFd) -> io::Result<Self> {
        fcntl_lock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Self(file))
    }
}

/// Who holds the lock of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No process but, perhaps, this one.
    Nobody,
    /// This process, as it is numbered here.
    Process(u32),
    /// A process that cannot be seen from here.
    OutOfSight,
}

/// Who holds the lock of a file. The caller must not hold it: it would not see that, and lose it when the file is closed.
pub fn holder(file: &File) -> io::Result<Holder> {
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let mut found = whole;
    // SAFETY: the descriptor is borrowed, so it is open; F_GETLK reads and writes one `flock`, which lives through the call.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETLK, &raw mut found) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(match u32::try_from(found.l_pid) {
        _ if found.l_type == libc::F_UNLCK as libc::c_short => Holder::Nobody,
        Ok(pid) if pid > 0 => Holder::Process(pid),
        _ => Holder::OutOfSight,
    })
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
        assert_eq!(holder(&asks).unwrap(), held, "whoever else holds it, it is not free");
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
}
