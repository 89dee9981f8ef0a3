//! An arrival receives one topic from one host: it reads the link, publishes each complete message, and returns credit.
//!
//! ```text
//!   tcp ──▶ the message's block ──────────────────────────▶ landed, oldest first ──finish──▶ publish, release
//!   rdma, with a grant ──▶ the message's block ────────────────────────▶ landed
//!   rdma without, or memory of a device ──▶ ring ──copy: chunk k-1 into the block while chunk k arrives──▶ landed
//! ```
//!
//! Invariants  A1 a subscriber gets a message once: a (publisher, sequence) that is not newer than the last is dropped, or published only for
//!             subscribers that joined later (`received`). A2 an incomplete message is never published, and its block is freed.
//! Deaths      Sender: the arrival frees partial messages, and the port waits for the next connection. This manager: its successor drains the
//!             port, and finds in the segment which messages had arrived.
//! Source      one copy from the ring into a shared pool, whatever the number of subscribers: Jiang, master's thesis (RGAPS), 2026, section 3.6.
//!             Copying chunk k-1 while chunk k arrives is ours (docs/decisions/007-cut-through-and-copies.md).
//! Trusts      nothing that arrives: the link checks records, `envelope` checks the description, the pool checks its bounds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rgaps_device::copy::{ArrivedChunk, PoolBlock};
use rgaps_device::{DeviceError, Idle, Lane, PoolPart, PoolingCopy, Stream};
use rgaps_link::position::RingSpan;
use rgaps_link::{Event as Assembled, LinkReceiver, MessageId, Release, RingRecord};
use rgaps_os::clock;
use rgaps_shm::crash;

use crate::arrival::messages::Messages;
use crate::arrival::setup::ArrivalSetup;
use crate::event::Event;
use crate::inbound::ArrivalState;

#[cfg(test)]
mod device_grant_tests;
#[cfg(test)]
mod grant_tests;
mod granted;
mod grants;
mod loans;
mod messages;
#[cfg(test)]
mod scripted_link;
pub(crate) mod setup;

/// How often a worker that waits for records sends credit that is not due, and looks for memory to give back.
const TICK: Duration = Duration::from_millis(200);
/// How often it looks when nothing has arrived for `QUIET_AFTER`, while its pool has memory to give back.
const QUIET_TICK: Duration = Duration::from_secs(2);
const QUIET_AFTER: Duration = Duration::from_secs(4);
/// How long the worker waits for a copy before it checks the link again.
const COPY_TICK: Duration = Duration::from_millis(5);
/// How long a device may complete no copy before the connection ends.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of a connection waits for the copies in progress.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Copies into the pool at a time.
const COPIES_MAX: usize = 16;

/// A record that has arrived, and what to do when its bytes are in the pool.
struct Landed {
    record: RingRecord,
    /// When it was complete.
    at: u64,
    /// Its message, which is lost if the record turns out to be torn.
    touched: Option<MessageId>,
    complete: Option<MessageId>,
    aborted: Option<MessageId>,
    copying: bool,
}

pub(crate) struct Arrival {
    messages: Messages,
    link: Box<dyn LinkReceiver>,
    stream: Stream,
    /// Records that are not released, oldest first.
    landed: VecDeque<Landed>,
    /// Copies from the ring.
    copies: PoolingCopy<()>,
    /// When the last copy completed, or the first of those in progress started.
    copied_at: Instant,
    /// When credit was last sent that was not due.
    flushed_at: Instant,
    /// When the last record arrived.
    heard_at: Instant,
    idle: Idle,
    torn: u64,
}

impl Arrival {
    /// Starts the thread of a connection.
    pub(crate) fn start(setup: ArrivalSetup, state: ArrivalState, link: Box<dyn LinkReceiver>) {
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
        let worker = std::thread::Builder::new().name("rgaps-arrival".to_owned());
        if let Err(error) = worker.spawn(move || handed.recv().into_iter().for_each(Self::run)) {
            let (state, why) = (Box::new(state), format!("no thread for an arrival: {error}"));
            tracing::error!(why);
            return mailbox.post(Event::ArrivalEnded { topic, host, state, why });
        }
        mailbox.post(Event::ArrivalBegan { topic, host });
        if let Err(lost) = hand_over.send(Self::new(setup, state, link, stream)) {
            let (state, why) = (Box::new(lost.0.messages.state), "its thread is gone".to_owned());
            mailbox.post(Event::ArrivalEnded { topic, host, state, why });
        }
    }

