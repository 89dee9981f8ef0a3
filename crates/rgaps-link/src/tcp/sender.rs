//! The tcp sender: gathers headers and the caller's bytes into one write, and reads credit from the same socket.
//!
//! One gathered write sends ready records that have room, up to PIECE_BYTES together, so that many small records cost one system call. With sums a
//! larger record is also written in such pieces: each is still in the cache when the kernel copies it, and on the wire while the next one is
//! summed. `post` returns when the kernel has copied the batch, or the first records of it if the peer takes them slowly; until then it also reads
//! credit. If the peer does not take a record within `send_timeout`, the link ends. After a fatal error every call returns that error again.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rgaps_os::SharedBytes;
use rustix::io::Errno;

use crate::counters::SenderCounters;
use crate::credit::{CREDIT_BYTES, CreditPair};
use crate::error::LinkError;
use crate::geometry::{Integrity, RingGeometry, RingOptions};
use crate::link::{LinkSender, Progress, Wake, post_in_groups};
use crate::record::{HEADER_BYTES, MessageId, Record, RecordError};
use crate::ring::SenderRing;
use crate::tcp::hello::{HELLO_BYTES, Hello, HelloError, LinkToken, Verdict};
use crate::tcp::integrity::{CREDIT_FRAME_BYTES, SUM_BYTES, Summer, open_credit};
use crate::tcp::socket::{self, TcpOptions, broken, errno};

/// Records in one gathered write, four slices each; the kernel accepts 1024 slices (IOV_MAX).
const BATCH_MAX: usize = 128;
/// Payload bytes that are summed, then sent, at a time.
const PIECE_BYTES: usize = 256 << 10;
/// A socket that was full for this long is slow.
const SLOW: Duration = Duration::from_millis(100);
/// Reads of credit in one call.
const CREDIT_READS_MAX: usize = 256;

/// Why a connection to a ring failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The host or the network failed.
    #[error(
        "ring at {address} could not be reached while {during}: {errno}; check the address, the firewall and whether rgapsd runs"
    )]
    Unreachable {
        /// The ring's address.
        address: SocketAddr,
        /// What this side was doing.
        during: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// The listener did not answer in time.
    #[error("ring at {address} did not answer within {waited:?}; the host is overloaded or stopped")]
    TimedOut {
        /// The ring's address.
        address: SocketAddr,
        /// How long this side waited.
        waited: Duration,
    },
    /// The listener closed the connection.
    #[error("ring at {address} hung up during the hand-shake; its host may have dropped it, request a new ring")]
    HungUp {
        /// The ring's address.
        address: SocketAddr,
    },
    /// The listener's answer is invalid.
    #[error("{address} is no ring of RGAPS: {source}")]
    Hello {
        /// The address.
        address: SocketAddr,
        /// What is wrong.
        source: HelloError,
    },
    /// No ring waits for that token.
    #[error("ring at {address} does not know our token; its host dropped it or was restarted, request a new ring")]
    UnknownToken {
        /// The listener's address.
        address: SocketAddr,
    },
    /// The ring has another shape.
    #[error("ring at {address} has the shape {theirs:?}, but {ours:?} was agreed; request a new ring")]
    OtherGeometry {
        /// The ring's address.
        address: SocketAddr,
        /// The listener's shape.
        theirs: RingOptions,
        /// Our shape.
        ours: RingOptions,
    },
    /// The listener has another protocol version.
    #[error("ring at {address} has another protocol version; run the same release of RGAPS on both hosts")]
    OtherVersion {
        /// The listener's address.
        address: SocketAddr,
    },
}

/// The sending end of a tcp link.
#[derive(Debug)]
pub struct TcpSender {
    stream: TcpStream,
    ring: SenderRing,
    options: TcpOptions,
    counters: SenderCounters,
    frames: Box<[Frame; BATCH_MAX]>,
    /// None if records have no sums.
    summer: Option<Summer>,
    credit: CreditFrames,
    broken: Option<LinkError>,
    closed: bool,
}

