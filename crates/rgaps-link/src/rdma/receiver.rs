//! The rdma receiver: gets a receive completion with an immediate for each record, and writes credit into the sender's words.
//!
//! Invariants  Receives are reposted before the credit for the records that consumed them. Records are released in the order of
//!             `next`. `queue` is the first field, so the queue pair is destroyed before the ring that the NIC writes.
//! Trusts      nothing that the peer writes: the immediate must be the expected one, the header must decode, match the length of the
//!             completion, and be where the ring has room. The peer can overwrite the ring at any time, so it is only read by copies.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_os::SharedBytes;
use rustix::io::Errno;

use crate::counters::ReceiverCounters;
use crate::credit::{CREDIT_BYTES, CreditBatch, CreditPair};
use crate::error::LinkError;
use crate::geometry::{FlowControl, RingGeometry};
use crate::link::{LinkReceiver, Release, RingRecord};
use crate::memory::RingMemory;
use crate::position::{Position, RingSpan};
use crate::rdma::completion::{CompletionQueue, POLL_MAX, TransferError};
use crate::rdma::domain::{Domain, Region, RemoteAccess, VerbsError};
use crate::rdma::liveness_socket::{LivenessSocket, Said};
use crate::rdma::port::Candidate;
use crate::rdma::queue_pair::{Address, Capacity, QueuePair, RECEIVE_ID, Write};
use crate::rdma::sender::known_part;
use crate::rdma::{RECEIVES_MAX, REQUESTS_MAX, RdmaOptions, RemoteMemory};
use crate::record::{HEADER_BYTES, RecordError, RecordHeader};
use crate::ring::{AdmitError, ReceiverRing, place};
use crate::tcp::socket;

/// Most credits posted and not completed.
const CREDITS_MAX: u64 = 256;
/// One credit in so many is signaled.
const CREDITS_A_SIGNAL: u64 = 16;

/// A receiver's queue pair with its ring. The offer of a ring contains its address.
#[derive(Debug)]
pub struct ReceiverEnd {
    queue: QueuePair,
    completions: Arc<CompletionQueue>,
    region: Arc<Region>,
    memory: Arc<RingMemory>,
    geometry: RingGeometry,
    candidate: Candidate,
    peer: Address,
    credit: RemoteMemory,
    options: RdmaOptions,
}

impl ReceiverEnd {
    /// Creates the queue pair, registers the ring, and posts the receives. `peer`: the end of the sender that requested the ring, and its credit words.
    pub fn new(
        domain: &Arc<Domain>,
        candidate: &Candidate,
        memory: &Arc<RingMemory>,
        geometry: RingGeometry,
        peer: (&Address, RemoteMemory),
        options: RdmaOptions,
    ) -> Result<Self, VerbsError> {
        let refused = |call| domain.context().failed(call, Errno::INVAL);
        if geometry.records_max() > RECEIVES_MAX {
            return Err(refused("posting a receive for each record of a ring with such a small alignment"));
        }
        if geometry.flow_control() == FlowControl::Off || memory.check(&geometry).is_err() {
            return Err(refused("offering a ring without flow control, or of another size than its memory"));
        }
        let (address, credit) = peer;
        if credit.bytes != CREDIT_BYTES as u64 || credit.address.checked_add(credit.bytes).is_none() {
            return Err(refused("using credit words of another size"));
        }
        let receives = geometry.records_max() as u32 + REQUESTS_MAX;
        let sends = CREDITS_MAX as u32;
        let completions = Arc::new(CompletionQueue::new(domain.context(), sends + receives)?);
        let capacity = Capacity { sends, receives, inline_bytes: CREDIT_BYTES as u32 };
        let queue = QueuePair::new(domain, &completions, candidate, capacity)?;
        if queue.inline_bytes() < CREDIT_BYTES as u32 {
            return Err(refused("sending credit inline"));
        }
        let region = domain.register(memory.shared_mapping(), RemoteAccess::Write)?;
        queue.receive(receives)?;
        let (memory, candidate) = (memory.clone(), candidate.clone());
        Ok(Self { queue, completions, region, memory, geometry, candidate, peer: *address, credit, options })
    }

    /// Its address, for the peer.
    pub fn address(&self) -> Address {
        self.queue.address(&self.candidate)
    }

    /// The ring's memory, for the sender.
    pub fn ring(&self) -> RemoteMemory {
        let mapping = self.region.mapping();
        RemoteMemory { address: mapping.address(), key: self.region.remote_key(), bytes: mapping.bytes() }
    }

    /// The ring's shape.
    pub fn geometry(&self) -> &RingGeometry {
        &self.geometry
    }

    /// Connects to the sender. Call it before the sender begins to send. It may take a second: the kernel looks for the owner of the sender's GID.
    pub fn connect(&self) -> Result<(), VerbsError> {
        self.queue.connect(&self.candidate, &self.peer, self.options.dead_peer_timeout)
    }

