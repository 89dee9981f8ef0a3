//! An arrival receives one topic from one host. Its socket reader lets the kernel read records into the ring. This worker copies chunk k-1 into the
//! pool while chunk k arrives, publishes each complete message, and returns credit.
//!
//! ```text
//!   wire ──reader thread──▶ ring ──accept: start the copy──▶ landed, oldest first ──copy over: finish──▶ publish, release
//! ```
//!
//! Invariants  A1 a subscriber gets a message once: a (publisher, sequence) that is not newer than the last is dropped, or published only for
//!             subscribers that joined later (`received`). A2 an incomplete message is never published, and its block is freed.
//! Deaths      Sender: the arrival frees partial messages, and the port waits for the next connection. This manager: its successor drains the
//!             port, and finds in the segment which messages had arrived.
//! Source      one copy from the ring into a shared pool, whatever the number of subscribers: Jiang, master's thesis (RGAPS), 2026, section 3.6.
//!             Copying chunk k-1 while chunk k arrives is ours (docs/decisions/007-cut-through-and-copies.md).
//! Trusts      nothing that arrives: the link checks records, `envelope` checks the description, the pool checks its bounds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_control::qos::Exhaustion;
use rgaps_control::wire::SIZE_MAX;
use rgaps_control::{HostId, TopicId, TopicKey};
use rgaps_device::copy::{ArrivedChunk, PoolBlock};
use rgaps_device::{Backend, DeviceError, HostBuffer, Idle, Lane, PoolPart, PoolingCopy, Stream};
use rgaps_link::position::RingSpan;
use rgaps_link::tcp::SocketReader;
use rgaps_link::{
    Assembler, AssemblerOptions, Continuity, Event as Assembled, FlowControl, LinkReceiver, MessageId, MessageName,
    Release,
};
use rgaps_os::clock;
use rgaps_shm::info::MessageInfo;
use rgaps_shm::words::queue::Position;
use rgaps_shm::{LoanedMessage, MessageSpec, SlotTable, crash};

use crate::envelope::{self, ENVELOPE_BYTES_MAX, Gap, Source};
use crate::event::{Event, Mailbox};
use crate::inbound::{ArrivalControl, ArrivalState};
use crate::received::{REMEMBERED_MAX, Verdict};

mod loans;

/// How often a waiting worker checks whether it should stop.
const TICK: Duration = Duration::from_millis(200);
/// How long the worker waits for a copy before it checks the link again.
const COPY_TICK: Duration = Duration::from_millis(5);
/// How long a device may complete no copy before the connection ends.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of a connection waits for the copies in progress.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Copies into the pool at a time.
const COPIES_MAX: usize = 16;

/// What an arrival needs to run.
#[derive(Debug)]
pub(crate) struct ArrivalSetup {
    pub(crate) topic: TopicId,
    pub(crate) key: TopicKey,
    pub(crate) host: HostId,
    pub(crate) host_name: String,
    /// What the publishers' QoS says about a full pool.
    pub(crate) exhaustion: Option<Exhaustion>,
    pub(crate) keep_all_timeout: Duration,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) buffer: Arc<HostBuffer>,
    pub(crate) slot_table: SlotTable,
    pub(crate) mailbox: Mailbox,
    pub(crate) control: Arc<ArrivalControl>,
    /// The transport, and why it is not a better one.
    pub(crate) transport_text: String,
}

/// A message of which a part has arrived.
struct Partial {
    name: MessageName,
    /// `None`: there was no room for it, or the sender has skipped it.
    loan: Option<LoanedMessage>,
    /// The sequence up to which the sender owes no message of this publisher.
    previous: u64,
    /// It is a gap notice: the sender has not sent the message.
    is_notice: bool,
    /// Where the sender took it from.
    source: Source,
    info: MessageInfo,
    meta: [u8; ENVELOPE_BYTES_MAX],
    meta_bytes: usize,
    history_depth: u32,
}

/// A record in the ring, and what to do when its bytes are in the pool.
struct Landed {
    record: rgaps_link::RingRecord,
    /// When it was complete in the ring.
    at: u64,
    /// Its message, which is lost if the record turns out to be torn.
    touched: Option<MessageId>,
    complete: Option<MessageId>,
    aborted: Option<MessageId>,
    copying: bool,
}

