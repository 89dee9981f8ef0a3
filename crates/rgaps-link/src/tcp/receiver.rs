//! The tcp receiver: the kernel copies payload from the socket directly to where it stays, a place that the consumer names, or the ring.
//!
//! ```text
//!  header ──sum, decode, admit──▶ envelope ──`Landing::place`──▶ data into the consumer's memory, or envelope and data into the ring ──sum──▶ `next`
//! ```
//!
//! The consumer's thread reads the socket, in `next`, `next_into` and `read_ahead`. So a message wakes one thread, and its data are touched once.
//!
//! Invariants  Records are released in the order of `next`; the head is the end of the last released one. No byte of the ring after the head is
//!             overwritten (flow control on).
//! Trusts      nothing on the wire: it checks the header, and that its place in the ring is free, before it reads the payload. It disconnects a
//!             peer that writes without credit before anything is overwritten.
//! Waits       in poll(2), until the deadline of `next`. A record that stalls in its middle ends the link.
//! Without flow control there is no credit. A record in the ring is checked twice: `next` skips those that are already torn, `release` reports
//! whether the record was torn while the caller used it.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_os::EventFd;
use rustix::io::Errno;

use crate::counters::ReceiverCounters;
use crate::credit::{CreditBatch, CreditPair};
use crate::error::LinkError;
use crate::geometry::{FlowControl, Integrity, RingGeometry};
use crate::link::{Landing, LandingPlace, LinkReceiver, Release, RingRecord};
use crate::memory::{RingMemory, RingMemoryError};
use crate::position::{Position, RingSpan};
use crate::record::{Flags, HEADER_BYTES, RecordHeader};
use crate::ring::{self, AdmitError, GrantError, Placement, ReceiverRing};
use crate::tcp::integrity::{self, CREDIT_FRAME_BYTES, SUM_BYTES, Summer, credit_frame};
use crate::tcp::read_buffer::{ReadBuffer, Stopped};
use crate::tcp::socket::{self, TcpOptions, broken, errno};

/// Most records that are read ahead of the consumer: those of a ring of 64 MiB with the smallest chunks.
const READ_AHEAD_MAX: usize = 16 << 10;
/// Most bytes of one read. A larger read opens the sender's window later, and the socket's buffers have left the cache by then: on loopback
/// `rgaps bench link` is a third slower with 1 MiB.
const READ_BYTES_MAX: u64 = 64 << 10;

/// The receiving end of a tcp link.
#[derive(Debug)]
pub struct TcpReceiver {
    stream: TcpStream,
    memory: Arc<RingMemory>,
    options: TcpOptions,
    ring: ReceiverRing,
    buffer: ReadBuffer,
    /// The record whose header has been read.
    under_way: Option<UnderWay>,
    /// None if records have no sums.
    summer: Option<Summer>,
    /// Records that were read ahead.
    ready: VecDeque<RingRecord>,
    /// Starts of the held records, oldest first.
    held: VecDeque<Position>,
    credit: CreditBatch,
    unsent: UnsentCredit,
    /// Since when the socket has been empty. The clock is read only after an empty read.
    silent_since: Option<Instant>,
    wake: Option<Arc<EventFd>>,
    gave_back: bool,
    ended: Option<LinkError>,
    counters: ReceiverCounters,
}

/// A record of which a part has arrived.
#[derive(Debug)]
struct UnderWay {
    header: RecordHeader,
    placement: Placement,
    payload: RingSpan,
    /// Where its data go, if not into the ring.
    place: Option<LandingPlace>,
    /// Bytes of its payload that have arrived; 0 until its envelope is complete and its place is known.
    filled: u64,
    has_place: bool,
}

/// A credit that the socket did not accept whole. A newer credit replaces it, unless a part of it is already sent.
#[derive(Debug)]
struct UnsentCredit {
    integrity: Integrity,
    frame: [u8; CREDIT_FRAME_BYTES],
    /// The unsent part of the frame.
    rest: Range<usize>,
    next: Option<CreditPair>,
    broken: bool,
}

