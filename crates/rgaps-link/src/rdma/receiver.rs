//! The rdma receiver: gets a receive completion with an immediate for each record, and writes credit into the sender's words.
//!
//! The last record of a message in granted memory is returned only when the peer can no longer write there (`grants`).
//!
//! Invariants  Receives are reposted before the credit for the records that consumed them. Records are released in the order of
//!             `next`. `queue` is the first field, so the queue pair is destroyed before the ring and the blocks that the NIC writes.
//! Trusts      nothing that the peer writes: the immediate must be the expected one, the header must decode, match the length of the
//!             completion, and be where the ring has room. The peer can overwrite the ring at any time, so it is only read by copies.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_os::EventFd;
use rustix::io::Errno;

use crate::counters::ReceiverCounters;
use crate::credit::{CREDIT_BYTES, CreditBatch, CreditPair};
use crate::error::LinkError;
use crate::geometry::{FlowControl, RingGeometry};
use crate::link::{LandingPlace, LinkReceiver, Release, RingRecord};
use crate::memory::RingMemory;
use crate::payload::Data;
use crate::position::{Position, RingSpan};
use crate::rdma::completion::{CompletionQueue, POLL_MAX, TransferError};
use crate::rdma::domain::{Domain, Region, RemoteAccess, VerbsError};
use crate::rdma::grants::{ENTRY_BYTES, GRANT_REQUESTS, GRANTS_MAX, Grant, IssuedGrants};
use crate::rdma::liveness_socket::{Frame, LivenessSocket, Said};
use crate::rdma::port::Candidate;
use crate::rdma::queue_pair::{Address, Capacity, QueuePair, RECEIVE_ID, Write};
use crate::rdma::sender::CREDIT_PAGE_BYTES;
use crate::rdma::{RECEIVES_MAX, REQUESTS_MAX, RdmaOptions, RemoteMemory, known_part};
use crate::record::{Flags, GRANT_NUMBER_BYTES, GrantNumber, HEADER_BYTES, RecordError, RecordHeader};
use crate::ring::{AdmitError, ReceiverRing, place};
use crate::tcp::socket;

/// Credit waits while so many writes of credit and grants are posted and not completed.
const WRITES_MAX: u64 = 256;
/// In the id of an invalidation, beside the number of its grant.
const INVALIDATION: u64 = 1 << 62;
/// One credit in so many is signaled, and each while something is granted.
const CREDITS_A_SIGNAL: u64 = 16;

/// A receiver's queue pair with its ring. The offer of a ring contains its address.
#[derive(Debug)]
pub struct ReceiverEnd {
    queue: QueuePair,
    completions: Arc<CompletionQueue>,
    region: Arc<Region>,
    memory: Arc<RingMemory>,
    geometry: RingGeometry,
    domain: Arc<Domain>,
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
        if credit.bytes != CREDIT_PAGE_BYTES || credit.address.checked_add(credit.bytes).is_none() {
            return Err(refused("using a page for credit of another size"));
        }
        let receives = geometry.records_max() as u32 + REQUESTS_MAX;
        let sends = WRITES_MAX as u32 + (GRANTS_MAX * GRANT_REQUESTS) as u32;
        let completions = Arc::new(CompletionQueue::new(domain.context(), sends + receives)?);
        let capacity = Capacity { sends, receives, inline_bytes: ENTRY_BYTES as u32 };
        let queue = QueuePair::new(domain, &completions, candidate, capacity)?;
        if queue.inline_bytes() < CREDIT_BYTES as u32 {
            return Err(refused("sending credit inline"));
        }
        let region = domain.register(memory.shared_mapping(), RemoteAccess::Write)?;
        queue.receive(receives)?;
        let (memory, candidate) = (memory.clone(), candidate.clone());
        let (domain, peer) = (domain.clone(), *address);
        Ok(Self { queue, completions, region, memory, geometry, domain, candidate, peer, credit, options })
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

