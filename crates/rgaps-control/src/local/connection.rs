//! One end of the socket, and the listener.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
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
/// Most descriptors beside a message.
pub const DESCRIPTORS_MAX: usize = 136;
/// How long a send may take before the peer counts as stuck.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// What a manager may have sent that its client has not read. The kernel allows net.core.wmem_max (208 KiB by default) and counts each
/// message with what it costs itself, so that hundreds of notices fit; net.unix.max_dgram_qlen does not bound connected sockets.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// Extension of a socket's file until it is listened to.
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
    /// A message is too long, or came with too many descriptors.
    #[error(
        "a message of more than {MESSAGE_BYTES_MAX} B, or with more than {DESCRIPTORS_MAX} descriptors, is refused"
    )]
    Oversized,
    /// This process has as many descriptors open as it may.
    #[error(
        "this process may have {limit} descriptors open (RLIMIT_NOFILE), too few for those that came with a message: raise the limit (ulimit -n, \
         LimitNOFILE=), or have fewer topics in a process"
    )]
    Descriptors {
        /// How many it may have.
        limit: u64,
    },
    /// A message is not one of ours.
    #[error("a message could not be read: {0}")]
    Garbage(String),
    /// The other side does not read.
    #[error("the other side did not take a message within {} s", SEND_TIMEOUT.as_secs())]
    Stuck,
    /// Descriptors cannot be sent: too many are on their way, to whomever.
    #[error(
        "descriptors of user {user} that were sent and not read are as many as the sender may have open ({limit}, RLIMIT_NOFILE), so that no more can be \
         sent: continue or end programs of that user that are stopped, or raise the limit (LimitNOFILE=, ulimit -Hn)"
    )]
    TooManyUnread {
        /// Whose.
        user: u32,
        /// How many there may be.
        limit: u64,
    },
    /// The other side has so much to read that no more fits.
    #[error("the other side does not read what it is sent: its socket is full (net.core.wmem_max bounds it)")]
    Full,
}

/// A message and what came beside it.
#[derive(Debug)]
pub struct Packet<M> {
    /// The message.
    pub message: M,
    /// The descriptors.
    pub descriptors: Vec<OwnedFd>,
    /// Whether there were more of them than this process could take (`Packet::complete`).
    pub is_short: bool,
}

impl<M> Packet<M> {
    /// An error if descriptors are missing, since this process may not have that many.
    pub fn complete(&self) -> Result<(), LocalError> {
        if self.is_short { Err(LocalError::Descriptors { limit: rgaps_os::descriptors::limit() }) } else { Ok(()) }
    }
}

/// Who is on the other side, as the kernel says.
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
    /// Whoever is at the other end must not keep this process waiting.
    is_of_client: bool,
    /// The other side was found to have ended it: nothing that is sent would be answered, though the kernel may take it (`end_sending`).
    is_over: AtomicBool,
}

impl Connection {
    /// Connects; `None` if nobody listens there.
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

    /// Sends a message and the descriptors beside it; waits for a peer that is slow, up to a time-out.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<(), LocalError> {
        self.transmit(message, descriptors, SendFlags::empty())
    }

    /// Sends without waiting, for one thread that serves many: `Full` if the peer does not read.
    pub fn send_now(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<(), LocalError> {
        self.transmit(message, descriptors, SendFlags::DONTWAIT)
    }

    fn transmit(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        wait: SendFlags,
    ) -> Result<(), LocalError> {
        if self.is_over.load(Ordering::Acquire) {
            return Err(LocalError::Closed);
        }
        let text = serde_json::to_vec(message).map_err(|error| LocalError::Garbage(error.to_string()))?;
        if text.len() > MESSAGE_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(LocalError::Oversized);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
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
                    let (user, limit) = (rustix::process::geteuid().as_raw(), rgaps_os::descriptors::limit());
                    return Err(LocalError::TooManyUnread { user, limit });
                }
                Err(error) => return Err(LocalError::Io(error.into())),
            }
        }
    }

    /// The next message if one comes within `timeout`.
    pub fn receive<M: DeserializeOwned>(&self, timeout: Duration) -> Result<Option<Packet<M>>, LocalError> {
        if !rgaps_os::poll::readable(&self.socket, timeout)? {
            return Ok(None);
        }
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut receive =
            || rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        // A peer that hung up before it had read all is told once; what it had sent before can still be read.
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
        let mut descriptors = Sent { descriptors: Vec::new(), is_of_client: self.is_of_client };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.descriptors.extend(rights);
            }
        }
        // The kernel drops what there is no room for here, and what this process may not have.
        let is_short = received.flags.contains(ReturnFlags::CTRUNC);
        if received.flags.contains(ReturnFlags::TRUNC) || is_short && descriptors.descriptors.len() >= DESCRIPTORS_MAX {
            return Err(LocalError::Oversized);
        }
        if received.bytes == 0 {
            self.is_over.store(true, Ordering::Release);
            return Err(LocalError::Closed);
        }
        let message =
            text::from_json(&bytes[..received.bytes]).map_err(|error| LocalError::Garbage(error.to_string()))?;
        Ok(Some(Packet { message, descriptors: descriptors.take(), is_short }))
    }

    /// Whether nobody has the other end any more: neither the process that made it nor one that was forked from it.
    pub fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let asked = poll(&mut polled, Some(&rgaps_os::poll::timespec(Duration::ZERO)));
        asked.is_err() || polled[0].revents().contains(PollFlags::HUP)
    }

    /// Whether the other side has read all that it was sent.
    pub fn is_all_read(&self) -> bool {
        rgaps_os::peer::unread_bytes(&self.socket).is_ok_and(|bytes| bytes == 0)
    }

    /// Who is on the other side.
    pub fn peer(&self) -> Result<PeerCredentials, LocalError> {
        let peer = rgaps_os::peer::credentials(&self.socket)?;
        Ok(PeerCredentials { pid: peer.pid.unwrap_or(0), uid: peer.uid, gid: peer.gid })
    }

    /// Ends the connection, and waits for nothing: descriptors that the other side has sent and nobody has read go with it.
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

