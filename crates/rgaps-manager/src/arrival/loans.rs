//! Space for arriving messages: within the memory budgets, and within the pool, by the publishers' QoS.

use std::time::{Duration, Instant};

use rgaps_control::OverBudget;
use rgaps_device::DeviceError;
use rgaps_os::clock;
use rgaps_shm::writer::pool::pool_bytes_for;
use rgaps_shm::{Exhaustion, LoanError, LoanedMessage};

use crate::arrival::messages::Messages;
use crate::arrival::{Arrival, COPY_TICK};
use crate::event::Event;

/// How long a message waits for space before the link is read again.
const LOAN_TICK: Duration = Duration::from_millis(50);
/// How often a message that waits for a budget checks it again.
const ROOM_TICK: Duration = Duration::from_millis(5);
/// Bytes that are written into a pool between two measurements of its memory.
pub(super) const LOOK_EVERY_BYTES: u64 = 16 << 20;

impl Messages {
    /// What the most patient publisher would do about a full pool, in steps of a wait.
    fn exhaustion(&self) -> Exhaustion {
        match self.setup.exhaustion {
            Some(Exhaustion::DropOldest) | None => Exhaustion::DropOldest,
            Some(Exhaustion::Wait { .. }) => Exhaustion::within(LOAN_TICK),
            Some(Exhaustion::Refuse) => Exhaustion::Refuse,
        }
    }

    /// Loans space for a message, if there is some without waiting. While blocks are granted, drops no message for it.
    pub(super) fn try_loan(&mut self, bytes: u64) -> Option<LoanedMessage> {
        let exhaustion = if self.granted.loans.is_empty() { self.exhaustion() } else { Exhaustion::Refuse };
        self.charge_for(bytes, exhaustion).ok()?;
        let loan = self.state.port.try_loan(bytes, exhaustion).ok()?;
        self.with_memory(loan, bytes)
    }

    /// Measures the pool's memory if much was written since the last time: a fragmented pool occupies more than its blocks.
    pub(super) fn measure(&mut self) {
        if self.unmeasured_bytes >= LOOK_EVERY_BYTES {
            self.unmeasured_bytes = 0;
            let resident = self.state.pool.resident_bytes();
            if resident > self.state.charge.granted() {
                self.state.charge.set(resident);
            }
        }
    }

    /// Gets room for a message in the memory budgets. A port that may drop its oldest messages uses the memory that it already has.
    pub(super) fn charge_for(&mut self, bytes: u64, exhaustion: Exhaustion) -> Result<(), OverBudget> {
        self.measure();
        let pool = &self.state.pool;
        let (block, port) = (pool_bytes_for(bytes), &mut self.state.port);
        // If no free block is large enough, the port's loan fails.
        if bytes > pool.bytes() || port.pool().used_bytes + block <= self.state.charge.granted() {
            return Ok(());
        }
        port.reclaim();
        let most = pool.bytes();
        let needed = (port.pool().used_bytes + block).min(most);
        if needed <= self.state.charge.granted() {
            return Ok(());
        }
        match self.state.charge.grow(needed, most, clock::realtime_ns()) {
            Ok(evicted) => {
                for (topic, host) in evicted {
                    self.setup.mailbox.post(Event::Evicted { topic, host });
                }
                Ok(())
            }
            Err(over) => {
                let has = self.state.charge.granted();
                let is_enough = block <= has && exhaustion == Exhaustion::DropOldest;
                if is_enough && port.make_room(has - block) { Ok(()) } else { Err(over) }
            }
        }
    }

    fn check_end(&self) -> Result<(), String> {
        let should_end = self.setup.control.should_stop() || self.state.is_evicted();
        if should_end { Err("told to stop while a message waits for space".to_owned()) } else { Ok(()) }
    }

    /// Reports a dropped message, once per connection.
    fn say_over(&mut self, bytes: u64, over: &OverBudget) {
        if !std::mem::replace(&mut self.has_reported_over, true) {
            let text = format!(
                "{}: a message of {bytes} B from host {} is dropped, and more may be: the memory for messages of other hosts is used up ({over})",
                self.setup.key, self.setup.host_name
            );
            self.setup.mailbox.post(Event::Warning { topic: self.setup.topic, text });
        }
    }

