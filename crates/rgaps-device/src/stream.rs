//! Streams, events and completions: the order of work on a device.
//!
//! Work of one stream is done in order. An event marks a place in a stream; a completion is the event behind a copy. On the host
//! backend work is done when its call returns, so all three are empty; another backend puts a `StreamBody` and an `EventBody` behind
//! them, and callers are written once. A failure of the device shows when an event is asked, never as "complete".
//!
//! A stream also writes 32-bit words of shared memory and waits for them: CUDA's stream memory operations, cuStreamWriteValue32 and
//! cuStreamWaitValue32. So one process's stream follows another's, and no CPU waits for either.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps_os::{Mapping, OutOfRange};

use crate::error::DeviceError;

/// Between two looks of a thread that waits for a word.
const LOOK: Duration = Duration::from_micros(50);

/// A stream of a backend whose work goes on after a call.
pub trait StreamBody: Debug + Send + Sync {
    /// An error if it takes no work now.
    fn check(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Marks the end of the work given so far. A failure to do so is the event's to report.
    fn record(self: Arc<Self>) -> Arc<dyn EventBody>;

    /// Makes later work of this stream wait for an event, on the device; the caller does not wait.
    fn wait(&self, event: &Event) -> Result<(), DeviceError>;

    /// Writes a word once the work given so far is done; the caller does not wait. What that work wrote is seen by whoever sees the word.
    fn write_value(&self, word: &StreamWord<'_>, value: u32) -> Result<(), DeviceError>;

    /// Makes later work wait until the word has reached `value` (`StreamWord::has_reached`). Where the device cannot, the caller waits, at most
    /// `timeout`.
    fn wait_value(&self, word: &StreamWord<'_>, value: u32, timeout: Duration) -> Result<(), DeviceError>;

    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Shared memory whose words streams of a device write and wait for (`Backend::stream_memory`). Registered with the device while this lives, which
/// must be for as long as a stream may still get to one of them.
pub trait StreamMemory: Debug + Send + Sync {
    /// The memory.
    fn mapping(&self) -> &Mapping;

    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A 32-bit word of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct StreamWord<'a> {
    /// The memory that it is in.
    pub memory: &'a dyn StreamMemory,
    /// Its first byte; a multiple of 4.
    pub offset: u64,
}

impl StreamWord<'_> {
    /// Whether it is a word of that memory.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.memory.mapping().atomic_u32(self.offset).map(|_| ())
    }

    /// Whether it is `value` or beyond, as counts that wrap are compared: what a stream's wait compares too.
    pub fn has_reached(&self, value: u32) -> Result<bool, OutOfRange> {
        let found = self.memory.mapping().atomic_u32(self.offset)?.load(Ordering::Acquire);
        Ok(found.wrapping_sub(value).cast_signed() >= 0)
    }

    /// Writes it, now.
    pub fn write(&self, value: u32) -> Result<(), OutOfRange> {
        self.memory.mapping().atomic_u32(self.offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Waits until it has reached `value`.
    pub fn wait(&self, value: u32, timeout: Duration) -> Result<(), DeviceError> {
        let start = Instant::now();
        while !self.has_reached(value)? {
            if start.elapsed() >= timeout {
                return Err(DeviceError::TimedOut(timeout));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// An event of such a stream.
pub trait EventBody: Debug + Send + Sync {
    /// Whether the stream has got there; not yet either, as long as nobody can tell. After an error it never will, or the work is over and
    /// has failed. Never waits.
    fn query(&self) -> Result<bool, DeviceError>;

    /// Waits until it has, or gives `DeviceError::TimedOut`.
    fn wait(&self, timeout: Duration) -> Result<(), DeviceError>;

    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

/// An ordered queue of work on a device. A clone is the same queue.
#[derive(Clone, Debug)]
pub struct Stream(Option<Arc<dyn StreamBody>>);

impl Stream {
    /// A stream whose work is done when its call returns.
    pub fn immediate() -> Self {
        Self(None)
    }

    /// A stream of a backend.
    pub fn new(body: Arc<dyn StreamBody>) -> Self {
        Self(Some(body))
    }

    /// An error if it takes no work now, as one that is being captured into a CUDA graph.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.0.as_ref().map_or(Ok(()), |body| body.check())
    }

    /// Marks a place in the stream: the end of the work given so far.
    pub fn record(&self) -> Event {
        Event(self.0.as_ref().map(|body| body.clone().record()))
    }

    /// Makes later work of this stream wait for an event of another; the caller does not wait, unless work is immediate here and not
    /// there: then `timeout` bounds it.
    pub fn wait(&self, event: &Event, timeout: Duration) -> Result<(), DeviceError> {
        match &self.0 {
            Some(body) => body.wait(event),
            None => event.wait(timeout),
        }
    }

    /// Writes a word once the work given so far is done. What that work wrote is seen by whoever sees the word.
    pub fn write_value(&self, word: &StreamWord<'_>, value: u32) -> Result<(), DeviceError> {
        match &self.0 {
            Some(body) => body.write_value(word, value),
            None => Ok(word.write(value)?),
        }
    }

    /// Makes later work of this stream wait until a word has reached `value`; the caller does not wait, unless work is immediate here or
    /// the device cannot wait for words: then `timeout` bounds it.
    pub fn wait_value(&self, word: &StreamWord<'_>, value: u32, timeout: Duration) -> Result<(), DeviceError> {
        match &self.0 {
            Some(body) => body.wait_value(word, value, timeout),
            None => word.wait(value, timeout),
        }
    }

    /// What the backend put behind it; `None`: work is immediate.
    pub(crate) fn body(&self) -> Option<&Arc<dyn StreamBody>> {
        self.0.as_ref()
    }

    /// Waits until all work given so far is done.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.check()?;
        self.record().wait(timeout)
    }
}

/// A place in a stream.
#[derive(Clone, Debug)]
pub struct Event(Option<Arc<dyn EventBody>>);

impl Event {
    /// Whether the stream has got there, or what has gone wrong with the device; not yet either, while the stream is being captured into a
    /// CUDA graph.
    pub fn query(&self) -> Result<bool, DeviceError> {
        self.0.as_ref().map_or(Ok(true), |body| body.query())
    }

    /// Waits until the stream has got there.
    pub fn wait(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.0.as_ref().map_or(Ok(()), |body| body.wait(timeout))
    }

    /// Whether the stream has got there; false also after a failure, which `query` tells.
    pub fn is_complete(&self) -> bool {
        matches!(self.query(), Ok(true))
    }

    /// What the backend put behind it; `None`: it was complete at birth.
    pub(crate) fn body(&self) -> Option<&Arc<dyn EventBody>> {
        self.0.as_ref()
    }
}

/// A copy that was started.
#[derive(Clone, Debug)]
#[must_use = "bytes may be used only once the copy is complete"]
pub struct Completion(Event);

impl Completion {
    /// Completion of all the work that was given to the stream so far.
    pub fn of(stream: &Stream) -> Self {
        Self(stream.record())
    }

    /// Whether the bytes are there, or what has gone wrong with the device.
    pub fn query(&self) -> Result<bool, DeviceError> {
        self.0.query()
    }

    /// Waits for the bytes.
    pub fn wait(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.0.wait(timeout)
    }

    /// Whether the bytes are there; false also after a failure, which `query` tells.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    /// Whether the copy touches no memory any more: it is complete, or has failed.
    pub fn is_over(&self) -> bool {
        self.query().unwrap_or(true)
    }

    /// The place in the stream where they are.
    pub fn event(&self) -> &Event {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_an_immediate_stream_is_done_at_once() {
        let stream = Stream::immediate();
        let event = stream.record();
        assert!(event.query().unwrap() && event.is_complete());
        event.wait(Duration::ZERO).unwrap();
        stream.wait(&event, Duration::ZERO).unwrap();
        stream.synchronize(Duration::ZERO).unwrap();
    }
}