/// The parts of a record around the payload: header with its sum, and the record's sum.
#[derive(Clone, Copy, Debug)]
struct Frame {
    head: [u8; HEADER_BYTES + SUM_BYTES],
    sum: [u8; SUM_BYTES],
}

impl Frame {
    const EMPTY: Self = Self { head: [0; HEADER_BYTES + SUM_BYTES], sum: [0; SUM_BYTES] };

    /// Starts the record's sum, and stores the header's.
    fn begin(&mut self, summer: &mut Summer) {
        let sum = summer.begin(&self.head[..HEADER_BYTES]);
        self.head[HEADER_BYTES..].copy_from_slice(&sum.to_le_bytes());
    }

    fn end(&mut self, summer: &Summer) {
        self.sum = summer.sum().to_le_bytes();
    }
}

/// Splits the bytes of the socket into credits; the last may be incomplete.
#[derive(Debug)]
struct CreditFrames {
    integrity: Integrity,
    frame_bytes: usize,
    partial: [u8; CREDIT_FRAME_BYTES],
    filled: usize,
}

impl CreditFrames {
    fn new(integrity: Integrity) -> Self {
        let frame_bytes = CREDIT_BYTES + integrity.sum_bytes();
        Self { integrity, frame_bytes, partial: [0; CREDIT_FRAME_BYTES], filled: 0 }
    }

    /// Passes every complete credit to `take`.
    fn push(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(CreditPair) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        for byte in bytes {
            self.partial[self.filled] = *byte;
            self.filled += 1;
            if self.filled == self.frame_bytes {
                self.filled = 0;
                take(open_credit(&self.partial, self.integrity)?)?;
            }
        }
        Ok(())
    }
}

impl TcpSender {
    /// Connects to a ring's listener and shakes hands.
    pub fn connect(
        address: SocketAddr,
        token: LinkToken,
        geometry: RingGeometry,
        options: TcpOptions,
    ) -> Result<Self, ConnectError> {
        let stream = connect(address, token, geometry, &options)?;
        tracing::debug!(%address, ring_bytes = geometry.ring_bytes(), "tcp link connected");
        Ok(Self {
            stream,
            ring: SenderRing::new(geometry),
            options,
            counters: SenderCounters::default(),
            frames: Box::new([Frame::EMPTY; BATCH_MAX]),
            summer: (geometry.integrity() == Integrity::Crc32c).then(Summer::new),
            credit: CreditFrames::new(geometry.integrity()),
            broken: None,
            closed: false,
        })
    }

