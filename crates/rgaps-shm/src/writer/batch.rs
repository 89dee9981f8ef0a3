//! A batch: several publications with one wake-up of the subscribers.
//!
//! Each message is published as by `WriterPort::publish`, and subscribers that are awake can take it at once. Only the wake-up comes later: when the
//! batch is dropped. So a batch must not wait for anything, least of all for space, which a subscriber that sleeps would have to release.
//!
//! Invariants  BT1 a batch that has published anything wakes the subscribers when it ends, also if it ends by a panic.
//! Deaths      between a publication and the wake-up, as with a single message: the manager wakes the subscribers (`publish.reserved`).
//! Source      S. Jha, L. Rosa and K. Birman, "Spindle: techniques for optimizing atomic multicast on RDMA", ICDCS 2022, pages 1085 to 1097,
//!             section III.A: batches of what is there already, which delay no message for the sake of a fuller batch.

use crate::words::message::State;
use crate::words::queue::Position;
use crate::writer::port::{LoanedMessage, MessageSpec, Since, WriteError, WriterPort};

/// Publications of one port that wake the subscribers together, when the batch is dropped.
#[must_use = "subscribers are woken when the batch is dropped"]
#[derive(Debug)]
pub struct Batch<'a> {
    port: &'a mut WriterPort,
    must_wake: bool,
}

impl WriterPort {
    /// Begins a batch.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch { port: self, must_wake: false }
    }
}

impl Batch<'_> {
    /// Publishes a filled block, like `WriterPort::publish`. After an error the batch may go on.
    pub fn publish(&mut self, loan: LoanedMessage, spec: &MessageSpec<'_>) -> Result<Position, WriteError> {
        let (position, _) = self.port.enqueue(loan, spec, Since::default(), State::Published)?;
        self.must_wake = true;
        Ok(position)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.must_wake {
            self.port.wake();
        }
    }
}
