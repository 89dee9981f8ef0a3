//! An arrival: one topic from one host. Its intake lets the kernel read records into the ring; this worker copies chunk k-1 into the
//! pool while chunk k arrives, publishes each message once it is whole, and returns credit.
//!
//! ```text
//!   wire ──intake thread──▶ ring ──this thread: copy──▶ pool ──publish──▶ local subscribers
//! ```
//!
//! Invariants  A1 a subscriber gets a message once: (publisher, sequence) not newer than the last is dropped, or published for later
//!             ones only (`received`). A2 a message of which a part is
//!             missing is never published, and its block is free again.
//! Deaths      Of the sender: partial messages are given back; the port waits for the next connection. Of this manager: its successor
//!             buries the port, and finds in the segment what had come.
//! Trusts      nothing that arrives: the link checks records, `envelope` the description, the pool its bounds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_control::qos::Exhaustion as QosExhaustion;
use rgaps_control::{HostId, TopicId, TopicKey};
use rgaps_device::backend::{BufferPart, PoolPart};
use rgaps_device::{Backend, HostBuffer, PoolMemory, Stream};
use rgaps_link::position::RingSpan;
use rgaps_link::tcp::{Arrivals, Intake};
use rgaps_link::{
    Assembler, AssemblerOptions, Continuity, Event as Assembled, FlowControl, LinkReceiver, MessageId, Origin, Release,
};
use rgaps_os::clock;
use rgaps_shm::info::MessageInfo;
use rgaps_shm::janitor::Seat;
use rgaps_shm::{Exhaustion, Janitor, LoanError, LoanedMessage, MessageSpec, WriterPort, crash};

use crate::envelope::{self, ENVELOPE_BYTES_MAX};
use crate::event::{Event, Mailbox};
use crate::received::{Received, Verdict};
use crate::subscribe::ArrivalControl;

/// How often a waiting worker looks whether it should stop.
const TICK: Duration = Duration::from_millis(200);

/// What outlives a connection.
#[derive(Debug)]
pub(crate) struct ArrivalState {
    pub(crate) port: WriterPort,
    pool: Arc<dyn PoolMemory>,
    pub(crate) received: Received,
    pub(crate) message_bytes_max: u64,
}

impl ArrivalState {
    pub(crate) fn new(port: WriterPort, pool: Arc<dyn PoolMemory>, received: Received, message_bytes_max: u64) -> Self {
        Self { port, pool, received, message_bytes_max }
    }

    pub(crate) fn seat(&self) -> Seat {
        let (slot, generation) = self.port.seat();
        Seat { slot, generation }
    }
}

/// What an arrival is made of.
#[derive(Debug)]
pub(crate) struct ArrivalSetup {
    pub(crate) topic: TopicId,
    pub(crate) key: TopicKey,
    pub(crate) host: HostId,
    pub(crate) host_name: String,
    /// What the publishers' QoS says about a full pool.
    pub(crate) exhaustion: Option<QosExhaustion>,
    pub(crate) keep_all_timeout: Duration,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) buffer: Arc<HostBuffer>,
    pub(crate) janitor: Janitor,
    pub(crate) mailbox: Mailbox,
    pub(crate) control: Arc<ArrivalControl>,
}

/// A message of which a part has come.
struct Partial {
    origin: Origin,
    loan: LoanedMessage,
    info: MessageInfo,
    meta: [u8; ENVELOPE_BYTES_MAX],
    meta_bytes: usize,
    history_depth: u32,
}

pub(crate) struct Arrival {
    setup: ArrivalSetup,
    state: ArrivalState,
    arrivals: Arrivals,
    assembler: Assembler,
    stream: Stream,
    partial: HashMap<MessageId, Partial>,
    /// When the record at hand was in the ring.
    landed: u64,
    messages: u64,
    duplicates: u64,
    dropped: u64,
}

impl Arrival {
    /// Starts the two threads of a connection.
    pub(crate) fn start(setup: ArrivalSetup, state: ArrivalState, intake: Intake, arrivals: Arrivals) {
        let (topic, host, mailbox) = (setup.topic, setup.host, setup.mailbox.clone());
        let stream = match setup.backend.stream() {
            Ok(stream) => stream,
            Err(error) => {
                let (state, why) = (Box::new(state), error.to_string());
                return mailbox.post(Event::ArrivalEnded { topic, host, state, why });
            }
        };
        mailbox.post(Event::ArrivalBegan { topic, host });
        let reading = std::thread::Builder::new().name("rgaps-intake".to_owned()).spawn(move || intake.run());
        let continuity = match arrivals.geometry().flow_control() {
            FlowControl::On => Continuity::Reliable,
            FlowControl::Off => Continuity::Lossy,
        };
        let options = AssemblerOptions { message_bytes_max: state.pool.bytes(), continuity };
        let arrival = Self {
            setup,
            state,
            arrivals,
            assembler: Assembler::new(options),
            stream,
            partial: HashMap::new(),
            landed: 0,
            messages: 0,
            duplicates: 0,
            dropped: 0,
        };
        let copying = std::thread::Builder::new().name("rgaps-arrival".to_owned()).spawn(move || arrival.run());
        if let Err(error) = reading.map(|_| ()).and(copying.map(|_| ())) {
            tracing::error!(%error, "no thread for an arrival");
        }
    }

