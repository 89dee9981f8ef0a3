//! The listener: accepts connections for rings, and admits only peers with the right token and shape.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::geometry::{RingGeometry, RingOptions};
use crate::memory::{RingMemory, RingMemoryError};
use crate::tcp::hello::{HELLO_BYTES, Hello, HelloError, LinkToken, Verdict};
use crate::tcp::receiver::TcpReceiver;
use crate::tcp::socket::{self, TcpOptions, errno};

/// How long to wait before accepting again when this process or host has no file descriptors or memory left.
const SHORT_OF_RESOURCES: Duration = Duration::from_millis(50);

/// Why no connection was admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// The listener failed.
    #[error(
        "listener on {address} failed while {during}: {errno}; check that the address belongs to this host and is free"
    )]
    Listener {
        /// Its address.
        address: SocketAddr,
        /// What it was doing.
        during: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// No peer connected in time.
    #[error("no peer connected within {waited:?}; it died or cannot reach this host")]
    TimedOut {
        /// How long the listener waited.
        waited: Duration,
    },
    /// A peer connected and sent no complete hello. The listener stays usable.
    #[error("{peer} connected but sent no complete hello: {errno}")]
    Silent {
        /// The peer.
        peer: SocketAddr,
        /// The kernel's error.
        errno: Errno,
    },
    /// A peer sent an invalid hello. The listener stays usable.
    #[error("{peer} is refused: {source}")]
    Hello {
        /// The peer.
        peer: SocketAddr,
        /// What is wrong.
        source: HelloError,
    },
    /// A peer sent a token for which no ring waits. The listener stays usable.
    #[error("{peer} is refused: no ring waits for its token; it is of an earlier run, or no RGAPS host")]
    UnknownToken {
        /// The peer.
        peer: SocketAddr,
    },
    /// A peer expects a ring of another shape. The listener stays usable.
    #[error(
        "{peer} is refused: it expects a ring of the shape {theirs:?}, but ours is {ours:?}; repeat the hand-shake"
    )]
    OtherGeometry {
        /// The peer.
        peer: SocketAddr,
        /// The peer's shape.
        theirs: RingOptions,
        /// Our shape.
        ours: RingOptions,
    },
    /// The memory and the ring differ in size.
    #[error(transparent)]
    Memory(#[from] RingMemoryError),
}

impl AcceptError {
    /// Whether the error concerns only this connection, so that the caller can continue to accept.
    pub fn is_strangers(&self) -> bool {
        !matches!(self, Self::Listener { .. } | Self::TimedOut { .. } | Self::Memory(_))
    }
}

/// The ring that a connection is for.
#[derive(Clone, Debug)]
pub struct RingSetup {
    /// Its shape.
    pub geometry: RingGeometry,
    /// Its memory, exactly of the ring's size.
    pub memory: Arc<RingMemory>,
    /// Time-outs and buffers.
    pub options: TcpOptions,
}

/// Listens for the data connections of one ring or of many.
#[derive(Debug)]
pub struct TcpRingListener {
    listener: TcpListener,
    address: SocketAddr,
    hello_timeout: Duration,
}

impl TcpRingListener {
    /// Listens on an address; port 0 picks a free one. A peer that connects must send its hello within `hello_timeout`.
    pub fn bind(address: SocketAddr, hello_timeout: Duration) -> Result<Self, AcceptError> {
        let failed = |error: std::io::Error| AcceptError::Listener { address, during: "binding", errno: errno(&error) };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, hello_timeout })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection that has sent its hello. A foreign peer is an error (`is_strangers`), after which the caller may accept again. One
    /// peer can delay the others by `hello_timeout`; to serve many, use `accept_pending` and read their hellos in parallel.
    pub fn accept(&self, timeout: Duration) -> Result<Incoming, AcceptError> {
        self.accept_pending(timeout)?.read_hello()
    }

    /// The next connection, before its hello.
    pub fn accept_pending(&self, timeout: Duration) -> Result<PendingConnection, AcceptError> {
        let start = Instant::now();
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => return Ok(PendingConnection { stream, peer, timeout: self.hello_timeout }),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => match errno(&error) {
                    // Errors of this connection, which ended before it was accepted (accept(2)).
                    Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::NETDOWN | Errno::NOPROTOOPT => continue,
                    Errno::HOSTDOWN | Errno::NONET | Errno::HOSTUNREACH | Errno::OPNOTSUPP | Errno::NETUNREACH => {
                        continue;
                    }
                    // No file descriptor or memory for it now: it stays in the backlog.
                    Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => {
                        std::thread::sleep(SHORT_OF_RESOURCES.min(timeout.saturating_sub(start.elapsed())));
                    }
                    errno => return Err(self.failed("accepting", errno)),
                },
            }
            let waited = start.elapsed();
            let Some(rest) = timeout.checked_sub(waited).filter(|rest| !rest.is_zero()) else {
                return Err(AcceptError::TimedOut { waited });
            };
            let rest = Timespec::try_from(rest).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&rest)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("waiting", errno)),
            }
        }
    }

    /// Waits for the peer with the token. It refuses and logs other peers, and continues to wait.
    pub fn accept_ring(
        &self,
        token: LinkToken,
        setup: &RingSetup,
        timeout: Duration,
    ) -> Result<TcpReceiver, AcceptError> {
        let start = Instant::now();
        loop {
            let result = self.accept(timeout.saturating_sub(start.elapsed())).and_then(|incoming| {
                if incoming.token() == token { incoming.admit(setup) } else { Err(incoming.refuse()) }
            });
            match result {
                // A wrong shape with the right token is an error of our own peer, so end the wait.
                Err(error) if error.is_strangers() && !matches!(error, AcceptError::OtherGeometry { .. }) => {
                    tracing::warn!(%error, address = %self.address, "connection refused");
                }
                result => return result,
            }
        }
    }

    fn failed(&self, during: &'static str, errno: Errno) -> AcceptError {
        AcceptError::Listener { address: self.address, during, errno }
    }
}

