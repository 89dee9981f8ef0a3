//! The rdma sender: its NIC writes records into the peer's ring, directly from the pool or staging.
//!
//! ```text
//!  slot [header, envelope] ─┐ gather
//!  pool or staging [chunk] ─┴──────▶ WRITE WITH IMM ──▶ ring at `place`      one list and one signal a batch
//!
//!  pool or staging [chunk] ────────▶ WRITE ───────────▶ granted block        a message that has a grant
//!  slot [header, envelope, number] ▶ WRITE WITH IMM ──▶ ring
//! ```
//!
//! Invariants  A slot is reused only after the record that used it has completed. The last request of a list is signaled, so every record
//!             completes. `queue` is the first field, so the queue pair is destroyed before the memory that it reads.
//! Trusts      nothing in the credit words: `SenderRing::credit` checks them, as with tcp. Grants say only where in the peer's own memory to write.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps_os::Mapping;
use rustix::io::Errno;

use crate::counters::SenderCounters;
use crate::credit::CreditPair;
use crate::error::LinkError;
use crate::geometry::{FlowControl, RingGeometry};
use crate::link::{LinkSender, Progress, Wake, post_in_groups};
use crate::payload::{Data, PayloadMemory};
use crate::position::Position;
use crate::rdma::completion::{CompletionQueue, TransferError};
use crate::rdma::device_memory::DeviceRegions;
use crate::rdma::domain::{Domain, Region, RemoteAccess, TransferRegion, VerbsError};
use crate::rdma::grants::{Grant, ReceivedGrants};
use crate::rdma::liveness_socket::{Frame, LivenessSocket, Said};
use crate::rdma::port::Candidate;
use crate::rdma::queue_pair::{Address, Capacity, EMPTY, LIST_MAX, QueuePair, RECEIVE_ID, Write};
use crate::rdma::slots::{SLOTS, SLOTS_BYTES, Slots};
use crate::rdma::{REQUESTS_MAX, RdmaOptions, RemoteMemory, RingEnd, known_part};
use crate::record::{Flags, GRANT_NUMBER_BYTES, HEADER_BYTES, MessageId, Record, RecordSequence};
use crate::ring::SenderRing;
use crate::tcp::socket;

/// Requests of a record, at most.
const RECORD_REQUESTS: usize = 2;
/// Records of at most this size are sent inline, if the device supports it.
const INLINE_BYTES: u32 = 256;
/// Bytes of the page that the peer writes: the credit words, head and complement, and the grants.
pub(super) const CREDIT_PAGE_BYTES: u64 = 4096;
/// How often to reread a torn credit: a WRITE of 16 bytes may be visible in halves, but only briefly.
const CREDIT_READS_MAX: usize = 10_000;
/// The work request id of a credit request.
const REQUEST_ID: u64 = RECEIVE_ID - 1;
/// A sender that never sleeps checks the liveness socket once in so many calls.
const LIVENESS_LOOKS: u32 = 256;

/// A sender's queue pair before there is a ring. The request for a ring contains its address.
#[derive(Debug)]
pub struct SenderEnd {
    queue: QueuePair,
    completions: Arc<CompletionQueue>,
    slots: Arc<Slots>,
    credit: Arc<Region>,
    domain: Arc<Domain>,
    candidate: Candidate,
}

