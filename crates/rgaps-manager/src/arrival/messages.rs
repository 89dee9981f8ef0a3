//! The messages that arrive: which are wanted, where their data land, and how each is published.
//!
//! A message gets its block in the pool when its envelope has arrived, so that the link can bring its data there. If there is no block at once, or the
//! processor cannot write the pool, the data go through the ring.

use std::collections::HashMap;
use std::sync::Arc;

use rgaps_control::wire::SIZE_MAX;
use rgaps_device::PayloadAccess;
use rgaps_link::position::RingSpan;
use rgaps_link::record::{RecordHeader, RecordSequence};
use rgaps_link::{
    Assembler, AssemblerOptions, Continuity, Event as Assembled, Events, FlowControl, Landing, LandingPlace, LinkError,
    LinkReceiver, MessageId, MessageName, RingRecord,
};
use rgaps_os::{Mapping, clock};
use rgaps_shm::info::MessageInfo;
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_shm::words::queue::Position;
use rgaps_shm::{LoanedMessage, MessageSpec, crash};

use crate::arrival::granted::Granted;
use crate::arrival::setup::ArrivalSetup;
use crate::envelope::{self, ENVELOPE_BYTES_MAX, Gap, Source};
use crate::event::Event;
use crate::inbound::ArrivalState;
use crate::received::{REMEMBERED_MAX, Verdict};

/// A message of which a part has arrived.
pub(super) struct Partial {
    name: MessageName,
    /// `None`: there was no room for it, or the sender has skipped it.
    pub(super) loan: Option<LoanedMessage>,
    /// A part of it went through the ring.
    pub(super) was_copied: bool,
    /// A part of it was written into its block.
    has_landed: bool,
    /// The sequence up to which the sender owes no message of this publisher.
    previous: u64,
    /// It is a gap notice: the sender has not sent the message.
    is_notice: bool,
    /// Where the sender took it from.
    source: Source,
    pub(super) info: MessageInfo,
    meta: [u8; META_BYTES_MAX],
    meta_bytes: usize,
    history_depth: u32,
}

/// The messages of one connection.
pub(super) struct Messages {
    pub(super) setup: ArrivalSetup,
    pub(super) state: ArrivalState,
    /// The link has flow control.
    pub(super) is_lossless: bool,
    assembler: Assembler,
    pub(super) partial: HashMap<MessageId, Partial>,
    /// The pool, if data can land in it.
    pub(super) landing_memory: Option<Arc<Mapping>>,
    pub(super) granted: Granted,
    /// What the record under way says, if the link has asked for its place.
    placed: Option<(RecordSequence, Result<Events, String>)>,
    pub(super) arrived: u64,
    /// Of which a part went through the ring.
    pub(super) copied: u64,
    pub(super) duplicates: u64,
    pub(super) dropped: u64,
    has_stepped: bool,
    /// A message dropped because of a budget was already reported.
    pub(super) has_reported_over: bool,
    /// Bytes written since the pool's memory was last measured.
    pub(super) unmeasured_bytes: u64,
    /// By publisher, the position of its last message before those that the sender takes from history.
    history_since: HashMap<u64, Position>,
}

impl Landing for Messages {
    fn place(&mut self, header: &RecordHeader, payload: RingSpan, envelope: &[u8]) -> Option<LandingPlace> {
        let events = self.assembler.push(header, payload).map_err(|error| error.to_string());
        let events = events.and_then(|events| self.begin_any(events, envelope));
        let place = events.as_ref().ok().and_then(|events| self.place_of(*events));
        self.placed = Some((header.record, events));
        place
    }
}

impl Messages {
    pub(super) fn new(setup: ArrivalSetup, state: ArrivalState, flow_control: FlowControl) -> Self {
        let continuity = match flow_control {
            FlowControl::On => Continuity::Reliable,
            FlowControl::Off => Continuity::Lossy,
        };
        // A message that does not fit the pool is dropped, and the link goes on.
        let options = AssemblerOptions { message_bytes_max: SIZE_MAX, continuity };
        let is_direct = setup.backend.payload_access() == PayloadAccess::Direct;
        Self {
            landing_memory: state.pool.host_mapping().filter(|_| is_direct),
            setup,
            state,
            is_lossless: flow_control == FlowControl::On,
            assembler: Assembler::new(options),
            partial: HashMap::new(),
            granted: Granted::new(),
            placed: None,
            arrived: 0,
            copied: 0,
            duplicates: 0,
            dropped: 0,
            has_stepped: false,
            has_reported_over: false,
            unmeasured_bytes: 0,
            history_since: HashMap::new(),
        }
    }

