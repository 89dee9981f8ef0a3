//! TcpReceiver: the receiver's half that consumes records and sends credit.
//!
//! Invariants  Records are released in the order of `next`; the head is the end of the last released one. The head is stored before
//!             the credit is sent, so the socket reader's head is never behind the peer's (lag integrity).
//! Without flow control there is no credit, and each record is checked twice: `next` skips records that are already torn, `release` reports
//! whether the record was torn while the caller used it.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counters::ReceiverCounters;
use crate::credit::{CreditBatch, CreditPair};
use crate::error::LinkError;
use crate::geometry::{FlowControl, Integrity, RingGeometry};
use crate::link::{LinkReceiver, Release, RingRecord};
use crate::memory::RingMemory;
use crate::position::Position;
use crate::tcp::integrity::{CREDIT_FRAME_BYTES, credit_frame};
use crate::tcp::queue::{QUEUE_MAX, Shared};
use crate::tcp::socket;

/// How often to retry sending a credit while the socket is full.
const CREDIT_RETRY: Duration = Duration::from_millis(20);

/// The half of a tcp receiver that its consumer uses.
#[derive(Debug)]
pub struct TcpReceiver {
    stream: Arc<TcpStream>,
    memory: Arc<RingMemory>,
    geometry: RingGeometry,
    shared: Arc<Shared>,
    batch: VecDeque<RingRecord>,
    credit: CreditBatch,
    /// Starts of the held records, oldest first.
    held: VecDeque<Position>,
    unsent: UnsentCredit,
}

/// A credit that the socket did not accept whole. A newer credit replaces it, unless a part of it is already sent.
#[derive(Debug)]
struct UnsentCredit {
    integrity: Integrity,
    frame: [u8; CREDIT_FRAME_BYTES],
    /// The unsent part of the frame.
    rest: Range<usize>,
    next: Option<CreditPair>,
    broken: bool,
}

impl UnsentCredit {
    fn new(integrity: Integrity) -> Self {
        Self { integrity, frame: [0; CREDIT_FRAME_BYTES], rest: 0..0, next: None, broken: false }
    }

    fn is_pending(&self) -> bool {
        !self.broken && (!self.rest.is_empty() || self.next.is_some())
    }

    /// Sends as much as the socket accepts. The socket reader reports a broken connection.
    fn send(&mut self, stream: &TcpStream) {
        while self.is_pending() {
            if self.rest.is_empty() {
                let Some(pair) = self.next.take() else { return };
                let (frame, bytes) = credit_frame(pair, self.integrity);
                (self.frame, self.rest) = (frame, 0..bytes);
            }
            match socket::send(stream, &[self.frame[self.rest.clone()].into()]) {
                Ok(Some(n)) => self.rest.start += n.min(self.rest.len()),
                Ok(None) => return,
                Err(errno) => {
                    tracing::debug!(%errno, "credit could not be sent");
                    self.broken = true;
                }
            }
        }
    }
}

impl TcpReceiver {
    pub(crate) fn new(
        stream: Arc<TcpStream>,
        memory: Arc<RingMemory>,
        geometry: RingGeometry,
        shared: Arc<Shared>,
    ) -> Self {
        let credit = CreditBatch::new(geometry.watermark_bytes());
        let batch = VecDeque::with_capacity(QUEUE_MAX);
        let held = VecDeque::with_capacity(QUEUE_MAX);
        let unsent = UnsentCredit::new(geometry.integrity());
        Self { stream, memory, geometry, shared, batch, credit, held, unsent }
    }

    /// Fills the empty batch; `false` at the deadline. While waiting it retries an unsent credit.
    fn refill(&mut self, deadline: Instant) -> Result<bool, LinkError> {
        loop {
            self.unsent.send(&self.stream);
            if !self.unsent.is_pending() {
                return self.shared.take(&mut self.batch, deadline);
            }
            let now = Instant::now();
            if self.shared.take(&mut self.batch, deadline.min(now + CREDIT_RETRY))? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }
}

impl LinkReceiver for TcpReceiver {
    fn geometry(&self) -> &RingGeometry {
        &self.geometry
    }

    fn memory(&self) -> &Arc<RingMemory> {
        &self.memory
    }

    fn next(&mut self, timeout: Duration) -> Result<Option<RingRecord>, LinkError> {
        let start = Instant::now();
        let deadline = start.checked_add(timeout).unwrap_or(start + Duration::from_secs(3600));
        loop {
            while let Some(record) = self.batch.pop_front() {
                if self.shared.is_intact(record.placement.start) {
                    self.held.push_back(record.placement.start);
                    return Ok(Some(record));
                }
                self.shared.count_torn();
            }
            if !self.refill(deadline)? {
                return Ok(None);
            }
        }
    }

    fn release(&mut self, record: RingRecord) -> Result<Release, LinkError> {
        let (start, end) = (record.placement.start, record.placement.end);
        match self.held.front() {
            Some(expected) if *expected == start => {}
            expected => {
                let expected = expected.copied().unwrap_or(self.credit.head());
                return Err(LinkError::ReleaseOrder { expected, found: start });
            }
        }
        self.held.pop_front();
        if self.geometry.flow_control() == FlowControl::Off {
            if self.shared.is_intact(start) {
                return Ok(Release::Intact);
            }
            self.shared.count_torn();
            return Ok(Release::Torn);
        }
        self.shared.set_head(end);
        if let Some(pair) = self.credit.consume(end, record.header.ends_message(), self.shared.written()) {
            self.unsent.next = Some(pair);
            self.unsent.send(&self.stream);
        }
        Ok(Release::Intact)
    }

    fn flush_credit(&mut self) {
        if let Some(pair) = self.credit.flush() {
            self.unsent.next = Some(pair);
            self.unsent.send(&self.stream);
        }
    }

    fn counters(&self) -> ReceiverCounters {
        ReceiverCounters { credits_sent: self.credit.sent(), ..self.shared.counters() }
    }

    fn close(&mut self) {
        self.shared.close();
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for TcpReceiver {
    fn drop(&mut self) {
        self.close();
    }
}