/// Descriptors that came with a message, until somebody takes them.
struct Sent {
    descriptors: Vec<OwnedFd>,
    is_of_client: bool,
}

impl Sent {
    fn take(mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.is_of_client {
            rgaps_os::closing::elsewhere(std::mem::take(&mut self.descriptors));
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The manager's socket. Its file goes when the listener does.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of its file.
    file: Option<(u64, u64)>,
    admits_group: bool,
}

impl Listener {
    /// Listens on a path, at which there is a file from the moment on when it is listened to. The caller holds the directory's lock, so a
    /// file that is there is a dead manager's.
    pub fn bind(path: &Path) -> Result<Self, LocalError> {
        let failed = |source: Errno| LocalError::Socket { path: path.to_owned(), source: source.into() };
        let new = path.with_extension(NEW_SOCKET);
        let _ = std::fs::remove_file(&new);
        let socket = new_socket().map_err(failed)?;
        let address = SocketAddrUnix::new(&new).map_err(failed)?;
        rustix::net::bind(&socket, &address).map_err(failed)?;
        // This user's alone, whatever the umask is, until a group is let in.
        rustix::fs::chmod(&new, rustix::fs::Mode::from_raw_mode(0o600)).map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
        rustix::fs::rename(&new, path).map_err(failed)?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
        Ok(Self { socket, file: file_at(path), path: path.to_owned(), admits_group: false })
    }

    /// Whether its file is there still, by which clients find it.
    pub fn is_in_place(&self) -> bool {
        self.file.is_some() && file_at(&self.path) == self.file
    }

    /// Whether other users may connect. Which of them can is the kernel's decision, by the modes of socket and directory
    /// (`RuntimeDir::admit`): connecting needs the right to write to the socket.
    pub fn admit_group(&mut self, admits: bool) {
        self.admits_group = admits;
    }

    /// A client that waits to be accepted, if there is one. Others than this user and root are turned away, unless a group is admitted.
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
            tracing::warn!(pid = peer.pid, uid = peer.uid, "a process of another user was turned away");
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
        // Not another one's.
        if self.is_in_place() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// A socket on which neither connecting (to a full backlog) nor sending waits for ever.
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
    fn messages_and_descriptors_arrive_together() {
        let (one, two) = Connection::pair().unwrap();
        let memory = rgaps_os::memfd::create("test", 4096).unwrap();
        let request = Request { id: 7, body: Body::Topics { after: None } };
        one.send(&request, &[memory.as_fd(), memory.as_fd()]).unwrap();
        let packet: Packet<Request> = two.receive(LONG).unwrap().unwrap();
        assert_eq!(packet.message.id, 7);
        assert_eq!(packet.descriptors.len(), 2);
        assert_eq!(
            rgaps_os::memfd::identity(&packet.descriptors[1]).unwrap(),
            rgaps_os::memfd::identity(&memory).unwrap()
        );
        assert_eq!(two.peer().unwrap().pid, std::process::id());
    }

    #[test]
    fn garbage_oversize_and_silence_have_their_names() {
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
    fn what_was_sent_before_a_hang_up_is_read_though_the_peer_had_not_read_all() {
        let (one, two) = Connection::pair().unwrap();
        one.send(&1, &[]).unwrap();
        two.send(&"unread", &[]).unwrap();
        drop(one);
        assert_eq!(two.receive::<u32>(LONG).unwrap().unwrap().message, 1);
        assert!(matches!(two.receive::<u32>(LONG), Err(LocalError::Closed)));
    }

    #[test]
    fn a_listener_takes_over_a_dead_ones_file_and_removes_its_own() {
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
