//! Blocks that the other host may write itself: loaned ahead of need, for messages like the last ones, and granted over the link.
//!
//! Bounds      At most `AHEAD_BYTES`, and two blocks more, are loaned ahead, never more than half of the pool, and only from free space: a grant takes
//!             no message from a subscriber. A message that waits for space gets them back first. An idle topic holds none.
//! Invariants  A block is free again only when the link has said that the peer can no longer write there, or is gone.

use std::time::{Duration, Instant};

use rgaps_link::{LandingPlace, LinkReceiver};
use rgaps_os::clock;
use rgaps_shm::writer::pool::pool_bytes_for;
use rgaps_shm::{Exhaustion, LoanedMessage, crash};

use crate::arrival::messages::Messages;

/// How long a message that needs space waits for blocks that are granted and unused, and how often it looks.
const RECALL: Duration = Duration::from_millis(50);
const RECALL_TICK: Duration = Duration::from_micros(200);
/// Bytes that are granted ahead.
const AHEAD_BYTES: u64 = 8 << 20;

impl Messages {
    /// Loans and grants blocks for the next messages, if large ones arrive and there is free space. Wants them back when none arrive any more.
    pub(super) fn grant_ahead(&mut self, link: &mut dyn LinkReceiver, now: Instant) {
        self.take_returned(link);
        if self.granted.becomes_idle(now) {
            return link.revoke_grants();
        }
        let (bytes, held) = (self.granted.bytes_wanted(), self.granted.count());
        if bytes == 0 || self.granted.is_paused || held >= link.grants_max() as u64 {
            return;
        }
        if !self.can_grant() {
            return;
        }
        let most = (AHEAD_BYTES / bytes + 2).min(self.state.pool.bytes() / 2 / bytes).min(link.grants_max() as u64);
        for _ in held..most {
            let Some(loan) = self.try_loan_free(bytes) else {
                self.granted.is_paused = true;
                return;
            };
            // A link that has failed says so when it is read.
            let place = self.place_at(loan.offset(), bytes);
            match place.and_then(|place| link.grant(&place, bytes).ok()?) {
                Some(number) => {
                    self.granted.has_begun = true;
                    self.granted.loans.insert(number, loan);
                    crash::point("arrival.granted");
                }
                None => {
                    self.granted.is_paused = true;
                    return self.state.port.give_back(loan);
                }
            }
        }
    }

    /// Whether the link can bring data into the pool, which the processor or the network card writes.
    fn can_grant(&self) -> bool {
        let access = self.setup.device_access.as_ref();
        self.landing_memory.is_some() || access.is_some_and(|access| access.refusal().is_none())
    }

    /// A block as the link knows it. `None`: the device does not export it.
    fn place_at(&mut self, offset: u64, bytes: u64) -> Option<LandingPlace> {
        if let Some(memory) = &self.landing_memory {
            return Some(LandingPlace { memory: memory.clone().into(), offset });
        }
        match self.state.pool.dma_buf(offset, bytes) {
            Ok((memory, offset)) => Some(LandingPlace { memory: memory.into(), offset }),
            Err(error) => {
                if !std::mem::replace(&mut self.granted.has_reported_block, true) {
                    tracing::warn!(%error, bytes, "a block of device memory cannot be granted; its message goes through the ring");
                }
                None
            }
        }
    }

    /// Loans a block from space that no message has.
    fn try_loan_free(&mut self, bytes: u64) -> Option<LoanedMessage> {
        self.measure();
        let most = self.state.pool.bytes();
        let needed = (self.state.port.pool().used_bytes + pool_bytes_for(bytes)).min(most);
        if bytes > most
            || needed > self.state.charge.granted() && !self.state.charge.grow_if_free(needed, clock::realtime_ns())
        {
            return None;
        }
        let loan = self.state.port.try_loan(bytes, Exhaustion::Refuse).ok()?;
        self.with_memory(loan, bytes)
    }

    /// Gives back the blocks that the peer has returned.
    pub(super) fn take_returned(&mut self, link: &mut dyn LinkReceiver) {
        while let Some(number) = link.next_returned() {
            if let Some(loan) = self.granted.loans.remove(&number) {
                self.state.port.give_back(loan);
            }
        }
    }

    /// Wants all blocks back that no message uses, and waits a moment for them: a message needs space, and no other is to be dropped for blocks that
    /// lie unused. Nothing is granted until the next message begins.
    pub(super) fn recall_grants(&mut self, link: &mut dyn LinkReceiver) {
        self.granted.is_paused = true;
        if self.granted.loans.is_empty() {
            return;
        }
        link.revoke_grants();
        let start = Instant::now();
        loop {
            self.take_returned(link);
            if self.granted.loans.is_empty() || start.elapsed() >= RECALL {
                return;
            }
            std::thread::sleep(RECALL_TICK);
        }
    }
}
