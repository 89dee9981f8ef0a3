//! Whether a piece of code makes system calls.

use std::io;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::raw;

/// Runs `body` in a forked child that the kernel kills at its first system call but read, write and exit (seccomp(2), strict mode), and returns
/// whether the child lived to its end. `body` may take no lock and own no memory that it frees: another thread may hold the allocator's lock.
pub fn makes_no_system_call(body: impl FnOnce()) -> io::Result<bool> {
    let child = raw::fork_without_system_calls(body)?;
    let pid = Pid::from_raw(child).ok_or(io::ErrorKind::InvalidData)?;
    let ended = waitpid(Some(pid), WaitOptions::empty())?.map(|(_, status)| status);
    match ended.map(|status| (status.exit_status(), status.terminating_signal())) {
        Some((Some(0), _)) => Ok(true),
        Some((_, Some(libc::SIGKILL))) => Ok(false),
        other => Err(io::Error::other(format!("the child ended by itself: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::makes_no_system_call;

    #[test]
    fn a_system_call_is_noticed() {
        assert!(makes_no_system_call(|| ()).unwrap());
        assert!(!makes_no_system_call(|| std::thread::yield_now()).unwrap());
    }
}