    /// The place of a record's data in the pool: in its message's block.
    fn place_of(&mut self, events: Events) -> Option<LandingPlace> {
        let (message, offset, bytes) = events.into_iter().find_map(|event| match event {
            Assembled::Data { message, offset, span } => Some((message, offset, span.bytes)),
            _ => None,
        })?;
        let partial = self.partial.get(&message)?;
        let loan = partial.loan.as_ref()?;
        let end = offset.checked_add(bytes)?;
        let memory = self.landing_memory.clone().filter(|_| end <= partial.info.bytes)?;
        Some(LandingPlace { memory: memory.into(), offset: loan.offset() + offset })
    }

    /// What a complete record says: what `place` found out when it began, or else what is in the ring.
    pub(super) fn events_of(&mut self, record: &RingRecord, link: &dyn LinkReceiver) -> Result<Events, String> {
        let events = match self.placed.take_if(|(placed, _)| *placed == record.header().record) {
            Some((_, events)) => events?,
            None => self.events_in_ring(record, link)?,
        };
        // Only now is the envelope known to be undamaged.
        for event in events {
            if let Assembled::Begin { message, name, .. } = event
                && let Some(partial) = self.partial.get(&message)
            {
                self.state.received.note_first(name, partial.previous);
            }
        }
        Ok(events)
    }

    fn events_in_ring(&mut self, record: &RingRecord, link: &dyn LinkReceiver) -> Result<Events, String> {
        let events = self.assembler.push(record.header(), record.payload()).map_err(|error| error.to_string())?;
        let mut bytes = [0; ENVELOPE_BYTES_MAX];
        let length = record.header().envelope_bytes as usize;
        let Some(envelope) = bytes.get_mut(..length) else {
            return Err(too_long(length));
        };
        link.copy_out(record, 0, envelope).map_err(|error| error.to_string())?;
        record.grant().into_iter().for_each(|number| self.granted.name(number));
        let events = self.begin_any(events, envelope);
        self.granted.keep_unwanted(record.header().message);
        events
    }

    /// Notes the message that a record begins, if it begins one.
    fn begin_any(&mut self, events: Events, envelope: &[u8]) -> Result<Events, String> {
        for event in events {
            if let Assembled::Begin { message, name, total, .. } = event {
                self.begin(message, name, total, envelope)?;
            }
        }
        Ok(events)
    }

    /// The bytes of a message that begins and has got no loan at once.
    pub(super) fn needs_loan(&self, message: MessageId) -> Option<u64> {
        let partial = self.partial.get(&message)?;
        (partial.loan.is_none() && !partial.is_notice).then_some(partial.info.bytes)
    }

    /// Sets the loan of a message that needs one; `None`: the message is dropped.
    pub(super) fn set_loan(&mut self, message: MessageId, loan: Option<LoanedMessage>) {
        self.dropped += u64::from(loan.is_none());
        match self.partial.get_mut(&message) {
            Some(partial) => partial.loan = loan,
            None => loan.into_iter().for_each(|loan| self.state.port.give_back(loan)),
        }
    }

    /// Notes a message that begins, and loans space for it if there is some at once.
    fn begin(&mut self, message: MessageId, name: MessageName, total: u64, envelope: &[u8]) -> Result<(), String> {
        let verdict = self.state.received.judge(name);
        if verdict == Verdict::Duplicate {
            self.duplicates += 1;
            return Ok(());
        }
        let opened = envelope::open(envelope).map_err(|error| error.to_string())?;
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
        let Gap { previous, is_notice } = opened.gap;
        let (source, history_depth, meta_bytes) = (opened.source, opened.history_depth, opened.meta.len());
        let mut meta = [0; META_BYTES_MAX];
        meta[..meta_bytes].copy_from_slice(opened.meta);
        crash::point("arrival.begin");
        if total >= self.setup.landing_bytes_min {
            self.granted.note(total);
        }
        let loan = match if is_notice { None } else { self.granted.take_named() } {
            None if is_notice => None,
            None => self.try_loan(total),
            named => named,
        };
        let partial = Partial {
            name,
            loan,
            was_copied: false,
            has_landed: false,
            previous,
            is_notice,
            source,
            info,
            meta,
            meta_bytes,
            history_depth,
        };
        self.partial.insert(message, partial);
        Ok(())
    }

