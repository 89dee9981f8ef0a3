//! A sender: one topic to one host. It takes messages as a subscriber of the segment, sends them chunk by chunk as credit allows, and
//! lets go of each when the other host has it.
//!
//! ```text
//!   segment ──take──▶ outbox [acknowledged? … | sending: chunk k of m | unsent …] ──post──▶ link
//!                       ▲ let go when the delayed head has passed its last record
//! ```
//!
//! Path 1      On a device whose memory links cannot read, each chunk is copied to staging first; on the host backend it is sent from
//!             the pool itself (`staging = "always"` takes the other way, for tests).
//! Deaths      Of the other host: what is not acknowledged stays in the outbox and is sent again after the next hand-shake, less what
//!             the other host says it has. Of this manager: the seat is given up by its successor.
//! Invariants  S1 a message is let go only when acknowledged, or when the sender ends. S2 messages are sent in the order of the topic.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_control::network::RingAsker;
use rgaps_control::wire::{RingOffer, RingRequest, WIRE_VERSION};
use rgaps_control::{Config, HostId, TopicId, TopicKey};
use rgaps_device::backend::{BufferPart, PoolPart};
use rgaps_device::{Backend, BufferSpec, HostBuffer, PayloadAccess, PoolMemory, Stream};
use rgaps_link::record::MessageHead;
use rgaps_link::tcp::{LinkToken, TcpOptions, TcpSender};
use rgaps_link::{FlowControl, LinkSender, MessageId, Origin, Record, RingGeometry, RingOptions, Watermark};
use rgaps_os::clock;
use rgaps_shm::info::{Route, WhyNot};
use rgaps_shm::janitor::Seat;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::{Held, Janitor, ReaderPort, crash};

use crate::device_memory::Pools;
use crate::envelope::Envelope;
use crate::event::{Event, Mailbox};
use crate::publish::SenderControl;

/// Records that are posted at once.
const BATCH_MAX: usize = 16;
/// Messages that are taken but not acknowledged, at most; a segment has no more than 4096.
const OUTBOX_MAX: usize = 64;
/// Between attempts to reach the other host: from the first to the last.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How often a waiting sender looks around.
const TICK: Duration = Duration::from_millis(500);

/// What a sender is made of.
#[derive(Debug)]
pub(crate) struct SenderSetup {
    pub(crate) config: Arc<Config>,
    pub(crate) own_host: HostId,
    pub(crate) own_name: String,
    pub(crate) host: HostId,
    pub(crate) host_name: String,
    pub(crate) topic: TopicId,
    pub(crate) key: TopicKey,
    pub(crate) asker: RingAsker,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) pools: Pools,
    pub(crate) janitor: Janitor,
    pub(crate) seat: Seat,
    pub(crate) keep_all: bool,
    pub(crate) flow_control: bool,
    pub(crate) history_depth: u32,
    pub(crate) mailbox: Mailbox,
    pub(crate) control: Arc<SenderControl>,
}

/// A message on its way.
struct Outgoing {
    held: Held,
    pool: Arc<dyn PoolMemory>,
    envelope: Envelope,
    head: MessageHead,
    /// Bytes posted; `None` before the first record.
    sent: Option<u64>,
}

impl Outgoing {
    fn is_sent(&self) -> bool {
        self.sent == Some(self.head.total)
    }
}

pub(crate) struct Sender {
    setup: SenderSetup,
    reader: ReaderPort,
    outbox: VecDeque<Outgoing>,
    next_id: u64,
    staging: Option<Staging>,
    demoted: bool,
    messages: u64,
}

/// Staging: a host buffer in which the chunks of a batch lie while they are posted.
struct Staging {
    buffer: HostBuffer,
    stream: Stream,
}

/// Why a connection has ended.
type Reason = String;

impl Sender {
    pub(crate) fn new(setup: SenderSetup, reader: ReaderPort) -> Self {
        Self {
            setup,
            reader,
            outbox: VecDeque::with_capacity(OUTBOX_MAX),
            next_id: 1,
            staging: None,
            demoted: false,
            messages: 0,
        }
    }