/// A connection that has not sent its hello.
#[derive(Debug)]
pub struct PendingConnection {
    stream: TcpStream,
    peer: SocketAddr,
    timeout: Duration,
}

impl PendingConnection {
    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// A handle by which another thread can end the wait for its hello.
    pub fn hang_up(&self) -> std::io::Result<HangUp> {
        Ok(HangUp(self.stream.try_clone()?))
    }

    /// Reads its hello, within the listener's `hello_timeout`.
    pub fn read_hello(self) -> Result<Incoming, AcceptError> {
        Incoming::read_hello(self.stream, self.peer, self.timeout)
    }
}

/// Ends a connection that another thread owns.
#[derive(Debug)]
pub struct HangUp(TcpStream);

impl HangUp {
    /// Shuts the connection down, so that a thread reading it sees its end.
    pub fn hang_up(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A connection that has sent its hello and waits for the verdict.
#[derive(Debug)]
pub struct Incoming {
    stream: TcpStream,
    peer: SocketAddr,
    hello: Hello,
}

impl Incoming {
    fn read_hello(mut stream: TcpStream, peer: SocketAddr, timeout: Duration) -> Result<Self, AcceptError> {
        let silent = |error: &std::io::Error| AcceptError::Silent { peer, errno: errno(error) };
        let timeout = timeout.max(Duration::from_millis(1));
        stream.set_nonblocking(false).map_err(|error| silent(&error))?;
        stream.set_write_timeout(Some(timeout)).map_err(|error| silent(&error))?;
        let mut bytes = [0; HELLO_BYTES];
        let deadline = Instant::now() + timeout;
        let mut filled = 0;
        while filled < HELLO_BYTES {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(AcceptError::Silent { peer, errno: Errno::TIMEDOUT });
            }
            stream.set_read_timeout(Some(rest)).map_err(|error| silent(&error))?;
            match stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(AcceptError::Silent { peer, errno: Errno::CONNRESET }),
                Ok(n) => filled += n,
                Err(error) if matches!(errno(&error), Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(silent(&error)),
            }
        }
        match Hello::decode(&bytes) {
            Ok(hello) if hello.verdict.is_none() => Ok(Self { stream, peer, hello }),
            Ok(_) => Err(AcceptError::Hello { peer, source: HelloError::Verdict { found: 1 } }),
            Err(source) => {
                if let HelloError::Version { .. } = source {
                    answer_other_version(&mut stream);
                }
                Err(AcceptError::Hello { peer, source })
            }
        }
    }

    /// The token in its hello.
    pub fn token(&self) -> LinkToken {
        self.hello.token
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Refuses the connection because no ring waits for its token, and returns that as an error.
    pub fn refuse(mut self) -> AcceptError {
        let _ = self.answer(Verdict::UnknownToken, self.hello.geometry);
        AcceptError::UnknownToken { peer: self.peer }
    }

    /// Admits the connection if it expects this ring, and returns the receiving end.
    pub fn admit(self, setup: &RingSetup) -> Result<TcpReceiver, AcceptError> {
        setup.memory.check(&setup.geometry)?;
        let peer = self.peer;
        tracing::debug!(%peer, ring_bytes = setup.geometry.ring_bytes(), "tcp link accepted");
        let stream = self.agree(&setup.geometry, &setup.options)?;
        TcpReceiver::new(stream, setup.memory.clone(), setup.geometry, setup.options)
            .map_err(|error| AcceptError::Silent { peer, errno: errno(&error) })
    }

    /// Admits the connection if it expects a ring of that shape. The transport decides what to send over it.
    pub fn agree(mut self, geometry: &RingGeometry, options: &TcpOptions) -> Result<TcpStream, AcceptError> {
        if self.hello.geometry != *geometry {
            let _ = self.answer(Verdict::OtherGeometry, *geometry);
            let (theirs, ours) = (*self.hello.geometry.options(), *geometry.options());
            return Err(AcceptError::OtherGeometry { peer: self.peer, theirs, ours });
        }
        let peer = self.peer;
        let silent = |errno| AcceptError::Silent { peer, errno };
        socket::configure(&self.stream, options).map_err(silent)?;
        self.answer(Verdict::Accepted, *geometry).map_err(|error| silent(errno(&error)))?;
        Ok(self.stream)
    }

    fn answer(&mut self, verdict: Verdict, geometry: RingGeometry) -> std::io::Result<()> {
        let answer = Hello { token: self.hello.token, geometry, verdict: Some(verdict) };
        self.stream.write_all(&answer.encode())
    }
}

/// The answer contains the default shape, since a peer of another version cannot use the ring's.
fn answer_other_version(stream: &mut TcpStream) {
    if let Ok(geometry) = RingGeometry::new(RingOptions::default()) {
        let answer = Hello { token: LinkToken([0; 16]), geometry, verdict: Some(Verdict::OtherVersion) };
        let _ = stream.write_all(&answer.encode());
    }
}