    fn run(mut self) {
        let span = tracing::info_span!("path3", topic = %self.setup.key, from = %self.setup.host_name);
        let entered = span.entered();
        tracing::info!("connected over tcp");
        let why = loop {
            self.show();
            if self.setup.control.should_stop() {
                break "told to stop".to_owned();
            }
            for (subscriber, event) in self.setup.control.take_events() {
                self.state.port.add_event(subscriber.slot, subscriber.tenancy(), event);
            }
            match self.arrivals.next(TICK) {
                Ok(None) => {}
                Ok(Some(arrival)) => {
                    if let Err(why) = self.accept(arrival) {
                        break why;
                    }
                }
                Err(error) => break error.to_string(),
            }
        };
        tracing::info!(why, "the connection has ended");
        self.arrivals.close();
        let partial: Vec<Partial> = self.partial.drain().map(|(_, partial)| partial).collect();
        partial.into_iter().for_each(|partial| self.state.port.give_back(partial.loan));
        drop(entered);
        let Self { setup, state, .. } = self;
        let (topic, host) = (setup.topic, setup.host);
        setup.mailbox.post(Event::ArrivalEnded { topic, host, state: Box::new(state), why });
    }

    fn show(&self) {
        let torn = self.arrivals.counters().torn;
        self.setup.control.set_status(format!(
            "from {}: connected over tcp, {} messages, {} duplicates, {} dropped, {torn} torn",
            self.setup.host_name, self.messages, self.duplicates, self.dropped
        ));
    }

    /// One record: copy, release (which returns credit), and only then publish, if it was whole and the last.
    fn accept(&mut self, arrival: rgaps_link::Arrival) -> Result<(), String> {
        self.landed = clock::realtime_ns();
        let events = self.assembler.push(arrival.header(), arrival.payload()).map_err(|error| error.to_string())?;
        let mut complete = None;
        let mut touched = None;
        for event in events {
            match event {
                Assembled::Begin { message, origin, total, envelope } => {
                    touched = Some(message);
                    self.begin(message, origin, total, &arrival, envelope)?;
                }
                Assembled::Data { message, offset, span } => {
                    touched = Some(message);
                    self.copy(message, offset, span)?;
                }
                Assembled::End { message } => complete = Some(message),
                Assembled::Aborted { message, .. } => self.give_back(message),
            }
        }
        // A message that is complete is published before its last bytes are acknowledged: what is acknowledged is never lost.
        let lossless = self.arrivals.geometry().flow_control() == FlowControl::On;
        if lossless && let Some(message) = complete.take() {
            self.publish(message)?;
        }
        match self.arrivals.release(arrival).map_err(|error| error.to_string())? {
            Release::Intact => complete.map_or(Ok(()), |message| self.publish(message)),
            Release::Torn => {
                touched.into_iter().for_each(|message| self.give_back(message));
                Ok(())
            }
        }
    }

    fn begin(
        &mut self,
        message: MessageId,
        origin: Origin,
        total: u64,
        arrival: &rgaps_link::Arrival,
        envelope: RingSpan,
    ) -> Result<(), String> {
        let verdict = self.state.received.judge(origin);
        if verdict == Verdict::Duplicate {
            self.duplicates += 1;
            return Ok(());
        }
        let mut bytes = [0; ENVELOPE_BYTES_MAX];
        let length = usize::try_from(envelope.bytes).unwrap_or(usize::MAX);
        let Some(place) = bytes.get_mut(..length) else { return Err(format!("an envelope of {length} B")) };
        self.arrivals.copy_out(arrival, 0, place).map_err(|error| error.to_string())?;
        let opened = envelope::open(place).map_err(|error| error.to_string())?;
        if matches!(verdict, Verdict::Seen(_)) && opened.history_depth == 0 {
            self.duplicates += 1;
            return Ok(());
        }
        let mut info = opened.info;
        info.publisher = origin.publisher;
        info.sequence = origin.sequence;
        info.bytes = total;
        let (history_depth, meta_bytes) = (opened.history_depth, opened.meta.len());
        bytes.copy_within(envelope::HEAD_BYTES..length, 0);
        crash::point("arrival.begin");
        match self.loan(total) {
            Some(loan) => {
                let partial = Partial { origin, loan, info, meta: bytes, meta_bytes, history_depth };
                self.partial.insert(message, partial);
            }
            None => self.dropped += 1,
        }
        Ok(())
    }

