//! Sockets that linger (SO_LINGER): close(2) of one waits for its peer, in whichever thread calls it, even if the socket is non-blocking.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Switches lingering off for every socket of this process, and returns how many lingered. The kernel still sends unsent data after a close. If
/// another thread closes and reuses a number meanwhile, that does no harm: no socket needs to linger.
pub fn clear() -> io::Result<usize> {
    Ok(lingering()?.into_iter().filter(|fd| set_off(*fd)).count())
}

/// Switches lingering off for this file descriptor, if it is a socket.
pub(crate) fn clear_of(fd: &impl AsFd) {
    let _ = set_off(fd.as_fd().as_raw_fd());
}

/// How many sockets of this process linger.
pub fn count() -> io::Result<usize> {
    lingering().map(|found| found.len())
}

fn lingering() -> io::Result<Vec<c_int>> {
    let open = std::fs::read_dir("/proc/self/fd")?.flatten();
    Ok(open.filter_map(|fd| fd.file_name().to_str()?.parse().ok()).filter(|fd| lingers(*fd)).collect())
}

fn lingers(fd: c_int) -> bool {
    let mut found = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut bytes = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `bytes` bytes to `found` and the length to `bytes`; a number that is no socket's is an error.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut found).cast(), &raw mut bytes) };
    done == 0 && found.l_onoff != 0 && found.l_linger > 0
}

fn set_off(fd: c_int) -> bool {
    let off = libc::linger { l_onoff: 0, l_linger: 0 };
    let bytes = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: setsockopt(2) reads `bytes` bytes of `off`; a number that is no socket's is an error.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const off).cast(), bytes) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{set_socket_linger, socket_linger};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn a_socket_that_lingers_is_found_and_lingers_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_socket_linger(&near, Some(Duration::from_secs(10))).unwrap();
        assert_eq!((count().unwrap(), clear().unwrap(), count().unwrap()), (1, 1, 0));
        assert_eq!(socket_linger(&near).unwrap(), None);
    }
}
