//! Streams, events and completions: the order of work on a device.
//!
//! A stream does its work in order. An event marks a point in a stream; a completion is the event recorded after a copy. On the host
//! backend work is done when the call returns, so all three are empty. Other backends put a `StreamBody` and an `EventBody` behind
//! them, so callers are the same for all. A device failure appears as an error of `Event::query`, never as "complete".
//!
//! A stream also writes 32-bit words of shared memory and waits for them: CUDA's stream memory operations, cuStreamWriteValue32 and
//! cuStreamWaitValue32. With them a stream waits for a stream of another process, and no CPU waits.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps_os::{Mapping, OutOfRange};

use crate::error::DeviceError;

/// How often a waiting thread polls a word.
const LOOK: Duration = Duration::from_micros(50);

/// A stream of a backend that works asynchronously.
pub trait StreamBody: Debug + Send + Sync {
    /// An error if it takes no work now.
    fn check(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Records an event after the work given so far. If that fails, the event reports the error.
    fn record(self: Arc<Self>) -> Arc<dyn EventBody>;

    /// Makes later work of this stream wait for an event, on the device; the caller does not wait.
    fn wait(&self, event: &Event) -> Result<(), DeviceError>;

    /// Writes a word once the work given so far is done; the caller does not wait. A reader that sees the word sees what that work wrote.
    fn write_value(&self, word: &StreamWord<'_>, value: u32) -> Result<(), DeviceError>;

    /// Makes later work wait until the word has reached `value` (`StreamWord::has_reached`). If the device cannot do that, the caller waits
    /// for at most `timeout`.
    fn wait_value(&self, word: &StreamWord<'_>, value: u32, timeout: Duration) -> Result<(), DeviceError>;

    /// Whether `wait_value` returns at once.
    fn can_wait_for(&self, word: &StreamWord<'_>) -> bool {
        let _ = word;
        true
    }

    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Shared memory whose words a device's streams write and wait for (`Backend::stream_memory`). It stays registered with the device until
/// dropped; keep it until no stream has pending work on one of its words.
pub trait StreamMemory: Debug + Send + Sync {
    /// The memory.
    fn mapping(&self) -> &Mapping;

    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A 32-bit word of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct StreamWord<'a> {
    /// The memory that contains it.
    pub memory: &'a dyn StreamMemory,
    /// Byte offset; a multiple of 4.
    pub offset: u64,
}

impl StreamWord<'_> {
    /// Checks that the word is inside the memory and aligned.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.memory.mapping().atomic_u32(self.offset).map(|_| ())
    }

    /// Whether the word is at or past `value`, compared as a wrapping counter, like CU_STREAM_WAIT_VALUE_GEQ.
    pub fn has_reached(&self, value: u32) -> Result<bool, OutOfRange> {
        let found = self.memory.mapping().atomic_u32(self.offset)?.load(Ordering::Acquire);
        Ok(found.wrapping_sub(value).cast_signed() >= 0)
    }

    /// Writes the word from the CPU.
    pub fn write(&self, value: u32) -> Result<(), OutOfRange> {
        self.memory.mapping().atomic_u32(self.offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Blocks until the word has reached `value`.
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

/// An event of a backend that works asynchronously.
pub trait EventBody: Debug + Send + Sync {
    /// Whether the stream has reached the event; false also while that is unknown. After an error the stream never reaches it, or its work
    /// has failed. Never waits.
    fn query(&self) -> Result<bool, DeviceError>;

    /// Waits until the stream has reached the event. Returns `DeviceError::TimedOut` after `timeout`.
    fn wait(&self, timeout: Duration) -> Result<(), DeviceError>;

    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

/// An ordered queue of work on a device. A clone refers to the same queue.
#[derive(Clone, Debug)]
pub struct Stream(Option<Arc<dyn StreamBody>>);

impl Stream {
    /// A stream whose work is done when the call returns.
    pub fn immediate() -> Self {
        Self(None)
    }

    /// A stream of a backend.
    pub fn new(body: Arc<dyn StreamBody>) -> Self {
        Self(Some(body))
    }

    /// An error if it takes no work now, for example while it is captured into a CUDA graph.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.0.as_ref().map_or(Ok(()), |body| body.check())
    }

    /// Records an event after the work given so far.
    pub fn record(&self) -> Event {
        Event(self.0.as_ref().map(|body| body.clone().record()))
    }

    /// Makes later work of this stream wait for an event of another. The caller waits only if this stream is immediate and the other is
    /// not, for at most `timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rgaps_device::{Backend, Choice, open};
    ///
    /// let backend = open(Choice::Auto)?.backend;
    /// let (camera, detector) = (backend.stream()?, backend.stream()?);
    /// let event = camera.record(); // after the work of `camera` so far
    /// detector.wait(&event, Duration::from_secs(1))?; // later work of `detector` follows it
    /// detector.synchronize(Duration::from_secs(1))?;
    /// assert!(event.is_complete());
    /// # Ok::<(), rgaps_device::DeviceError>(())
    /// ```
    pub fn wait(&self, event: &Event, timeout: Duration) -> Result<(), DeviceError> {
        match &self.0 {
            Some(body) => body.wait(event),
            None => event.wait(timeout),
        }
    }

    /// Writes a word once the work given so far is done. A reader that sees the word sees what that work wrote.
    pub fn write_value(&self, word: &StreamWord<'_>, value: u32) -> Result<(), DeviceError> {
        match &self.0 {
            Some(body) => body.write_value(word, value),
            None => Ok(word.write(value)?),
        }
    }

    /// Makes later work of this stream wait until a word has reached `value`. The caller waits only if this stream is immediate or the device
    /// cannot wait for words, for at most `timeout`.
    pub fn wait_value(&self, word: &StreamWord<'_>, value: u32, timeout: Duration) -> Result<(), DeviceError> {
        match &self.0 {
            Some(body) => body.wait_value(word, value, timeout),
            None => word.wait(value, timeout),
        }
    }

    /// Whether `wait_value` returns at once: the device waits for the word, not the caller.
    pub fn can_wait_for(&self, word: &StreamWord<'_>) -> bool {
        self.0.as_ref().is_some_and(|body| body.can_wait_for(word))
    }

    /// The backend's stream; `None`: work is immediate.
    pub(crate) fn body(&self) -> Option<&Arc<dyn StreamBody>> {
        self.0.as_ref()
    }

    /// Waits until all work given so far is done.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.check()?;
        self.record().wait(timeout)
    }
}

/// A point in a stream.
#[derive(Clone, Debug)]
pub struct Event(Option<Arc<dyn EventBody>>);

impl Event {
    /// Whether the stream has reached the event; false also while the stream is captured into a CUDA graph. An error if the device failed.
    pub fn query(&self) -> Result<bool, DeviceError> {
        self.0.as_ref().map_or(Ok(true), |body| body.query())
    }

    /// Waits until the stream has reached the event.
    pub fn wait(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.0.as_ref().map_or(Ok(()), |body| body.wait(timeout))
    }

    /// Whether the stream has reached the event; false also after a failure, which `query` returns.
    pub fn is_complete(&self) -> bool {
        matches!(self.query(), Ok(true))
    }

    /// The backend's event; `None`: complete from the start.
    pub(crate) fn body(&self) -> Option<&Arc<dyn EventBody>> {
        self.0.as_ref()
    }
}

/// The event after a copy that was started.
#[derive(Clone, Debug)]
#[must_use = "bytes may be used only once the copy is complete"]
pub struct Completion(Event);

impl Completion {
    /// Completion of all work given to the stream so far.
    pub fn of(stream: &Stream) -> Self {
        Self(stream.record())
    }

    /// Whether the bytes have been copied. An error if the device failed.
    pub fn query(&self) -> Result<bool, DeviceError> {
        self.0.query()
    }

    /// Waits until the bytes have been copied.
    pub fn wait(&self, timeout: Duration) -> Result<(), DeviceError> {
        self.0.wait(timeout)
    }

    /// Whether the bytes have been copied; false also after a failure, which `query` returns.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    /// Whether the copy no longer touches memory: it is complete or has failed.
    pub fn is_over(&self) -> bool {
        self.query().unwrap_or(true)
    }

    /// The event itself, for other streams to wait for.
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
