//! Identifies the peer of a Unix socket by the kernel's word, also if the peer's PID namespace is not visible from here.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// A process's credentials when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process id in this process's PID namespace; `None` if it is not visible there.
    pub pid: Option<u32>,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The peer of a connected socket. (rustix's call treats process id 0 as an error; the kernel returns 0 for a process that is not visible.)
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the file descriptor is borrowed, so it is open; `found` and `length` live through the call, and `length` says what `found` has room
    // for.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Credentials { pid: u32::try_from(found.pid).ok().filter(|pid| *pid != 0), uid: found.uid, gid: found.gid })
}

/// Bytes of memory that the peer of a connected socket has not read yet; 0 once it has read all or has closed the socket.
pub fn unread_bytes(socket: impl AsFd) -> io::Result<u32> {
    let mut unread: libc::c_int = 0;
    // SAFETY: the file descriptor is borrowed, so it is open; TIOCOUTQ (SIOCOUTQ, unix(7)) writes one int, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(unread.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    #[test]
    fn the_peer_of_a_pair_of_sockets_is_this_process() {
        let (one, _two) = UnixStream::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let found = credentials(&one).unwrap();
        assert_eq!((found.pid, found.uid), (Some(std::process::id()), user));
        assert!(credentials(std::fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn unread_bytes_count_until_the_peer_reads_or_closes() {
        let (mut one, mut two) = UnixStream::pair().unwrap();
        assert_eq!(unread_bytes(&one).unwrap(), 0);
        one.write_all(b"word").unwrap();
        assert!(unread_bytes(&one).unwrap() > 0);
        two.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(unread_bytes(&one).unwrap(), 0);
        one.write_all(b"word").unwrap();
        drop(two);
        // A child that another test has forked may still have its copy of the other end.
        let deadline = Instant::now() + Duration::from_secs(60);
        while unread_bytes(&one).unwrap() > 0 {
            assert!(Instant::now() < deadline, "the closed end has unread bytes");
            std::thread::yield_now();
        }
    }
}