    /// Connects, sends, and connects again, until told to stop.
    pub(crate) fn run(mut self) {
        let span = tracing::info_span!("path1+2", topic = %self.setup.key, to = %self.setup.host_name);
        let _entered = span.enter();
        let mut retry = RETRY_MIN;
        let mut since = Instant::now();
        while !self.setup.control.should_stop() {
            match self.connect() {
                Ok(link) => {
                    self.restore_keep_all();
                    retry = RETRY_MIN;
                    let why = self.stream(link);
                    since = Instant::now();
                    if !self.setup.control.should_stop() {
                        tracing::warn!(why, "the link has ended; connecting again");
                    }
                    self.status(&format!("down: {why}"));
                }
                Err(why) => {
                    tracing::debug!(why, "no link yet");
                    self.status(&format!("not connected: {why}"));
                }
            }
            self.demote_if_stalled(since);
            let _ = rgaps_os::poll::readable(self.setup.control.event(), retry);
            let _ = self.setup.control.event().drain();
            retry = (retry * 2).min(RETRY_MAX);
        }
        self.outbox.clear();
        let (topic, host) = (self.setup.topic, self.setup.host);
        self.setup.mailbox.post(Event::SenderEnded { topic, host });
    }

    fn status(&self, state: &str) {
        let text = format!("to {}: {state}, {} messages sent", self.setup.host_name, self.messages);
        self.setup.control.set_status(text);
    }

    /// Shakes hands and connects. What the other host has already leaves the outbox.
    fn connect(&mut self) -> Result<TcpSender, Reason> {
        let timeout = Duration::from_millis(self.setup.config.peer_timeout_ms);
        let (endpoint, message_bytes_max) = self.setup.control.endpoint();
        let request = RingRequest {
            version: WIRE_VERSION,
            host: self.setup.own_host,
            host_name: self.setup.own_name.clone(),
            endpoint,
            message_bytes_max,
            flow_control: self.setup.flow_control,
        };
        let offer = self.setup.asker.request(self.setup.host, &request, timeout).map_err(|error| error.to_string())?;
        let geometry = geometry(&offer, self.setup.flow_control)?;
        let link = dial(&offer, geometry, timeout)?;
        let has: HashMap<u64, u64> = offer.resume.iter().copied().collect();
        self.outbox.retain(|outgoing| {
            has.get(&outgoing.head.origin.publisher).is_none_or(|s| outgoing.head.origin.sequence > *s)
        });
        for outgoing in &mut self.outbox {
            outgoing.sent = None;
            outgoing.head.id = MessageId(self.next_id);
            self.next_id += 1;
        }
        self.prepare_staging(&geometry)?;
        Ok(link)
    }

    fn prepare_staging(&mut self, geometry: &RingGeometry) -> Result<(), Reason> {
        let direct =
            self.setup.backend.payload_access() == PayloadAccess::Direct && self.setup.config.staging != "always";
        if direct || self.staging.is_some() {
            return Ok(());
        }
        let bytes = u64::from(geometry.chunk_bytes()) * BATCH_MAX as u64;
        let spec = BufferSpec { name: "rgaps-staging".to_owned(), bytes };
        let buffer = self.setup.backend.host_buffer(&spec).map_err(|error| error.to_string())?;
        let stream = self.setup.backend.stream().map_err(|error| error.to_string())?;
        self.staging = Some(Staging { buffer, stream });
        Ok(())
    }

    /// Sends until the link ends or the sender should.
    fn stream(&mut self, mut link: TcpSender) -> Reason {
        self.status("connected over tcp");
        tracing::info!("connected over tcp");
        let mut progressed = Instant::now();
        loop {
            if self.setup.control.should_stop() {
                link.close();
                return "told to stop".to_owned();
            }
            match self.turn(&mut link) {
                Ok(true) => progressed = Instant::now(),
                Ok(false) => {
                    let waits_for_credit = self.outbox.iter().any(|outgoing| !outgoing.is_sent());
                    if let Err(error) = link.wait(TICK, &[self.setup.control.event().as_fd()]) {
                        return error.to_string();
                    }
                    let patience = Duration::from_millis(
                        self.setup.config.peer_timeout_ms.max(self.setup.config.keep_all_timeout_ms) * 2,
                    );
                    if waits_for_credit && progressed.elapsed() > patience {
                        return format!(
                            "the other host has returned no credit for {} ms",
                            progressed.elapsed().as_millis()
                        );
                    }
                }
                Err(error) => return error.to_string(),
            }
            if self.outbox.iter().all(Outgoing::is_sent) {
                progressed = Instant::now();
            }
            self.demote_if_stalled(progressed);
        }
    }

