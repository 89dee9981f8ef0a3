//! A sender sends one topic to one host. It takes messages as a subscriber of the segment, sends them chunk by chunk as credit allows, and releases
//! each when the other host has it. `outbox` keeps unacknowledged messages and cuts them into records; `without_pool` keeps those that this manager cannot
//! read yet.
//!
//! Path 1      If links cannot read the device's memory, each chunk is copied to staging first. A network card that can (`device_access`) and the host
//!             backend send from the pool itself
//!             (`staging = "always"` stages there too, for tests).
//! Deaths      Other host: unacknowledged messages stay in the outbox. After the next hand-shake the sender resends those that the other host says
//!             it lacks. If the other host acknowledges none for long, with a link or without, the sender gives them up (`stalled`). It waits for
//!             that host during the grace period of `publish`, and ends at once if the host answers that it does not want the topic. This
//!             manager: its successor releases the sender's slot.

mod ending;
mod patience;
mod stalled;
mod transport;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps_control::network::RingError;
use rgaps_control::reach::{Reach, Seen};
use rgaps_control::wire::{PUBLISHED_MAX, RingOffer, RingRefusal, RingRequest, WIRE_VERSION};
use rgaps_control::{Config, HostId, TopicId, TopicKey};
use rgaps_device::{Backend, PayloadAccess};
use rgaps_link::rdma::{RingEnd, SenderEnd};
use rgaps_link::tcp::{self, TcpSender};
use rgaps_link::{LinkError, LinkSender, MessageName, Position, Progress, RecordSequence, RingGeometry};
use rgaps_os::clock;
use rgaps_shm::info::RouteReason;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::manager::last_received::last_received;
use rgaps_shm::reader::port::TakeRefused;
use rgaps_shm::words::queue::Position as QueuePosition;
use rgaps_shm::{Held, PublisherSlot, ReaderPort, SlotTable, SubscriberSlot, crash};

use crate::addresses;
use crate::device_memory::Pools;
use crate::envelope::{Envelope, Gap, Source};
use crate::event::{Event, Mailbox};
use crate::offered_ring::{Ask, dial, geometry, link_chunk_bytes, over_tcp};
use crate::outbound::SenderControl;
use crate::outbox::{Outbox, PostError};
use crate::rdma_devices::{self, RdmaDevices};
use crate::sender::ending::Ending;
use crate::sender::transport::LinkTransport;
use crate::sent::SentMessages;
use crate::skipped::{GapNotices, SendContext};
use crate::without_pool::WithoutPool;

/// Pause between attempts to reach the other host: the first, and the longest.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Links over rdma that may end, in a row, without an acknowledged message before the sender uses tcp.
const FRUITLESS_MAX: u32 = 2;
const RDMA_FAILED: &str = "links over rdma ended before a message was acknowledged";
/// How long a sender waits for a copy to staging before it checks the link again.
const COPY_TICK: Duration = Duration::from_millis(20);

/// What a sender needs to run.
#[derive(Debug)]
pub(crate) struct SenderSetup {
    pub(crate) config: Arc<Config>,
    pub(crate) own_host: HostId,
    pub(crate) own_name: String,
    pub(crate) host: HostId,
    pub(crate) host_name: String,
    pub(crate) topic: TopicId,
    pub(crate) key: TopicKey,
    pub(crate) asker: Arc<dyn Ask>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) pools: Pools,
    pub(crate) slot_table: SlotTable,
    pub(crate) slot: SubscriberSlot,
    pub(crate) flow_control: bool,
    /// The depth of a host that was demoted to keep-last.
    pub(crate) history_depth: u32,
    pub(crate) mailbox: Mailbox,
    pub(crate) rdma: Arc<RdmaDevices>,
    pub(crate) control: Arc<SenderControl>,
}

pub(crate) struct Sender {
    setup: SenderSetup,
    reader: ReaderPort,
    outbox: Outbox,
    without_pool: WithoutPool,
    sent: SentMessages,
    gap_notices: GapNotices,
    /// The queue's end when the slot was made keep-last, though its host requests keep-all.
    demoted_at: Option<QueuePosition>,
    /// When the other host last had a message, or credited `chunk_bytes`, or had all that was to be sent over a link. Without flow control, when a record
    /// was last sent.
    progressed: Instant,
    /// Since when it has held the outbox's oldest message, if there is one.
    holds_since: Instant,
    /// The link's delayed head when the other host last made progress, and now.
    progressed_at: Position,
    delayed_head: Position,
    /// The end of the last record on the link.
    tail: Position,
    transport: LinkTransport,
    /// Links over rdma, in a row, without an acknowledged message.
    fruitless: u32,
}

