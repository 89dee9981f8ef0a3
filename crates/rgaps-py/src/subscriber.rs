//! Subscribers. The asyncio part is python/rgaps/_aio.py.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use rgaps::device::Stream;
use rgaps::dynamic::{DynamicSample, DynamicSubscriber};
use rgaps::{MessageHandle, TakeByHandleError};

use crate::annotations::generic;
use crate::info::SubscriberStatistics;
use crate::node_cell::{Child, NodeCell};
use crate::sample::Sample;
use crate::{errors, handle, meta, stream};

/// How long a wait may delay Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);

pub(crate) struct SubscriberCell {
    subscriber: Mutex<Option<DynamicSubscriber>>,
    node: Arc<NodeCell>,
    topic: String,
    /// The object that asyncio's tasks wait on; made when the first task waits.
    waiters: Mutex<Option<Py<PyAny>>>,
}

impl SubscriberCell {
    pub(crate) fn new(subscriber: DynamicSubscriber, node: Arc<NodeCell>) -> Self {
        let topic = subscriber.topic().to_owned();
        Self { subscriber: Mutex::new(Some(subscriber)), node, topic, waiters: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<DynamicSubscriber>> {
        self.subscriber.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> PyResult<DynamicSubscriber> {
        // Unlock before making an exception: that runs Python code, which may switch threads.
        let subscriber = self.lock().clone();
        subscriber.ok_or_else(|| errors::closed("subscriber"))
    }

    fn sample(self: &Arc<Self>, message: DynamicSample, taken_on: Option<u64>) -> Sample {
        Sample::new(message, self.node.clone(), self.topic.clone(), taken_on)
    }
}

impl Child for SubscriberCell {
    fn close(&self, py: Python<'_>) {
        let subscriber = self.lock().take();
        py.detach(|| drop(subscriber));
        let waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waiters) = waiters
            && let Err(error) = waiters.call_method0(py, "close")
        {
            error.write_unraisable(py, Some(waiters.bind(py)));
        }
    }
}

/// Takes messages of one type from one topic. Usable from any thread, in `with`, `for` and `async for`.
///
/// >>> subscriber = node.subscriber("raw", rgaps.Bytes, depth=2)
/// >>> publisher = node.publisher("raw", rgaps.Bytes)
/// >>> handles = [publisher.push(text) for text in (b"one", b"two", b"three")]
/// >>> subscriber.wait(timeout=1.0).tobytes(), subscriber.take().tobytes(), subscriber.take()
/// (b'two', b'three', None)
/// >>> subscriber.statistics.lost
/// 1
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Subscriber {
    cell: Arc<SubscriberCell>,
}

impl Subscriber {
    pub(crate) fn new(cell: Arc<SubscriberCell>) -> Self {
        Self { cell }
    }

    /// The core's subscriber.
    pub(crate) fn core(&self) -> PyResult<DynamicSubscriber> {
        self.cell.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.cell.lock().is_none()
    }

    pub(crate) fn sample(&self, message: DynamicSample, taken_on: Option<u64>) -> Sample {
        self.cell.sample(message, taken_on)
    }

    /// Takes by handle. The outer error is a signal's exception, or says that the subscriber is closed.
    pub(crate) fn take_named(
        &self,
        py: Python<'_>,
        named: &MessageHandle,
        timeout: Duration,
        on: Option<&Stream>,
    ) -> PyResult<Result<DynamicSample, TakeByHandleError>> {
        let subscriber = self.cell.get()?;
        let interrupted = Mutex::new(None);
        let taken = py.detach(|| {
            let taken = subscriber.take_by_handle_unless(named, timeout, on, || {
                let signals = Python::attach(|py| py.check_signals()).err();
                let is_interrupted = signals.is_some();
                *interrupted.lock().unwrap_or_else(PoisonError::into_inner) = signals;
                is_interrupted || self.is_closed()
            });
            // This may be the last reference, if another thread closes the subscriber meanwhile.
            drop(subscriber);
            taken
        });
        if let Some(signal) = interrupted.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(signal);
        }
        if taken.is_err() && self.is_closed() { Err(errors::closed("subscriber")) } else { Ok(taken) }
    }

    fn wait_for(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Option<Sample>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let subscriber = self.cell.get()?;
            let left = deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
            let found = py.detach(|| {
                let found = subscriber.wait(left.min(SLICE));
                // This may be the last reference, if another thread closes the subscriber meanwhile.
                drop(subscriber);
                found
            });
            if let Some(message) = found.map_err(|error| errors::of_take(&error))? {
                return Ok(Some(self.cell.sample(message, None)));
            }
            py.check_signals()?;
            if deadline.is_some() && left <= SLICE {
                return Ok(None);
            }
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // Closes without holding the GIL during the request to the manager. Without an interpreter, the fields' destructors do it.
        Python::try_attach(|py| self.cell.close(py));
    }
}

/// A time-out in seconds.
pub(crate) fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        None => Ok(None),
        Some(seconds) if seconds.is_nan() => {
            Err(PyValueError::new_err("a time-out must be a number of seconds, or None"))
        }
        // A value out of range waits for ever.
        Some(seconds) => Ok(Some(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))),
    }
}