    /// One round: acknowledgements in, new messages taken, as much posted as there is room for. False if nothing moved.
    fn turn(&mut self, link: &mut TcpSender) -> Result<bool, rgaps_link::LinkError> {
        // Drained before the look at the segment: what is published after it signals again.
        let _ = self.setup.control.event().drain();
        link.progress()?;
        let mut moved = false;
        while let Some(id) = link.next_acknowledged() {
            let before = self.outbox.len();
            self.outbox.retain(|outgoing| outgoing.head.id > id || !outgoing.is_sent());
            moved |= self.outbox.len() != before;
        }
        moved |= self.take();
        moved |= self.post(link)?;
        if !self.setup.flow_control {
            // Nobody acknowledges: what is posted is out of our hands.
            self.outbox.retain(|outgoing| !outgoing.is_sent());
        }
        Ok(moved)
    }

    fn take(&mut self) -> bool {
        let mut took = false;
        while self.outbox.len() < OUTBOX_MAX {
            let Some(held) = self.reader.take() else { break };
            took = true;
            // What came from another host is not ours to pass on.
            if held.info().source_host != self.setup.own_host.0 {
                continue;
            }
            match self.outgoing(held) {
                Some(outgoing) => self.outbox.push_back(outgoing),
                None => tracing::error!("a message names bytes outside its pool; it is dropped"),
            }
        }
        took
    }

    fn outgoing(&mut self, held: Held) -> Option<Outgoing> {
        let seat = Seat { slot: held.pool().slot, generation: held.pool().generation };
        let pool = self.setup.pools.memory(seat)?;
        let mut info = *held.info();
        let end = held.offset().checked_add(info.bytes)?;
        if end > pool.bytes() {
            return None;
        }
        let mut meta = [0; META_BYTES_MAX];
        let meta_bytes = held.copy_meta(&mut meta);
        let now = clock::realtime_ns();
        info.stamps.staged = now;
        info.stamps.sent = now;
        info.route = Route::Tcp;
        info.why_not = if self.setup.config.transport == "tcp" { WhyNot::Configured } else { WhyNot::NoRdma };
        info.copies.staged = u8::from(self.staging.is_some());
        let envelope = Envelope::seal(&info, self.setup.history_depth, &meta[..meta_bytes]);
        let origin = Origin { publisher: info.publisher, sequence: info.sequence };
        let head = MessageHead { id: MessageId(self.next_id), origin, total: info.bytes };
        self.next_id += 1;
        crash::point("link.begin");
        Some(Outgoing { held, pool, envelope, head, sent: None })
    }

    /// Posts what there is room for, as one batch.
    fn post(&mut self, link: &mut TcpSender) -> Result<bool, rgaps_link::LinkError> {
        let chunk = u64::from(link.geometry().chunk_bytes());
        let mut records: Vec<Record<'_>> = Vec::with_capacity(BATCH_MAX);
        let mut ends: Vec<(usize, u64)> = Vec::with_capacity(BATCH_MAX);
        for (index, outgoing) in self.outbox.iter().enumerate() {
            let mut sent = outgoing.sent;
            while records.len() < BATCH_MAX && sent != Some(outgoing.head.total) {
                let envelope = if sent.is_none() { outgoing.envelope.bytes() } else { &[] };
                let at = sent.unwrap_or(0);
                let bytes = (outgoing.head.total - at).min(chunk - envelope.len() as u64);
                let Some(data) =
                    payload(self.staging.as_ref(), &*self.setup.backend, outgoing, at, bytes, records.len(), chunk)
                else {
                    break;
                };
                records.push(match sent {
                    None => outgoing.head.first(envelope, data),
                    Some(at) => outgoing.head.part(at, data),
                });
                sent = Some(at + bytes);
                ends.push((index, at + bytes));
            }
        }
        if records.is_empty() {
            return Ok(false);
        }
        let posted = link.post(&records)?;
        drop(records);
        crash::point("link.chunk");
        for (index, end) in &ends[..posted] {
            let Some(outgoing) = self.outbox.get_mut(*index) else { continue };
            outgoing.sent = Some(*end);
            if outgoing.is_sent() {
                self.messages += 1;
                crash::point("link.sent");
            }
        }
        if posted > 0 {
            self.status("connected over tcp");
        }
        Ok(posted > 0)
    }