impl Sender {
    pub(crate) fn new(setup: SenderSetup, reader: ReaderPort) -> Self {
        let transport = LinkTransport::tcp(RouteReason::Best, String::new());
        let outbox = Outbox::new();
        let mut sender = Self {
            setup,
            reader,
            outbox,
            without_pool: WithoutPool::default(),
            sent: SentMessages::default(),
            gap_notices: GapNotices::default(),
            demoted_at: None,
            progressed: Instant::now(),
            holds_since: Instant::now(),
            progressed_at: Position::default(),
            delayed_head: Position::default(),
            tail: Position::default(),
            transport,
            fruitless: 0,
        };
        sender.count_anew();
        sender
    }

    /// Connects, sends, and connects again, until told to stop.
    pub(crate) fn run(mut self) {
        let span = tracing::info_span!("send", topic = %self.setup.key, to = %self.setup.host_name);
        let _entered = span.enter();
        let mut retry = RETRY_MIN;
        let mut since = Instant::now();
        let (mut was_closed, mut has_warned) = (false, false);
        while !self.setup.control.should_stop() {
            match self.connect() {
                Ok(mut link) => {
                    (retry, has_warned) = (RETRY_MIN, false);
                    self.setup.control.set_connected(true);
                    self.setup.slot_table.set_linked(self.setup.slot, true);
                    let ending = self.stream(link.as_mut());
                    self.setup.control.set_connected(false);
                    self.setup.slot_table.set_linked(self.setup.slot, false);
                    let corrupt = link.counters().corrupt;
                    drop(link);
                    self.outbox.disconnected();
                    since = Instant::now();
                    was_closed = matches!(ending, Ending::Closed(_));
                    match &ending {
                        _ if self.setup.control.should_stop() => {}
                        Ending::Closed(_) => tracing::info!("the other host has closed the link"),
                        ending => tracing::warn!(why = ending.why(), "the link has ended; connecting again"),
                    }
                    self.status(&format!("down: {}", ending.why()));
                    self.setup.control.count_corrupt(corrupt);
                }
                Err(ending) => {
                    ending.log_failed_connect(std::mem::take(&mut was_closed), &mut has_warned);
                    self.status(&format!("not connected: {}", ending.why()));
                    if matches!(ending, Ending::Unwanted(_)) && self.setup.control.is_unwanted() {
                        break;
                    }
                }
            }
            self.demote_if_stalled(since);
            self.give_up_outbox_if_stalled();
            self.setup.control.pause(retry);
            retry = (retry * 2).min(RETRY_MAX);
        }
        drop(std::mem::replace(&mut self.outbox, Outbox::new()));
        self.without_pool = WithoutPool::default();
        let (topic, host) = (self.setup.topic, self.setup.host);
        self.setup.mailbox.post(Event::SenderEnded { topic, host });
    }

    fn status(&self, state: &str) {
        self.setup.control.set_status(format!("to {}: {state}", self.setup.host_name));
    }