impl SenderEnd {
    /// Creates the queue pair and registers its memory.
    pub fn new(domain: &Arc<Domain>, candidate: &Candidate) -> Result<Self, VerbsError> {
        let refused = |call, errno| domain.context().failed(call, errno);
        let sends = SLOTS as u32 * RECORD_REQUESTS as u32 + REQUESTS_MAX;
        let receives = REQUESTS_MAX + 2;
        let completions = Arc::new(CompletionQueue::new(domain.context(), sends + receives)?);
        let capacity = Capacity { sends, receives, inline_bytes: INLINE_BYTES };
        let queue = QueuePair::new(domain, &completions, candidate, capacity)?;
        queue.receive(receives)?;
        let memory =
            |bytes| Mapping::anonymous(bytes).map(Arc::new).map_err(|_| refused("memory for headers", Errno::NOMEM));
        let slots = Arc::new(Slots::new(domain.register(&memory(SLOTS_BYTES)?, RemoteAccess::None)?));
        let credit = domain.register(&memory(CREDIT_PAGE_BYTES)?, RemoteAccess::Write)?;
        let start = CreditPair::new(Position::START).encode();
        credit.mapping().copy_in(0, &start).map_err(|_| refused("credit words", Errno::FAULT))?;
        Ok(Self { queue, completions, slots, credit, domain: domain.clone(), candidate: candidate.clone() })
    }

    /// Its device.
    pub fn device(&self) -> &str {
        &self.candidate.device
    }

    /// Its address, for the peer.
    pub fn address(&self) -> Address {
        self.queue.address(&self.candidate)
    }

    /// The page to which the receiver writes credit and grants.
    pub fn credit(&self) -> RemoteMemory {
        let mapping = self.credit.mapping();
        RemoteMemory { address: mapping.address(), key: self.credit.remote_key(), bytes: mapping.bytes() }
    }

    /// Connects it to a ring. `liveness`: the connection on which both have agreed on token and shape.
    pub fn connect(
        self,
        peer: &RingEnd,
        geometry: RingGeometry,
        liveness: TcpStream,
        options: RdmaOptions,
    ) -> Result<RdmaSender, VerbsError> {
        let refused = |call| self.domain.context().failed(call, Errno::INVAL);
        let ring = peer.memory;
        if ring.bytes != geometry.ring_bytes() || ring.address.checked_add(ring.bytes).is_none() {
            return Err(refused("connecting to a ring whose memory has another size than agreed"));
        }
        if geometry.flow_control() == FlowControl::Off {
            return Err(refused("connecting to a ring without flow control, which would use up the receives"));
        }
        self.queue.connect(&self.candidate, &peer.address, options.dead_peer_timeout)?;
        let landing_bytes_min = peer.grants_from_bytes.map_or(u64::MAX, |least| least.max(options.landing_bytes_min));
        Ok(RdmaSender {
            queue: self.queue,
            completions: self.completions,
            slots: self.slots,
            credit: self.credit,
            regions: Vec::new(),
            device_regions: DeviceRegions::default(),
            transient: VecDeque::new(),
            domain: self.domain,
            ring: SenderRing::new(geometry),
            peer: ring,
            grants: ReceivedGrants::new(landing_bytes_min),
            awaits_grant: None,
            liveness: LivenessSocket::new(liveness),
            looks: 0,
            reusable: RecordSequence(0),
            requested: None,
            wants_reuse: false,
            options,
            counters: SenderCounters::default(),
            broken: None,
            closed: false,
        })
    }
}

/// The sending end of an rdma link.
#[derive(Debug)]
pub struct RdmaSender {
    queue: QueuePair,
    completions: Arc<CompletionQueue>,
    slots: Arc<Slots>,
    credit: Arc<Region>,
    /// Registered memory that records are sent from.
    regions: Vec<Arc<Region>>,
    device_regions: DeviceRegions,
    /// Memory that `post` had to register, each with the record that uses it, until that record has completed.
    transient: VecDeque<(RecordSequence, TransferRegion)>,
    domain: Arc<Domain>,
    ring: SenderRing,
    peer: RemoteMemory,
    grants: ReceivedGrants,
    /// Bytes of the message that waits for a grant.
    awaits_grant: Option<u64>,
    liveness: LivenessSocket,
    looks: u32,
    reusable: RecordSequence,
    /// The delayed head in the outstanding credit request.
    requested: Option<Position>,
    /// Completed records end a `wait`, too.
    wants_reuse: bool,
    options: RdmaOptions,
    counters: SenderCounters,
    broken: Option<LinkError>,
    closed: bool,
}