pub(crate) struct Arrival {
    setup: ArrivalSetup,
    state: ArrivalState,
    arrivals: Box<dyn LinkReceiver>,
    assembler: Assembler,
    stream: Stream,
    partial: HashMap<MessageId, Partial>,
    /// Records that are not released, oldest first.
    landed: VecDeque<Landed>,
    /// Their copies.
    copies: PoolingCopy<()>,
    /// When the last copy completed, or the first of those in progress started.
    copied_at: Instant,
    /// When credit was last sent that was not due.
    flushed_at: Instant,
    idle: Idle,
    messages: u64,
    duplicates: u64,
    dropped: u64,
    torn: u64,
    has_stepped: bool,
    /// A message dropped because of a budget was already reported.
    has_reported_over: bool,
    /// Bytes copied since the pool's memory was last measured.
    unmeasured_bytes: u64,
    /// By publisher, the position of its last message before those that the sender takes from history.
    history_since: HashMap<u64, Position>,
}

impl Arrival {
    /// Starts the threads of a connection: the worker, and the socket reader if the link has one.
    pub(crate) fn start(
        setup: ArrivalSetup,
        state: ArrivalState,
        socket_reader: Option<SocketReader>,
        arrivals: Box<dyn LinkReceiver>,
    ) {
        let (topic, host, mailbox) = (setup.topic, setup.host, setup.mailbox.clone());
        let stream = match setup.backend.stream() {
            Ok(stream) => stream,
            Err(error) => {
                let (state, why) = (Box::new(state), error.to_string());
                return mailbox.post(Event::ArrivalEnded { topic, host, state, why });
            }
        };
        // The worker gets its arrival only once it runs, so a failed start of the thread does not lose the port.
        let (hand_over, handed) = std::sync::mpsc::sync_channel::<Self>(1);
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let threads =
            named("rgaps-arrival").spawn(move || handed.recv().into_iter().for_each(Self::run)).and_then(|_| {
                socket_reader
                    .map_or(Ok(()), |socket_reader| named("rgaps-reader").spawn(move || socket_reader.run()).map(drop))
            });
        if let Err(error) = threads {
            let (state, why) = (Box::new(state), format!("no thread for an arrival: {error}"));
            tracing::error!(why);
            return mailbox.post(Event::ArrivalEnded { topic, host, state, why });
        }
        mailbox.post(Event::ArrivalBegan { topic, host });
        let continuity = match arrivals.geometry().flow_control() {
            FlowControl::On => Continuity::Reliable,
            FlowControl::Off => Continuity::Lossy,
        };
        // A message that does not fit the pool is dropped, and the link goes on.
        let options = AssemblerOptions { message_bytes_max: SIZE_MAX, continuity };
        let arrival = Self {
            setup,
            state,
            arrivals,
            assembler: Assembler::new(options),
            stream,
            partial: HashMap::new(),
            landed: VecDeque::with_capacity(COPIES_MAX + 1),
            copies: PoolingCopy::new(COPIES_MAX),
            copied_at: Instant::now(),
            flushed_at: Instant::now(),
            idle: Idle::default(),
            messages: 0,
            duplicates: 0,
            dropped: 0,
            torn: 0,
            has_stepped: false,
            has_reported_over: false,
            unmeasured_bytes: 0,
            history_since: HashMap::new(),
        };
        if let Err(lost) = hand_over.send(arrival) {
            let (state, why) = (Box::new(lost.0.state), "its thread is gone".to_owned());
            mailbox.post(Event::ArrivalEnded { topic, host, state, why });
        }
    }

    fn run(mut self) {
        let span = tracing::info_span!("receive", topic = %self.setup.key, from = %self.setup.host_name);
        let entered = span.entered();
        tracing::info!("connected over {}", self.setup.transport_text);
        self.setup
            .control
            .set_status(format!("from {}: connected over {}", self.setup.host_name, self.setup.transport_text));
        let why = loop {
            self.show();
            if self.setup.control.should_stop() {
                break "told to stop".to_owned();
            }
            if self.state.is_evicted() {
                break "other messages need its memory (arrived_bytes_max); incomplete messages are sent again"
                    .to_owned();
            }
            self.add_newcomers();
            if let Err(why) = self.turn() {
                break why;
            }
        };
        match self.arrivals.counters().corrupt {
            0 => tracing::info!(why, "the connection has ended"),
            corrupt => {
                tracing::warn!(why, "the connection has ended; no corrupt message was published");
                self.state.corrupt += corrupt;
            }
        }
        self.arrivals.close();
        self.end();
        drop(entered);
        let Self { setup, state, .. } = self;
        let (topic, host) = (setup.topic, setup.host);
        setup.mailbox.post(Event::ArrivalEnded { topic, host, state: Box::new(state), why });
    }