    /// Readable when the link has something for `progress`, for the caller's event loop.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn check_alive(&self) -> Result<(), LinkError> {
        match &self.broken {
            Some(error) => Err(error.clone()),
            None if self.closed => Err(LinkError::Closed { by_peer: false }),
            None => Ok(()),
        }
    }

    /// Stores a fatal error and shuts the connection down, so that the peer notices.
    fn remember<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        if let Err(error) = &result
            && error.is_fatal()
            && self.broken.is_none()
        {
            self.counters.corrupt += u64::from(matches!(error, LinkError::Corrupt { .. }));
            tracing::debug!(%error, "tcp link broke");
            self.broken = Some(error.clone());
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        result
    }

    /// Sends as many records as there is room for, group by group; returns how many. It ends early if the peer takes them slowly, so that the caller can
    /// look at other things between records.
    fn post_batch(&mut self, records: &[Record<'_>]) -> Result<usize, LinkError> {
        let mut posted = 0;
        while posted < records.len() {
            let (count, has_room) = self.place_group(&records[posted..])?;
            if count == 0 {
                break;
            }
            let mut writer = Writer {
                stream: &self.stream,
                ring: &mut self.ring,
                credit: &mut self.credit,
                counters: &mut self.counters,
                timeout: self.options.send_timeout,
                blocked_since: None,
            };
            let (group, frames) = (&records[posted..posted + count], &mut self.frames[..count]);
            match &mut self.summer {
                Some(summer) => writer.send_with_sums(group, frames, summer)?,
                None => writer.send_whole(group, frames, 0)?,
            }
            let is_slow = writer.blocked_since.is_some_and(|since| since.elapsed() >= SLOW);
            posted += count;
            if is_slow || !has_room {
                break;
            }
        }
        self.counters.batches += u64::from(posted > 0);
        Ok(posted)
    }

    /// Places records of one piece, at most a chunk together, or a larger one, as far as there is room. Returns how many, and whether there was room.
    fn place_group(&mut self, records: &[Record<'_>]) -> Result<(usize, bool), LinkError> {
        let most = PIECE_BYTES.min(self.ring.geometry().chunk_bytes() as usize);
        let mut bytes = 0;
        let mut count = 0;
        for (record, frame) in records.iter().zip(self.frames.iter_mut()) {
            let header = record.header(self.ring.next_record(), self.ring.geometry()).map_err(LinkError::Unsendable)?;
            bytes += header.payload_bytes as usize;
            if count > 0 && bytes > most {
                break;
            }
            let completes = record.is_last().then(|| record.message());
            if self.ring.place(header.payload_bytes, completes).is_err() {
                self.counters.out_of_room += 1;
                return Ok((count, false));
            }
            frame.head[..HEADER_BYTES].copy_from_slice(&header.encode());
            count += 1;
            self.counters.records += 1;
            self.counters.bytes += u64::from(header.payload_bytes);
            self.counters.messages += u64::from(completes.is_some());
        }
        Ok((count, true))
    }
}

/// Envelope and data of a record that `post` has let pass.
fn in_host_memory<'a>(record: &Record<'a>) -> (&'a [u8], SharedBytes<'a>) {
    let (envelope, data) = record.payload();
    (envelope, data.in_host_memory().unwrap_or(SharedBytes::empty()))
}

/// The fields of a sender that a write needs while its slices borrow the frames.
struct Writer<'a> {
    stream: &'a TcpStream,
    ring: &'a mut SenderRing,
    credit: &'a mut CreditFrames,
    counters: &'a mut SenderCounters,
    timeout: Duration,
    /// Since when the socket has been full, at times, for this group.
    blocked_since: Option<Instant>,
}

