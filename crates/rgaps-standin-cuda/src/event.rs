//! Events: an event refers to its newest record. A waiter keeps the record that was the newest when its wait began.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::abi::{Code, NOT_READY, Status};
use crate::context::Context;
use crate::lock::locked;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub context: Arc<Context>,
    /// None before it is recorded for the first time; the event counts as complete then.
    pub newest: Option<Arc<Record>>,
}

/// A position in a stream at which an event was recorded.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// None until the stream has reached it; then 0, or the error that prevented it.
    outcome: Mutex<Option<Code>>,
    changed: Condvar,
}

impl Record {
    /// Completes it: the stream has reached it, or the queued operations were dropped.
    pub(crate) fn complete(&self, code: Code) {
        *locked(&self.outcome) = Some(code);
        self.changed.notify_all();
    }

    /// `NOT_READY` if the stream has not reached it.
    pub(crate) fn check(&self) -> Status {
        match *locked(&self.outcome) {
            Some(0) => Ok(()),
            Some(code) => Err(code),
            None => Err(NOT_READY),
        }
    }

    /// Waits for it, for at most `limit`; returns whether it is complete, with any outcome.
    pub(crate) fn is_over_within(&self, limit: Duration) -> bool {
        let outcome = self.changed.wait_timeout_while(locked(&self.outcome), limit, |outcome| outcome.is_none());
        outcome.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// Waits for it without a limit.
    pub(crate) fn wait(&self) -> Status {
        let outcome = self.changed.wait_while(locked(&self.outcome), |outcome| outcome.is_none());
        drop(outcome.unwrap_or_else(PoisonError::into_inner));
        self.check()
    }
}
