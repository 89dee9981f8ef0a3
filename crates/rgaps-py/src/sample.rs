//! Samples: taken messages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};
use rgaps::Readiness;
use rgaps::dynamic::{DynamicMeta, DynamicSample};

use crate::annotations::generic;
use crate::handle::MessageHandle;
use crate::info::MessageInfo;
use crate::node_cell::NodeCell;
use crate::view::{Holder, View};
use crate::{errors, meta, stream};

struct State {
    /// The sample's own hold of the message. Arrays have holds of their own.
    message: Option<DynamicSample>,
    is_released: bool,
    /// Whether `__cuda_array_interface__` was read. Users of that address hold the sample object, and nothing else.
    is_exported: bool,
}

/// A taken message, in the memory where its publisher wrote it or, from another host, where the manager did.
///
/// `numpy.asarray(sample)`, `torch.from_dlpack(sample)` and `cupy.from_dlpack(sample)` are arrays of that memory. The message is released when the
/// sample (by `release`, at the end of `with`, or with the object) and all its arrays are gone. The memory is mapped read-only, and numpy
/// refuses to write there. A library older than DLPack 1.0 does not know that; writing through its array ends the program with SIGSEGV.
///
/// >>> subscriber = node.subscriber("camera/front", rgaps.Image)
/// >>> handle = node.publisher("camera/front", rgaps.Image).push(np.full((480, 640, 3), 7, np.uint8))
/// >>> with subscriber.wait(timeout=1.0) as sample:
/// ...     picture = np.asarray(sample)
/// ...     picture.shape, int(picture.max()), sample.info.route
/// ((480, 640, 3), 7, 'in place')
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Sample {
    state: Mutex<State>,
    node: Arc<NodeCell>,
    topic: String,
    meta: DynamicMeta,
    info: MessageInfo,
    handle: rgaps::MessageHandle,
    taken_on: Option<u64>,
}

impl Sample {
    pub(crate) fn new(message: DynamicSample, node: Arc<NodeCell>, topic: String, taken_on: Option<u64>) -> Self {
        let (meta, info) = (message.meta(), MessageInfo::of(message.info(), message.taken_ns()));
        let handle = message.handle();
        let state = Mutex::new(State { message: Some(message), is_released: false, is_exported: false });
        Self { state, node, topic, meta, info, handle, taken_on }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn message(&self) -> PyResult<DynamicSample> {
        let message = {
            let state = self.lock();
            state.message.clone().filter(|_| !state.is_released)
        };
        // Unlock before making an exception: that runs Python code, which may switch threads.
        match message {
            Some(message) => Ok(message),
            None => Err(errors::released(&format!(
                "the sample of {}, message {}, is released: its memory may hold another message by now",
                self.topic, self.info.sequence
            ))),
        }
    }

    pub(crate) fn any_meta(&self) -> DynamicMeta {
        self.meta
    }

    fn make_view(&self, field: Option<&str>) -> PyResult<View> {
        let message = self.message()?;
        let range = message.device_range().map_err(|error| errors::of_take(&error))?;
        View::new(Holder::Sample(message), self.node.clone(), &self.meta, range, field, self.taken_on)
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = state.message.take().filter(|_| state.is_exported) {
            self.node.release_behind(message, self.taken_on);
        }
    }
}

#[pymethods]
impl Sample {
    /// The typed metadata. Valid after the sample's release.
    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        meta::to_python(py, self.meta)
    }

    /// Its origin, its route and its time at each stage. Valid after the sample's release.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> info = subscriber.take().info
    /// >>> info.sequence, info.origin, info.route, info.taken_ns >= info.published_ns
    /// (1, 'pushed', 'in place', True)
    #[getter]
    fn info(&self) -> MessageInfo {
        self.info.clone()
    }

    /// The handle that names the message outside RGAPS. Valid after the sample's release.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> sample = subscriber.take()
    /// >>> sample.handle == handle, len(bytes(sample.handle))
    /// (True, 88)
    #[getter]
    fn handle(&self) -> MessageHandle {
        self.handle.into()
    }

    /// The topic's fully qualified name.
    #[getter]
    fn topic(&self) -> &str {
        &self.topic
    }