    fn new(setup: ArrivalSetup, state: ArrivalState, link: Box<dyn LinkReceiver>, stream: Stream) -> Self {
        Self {
            messages: Messages::new(setup, state, link.geometry().flow_control()),
            link,
            stream,
            landed: VecDeque::with_capacity(COPIES_MAX + 1),
            copies: PoolingCopy::new(COPIES_MAX),
            copied_at: Instant::now(),
            flushed_at: Instant::now(),
            heard_at: Instant::now(),
            idle: Idle::default(),
            torn: 0,
        }
    }

    fn run(mut self) {
        let setup = &self.messages.setup;
        let span = tracing::info_span!("receive", topic = %setup.key, from = %setup.host_name);
        let entered = span.entered();
        tracing::info!("connected over {}", setup.transport_text);
        setup.control.set_status(format!("from {}: connected over {}", setup.host_name, setup.transport_text));
        self.link.wake_by(self.messages.setup.control.event().clone());
        let why = loop {
            self.show();
            // Before looking at what the manager has changed: a later change signals again.
            let _ = self.messages.setup.control.event().drain();
            if self.messages.setup.control.should_stop() {
                break "told to stop".to_owned();
            }
            if self.messages.state.is_evicted() {
                break "other messages need its memory (arrived_bytes_max); incomplete messages are sent again"
                    .to_owned();
            }
            self.messages.add_newcomers();
            if let Err(why) = self.turn() {
                break why;
            }
        };
        match self.link.counters().corrupt {
            0 => tracing::info!(why, "the connection has ended"),
            corrupt => {
                tracing::warn!(why, "the connection has ended; no corrupt message was published");
                self.messages.state.corrupt += corrupt;
            }
        }
        self.link.close();
        self.end();
        let Self { link, mut messages, copies, landed, .. } = self;
        // Only now does the device write to no block any more.
        drop((copies, landed, link));
        messages.free_all();
        drop(entered);
        let Messages { setup, state, .. } = messages;
        let (topic, host) = (setup.topic, setup.host);
        setup.mailbox.post(Event::ArrivalEnded { topic, host, state: Box::new(state), why });
    }

    /// Handles one record or one completed copy, whichever is first.
    fn turn(&mut self) -> Result<(), String> {
        let copying = !self.landed.is_empty();
        let timeout = if copying { Duration::ZERO } else { self.patience() };
        let next = self.link.next_into(timeout, &mut self.messages);
        match next.map_err(|error| self.messages.link_failed(&error))? {
            Some(record) => {
                self.heard_at = Instant::now();
                self.accept(record)?;
            }
            None if copying => {
                self.wait_for_copy(COPY_TICK)?;
                self.settle()?;
            }
            None => {
                self.torn = self.link.counters().torn;
                self.rest();
            }
        }
        self.messages.grant_ahead(self.link.as_mut(), Instant::now());
        // A sender on a slow link sees that its messages arrive, though a watermark takes long.
        if self.flushed_at.elapsed() >= TICK {
            self.flush_credit();
        }
        Ok(())
    }

    /// How long to wait for a record. An idle topic whose memory is given back costs no wake-ups: the next record, or the manager, ends the wait.
    fn patience(&self) -> Duration {
        let is_quiet = self.heard_at.elapsed() >= QUIET_AFTER && !self.messages.granted.is_in_use();
        match is_quiet {
            false => TICK,
            true if Idle::has_memory(self.messages.state.pool.as_ref()) => QUIET_TICK,
            true => Duration::MAX,
        }
    }

    fn flush_credit(&mut self) {
        self.flushed_at = Instant::now();
        self.link.flush_credit();
    }