#[pymethods]
impl Subscriber {
    /// Takes the next message if one is ready, else returns None.
    ///
    /// With a stream, the message's bytes may still be pending on the GPU: later work on the stream waits for them, this call does not.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> while (sample := subscriber.take()) is not None:
    /// ...     sample.tobytes()
    /// b'hello'
    #[pyo3(signature = (stream = None))]
    fn take(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Sample>> {
        let subscriber = self.cell.get()?;
        let handle = stream::handle(stream)?;
        let on = handle.map(|handle| self.cell.node.borrow_stream(handle, stream)).transpose()?;
        let found = py.detach(|| match &on {
            Some(stream) => subscriber.take_on(stream),
            None => subscriber.take(),
        });
        let found = found.map_err(|error| errors::of_take(&error))?;
        Ok(found.map(|message| self.cell.sample(message, handle)))
    }

    /// Takes all messages that are ready, oldest first. An error ends the batch. It is raised only if nothing could be taken, so a lasting error
    /// is raised by the next call (TooManyHeldError is, while the batch is held).
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> publisher = node.publisher("raw", rgaps.Bytes)
    /// >>> handles = [publisher.push(text) for text in (b"one", b"two")]
    /// >>> [sample.tobytes() for sample in subscriber.take_all()]
    /// [b'one', b'two']
    fn take_all(&self, py: Python<'_>) -> PyResult<Vec<Sample>> {
        let mut samples = Vec::new();
        loop {
            match self.take(py, None) {
                Ok(Some(sample)) => samples.push(sample),
                Err(error) if samples.is_empty() => return Err(error),
                Err(_) | Ok(None) => return Ok(samples),
            }
        }
    }

    /// Waits for the next message. Returns None if none arrives within `timeout` seconds; without a time-out it waits for ever. It releases the
    /// GIL meanwhile, and Ctrl-C interrupts it.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> if subscriber.wait(timeout=0.01) is None:
    /// ...     print("no message within 10 ms")
    /// no message within 10 ms
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Sample>> {
        self.wait_for(py, seconds(timeout)?)
    }

    /// Takes the message that `handle` (an rgaps.MessageHandle or its bytes) names, waiting up to `timeout` seconds for it to arrive. StaleError
    /// says why the message can no longer be taken; HandleTimeoutError says that it did not arrive. Earlier messages remain unread for
    /// `take`, `wait` and takes by handle in any order. It releases the GIL meanwhile, and Ctrl-C interrupts it. `stream` is as for `take`.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> publisher = node.publisher("raw", rgaps.Bytes)
    /// >>> first, second = publisher.push(b"one"), publisher.push(b"two")
    /// >>> carried = bytes(second)  # by other middleware
    /// >>> subscriber.take_by_handle(carried, timeout=1.0).tobytes(), subscriber.take().tobytes()
    /// (b'two', b'one')
    #[pyo3(signature = (handle, timeout = 1.0, stream = None))]
    fn take_by_handle(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Sample> {
        self.cell.get()?;
        let named = handle::of_python(handle)?;
        let timeout = seconds(timeout)?.unwrap_or(Duration::MAX);
        let taken_on = stream::handle(stream)?;
        let on = taken_on.map(|handle| self.cell.node.borrow_stream(handle, stream)).transpose()?;
        let taken = self.take_named(py, &named, timeout, on.as_ref())?;
        let message = taken.map_err(|error| errors::of_take_by_handle(&error))?;
        Ok(self.cell.sample(message, taken_on))
    }

    /// Declares that takes by handle follow each publisher's order from now on. Taking a message then releases that publisher's earlier untaken
    /// messages instead of keeping them. They count as lost, except those before the first take by handle from that publisher.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> publisher = node.publisher("raw", rgaps.Bytes)
    /// >>> subscriber.expect_handles_in_order()
    /// >>> first, second, third = [publisher.push(text) for text in (b"one", b"two", b"three")]
    /// >>> [subscriber.take_by_handle(handle).tobytes() for handle in (first, third)]
    /// [b'one', b'three']
    /// >>> subscriber.take() is None, subscriber.statistics.lost
    /// (True, 1)
    fn expect_handles_in_order(&self, py: Python<'_>) -> PyResult<()> {
        let subscriber = self.cell.get()?;
        py.detach(|| subscriber.expect_handles_in_order());
        Ok(())
    }

    /// Awaits the next message (asyncio). Returns None if none arrives within `timeout` seconds. Several tasks may wait on one subscriber: each
    /// message goes to one task, and a cancelled task takes none.
    ///
    /// >>> import asyncio
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> async def first():
    /// ...     sample = await subscriber.next(timeout=1.0)
    /// ...     return sample.tobytes()
    /// >>> asyncio.run(first())
    /// b'hello'
    #[pyo3(signature = (timeout = None))]
    fn next<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        seconds(timeout)?;
        slf.py().import("rgaps._aio")?.call_method1("next_message", (slf, timeout))
    }

    /// The object that asyncio's tasks wait on. Private to the package.
    #[getter]
    fn _waiters(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (py, cell) = (slf.py(), &slf.get().cell);
        let known = || cell.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiters) = known().as_ref().map(|waiters| waiters.clone_ref(py)) {
            return Ok(waiters);
        }
        let made = py.import("rgaps._aio")?.call_method0("Waiters")?.unbind();
        let waiters = known().get_or_insert_with(|| made.clone_ref(py)).clone_ref(py);
        // A close before this point did not see these waiters, so wake them here.
        if slf.get().closed() {
            waiters.call_method0(py, "close")?;
        }
        cell.get()?;
        Ok(waiters)
    }