impl UnsentCredit {
    fn new(integrity: Integrity) -> Self {
        Self { integrity, frame: [0; CREDIT_FRAME_BYTES], rest: 0..0, next: None, broken: false }
    }

    fn is_pending(&self) -> bool {
        !self.broken && (!self.rest.is_empty() || self.next.is_some())
    }

    /// Sends as much as the socket accepts. The next read reports a broken connection.
    fn send(&mut self, stream: &TcpStream) {
        while self.is_pending() {
            if self.rest.is_empty() {
                let Some(pair) = self.next.take() else { return };
                let (frame, bytes) = credit_frame(pair, self.integrity);
                (self.frame, self.rest) = (frame, 0..bytes);
            }
            match socket::send(stream, &[self.frame[self.rest.clone()].into()]) {
                Ok(Some(n)) => self.rest.start += n.min(self.rest.len()),
                Ok(None) => return,
                Err(errno) => {
                    tracing::debug!(%errno, "credit could not be sent");
                    self.broken = true;
                }
            }
        }
    }
}

/// Why a record is not complete.
enum Incomplete {
    /// More bytes have to arrive.
    Blocked,
    /// The peer has ended the stream.
    End,
    Error(LinkError),
}

impl<E: Into<LinkError>> From<E> for Incomplete {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl From<Stopped> for Incomplete {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Blocked | Stopped::Broken(Errno::AGAIN | Errno::INTR) => Self::Blocked,
            Stopped::End => Self::End,
            Stopped::Broken(errno) => Self::Error(broken("reading records", errno)),
        }
    }
}