    /// Starts the link. Call it when this end is connected, and both have agreed on token and shape.
    pub fn start(self, liveness: TcpStream) -> RdmaReceiver {
        let Self { queue, completions, region, memory, geometry, credit, options, .. } = self;
        RdmaReceiver {
            queue,
            completions,
            _region: region,
            memory,
            ring: ReceiverRing::new(geometry),
            batch: CreditBatch::new(geometry.watermark_bytes()),
            told: Position::START,
            peer: credit,
            posted: 0,
            completed: 0,
            unsent: None,
            wanted: false,
            arrivals: VecDeque::with_capacity(geometry.records_max() as usize),
            held: VecDeque::with_capacity(geometry.records_max() as usize),
            to_repost: 0,
            requests_to_repost: 0,
            liveness: LivenessSocket::new(liveness),
            ended: None,
            options,
            counters: ReceiverCounters::default(),
        }
    }
}

/// The receiving end of an rdma link.
#[derive(Debug)]
pub struct RdmaReceiver {
    queue: QueuePair,
    completions: Arc<CompletionQueue>,
    _region: Arc<Region>,
    memory: Arc<RingMemory>,
    ring: ReceiverRing,
    batch: CreditBatch,
    /// The head in the last credit.
    told: Position,
    peer: RemoteMemory,
    /// Credits posted, and those known to be completed.
    posted: u64,
    completed: u64,
    unsent: Option<CreditPair>,
    /// The sender has requested to be woken by the next credit.
    wanted: bool,
    /// Received records that the consumer has not taken.
    arrivals: VecDeque<RingRecord>,
    /// Starts of the records that the consumer holds, oldest first.
    held: VecDeque<Position>,
    to_repost: u32,
    /// Receives that credit requests used.
    requests_to_repost: u32,
    liveness: LivenessSocket,
    ended: Option<LinkError>,
    options: RdmaOptions,
    counters: ReceiverCounters,
}

impl RdmaReceiver {
    /// Processes all completions, then sends credit once, for the latest head. It reposts receives after the last completion, so a peer that never
    /// stops requesting credit ends its own requests, not this loop.
    fn reap(&mut self) -> Result<(), LinkError> {
        loop {
            let mut landed = [(0, 0); POLL_MAX];
            let (mut count, mut failed): (usize, Option<TransferError>) = (0, None);
            let completed = &mut self.completed;
            let polled = self.completions.poll(|completion| match completion {
                Ok(done) if done.id == RECEIVE_ID => {
                    landed[count] = (done.bytes, done.immediate);
                    count += 1;
                }
                Ok(done) => *completed = done.id,
                Err((_, error)) => failed = failed.or(Some(error)),
            })?;
            for (bytes, immediate) in &landed[..count] {
                self.land(*bytes, *immediate)?;
            }
            if let Some(error) = failed {
                return Err(LinkError::Transfer(error));
            }
            if polled < POLL_MAX {
                self.queue.receive(std::mem::take(&mut self.requests_to_repost))?;
                return self.flush();
            }
        }
    }

    /// Processes a record, or a credit request, which has no bytes.
    fn land(&mut self, bytes: u32, immediate: u32) -> Result<(), LinkError> {
        if bytes == 0 {
            self.note_request(immediate);
            return Ok(());
        }
        self.ring.check_immediate(immediate)?;
        let length = |said| LinkError::Record(RecordError::Length { said, landed: bytes });
        let payload_bytes = bytes.checked_sub(HEADER_BYTES as u32).ok_or_else(|| length(HEADER_BYTES as u32))?;
        self.ring.consumed(self.batch.head()).map_err(AdmitError::Production)?;
        let geometry = *self.ring.geometry();
        let offset = place(&geometry, self.ring.tail(), payload_bytes).header(&geometry);
        let mut header = [0; HEADER_BYTES];
        self.memory.copy_out(RingSpan { offset, bytes: HEADER_BYTES as u64 }, 0, &mut header)?;
        let header = RecordHeader::decode(&header)?;
        if header.payload_bytes != payload_bytes {
            return Err(length(header.payload_bytes.saturating_add(HEADER_BYTES as u32)));
        }
        let placement = self.ring.admit(&header)?;
        self.counters.records += 1;
        self.counters.bytes += u64::from(payload_bytes);
        let payload = placement.payload(&geometry, payload_bytes);
        self.arrivals.push_back(RingRecord { header, placement, payload, has_landed: false });
        Ok(())
    }

    /// Notes a credit request of a sender whose delayed head is `known`. The next credit answers it.
    fn note_request(&mut self, known: u32) {
        self.requests_to_repost += 1;
        self.wanted = true;
        if known_part(self.ring.geometry(), self.told) != known {
            self.unsent = Some(CreditPair::new(self.told));
        }
    }

    /// Sends a credit for the head, if there is one.
    fn send_credit(&mut self, due: Option<CreditPair>) {
        let Some(pair) = due.filter(|_| self.ended.is_none()) else { return };
        self.told = self.batch.head();
        self.unsent = Some(pair);
        if let Err(error) = self.flush() {
            // The next call of `next` returns it; the records stay released.
            self.end(error);
        }
    }

