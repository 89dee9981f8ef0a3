//! One end of the local socket, and the manager's listener.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::text;

/// Longest message in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// File descriptors beside a message, at most.
pub const FDS_MAX: usize = 136;
/// How long a send may take before the peer counts as stuck.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that a manager may have sent and its client not read. The kernel caps this at net.core.wmem_max (208 KiB by default) and adds its own cost
/// to each message, so hundreds of notices fit. net.unix.max_dgram_qlen does not bound connected sockets.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// Extension of a socket's file until the socket listens.
const NEW_SOCKET: &str = "new";
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The kernel refused.
    #[error("{path}: {source}")]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Sending or receiving failed.
    #[error("the connection to the other side failed: {0}")]
    Io(#[from] io::Error),
    /// The other side has hung up.
    #[error("the other side has closed the connection")]
    Closed,
    /// A message is too long, or came with too many file descriptors.
    #[error("a message of more than {MESSAGE_BYTES_MAX} B, or with more than {FDS_MAX} file descriptors, is refused")]
    Oversized,
    /// This process has as many file descriptors open as it may.
    #[error(
        "this process may have {limit} file descriptors open (RLIMIT_NOFILE), too few to receive those of a message: raise the limit (ulimit -n, \
                 LimitNOFILE=), or use fewer topics in a process"
    )]
    FileDescriptors {
        /// How many it may have.
        limit: u64,
    },
    /// A message is not one of ours.
    #[error("a message could not be read: {0}")]
    Garbage(String),
    /// The other side does not read.
    #[error("the other side did not read a message within {} s", SEND_TIMEOUT.as_secs())]
    Stuck,
    /// File descriptors cannot be sent: the sender's user has too many in flight, over all sockets.
    #[error(
        "user {user} has sent more file descriptors that are not read yet than the sender may have open ({limit}, RLIMIT_NOFILE), so no more can be \
                 sent: continue or end stopped programs of that user, or raise the limit (LimitNOFILE=, ulimit -Hn)"
    )]
    TooManyUnread {
        /// Whose.
        user: u32,
        /// How many there may be.
        limit: u64,
    },
    /// The socket has no room: the other side does not read.
    #[error("the other side does not read its messages: the socket is full (net.core.wmem_max bounds it)")]
    Full,
}

/// A message and the file descriptors beside it.
#[derive(Debug)]
pub struct Packet<M> {
    /// The message.
    pub message: M,
    /// The file descriptors.
    pub fds: Vec<OwnedFd>,
    /// Whether file descriptors are missing because this process cannot have more (`Packet::complete`).
    pub is_short: bool,
}

impl<M> Packet<M> {
    /// Returns an error if file descriptors are missing because this process cannot have more.
    pub fn complete(&self) -> Result<(), LocalError> {
        if self.is_short { Err(LocalError::FileDescriptors { limit: rgaps_os::fds::limit() }) } else { Ok(()) }
    }
}

/// The process on the other side, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id; 0 if it is in a PID namespace that cannot be seen from here.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// One end of a connection. Sending and receiving may happen in different threads.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// The other end is a client, which must not keep the manager waiting when file descriptors are closed.
    is_of_client: bool,
    /// The other side was found to have ended it: nothing that is sent would be answered, though the kernel may take it (`end_sending`).
    is_over: AtomicBool,
}

