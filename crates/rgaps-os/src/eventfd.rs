//! An event counter with a file descriptor: wakes a thread that waits in epoll or an RMW wait set.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

/// preadv2(2): no offset, since an eventfd has none.
const CURRENT: u64 = u64::MAX;

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

    /// Takes over a file descriptor from an untrusted process. An error if it is no eventfd.
    pub fn checked(fd: OwnedFd) -> io::Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if link.as_os_str() == "anon_inode:[eventfd]" {
            return Ok(Self(fd));
        }
        let what = link.to_string_lossy().into_owned();
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what} is no eventfd")))
    }

    /// Makes the file descriptor readable. A full counter is readable already, so it is no error. Does not block, whatever flags and count another
    /// holder of the counter has set before. (A holder that races with this call can make it block. It runs as this user, who could as well stop
    /// this process by a signal.)
    pub fn signal(&self) -> io::Result<()> {
        self.make_nonblocking()?;
        match retry_on_intr(|| rustix::io::write(&self.0, &1_u64.to_ne_bytes())) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Resets the counter to zero, and returns whether it was signalled. Does not block either.
    pub fn drain(&self) -> io::Result<bool> {
        let mut count = [0_u8; 8];
        // One system call, where the kernel can read an eventfd so (Linux 5.8). There is no such write.
        let at_once = retry_on_intr(|| {
            rustix::io::preadv2(&self.0, &mut [IoSliceMut::new(&mut count)], CURRENT, ReadWriteFlags::NOWAIT)
        });
        let read = match at_once {
            Err(error) if error != Errno::AGAIN => {
                self.make_nonblocking()?;
                retry_on_intr(|| rustix::io::read(&self.0, &mut count))
            }
            read => read,
        };
        match read {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets O_NONBLOCK, which all holders of the counter share, if another one has cleared it. poll(2) is no alternative: it refuses every file
    /// descriptor in a process that may have none.
    fn make_nonblocking(&self) -> io::Result<()> {
        let flags = fcntl_getfl(&self.0)?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&self.0, flags | OFlags::NONBLOCK)?;
        }
        Ok(())
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
    fn only_an_eventfd_passes_the_check() {
        let event = EventFd::new().unwrap();
        assert!(EventFd::checked(event.try_clone().unwrap().into()).is_ok());
        let file = std::fs::File::open("/dev/null").unwrap();
        let (pipe, _keep) = rustix::pipe::pipe().unwrap();
        for other in [file.into(), pipe] {
            assert!(EventFd::checked(other).unwrap_err().to_string().contains("no eventfd"));
        }
    }

    #[test]
    fn a_counter_made_blocking_and_full_by_another_holder_blocks_no_caller() {
        let event = EventFd::new().unwrap();
        let other = event.try_clone().unwrap();
        let make_blocking = || fcntl_setfl(&other.0, OFlags::empty()).unwrap();
        make_blocking();
        assert!(!event.drain().unwrap());
        rustix::io::write(&other.0, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        make_blocking();
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