    /// Bytes of a message were written into its block.
    pub(super) fn note_landed(&mut self, message: MessageId, bytes: u64) {
        self.unmeasured_bytes += bytes;
        if let Some(partial) = self.partial.get_mut(&message) {
            partial.has_landed = true;
        }
    }

    /// Makes what a network card wrote into device memory visible to whoever gets the message. The card can no longer write there (`LinkReceiver::grant`).
    fn make_visible(&self, message: MessageId) -> Result<(), String> {
        let Some(access) = &self.setup.device_access else { return Ok(()) };
        if !self.partial.get(&message).is_some_and(|partial| partial.has_landed) {
            return Ok(());
        }
        let flushed = self.state.pool.flush_dma().map_err(|error| error.to_string());
        flushed.inspect_err(|why| access.give_up(why.clone()))?;
        access.note_landed();
        Ok(())
    }

    /// What ended the link, as text.
    pub(super) fn link_failed(&self, error: &LinkError) -> String {
        let access = self.setup.device_access.as_ref().filter(|_| self.granted.has_begun);
        let why = error.to_string();
        if let Some(access) = access.filter(|_| !matches!(error, LinkError::Closed { .. })) {
            access.note_failed_link(&why);
        }
        why
    }

    /// Publishes a complete message.
    pub(super) fn publish(&mut self, message: MessageId, landed: u64) -> Result<(), String> {
        self.end_unwanted(message);
        self.make_visible(message)?;
        let Some(partial) = self.partial.remove(&message) else { return Ok(()) };
        let Partial {
            name,
            loan,
            was_copied,
            previous,
            is_notice,
            source,
            mut info,
            meta,
            meta_bytes,
            history_depth,
            ..
        } = partial;
        info.stamps.landed = landed;
        info.stamps.pooled = clock::realtime_ns();
        info.copies.pooled = u8::from(was_copied);
        let spec = MessageSpec { info, meta: &meta[..meta_bytes], history_depth };
        if self.is_lossless {
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
                // Some wait for news of losses.
                self.state.port.wake();
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
        self.arrived += 1;
        self.copied += u64::from(was_copied);
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

    /// Gives up a message of which a part has arrived.
    pub(super) fn give_back(&mut self, message: MessageId) {
        self.end_unwanted(message);
        if let Some(loan) = self.partial.remove(&message).and_then(|partial| partial.loan) {
            self.state.port.give_back(loan);
            self.dropped += 1;
        }
    }

    /// Frees the block of a message that nobody wanted and that the peer no longer writes.
    fn end_unwanted(&mut self, message: MessageId) {
        if let Some(loan) = self.granted.end_unwanted(message) {
            self.state.port.give_back(loan);
        }
    }

    /// Frees all that is not published. The link is gone, so nobody writes there.
    pub(super) fn free_all(&mut self) {
        let partial = self.partial.drain().filter_map(|(_, partial)| partial.loan);
        let loans: Vec<LoanedMessage> = partial.chain(self.granted.drain()).collect();
        loans.into_iter().for_each(|loan| self.state.port.give_back(loan));
    }

    /// Gives the port the words of subscribers that have joined.
    pub(super) fn add_newcomers(&mut self) {
        if self.setup.control.take_newcomers_flag() {
            for newcomer in self.setup.control.take_newcomers() {
                self.state.port.add_subscriber(newcomer.pages, newcomer.event);
            }
        }
    }
}

fn too_long(bytes: usize) -> String {
    format!("an envelope of {bytes} B exceeds {ENVELOPE_BYTES_MAX} B; use one version of RGAPS on all hosts")
}
