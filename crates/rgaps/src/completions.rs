//! What streams have still to do for a publisher or a subscriber: words that they will write, and what must live until they have.
//!
//! ```text
//!   push_on, publish_on ──▶ a message without its bytes ──event──▶ forgotten; poisoned if the device failed
//!     if refused        ──▶ a block                     ──event──▶ given back
//!   release_on          ──▶ a held message              ──event──▶ dropped, which tells its publisher
//! ```
//!
//! Invariants  S1 segment and pool stay known to the device until every event is complete. S2 a slot is left after that only: a late write
//!             would hit a word that is somebody else's by then.
//! Deaths      Of the process: the driver ends its streams before the manager sees it dead, or gone from all that were forked from it, and
//!             the manager poisons what was under way.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_device::{Backend, DeviceError, Event, PoolMemory, Stream, StreamMemory, StreamWord};
use rgaps_os::{MapError, Mapping};
use rgaps_shm::history::MessageRef;
use rgaps_shm::{Held, LoanedMessage, PendingMessage, Segment, SubscriberPages, WriterPort};

/// Between two looks of a thread that waits for all of it.
const LOOK: Duration = Duration::from_millis(1);

/// What is done once a stream has got there.
pub(crate) trait OnCompletion {
    /// The stream has written the word (`true`), or never will.
    fn completed(self, written: bool);
}

/// What streams have still to do for a publisher.
#[derive(Debug)]
pub(crate) enum Filling {
    /// A message without its bytes.
    Message(PendingMessage),
    /// A block that was not published after all, which work of before may still fill.
    Block(LoanedMessage, Arc<Mutex<WriterPort>>),
    /// The word of a message that a damaged topic did not take.
    Word,
}

impl OnCompletion for Filling {
    fn completed(self, written: bool) {
        match self {
            Self::Message(pending) if !written && pending.poison() => {
                tracing::error!("the device failed before a message was complete: its subscribers will pass it by");
            }
            Self::Block(loan, port) => lock(&port).give_back(loan),
            Self::Message(_) | Self::Word => {}
        }
    }
}

/// A message, and the pool, or the copy of it, that the stream reads it from.
#[derive(Debug)]
pub(crate) struct Releasing {
    /// `None`: it was released when its copy was made.
    pub(crate) _held: Option<Held>,
    pub(crate) _pool: Arc<dyn PoolMemory>,
}

impl OnCompletion for Releasing {
    fn completed(self, _: bool) {
        // Dropped: a stream that will never write reads no more either.
    }
}

/// The end of the work that a stream was given by a moment (a CUDA event).
#[derive(Debug)]
pub(crate) struct StreamPoint {
    stream: Stream,
    event: Event,
}

impl StreamPoint {
    /// The end of the work that the stream was given so far.
    pub(crate) fn of(stream: &Stream) -> Self {
        Self { stream: stream.clone(), event: stream.record() }
    }

    /// The stream.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes later work of another stream wait until this has been reached.
    pub(crate) fn precedes(&self, stream: &Stream, timeout: Duration) -> Result<(), DeviceError> {
        stream.wait(&self.event, timeout)
    }

    /// Whether the stream has got there; `Some(false)`: it never will.
    fn outcome(&mut self) -> Option<bool> {
        match self.event.query() {
            Ok(false) => None,
            Ok(true) => Some(true),
            Err(_) => {
                // The question may have failed, and not the work: a later place is asked.
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
    /// Of the stream that writes the word.
    point: StreamPoint,
    /// Places of other streams that have to be reached, too.
    others: Vec<StreamPoint>,
    item: T,
}

impl<T> Awaited<T> {
    /// Whether all of it is over, and if so whether the word was written.
    fn outcome(&mut self) -> Option<bool> {
        self.others.retain_mut(|point| point.outcome().is_none());
        if self.others.is_empty() { self.point.outcome() } else { None }
    }
}

/// Words of a segment that streams of this process write, and what they have not written yet.
#[derive(Debug)]
pub(crate) struct Completions<T: OnCompletion> {
    backend: Arc<dyn Backend>,
    segment: Arc<Segment>,
    /// Of the subscriber whose hold words are written; of a publisher, the ready words are.
    pages: Option<Arc<SubscriberPages>>,
    // Dropped last: S1.
    awaited: Mutex<Vec<Awaited<T>>>,
    ready: Mutex<Option<Arc<dyn StreamMemory>>>,
    hold: Mutex<Option<Arc<dyn StreamMemory>>>,
}

impl<T: OnCompletion> Completions<T> {
    /// For a publisher, or for the subscriber whose words these are.
    pub(crate) fn new(backend: Arc<dyn Backend>, segment: Arc<Segment>, pages: Option<Arc<SubscriberPages>>) -> Self {
        let (awaited, ready, hold) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { backend, segment, pages, awaited, ready, hold }
    }

    /// The words that say which messages have their bytes, as this device knows them; told at the first call.
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

    /// Tells a stream to write a word of the segment. What must live until it has is added next (`add`).
    pub(crate) fn write(&self, stream: &Stream, (offset, value): (u64, u32)) -> Result<(), DeviceError> {
        let words = self.written_words()?;
        stream.write_value(&StreamWord { memory: words.as_ref(), offset }, value)
    }

    /// Tells a stream to write that the bytes of a message are there.
    pub(crate) fn write_ready(&self, stream: &Stream, message: MessageRef) -> Result<(), DeviceError> {
        self.write(stream, self.segment.ready_word(message))
    }

    /// Completes `item` once a stream has done the work that it was given so far.
    pub(crate) fn add(&self, stream: &Stream, item: T) {
        self.add_behind(stream, Vec::new(), item);
    }

    /// As `add`, and once these places have been reached.
    pub(crate) fn add_behind(&self, stream: &Stream, others: Vec<StreamPoint>, item: T) {
        let awaited = Awaited { point: StreamPoint::of(stream), others, item };
        lock(&self.awaited).push(awaited);
        // Two out for one in, so that the list stays short; the node's thread looks at all of it.
        for _ in 0..2 {
            let over = next_over(&mut lock(&self.awaited), 1);
            let Some((item, written)) = over else { break };
            item.completed(written);
        }
    }

    /// Completes all that is over. True if nothing is left.
    pub(crate) fn poll(&self) -> bool {
        loop {
            let mut awaited = lock(&self.awaited);
            let all = awaited.len();
            let Some((item, written)) = next_over(&mut awaited, all) else { return all == 0 };
            drop(awaited);
            item.completed(written);
        }
    }

    /// Waits until all is over, before the slot is left. False if it takes too long: then all of it stays for as long as the process does.
    pub(crate) fn end(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        while !self.poll() {
            if start.elapsed() >= timeout {
                let left = std::mem::take(&mut *lock(&self.awaited));
                tracing::error!(
                    left = left.len(),
                    "a stream is stuck: what it was to write is kept until the process ends"
                );
                let _ = ManuallyDrop::new((left, lock(&self.ready).take(), lock(&self.hold).take()));
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// The first of the oldest `look_at` that is over, and whether its word was written.
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