    /// A file descriptor that is readable while a message may be ready, for select, epoll and event loops. Do not read from it: call `take` until it
    /// returns None, which resets it.
    ///
    /// >>> import select
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> poll = select.poll()
    /// >>> poll.register(subscriber, select.POLLIN)
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> len(poll.poll(1000)), subscriber.take().tobytes(), subscriber.take()
    /// (1, b'hello', None)
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let subscriber = self.cell.get()?;
        let found = py.detach(|| subscriber.event_fd().map(|fd| fd.as_raw_fd()));
        found.map_err(|error| errors::of_take(&error))
    }

    /// The topic's fully qualified name.
    #[getter]
    fn topic(&self) -> &str {
        &self.cell.topic
    }

    /// The metadata class of the topic.
    #[getter]
    fn r#type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(meta::class_of(py, self.cell.get()?.kind()))
    }

    /// Counters of this subscriber.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes, depth=1)
    /// >>> publisher = node.publisher("raw", rgaps.Bytes)
    /// >>> handles = [publisher.push(b"hello") for _ in range(5)]
    /// >>> sample = subscriber.take()
    /// >>> subscriber.statistics.taken, subscriber.statistics.lost, subscriber.statistics.held
    /// (1, 4, 1)
    #[getter]
    fn statistics(&self, py: Python<'_>) -> PyResult<SubscriberStatistics> {
        let subscriber = self.cell.get()?;
        Ok(py.detach(|| subscriber.statistics()).into())
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// Closes the subscriber. Samples that were taken stay valid; waiting calls raise ClosedError, and loops end.
    fn close(&self, py: Python<'_>) {
        self.cell.close(py);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.cell.close(py);
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Sample>> {
        match self.wait_for(py, None) {
            Err(_) if self.closed() => Ok(None),
            other => other,
        }
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("rgaps._aio")?.call_method1("next_of_loop", (slf,))
    }

    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, item: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        generic(class, item)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<rgaps.Subscriber of {}{state}>", self.cell.topic)
    }
}