impl Connection {
    /// Connects. `None` if no process listens there.
    pub fn connect(path: &Path) -> Result<Option<Self>, LocalError> {
        let failed = |source: Errno| LocalError::Socket { path: path.to_owned(), source: source.into() };
        let socket = new_socket().map_err(failed)?;
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => Ok(Some(Self::new(socket)?)),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(Errno::AGAIN) => Err(LocalError::Stuck),
            Err(error) => Err(failed(error)),
        }
    }

    /// Two connected ends, for tests.
    pub fn pair() -> Result<(Self, Self), LocalError> {
        let flags = SocketFlags::CLOEXEC;
        let (one, two) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(io::Error::from)?;
        Ok((Self::new(one)?, Self::new(two)?))
    }

    fn new(socket: OwnedFd) -> Result<Self, LocalError> {
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(SEND_TIMEOUT))
            .map_err(io::Error::from)?;
        Ok(Self { socket, is_of_client: false, is_over: AtomicBool::new(false) })
    }

    /// Sends a message and the file descriptors beside it. Waits for a slow peer, up to a time-out.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), LocalError> {
        self.transmit(message, fds, SendFlags::empty())
    }

    /// Sends without waiting, for a thread that serves many clients. `Full` if the peer does not read.
    pub fn send_now(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), LocalError> {
        self.transmit(message, fds, SendFlags::DONTWAIT)
    }

    /// Whether a message could be sent now without waiting, unless another thread sends one first.
    pub fn is_writable(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        // A process that may have no file descriptors may still send.
        poll(&mut fds, Some(&Timespec::default())).is_err() || fds[0].revents().contains(PollFlags::OUT)
    }

    fn transmit(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>], wait: SendFlags) -> Result<(), LocalError> {
        if self.is_over.load(Ordering::Acquire) {
            return Err(LocalError::Closed);
        }
        let text = serde_json::to_vec(message).map_err(|error| LocalError::Garbage(error.to_string()))?;
        if text.len() > MESSAGE_BYTES_MAX || fds.len() > FDS_MAX {
            return Err(LocalError::Oversized);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(LocalError::Oversized);
        }
        loop {
            let parts = [IoSlice::new(&text)];
            match rustix::net::sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL | wait) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if wait.contains(SendFlags::DONTWAIT) => return Err(LocalError::Full),
                Err(Errno::AGAIN) => return Err(LocalError::Stuck),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(LocalError::Closed),
                Err(Errno::TOOMANYREFS) => {
                    let (user, limit) = (rustix::process::geteuid().as_raw(), rgaps_os::fds::limit());
                    return Err(LocalError::TooManyUnread { user, limit });
                }
                Err(error) => return Err(LocalError::Io(error.into())),
            }
        }
    }

    /// The next message, if one arrives within `timeout`.
    pub fn receive<M: DeserializeOwned>(&self, timeout: Duration) -> Result<Option<Packet<M>>, LocalError> {
        if !rgaps_os::poll::readable(&self.socket, timeout)? {
            return Ok(None);
        }
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut receive =
            || rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        // If the peer hung up before it had read everything, the kernel reports that once. What the peer had sent can still be read.
        let outcome = match receive() {
            Err(Errno::CONNRESET) => receive(),
            outcome => outcome,
        };
        let received = match outcome {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(LocalError::Closed),
            Err(error) => return Err(LocalError::Io(error.into())),
        };
        let mut sent = Sent { fds: Vec::new(), is_of_client: self.is_of_client };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                sent.fds.extend(rights);
            }
        }
        // The kernel drops file descriptors that do not fit `space`, and those beyond this process's limit.
        let is_short = received.flags.contains(ReturnFlags::CTRUNC);
        if received.flags.contains(ReturnFlags::TRUNC) || is_short && sent.fds.len() >= FDS_MAX {
            return Err(LocalError::Oversized);
        }
        if received.bytes == 0 {
            self.is_over.store(true, Ordering::Release);
            return Err(LocalError::Closed);
        }
        let message =
            text::from_json(&bytes[..received.bytes]).map_err(|error| LocalError::Garbage(error.to_string()))?;
        Ok(Some(Packet { message, fds: sent.take(), is_short }))
    }

    /// Whether no process has the other end any more: neither the one that made it nor one forked from it.
    pub fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        // If the kernel does not say, a fork may have the other end.
        let asked = poll(&mut polled, Some(&Timespec::default()));
        asked.is_ok() && polled[0].revents().contains(PollFlags::HUP)
    }

    /// Whether the other side has read everything that was sent to it.
    pub fn is_all_read(&self) -> bool {
        rgaps_os::peer::unread_bytes(&self.socket).is_ok_and(|bytes| bytes == 0)
    }

    /// The process on the other side.
    pub fn peer(&self) -> Result<PeerCredentials, LocalError> {
        let peer = rgaps_os::peer::credentials(&self.socket)?;
        Ok(PeerCredentials { pid: peer.pid.unwrap_or(0), uid: peer.uid, gid: peer.gid })
    }

    /// Ends the connection without waiting. Another thread closes the file descriptors that the other side has sent and this process has not read.
    pub fn close_elsewhere(self) {
        self.shut_down();
        rgaps_os::closing::elsewhere([self.socket]);
    }

    /// Ends the connection for the other side, which finds nothing more to read. Whether somebody has that end still is seen here (`has_hung_up`).
    pub fn end_sending(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Ends the connection in both directions; a thread that waits in `receive` returns.
    pub fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// File descriptors of a message, until `take`. If the message is refused, those of a client are closed by another thread.
struct Sent {
    fds: Vec<OwnedFd>,
    is_of_client: bool,
}

impl Sent {
    fn take(mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.is_of_client {
            rgaps_os::closing::elsewhere(std::mem::take(&mut self.fds));
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The manager's socket. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of its file.
    file: Option<(u64, u64)>,
    admits_group: bool,
}

impl Listener {
    /// Listens on a path. The file appears there only once the socket listens. The caller holds the directory's lock, so a file that is already
    /// there is a dead manager's.
    pub fn bind(path: &Path) -> Result<Self, LocalError> {
        Self::bind_after(path, |_| Ok(()))
    }

    /// Like `bind`, after `prepare`, which may change owner and mode of the socket's file: it has another path before it appears.
    pub fn bind_after<E: From<LocalError>>(
        path: &Path,
        prepare: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Self, E> {
        let failed = |source: Errno| LocalError::Socket { path: path.to_owned(), source: source.into() };
        let new = path.with_extension(NEW_SOCKET);
        let _ = std::fs::remove_file(&new);
        let socket = new_socket().map_err(failed)?;
        let address = SocketAddrUnix::new(&new).map_err(failed)?;
        rustix::net::bind(&socket, &address).map_err(failed)?;
        // For this user only, whatever the umask is, until a group is admitted.
        rustix::fs::chmod(&new, rustix::fs::Mode::from_raw_mode(0o600)).map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
        prepare(&new).inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        rustix::fs::rename(&new, path).map_err(failed)?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
        Ok(Self { socket, file: file_at(path), path: path.to_owned(), admits_group: false })
    }

    /// Whether its file, by which clients find it, is still there.
    pub fn is_in_place(&self) -> bool {
        self.file.is_some() && file_at(&self.path) == self.file
    }

    /// Sets whether other users may connect. The kernel decides which, by the modes of socket and directory (`RuntimeDir::admit`): connecting
    /// needs write permission on the socket.
    pub fn admit_group(&mut self, admits: bool) {
        self.admits_group = admits;
    }

    /// Accepts a waiting client, if there is one. Refuses users other than this one and root, unless a group is admitted.
    pub fn accept(&self) -> Result<Option<Connection>, LocalError> {
        let socket = match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(LocalError::Io(error.into())),
        };
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, UNREAD_BYTES_MAX).map_err(io::Error::from)?;
        let mut connection = Connection::new(socket)?;
        connection.is_of_client = true;
        let peer = connection.peer()?;
        let own = rustix::process::geteuid().as_raw();
        if peer.uid != own && peer.uid != 0 && !self.admits_group {
            tracing::warn!(
                pid = peer.pid,
                uid = peer.uid,
                "refused a process of another user; socket_group would admit its group"
            );
            connection.close_elsewhere();
            return Ok(None);
        }
        Ok(Some(connection))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The file may be another manager's by now.
        if self.is_in_place() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// A socket whose connect (to a full backlog) and send calls time out.
fn new_socket() -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(SEND_TIMEOUT))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{Body, Request};

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn messages_and_file_descriptors_arrive_together() {
        let (one, two) = Connection::pair().unwrap();
        let memory = rgaps_os::memfd::create("test", 4096).unwrap();
        let request = Request { id: 7, body: Body::Topics { after: None } };
        one.send(&request, &[memory.as_fd(), memory.as_fd()]).unwrap();
        let packet: Packet<Request> = two.receive(LONG).unwrap().unwrap();
        assert_eq!(packet.message.id, 7);
        assert_eq!(packet.fds.len(), 2);
        assert_eq!(rgaps_os::memfd::identity(&packet.fds[1]).unwrap(), rgaps_os::memfd::identity(&memory).unwrap());
        assert_eq!(two.peer().unwrap().pid, std::process::id());
    }

    #[test]
    fn a_socket_is_prepared_before_it_can_be_seen() {
        let path = std::env::temp_dir().join(format!("rgaps-prepared-{}", std::process::id()));
        let unseen = |new: &Path| {
            assert!(new.exists() && !path.exists());
            rustix::fs::chmod(new, rustix::fs::Mode::from_raw_mode(0o660)).map_err(io::Error::from)?;
            Ok::<_, LocalError>(())
        };
        let listener = Listener::bind_after(&path, unseen).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions()) & 0o777, 0o660);
        drop(listener);
        let refused = |_: &Path| Err(LocalError::Closed);
        assert!(Listener::bind_after(&path, refused).is_err());
        assert!(!path.exists() && !path.with_extension(NEW_SOCKET).exists(), "nothing is left of it");
    }

    #[test]
    fn garbage_oversized_messages_and_silence_are_different_errors() {
        let (one, two) = Connection::pair().unwrap();
        assert!(two.receive::<Request>(Duration::ZERO).unwrap().is_none());
        one.send(&"no request", &[]).unwrap();
        assert!(matches!(two.receive::<Request>(LONG), Err(LocalError::Garbage(_))));
        assert!(matches!(one.send(&"x".repeat(MESSAGE_BYTES_MAX), &[]), Err(LocalError::Oversized)));
        let raw = vec![b' '; MESSAGE_BYTES_MAX + 1];
        rustix::net::send(&one, &raw, SendFlags::empty()).unwrap();
        assert!(matches!(two.receive::<Request>(LONG), Err(LocalError::Oversized)));
        drop(one);
        assert!(matches!(two.receive::<Request>(LONG), Err(LocalError::Closed)));
        assert!(matches!(two.send(&"anything", &[]), Err(LocalError::Closed)));
    }

    #[test]
    fn messages_sent_before_a_hang_up_are_read_even_if_the_peer_left_some_unread() {
        let (one, two) = Connection::pair().unwrap();
        one.send(&1, &[]).unwrap();
        two.send(&"unread", &[]).unwrap();
        drop(one);
        assert_eq!(two.receive::<u32>(LONG).unwrap().unwrap().message, 1);
        assert!(matches!(two.receive::<u32>(LONG), Err(LocalError::Closed)));
    }

    #[test]
    fn a_listener_replaces_a_dead_managers_file_and_removes_its_own() {
        let path = std::env::temp_dir().join(format!("rgaps-listener-{}", std::process::id()));
        std::fs::write(&path, b"left behind").unwrap();
        let listener = Listener::bind(&path).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let client = Connection::connect(&path).unwrap().unwrap();
        let server = listener.accept().unwrap().unwrap();
        client.send(&1, &[]).unwrap();
        assert_eq!(server.receive::<u32>(LONG).unwrap().unwrap().message, 1);
        drop(listener);
        assert!(!path.exists());
        assert!(Connection::connect(&path).unwrap().is_none());
    }
}