impl TcpReceiver {
    /// `stream`: a connection that both sides have agreed on.
    pub(crate) fn new(
        stream: TcpStream,
        memory: Arc<RingMemory>,
        geometry: RingGeometry,
        options: TcpOptions,
    ) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            memory,
            options,
            ring: ReceiverRing::new(geometry),
            buffer: ReadBuffer::new(),
            under_way: None,
            summer: (geometry.integrity() == Integrity::Crc32c).then(Summer::new),
            ready: VecDeque::new(),
            held: VecDeque::new(),
            credit: CreditBatch::new(geometry.watermark_bytes()),
            unsent: UnsentCredit::new(geometry.integrity()),
            silent_since: None,
            wake: None,
            gave_back: true,
            ended: None,
            counters: ReceiverCounters::default(),
        })
    }

    /// Reads the next record as far as it has arrived.
    fn read(&mut self, landing: Option<&mut dyn Landing>) -> Result<RingRecord, Incomplete> {
        let sum_bytes = self.ring.geometry().integrity().sum_bytes();
        if self.under_way.is_none() {
            self.buffer.fill(&self.stream, HEADER_BYTES + sum_bytes, &mut self.counters.reads)?;
            self.begin()?;
        }
        let Some(record) = &mut self.under_way else { return Err(Incomplete::Blocked) };
        if !record.has_place {
            let envelope_bytes = record.header.envelope_bytes as usize;
            self.buffer.fill(&self.stream, envelope_bytes, &mut self.counters.reads)?;
            let envelope = &self.buffer.bytes()[..envelope_bytes];
            record.place(landing, envelope, &self.memory)?;
            self.summer.iter_mut().for_each(|summer| summer.add(envelope.into()));
            self.buffer.consume(envelope_bytes);
        }
        while record.filled < record.payload.bytes {
            let (mapping, offset, rest) = record.rest(&self.memory);
            let buffered = self.buffer.bytes();
            if buffered.is_empty() {
                let at_once = rest.min(READ_BYTES_MAX);
                let then = if at_once == rest { self.buffer.free() } else { &mut [] };
                let n = mapping.read_from(&self.stream, offset, at_once, then).map_err(|error| errno(&error));
                let n = match n {
                    Ok(0) => return Err(Incomplete::End),
                    Ok(n) => n as u64,
                    Err(errno) => return Err(Stopped::Broken(errno).into()),
                };
                let landed = n.min(at_once);
                self.counters.reads += 1;
                if let Some(summer) = &mut self.summer {
                    summer.add(mapping.shared(offset, landed).map_err(|_| outside(&self.memory, record.payload))?);
                }
                record.filled += landed;
                self.buffer.read((n - landed) as usize);
            } else {
                let part = &buffered[..rest.min(buffered.len() as u64) as usize];
                mapping.copy_in(offset, part).map_err(|_| outside(&self.memory, record.payload))?;
                self.summer.iter_mut().for_each(|summer| summer.add(part.into()));
                record.filled += part.len() as u64;
                self.buffer.consume(part.len());
            }
        }
        if let Some(summer) = &self.summer {
            self.buffer.fill(&self.stream, SUM_BYTES, &mut self.counters.reads)?;
            integrity::check("a record", std::array::from_fn(|i| self.buffer.bytes()[i]), summer.sum())?;
            self.buffer.consume(SUM_BYTES);
        }
        self.counters.records += 1;
        self.counters.bytes += record.payload.bytes;
        let (header, placement, payload) = (record.header, record.placement, record.payload);
        let has_landed = self.under_way.take().is_some_and(|record| record.place.is_some());
        Ok(RingRecord { header, placement, payload, has_landed, grant: None })
    }

    /// Checks the header at the start of the buffer.
    fn begin(&mut self) -> Result<(), LinkError> {
        let bytes: [u8; HEADER_BYTES] = std::array::from_fn(|i| self.buffer.bytes()[i]);
        self.buffer.consume(HEADER_BYTES);
        if let Some(summer) = &mut self.summer {
            let sent = std::array::from_fn(|i| self.buffer.bytes()[i]);
            integrity::check("a record's header", sent, summer.begin(&bytes))?;
            self.buffer.consume(SUM_BYTES);
        }
        let header = RecordHeader::decode(&bytes)?;
        if header.flags.contains(Flags::LANDED) {
            return Err(AdmitError::from(GrantError::NoGrants { message: header.message }).into());
        }
        self.ring.consumed(self.credit.head()).map_err(AdmitError::Production)?;
        let placement = self.ring.admit(&header)?;
        self.gave_back = false;
        let payload = placement.payload(self.ring.geometry(), header.payload_bytes);
        self.under_way = Some(UnderWay { header, placement, payload, place: None, filled: 0, has_place: false });
        Ok(())
    }

    /// The next record as far as it has arrived, or `None`. Stores why the link ends.
    fn poll(&mut self, landing: Option<&mut dyn Landing>) -> Result<Option<RingRecord>, LinkError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let reads = self.counters.reads;
        let read = self.read(landing);
        if self.counters.reads > reads {
            self.silent_since = None;
        }
        let error = match read {
            Ok(record) => return Ok(Some(record)),
            Err(Incomplete::Blocked) => return Ok(None),
            Err(Incomplete::End) => match self.missing() {
                0 => LinkError::Closed { by_peer: true },
                missing => LinkError::Cut { missing },
            },
            Err(Incomplete::Error(error)) => error,
        };
        self.counters.corrupt += u64::from(matches!(error, LinkError::Corrupt { .. }));
        // After an orderly end the consumer can still send credit for the records that it holds.
        let is_orderly = error == LinkError::Closed { by_peer: true };
        self.end(error.clone(), if is_orderly { Shutdown::Read } else { Shutdown::Both });
        Err(error)
    }

    /// Bytes of the record under way that have not arrived; 0 between records.
    fn missing(&self) -> u64 {
        let (buffered, sum_bytes) =
            (self.buffer.bytes().len() as u64, self.ring.geometry().integrity().sum_bytes() as u64);
        match &self.under_way {
            Some(record) => (record.payload.bytes - record.filled + sum_bytes).saturating_sub(buffered),
            None if buffered == 0 => 0,
            None => (HEADER_BYTES as u64 + sum_bytes).saturating_sub(buffered),
        }
    }

    /// Waits for bytes after an empty read, until the deadline at most. `false` at the deadline, and when the consumer is to be woken.
    fn wait(&mut self, deadline: Instant) -> Result<bool, LinkError> {
        let now = Instant::now();
        let missing = self.missing();
        let silent = now.saturating_duration_since(*self.silent_since.get_or_insert(now));
        if missing > 0 && silent >= self.options.stall_timeout {
            let error = LinkError::Stalled { missing, waited: silent };
            self.end(error.clone(), Shutdown::Both);
            return Err(error);
        }
        let give_back_in = self.give_back_pages(silent);
        let mut rest = deadline.saturating_duration_since(now);
        if rest.is_zero() {
            return Ok(false);
        }
        if missing > 0 {
            rest = rest.min(self.options.stall_timeout - silent);
        } else if let Some(give_back_in) = give_back_in {
            rest = rest.min(give_back_in);
        }
        let wake = self.wake.as_ref().map(|event| event.as_fd());
        let (is_readable, is_woken) = socket::wait_to_receive(&self.stream, rest, self.unsent.is_pending(), wake)
            .map_err(|errno| broken("waiting for records", errno))?;
        if is_readable {
            self.silent_since = None;
            self.counters.wakes += 1;
        }
        Ok(is_readable || !is_woken)
    }

    /// Frees the ring's pages, once, if no record has arrived for long and the consumer holds nothing. Returns in how long that is to be done.
    fn give_back_pages(&mut self, silent: Duration) -> Option<Duration> {
        let after = self.options.give_back_after?;
        let is_empty = self.under_way.is_none() && self.ready.is_empty() && self.held.is_empty();
        if self.gave_back || !is_empty || self.ring.geometry().flow_control() == FlowControl::Off {
            return None;
        }
        if silent < after {
            return Some(after - silent);
        }
        self.gave_back = true;
        let done = self.memory.give_back_pages();
        tracing::debug!(done, ring_bytes = self.memory.bytes(), "idle ring gave its pages back");
        None
    }

    fn end(&mut self, error: LinkError, how: Shutdown) {
        if self.ended.is_none() {
            tracing::debug!(%error, records = self.ring.expected().0, "tcp link ended");
            self.ended = Some(error);
            let _ = self.stream.shutdown(how);
        }
    }

    /// Whether the sender has not overwritten a record that starts at `start`.
    fn is_intact(&self, start: Position, has_landed: bool) -> bool {
        let is_lossy = self.ring.geometry().flow_control() == FlowControl::Off;
        has_landed || !is_lossy || ring::is_intact(self.ring.geometry(), start, self.ring.tail())
    }

    fn next_until(
        &mut self,
        timeout: Duration,
        mut landing: Option<&mut dyn Landing>,
    ) -> Result<Option<RingRecord>, LinkError> {
        let mut deadline = None;
        loop {
            self.unsent.send(&self.stream);
            let record = match self.ready.pop_front() {
                Some(record) => Some(record),
                // A nested borrow, since the loop needs it again.
                None => self.poll(landing.as_mut().map(|landing| &mut **landing as &mut dyn Landing))?,
            };
            if let Some(record) = record {
                if self.is_intact(record.placement.start, record.has_landed) {
                    self.held.push_back(record.placement.start);
                    return Ok(Some(record));
                }
                self.counters.torn += 1;
                continue;
            }
            if timeout.is_zero() {
                return Ok(None);
            }
            let far = || Instant::now() + Duration::from_secs(3600);
            let deadline = *deadline.get_or_insert_with(|| Instant::now().checked_add(timeout).unwrap_or_else(far));
            if !self.wait(deadline)? {
                return Ok(None);
            }
        }
    }
}