    /// Commits the block's memory, if it has none yet.
    pub(super) fn with_memory(&mut self, loan: LoanedMessage, bytes: u64) -> Option<LoanedMessage> {
        let pool = &self.state.pool;
        let missing = pool.missing(loan.offset(), bytes).map_err(DeviceError::from);
        let committed = missing.and_then(|missing| match missing.is_empty() {
            true => Ok(()),
            false => pool.commit(&missing).map(drop),
        });
        match committed {
            Ok(()) => Some(loan),
            Err(error) => {
                tracing::error!(%error, "a message is dropped");
                self.state.port.give_back(loan);
                None
            }
        }
    }

    fn last_resort(&mut self, bytes: u64, error: &LoanError, waited: Duration) -> Option<LoanedMessage> {
        if self.setup.exhaustion == Some(Exhaustion::Refuse) {
            tracing::warn!(%error, "a message is dropped");
            return None;
        }
        if let Some(slot) = self.state.port.stalled_by().filter(|slot| self.setup.slot_table.demote(*slot, 1)) {
            let text = format!(
                "{}: keep-all subscriber {} leaves no space for a message within {} ms; it is keep-last from now on; make it read faster, or raise keep_all_timeout_ms",
                self.setup.key,
                slot.index,
                waited.as_millis()
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
}

impl Arrival {
    /// Loans space for a message as the most patient publisher would, when there was none at once. In the end it demotes a keep-all subscriber that
    /// stalls the topic. `None`: the message is dropped. An error: the arrival should end before there is space, and the message comes again over the
    /// next link.
    pub(super) fn loan(&mut self, bytes: u64) -> Result<Option<LoanedMessage>, String> {
        let start = Instant::now();
        let (wanted, keep_all_timeout) = (self.messages.setup.exhaustion, self.messages.setup.keep_all_timeout);
        let patience = match wanted {
            // No wait is longer than `keep_all_timeout`.
            Some(Exhaustion::Wait { timeout_ms }) => Duration::from_millis(timeout_ms).min(keep_all_timeout),
            Some(Exhaustion::Refuse) => Duration::ZERO,
            _ => keep_all_timeout,
        };
        let first = self.messages.exhaustion();
        self.messages.recall_grants(self.link.as_mut());
        // Arrived records first: subscribers may be waiting for their messages before they release others.
        while !self.landed.is_empty() && self.wait_for_copy(COPY_TICK).and_then(|()| self.settle()).is_ok() {
            self.link.read_ahead();
        }
        self.flush_credit();
        let mut room = self.messages.charge_for(bytes, first);
        while let Err(over) = room {
            self.messages.check_end()?;
            // A message that is larger than the whole budget never fits.
            let may_fit = pool_bytes_for(bytes) <= over.limit;
            if may_fit && matches!(first, Exhaustion::Wait { .. }) && start.elapsed() < patience {
                self.link.read_ahead();
                self.messages.take_returned(self.link.as_mut());
                std::thread::sleep(ROOM_TICK);
                room = self.messages.charge_for(bytes, first);
                continue;
            }
            // As with a full pool, the oldest messages are dropped in the end.
            if first == Exhaustion::Refuse || self.messages.charge_for(bytes, Exhaustion::DropOldest).is_err() {
                self.messages.say_over(bytes, &over);
                return Ok(None);
            }
            break;
        }
        loop {
            // Without the words of a newcomer, what it has read would look unread.
            self.messages.add_newcomers();
            self.link.read_ahead();
            self.messages.take_returned(self.link.as_mut());
            let port = &mut self.messages.state.port;
            match port.loan(bytes, first) {
                Ok(loan) => return Ok(self.messages.with_memory(loan, bytes)),
                Err(error @ LoanError::TooLarge { .. }) => {
                    tracing::error!(%error, "a message is dropped; raise arrival_pool_bytes or arrival_pool_bytes_max");
                    return Ok(None);
                }
                Err(error) if start.elapsed() >= patience => {
                    let loan = self.messages.last_resort(bytes, &error, start.elapsed());
                    return Ok(loan.and_then(|loan| self.messages.with_memory(loan, bytes)));
                }
                Err(_) if first == Exhaustion::DropOldest => {
                    // Only held messages and unread ones of keep-all subscribers are left: wait for those subscribers.
                    if let Ok(loan) = port.loan(bytes, Exhaustion::within(LOAN_TICK)) {
                        return Ok(self.messages.with_memory(loan, bytes));
                    }
                }
                Err(_) => {}
            }
            self.messages.check_end()?;
        }
    }
}
