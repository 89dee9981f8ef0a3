//! An event counter with a file descriptor: wakes a thread that waits in epoll or an RMW wait set.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, retry_on_intr};

/// An eventfd, non-blocking and close-on-exec. Readable while its counter is not zero.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new counter at zero.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Takes over a file descriptor from another process. If it is not an eventfd, `signal` and `drain` fail at worst.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Takes over a file descriptor from an untrusted process, for a caller that must not block in `signal`. An error if it is not a non-blocking
    /// eventfd.
    pub fn checked(fd: OwnedFd) -> io::Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        if link.as_os_str() == "anon_inode:[eventfd]" && flags.contains(rustix::fs::OFlags::NONBLOCK) {
            return Ok(Self(fd));
        }
        let what = link.to_string_lossy().into_owned();
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what} is no eventfd, or is a blocking one")))
    }

    /// Makes the file descriptor readable. A full counter is readable already, so it is no error. Does not block, whatever flags and count another
    /// holder of the counter has set before. (A holder that races with this call can make it block. It runs as this user, who could as well stop
    /// this process by a signal.)
    pub fn signal(&self) -> io::Result<()> {
        if !self.is(PollFlags::OUT)? {
            return Ok(());
        }
        match retry_on_intr(|| rustix::io::write(&self.0, &1_u64.to_ne_bytes())) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Resets the counter to zero, and returns whether it was signalled. Does not block either.
    pub fn drain(&self) -> io::Result<bool> {
        if !self.is(PollFlags::IN)? {
            return Ok(false);
        }
        let mut count = [0_u8; 8];
        match retry_on_intr(|| rustix::io::read(&self.0, &mut count)) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it is readable or writable now. Even a poll without waiting can be interrupted.
    fn is(&self, ready: PollFlags) -> io::Result<bool> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = retry_on_intr(|| poll(&mut [PollFd::new(&self.0, ready)], Some(&at_once)))?;
        Ok(ready > 0)
    }

    /// A second file descriptor of the same counter, for another process.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> Self {
        event.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_eventfd_that_does_not_block_passes_the_check() {
        let event = EventFd::new().unwrap();
        assert!(EventFd::checked(event.try_clone().unwrap().into()).is_ok());
        let blocking = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let (pipe, _keep) = rustix::pipe::pipe().unwrap();
        for other in [blocking, file.into(), pipe] {
            assert!(EventFd::checked(other).unwrap_err().to_string().contains("no eventfd"));
        }
    }

    #[test]
    fn a_counter_made_blocking_and_full_by_another_holder_blocks_no_caller() {
        let event = EventFd::new().unwrap();
        let other = event.try_clone().unwrap();
        rustix::fs::fcntl_setfl(&other.0, rustix::fs::OFlags::empty()).unwrap();
        assert!(!event.drain().unwrap());
        rustix::io::write(&other.0, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.signal().unwrap();
        assert!(event.drain().unwrap());
    }

    #[test]
    fn a_signal_is_seen_once_and_by_the_clone_too() {
        let event = EventFd::new().unwrap();
        let clone = event.try_clone().unwrap();
        assert!(!event.drain().unwrap());
        event.signal().unwrap();
        event.signal().unwrap();
        assert!(clone.drain().unwrap());
        assert!(!event.drain().unwrap());
    }
}