impl UnderWay {
    /// Gives the record a place: the consumer's, or the ring, which gets the envelope, too.
    fn place(
        &mut self,
        landing: Option<&mut dyn Landing>,
        envelope: &[u8],
        memory: &RingMemory,
    ) -> Result<(), LinkError> {
        let bytes = u64::from(self.header.data_bytes());
        let place = landing.and_then(|landing| landing.place(&self.header, self.payload, envelope));
        self.place = place.filter(|place| place.has_room(bytes) && place.memory.mapping().is_some());
        if self.place.is_none() {
            memory.mapping().copy_in(self.payload.offset.0, envelope).map_err(|_| outside(memory, self.payload))?;
        }
        self.filled = envelope.len() as u64;
        self.has_place = true;
        Ok(())
    }

    /// Where the next byte of its data goes, and how many are missing.
    fn rest<'a>(&'a self, memory: &'a RingMemory) -> (&'a rgaps_os::Mapping, u64, u64) {
        let rest = self.payload.bytes - self.filled;
        match self.place.as_ref().and_then(|place| Some((place.memory.mapping()?, place.offset))) {
            Some((mapping, offset)) => {
                let data = self.filled - u64::from(self.header.envelope_bytes);
                (mapping, offset + data, rest)
            }
            None => (memory.mapping(), self.payload.offset.forward(self.filled).0, rest),
        }
    }
}

