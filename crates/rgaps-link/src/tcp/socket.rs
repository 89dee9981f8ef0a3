//! Socket settings, and the socket calls that must not block.

use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rgaps_os::shared::{self, SharedBytes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt;

use crate::error::LinkError;
use crate::link::{WAIT_FDS_MAX, Wake};

/// Time-outs and buffers of a tcp link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Ends the link if the peer does not take a record, or small ones together, within this time.
    pub send_timeout: Duration,
    /// Ends the link if the peer stops in the middle of a record for this long.
    pub stall_timeout: Duration,
    /// Ends the link if the peer's host answers nothing on the network for this long, idle or not.
    pub dead_peer_timeout: Duration,
    /// Time limit of connecting.
    pub connect_timeout: Duration,
    /// Time limit of the hand-shake that follows.
    pub hello_timeout: Duration,
    /// Kernel buffers on each side; `None` leaves them to the kernel, which tunes the receive buffer to the path.
    pub socket_buffer_bytes: Option<u32>,
    /// After this long without a record, the receiver frees the pages of an empty ring, so that an idle topic costs no memory. `None` for
    /// memory registered with a device or a NIC, whose pages must stay. Has no effect without flow control, where the receiver never
    /// knows that the ring is empty.
    pub give_back_after: Option<Duration>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            send_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(10),
            dead_peer_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            hello_timeout: Duration::from_secs(3),
            socket_buffer_bytes: None,
            give_back_after: None,
        }
    }
}

/// Most file descriptors of its own that a link waits for.
const OWN_MAX: usize = 2;

/// Applies the options to a connected socket, on either side.
pub(crate) fn configure(stream: &TcpStream, options: &TcpOptions) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    if let Some(bytes) = options.socket_buffer_bytes {
        sockopt::set_socket_send_buffer_size(stream, bytes as usize)?;
        sockopt::set_socket_recv_buffer_size(stream, bytes as usize)?;
    }
    // Keepalive probes an idle peer every second; TCP_USER_TIMEOUT covers one that owes an acknowledgement.
    let dead = options.dead_peer_timeout.max(Duration::from_secs(2));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, (dead.as_secs() as u32).saturating_sub(1).max(1))?;
    sockopt::set_tcp_user_timeout(stream, dead.as_millis() as u32)
}

/// Sends without blocking and without SIGPIPE; `Ok(None)` when the socket is full.
pub(crate) fn send(stream: &TcpStream, slices: &[SharedBytes<'_>]) -> rustix::io::Result<Option<usize>> {
    loop {
        match shared::send(stream, slices).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            sent => return sent.map(Some),
        }
    }
}

/// Receives without blocking; `Ok(None)` if there is nothing, `Ok(Some(0))` at the end.
pub(crate) fn receive(stream: &TcpStream, to: &mut [u8]) -> rustix::io::Result<Option<usize>> {
    loop {
        match rustix::net::recv(stream, &mut *to, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            received => return received.map(|(_, n)| Some(n)),
        }
    }
}

/// Waits until the socket is writable or readable. Returns (writable, readable).
pub(crate) fn wait_writable(stream: &TcpStream, timeout: Duration) -> rustix::io::Result<(bool, bool)> {
    wait_for(stream, PollFlags::OUT | PollFlags::IN, timeout)
}

/// Waits until the socket is readable or, with `to_send`, writable, or `other` is readable. Returns whether the socket is readable, and whether `other`
/// is.
pub(crate) fn wait_to_receive(
    stream: &TcpStream,
    timeout: Duration,
    to_send: bool,
    other: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<(bool, bool)> {
    let flags = if to_send { PollFlags::OUT | PollFlags::IN } else { PollFlags::IN };
    let own = PollFd::new(stream, flags);
    let Some(other) = other else {
        let mut fds = [own];
        poll_for(&mut fds, timeout)?;
        return Ok((events_of(&fds[0]).1, false));
    };
    let mut fds = [own, PollFd::from_borrowed_fd(other, PollFlags::IN)];
    poll_for(&mut fds, timeout)?;
    Ok((events_of(&fds[0]).1, !fds[1].revents().is_empty()))
}

fn wait_for(stream: &TcpStream, flags: PollFlags, timeout: Duration) -> rustix::io::Result<(bool, bool)> {
    let mut fds = [PollFd::new(stream, flags)];
    poll_for(&mut fds, timeout)?;
    Ok(events_of(&fds[0]))
}

/// Whether the socket is writable, and readable.
fn events_of(socket: &PollFd<'_>) -> (bool, bool) {
    let events = socket.revents();
    let broken = events.intersects(PollFlags::ERR | PollFlags::HUP);
    (broken || events.contains(PollFlags::OUT), broken || events.contains(PollFlags::IN))
}

/// Waits until one of the link's own file descriptors or one of the others is readable or broken.
pub(crate) fn wait_readable(
    own: &[BorrowedFd<'_>],
    timeout: Duration,
    others: &[BorrowedFd<'_>],
) -> Result<Wake, LinkError> {
    let (found, max) = (others.len(), WAIT_FDS_MAX);
    let Some(first) = own.first().filter(|_| found <= max && own.len() <= OWN_MAX) else {
        return Err(LinkError::TooManyFileDescriptors { found, max });
    };
    // Unused entries repeat the first one; the slice below excludes them.
    let mut fds: [PollFd<'_>; WAIT_FDS_MAX + OWN_MAX] = std::array::from_fn(|i| {
        PollFd::from_borrowed_fd(*own.iter().chain(others).nth(i).unwrap_or(first), PollFlags::IN)
    });
    let fds = &mut fds[..own.len() + found];
    poll_for(fds, timeout).map_err(|errno| LinkError::Broken { during: "waiting", errno })?;
    let mut wake = Wake::default();
    for (i, fd) in fds.iter().enumerate() {
        match i.checked_sub(own.len()) {
            None => wake.link |= !fd.revents().is_empty(),
            Some(other) => wake.others |= u32::from(!fd.revents().is_empty()) << other,
        }
    }
    Ok(wake)
}

/// Polls; an interrupted wait ends early, since every caller checks the clock and waits again.
fn poll_for(fds: &mut [PollFd<'_>], timeout: Duration) -> rustix::io::Result<()> {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
    match poll(fds, Some(&timeout)) {
        Ok(_) => Ok(()),
        Err(Errno::INTR) => {
            fds.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(errno) => Err(errno),
    }
}

/// Converts an error number into the link's error: EPIPE means that the peer closed the link.
pub(crate) fn broken(during: &'static str, errno: Errno) -> LinkError {
    match errno {
        Errno::PIPE => LinkError::Closed { by_peer: true },
        errno => LinkError::Broken { during, errno },
    }
}

/// The error number in a `std::io::Error`.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