    /// Space for a message: what the publishers' QoS says, and in the end a keep-all subscriber that stalls everybody is demoted.
    fn loan(&mut self, bytes: u64) -> Option<LoanedMessage> {
        let start = Instant::now();
        let patience = match self.setup.exhaustion {
            Some(QosExhaustion::Wait { timeout_ms }) => Duration::from_millis(timeout_ms),
            Some(QosExhaustion::Refuse) => Duration::ZERO,
            _ => self.setup.keep_all_timeout,
        };
        let first = match self.setup.exhaustion {
            Some(QosExhaustion::DropOldest) | None => Exhaustion::DropOldest,
            Some(QosExhaustion::Wait { .. }) => Exhaustion::Wait(TICK),
            Some(QosExhaustion::Refuse) => Exhaustion::Refuse,
        };
        loop {
            match self.state.port.loan(bytes, first) {
                Ok(loan) => return Some(loan),
                Err(error @ LoanError::TooLarge { .. }) => {
                    tracing::error!(%error, "a message is dropped; raise arrival_pool_bytes");
                    return None;
                }
                Err(error) if start.elapsed() >= patience || self.setup.control.should_stop() => {
                    return self.last_resort(bytes, &error);
                }
                Err(_) if first == Exhaustion::DropOldest => {
                    // Only held messages and keep-all subscribers are left: wait for them.
                    if let Ok(loan) = self.state.port.loan(bytes, Exhaustion::Wait(TICK)) {
                        return Some(loan);
                    }
                }
                Err(_) => {}
            }
        }
    }

    fn last_resort(&mut self, bytes: u64, error: &LoanError) -> Option<LoanedMessage> {
        if self.setup.exhaustion == Some(QosExhaustion::Refuse) {
            tracing::warn!(%error, "a message is dropped");
            return None;
        }
        if let Some(slot) = self.setup.janitor.demote_stalled() {
            let text = format!(
                "{}: keep-all subscriber {slot} has let nothing go for {} ms; it is keep-last from now on",
                self.setup.key,
                self.setup.keep_all_timeout.as_millis()
            );
            self.setup.mailbox.post(Event::Warning { topic: self.setup.topic, text });
        }
        match self.state.port.loan(bytes, Exhaustion::DropOldest) {
            Ok(loan) => Some(loan),
            Err(error) => {
                tracing::warn!(%error, "a message is dropped");
                None
            }
        }
    }

    fn copy(&mut self, message: MessageId, offset: u64, span: RingSpan) -> Result<(), String> {
        let Some(partial) = self.partial.get(&message) else { return Ok(()) };
        let from = BufferPart { buffer: &self.setup.buffer, offset: span.offset.0 };
        let to = PoolPart { pool: self.state.pool.as_ref(), offset: partial.loan.offset() + offset };
        let copied = self.setup.backend.copy_to_device(&self.stream, from, to, span.bytes);
        crash::point("arrival.chunk");
        copied.map(|_| ()).map_err(|error| error.to_string())
    }

    fn publish(&mut self, message: MessageId) -> Result<(), String> {
        let Some(partial) = self.partial.remove(&message) else { return Ok(()) };
        let Partial { origin, loan, mut info, meta, meta_bytes, history_depth } = partial;
        info.stamps.landed = self.landed;
        info.stamps.pooled = clock::realtime_ns();
        info.copies.pooled = 1;
        let spec = MessageSpec { info, meta: &meta[..meta_bytes], history_depth };
        // Counted before it can be taken: whoever sees the gap in the sequences finds it accounted for.
        let published = match self.state.received.judge(origin) {
            Verdict::New { lost, since } => {
                self.setup.janitor.count_lost(lost, since);
                self.state.port.publish(loan, &spec)
            }
            Verdict::Seen(position) => self.state.port.publish_again(loan, &spec, position),
            Verdict::Duplicate => {
                self.state.port.give_back(loan);
                self.duplicates += 1;
                return Ok(());
            }
        };
        let position = published.map_err(|error| error.to_string())?;
        crash::point("arrival.published");
        self.state.received.note(origin, position);
        self.messages += 1;
        Ok(())
    }

    fn give_back(&mut self, message: MessageId) {
        if let Some(partial) = self.partial.remove(&message) {
            self.state.port.give_back(partial.loan);
            self.dropped += 1;
        }
    }
}