    /// Bytes of the payload.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.info.bytes
    }

    /// Whether the bytes are there: "ready"; for a sample taken on a stream also "pending" or "poisoned".
    #[getter]
    fn readiness(&self) -> PyResult<&'static str> {
        Ok(match self.message()?.readiness() {
            Readiness::Ready => "ready",
            Readiness::Pending => "pending",
            Readiness::Poisoned => "poisoned",
        })
    }

    /// Where the payload is mapped from: ((device, inode) of the pool's memory, offset in it). Equal for all subscribers on the host.
    ///
    /// >>> first, second = node.subscriber("raw", rgaps.Bytes), node.subscriber("raw", rgaps.Bytes)
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> first.take().mapped_from == second.take().mapped_from  # one copy for both
    /// True
    #[getter]
    fn mapped_from(&self) -> PyResult<((u64, u64), u64)> {
        Ok(self.message()?.mapped_from())
    }

    /// Address of the payload: a device address, or a CPU pointer.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        let range = self.message()?.device_range();
        range.map(|range| range.address).map_err(|error| errors::of_take(&error))
    }

    /// Whether the CPU reads the payload in place.
    #[getter]
    fn is_in_place(&self) -> PyResult<bool> {
        Ok(self.message()?.is_in_place())
    }

    /// Whether `release` was called.
    #[getter]
    fn released(&self) -> bool {
        self.lock().is_released
    }

    /// The whole payload as an array.
    #[getter]
    fn view(&self) -> PyResult<View> {
        self.make_view(None)
    }

    /// One field of the points of a cloud, as an array.
    ///
    /// >>> subscriber = node.subscriber("points", rgaps.PointCloud)
    /// >>> cloud = np.zeros(1000, np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")]))
    /// >>> handle = node.publisher("points", rgaps.PointCloud).push(cloud)
    /// >>> z = subscriber.take().field("z")
    /// >>> z.shape, z.strides, z.dtype
    /// ((1000,), (3,), 'float32')
    fn field(&self, name: &str) -> PyResult<View> {
        self.make_view(Some(name))
    }

    /// A copy of the payload.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> subscriber.take().tobytes()
    /// b'hello'
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let message = self.message()?;
        let fetched = py.detach(|| message.to_host().map(<[u8]>::len)).map_err(|error| errors::of_take(&error))?;
        PyBytes::new_with(py, fetched, |to| {
            let from = message.to_host().map_err(|error| errors::of_take(&error))?;
            py.detach(|| to.copy_from_slice(from));
            Ok(())
        })
    }

    /// Releases the sample's hold of the message: at once, or behind the work enqueued on `stream` so far. Its arrays stay valid.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> handle = node.publisher("raw", rgaps.Bytes).push(b"hello")
    /// >>> sample = subscriber.take()
    /// >>> sample.release()
    /// >>> sample.released, subscriber.statistics.held, sample.info.sequence
    /// (True, 0, 1)
    #[pyo3(signature = (stream = None))]
    fn release(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let on = match stream::handle(stream)? {
            Some(handle) => Some(self.node.borrow_stream(handle, stream)?),
            None => None,
        };
        let message = {
            let mut state = self.lock();
            if state.is_released {
                return Ok(());
            }
            state.is_released = true;
            if state.is_exported { None } else { state.message.take() }
        };
        let Some(message) = message else { return Ok(()) };
        py.detach(|| match &on {
            Some(stream) => message.release_on(stream),
            None => {
                drop(message);
                Ok(())
            }
        })
        .map_err(|error| errors::of_take(&error))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release(py, None)
    }

    /// See the Python array API; DLPack 1.1. The array must not be written.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        self.make_view(None)?.dlpack(py, stream, max_version, dl_device, copy)
    }

    /// DLPack's device: (1, 0) is the CPU, (2, n) a GPU.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        Ok(self.make_view(None)?.device())
    }

    /// The payload as a read-only numpy array: in place, or a copy if it is on a GPU. A cloud has a structured dtype.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.make_view(None)?.array(py, dtype, copy)
    }

    /// Version 3. Absent if the payload is in host memory. Once this is read, the message is held until the object is gone, and then released
    /// behind the work of the stream that the sample was taken on, or of the default stream. Non-blocking streams (CuPy's
    /// `Stream(non_blocking=True)`, all but the first of PyTorch's) are not ordered with the default stream: to use one, take the sample on it.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = self.make_view(None)?.cuda_interface(py)?;
        self.lock().is_exported = true;
        Ok(interface)
    }

    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, item: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        generic(class, item)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let meta = self.meta(py)?;
        let state = if self.released() { ", released" } else { "" };
        Ok(format!("<rgaps.Sample {} of {}: {}{state}>", self.info.sequence, self.topic, meta.bind(py).repr()?))
    }
}
