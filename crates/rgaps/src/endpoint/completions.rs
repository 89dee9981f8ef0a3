//! Stream completions: the words that streams still have to write for a publisher or subscriber, and the objects that must live until then.
//!
//! ```text
//!   push_on, publish_on ──▶ a message without its bytes ──event──▶ done; poisoned if the device failed
//!     if refused        ──▶ a block                     ──event──▶ given back
//!   release_on          ──▶ a held message              ──event──▶ dropped, which wakes its publisher
//! ```
//!
//! Invariants  SC1 segment and pool stay registered with the device until every event is complete. SC2 a slot is detached only after that: a late
//!             write would hit a word of the slot's next occupant.
//! Deaths      of the process: the driver ends its streams first. Only then does the manager see that the process is dead, and that neither it nor a
//!             forked child has the socket. The manager then poisons the pending messages.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_device::{Backend, DeviceError, Event, PoolMemory, Stream, StreamMemory, StreamWord};
use rgaps_os::{MapError, Mapping};
use rgaps_shm::words::history::MessageRef;
use rgaps_shm::{Held, LoanedMessage, PendingMessage, Segment, SubscriberPages, WriterPort};

/// How long a call waits for a device.
pub(crate) const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long dropping a publisher or subscriber waits for streams that still have to write into its segment.
pub(crate) const STREAM_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a waiting thread polls whether a device has completed a message.
pub(crate) const READY_TICK: Duration = Duration::from_micros(500);

/// Polling interval of `Completions::end`.
const LOOK: Duration = Duration::from_millis(1);

/// The action on an item when its stream's work is complete.
pub(crate) trait OnCompletion {
    /// `written`: the stream has written the word. Otherwise it never will.
    fn completed(self, written: bool);
}

/// A stream's pending work for a publisher.
#[derive(Debug)]
pub(crate) enum StreamFill {
    /// A published message whose bytes the stream writes.
    Message(PendingMessage),
    /// The block of a failed publication, which earlier work of the stream may still fill.
    Block(LoanedMessage, Arc<Mutex<WriterPort>>),
    /// The ready word of a message that a damaged segment did not accept.
    Word,
}

impl OnCompletion for StreamFill {
    fn completed(self, written: bool) {
        match self {
            Self::Message(pending) if !written && pending.poison() => {
                tracing::error!("the device failed before a message was complete: its subscribers will skip it");
            }
            Self::Block(loan, port) => lock(&port).give_back(loan),
            Self::Message(_) | Self::Word => {}
        }
    }
}

/// A message that a stream reads, and the memory that it reads: the pool or a copy.
#[derive(Debug)]
pub(crate) struct Releasing {
    /// `None` if the message was released when its copy was complete.
    pub(crate) _held: Option<Held>,
    pub(crate) _pool: Arc<dyn PoolMemory>,
}

impl OnCompletion for Releasing {
    fn completed(self, _: bool) {
        // Dropping releases it, also after a failure: a failed stream no longer reads.
    }
}

/// A point in a stream's work: after everything that the stream had when the point was made (a CUDA event).
#[derive(Debug)]
pub(crate) struct StreamPoint {
    stream: Stream,
    event: Event,
}

impl StreamPoint {
    /// The point after the work that the stream has so far.
    pub(crate) fn of(stream: &Stream) -> Self {
        Self { stream: stream.clone(), event: stream.record() }
    }

    /// The stream.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes later work of another stream wait for this point.
    pub(crate) fn precedes(&self, stream: &Stream, timeout: Duration) -> Result<(), DeviceError> {
        stream.wait(&self.event, timeout)
    }

    /// `None`: not reached yet. `Some(true)`: reached. `Some(false)`: the stream failed and never reaches it.
    fn outcome(&mut self) -> Option<bool> {
        match self.event.query() {
            Ok(false) => None,
            Ok(true) => Some(true),
            Err(_) => {
                // The query may have failed, and not the work: query a later point.
                let again = self.stream.record();
                if again.query().is_err() {
                    return Some(false);
                }
                self.event = again;
                None
            }
        }
    }
}

#[derive(Debug)]
struct Awaited<T> {
    /// In the stream that writes the word.
    point: StreamPoint,
    /// Points of other streams that must be reached as well.
    others: Vec<StreamPoint>,
    item: T,
}

impl<T> Awaited<T> {
    /// `None` until all points are reached; then whether the word was written.
    fn outcome(&mut self) -> Option<bool> {
        self.others.retain_mut(|point| point.outcome().is_none());
        if self.others.is_empty() { self.point.outcome() } else { None }
    }
}