    /// Writes the unsent credit, if the queue pair has room.
    fn flush(&mut self) -> Result<(), LinkError> {
        if self.unsent.is_none() || self.posted - self.completed >= CREDITS_MAX {
            return Ok(());
        }
        let Some(pair) = self.unsent.take() else { return Ok(()) };
        self.queue.receive(std::mem::take(&mut self.to_repost))?;
        let bytes = pair.encode();
        self.posted += 1;
        let write = Write {
            id: self.posted,
            remote: self.peer.address,
            remote_key: self.peer.key,
            parts: [((&bytes).into(), 0), (SharedBytes::empty(), 0)],
            immediate: self.wanted.then_some(0),
            signaled: self.posted.is_multiple_of(CREDITS_A_SIGNAL),
            solicited: self.wanted,
            inline: true,
        };
        self.queue.write(&[write])?;
        self.wanted = false;
        Ok(())
    }

    /// The next received record, without waiting. Records received before an error are returned before the error.
    fn arrived(&mut self) -> Result<Option<RingRecord>, LinkError> {
        if self.arrivals.is_empty() {
            if let Some(error) = &self.ended {
                return Err(error.clone());
            }
            if let Err(error) = self.reap() {
                let error = self.end(error);
                if self.arrivals.is_empty() {
                    return Err(error);
                }
            }
        }
        let record = self.arrivals.pop_front();
        self.held.extend(record.as_ref().map(|record| record.placement.start));
        Ok(record)
    }

    /// Checks whether the peer has ended. Call it when all records that completed before `said` was read are processed.
    fn check_end(&mut self, said: Said) -> Result<(), LinkError> {
        match said {
            Said::Nothing => Ok(()),
            Said::End(records) if records > self.ring.expected().0 => Ok(()),
            Said::End(_) => Err(LinkError::Closed { by_peer: true }),
            Said::Gone => Err(LinkError::Broken { during: "receiving: the peer is gone", errno: Errno::CONNRESET }),
        }
    }

    fn next_until(&mut self, deadline: Instant) -> Result<Option<RingRecord>, LinkError> {
        loop {
            let start = Instant::now();
            loop {
                if let Some(record) = self.arrived()? {
                    return Ok(Some(record));
                }
                if start.elapsed() >= self.options.spin {
                    break;
                }
                std::hint::spin_loop();
            }
            self.completions.arm(false)?;
            // A peer that has ended by now has completed all its records.
            let said = self.liveness.look()?;
            if let Some(record) = self.arrived()? {
                return Ok(Some(record));
            }
            self.check_end(said)?;
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            // After an announced end the liveness socket stays readable, so wait only for completions.
            let own = [self.completions.fd(), self.liveness.fd()];
            let awaited = if said == Said::Nothing { &own[..] } else { &own[..1] };
            socket::wait_readable(awaited, rest, &[])?;
            self.completions.drain_events()?;
            self.counters.wakes += 1;
        }
    }

    /// Sends a false credit, for tests.
    #[cfg(test)]
    pub(crate) fn lie(&mut self, pair: CreditPair) -> Result<(), LinkError> {
        (self.unsent, self.wanted) = (Some(pair), true);
        self.flush()
    }

    /// Stores why the link has ended.
    fn end(&mut self, error: LinkError) -> LinkError {
        if self.ended.is_none() {
            tracing::debug!(%error, records = self.ring.expected().0, "rdma link ended");
            self.ended = Some(error.clone());
            self.queue.fail();
            self.liveness.hang_up();
        }
        error
    }
}

impl LinkReceiver for RdmaReceiver {
    fn geometry(&self) -> &RingGeometry {
        self.ring.geometry()
    }

    fn memory(&self) -> &Arc<RingMemory> {
        &self.memory
    }

    fn next(&mut self, timeout: Duration) -> Result<Option<RingRecord>, LinkError> {
        let start = Instant::now();
        let deadline = start.checked_add(timeout).unwrap_or(start + Duration::from_secs(3600));
        self.next_until(deadline).map_err(|error| self.end(error))
    }

    fn release(&mut self, record: RingRecord) -> Result<Release, LinkError> {
        let (start, end) = (record.placement.start, record.placement.end);
        match self.held.front() {
            Some(expected) if *expected == start => {}
            expected => {
                let expected = expected.copied().unwrap_or(self.batch.head());
                return Err(LinkError::ReleaseOrder { expected, found: start });
            }
        }
        self.held.pop_front();
        self.to_repost += 1;
        let due = self.batch.consume(end, record.header.ends_message(), self.ring.tail());
        self.send_credit(due);
        Ok(Release::Intact)
    }

    fn flush_credit(&mut self) {
        let due = self.batch.flush();
        self.send_credit(due);
    }

    fn counters(&self) -> ReceiverCounters {
        ReceiverCounters { credits_sent: self.batch.sent(), ..self.counters }
    }

    fn close(&mut self) {
        if self.ended.is_none() {
            self.end(LinkError::Closed { by_peer: false });
        }
    }
}

impl Drop for RdmaReceiver {
    fn drop(&mut self) {
        self.close();
    }
}