    /// Does the hand-shake and connects. Messages that the other host already has leave the outbox.
    fn connect(&mut self) -> Result<Box<dyn LinkSender>, Ending> {
        let timeout = Duration::from_millis(self.setup.config.peer_timeout_ms);
        let (endpoint, message_bytes_max) = self.setup.control.endpoint();
        let (ends, no_rdma) = match self.rdma_ends() {
            Ok(ends) => (ends, String::new()),
            Err(why) if self.setup.rdma.is_required() => {
                return Err(Ending::Misconfigured(format!("transport = \"rdma\" is configured: {why}")));
            }
            Err(why) => (Vec::new(), why),
        };
        let request = RingRequest {
            version: WIRE_VERSION,
            host: self.setup.own_host,
            host_name: self.setup.own_name.clone(),
            endpoint,
            message_bytes_max,
            flow_control: self.setup.flow_control,
            integrity: self.setup.config.integrity(),
            rdma: ends.iter().map(|end| rdma_devices::to_wire(&end.address(), end.credit())).collect(),
            no_rdma,
            published: self.published(),
        };
        let (mut offer, seen) =
            self.setup.asker.ask(self.setup.host, &request, timeout).map_err(|error| match error {
                RingError::Refused(RingRefusal::NoSubscribers(_) | RingRefusal::Mismatch(_)) => {
                    Ending::Unwanted(error.to_string())
                }
                error => error.into(),
            })?;
        if offer.integrity.stricter(request.integrity) != offer.integrity {
            let why = "the other host offers no checksums, which this one wants (integrity = \"crc32c\")";
            return Err(Ending::Broken(why.to_owned()));
        }
        self.keep_permitted(&mut offer, seen)?;
        if offer.rdma.is_none() && self.setup.rdma.is_required() {
            let why = format!("transport = \"rdma\" is configured, and the other host offers tcp: {}", offer.no_rdma);
            return Err(Ending::Misconfigured(why));
        }
        let geometry = geometry(&offer, self.setup.flow_control)?;
        let link = self.connect_link(&offer, ends, geometry, timeout)?;
        // The other host cannot have what was not published. Of publishers that have left nothing is known here.
        let published: HashMap<u64, u64> = request.published.iter().copied().collect();
        let at_most = |publisher: u64| published.get(&publisher).copied().unwrap_or(u64::MAX);
        let has: HashMap<u64, u64> =
            offer.resume.iter().map(|(publisher, last)| (*publisher, (*last).min(at_most(*publisher)))).collect();
        self.sent.resume(&has);
        self.gap_notices = GapNotices::default();
        if !offer.remembers {
            self.count_anew();
        }
        let nothing = HashMap::new();
        let before = self.outbox.count();
        self.outbox.resume(&has);
        if self.outbox.count() < before {
            self.holds_since = Instant::now();
        }
        self.outbox.origins().for_each(|(publisher, _)| self.sent.mark_known(publisher));
        self.take_history_again(if offer.keeps_history { &has } else { &nothing });
        // Staging is this host's memory: the other host may shorten the chunks but never enlarge them.
        let chunk_bytes = geometry.chunk_bytes().min(link_chunk_bytes(&self.setup.config));
        let is_direct = self.setup.backend.payload_access() == PayloadAccess::Direct && !self.stages_all();
        let staged = (!is_direct && !self.transport.reads_device()).then_some((&self.setup.backend, chunk_bytes));
        self.outbox.connected(offer.remembers, &has, staged)?;
        Ok(link)
    }

    fn stages_all(&self) -> bool {
        self.setup.config.staging == "always"
    }

    /// The newest sequence of each publisher of this host. The other host recognises forged sequences by it.
    fn published(&self) -> Vec<(u64, u64)> {
        let segment = self.setup.slot_table.segment();
        let active = self.setup.slot_table.active_publishers().filter_map(|slot| segment.publisher(slot.index));
        let active = active.filter(|words| words.remote.load(Ordering::Relaxed) == 0);
        let mut published: HashMap<u64, u64> =
            active.map(|words| (words.publisher.load(Ordering::Relaxed), 0)).take(PUBLISHED_MAX).collect();
        let told = last_received(segment, self.setup.own_host.0);
        let told = told.into_iter().map(|(publisher, last)| (publisher, last.sequence));
        for (publisher, sequence) in told.chain(self.outbox.origins()) {
            if let Some(known) = published.get_mut(&publisher) {
                *known = sequence.max(*known);
            } else if published.len() < PUBLISHED_MAX {
                published.insert(publisher, sequence);
            }
        }
        published.into_iter().collect()
    }

    /// Removes the addresses of an offer that this host may not connect to.
    fn keep_permitted(&self, offer: &mut RingOffer, seen: Seen) -> Result<(), Ending> {
        let allowed = self.setup.config.data_networks.iter().filter_map(|network| network.parse().ok()).collect();
        let reach = Reach { seen, own: addresses::own(), direct: addresses::direct(), allowed };
        let offered = offer.addresses.clone();
        offer.addresses.retain(|address| address.parse().is_ok_and(|address| reach.permits(address)));
        if !offer.addresses.is_empty() {
            return Ok(());
        }
        let at: Vec<String> = reach.seen.at.iter().map(ToString::to_string).collect();
        let at = if at.is_empty() { "no address".to_owned() } else { at.join(", ") };
        Err(Ending::Broken(format!(
            "the other host offers {} and is seen at {at}; to connect to these addresses, list their network in data_networks",
            offered.join(", ")
        )))
    }