    /// Handles one record or one completed copy, whichever is first.
    fn turn(&mut self) -> Result<(), String> {
        let copying = !self.landed.is_empty();
        let timeout = if copying { Duration::ZERO } else { TICK };
        match self.arrivals.next(timeout).map_err(|error| error.to_string())? {
            Some(record) => self.accept(record)?,
            None if copying => {
                self.wait_for_copy(COPY_TICK)?;
                self.settle()?;
            }
            None => {
                self.torn = self.arrivals.counters().torn;
                self.rest();
            }
        }
        // A sender on a slow link sees that its messages arrive, though a watermark takes long.
        if self.flushed_at.elapsed() >= TICK {
            self.flush_credit();
        }
        Ok(())
    }

    fn flush_credit(&mut self) {
        self.flushed_at = Instant::now();
        self.arrivals.flush_credit();
    }

    /// Called when nothing has arrived for a while: returns device memory that no message needs.
    fn rest(&mut self) {
        if Idle::has_memory(self.state.pool.as_ref()) {
            self.state.port.reclaim();
            let gave_back =
                self.idle.release_memory(self.state.pool.as_ref(), self.state.port.pool().used_bytes, Instant::now());
            if gave_back.is_some() {
                self.state.charge.set(self.state.pool.resident_bytes());
            }
        }
    }

    /// Publishes the complete messages, and frees the others unless the device still writes to them.
    fn end(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while !self.landed.is_empty() && Instant::now() < deadline {
            if let Err(why) = self.wait_for_copy(COPY_TICK).and_then(|()| self.settle()) {
                tracing::error!(why, "records that had arrived are dropped");
                break;
            }
        }
        if self.copies.under_way() > 0 {
            tracing::error!(
                copies = self.copies.under_way(),
                "copies are stuck; their memory is not freed, since the device may still write to it"
            );
            std::mem::forget((self.state.pool.clone(), self.setup.buffer.clone()));
            self.partial.clear();
        }
        for (_, partial) in self.partial.drain() {
            partial.loan.into_iter().for_each(|loan| self.state.port.give_back(loan));
        }
    }

    /// Gives the port the words of subscribers that have joined.
    fn add_newcomers(&mut self) {
        if self.setup.control.take_newcomers_flag() {
            for newcomer in self.setup.control.take_newcomers() {
                self.state.port.add_subscriber(newcomer.pages, newcomer.event);
            }
        }
    }

    fn show(&self) {
        let counts = [self.messages, self.duplicates, self.dropped, self.torn, self.state.corrupt];
        self.setup.control.show(counts);
    }

    /// Starts the copy of a record that has arrived. `finish` handles the record when the copy is complete.
    fn accept(&mut self, record: rgaps_link::RingRecord) -> Result<(), String> {
        let at = clock::realtime_ns();
        self.state.charge.hear(at);
        let events = self.assembler.push(record.header(), record.payload()).map_err(|error| error.to_string())?;
        let mut landed = Landed { record, at, touched: None, complete: None, aborted: None, copying: false };
        for event in events {
            match event {
                Assembled::Begin { message, name, total, envelope } => {
                    landed.touched = Some(message);
                    self.begin(message, name, total, &landed.record, envelope)?;
                }
                Assembled::Data { message, offset, span } => {
                    landed.touched = Some(message);
                    landed.copying = self.copy(message, offset, span)?;
                }
                Assembled::End { message } => landed.complete = Some(message),
                Assembled::Aborted { message, .. } => landed.aborted = Some(message),
            }
        }
        self.landed.push_back(landed);
        self.settle()
    }

    /// Finishes, in order, the records whose copies are complete. Never waits.
    fn settle(&mut self) -> Result<(), String> {
        while let Some(front) = self.landed.front() {
            if front.copying && self.copies.poll().map_err(|error| error.to_string())?.is_none() {
                break;
            }
            self.copied_at = Instant::now();
            if let Some(landed) = self.landed.pop_front() {
                self.finish(landed)?;
            }
        }
        Ok(())
    }