    /// A keep-all seat that nobody empties would stop the publishers of this host for good.
    fn demote_if_stalled(&mut self, since: Instant) {
        let patience = Duration::from_millis(self.setup.config.keep_all_timeout_ms);
        if !self.setup.keep_all || self.demoted || since.elapsed() < patience {
            return;
        }
        self.demoted = self.setup.janitor.demote(self.setup.seat.slot, self.setup.history_depth.max(1));
        let text = format!(
            "{}: host {} has taken nothing for {} ms; until it does, it gets the last {} messages only",
            self.setup.key,
            self.setup.host_name,
            since.elapsed().as_millis(),
            self.setup.history_depth.max(1),
        );
        self.setup.mailbox.post(Event::Warning { topic: self.setup.topic, text });
    }

    fn restore_keep_all(&mut self) {
        if self.demoted {
            self.setup.janitor.restore_keep_all(self.setup.seat.slot);
            self.demoted = false;
        }
    }
}

/// The bytes of a chunk, where the link can read them.
fn payload<'a>(
    staging: Option<&'a Staging>,
    backend: &dyn Backend,
    outgoing: &'a Outgoing,
    at: u64,
    bytes: u64,
    place: usize,
    chunk: u64,
) -> Option<&'a [u8]> {
    let offset = outgoing.held.offset() + at;
    let Some(staging) = staging else { return outgoing.pool.host_bytes(offset, bytes).ok() };
    let slot = place as u64 * chunk;
    let from = PoolPart { pool: outgoing.pool.as_ref(), offset };
    let to = BufferPart { buffer: &staging.buffer, offset: slot };
    let copied = backend.copy_to_host(&staging.stream, from, to, bytes).ok()?;
    copied.is_complete().then(|| staging.buffer.mapping().shared_bytes(slot, bytes).ok())?
}

fn geometry(offer: &RingOffer, flow_control: bool) -> Result<RingGeometry, Reason> {
    let watermark = Watermark::ALL
        .into_iter()
        .find(|watermark| watermark.bytes(offer.ring_bytes) == offer.watermark_bytes)
        .ok_or_else(|| format!("the other host offers a watermark of {} B", offer.watermark_bytes))?;
    let chunk_bytes = u32::try_from(offer.chunk_bytes).map_err(|_| format!("a chunk of {} B", offer.chunk_bytes))?;
    let flow_control = if flow_control { FlowControl::On } else { FlowControl::Off };
    let options =
        RingOptions { ring_bytes: offer.ring_bytes, chunk_bytes, watermark, flow_control, ..RingOptions::default() };
    RingGeometry::new(options).map_err(|error| error.to_string())
}

fn dial(offer: &RingOffer, geometry: RingGeometry, timeout: Duration) -> Result<TcpSender, Reason> {
    let mut why = "the other host offers no address".to_owned();
    for address in offer.addresses.iter().take(16) {
        let Ok(address) = address.parse::<SocketAddr>() else { continue };
        let hello_timeout = (timeout / 4).max(Duration::from_millis(200));
        let options = TcpOptions { hello_timeout, dead_peer_timeout: timeout, ..TcpOptions::default() };
        match TcpSender::connect(address, LinkToken(offer.token.0), geometry, options) {
            Ok(link) => return Ok(link),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}