    /// Resends the history that the other host does not keep, although it may have received it before: its manager has a new port, or has recreated
    /// the topic.
    fn take_history_again(&mut self, kept: &HashMap<u64, u64>) {
        let own_host = self.setup.own_host.0;
        let again = self.reader.take_history_again(|info| {
            info.source_host == own_host && kept.get(&info.publisher).is_none_or(|newest| info.sequence > *newest)
        });
        // The newest ones, and of a pool no more than `Outbox::has_room` allows: these hold memory until the other host has them.
        let (mut bytes, mut kept) = (HashMap::new(), Vec::new());
        for held in again.into_iter().rev() {
            if let Some(pool) = self.setup.pools.memory(held.pool()) {
                let of_pool = bytes.entry(held.pool()).or_insert_with(|| self.outbox.bytes_of(&pool));
                if *of_pool >= pool.bytes() / 2 {
                    continue;
                }
                *of_pool += held.info().bytes;
            }
            kept.push(held);
        }
        for held in kept.into_iter().rev() {
            let source = self.sent.source_in_history(held.info());
            let Some(held) = self.pack(held, source) else { continue };
            match lacks_pool(&self.setup, held.pool()) {
                true => self.without_pool.keep(held, source),
                // The pool may have been handed back in between.
                false => drop(self.pack(held, source)),
            }
        }
    }

    /// Owes the other host only what is published from now on: it remembers nothing of this host.
    fn count_anew(&mut self) {
        let segment = self.setup.slot_table.segment();
        let from = segment.queue().end();
        self.sent.begin(from, last_received(segment, self.setup.own_host.0));
    }

    /// Ends of queue pairs for a request. None if the last rdma links were fruitless.
    fn rdma_ends(&mut self) -> Result<Vec<SenderEnd>, String> {
        if self.fruitless >= FRUITLESS_MAX && !self.setup.rdma.is_required() {
            // The connection after this one tries rdma again.
            self.fruitless = 0;
            return Err(RDMA_FAILED.to_owned());
        }
        self.setup.rdma.sender_ends(self.setup.host, self.setup.flow_control)
    }

    /// Connects to the offered ring, over the offered transport.
    fn connect_link(
        &mut self,
        offer: &RingOffer,
        mut ends: Vec<SenderEnd>,
        geometry: RingGeometry,
        timeout: Duration,
    ) -> Result<Box<dyn LinkSender>, String> {
        let patience = self.patience();
        let Some(ring) = &offer.rdma else {
            let link = dial(offer, timeout, patience, |address, token, options| {
                TcpSender::connect(address, token, geometry, options)
            })?;
            let route_reason = match self.setup.config.transport.as_str() {
                "tcp" => RouteReason::Configured,
                _ if !self.setup.flow_control => RouteReason::NoFlowControl,
                _ if offer.no_rdma.ends_with(RDMA_FAILED) => RouteReason::RdmaFailed,
                _ => RouteReason::NoRdma,
            };
            let text = over_tcp(&offer.no_rdma, offer.integrity);
            self.transport = LinkTransport::tcp(route_reason, text);
            return Ok(Box::new(link));
        };
        let to = usize::try_from(ring.to).unwrap_or(usize::MAX);
        if to >= ends.len() {
            return Err(format!("the other host has connected to end {to}, but there are only {}", ends.len()));
        }
        let end = ends.swap_remove(to);
        drop(ends);
        let card = end.device().to_owned();
        self.fruitless += 1;
        let liveness =
            dial(offer, timeout, patience, |address, token, options| tcp::connect(address, token, geometry, &options))?;
        let (address, memory) = rdma_devices::from_wire(&ring.end);
        let link = end
            .connect(
                &RingEnd { address, memory, grants_from_bytes: ring.grants_from_bytes },
                geometry,
                liveness,
                self.setup.rdma.options(),
            )
            .map_err(|error| error.to_string())?;
        let backend = self.setup.backend.as_ref();
        self.transport = LinkTransport::rdma(&self.setup.rdma, (self.setup.host, &card), backend, self.stages_all());
        Ok(Box::new(link))
    }

