//! The socket reader: the receiver's half that keeps the socket empty. The kernel copies payload directly into the ring; nothing is copied
//! in user space.
//!
//! ```text
//!  header (64 B, private copy) ──sum, decode, admit──▶ announced ──▶ header and payload into the ring ──sum──▶ published to the consumer
//! ```
//!
//! Trusts      nothing on the wire: it checks the header, and that the place is free, before it reads the payload. It disconnects a peer
//!             that writes without credit before anything is overwritten.
//! Waits       in read(2) with a short time-out; after each it checks the close flag and, within a record, the stall time-out.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::error::LinkError;
use crate::geometry::{FlowControl, Integrity, RingGeometry};
use crate::link::RingRecord;
use crate::memory::{RingMemory, RingMemoryError};
use crate::position::RingSpan;
use crate::record::{HEADER_BYTES, RecordHeader};
use crate::ring::{AdmitError, ReceiverRing};
use crate::tcp::integrity::{self, SUM_BYTES, Summer};
use crate::tcp::queue::Shared;
use crate::tcp::socket::{TcpOptions, broken, errno};

/// Most bytes of one read. A larger read opens the sender's window later, and the socket's buffers have left the cache by then: on loopback
/// `rgaps bench link` is a third slower with 1 MiB.
const READ_BYTES_MAX: u64 = 64 << 10;

/// The half of a receiver that reads the socket. Run it in its own thread: `socket_reader.run()`.
#[derive(Debug)]
pub struct SocketReader {
    stream: Arc<TcpStream>,
    memory: Arc<RingMemory>,
    ring: ReceiverRing,
    shared: Arc<Shared>,
    options: TcpOptions,
    gave_back: bool,
    /// None if records have no sums.
    summer: Option<Summer>,
}

impl SocketReader {
    pub(crate) fn new(
        stream: Arc<TcpStream>,
        memory: Arc<RingMemory>,
        geometry: RingGeometry,
        shared: Arc<Shared>,
        options: TcpOptions,
    ) -> Self {
        let summer = (geometry.integrity() == Integrity::Crc32c).then(Summer::new);
        Self { stream, memory, ring: ReceiverRing::new(geometry), shared, options, gave_back: true, summer }
    }

    /// Reads records until the link ends, and returns why; the consumer gets the same error after the last record. Then it shuts the
    /// connection down, so that the peer notices.
    pub fn run(mut self) -> LinkError {
        let error = loop {
            if let Err(error) = self.step() {
                break error;
            }
        };
        if let LinkError::Corrupt { .. } = error {
            self.shared.count_corrupt();
        }
        tracing::debug!(%error, records = self.ring.expected().0, "socket reader ended");
        self.shared.end(error.clone());
        // After an orderly end the consumer can still send credit for the records that it holds.
        let how = if error == (LinkError::Closed { by_peer: true }) { Shutdown::Read } else { Shutdown::Both };
        let _ = self.stream.shutdown(how);
        error
    }

    /// Reads one record and queues it.
    fn step(&mut self) -> Result<(), LinkError> {
        let mut reads = 0;
        let header = RecordHeader::decode(&self.read_header(&mut reads)?)?;
        if let Err(violation) = self.ring.consumed(self.shared.head()) {
            return Err(AdmitError::Production(violation).into());
        }
        let placement = self.ring.admit(&header)?;
        self.gave_back = false;
        let geometry = *self.ring.geometry();
        self.shared.announce(placement.end);
        let payload = placement.payload(&geometry, header.payload_bytes);
        let place = placement.header(&geometry);
        // Write the header too, so that the ring has the same content as with rdma.
        self.memory.mapping().copy_in(place.0, &header.encode()).map_err(|_| outside(&self.memory, payload))?;
        self.read_payload(payload, &mut reads)?;
        self.shared.publish(RingRecord { header, placement, payload }, reads);
        Ok(())
    }

