//! The outbox of a sender: messages that the sender has taken from the segment and the other host has not acknowledged, and their cut into records.
//!
//! ```text
//!   ──push──▶ [acknowledged? … | sending: chunk k of m | unsent …] ──post──▶ link
//!     ▲ released when the delayed head has passed its last record
//! ```
//!
//! No clock, no thread, no wait. Posting a batch allocates nothing. A batch is whatever is ready: no message waits for a batch to fill.
//!
//! Source      opportunistic batches of any size: Jha, Rosa and Birman, "Spindle: Techniques for Optimizing Atomic Multicast on RDMA", ICDCS 2022,
//!             section III-A, the send predicate. It adds this to Derecho (Jha et al., ACM TOCS 36 (2), 2019), which batched at the receiver only.
//!
//! Invariants  OB1 a message is released only when it is acknowledged, or when the other host says that it has it. OB2 messages are posted in the order
//!             in which they were taken. OB3 a chunk is posted only when the link can read it: from the pool itself, or complete in staging.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use rgaps_device::{Backend, DeviceError, PoolMemory};
use rgaps_link::record::MessageHead;
use rgaps_link::{Data, LinkError, LinkSender, MessageId, MessageName, Record, RecordSequence};
use rgaps_os::DmaBuf;
use rgaps_shm::manager::last_received::LastReceived;
use rgaps_shm::words::queue::Position;
use rgaps_shm::{Held, MessageInfo, crash};

use crate::envelope::{ENVELOPE_BYTES_MAX, Envelope};
use crate::sent::SentMessages;
use crate::staging::Stager;

/// Records in a batch, at most.
const BATCH_MAX: usize = 16;
/// Copies that begin and end at multiples of this run at the device's full speed.
const PAGE_BYTES: u64 = 4096;
/// Messages that are taken but not acknowledged, at most.
const OUTBOX_MAX: usize = 64;
/// Gap notices that are sent but not acknowledged, at most.
const GAP_NOTICES_MAX: usize = 32;
/// From a message's id to the next one. Gap notices between two messages get the ids between theirs, since a receiver expects ids to grow.
const ID_STEP: u64 = 64;
/// How long the end of a connection waits for each copy in progress.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// Posting failed, which ends the connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The network card, or the device's driver, refuses.
    #[error("the network card cannot read device memory: {0}")]
    DeviceMemory(String),
}

/// A message that is taken and not acknowledged.
#[derive(Debug)]
struct Outgoing {
    held: Held,
    pool: Arc<dyn PoolMemory>,
    envelope: Envelope,
    head: MessageHead,
    /// Up to which message of its publisher none is owed, as its envelope says.
    previous: u64,
    /// Bytes posted; `None` before the first record.
    sent: Option<u64>,
    /// Device memory that the link has registered, and where the message begins there.
    memory: Option<(Arc<DmaBuf>, u64)>,
}

impl Outgoing {
    fn set_previous(&mut self, previous: u64) {
        self.previous = previous;
        self.envelope.set_previous(previous);
    }

    /// Bytes of the message, from where the link sends them if it sends from the pool itself.
    fn data(&self, at: u64, bytes: u64) -> Option<Data<'_>> {
        match &self.memory {
            Some((memory, offset)) => Some(Data::Device { memory, offset: offset + at, bytes: bytes as usize }),
            None if bytes == 0 => Some(Data::EMPTY),
            None => self.pool.shared(self.held.offset() + at, bytes).ok().map(Data::Host),
        }
    }

    /// Registers its memory with a link that sends from the pool itself.
    fn register(&mut self, link: &mut dyn LinkSender) -> Result<(), PostError> {
        if let Some(mapping) = self.pool.host_mapping() {
            return Ok(link.register(&mapping.into())?);
        }
        // What the processor can read needs no registration: of a pool that was taken over, for example.
        let is_readable = self.pool.shared(self.held.offset(), self.head.total).is_ok();
        if is_readable || self.memory.is_some() || self.head.total == 0 {
            return Ok(());
        }
        let exported = self.pool.dma_buf(self.held.offset(), self.head.total).map_err(|error| match error {
            DeviceError::Driver(error) => PostError::DeviceMemory(error.to_string()),
            error => error.into(),
        });
        let (memory, offset) = exported?;
        let registered = link.register(&memory.clone().into());
        registered.map_err(|error| PostError::DeviceMemory(error.to_string()))?;
        self.memory = Some((memory, offset));
        Ok(())
    }

    fn is_sent(&self) -> bool {
        self.sent == Some(self.head.total)
    }
}