/// The words of a segment that streams of this process write, and the items that await these writes.
#[derive(Debug)]
pub(crate) struct Completions<T: OnCompletion> {
    backend: Arc<dyn Backend>,
    segment: Arc<Segment>,
    /// The subscriber whose hold words the streams write. `None` for a publisher, whose ready words they write.
    pages: Option<Arc<SubscriberPages>>,
    // Declared before `ready` and `hold`, so that it is dropped before them: SC1.
    awaited: Mutex<Vec<Awaited<T>>>,
    ready: Mutex<Option<Arc<dyn StreamMemory>>>,
    hold: Mutex<Option<Arc<dyn StreamMemory>>>,
}

impl<T: OnCompletion> Completions<T> {
    /// For a publisher (`pages` is `None`), or for the subscriber of `pages`.
    pub(crate) fn new(backend: Arc<dyn Backend>, segment: Arc<Segment>, pages: Option<Arc<SubscriberPages>>) -> Self {
        let (awaited, ready, hold) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { backend, segment, pages, awaited, ready, hold }
    }

    /// The segment's ready words as device memory. The first call registers them with the device.
    pub(crate) fn ready_words(&self) -> Result<Arc<dyn StreamMemory>, DeviceError> {
        self.known(&self.ready, || self.segment.ready_words())
    }

    fn written_words(&self) -> Result<Arc<dyn StreamMemory>, DeviceError> {
        match &self.pages {
            None => self.ready_words(),
            Some(pages) => self.known(&self.hold, || pages.hold_words()),
        }
    }

    fn known(
        &self,
        words: &Mutex<Option<Arc<dyn StreamMemory>>>,
        map: impl FnOnce() -> Result<Arc<Mapping>, MapError>,
    ) -> Result<Arc<dyn StreamMemory>, DeviceError> {
        let mut words = lock(words);
        if let Some(words) = words.as_ref() {
            return Ok(words.clone());
        }
        let mapping = map().map_err(|source| DeviceError::Map { name: "words of a topic".to_owned(), source })?;
        Ok(words.insert(self.backend.stream_memory(&mapping)?).clone())
    }

    /// Makes a stream write a word of the segment. The caller must then `add` what has to live until the write.
    pub(crate) fn write(&self, stream: &Stream, (offset, value): (u64, u32)) -> Result<(), DeviceError> {
        let words = self.written_words()?;
        stream.write_value(&StreamWord { memory: words.as_ref(), offset }, value)
    }

    /// Makes a stream write READY into a message's ready word.
    pub(crate) fn write_ready(&self, stream: &Stream, message: MessageRef) -> Result<(), DeviceError> {
        self.write(stream, self.segment.ready_word(message))
    }

    /// Completes `item` after the stream's work so far.
    pub(crate) fn add(&self, stream: &Stream, item: T) {
        self.add_behind(stream, Vec::new(), item);
    }

    /// Like `add`, and also after the points `others`.
    pub(crate) fn add_behind(&self, stream: &Stream, others: Vec<StreamPoint>, item: T) {
        let awaited = Awaited { point: StreamPoint::of(stream), others, item };
        lock(&self.awaited).push(awaited);
        // Each addition removes up to two complete items, so that the list stays short. The node's thread checks all of it.
        for _ in 0..2 {
            let over = next_over(&mut lock(&self.awaited), 1);
            let Some((item, written)) = over else { break };
            item.completed(written);
        }
    }

    /// Completes all items whose work is over. Returns true if none is left.
    pub(crate) fn poll(&self) -> bool {
        loop {
            let mut awaited = lock(&self.awaited);
            let all = awaited.len();
            let Some((item, written)) = next_over(&mut awaited, all) else { return all == 0 };
            drop(awaited);
            item.completed(written);
        }
    }

    /// Waits for all items, before the slot is detached. Returns false after the time-out: then the rest stays allocated until the process ends.
    pub(crate) fn end(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        while !self.poll() {
            if start.elapsed() >= timeout {
                let left = std::mem::take(&mut *lock(&self.awaited));
                tracing::error!(
                    left = left.len(),
                    "a stream is stuck: its messages and their memory are kept until the process ends"
                );
                let _ = ManuallyDrop::new((left, lock(&self.ready).take(), lock(&self.hold).take()));
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// Removes the first completed item among the oldest `look_at`. Returns it, and whether its word was written.
fn next_over<T>(awaited: &mut Vec<Awaited<T>>, look_at: usize) -> Option<(T, bool)> {
    for index in 0..awaited.len().min(look_at) {
        if let Some(written) = awaited[index].outcome() {
            return Some((awaited.remove(index).item, written));
        }
    }
    None
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