    /// Reads the payload into the ring, and the sum after it. Sums each part just after reading, while it is in the cache.
    fn read_payload(&mut self, payload: RingSpan, reads: &mut u64) -> Result<(), LinkError> {
        let mapping = self.memory.mapping();
        let mut sent = [0; SUM_BYTES];
        let bytes = payload.bytes + self.summer.as_ref().map_or(0, |_| SUM_BYTES as u64);
        let mut filled = 0;
        let mut silent = SilentSince::default();
        while filled < bytes {
            let (missing, in_ring) = (bytes - filled, payload.bytes.saturating_sub(filled));
            let (place, at_once) = (payload.offset.forward(filled.min(payload.bytes)), in_ring.min(READ_BYTES_MAX));
            let sum = match &self.summer {
                Some(_) if in_ring <= READ_BYTES_MAX => &mut sent[filled.saturating_sub(payload.bytes) as usize..],
                _ => &mut [],
            };
            match mapping.read_from(&*self.stream, place.0, at_once, sum).map_err(|error| errno(&error)) {
                Ok(0) => return Err(self.ended(missing)),
                Ok(n) => {
                    if let Some(summer) = &mut self.summer {
                        let landed = mapping.shared(place.0, at_once.min(n as u64));
                        landed.map(|landed| summer.add(landed)).map_err(|_| outside(&self.memory, payload))?;
                    }
                    filled += n as u64;
                    *reads += 1;
                    silent = SilentSince::default();
                }
                Err(error) => self.retry(error, missing, &mut silent)?,
            }
        }
        self.summer.as_ref().map_or(Ok(()), |summer| integrity::check("a record", sent, summer.sum()))
    }

    fn read_header(&mut self, reads: &mut u64) -> Result<[u8; HEADER_BYTES], LinkError> {
        let mut bytes = [0; HEADER_BYTES + SUM_BYTES];
        let whole = HEADER_BYTES + self.ring.geometry().integrity().sum_bytes();
        let mut filled = 0;
        let mut silent = SilentSince::default();
        while filled < whole {
            let missing = if filled == 0 { 0 } else { (whole - filled) as u64 };
            match rustix::net::recv(&*self.stream, &mut bytes[filled..whole], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(self.ended(missing)),
                Ok((_, n)) => {
                    filled += n;
                    *reads += 1;
                }
                Err(error) => {
                    self.retry(error, missing, &mut silent)?;
                    if missing == 0 {
                        self.idle(&mut silent);
                    }
                }
            }
        }
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes[..HEADER_BYTES]);
        if let Some(summer) = &mut self.summer {
            let sent = std::array::from_fn(|i| bytes[HEADER_BYTES + i]);
            integrity::check("a record's header", sent, summer.begin(&header))?;
        }
        Ok(header)
    }

    /// Called while no record arrives. If that lasts and the consumer holds nothing, frees the ring's pages, once.
    fn idle(&mut self, silent: &mut SilentSince) {
        let Some(after) = self.options.give_back_after.filter(|_| !self.gave_back) else { return };
        let waited = silent.since.get_or_insert_with(Instant::now).elapsed();
        // Only this thread writes the ring, and with head and tail equal the consumer reads nothing.
        if waited >= after
            && self.ring.geometry().flow_control() == FlowControl::On
            && self.shared.head() == self.ring.tail()
        {
            self.gave_back = true;
            let done = self.memory.give_back_pages();
            tracing::debug!(done, ring_bytes = self.memory.bytes(), "idle ring gave its pages back");
        }
    }

    /// The error for a stream that ended `missing` bytes before the end of a record; 0 between records.
    fn ended(&self, missing: u64) -> LinkError {
        match (self.shared.is_closed(), missing) {
            (true, _) => LinkError::Closed { by_peer: false },
            (false, 0) => LinkError::Closed { by_peer: true },
            (false, missing) => LinkError::Cut { missing },
        }
    }

    /// Handles a failed read: continue, unless the link was closed, is broken, or a record has stalled.
    fn retry(&self, error: Errno, missing: u64, silent: &mut SilentSince) -> Result<(), LinkError> {
        if self.shared.is_closed() {
            return Err(LinkError::Closed { by_peer: false });
        }
        match error {
            Errno::INTR => Ok(()),
            Errno::AGAIN if missing == 0 => Ok(()),
            Errno::AGAIN => {
                let waited = silent.since.get_or_insert_with(Instant::now).elapsed();
                if waited < self.options.stall_timeout { Ok(()) } else { Err(LinkError::Stalled { missing, waited }) }
            }
            errno => Err(broken("reading records", errno)),
        }
    }
}

fn outside(memory: &RingMemory, span: RingSpan) -> LinkError {
    RingMemoryError::Span { span, ring_bytes: memory.bytes() }.into()
}

/// Since when no bytes have arrived. The clock is read only after an empty read.
#[derive(Debug, Default)]
struct SilentSince {
    since: Option<Instant>,
}

impl Drop for SocketReader {
    fn drop(&mut self) {
        // Also if its thread panics or it never ran, so that the consumer does not wait for ever. An earlier reason stays.
        self.shared.end(LinkError::Closed { by_peer: false });
    }
}