/// What the outbox has of a pool.
#[derive(Debug)]
struct PoolUse {
    pool: Arc<dyn PoolMemory>,
    bytes: u64,
    messages: usize,
}

/// The outbox.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: VecDeque<Outgoing>,
    /// The pools of its messages.
    pools: Vec<PoolUse>,
    /// How many messages it holds at most. After `give_up` it is one, and grows by each that is acknowledged.
    window: usize,
    next_id: u64,
    /// The largest id of which a record is posted.
    posted_id: u64,
    stager: Option<Stager>,
    /// Gap notices that are sent and not acknowledged, and the skipped messages that they name.
    skipped: VecDeque<(MessageId, MessageName)>,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::with_capacity(OUTBOX_MAX),
            pools: Vec::with_capacity(OUTBOX_MAX),
            window: OUTBOX_MAX,
            // A gap notice that is posted before the first message has an id before it.
            next_id: ID_STEP,
            posted_id: 0,
            stager: None,
            skipped: VecDeque::new(),
        }
    }

    /// Whether it takes another message. It holds at most half of a pool, and one message beyond: other hosts may acknowledge late or never, and
    /// the publisher needs room for its subscribers here.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.window && !self.pools.iter().any(|of| of.bytes >= of.pool.bytes() / 2)
    }

    /// Bytes of its messages in a pool.
    pub(crate) fn bytes_of(&self, pool: &Arc<dyn PoolMemory>) -> u64 {
        self.pools.iter().find(|of| Arc::ptr_eq(&of.pool, pool)).map_or(0, |of| of.bytes)
    }

    /// Bytes of its oldest message.
    pub(crate) fn first_bytes(&self) -> u64 {
        self.queue.front().map_or(0, |outgoing| outgoing.head.total)
    }

    /// Publisher and sequence of each message in the outbox.
    pub(crate) fn origins(&self) -> impl Iterator<Item = (u64, u64)> {
        self.queue.iter().map(|outgoing| (outgoing.head.name.publisher, outgoing.head.name.sequence))
    }

    /// How many messages it holds.
    pub(crate) fn count(&self) -> usize {
        self.queue.len()
    }

    /// The position of its oldest message.
    pub(crate) fn first(&self) -> Option<Position> {
        self.queue.front().map(|outgoing| Position(outgoing.held.info().position))
    }

    /// Whether messages were given up and none has been acknowledged since.
    pub(crate) fn is_on_probation(&self) -> bool {
        self.window == 1
    }

    /// Whether the other host has all that it was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether payload goes through staging.
    pub(crate) fn is_staged(&self) -> bool {
        self.stager.is_some()
    }

    /// Adds a message. Its bytes are in `pool`; the caller has checked that.
    pub(crate) fn push(&mut self, held: Held, pool: Arc<dyn PoolMemory>, envelope: Envelope, previous: u64) {
        let info = held.info();
        let name = MessageName { publisher: info.publisher, sequence: info.sequence };
        let head = MessageHead { id: MessageId(self.next_id), name, total: info.bytes };
        self.next_id += ID_STEP;
        match self.pools.iter_mut().find(|of| Arc::ptr_eq(&of.pool, &pool)) {
            Some(of) => (of.bytes, of.messages) = (of.bytes + head.total, of.messages + 1),
            None => self.pools.push(PoolUse { pool: pool.clone(), bytes: head.total, messages: 1 }),
        }
        self.queue.push_back(Outgoing { held, pool, envelope, head, previous, sent: None, memory: None });
    }

    /// Releases the messages that the other host has, or has counted as lost, by publisher.
    pub(crate) fn resume(&mut self, has: &HashMap<u64, u64>) {
        self.release(|outgoing| {
            has.get(&outgoing.head.name.publisher).is_some_and(|s| outgoing.head.name.sequence <= *s)
        });
    }

    /// Starts a connection: sends the messages from their beginning. A host that `remembers` this one is owed what was published between those in
    /// `has` and these messages.
    pub(crate) fn connected(
        &mut self,
        remembers: bool,
        has: &HashMap<u64, u64>,
        staged: Option<(&Arc<dyn Backend>, u32)>,
    ) -> Result<(), DeviceError> {
        // Messages that were taken from history again are older than the rest.
        self.queue.make_contiguous().sort_by_key(|outgoing| outgoing.held.info().position);
        let mut before: HashMap<u64, u64> = HashMap::new();
        for outgoing in &self.queue {
            let first = before.entry(outgoing.head.name.publisher).or_insert(u64::MAX);
            *first = outgoing.previous.min(*first);
        }
        for (publisher, sequence) in has {
            let known = before.entry(*publisher).or_insert(0);
            *known = (*known).max(*sequence);
        }
        for outgoing in &mut self.queue {
            let MessageName { publisher, sequence } = outgoing.head.name;
            let before = before.entry(publisher).or_insert(0);
            let owed_from = if remembers { *before } else { u64::MAX };
            outgoing.set_previous(owed_from.min(sequence.saturating_sub(1)));
            *before = sequence.max(*before);
            (outgoing.sent, outgoing.memory) = (None, None);
            outgoing.head.id = MessageId(self.next_id);
            self.next_id += ID_STEP;
        }
        if let (Some((backend, chunk_bytes)), None) = (staged, &self.stager) {
            self.stager = Some(Stager::new(backend.clone(), staged_bytes(chunk_bytes))?);
        }
        Ok(())
    }

    /// Ends a connection.
    pub(crate) fn disconnected(&mut self) {
        self.skipped.clear();
        if let Some(mut stager) = self.stager.take()
            && let Err(error) = stager.abandon(ABANDON_TIMEOUT)
        {
            tracing::error!(%error, "a copy to staging is stuck; its memory is not freed, since the device may still write to it");
            std::mem::forget(stager);
        }
    }

    /// Releases the messages that the other host has consumed. True if there was one.
    pub(crate) fn acknowledge(&mut self, link: &mut dyn LinkSender, sent: &mut SentMessages) -> bool {
        let before = self.queue.len();
        while let Some(id) = link.next_acknowledged() {
            self.release(|outgoing| outgoing.head.id == id);
            if self.skipped.front().is_some_and(|(notice, _)| *notice == id) {
                self.skipped.pop_front().into_iter().for_each(|(_, skipped)| sent.acknowledged(skipped));
                // The other host takes what it is sent.
                self.window = self.window.max(2);
            }
        }
        self.widen(before);
        self.queue.len() != before
    }

    /// Widens the window by the messages that have left the outbox since it had `before`.
    fn widen(&mut self, before: usize) {
        self.window = (self.window + before - self.queue.len()).min(OUTBOX_MAX);
    }

    /// Prepares to `clear` it, since the other host has held its messages for too long. Returns the last messages of publishers that have left, of which
    /// `sent` had forgotten that.
    pub(crate) fn give_up(&mut self, sent: &mut SentMessages) -> HashMap<u64, LastReceived> {
        self.window = 1;
        let mut left = HashMap::new();
        for outgoing in &self.queue {
            let MessageInfo { publisher, sequence, position, .. } = *outgoing.held.info();
            if sent.give_up(outgoing.held.info(), outgoing.previous) || left.contains_key(&publisher) {
                left.insert(publisher, LastReceived { sequence, position: Position(position) });
            }
        }
        left
    }

    /// Drops all messages. Call it only without a link, which may read their memory.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.pools.clear();
    }

    /// Releases posted messages, for a link without acknowledgements.
    pub(crate) fn release_sent(&mut self, sent: &mut SentMessages) {
        let before = self.queue.len();
        self.release(Outgoing::is_sent);
        self.widen(before);
        self.skipped.drain(..).for_each(|(_, skipped)| sent.acknowledged(skipped));
    }

    /// Releases messages that the other host has, or never gets.
    fn release(&mut self, is_over: impl Fn(&Outgoing) -> bool) {
        let pools = &mut self.pools;
        self.queue.retain(|outgoing| {
            let is_over = is_over(outgoing);
            if is_over && let Some(of) = pools.iter_mut().find(|of| Arc::ptr_eq(&of.pool, &outgoing.pool)) {
                (of.bytes, of.messages) = (of.bytes - outgoing.head.total, of.messages - 1);
            }
            !is_over
        });
        pools.retain(|of| of.messages > 0);
    }

    /// Whether a record of this publisher's messages is not posted yet.
    pub(crate) fn has_unsent_of(&self, publisher: u64) -> bool {
        self.queue.iter().any(|outgoing| outgoing.head.name.publisher == publisher && !outgoing.is_sent())
    }

    /// Posts a gap notice, which names a message that was skipped: a message without bytes, of which the other host reads only the envelope. False if the
    /// ring has no room, or too many notices are not acknowledged.
    pub(crate) fn post_gap_notice(
        &mut self,
        link: &mut dyn LinkSender,
        notice: &Envelope,
        skipped: MessageName,
    ) -> Result<bool, LinkError> {
        if self.skipped.len() >= GAP_NOTICES_MAX {
            return Ok(false);
        }
        let head = MessageHead { id: MessageId(self.posted_id + 1), name: skipped, total: 0 };
        if self.queue.iter().any(|outgoing| outgoing.sent.is_none() && outgoing.head.id <= head.id) {
            return Ok(false);
        }
        let posted = link.post(&[head.first(notice.bytes(), &[])])? > 0;
        if posted {
            self.posted_id = head.id.0;
            self.next_id = self.next_id.max(self.posted_id + 1);
            self.skipped.push_back((head.id, skipped));
        }
        Ok(posted)
    }

    /// Posts, as one batch, records of this topic that are ready and for which the ring has room. Returns the numbers of records and of completed
    /// messages.
    pub(crate) fn post(
        &mut self,
        link: &mut dyn LinkSender,
        reusable: RecordSequence,
        topic: &dyn Display,
    ) -> Result<(usize, u64), PostError> {
        if let Some(stager) = &mut self.stager {
            stager.reusable(reusable);
            let unsent = self.queue.iter().filter(|outgoing| !outgoing.is_sent());
            stager.pump(unsent.map(|o| (o.head.id, &o.pool, o.held.offset(), o.head.total)))?;
        }
        let nobody = MessageHead { id: MessageId(0), name: MessageName::default(), total: 0 };
        let mut records = [nobody.part(0, &[]); BATCH_MAX];
        let mut ends = [(0, 0); BATCH_MAX];
        self.register(link)?;
        let count = self.gather(u64::from(link.geometry().chunk_bytes()), &mut records, &mut ends);
        if count == 0 {
            return Ok((0, 0));
        }
        let posted = link.post(&records[..count])?;
        crash::point("link.chunk");
        let first = link.counters().records - posted as u64;
        let mut ended = 0;
        for (number, (index, end)) in ends[..posted].iter().enumerate() {
            let Some(outgoing) = self.queue.get_mut(*index) else { continue };
            outgoing.sent = Some(*end);
            self.posted_id = self.posted_id.max(outgoing.head.id.0);
            if let Some(stager) = &mut self.stager {
                stager.posted(outgoing.head.id, RecordSequence(first + number as u64));
            }
            if outgoing.is_sent() {
                ended += 1;
                let MessageName { publisher, sequence } = outgoing.head.name;
                tracing::trace!(target: "rgaps::message", %topic, publisher, sequence, "sent");
                crash::point("link.sent");
            }
        }
        Ok((posted, ended))
    }

    /// Registers with the link the memory that records are sent from: staging, or the pools themselves. Registering it again costs nothing.
    fn register(&mut self, link: &mut dyn LinkSender) -> Result<(), PostError> {
        if let Some(stager) = &self.stager {
            return Ok(link.register(&stager.mapping().clone().into())?);
        }
        let mut unsent = self.queue.iter_mut().filter(|outgoing| outgoing.sent.is_none());
        unsent.try_for_each(|outgoing| outgoing.register(link))
    }

    /// Whether a copy is in progress, for which `wait_for_copy` waits.
    pub(crate) fn is_copying(&self) -> bool {
        self.stager.as_ref().is_some_and(Stager::is_copying)
    }

    pub(crate) fn wait_for_copy(&self, timeout: Duration) {
        if let Some(stager) = &self.stager {
            stager.wait(timeout);
        }
    }

    /// Gathers the next records, each with its message's index and the bytes of that message that are posted with it.
    fn gather<'a>(
        &'a self,
        chunk_bytes: u64,
        records: &mut [Record<'a>; BATCH_MAX],
        ends: &mut [(usize, u64); BATCH_MAX],
    ) -> usize {
        let mut count = 0;
        for (index, outgoing) in self.queue.iter().enumerate() {
            let mut sent = outgoing.sent;
            let mut staged = self.stager.as_ref().map(|stager| stager.ready(outgoing.head.id));
            while sent != Some(outgoing.head.total) {
                let at = sent.unwrap_or(0);
                let envelope = if sent.is_none() { outgoing.envelope.bytes() } else { &[] };
                let data = match &mut staged {
                    Some(staged) => staged.next().filter(|(offset, _)| *offset == at).map(|(_, data)| Data::Host(data)),
                    None => {
                        let bytes = (outgoing.head.total - at).min(chunk_bytes.saturating_sub(envelope.len() as u64));
                        outgoing.data(at, bytes)
                    }
                };
                // OB2: later records wait for a chunk that is not ready.
                let (Some(data), true) = (data, count < BATCH_MAX) else { return count };
                records[count] = match sent {
                    None => outgoing.head.first(envelope, data),
                    Some(at) => outgoing.head.part(at, data),
                };
                let end = at + data.len() as u64;
                ends[count] = (index, end);
                sent = Some(end);
                count += 1;
            }
        }
        count
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.disconnected();
    }
}

