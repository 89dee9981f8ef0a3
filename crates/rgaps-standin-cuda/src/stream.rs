//! Streams: each is a worker thread with a queue, which runs one operation after the other.
//!
//!   push ──▶ queue ──worker: after ▶ delay ▶ gate ▶ run──▶ done
//!
//! Invariants  `done` counts operations in the order of `submitted`. A record completes in the same step as its operation, so an event and
//!             its stream always agree.
//! Bounds      The queue is unbounded. A failed or ended context drops its operations at once.
//! Deaths      The process does not wait for the workers when it ends.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::abi::{NOT_READY, OUT_OF_MEMORY, SUCCESS, Status, UNKNOWN};
use crate::context::Context;
use crate::lock::locked;
use crate::operation::Operation;

/// How often a waiting worker checks its context.
pub(crate) const POLL: Duration = Duration::from_micros(50);

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub id: u64,
    pub context: Arc<Context>,
    /// Whether it keeps order with the null stream.
    pub blocking: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    submitted: u64,
    done: u64,
    /// Destroyed: the worker ends when the queue is empty.
    closed: bool,
}

#[derive(Debug)]
struct Item {
    operation: Operation,
    after: Vec<QueuePosition>,
}

/// A position in a stream. The stream has passed it when all operations queued before it are done.
#[derive(Clone, Debug)]
pub(crate) struct QueuePosition {
    pub stream: Arc<Stream>,
    pub ticket: u64,
}

impl Stream {
    /// Creates a stream and starts its worker.
    pub(crate) fn start(id: u64, context: Arc<Context>, blocking: bool) -> Status<Arc<Self>> {
        let stream = Self { id, context, blocking, queue: Mutex::default(), changed: Condvar::new() };
        let stream = Arc::new(stream);
        let worker = stream.clone();
        let spawned = thread::Builder::new().name(format!("standin-{id:x}")).spawn(move || worker.work());
        spawned.map_err(|_| OUT_OF_MEMORY)?;
        Ok(stream)
    }

    /// Queues an operation. It runs after the operations queued here, and after the positions `after` of other streams.
    pub(crate) fn push(self: &Arc<Self>, operation: Operation, after: Vec<QueuePosition>) -> QueuePosition {
        let mut queue = locked(&self.queue);
        queue.submitted += 1;
        queue.items.push_back(Item { operation, after });
        self.changed.notify_all();
        QueuePosition { stream: self.clone(), ticket: queue.submitted }
    }

    /// The current end of the queue.
    pub(crate) fn end(self: &Arc<Self>) -> QueuePosition {
        QueuePosition { stream: self.clone(), ticket: locked(&self.queue).submitted }
    }

    /// `NOT_READY` if an operation is queued or runs.
    pub(crate) fn check(self: &Arc<Self>) -> Status {
        self.context.check()?;
        if self.end().is_passed() { self.context.check() } else { Err(NOT_READY) }
    }

    /// Tells the worker to end when the queue is empty.
    pub(crate) fn close(&self) {
        locked(&self.queue).closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        while let Some(item) = self.next() {
            for place in &item.after {
                while !place.is_passed_within(POLL) && self.context.check().is_ok() {}
            }
            let operation = AssertUnwindSafe(|| item.operation.run(&self.context));
            let outcome = catch_unwind(operation).unwrap_or(Err(UNKNOWN));
            if let Err(code) = outcome {
                self.context.fail(code);
            }
            let mut queue = locked(&self.queue);
            if let Operation::Record(record) = &item.operation {
                record.complete(outcome.err().unwrap_or(SUCCESS));
            }
            queue.done += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Item> {
        let queue = locked(&self.queue);
        let queue = self.changed.wait_while(queue, |queue| queue.items.is_empty() && !queue.closed);
        queue.unwrap_or_else(PoisonError::into_inner).items.pop_front()
    }
}

impl QueuePosition {
    pub(crate) fn is_passed(&self) -> bool {
        locked(&self.stream.queue).done >= self.ticket
    }

    fn is_passed_within(&self, limit: Duration) -> bool {
        let queue = locked(&self.stream.queue);
        let queue = self.stream.changed.wait_timeout_while(queue, limit, |queue| queue.done < self.ticket);
        queue.unwrap_or_else(PoisonError::into_inner).0.done >= self.ticket
    }

    /// Waits until the stream has passed it; returns the context's error if the operations were dropped.
    pub(crate) fn wait(&self) -> Status {
        self.drain();
        self.stream.context.check()
    }

    /// Waits until the stream has passed it, with any outcome.
    pub(crate) fn drain(&self) {
        let queue = locked(&self.stream.queue);
        let queue = self.stream.changed.wait_while(queue, |queue| queue.done < self.ticket);
        drop(queue.unwrap_or_else(PoisonError::into_inner));
    }
}