    /// Called when nothing has arrived for a while: returns device memory that no message needs.
    fn rest(&mut self) {
        if Idle::has_memory(self.messages.state.pool.as_ref()) {
            self.messages.state.port.reclaim();
            let gave_back = self.idle.release_memory(
                self.messages.state.pool.as_ref(),
                self.messages.state.port.pool().used_bytes,
                Instant::now(),
            );
            if gave_back.is_some() {
                // A network card that has registered the memory keeps it allocated.
                self.link.revoke_grants();
                self.messages.state.charge.set(self.messages.state.pool.resident_bytes());
            }
        }
    }

    /// Publishes the complete messages. Forgets the others if the device still writes to them.
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
            std::mem::forget((self.messages.state.pool.clone(), self.messages.setup.buffer.clone()));
            self.messages.partial.clear();
        }
    }

    fn show(&self) {
        let Messages { arrived, copied, duplicates, dropped, .. } = self.messages;
        self.messages.setup.control.show([
            arrived,
            copied,
            duplicates,
            dropped,
            self.torn,
            self.messages.state.corrupt,
        ]);
    }

    /// Handles a record that has arrived. If its data are in the ring, their copy starts, and `finish` handles the record when it is complete.
    fn accept(&mut self, record: RingRecord) -> Result<(), String> {
        let at = clock::realtime_ns();
        self.messages.state.charge.hear(at);
        let events = self.messages.events_of(&record, self.link.as_ref())?;
        let mut landed = Landed { record, at, touched: None, complete: None, aborted: None, copying: false };
        for event in events {
            match event {
                Assembled::Begin { message, .. } => {
                    landed.touched = Some(message);
                    if let Some(bytes) = self.messages.needs_loan(message) {
                        let loan = self.loan(bytes)?;
                        self.messages.set_loan(message, loan);
                    }
                }
                Assembled::Data { message, offset, span } => {
                    landed.touched = Some(message);
                    landed.copying = if landed.record.has_landed() {
                        self.messages.note_landed(message, span.bytes);
                        crash::point("arrival.chunk");
                        false
                    } else {
                        self.copy(message, offset, span)?
                    };
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
            self.messages.give_back(message);
        }
        // A complete message is published before its last bytes are acknowledged, so an acknowledged message is never lost.
        let lossless = self.messages.is_lossless;
        if lossless && let Some(message) = complete.take() {
            self.messages.publish(message, at)?;
        }
        // Before the sender learns that the message has arrived.
        if record.header().ends_message() {
            self.messages.grant_ahead(self.link.as_mut(), Instant::now());
        }
        match self.link.release(record).map_err(|error| error.to_string())? {
            Release::Intact => complete.map_or(Ok(()), |message| self.messages.publish(message, at)),
            Release::Torn => {
                self.torn += 1;
                touched.into_iter().for_each(|message| self.messages.give_back(message));
                Ok(())
            }
        }
    }

    /// Starts the copy of a chunk. False if its message is not wanted.
    fn copy(&mut self, message: MessageId, offset: u64, span: RingSpan) -> Result<bool, String> {
        while !self.copies.has_room() {
            self.link.read_ahead();
            self.wait_for_copy(COPY_TICK)?;
            self.settle()?;
        }
        let Some(partial) = self.messages.partial.get_mut(&message) else { return Ok(false) };
        let Some(loan) = &partial.loan else { return Ok(false) };
        partial.was_copied = true;
        let lane = Lane {
            backend: self.messages.setup.backend.as_ref(),
            stream: &self.stream,
            pool: PoolPart::of(self.messages.state.pool.as_ref(), 0),
            buffer: &self.messages.setup.buffer,
        };
        self.messages.unmeasured_bytes += span.bytes;
        let target = PoolBlock { pool_offset: loan.offset(), bytes: partial.info.bytes };
        let arrived = ArrivedChunk { offset, bytes: span.bytes, buffer_offset: span.offset.0 };
        self.copied_at = if self.copies.under_way() == 0 { Instant::now() } else { self.copied_at };
        let started = self.copies.start(&lane, target, arrived, ());
        crash::point("arrival.chunk");
        started.map(|()| true).map_err(|error| error.to_string())
    }
}
