//! The state shared by socket reader and arrivals: a bounded queue of received records, two positions, counters.
//!
//! Words       `written`: end of the record under way; the socket reader stores it before it writes the record's first byte. `head`: end of
//!             the consumed bytes; the consumer stores it after its last read. `closed`: stored by either.
//! Invariants  RQ1 bytes before `head` may be overwritten, later ones may not (flow control on). RQ2 a record enters the queue only when it
//!             has arrived whole. RQ3 the queue holds at most QUEUE_MAX; when it is full, the socket reader waits for the consumer (flow
//!             control on) or drops the oldest as torn (off). RQ4 the socket reader wakes the consumer only if it sleeps, and once for
//!             all records until it wakes.
//! Shown by    loom_models (RQ1, RQ3, RQ4, and that a record overwritten while it is read is reported torn).

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::counters::ReceiverCounters;
use crate::error::LinkError;
use crate::geometry::{FlowControl, RingGeometry};
use crate::link::RingRecord;
use crate::position::Position;
use crate::ring;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, fence};
use crate::tcp::socket::TICK;

/// Most records in the queue; the consumer may have as many again in its batch.
pub(crate) const QUEUE_MAX: usize = if cfg!(loom) { 1 } else { 1024 };

/// The shared part of a receiver.
#[derive(Debug)]
pub(crate) struct Shared {
    geometry: RingGeometry,
    written: AtomicU64,
    head: AtomicU64,
    closed: AtomicBool,
    queue: Mutex<Queue>,
    arrived: Condvar,
    drained: Condvar,
}

#[derive(Debug)]
struct Queue {
    arrivals: VecDeque<RingRecord>,
    consumer_sleeps: bool,
    reader_sleeps: bool,
    ended: Option<LinkError>,
    counters: ReceiverCounters,
}

impl Shared {
    pub(crate) fn new(geometry: RingGeometry) -> Self {
        let queue = Queue {
            arrivals: VecDeque::with_capacity(QUEUE_MAX),
            consumer_sleeps: false,
            reader_sleeps: false,
            ended: None,
            counters: ReceiverCounters::default(),
        };
        Self {
            geometry,
            written: AtomicU64::new(0),
            head: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            queue: Mutex::new(queue),
            arrived: Condvar::new(),
            drained: Condvar::new(),
        }
    }

    /// Ignores poisoning: a panic of the other half leaves only plain numbers and whole records.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn head(&self) -> Position {
        Position::new(self.head.load(Ordering::Acquire))
    }

    pub(crate) fn set_head(&self, head: Position) {
        self.head.store(head.value(), Ordering::Release);
    }

    pub(crate) fn written(&self) -> Position {
        Position::new(self.written.load(Ordering::Acquire))
    }

    /// The socket reader calls it before it writes a record that ends at `end`. The fence keeps those writes after this store.
    pub(crate) fn announce(&self, end: Position) {
        self.written.store(end.value(), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether a record that starts at `start` is whole. The fence keeps the consumer's reads of the record before the load of `written`.
    pub(crate) fn is_intact(&self, start: Position) -> bool {
        if self.geometry.flow_control() == FlowControl::On {
            return true;
        }
        fence(Ordering::SeqCst);
        ring::is_intact(&self.geometry, start, self.written())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Sets `closed` and wakes both halves; the caller shuts the socket down.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let _queue = self.lock();
        self.arrived.notify_all();
        self.drained.notify_all();
    }

    /// The socket reader queues a received record. Waits while the queue is full and the link is open.
    pub(crate) fn publish(&self, record: RingRecord, reads: u64) {
        let mut queue = self.lock();
        while queue.arrivals.len() >= QUEUE_MAX {
            if self.geometry.flow_control() == FlowControl::Off {
                queue.arrivals.pop_front();
                queue.counters.torn += 1;
                continue;
            }
            if self.is_closed() {
                return;
            }
            queue.reader_sleeps = true;
            queue = self.drained.wait_timeout(queue, TICK).unwrap_or_else(PoisonError::into_inner).0;
            queue.reader_sleeps = false;
        }
        queue.counters.records += 1;
        queue.counters.bytes += record.payload.bytes;
        queue.counters.reads += reads;
        queue.arrivals.push_back(record);
        self.wake_consumer(queue);
    }

    /// The socket reader ends the queue. The first reason stays.
    pub(crate) fn end(&self, error: LinkError) {
        let mut queue = self.lock();
        queue.ended.get_or_insert(error);
        self.wake_consumer(queue);
    }

    fn wake_consumer(&self, mut queue: MutexGuard<'_, Queue>) {
        if queue.consumer_sleeps {
            queue.consumer_sleeps = false;
            queue.counters.wakes += 1;
            drop(queue);
            self.arrived.notify_one();
        }
    }

    /// The consumer moves all queued records into the empty `batch`, and waits for the first until the deadline. `Ok(false)` at the deadline.
    pub(crate) fn take(&self, batch: &mut VecDeque<RingRecord>, deadline: Instant) -> Result<bool, LinkError> {
        let mut queue = self.lock();
        loop {
            if !queue.arrivals.is_empty() {
                std::mem::swap(&mut queue.arrivals, batch);
                queue.counters.batches += 1;
                if queue.reader_sleeps {
                    drop(queue);
                    self.drained.notify_one();
                }
                return Ok(true);
            }
            if let Some(error) = &queue.ended {
                return Err(error.clone());
            }
            if self.is_closed() {
                return Err(LinkError::Closed { by_peer: false });
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest == Duration::ZERO {
                return Ok(false);
            }
            queue.consumer_sleeps = true;
            queue = self.arrived.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner).0;
            queue.consumer_sleeps = false;
        }
    }

    /// Counts a torn record.
    pub(crate) fn count_torn(&self) {
        self.lock().counters.torn += 1;
    }

    /// Counts a corrupt record.
    pub(crate) fn count_corrupt(&self) {
        self.lock().counters.corrupt += 1;
    }

    pub(crate) fn counters(&self) -> ReceiverCounters {
        self.lock().counters
    }
}