impl Writer<'_> {
    /// Sends records with complete frames in one gathered write, with `sum_bytes` of each sum.
    fn send_whole(&mut self, records: &[Record<'_>], frames: &[Frame], sum_bytes: usize) -> Result<(), LinkError> {
        let mut slices = [SharedBytes::empty(); 4 * BATCH_MAX];
        let mut used = 0;
        for (record, frame) in records.iter().zip(frames) {
            let (envelope, data) = in_host_memory(record);
            let (head, sum) = (&frame.head[..HEADER_BYTES + sum_bytes], &frame.sum[..sum_bytes]);
            for part in [head.into(), envelope.into(), data, sum.into()] {
                if !SharedBytes::is_empty(&part) {
                    slices[used] = part;
                    used += 1;
                }
            }
        }
        self.write(&mut slices[..used])
    }

    /// Sums a group of records, and sends it; a record that is larger than a piece goes piece by piece.
    fn send_with_sums(
        &mut self,
        records: &[Record<'_>],
        frames: &mut [Frame],
        summer: &mut Summer,
    ) -> Result<(), LinkError> {
        if let ([record], [frame]) = (records, &mut *frames)
            && in_host_memory(record).1.len() > PIECE_BYTES
        {
            return self.send_in_pieces(record, frame, summer);
        }
        for (record, frame) in records.iter().zip(frames.iter_mut()) {
            let (envelope, data) = in_host_memory(record);
            frame.begin(summer);
            summer.add(envelope.into());
            summer.add(data);
            frame.end(summer);
        }
        self.send_whole(records, frames, SUM_BYTES)
    }

    fn send_in_pieces(&mut self, record: &Record<'_>, frame: &mut Frame, summer: &mut Summer) -> Result<(), LinkError> {
        let (envelope, data) = in_host_memory(record);
        frame.begin(summer);
        summer.add(envelope.into());
        for at in (0..data.len()).step_by(PIECE_BYTES) {
            // In bounds: at most the rest of the data.
            let piece = data.part(at, PIECE_BYTES.min(data.len() - at)).unwrap_or(SharedBytes::empty());
            summer.add(piece);
            frame.end(summer);
            let (is_first, is_last) = (at == 0, at + piece.len() == data.len());
            let (head, envelope) = if is_first { (&frame.head[..], envelope) } else { (&[][..], &[][..]) };
            let sum = if is_last { &frame.sum[..] } else { &[] };
            self.write(&mut [head.into(), envelope.into(), piece, sum.into()])?;
        }
        Ok(())
    }

    fn write(&mut self, mut slices: &mut [SharedBytes<'_>]) -> Result<(), LinkError> {
        while !slices.is_empty() {
            match socket::send(self.stream, slices) {
                Ok(Some(n)) => {
                    SharedBytes::advance(&mut slices, n);
                    self.counters.writes += 1;
                }
                Ok(None) => {
                    let waited = self.blocked_since.get_or_insert_with(Instant::now).elapsed();
                    let Some(rest) = self.timeout.checked_sub(waited).filter(|rest| !rest.is_zero()) else {
                        let unsent = slices.iter().map(|slice| slice.len() as u64).sum();
                        return Err(LinkError::SendTimedOut { unsent, waited });
                    };
                    let (_, readable) =
                        socket::wait_writable(self.stream, rest).map_err(|errno| broken("waiting to send", errno))?;
                    if readable {
                        self.read_credit()?;
                    }
                }
                Err(errno) => return Err(self.explain(errno)),
            }
        }
        Ok(())
    }

    /// Explains a failed write: the peer may have hung up after a false credit or an orderly close, which is the better error.
    fn explain(&mut self, errno: Errno) -> LinkError {
        match self.read_credit() {
            Err(error @ (LinkError::Credit(_) | LinkError::Closed { .. })) => error,
            _ => broken("sending records", errno),
        }
    }

    /// Processes the credits that have arrived: not all of a peer that sends them without end, so that its link can be stopped.
    fn read_credit(&mut self) -> Result<(), LinkError> {
        let mut bytes = [0; 32 * CREDIT_BYTES];
        for _ in 0..CREDIT_READS_MAX {
            match socket::receive(self.stream, &mut bytes) {
                Ok(None) => return Ok(()),
                Ok(Some(0)) => return Err(LinkError::Closed { by_peer: true }),
                Ok(Some(n)) => {
                    let (ring, counters) = (&mut *self.ring, &mut *self.counters);
                    self.credit.push(&bytes[..n], |pair| {
                        ring.credit(pair)?;
                        counters.credits_received += 1;
                        Ok(())
                    })?;
                    if n < bytes.len() {
                        return Ok(());
                    }
                }
                Err(errno) => return Err(broken("reading credit", errno)),
            }
        }
        Ok(())
    }
}

impl LinkSender for TcpSender {
    fn geometry(&self) -> &RingGeometry {
        self.ring.geometry()
    }

    fn room_for(&self, payload_bytes: u32) -> bool {
        self.ring.check(payload_bytes).is_ok()
    }

    fn post(&mut self, records: &[Record<'_>]) -> Result<usize, LinkError> {
        self.check_alive()?;
        if records.iter().any(|record| record.payload().1.in_host_memory().is_none()) {
            return Err(LinkError::Unsendable(RecordError::DeviceMemory));
        }
        let geometry = *self.ring.geometry();
        post_in_groups(records, &geometry, BATCH_MAX, |group| {
            let posted = self.post_batch(group);
            self.remember(posted)
        })
    }

    fn progress(&mut self) -> Result<Progress, LinkError> {
        self.check_alive()?;
        let mut writer = Writer {
            stream: &self.stream,
            ring: &mut self.ring,
            credit: &mut self.credit,
            counters: &mut self.counters,
            timeout: self.options.send_timeout,
            blocked_since: None,
        };
        let read = writer.read_credit();
        self.remember(read)?;
        let (tail, delayed_head) = (self.ring.tail(), self.ring.delayed_head());
        Ok(Progress { tail, delayed_head, reusable: self.ring.next_record() })
    }

    fn next_acknowledged(&mut self) -> Option<MessageId> {
        self.ring.next_acknowledged()
    }

    fn unacknowledged(&self) -> usize {
        self.ring.unacknowledged()
    }

    fn wait(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) -> Result<Wake, LinkError> {
        self.check_alive()?;
        socket::wait_readable(&[self.stream.as_fd()], timeout, others)
    }

    fn counters(&self) -> SenderCounters {
        self.counters
    }

    fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connects to a ring's listener and agrees on token and shape. Afterwards tcp sends records over the connection; rdma uses it only as
/// liveness socket.
pub fn connect(
    address: SocketAddr,
    token: LinkToken,
    geometry: RingGeometry,
    options: &TcpOptions,
) -> Result<TcpStream, ConnectError> {
    let start = Instant::now();
    let unreachable = |during, error: &std::io::Error| match error.kind() {
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => {
            ConnectError::TimedOut { address, waited: start.elapsed() }
        }
        std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe => {
            ConnectError::HungUp { address }
        }
        _ => ConnectError::Unreachable { address, during, errno: errno(error) },
    };
    let mut stream = TcpStream::connect_timeout(&address, options.connect_timeout.max(Duration::from_millis(1)))
        .map_err(|error| unreachable("connecting", &error))?;
    let by = Instant::now() + options.hello_timeout;
    let rest = options.hello_timeout.max(Duration::from_millis(1));
    stream.set_write_timeout(Some(rest)).map_err(|error| unreachable("preparing", &error))?;
    let hello = Hello { token, geometry, verdict: None };
    stream.write_all(&hello.encode()).map_err(|error| unreachable("saying hello", &error))?;
    let mut answer = [0; HELLO_BYTES];
    read_by(&mut stream, &mut answer, by).map_err(|error| unreachable("waiting for the answer", &error))?;
    let answer = Hello::decode(&answer).map_err(|source| ConnectError::Hello { address, source })?;
    check_answer(address, &hello, &answer)?;
    socket::configure(&stream, options).map_err(|errno| ConnectError::Unreachable {
        address,
        during: "preparing",
        errno,
    })?;
    Ok(stream)
}

/// Fills `to` until the deadline. A time-out for each read(2) would not do: a peer that sends byte by byte would restart it every time.
fn read_by(stream: &mut TcpStream, mut to: &mut [u8], deadline: Instant) -> std::io::Result<()> {
    while !to.is_empty() {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(rest))?;
        match stream.read(to) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => to = &mut to[n..],
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn check_answer(address: SocketAddr, hello: &Hello, answer: &Hello) -> Result<(), ConnectError> {
    match answer.verdict {
        Some(Verdict::Accepted) if answer.geometry == hello.geometry => Ok(()),
        Some(Verdict::Accepted | Verdict::OtherGeometry) => Err(ConnectError::OtherGeometry {
            address,
            theirs: *answer.geometry.options(),
            ours: *hello.geometry.options(),
        }),
        Some(Verdict::UnknownToken) => Err(ConnectError::UnknownToken { address }),
        Some(Verdict::OtherVersion) => Err(ConnectError::OtherVersion { address }),
        None => Err(ConnectError::Hello { address, source: HelloError::Verdict { found: 0 } }),
    }
}