impl RdmaSender {
    fn check_alive(&self) -> Result<(), LinkError> {
        match &self.broken {
            Some(error) => Err(error.clone()),
            None if self.closed => Err(LinkError::Closed { by_peer: false }),
            None => Ok(()),
        }
    }

    /// Stores a fatal error and closes the liveness socket, so that the peer notices.
    fn remember<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        if let Err(error) = &result
            && error.is_fatal()
            && self.broken.is_none()
        {
            tracing::debug!(%error, "rdma link broke");
            self.broken = Some(error.clone());
            self.queue.fail();
            self.liveness.hang_up();
        }
        result
    }

    /// Writes any bytes into the ring, for tests.
    #[cfg(test)]
    pub(super) fn write_raw(&mut self, offset: u64, bytes: &[u8], immediate: Option<u32>) -> Result<(), VerbsError> {
        self.write_to(self.peer, offset, bytes, immediate)
    }

    /// A grant that is free, for tests.
    #[cfg(test)]
    pub(super) fn peek_grant(&self) -> Option<Grant> {
        self.grants.peek(self.credit.mapping())
    }

    #[cfg(test)]
    pub(super) fn return_grant(&mut self, number: crate::record::GrantNumber) -> Result<(), LinkError> {
        self.liveness.send(Frame::Return(number))
    }

    /// Writes any bytes to memory of the peer, for tests.
    #[cfg(test)]
    pub(super) fn write_to(
        &mut self,
        memory: RemoteMemory,
        offset: u64,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<(), VerbsError> {
        let (remote, remote_key) = (memory.address + offset, memory.key);
        let parts = [(bytes.into(), 0), (Data::EMPTY, 0)];
        self.queue.write(&[Write { remote, remote_key, parts, immediate, inline: true, signaled: true, ..EMPTY }])
    }

    fn has_room(&self, payload_bytes: u32) -> bool {
        // A landed record without data needs room for the number of its grant.
        let with_number = payload_bytes.saturating_add(GRANT_NUMBER_BYTES).min(self.ring.geometry().chunk_bytes());
        self.has_slot() && self.ring.check(payload_bytes.max(with_number)).is_ok()
    }

    fn has_slot(&self) -> bool {
        self.ring.next_record().0 - self.reusable.0 < SLOTS
    }

    /// The local key of memory to send from. Registers it for this transfer if it is not registered.
    fn key(&mut self, record: RecordSequence, data: Data<'_>) -> Result<u32, LinkError> {
        let Data::Host(data) = data else { return Ok(self.device_regions.key_for(data)) };
        if let Some(region) = self.regions.iter().find(|region| region.contains(&data)) {
            return Ok(region.local_key());
        }
        let region = TransferRegion::new(&self.domain, &data)?;
        let key = region.local_key();
        self.transient.push_back((record, region));
        self.counters.registrations += 1;
        Ok(key)
    }

    /// The grant of a record's message, if it has one. A large message that begins takes one, or notes that it waits for one.
    fn grant_for(&mut self, record: &Record<'_>) -> Option<Grant> {
        let (message, total) = (record.message(), record.total());
        let known = self.grants.of(message);
        let in_ring = record.payload().0.len() as u64 + u64::from(GRANT_NUMBER_BYTES);
        let fits = in_ring <= u64::from(self.ring.geometry().chunk_bytes());
        if known.is_some() || !record.is_first() || !self.grants.are_for(total) || !fits {
            return known;
        }
        if self.must_wait(total) {
            self.awaits_grant = Some(total);
            return None;
        }
        self.grants.take_for(message, total, self.credit.mapping())
    }

    fn must_wait(&self, total: u64) -> bool {
        self.grants.must_wait(total, self.ring.delayed_head(), self.credit.mapping())
    }

    /// Posts one list of as many records as there is room and slots for; returns how many.
    fn post_list(&mut self, records: &[Record<'_>]) -> Result<usize, LinkError> {
        let mut writes = [EMPTY; LIST_MAX];
        let slots = self.slots.clone();
        let inline_bytes = u64::from(self.queue.inline_bytes());
        let (mut count, mut used, mut bytes) = (0, 0, 0_u64);
        self.awaits_grant = None;
        for record in records.iter().take(LIST_MAX / RECORD_REQUESTS) {
            let number = self.ring.next_record();
            let header = record.header(number, self.ring.geometry()).map_err(LinkError::Unsendable)?;
            let (envelope, data) = record.payload();
            if !self.has_room(header.payload_bytes) {
                self.counters.out_of_room += 1;
                break;
            }
            let is_abort = header.flags.contains(Flags::ABORT);
            let grant = if is_abort { None } else { self.grant_for(record) };
            if self.awaits_grant.is_some() {
                break;
            }
            let header = if grant.is_some() { header.landed() } else { header };
            // The processor reads what is inline.
            let is_readable = data.in_host_memory().is_some();
            let inline = HEADER_BYTES as u64 + u64::from(header.bytes_in_ring()) <= inline_bytes
                && (is_readable || grant.is_some());
            let is_data_inline =
                if grant.is_some() { is_readable && data.len() as u64 <= inline_bytes } else { inline };
            let key = if is_data_inline || data.is_empty() { 0 } else { self.key(number, data)? };
            let completes = record.is_last().then(|| record.message());
            let placed = self.ring.place_landed(header.bytes_in_ring(), header.payload_bytes, completes);
            let Ok(placement) = placed else { break };
            let opened = slots.fill(&header, envelope, grant.map(|grant| grant.number))?;
            let (beside, landing) = match grant {
                Some(Grant { block, .. }) => ((Data::EMPTY, 0), Some(block)),
                None => ((data, key), None),
            };
            if let Some(block) = landing.filter(|_| !data.is_empty()) {
                let (remote, remote_key) = (block.address + record.offset(), block.key);
                let parts = [(data, key), (Data::EMPTY, 0)];
                writes[used] = Write { id: number.0, remote, remote_key, parts, inline: is_data_inline, ..EMPTY };
                used += 1;
            }
            writes[used] = Write {
                id: number.next().0,
                remote: self.peer.address + placement.header(self.ring.geometry()).0,
                remote_key: self.peer.key,
                parts: [(opened.into(), slots.key()), beside],
                immediate: Some(number.immediate()),
                inline,
                ..EMPTY
            };
            used += 1;
            if is_abort {
                self.grants.abort(record.message());
            } else if completes.is_some() {
                self.grants.end(record.message(), record.total(), placement.end);
            }
            count += 1;
            bytes += u64::from(header.payload_bytes);
            self.counters.messages += u64::from(completes.is_some());
        }
        let Some(last) = writes[..used].last_mut() else { return Ok(0) };
        last.signaled = true;
        self.queue.write(&writes[..used])?;
        self.counters.batches += 1;
        self.counters.writes += 1;
        self.counters.records += count as u64;
        self.counters.bytes += bytes;
        self.return_grants()?;
        Ok(count)
    }

    /// Returns the grants that no message will use.
    fn return_grants(&mut self) -> Result<(), LinkError> {
        while let Some(number) = self.grants.next_to_return() {
            self.liveness.send(Frame::Return(number))?;
        }
        Ok(())
    }

    /// Processes completions. It reposts receives after the last one, so a peer that never stops sending credit cannot keep this loop running.
    fn reap(&mut self) -> Result<(), LinkError> {
        let mut replies = 0;
        loop {
            let mut failed = None;
            let (reusable, requested) = (&mut self.reusable, &mut self.requested);
            let count = self.completions.poll(|completion| match completion {
                Ok(done) if done.id == RECEIVE_ID => {
                    replies += 1;
                    *requested = None;
                }
                Ok(done) if done.id == REQUEST_ID => {}
                Ok(done) => reusable.0 = reusable.0.max(done.id),
                Err((_, error)) => failed = failed.or(Some(error)),
            })?;
            if let Some(error) = failed {
                return Err(self.explain(error));
            }
            let reusable = self.reusable;
            while self.transient.front().is_some_and(|(number, _)| *number < reusable) {
                self.transient.pop_front();
            }
            if count == 0 {
                return Ok(self.queue.receive(replies)?);
            }
        }
    }

    /// Explains a failed transfer: after the peer has closed its liveness socket, many errors follow, and that is their cause.
    fn explain(&mut self, error: TransferError) -> LinkError {
        match self.liveness.look(|_| {}) {
            Ok(Said::Gone) => LinkError::Closed { by_peer: true },
            _ => LinkError::Transfer(error),
        }
    }

    /// Reads and checks the credit words that the peer writes.
    fn read_credit(&mut self) -> Result<(), LinkError> {
        let words = self.credit.mapping().atomics_u64(0, 2).map_err(|_| credit_words_missing())?;
        let [head, complement] = words else { return Err(credit_words_missing()) };
        for read in 1.. {
            let pair = CreditPair::from_words(
                u64::from_le(head.load(Ordering::Acquire)),
                u64::from_le(complement.load(Ordering::Acquire)),
            );
            if !pair.is_whole() && read < CREDIT_READS_MAX {
                std::hint::spin_loop();
                continue;
            }
            let before = self.ring.delayed_head();
            let after = self.ring.credit(pair)?;
            self.counters.credits_received += u64::from(after != before);
            break;
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<(), LinkError> {
        self.reap()?;
        self.read_credit()?;
        self.looks += 1;
        if self.looks >= LIVENESS_LOOKS {
            self.look()?;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), LinkError> {
        self.looks = 0;
        let grants = &mut self.grants;
        let said = self.liveness.look(|frame| match frame {
            Frame::Revoke(number) => grants.revoke(number),
            Frame::NoGrants => grants.expect_none(),
            Frame::End(_) | Frame::Return(_) => {}
        })?;
        match said {
            Said::Nothing => self.return_grants(),
            // Only a sender announces an end, so any end of a receiver closes the link.
            Said::End(_) | Said::Gone => Err(LinkError::Closed { by_peer: true }),
        }
    }

    /// Requests that the next credit wakes this side, if credit is due and not yet requested.
    fn request_credit(&mut self) -> Result<(), LinkError> {
        let delayed_head = self.ring.delayed_head();
        if self.requested.is_some() || delayed_head == self.ring.tail() {
            return Ok(());
        }
        let known = known_part(self.ring.geometry(), delayed_head);
        let write = Write {
            id: REQUEST_ID,
            remote: self.peer.address,
            remote_key: self.peer.key,
            immediate: Some(known),
            signaled: true,
            solicited: true,
            ..EMPTY
        };
        self.queue.write(&[write])?;
        self.requested = Some(delayed_head);
        Ok(())
    }

    /// Polls for progress since `before`, for at most `options.spin`; returns whether there was any.
    fn spin(&mut self, before: (Position, RecordSequence)) -> Result<bool, LinkError> {
        let start = Instant::now();
        loop {
            self.advance()?;
            if (self.ring.delayed_head(), self.reusable) != before {
                return Ok(true);
            }
            if start.elapsed() >= self.options.spin {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Deregisters memory that only this link still holds: its publisher has left.
    fn forget_unused(&mut self) {
        self.regions.retain(|region| Arc::strong_count(region.mapping()) > 1);
        self.device_regions.forget_retired();
    }

    fn sleep(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) -> Result<Wake, LinkError> {
        let before = (self.ring.delayed_head(), self.reusable);
        if self.spin(before)? {
            return Ok(Wake { link: true, others: 0 });
        }
        // Credit mostly follows soon, and implies completions: they need not wake this side, too.
        let completion = self.wants_reuse || !self.has_slot() || self.ring.delayed_head() == self.ring.tail();
        // What a posted record reads must stay registered: it may be sent once more.
        if self.reusable == self.ring.next_record() {
            self.forget_unused();
        }
        self.completions.arm(!completion)?;
        self.advance()?;
        if (self.ring.delayed_head(), self.reusable) != before {
            return Ok(Wake { link: true, others: 0 });
        }
        // Not earlier: the last request's answer may just have been reaped, and said nothing new.
        self.request_credit()?;
        let own = [self.completions.fd(), self.liveness.fd()];
        let wake = socket::wait_readable(&own, timeout, others)?;
        self.completions.drain_events()?;
        if wake.link {
            self.look()?;
        }
        Ok(wake)
    }
}

fn credit_words_missing() -> LinkError {
    LinkError::Broken { during: "reading the credit words", errno: Errno::FAULT }
}

impl LinkSender for RdmaSender {
    fn geometry(&self) -> &RingGeometry {
        self.ring.geometry()
    }

    fn register(&mut self, memory: &PayloadMemory) -> Result<(), LinkError> {
        match memory {
            PayloadMemory::Device(memory) => self.device_regions.register(&self.domain, memory)?,
            PayloadMemory::Host(memory) if self.regions.iter().any(|known| Arc::ptr_eq(known.mapping(), memory)) => {}
            PayloadMemory::Host(memory) => self.regions.push(self.domain.register(memory, RemoteAccess::None)?),
        }
        Ok(())
    }

    fn room_for(&self, payload_bytes: u32) -> bool {
        !self.awaits_grant.is_some_and(|total| self.must_wait(total)) && self.has_room(payload_bytes)
    }

    fn post(&mut self, records: &[Record<'_>]) -> Result<usize, LinkError> {
        self.check_alive()?;
        self.device_regions.check(records)?;
        let geometry = *self.ring.geometry();
        post_in_groups(records, &geometry, LIST_MAX / RECORD_REQUESTS, |group| {
            let posted = self.post_list(group);
            self.remember(posted)
        })
    }

    fn progress(&mut self) -> Result<Progress, LinkError> {
        self.check_alive()?;
        let advanced = self.advance();
        self.remember(advanced)?;
        let (tail, delayed_head) = (self.ring.tail(), self.ring.delayed_head());
        Ok(Progress { tail, delayed_head, reusable: self.reusable })
    }

    fn next_acknowledged(&mut self) -> Option<MessageId> {
        self.ring.next_acknowledged()
    }

    fn unacknowledged(&self) -> usize {
        self.ring.unacknowledged()
    }

    fn wait(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) -> Result<Wake, LinkError> {
        self.check_alive()?;
        let woken = self.sleep(timeout, others);
        match self.remember(woken) {
            Err(error) if error.is_fatal() => Ok(Wake { link: true, others: 0 }), // The next `progress` returns it.
            woken => woken,
        }
    }

    fn wait_for_reuse(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) -> Result<Wake, LinkError> {
        self.wants_reuse = true;
        let wake = self.wait(timeout, others);
        self.wants_reuse = false;
        wake
    }

    fn counters(&self) -> SenderCounters {
        self.counters
    }

    fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            self.liveness.end(self.ring.next_record().0);
        }
    }
}

impl Drop for RdmaSender {
    /// Waits until posted records have completed: destroying a queue pair discards them.
    fn drop(&mut self) {
        let deadline = Instant::now() + self.options.dead_peer_timeout;
        while self.broken.is_none() && self.reusable < self.ring.next_record() && Instant::now() < deadline {
            if self.completions.arm(false).is_err() || self.reap().is_err() {
                break;
            }
            if self.reusable < self.ring.next_record() {
                let rest = deadline.saturating_duration_since(Instant::now());
                let _ = rgaps_os::poll::readable(self.completions.fd(), rest);
                let _ = self.completions.drain_events();
            }
        }
        self.close();
    }
}