fn outside(memory: &RingMemory, span: RingSpan) -> LinkError {
    RingMemoryError::Span { span, ring_bytes: memory.bytes() }.into()
}

impl LinkReceiver for TcpReceiver {
    fn geometry(&self) -> &RingGeometry {
        self.ring.geometry()
    }

    fn memory(&self) -> &Arc<RingMemory> {
        &self.memory
    }

    fn next(&mut self, timeout: Duration) -> Result<Option<RingRecord>, LinkError> {
        self.next_until(timeout, None)
    }

    fn wake_by(&mut self, event: Arc<EventFd>) {
        self.wake = Some(event);
    }

    fn next_into(&mut self, timeout: Duration, landing: &mut dyn Landing) -> Result<Option<RingRecord>, LinkError> {
        // Without flow control a record that has a place could be torn before it is returned, and a device may have copies of a torn message still to
        // make when the memory is used again.
        let is_lossless = self.ring.geometry().flow_control() == FlowControl::On;
        self.next_until(timeout, is_lossless.then_some(landing))
    }

    fn read_ahead(&mut self) {
        let is_lossy = self.ring.geometry().flow_control() == FlowControl::Off;
        self.unsent.send(&self.stream);
        // At most one lap: without flow control the peer may send for ever.
        let lap = self.ring.tail().forward(self.ring.geometry().ring_bytes());
        while (is_lossy || self.ready.len() < READ_AHEAD_MAX) && self.ring.tail() <= lap {
            // The next call of `next` returns an error.
            let Ok(Some(record)) = self.poll(None) else { return };
            if self.ready.len() == READ_AHEAD_MAX {
                self.ready.pop_front();
                self.counters.torn += 1;
            }
            self.ready.push_back(record);
        }
    }

    fn release(&mut self, record: RingRecord) -> Result<Release, LinkError> {
        let (start, end) = (record.placement.start, record.placement.end);
        match self.held.front() {
            Some(expected) if *expected == start => {}
            expected => {
                let expected = expected.copied().unwrap_or(self.credit.head());
                return Err(LinkError::ReleaseOrder { expected, found: start });
            }
        }
        self.held.pop_front();
        if self.ring.geometry().flow_control() == FlowControl::Off {
            if self.is_intact(start, record.has_landed) {
                return Ok(Release::Intact);
            }
            self.counters.torn += 1;
            return Ok(Release::Torn);
        }
        // Bytes that wait in the buffer are as good as a record in the ring: they will bring the next credit.
        let is_idle = self.buffer.bytes().is_empty();
        let tail = if is_idle { self.ring.tail() } else { self.ring.tail().forward(1) };
        if let Some(pair) = self.credit.consume(end, record.header.ends_message(), tail) {
            self.unsent.next = Some(pair);
            self.unsent.send(&self.stream);
        }
        Ok(Release::Intact)
    }

    fn flush_credit(&mut self) {
        if let Some(pair) = self.credit.flush() {
            self.unsent.next = Some(pair);
            self.unsent.send(&self.stream);
        }
    }

    fn counters(&self) -> ReceiverCounters {
        ReceiverCounters { credits_sent: self.credit.sent(), ..self.counters }
    }

    fn close(&mut self) {
        self.end(LinkError::Closed { by_peer: false }, Shutdown::Both);
    }
}

impl Drop for TcpReceiver {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
