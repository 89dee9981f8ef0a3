//! The listener: takes connections for rings and lets in only who knows the token and the shape.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::geometry::{RingGeometry, RingOptions};
use crate::memory::{RingMemory, RingMemoryError};
use crate::tcp::arrivals::Arrivals;
use crate::tcp::hello::{HELLO_BYTES, Hello, HelloError, LinkToken, Verdict};
use crate::tcp::queue::Shared;
use crate::tcp::socket::{self, TcpOptions, errno};
use crate::tcp::socket_reader::SocketReader;

/// Between two attempts to take a connection while descriptors or memory are used up.
const SHORT_OF_RESOURCES: Duration = Duration::from_millis(50);

/// Nobody was let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// This host: the listener itself.
    #[error(
        "listener on {address} failed while {during}: {errno}; check that the address belongs to this host and is free"
    )]
    Listener {
        /// Where.
        address: SocketAddr,
        /// What was being done.
        during: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// Nobody came in time.
    #[error("nobody connected within {waited:?}; the peer died or cannot reach this host")]
    TimedOut {
        /// How long.
        waited: Duration,
    },
    /// Somebody connected and said nothing, or hung up. The listener goes on.
    #[error("{peer} connected and did not say hello: {errno}")]
    Silent {
        /// Who.
        peer: SocketAddr,
        /// The kernel's answer.
        errno: Errno,
    },
    /// Somebody connected who does not speak our language. The listener goes on.
    #[error("{peer} is refused: {source}")]
    Hello {
        /// Who.
        peer: SocketAddr,
        /// What is wrong.
        source: HelloError,
    },
    /// Somebody connected with a token that nobody waits for. The listener goes on.
    #[error("{peer} is refused: no ring waits for its token; it belongs to another run or is a stranger")]
    UnknownToken {
        /// Who.
        peer: SocketAddr,
    },
    /// Somebody connected for a ring of another shape. The listener goes on.
    #[error("{peer} is refused: it expects a ring of the shape {theirs:?}, ours is {ours:?}; shake hands anew")]
    OtherGeometry {
        /// Who.
        peer: SocketAddr,
        /// Theirs.
        theirs: RingOptions,
        /// Ours.
        ours: RingOptions,
    },
    /// This process: the memory does not fit the ring.
    #[error(transparent)]
    Memory(#[from] RingMemoryError),
}

impl AcceptError {
    /// Whether only this one connection is concerned, so that accepting can go on.
    pub fn is_strangers(&self) -> bool {
        !matches!(self, Self::Listener { .. } | Self::TimedOut { .. } | Self::Memory(_))
    }
}

/// The ring that a connection is for.
#[derive(Clone, Debug)]
pub struct RingSetup {
    /// Its shape.
    pub geometry: RingGeometry,
    /// Its memory, exactly as large.
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
    /// Listens on an address; port 0 picks a free one. A caller that connects has `hello_timeout` to say who it is.
    pub fn bind(address: SocketAddr, hello_timeout: Duration) -> Result<Self, AcceptError> {
        let failed = |error: std::io::Error| AcceptError::Listener { address, during: "binding", errno: errno(&error) };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, hello_timeout })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection that says hello. A stranger is an error of its own (`is_strangers`), after which to call again. While one
    /// caller is heard, for at most `hello_timeout`, others wait; who serves many takes `caller` and hears them side by side.
    pub fn accept(&self, timeout: Duration) -> Result<Incoming, AcceptError> {
        self.caller(timeout)?.hear()
    }

    /// The next connection, before it has said anything.
    pub fn caller(&self, timeout: Duration) -> Result<Caller, AcceptError> {
        let start = Instant::now();
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => return Ok(Caller { stream, peer, timeout: self.hello_timeout }),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => match errno(&error) {
                    // What is wrong with this one connection, which was gone before it was taken (accept(2)).
                    Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::NETDOWN | Errno::NOPROTOOPT => continue,
                    Errno::HOSTDOWN | Errno::NONET | Errno::HOSTUNREACH | Errno::OPNOTSUPP | Errno::NETUNREACH => {
                        continue;
                    }
                    // Nothing to hold it with at the moment: it waits in the backlog.
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

    /// Waits for the one peer that knows the token; strangers are refused, logged, and do not end the wait.
    pub fn accept_ring(
        &self,
        token: LinkToken,
        setup: &RingSetup,
        timeout: Duration,
    ) -> Result<(SocketReader, Arrivals), AcceptError> {
        let start = Instant::now();
        loop {
            let result = self.accept(timeout.saturating_sub(start.elapsed())).and_then(|incoming| {
                if incoming.token() == token { incoming.admit(setup) } else { Err(incoming.refuse()) }
            });
            match result {
                // A wrong shape beside the right token is our peer's mistake and worth an end.
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

/// A connection that has said nothing yet.
#[derive(Debug)]
pub struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    timeout: Duration,
}

impl Caller {
    /// Where it comes from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What ends the wait for its hello, from another thread.
    pub fn hang_up(&self) -> std::io::Result<HangUp> {
        Ok(HangUp(self.stream.try_clone()?))
    }

    /// Waits for its hello, for at most the listener's `hello_timeout`.
    pub fn hear(self) -> Result<Incoming, AcceptError> {
        Incoming::hear(self.stream, self.peer, self.timeout)
    }
}

/// Ends a connection that somebody else has.
#[derive(Debug)]
pub struct HangUp(TcpStream);

impl HangUp {
    /// Whoever reads from it finds its end.
    pub fn hang_up(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A connection that has said hello and waits for the verdict.
#[derive(Debug)]
pub struct Incoming {
    stream: TcpStream,
    peer: SocketAddr,
    hello: Hello,
}

impl Incoming {
    fn hear(mut stream: TcpStream, peer: SocketAddr, timeout: Duration) -> Result<Self, AcceptError> {
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

    /// The token that it showed.
    pub fn token(&self) -> LinkToken {
        self.hello.token
    }

    /// Where it comes from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Refuses the connection because nobody waits for its token. The error says so.
    pub fn refuse(mut self) -> AcceptError {
        let _ = self.answer(Verdict::UnknownToken, self.hello.geometry);
        AcceptError::UnknownToken { peer: self.peer }
    }

    /// Lets the connection in, if it expects the ring that it gets: the two halves of the receiver.
    pub fn admit(self, setup: &RingSetup) -> Result<(SocketReader, Arrivals), AcceptError> {
        setup.memory.check(&setup.geometry)?;
        tracing::debug!(peer = %self.peer, ring_bytes = setup.geometry.ring_bytes(), "tcp link accepted");
        let stream = Arc::new(self.agree(&setup.geometry, &setup.options)?);
        let shared = Arc::new(Shared::new(setup.geometry));
        let socket_reader =
            SocketReader::new(stream.clone(), setup.memory.clone(), setup.geometry, shared.clone(), setup.options);
        Ok((socket_reader, Arrivals::new(stream, setup.memory.clone(), setup.geometry, shared)))
    }

    /// Lets the connection in, if it expects a ring of that shape; what goes over it is the transport's.
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

/// The default shape stands in for the ring, which is none of an other version's business.
fn answer_other_version(stream: &mut TcpStream) {
    if let Ok(geometry) = RingGeometry::new(RingOptions::default()) {
        let answer = Hello { token: LinkToken([0; 16]), geometry, verdict: Some(Verdict::OtherVersion) };
        let _ = stream.write_all(&answer.encode());
    }
}