    /// Waits for a copy. If the device completes nothing for `DEVICE_TIMEOUT`, the connection ends.
    fn wait_for_copy(&self, timeout: Duration) -> Result<(), String> {
        match self.copies.wait_for_copy(timeout) {
            Err(DeviceError::TimedOut(_)) if self.copied_at.elapsed() < DEVICE_TIMEOUT => Ok(()),
            waited => waited.map_err(|error| error.to_string()),
        }
    }

    /// Handles a record that is in the pool: releases it (which returns credit), and publishes its message if this was the last record.
    fn finish(&mut self, landed: Landed) -> Result<(), String> {
        let Landed { record, at, touched, mut complete, aborted, .. } = landed;
        if let Some(message) = aborted {
            self.give_back(message);
        }
        // A complete message is published before its last bytes are acknowledged, so an acknowledged message is never lost.
        let lossless = self.arrivals.geometry().flow_control() == FlowControl::On;
        if lossless && let Some(message) = complete.take() {
            self.publish(message, at)?;
        }
        match self.arrivals.release(record).map_err(|error| error.to_string())? {
            Release::Intact => complete.map_or(Ok(()), |message| self.publish(message, at)),
            Release::Torn => {
                self.torn += 1;
                touched.into_iter().for_each(|message| self.give_back(message));
                Ok(())
            }
        }
    }

    fn begin(
        &mut self,
        message: MessageId,
        name: MessageName,
        total: u64,
        record: &rgaps_link::RingRecord,
        envelope: RingSpan,
    ) -> Result<(), String> {
        let verdict = self.state.received.judge(name);
        if verdict == Verdict::Duplicate {
            self.duplicates += 1;
            return Ok(());
        }
        let mut bytes = [0; ENVELOPE_BYTES_MAX];
        let length = usize::try_from(envelope.bytes).unwrap_or(usize::MAX);
        let Some(place) = bytes.get_mut(..length) else {
            return Err(format!(
                "an envelope of {length} B exceeds {ENVELOPE_BYTES_MAX} B; use one version of RGAPS on all hosts"
            ));
        };
        self.arrivals.copy_out(record, 0, place).map_err(|error| error.to_string())?;
        let opened = envelope::open(place).map_err(|error| error.to_string())?;
        if matches!(verdict, Verdict::Seen(..)) && opened.history_depth == 0 {
            self.duplicates += 1;
            return Ok(());
        }
        let mut info = opened.info;
        info.publisher = name.publisher;
        info.sequence = name.sequence;
        info.bytes = total;
        if info.source_host != self.setup.host.0 {
            return Err("it sends a message of another host's publisher".to_owned());
        }
        self.state.received.note_first(name, opened.gap.previous);
        let Gap { previous, is_notice } = opened.gap;
        let (source, history_depth, meta_bytes) = (opened.source, opened.history_depth, opened.meta.len());
        bytes.copy_within(envelope::HEAD_BYTES..length, 0);
        crash::point("arrival.begin");
        let loan = if is_notice { None } else { self.loan(total)?.and_then(|loan| self.with_memory(loan, total)) };
        self.dropped += u64::from(loan.is_none() && !is_notice);
        let partial = Partial { name, loan, previous, is_notice, source, info, meta: bytes, meta_bytes, history_depth };
        self.partial.insert(message, partial);
        Ok(())
    }

    /// Starts the copy of a chunk. False if its message is not wanted.
    fn copy(&mut self, message: MessageId, offset: u64, span: RingSpan) -> Result<bool, String> {
        while !self.copies.has_room() {
            self.wait_for_copy(COPY_TICK)?;
            self.settle()?;
        }
        let Some(partial) = self.partial.get(&message) else { return Ok(false) };
        let Some(loan) = &partial.loan else { return Ok(false) };
        let lane = Lane {
            backend: self.setup.backend.as_ref(),
            stream: &self.stream,
            pool: PoolPart::of(self.state.pool.as_ref(), 0),
            buffer: &self.setup.buffer,
        };
        self.unmeasured_bytes += span.bytes;
        let target = PoolBlock { pool_offset: loan.offset(), bytes: partial.info.bytes };
        let arrived = ArrivedChunk { offset, bytes: span.bytes, buffer_offset: span.offset.0 };
        self.copied_at = if self.copies.under_way() == 0 { Instant::now() } else { self.copied_at };
        let started = self.copies.start(&lane, target, arrived, ());
        crash::point("arrival.chunk");
        started.map(|()| true).map_err(|error| error.to_string())
    }