    /// The least bytes of a message for which its link grants memory. `None`: the device cannot take the right away again, or the options want none.
    pub fn grants_from_bytes(&self) -> Option<u64> {
        let grants = IssuedGrants::new(&self.domain, self.queue.inline_bytes(), self.options);
        grants.is_supported().then_some(self.options.landing_bytes_min)
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
        let Self { queue, completions, region, memory, geometry, domain, credit, options, .. } = self;
        RdmaReceiver {
            grants: IssuedGrants::new(&domain, queue.inline_bytes(), options),
            queue,
            completions,
            _region: region,
            memory,
            ring: ReceiverRing::new(geometry),
            batch: CreditBatch::new(geometry.watermark_bytes()),
            told: Position::START,
            peer: credit,
            posted: 0,
            signaled: 0,
            completed: 0,
            unsent: None,
            wanted: false,
            arrivals: VecDeque::with_capacity(geometry.records_max() as usize),
            held: VecDeque::with_capacity(geometry.records_max() as usize),
            to_repost: 0,
            requests_to_repost: 0,
            liveness: LivenessSocket::new(liveness),
            wake: None,
            ended: None,
            options,
            counters: ReceiverCounters::default(),
        }
    }
}

/// A received record.
#[derive(Debug)]
struct Arrived {
    record: RingRecord,
    /// A grant whose window must be invalid before the consumer gets the record.
    ends: Option<GrantNumber>,
}