    /// Sends until the link ends or the sender should.
    fn stream(&mut self, link: &mut dyn LinkSender) -> Ending {
        self.status(&format!("connected over {}", self.transport.text));
        tracing::info!("connected over {}", self.transport.text);
        (self.progressed_at, self.delayed_head, self.tail) = Default::default();
        let connected = Instant::now();
        let mut active = connected;
        loop {
            // Before looking at what the manager and publishers have changed: a later change signals again.
            let _ = self.setup.control.event().drain();
            if self.setup.control.should_stop() {
                link.close();
                return "told to stop".into();
            }
            match self.turn(link) {
                Ok(true) => active = Instant::now(),
                Ok(false) if self.outbox.is_copying() => self.outbox.wait_for_copy(COPY_TICK),
                Ok(false) => {
                    let others = [self.setup.control.event().as_fd()];
                    let waited = match self.outbox.is_staged() {
                        // Its next copies need the staging memory of posted records.
                        true => link.wait_for_reuse(self.tick(), &others),
                        false => link.wait(self.tick(), &others),
                    };
                    if let Err(error) = waited {
                        return Ending::of_link(&error.into());
                    }
                }
                Err(error) => {
                    self.transport.note_failure(&error);
                    return Ending::of_link(&error);
                }
            }
            self.restore_if_caught_up();
            let now = Instant::now();
            if self.outbox.is_empty() {
                (active, self.progressed) = (now, now);
                continue;
            }
            // While a device of this host copies, the other host may have nothing to do.
            let is_copying = self.outbox.is_copying();
            if is_copying && (self.delayed_head == self.tail || !self.setup.flow_control) {
                (self.progressed, self.holds_since) = (now, now);
                if active.elapsed() > self.patience() {
                    return format!("a copy to staging is stuck for {} ms", active.elapsed().as_millis()).into();
                }
                continue;
            }
            // Each link gets some time.
            if self.holds_too_long() && connected.elapsed() > self.patience() {
                return "a message has not been acknowledged for long, over several links".into();
            }
            let since = active.max(self.progressed);
            let waited = since.elapsed();
            if waited > self.patience() {
                let uncredited = self.tail.since(self.delayed_head);
                return format!("no credit has come for {} ms, {uncredited} B wait for it", waited.as_millis()).into();
            }
            self.demote_if_stalled(since);
        }
    }

    /// One round: takes acknowledgements and new messages, and posts as much as there is room for. False if there was nothing to do.
    fn turn(&mut self, link: &mut dyn LinkSender) -> Result<bool, PostError> {
        let reusable = self.progress(link)?;
        let acknowledged = self.outbox.acknowledge(link, &mut self.sent);
        if acknowledged {
            self.fruitless = 0;
            self.progressed_at = self.delayed_head;
            (self.progressed, self.holds_since) = (Instant::now(), Instant::now());
        }
        let took = self.take();
        let of = &mut SendContext {
            own_host: self.setup.own_host,
            slot_table: &self.setup.slot_table,
            control: &self.setup.control,
            reader: &self.reader,
            outbox: &mut self.outbox,
            without_pool: &self.without_pool,
            sent: &mut self.sent,
        };
        self.gap_notices.post(of, link)?;
        let (records, messages) = self.outbox.post(link, reusable, &self.setup.key)?;
        self.setup.control.count(messages);
        if !self.setup.flow_control {
            self.outbox.release_sent(&mut self.sent);
        }
        if records > 0 {
            // On a slow link posting takes long, and credit has come meanwhile. The next turn, which follows at once, processes it.
            self.progress(link)?;
            if !self.setup.flow_control {
                (self.progressed, self.holds_since) = (Instant::now(), Instant::now());
            }
        }
        Ok(acknowledged || took || records > 0)
    }

    /// Processes credit and completions that have arrived. Returns from which record on memory is still read.
    fn progress(&mut self, link: &mut dyn LinkSender) -> Result<RecordSequence, LinkError> {
        let Progress { reusable, delayed_head, tail } = link.progress()?;
        (self.delayed_head, self.tail) = (delayed_head, tail);
        // Less than that, again and again, is no progress: a peer could hold messages for as long as it likes.
        if delayed_head.since(self.progressed_at) >= self.setup.config.chunk_bytes {
            (self.progressed_at, self.progressed) = (delayed_head, Instant::now());
        }
        Ok(reusable)
    }