    fn publish(&mut self, message: MessageId, landed: u64) -> Result<(), String> {
        let Some(partial) = self.partial.remove(&message) else { return Ok(()) };
        let Partial { name, loan, previous, is_notice, source, mut info, meta, meta_bytes, history_depth } = partial;
        info.stamps.landed = landed;
        info.stamps.pooled = clock::realtime_ns();
        info.copies.pooled = 1;
        let spec = MessageSpec { info, meta: &meta[..meta_bytes], history_depth };
        if self.arrivals.geometry().flow_control() == FlowControl::On {
            self.state.received.note_acknowledged(name, previous);
        }
        let Some(loan) = loan else {
            if let Verdict::New { lost, since } = self.state.received.judge(name) {
                // A message that has arrived is lost for all subscribers that are here now.
                let is_queued = !is_notice && source == Source::Queue;
                let dropped_at = is_queued.then(|| self.setup.slot_table.segment().queue().end());
                self.setup.slot_table.count_lost(lost, since);
                match source {
                    Source::Queue => self.setup.slot_table.count_lost(1, dropped_at.unwrap_or(since)),
                    // Nobody is owed it.
                    Source::History => {}
                    Source::OwedHistory => {
                        let since = self.history_since(name.publisher, since);
                        self.setup.slot_table.count_lost(1, since);
                    }
                }
                self.state.received.give_up(name, dropped_at);
            }
            return Ok(());
        };
        let published = match self.state.received.judge(name) {
            Verdict::New { lost, since } => {
                // Before subscribers can take the message: a subscriber that sees the gap finds it counted.
                self.setup.slot_table.count_lost(lost, since);
                match source {
                    Source::Queue => self.state.port.publish(loan, &spec),
                    Source::History => self.state.port.publish_history(loan, &spec),
                    Source::OwedHistory => {
                        let since = self.history_since(name.publisher, since);
                        self.state.port.publish_late(loan, &spec, since)
                    }
                }
            }
            Verdict::Step { from } => {
                self.report_step(name, from);
                self.state.port.publish(loan, &spec)
            }
            Verdict::Seen(position, ended_ports) => self.state.port.publish_again(loan, &spec, position, ended_ports),
            Verdict::Duplicate => {
                self.state.port.give_back(loan);
                self.duplicates += 1;
                return Ok(());
            }
        };
        let position = published.map_err(|error| error.to_string())?;
        crash::point("arrival.published");
        self.state.received.note(name, position);
        self.messages += 1;
        let MessageName { publisher, sequence } = name;
        tracing::trace!(target: "rgaps::message", topic = %self.setup.key, publisher, sequence, "arrived");
        Ok(())
    }

    /// The position of a publisher's last message before those that the sender takes from history. `since`: that of its last message.
    fn history_since(&mut self, publisher: u64, since: Position) -> Position {
        let is_full = self.history_since.len() >= REMEMBERED_MAX;
        match self.history_since.get(&publisher) {
            Some(first) => *first,
            None if is_full => since,
            None => *self.history_since.entry(publisher).or_insert(since),
        }
    }

    /// Reports at most one step per connection.
    fn report_step(&mut self, name: MessageName, from: u64) {
        if std::mem::replace(&mut self.has_stepped, true) {
            return;
        }
        let MessageName { publisher, sequence } = name;
        let text = format!(
            "{}: publisher {publisher:#x} of host {} jumps from message {from} to {sequence}, which it cannot have published; no message in \
                         between is counted as lost",
            self.setup.key, self.setup.host_name
        );
        tracing::warn!("{text}");
        self.setup.mailbox.post(Event::Warning { topic: self.setup.topic, text });
    }

    fn give_back(&mut self, message: MessageId) {
        if let Some(loan) = self.partial.remove(&message).and_then(|partial| partial.loan) {
            self.state.port.give_back(loan);
            self.dropped += 1;
        }
    }
}
