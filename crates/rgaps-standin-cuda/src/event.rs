//! Events: an event names its newest record, and whoever waits keeps the record that was the newest when it asked.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::abi::{Code, NOT_READY, Status};
use crate::context::Context;
use crate::guard::locked;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub context: Arc<Context>,
    /// None until it is recorded for the first time: then it is complete.
    pub newest: Option<Arc<Record>>,
}

/// A place in a stream that an event was recorded at.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// None until the stream has come there; then 0, or why it has not.
    outcome: Mutex<Option<Code>>,
    changed: Condvar,
}

impl Record {
    /// The stream has come there, or what was queued is dropped.
    pub(crate) fn complete(&self, code: Code) {
        *locked(&self.outcome) = Some(code);
        self.changed.notify_all();
    }

    /// `NOT_READY` if the stream has not come there.
    pub(crate) fn check(&self) -> Status {
        match *locked(&self.outcome) {
            Some(0) => Ok(()),
            Some(code) => Err(code),
            None => Err(NOT_READY),
        }
    }

    /// Waits for it, at most for `limit`; whether it is over, whatever its outcome.
    pub(crate) fn is_over_within(&self, limit: Duration) -> bool {
        let outcome = self.changed.wait_timeout_while(locked(&self.outcome), limit, |outcome| outcome.is_none());
        outcome.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// Waits for it as long as it takes.
    pub(crate) fn wait(&self) -> Status {
        let outcome = self.changed.wait_while(locked(&self.outcome), |outcome| outcome.is_none());
        drop(outcome.unwrap_or_else(PoisonError::into_inner));
        self.check()
    }
}