/// Bytes of a staged chunk, if a record holds `record` bytes. All chunks have one size, although the first shares its record with the envelope.
/// They begin at page boundaries, in the message and in the slots, so that the device copies at full speed.
fn staged_bytes(record: u32) -> u64 {
    let most = u64::from(record).saturating_sub(ENVELOPE_BYTES_MAX as u64).max(1);
    if most < PAGE_BYTES { most } else { most - most % PAGE_BYTES }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use rgaps_control::TopicKey;
    use rgaps_device::allocations::{CountingAllocator, taken_by_this_thread};
    use rgaps_device::host::HostBackend;
    use rgaps_link::{PayloadMemory, Position, Progress, RingGeometry, RingOptions, SenderCounters, Wake};
    use rgaps_shm::{
        Exhaustion, MessageInfo, MessageSpec, PublisherSpec, ReaderPort, SubscriberFile, SubscriberSpec, WriterPort,
    };

    use super::*;
    use crate::device_memory::DeviceMemoryManager;
    use crate::envelope::Gap;
    use crate::topics::Topic;

    #[global_allocator]
    static COUNTING: CountingAllocator = CountingAllocator;

    /// Takes every record and acknowledges every message at once.
    #[derive(Debug)]
    struct Sink {
        geometry: RingGeometry,
        counters: SenderCounters,
        ended: Option<MessageId>,
        /// Registered memory of devices, and how much more is refused.
        registered: Vec<Arc<DmaBuf>>,
        refuses: bool,
        /// The data of each record, as a device's addresses.
        sent: Vec<(u64, usize)>,
    }

    impl LinkSender for Sink {
        fn geometry(&self) -> &RingGeometry {
            &self.geometry
        }

        fn register(&mut self, memory: &PayloadMemory) -> Result<(), LinkError> {
            match memory {
                PayloadMemory::Device(_) if self.refuses => Err(LinkError::Closed { by_peer: false }),
                PayloadMemory::Device(memory) => {
                    self.registered.push(memory.clone());
                    Ok(())
                }
                PayloadMemory::Host(_) => Ok(()),
            }
        }

        fn room_for(&self, _: u32) -> bool {
            true
        }

        fn post(&mut self, records: &[Record<'_>]) -> Result<usize, LinkError> {
            for record in records {
                if let Data::Device { memory, offset, bytes } = record.payload().1 {
                    assert!(self.registered.iter().any(|known| Arc::ptr_eq(known, memory)), "it is not registered");
                    self.sent.push((memory.address() + offset, bytes));
                }
            }
            self.counters.records += records.len() as u64;
            self.ended = records.iter().rfind(|record| record.is_last()).map(Record::message).or(self.ended);
            Ok(records.len())
        }

        fn progress(&mut self) -> Result<Progress, LinkError> {
            let reusable = RecordSequence(self.counters.records);
            Ok(Progress { tail: Position::START, delayed_head: Position::START, reusable })
        }

        fn next_acknowledged(&mut self) -> Option<MessageId> {
            self.ended.take()
        }

        fn unacknowledged(&self) -> usize {
            0
        }

        fn wait(&mut self, _: Duration, _: &[BorrowedFd<'_>]) -> Result<Wake, LinkError> {
            Ok(Wake::default())
        }

        fn counters(&self) -> SenderCounters {
            self.counters
        }

        fn close(&mut self) {}
    }

    #[test]
    fn staged_chunks_begin_on_pages_and_leave_room_for_the_envelope() {
        for (record, bytes) in [((1 << 20) - 64, 1_044_480), (8 << 10, 4096), (5000, 3888), (100, 1)] {
            assert_eq!(staged_bytes(record), bytes);
        }
    }

    /// A publisher with a pool of 1 MiB, and a sender's reader.
    struct Publishing {
        _topic: Topic,
        pool: Arc<dyn PoolMemory>,
        port: WriterPort,
        reader: ReaderPort,
        sequence: u64,
    }

    impl Publishing {
        fn new() -> Self {
            Self::on(Arc::new(HostBackend::new()))
        }

        fn on(backend: Arc<dyn Backend>) -> Self {
            let topic = Topic::create(TopicKey::new(0, "outbox").unwrap(), "rgaps/Bytes").unwrap();
            let slot = topic.slot_table.admit_publisher(&PublisherSpec::default()).unwrap();
            let memory = DeviceMemoryManager::new(backend);
            let pool = memory.create(&topic.pools, slot, 1 << 20).unwrap();
            let mut port = WriterPort::new(topic.segment.clone(), slot, pool.allocation_right().unwrap()).unwrap();
            let spec = SubscriberSpec { remote: true, ..Default::default() };
            let slot = topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
            let pages = topic.slot_table.pages(slot).unwrap();
            port.add_subscriber(pages.clone(), None);
            let reader = ReaderPort::new(topic.segment.clone(), pages, false).unwrap();
            Self { _topic: topic, pool, port, reader, sequence: 0 }
        }

        fn publish(&mut self, bytes: u64) {
            let loan = self.port.loan(bytes, Exhaustion::Refuse).unwrap();
            self.sequence += 1;
            let info = MessageInfo { publisher: 1, sequence: self.sequence, bytes, ..MessageInfo::default() };
            self.port.publish(loan, &MessageSpec { info, meta: &[], history_depth: 0 }).unwrap();
        }

        /// Takes the next message into an outbox.
        fn take(&mut self, outbox: &mut Outbox) {
            let held = self.reader.take().unwrap().unwrap();
            let envelope = Envelope::seal(held.info(), 0, Gap::default(), b"meta");
            outbox.push(held, self.pool.clone(), envelope, 0);
        }
    }

    fn sink(options: RingOptions) -> Sink {
        Sink {
            geometry: RingGeometry::new(options).unwrap(),
            counters: SenderCounters::default(),
            ended: None,
            registered: Vec::new(),
            refuses: false,
            sent: Vec::new(),
        }
    }

    /// A publisher on a GPU whose memory network cards access, in a process with the stand-in.
    fn on_a_gpu() -> Option<Publishing> {
        let settings = [("RGAPS_TEST_STANDIN_GPU_DIRECT", "1")];
        rgaps_testing::again_with(&settings, rgaps_standin_cuda::link_into).then(|| {
            let backend = rgaps_device::cuda::CudaBackend::open(0).unwrap();
            Publishing::on(Arc::new(backend))
        })
    }

    #[test]
    fn messages_of_a_gpu_are_sent_from_its_memory_which_is_registered_once() {
        let Some(mut publishing) = on_a_gpu() else { return };
        let mut link = sink(RingOptions { chunk_bytes: 8 << 10, ..RingOptions::default() });
        let mut outbox = Outbox::new();
        outbox.connected(false, &HashMap::new(), None).unwrap();
        // The others are elsewhere in the pool.
        publishing.publish(5000);
        let _first = publishing.reader.take().unwrap();
        for bytes in [20_000, 0, 100_000, 1] {
            publishing.publish(bytes);
            publishing.take(&mut outbox);
            let start = publishing.pool.device_address(outbox.queue[0].held.offset()).unwrap();
            while !outbox.queue.is_empty() {
                let reusable = link.progress().unwrap().reusable;
                outbox.post(&mut link, reusable, &"a").unwrap();
                outbox.acknowledge(&mut link, &mut SentMessages::default());
            }
            let mut end = start;
            for (address, bytes) in link.sent.drain(..) {
                assert_eq!(address, end);
                end += bytes as u64;
            }
            assert_eq!((end - start, outbox.is_staged()), (bytes, false));
        }
        link.registered.dedup_by(|one, other| Arc::ptr_eq(one, other));
        assert_eq!(link.registered.len(), 1, "the slab, for all messages in it");
        // A new link registers it again, for messages that the last one had registered too.
        publishing.publish(100);
        publishing.take(&mut outbox);
        outbox.post(&mut link, RecordSequence(0), &"a").unwrap();
        outbox.disconnected();
        outbox.connected(true, &HashMap::new(), None).unwrap();
        let mut link = sink(RingOptions { chunk_bytes: 8 << 10, ..RingOptions::default() });
        assert_eq!(outbox.post(&mut link, RecordSequence(0), &"a").unwrap(), (1, 1));
        assert_eq!((link.registered.len(), link.sent.len()), (1, 1));
    }

    #[test]
    fn a_card_that_registers_no_gpu_memory_ends_the_link_and_the_next_one_stages() {
        let Some(mut publishing) = on_a_gpu() else { return };
        let mut link = sink(RingOptions { chunk_bytes: 8 << 10, ..RingOptions::default() });
        link.refuses = true;
        let mut outbox = Outbox::new();
        outbox.connected(false, &HashMap::new(), None).unwrap();
        publishing.publish(20_000);
        publishing.take(&mut outbox);
        let refused = outbox.post(&mut link, RecordSequence(0), &"a").unwrap_err();
        assert!(matches!(refused, PostError::DeviceMemory(_)) && link.counters.records == 0, "{refused:?}");
        outbox.disconnected();
        let backend: Arc<dyn Backend> = Arc::new(rgaps_device::cuda::CudaBackend::open(0).unwrap());
        outbox.connected(true, &HashMap::new(), Some((&backend, 8 << 10))).unwrap();
        while !outbox.queue.is_empty() {
            let reusable = link.progress().unwrap().reusable;
            outbox.post(&mut link, reusable, &"a").unwrap();
            outbox.wait_for_copy(Duration::from_secs(10));
            outbox.acknowledge(&mut link, &mut SentMessages::default());
        }
        assert!(link.sent.is_empty() && link.counters.records > 0);
    }

    #[test]
    fn sending_a_message_allocates_nothing() {
        let mut publishing = Publishing::new();
        let backend: Arc<dyn Backend> = Arc::new(HostBackend::new());
        for staged in [None, Some((&backend, 8 << 10))] {
            let mut link = sink(RingOptions { chunk_bytes: 8 << 10, ..RingOptions::default() });
            let mut outbox = Outbox::new();
            outbox.connected(false, &HashMap::new(), staged).unwrap();
            let mut taken = Vec::with_capacity(8);
            for _ in 0..8 {
                publishing.publish(100_000);
                let before = taken_by_this_thread();
                publishing.take(&mut outbox);
                while !outbox.queue.is_empty() {
                    let reusable = link.progress().unwrap().reusable;
                    outbox.post(&mut link, reusable, &"a").unwrap();
                    outbox.acknowledge(&mut link, &mut SentMessages::default());
                }
                taken.push(taken_by_this_thread() - before);
            }
            // Staging makes its two lanes with the first two messages.
            assert_eq!(taken[2..], [0; 6], "staged: {}", staged.is_some());
            assert!(staged.is_some() || taken[..2] == [0; 2]);
        }
    }

    #[test]
    fn messages_that_are_not_acknowledged_hold_half_of_a_pool_and_one_more_at_most() {
        let (mut publishing, mut outbox) = (Publishing::new(), Outbox::new());
        outbox.connected(true, &HashMap::new(), None).unwrap();
        let mut has_room = Vec::new();
        for _ in 0..3 {
            has_room.push(outbox.has_room());
            publishing.publish(300_000);
            publishing.take(&mut outbox);
        }
        assert_eq!(has_room, [true, true, false], "600,000 of 1,048,576 B are held");
    }

    /// Two publishers. The newest message is the second one's, and history of the first one, which is older, was taken again.
    #[test]
    fn history_that_was_taken_again_counts_against_half_of_its_pool_too() {
        let (mut first, mut second, mut outbox) = (Publishing::new(), Publishing::new(), Outbox::new());
        // Positions 0 to 5, and 6.
        (0..6).for_each(|_| first.publish(100_000));
        for _ in 0..6 {
            second.publish(1);
            drop(second.reader.take().unwrap());
        }
        second.publish(1);
        second.take(&mut outbox);
        // As `take_history_again` does: up to half of the pool, and one message more.
        (0..6).for_each(|_| first.take(&mut outbox));
        outbox.connected(true, &HashMap::new(), None).unwrap();
        let before = outbox.bytes_of(&first.pool);
        let mut taken = 0;
        while outbox.has_room() {
            first.publish(400_000);
            first.take(&mut outbox);
            taken += 1;
        }
        let (held, pool) = (outbox.bytes_of(&first.pool), first.pool.bytes());
        assert_eq!(taken, 0, "{before} of {pool} B were held, now {held}");
    }

    #[test]
    fn after_messages_were_given_up_one_is_sent_at_a_time_until_it_is_acknowledged() {
        let (mut publishing, mut outbox) = (Publishing::new(), Outbox::new());
        let (mut link, mut sent) = (sink(RingOptions::default()), SentMessages::default());
        outbox.connected(true, &HashMap::new(), None).unwrap();
        let mut add = |outbox: &mut Outbox| {
            publishing.publish(100);
            publishing.take(outbox);
        };
        (0..2).for_each(|_| add(&mut outbox));
        outbox.give_up(&mut sent);
        outbox.clear();
        assert!(outbox.is_on_probation() && outbox.has_room());
        add(&mut outbox);
        assert!(!outbox.has_room());
        outbox.post(&mut link, RecordSequence(0), &"a").unwrap();
        assert!(outbox.acknowledge(&mut link, &mut sent));
        assert!(!outbox.is_on_probation());
        add(&mut outbox);
        assert!(outbox.has_room(), "two may be sent");
    }

    #[test]
    fn a_gap_notice_is_posted_before_the_first_message() {
        let (mut publishing, mut outbox) = (Publishing::new(), Outbox::new());
        outbox.connected(true, &HashMap::new(), None).unwrap();
        publishing.publish(1);
        publishing.take(&mut outbox);
        let notice = Envelope::seal(&MessageInfo::default(), 0, Gap { previous: 0, is_notice: true }, &[]);
        let skipped = MessageName { publisher: 2, sequence: 5 };
        let mut link = sink(RingOptions::default());
        assert!(outbox.post_gap_notice(&mut link, &notice, skipped).unwrap(), "it names what was published before");
    }
}
