//! Publishers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rgaps::device::{DeviceError, Event};
use rgaps::dynamic::{DynamicMeta, DynamicPublisher};
use rgaps::types::{Bytes, Image, PointCloud, Tensor};

use crate::annotations::generic;
use crate::handle::MessageHandle;
use crate::info::PublisherStatistics;
use crate::loan::Loan;
use crate::node_cell::{Child, NodeCell};
use crate::sample::Sample;
use crate::source::{Keep, Source};
use crate::{batch, errors, layout, meta, raw, stream};

/// How long closing a publisher waits for streams that still read pushed arrays.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// A publisher, and the GPU arrays that streams have not copied yet.
pub(crate) struct PublisherCell {
    publisher: Mutex<Option<DynamicPublisher>>,
    node: Arc<NodeCell>,
    topic: String,
    sent: Mutex<Vec<(Event, Keep)>>,
}

impl PublisherCell {
    pub(crate) fn new(publisher: DynamicPublisher, node: Arc<NodeCell>) -> Self {
        let topic = publisher.topic().to_owned();
        Self { publisher: Mutex::new(Some(publisher)), node, topic, sent: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<DynamicPublisher>> {
        self.publisher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> PyResult<DynamicPublisher> {
        // Unlock before making an exception: that runs Python code, which may switch threads.
        let publisher = self.lock().clone();
        publisher.ok_or_else(|| errors::closed("publisher"))
    }

    fn sent(&self) -> MutexGuard<'_, Vec<(Event, Keep)>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the copies and returns the arrays that are copied. After the time-out, arrays that a stream may still read are leaked; in a
    /// forked child all are, since they belong to the parent.
    fn wait_for(&self, sent: Vec<(Event, Keep)>) -> Vec<Keep> {
        let mut over = Vec::new();
        let start = Instant::now();
        for (event, keep) in sent {
            let left = DEVICE_TIMEOUT.saturating_sub(start.elapsed());
            if self.node.is_owner() && !matches!(event.wait(left), Err(DeviceError::TimedOut(_))) {
                over.push(keep);
            } else {
                std::mem::forget((event, keep));
            }
        }
        over
    }

    /// Releases arrays that have been copied. Drops them without the lock, since their libraries may call Python.
    fn give_up(&self) {
        if !self.node.is_owner() {
            return;
        }
        let is_over = |event: &Event| event.query().unwrap_or(true);
        let over: Vec<_> = self.sent().extract_if(.., |(event, _)| is_over(event)).collect();
        drop(over);
    }
}

impl Child for PublisherCell {
    fn close(&self, py: Python<'_>) {
        let publisher = self.lock().take();
        py.detach(|| drop(publisher));
        let sent = std::mem::take(&mut *self.sent());
        if !sent.is_empty() {
            let over = py.detach(|| self.wait_for(sent));
            drop(over);
        }
    }
}

impl Drop for PublisherCell {
    fn drop(&mut self) {
        // Another thread may have pushed while the publisher was being closed.
        let sent = std::mem::take(&mut *self.sent());
        drop(self.wait_for(sent));
    }
}

/// Publishes messages of one type on one topic. Usable from any thread, and in `with`.
///
/// >>> publisher = node.publisher("camera/front", rgaps.Image)
/// >>> handle = publisher.push(np.zeros((480, 640, 3), np.uint8))
/// >>> handle.sequence, publisher.statistics.published
/// (1, 1)
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Publisher {
    cell: Arc<PublisherCell>,
}

impl Publisher {
    pub(crate) fn new(cell: Arc<PublisherCell>) -> Self {
        Self { cell }
    }

    /// Releases pushed arrays that have been copied.
    pub(crate) fn release_copied(&self) {
        self.cell.give_up();
    }

    /// The core's publisher.
    pub(crate) fn core(&self) -> PyResult<DynamicPublisher> {
        self.cell.get()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Closes without holding the GIL during the request to the manager. Without an interpreter, the fields' destructors do it.
        Python::try_attach(|py| self.cell.close(py));
    }
}

#[pymethods]
impl Publisher {
    /// Loans a block of the pool for the bytes that `meta` describes, to fill in place. The publisher's QoS decides what happens when the pool is
    /// full. `stream` is the stream on which `with` publishes.
    ///
    /// >>> publisher = node.publisher("activations", rgaps.Tensor)
    /// >>> loan = publisher.loan(rgaps.Tensor((2, 3), "float32"))
    /// >>> np.asarray(loan)[:] = 0.5
    /// >>> loan.publish().sequence
    /// 1
    #[pyo3(signature = (meta, *, stream = None))]
    fn loan(&self, py: Python<'_>, meta: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Loan> {
        let (publisher, meta) = (self.cell.get()?, meta::of_python(meta)?);
        let stream_handle = stream::handle(stream)?;
        if let Some(handle) = stream_handle {
            self.cell.node.borrow_stream(handle, stream)?;
        }
        let loan = py.detach(|| publisher.loan(&meta)).map_err(|error| errors::of_publish(&error))?;
        Ok(Loan::new(loan, self.cell.node.clone(), self.cell.topic.clone(), stream_handle))
    }

    /// Publishes an array in other memory: one copy into the pool, whatever the number of subscribers. Returns the message's handle.
    ///
    /// The array is numpy's, torch's, cupy's, or anything with a buffer. Without `meta`, the metadata comes from the array, completed by
    /// `encoding`, `stamp`, `frame_id` and `user`; a forwarded sample keeps its metadata. An array on a GPU is copied in the order of `stream`
    /// (default: the legacy default stream). The call does not wait for that copy: the array is kept until the copy is done, and you must not
    /// write it before.
    ///
    /// >>> publisher = node.publisher("depth", rgaps.Image)
    /// >>> subscriber = node.subscriber("depth", rgaps.Image)
    /// >>> handle = publisher.push(np.zeros((480, 640), np.uint16), encoding="16UC1", frame_id="camera_front")
    /// >>> sample = subscriber.take()
    /// >>> sample.meta.encoding, sample.meta.frame_id, sample.handle == handle
    /// ('16UC1', 'camera_front', True)
    #[pyo3(signature = (array, meta = None, *, stream = None, encoding = None, stamp = None, frame_id = None, user = None))]
    #[allow(clippy::too_many_arguments)] // Keywords, in Python.
    fn push(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        encoding: Option<&str>,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<MessageHandle> {
        let publisher = self.cell.get()?;
        self.cell.give_up();
        let handle = stream::handle(stream)?;
        let source = Source::of(array, handle.unwrap_or(0))?;
        let mut described = match meta {
            Some(meta) if encoding.is_none() => meta::of_python(meta)?,
            Some(_) => {
                return Err(errors::metadata(
                    "an encoding was given beside metadata, which already has one; pass only one of them",
                ));
            }
            None if encoding.is_none() && array.is_instance_of::<Sample>() => array.cast::<Sample>()?.get().any_meta(),
            None => layout::like(publisher.kind(), array, &source.shape, encoding)?,
        };
        described = with_header(described, stamp, frame_id, user)?;
        if described.kind() != publisher.kind() {
            let refused = publisher.push(&described, &[]).map(MessageHandle::from);
            return refused.map_err(|error| errors::of_publish(&error));
        }
        let plan = layout::gather(&described, &source.shape)?;
        let bytes = described.payload_bytes();
        let is_one_run = plan.is_one_run(bytes);
        if source.is_cuda {
            if !is_one_run {
                return Err(errors::metadata(&format!(
                    "the array on the GPU, {}, does not have the layout that the metadata describes: make it contiguous first",
                    source.shape.text()
                )));
            }
            return self.push_on(py, &publisher, &described, source, handle.unwrap_or(0), stream);
        }
        if handle.is_some() {
            return Err(errors::device("the array is in CPU memory, which has no streams: leave out the stream"));
        }
        let pushed = py.detach(|| match is_one_run {
            true => raw::with_bytes(source.address, bytes, |bytes| publisher.push(&described, bytes)),
            false => publisher.push_with(&described, |block| {
                // Cannot fail: `plan` was checked against the bytes that the metadata describes, which is the block's size.
                let _ = raw::gather(&plan, source.address, block);
            }),
        });
        pushed.map(Into::into).map_err(|error| errors::of_publish(&error))
    }

    /// Publishes several loans of this publisher, in their order, and wakes each sleeping subscriber once for all of them. Returns their handles.
    ///
    /// The bytes must be complete: a loan that a stream fills is refused (`loan.publish` is in stream order). An exception has the `index` of the
    /// loan that failed. If that loan is of another publisher, not open, twice in the batch or a stream's, or its device cannot fill it, none is
    /// published; only a lost slot or a damaged topic can end the batch in the middle. Loans with a `handle` are published. The others stay open, but
    /// arrays that were made of them before may be read-only; make new ones. A loan is discarded if its device cannot fill it, or if it ends the
    /// batch in the middle.
    ///
    /// >>> publisher = node.publisher("imu", rgaps.Tensor)
    /// >>> subscriber = node.subscriber("imu", rgaps.Tensor)
    /// >>> loans = [publisher.loan(rgaps.Tensor((6,), "float32")) for _ in range(8)]
    /// >>> for number, loan in enumerate(loans):
    /// ...     np.asarray(loan)[:] = number
    /// >>> [handle.sequence for handle in publisher.publish_all(loans)]
    /// [1, 2, 3, 4, 5, 6, 7, 8]
    /// >>> [int(np.asarray(sample)[0]) for sample in subscriber.take_all()]
    /// [0, 1, 2, 3, 4, 5, 6, 7]
    fn publish_all(&self, py: Python<'_>, loans: &Bound<'_, PyAny>) -> PyResult<Vec<MessageHandle>> {
        let publisher = self.cell.get()?;
        let loans = loans.try_iter()?.map(|loan| Ok(loan?.cast_into::<Loan>()?)).collect::<PyResult<_>>()?;
        batch::publish_all(py, &publisher, loans)
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

    /// Counters of this publisher and its pool.
    ///
    /// >>> publisher = node.publisher("raw", rgaps.Bytes)
    /// >>> handle = publisher.push(b"hello")
    /// >>> publisher.statistics.published, publisher.statistics.published_bytes
    /// (1, 5)
    #[getter]
    fn statistics(&self, py: Python<'_>) -> PyResult<PublisherStatistics> {
        let publisher = self.cell.get()?;
        self.cell.give_up();
        Ok(py.detach(|| publisher.statistics()).into())
    }

    /// Subscribers on this host; each remote host that wants the topic counts as one.
    ///
    /// >>> publisher = node.publisher("raw", rgaps.Bytes)
    /// >>> publisher.subscriber_count
    /// 0
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> publisher.subscriber_count
    /// 1
    #[getter]
    fn subscriber_count(&self, py: Python<'_>) -> PyResult<usize> {
        let publisher = self.cell.get()?;
        Ok(py.detach(|| publisher.subscriber_count()))
    }

    /// Closes the publisher. Subscribers can still read what was published.
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

    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, pyo3::types::PyType>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        generic(class, item)
    }

    fn __repr__(&self) -> String {
        let state = if self.cell.lock().is_some() { "" } else { ", closed" };
        format!("<rgaps.Publisher of {}{state}>", self.cell.topic)
    }
}

impl Publisher {
    /// Copies on the device, behind the work enqueued on the stream so far.
    fn push_on(
        &self,
        py: Python<'_>,
        publisher: &DynamicPublisher,
        described: &DynamicMeta,
        source: Source,
        handle: u64,
        object: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MessageHandle> {
        let Some(cuda) = self.cell.node.backend().as_cuda() else {
            return Err(errors::device(
                "the array is on a GPU, and this host's pools are in host memory: push array.cpu(), or start rgapsd with --device cuda",
            ));
        };
        let own = cuda.gpu().properties().ordinal;
        if let Some(other) = source.ordinal.filter(|other| i64::from(*other) != i64::from(own)) {
            return Err(errors::device(&format!(
                "the array is on cuda:{other}, and this node works on cuda:{own}: move it there first"
            )));
        }
        let stream = self.cell.node.borrow_stream(handle, object)?;
        if let Some(producer) = source.stream {
            let event = raw::borrow_stream(cuda, producer).record();
            stream.wait(&event, DEVICE_TIMEOUT).map_err(|error| errors::of_device(&error))?;
        }
        let part = raw::device_part(source.address, described.payload_bytes());
        // A capturing stream will refuse the copy. Check now: its handle may be invalid by the time of the next check.
        let takes_work = stream.check().is_ok();
        let pushed = py.detach(|| publisher.push_on(described, &part, &stream));
        // Even after an error, the copy may have been started.
        if takes_work {
            self.cell.sent().push((stream.record(), source.keep));
        }
        pushed.map(Into::into).map_err(|error| errors::of_publish(&error))
    }
}

fn with_header(
    meta: DynamicMeta,
    stamp: Option<u64>,
    frame_id: Option<&str>,
    user: Option<&[u8]>,
) -> PyResult<DynamicMeta> {
    Ok(match meta {
        DynamicMeta::Bytes(meta) => meta::with_header::<Bytes>(meta, stamp, frame_id, user)?.into(),
        DynamicMeta::Image(meta) => meta::with_header::<Image>(meta, stamp, frame_id, user)?.into(),
        DynamicMeta::PointCloud(meta) => meta::with_header::<PointCloud>(meta, stamp, frame_id, user)?.into(),
        DynamicMeta::Tensor(meta) => meta::with_header::<Tensor>(meta, stamp, frame_id, user)?.into(),
    })
}