/// The receiving end of an rdma link.
#[derive(Debug)]
pub struct RdmaReceiver {
    queue: QueuePair,
    completions: Arc<CompletionQueue>,
    grants: IssuedGrants,
    _region: Arc<Region>,
    memory: Arc<RingMemory>,
    ring: ReceiverRing,
    batch: CreditBatch,
    /// The head in the last credit.
    told: Position,
    peer: RemoteMemory,
    /// Writes of credit and grants: how many are posted, the last one that is signaled, and how many are known to be completed.
    posted: u64,
    signaled: u64,
    completed: u64,
    unsent: Option<CreditPair>,
    /// The sender has requested to be woken by the next credit.
    wanted: bool,
    /// Received records that the consumer has not taken.
    arrivals: VecDeque<Arrived>,
    /// Starts of the records that the consumer holds, oldest first.
    held: VecDeque<Position>,
    to_repost: u32,
    /// Receives that credit requests used.
    requests_to_repost: u32,
    liveness: LivenessSocket,
    wake: Option<Arc<EventFd>>,
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
            let (completed, grants) = (&mut self.completed, &mut self.grants);
            let polled = self.completions.poll(|completion| match completion {
                Ok(done) if done.id == RECEIVE_ID => {
                    landed[count] = (done.bytes, done.immediate);
                    count += 1;
                }
                Ok(done) if done.id & INVALIDATION != 0 => grants.ended(GrantNumber(done.id & !INVALIDATION)),
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
                return self.post_due();
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
        let in_ring = bytes.checked_sub(HEADER_BYTES as u32).ok_or_else(|| length(HEADER_BYTES as u32))?;
        self.ring.consumed(self.batch.head()).map_err(AdmitError::Production)?;
        let geometry = *self.ring.geometry();
        let offset = place(&geometry, self.ring.tail(), in_ring).header(&geometry);
        let mut header = [0; HEADER_BYTES];
        self.memory.copy_out(RingSpan { offset, bytes: HEADER_BYTES as u64 }, 0, &mut header)?;
        let header = RecordHeader::decode(&header)?;
        if header.bytes_in_ring() != in_ring {
            return Err(length(header.bytes_in_ring().saturating_add(HEADER_BYTES as u32)));
        }
        let placement = self.ring.admit(&header)?;
        let grant = self.grant_of(&header, placement.payload(&geometry, in_ring))?;
        self.counters.records += 1;
        self.counters.bytes += u64::from(header.payload_bytes);
        let ending = if header.ends_message() { self.grants.end_of(header.message) } else { None };
        let ends = ending.map(|(number, _)| number);
        self.invalidate(ending)?;
        let record = RingRecord::new(header, placement, &geometry, grant);
        self.arrivals.push_back(Arrived { record, ends });
        Ok(())
    }

    /// The grant that a record names, if it has landed in one.
    fn grant_of(&mut self, header: &RecordHeader, in_ring: RingSpan) -> Result<Option<GrantNumber>, LinkError> {
        if !header.flags.contains(Flags::LANDED) {
            return Ok(None);
        }
        let mut number = [0; GRANT_NUMBER_BYTES as usize];
        self.memory.copy_out(in_ring, u64::from(header.envelope_bytes), &mut number)?;
        let number = GrantNumber(u64::from_le_bytes(number));
        self.grants.land(number, header).map_err(AdmitError::from)?;
        Ok(Some(number))
    }

    /// Starts to take away the peer's right to a block.
    fn invalidate(&mut self, ending: Option<(GrantNumber, u32)>) -> Result<(), LinkError> {
        let Some((number, key)) = ending else { return Ok(()) };
        Ok(self.queue.invalidate(INVALIDATION | number.0, key)?)
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
        // While a grant waits, so does the credit, for completions.
        let posted = if self.grants.is_any_waiting() { self.reap() } else { self.post_due() };
        if let Err(error) = posted {
            // The next call of `next` returns it; the records stay released.
            self.end(error);
        }
    }

    /// Posts the grants that wait, and the unsent credit.
    ///
    /// A window is bound only when all earlier writes have completed. Until then credit is held back, so that the sender knows of the grant first. Verbs
    /// demand no such order, but Soft-RoCE of Linux 6.1 does: if it sends an earlier write once more, it binds a window behind it once more, too, which
    /// fails, and then takes no acknowledgement any more and reports nothing.
    fn post_due(&mut self) -> Result<(), LinkError> {
        if self.grants.is_any_waiting() {
            if self.completed < self.posted {
                // Only a signaled write tells that those before it have completed. The last credit again does no harm.
                let is_awaited = self.signaled == self.posted;
                return if is_awaited { Ok(()) } else { self.write_credit(CreditPair::new(self.told)) };
            }
            self.post_grants()?;
        }
        if self.posted - self.completed >= WRITES_MAX {
            return Ok(());
        }
        self.unsent.take().map_or(Ok(()), |pair| self.write_credit(pair))
    }

    fn write_credit(&mut self, pair: CreditPair) -> Result<(), LinkError> {
        self.queue.receive(std::mem::take(&mut self.to_repost))?;
        let bytes = pair.encode();
        let (wanted, is_signaled) = (std::mem::take(&mut self.wanted), self.grants.is_any_issued());
        self.write(0, &bytes, wanted, is_signaled || (self.posted + 1).is_multiple_of(CREDITS_A_SIGNAL))
    }

    /// Binds the windows of the grants that wait, and only then writes their entries into the peer's page.
    fn post_grants(&mut self) -> Result<(), LinkError> {
        for grant in self.grants.bind_waiting(&self.queue)? {
            self.write(Grant::entry_offset(grant.number), &grant.encode(), false, true)?;
        }
        Ok(())
    }

    /// Writes to the peer's page. `wakes`: wakes a peer that sleeps.
    fn write(&mut self, offset: u64, bytes: &[u8], wakes: bool, signaled: bool) -> Result<(), LinkError> {
        self.posted += 1;
        if signaled {
            self.signaled = self.posted;
        }
        let write = Write {
            id: self.posted,
            remote: self.peer.address + offset,
            remote_key: self.peer.key,
            parts: [(bytes.into(), 0), (Data::EMPTY, 0)],
            immediate: wakes.then_some(0),
            signaled,
            solicited: wakes,
            inline: true,
        };
        Ok(self.queue.write(&[write])?)
    }

    /// Whether the consumer can have the next received record.
    fn is_ready(&self) -> bool {
        let is_alive = |number| self.grants.is_alive(number);
        self.arrivals.front().is_some_and(|arrived| !arrived.ends.is_some_and(is_alive))
    }

    /// The next received record, without waiting. Records received before an error are returned before the error, except for those whose blocks the
    /// device might still write, and what follows them: the peer sends these again.
    fn arrived(&mut self) -> Result<Option<RingRecord>, LinkError> {
        if !self.is_ready() {
            if let Some(error) = &self.ended {
                return Err(error.clone());
            }
            if let Err(error) = self.reap() {
                let error = self.end(error);
                if !self.is_ready() {
                    return Err(error);
                }
            }
            if !self.is_ready() {
                return Ok(None);
            }
        }
        let record = self.arrivals.pop_front().map(|arrived| arrived.record);
        self.held.extend(record.as_ref().map(|record| record.placement.start));
        Ok(record)
    }

    /// Reads the liveness socket, and begins to take back the grants that the peer returns.
    fn look(&mut self) -> Result<Said, LinkError> {
        let mut returned = Vec::new();
        let said = self.liveness.look(|frame| {
            if let Frame::Return(number) = frame {
                returned.push(number);
            }
        })?;
        for number in returned {
            let ending = self.grants.take_back(number);
            self.invalidate(ending)?;
        }
        Ok(said)
    }

    /// Checks whether the peer has ended. Call it when all records that completed before `said` was read are processed.
    fn check_end(&mut self, said: Said) -> Result<(), LinkError> {
        match said {
            Said::Nothing => Ok(()),
            Said::End(records) if records > self.ring.expected().0 => Ok(()),
            // The last record waits for the end of its grant.
            Said::End(_) if !self.arrivals.is_empty() => Ok(()),
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
            let rest = deadline.saturating_duration_since(Instant::now());
            // An event that nobody waits for would stay with the kernel.
            if !rest.is_zero() {
                self.completions.arm(false)?;
            }
            // A peer that has ended by now has completed all its records.
            let said = self.look()?;
            if let Some(record) = self.arrived()? {
                return Ok(Some(record));
            }
            self.check_end(said)?;
            if rest.is_zero() {
                return Ok(None);
            }
            // After an announced end the liveness socket stays readable, so wait only for completions.
            let own = [self.completions.fd(), self.liveness.fd()];
            let awaited = if said == Said::Nothing { &own[..] } else { &own[..1] };
            let others: &[BorrowedFd<'_>] = match &self.wake {
                Some(event) => &[event.as_fd()],
                None => &[],
            };
            let woken = socket::wait_readable(awaited, rest, others)?;
            self.completions.drain_events()?;
            self.counters.wakes += 1;
            if woken.others != 0 && !woken.link {
                return Ok(None);
            }
        }
    }

    fn issue(&mut self, place: &LandingPlace, bytes: u64) -> Result<Option<GrantNumber>, LinkError> {
        let could_grant = self.grants.is_supported();
        let Some(number) = self.grants.issue(place, bytes) else {
            if could_grant && !self.grants.is_supported() {
                self.liveness.send(Frame::NoGrants)?;
            }
            return Ok(None);
        };
        self.reap()?;
        Ok(Some(number))
    }

    /// Whether the peer can still write to a grant, for tests.
    #[cfg(test)]
    pub(super) fn is_granted(&self, number: GrantNumber) -> bool {
        self.grants.is_alive(number)
    }

    /// Sends a false credit, for tests.
    #[cfg(test)]
    pub(crate) fn lie(&mut self, pair: CreditPair) -> Result<(), LinkError> {
        (self.unsent, self.wanted) = (Some(pair), true);
        self.post_due()
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

    fn wake_by(&mut self, event: Arc<EventFd>) {
        self.wake = Some(event);
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
        // The sender may hold the next large message back until it knows.
        let is_awaited = record.header.ends_message()
            && record.header.total >= self.options.landing_bytes_min
            && self.grants.have_begun();
        let due = if is_awaited { due.or_else(|| self.batch.flush()) } else { due };
        self.send_credit(due);
        Ok(Release::Intact)
    }

    fn grants_max(&self) -> usize {
        if self.grants.is_supported() { GRANTS_MAX } else { 0 }
    }

    fn grant(&mut self, place: &LandingPlace, bytes: u64) -> Result<Option<GrantNumber>, LinkError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let granted = self.issue(place, bytes);
        granted.map_err(|error| self.end(error))
    }

    fn revoke_grants(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let mut revoked = self.grants.revoke();
        let told = revoked.try_for_each(|number| self.liveness.send(Frame::Revoke(number)));
        drop(revoked);
        self.grants.forget_unused();
        // Those that waited are taken back, and so hold back no credit.
        match told.and_then(|()| self.post_due()) {
            Ok(()) => {}
            // The peer has ended. What it has sent before is still to be read.
            Err(LinkError::Broken { errno: Errno::PIPE | Errno::CONNRESET, .. }) => {}
            Err(error) => drop(self.end(error)),
        }
    }

    fn next_returned(&mut self) -> Option<GrantNumber> {
        let returned = self.grants.next_returned();
        if returned.is_some() || self.ended.is_some() || !self.grants.is_revoking() {
            return returned;
        }
        let looked = self.look().and_then(|_| self.reap());
        if let Err(error) = looked {
            self.end(error);
        }
        self.grants.next_returned()
    }

    fn flush_credit(&mut self) {
        // What is held back may go by now.
        let due = self.batch.flush().or_else(|| self.unsent.take());
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
        self.grants.free_windows();
    }
}