    fn take(&mut self) -> bool {
        let mut took = false;
        while self.outbox.has_room() {
            let Some((held, source)) = self.next() else { break };
            took = true;
            // Messages of other hosts are not forwarded.
            if held.info().source_host != self.setup.own_host.0 {
                continue;
            }
            let Some(held) = self.pack(held, source) else { continue };
            if lacks_pool(&self.setup, held.pool()) {
                self.keep(held, source);
                continue;
            }
            // The pool may have been handed back in between.
            if let Some(held) = self.pack(held, source) {
                tracing::error!("a message is dropped: its bytes are outside its pool, or have no memory here");
                // A loss makes the sender look for skipped messages, which it names to the other host.
                self.reader.lose(held);
            }
        }
        took
    }

    /// The next message: one that was kept and no longer lacks its pool, or else the reader's next.
    fn next(&mut self) -> Option<(Held, Source)> {
        let setup = &self.setup;
        if let Some(kept) = self.without_pool.take_first(|slot| !lacks_pool(setup, slot)) {
            return Some(kept);
        }
        loop {
            match self.reader.take() {
                Ok(None) => return None,
                Ok(Some(held)) => {
                    let is_queued = held.info().position >= self.reader.joined().0;
                    let source = if is_queued { Source::Queue } else { self.sent.source_in_history(held.info()) };
                    if !self.without_pool.has_of_slot(held.pool()) {
                        return Some((held, source));
                    }
                    self.keep(held, source);
                }
                // The reader holds the most that it may of this publisher. With keep-all, all messages wait for its pool.
                Err(TakeRefused::TooManyHeld { publisher, .. }) if self.reader.depth() > 0 => {
                    if !self.lose_oldest(publisher) {
                        return None;
                    }
                }
                // The sender releases messages in order and holds no more than the outbox, so an error means a lost slot, which `publish` notices.
                Err(_) => return None,
            }
        }
    }

    /// Keeps a message that lacks its pool, and at most `depth` of its publisher.
    fn keep(&mut self, held: Held, source: Source) {
        let (index, depth) = (held.pool().index, self.reader.depth());
        self.without_pool.keep(held, source);
        if depth > 0 && self.without_pool.count_of_slot(index) as u64 > depth {
            self.lose_oldest(index);
        }
    }

    /// Drops the oldest kept message of the publisher in this slot. False if there is none.
    fn lose_oldest(&mut self, index: u16) -> bool {
        let oldest = self.without_pool.take_first(|slot| slot.index == index);
        oldest.map(|(held, _)| self.reader.lose(held)).is_some()
    }

    /// Puts a message into the outbox. Returns it if it cannot be read.
    fn pack(&mut self, held: Held, source: Source) -> Option<Held> {
        let Some(pool) = self.setup.pools.memory(held.pool()) else { return Some(held) };
        let mut info = *held.info();
        let is_inside = held.offset().checked_add(info.bytes).is_some_and(|end| end <= pool.bytes());
        if !is_inside || !pool.missing(held.offset(), info.bytes).is_ok_and(|missing| missing.is_empty()) {
            return Some(held);
        }
        let mut meta = [0; META_BYTES_MAX];
        let meta_bytes = held.copy_meta(&mut meta);
        let now = clock::realtime_ns();
        info.stamps.staged = now;
        info.stamps.sent = now;
        info.route = self.transport.route;
        info.route_reason = self.transport.route_reason;
        info.copies.staged = u8::from(self.outbox.is_staged());
        let previous = self.sent.send(MessageName { publisher: info.publisher, sequence: info.sequence });
        let gap = Gap { previous, is_notice: false };
        let envelope = Envelope::seal(&info, held.history_depth(), gap, &meta[..meta_bytes]);
        crash::point("link.begin");
        if self.outbox.is_empty() {
            (self.progressed, self.holds_since) = (Instant::now(), Instant::now());
        }
        self.outbox.push(held, pool, envelope.taken_from(source), previous);
        None
    }
}

/// Whether a publisher, which lives, has not handed its pool back to this manager yet.
fn lacks_pool(setup: &SenderSetup, slot: PublisherSlot) -> bool {
    setup.pools.memory(slot).is_none() && setup.slot_table.active_publishers().any(|active| active == slot)
}
