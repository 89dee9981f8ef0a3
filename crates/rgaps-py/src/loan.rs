//! Loans: blocks of a publisher's pool that are being filled.

use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rgaps::device::Stream;
use rgaps::dlpack::{DLDevice, DeviceRange};
use rgaps::dynamic::{DynamicLoan, DynamicMeta};

use crate::handle::MessageHandle;
use crate::loan_cell::LoanCell;
use crate::node_cell::NodeCell;
use crate::raw::Buffer;
use crate::source::Source;
use crate::view::{Holder, View};
use crate::{errors, layout, meta, raw, stream};

/// A block of the publisher's pool, to fill in place and publish without a copy.
///
/// `with publisher.loan(meta) as loan: numpy.asarray(loan)[:] = ...` publishes at the end, or frees the block if an exception is raised. A reused
/// block still holds its old bytes: fill all of it. Publishing makes numpy arrays of it read-only. Do not write through other libraries' arrays
/// after that, since subscribers read the same memory.
///
/// >>> publisher = node.publisher("camera/front", rgaps.Image)
/// >>> with publisher.loan(rgaps.Image(640, 480, "rgb8")) as loan:
/// ...     np.asarray(loan)[:] = 128
/// >>> loan.handle.sequence
/// 1
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Loan {
    cell: Arc<LoanCell>,
    topic: String,
    /// The stream on which `with` publishes.
    stream: Option<u64>,
    handle: OnceLock<MessageHandle>,
}

impl Loan {
    pub(crate) fn new(loan: DynamicLoan, node: Arc<NodeCell>, topic: String, stream: Option<u64>) -> Self {
        let cell = LoanCell::new(loan, node);
        Self { cell: Arc::new(cell), topic, stream, handle: OnceLock::new() }
    }

    fn make_view(&self, field: Option<&str>) -> PyResult<View> {
        let device = match self.cell.node.backend().as_cuda() {
            Some(cuda) => DLDevice::cuda(cuda.gpu().properties().ordinal),
            None => DLDevice::CPU,
        };
        let (meta, range) = self.cell.with(|loan| {
            let meta = loan.meta();
            let bytes = meta.payload_bytes();
            let address = if bytes > 0 { loan.device_address()? } else { 0 };
            Ok((meta, DeviceRange { address, bytes, device, is_read_only: false }))
        })?;
        View::new(Holder::Loan(self.cell.clone()), self.cell.node.clone(), &meta, range, field, None)
    }

    fn publish_and_note(&self, py: Python<'_>, stream: Option<Stream>) -> PyResult<MessageHandle> {
        let handle = self.cell.publish(py, stream)?;
        Ok(self.note(handle))
    }

    /// Notes that it was published.
    pub(crate) fn note(&self, handle: MessageHandle) -> MessageHandle {
        self.handle.get_or_init(|| handle).clone()
    }

    pub(crate) fn cell(&self) -> &LoanCell {
        &self.cell
    }
}

#[pymethods]
impl Loan {
    /// The metadata. You may change it until the loan is published, as long as it describes the same number of bytes.
    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let found: DynamicMeta = self.cell.with(|loan| Ok(loan.meta()))?;
        meta::to_python(py, found)
    }

    #[setter]
    fn set_meta(&self, meta: &Bound<'_, PyAny>) -> PyResult<()> {
        let meta = meta::of_python(meta)?;
        self.cell.with(|loan| loan.set_meta(&meta))
    }

    /// Bytes of the block.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.cell.with(|loan| Ok(loan.meta().payload_bytes()))
    }

    /// Address of the block: a device address, or a CPU pointer.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        self.cell.with(|loan| loan.device_address())
    }

    /// The whole block as an array.
    #[getter]
    fn view(&self) -> PyResult<View> {
        self.make_view(None)
    }

    /// One field of the points of a cloud, as an array.
    ///
    /// >>> meta = rgaps.PointCloud.packed(1000, {"x": "float32", "y": "float32", "z": "float32"})
    /// >>> loan = node.publisher("points", rgaps.PointCloud).loan(meta)
    /// >>> for name in ("x", "y", "z"):
    /// ...     np.asarray(loan.field(name))[:] = 0
    /// >>> loan.publish().payload_bytes
    /// 12000
    fn field(&self, name: &str) -> PyResult<View> {
        self.make_view(Some(name))
    }

    /// Copies an array of the same shape and type, with any strides, into the block. Releases the GIL meanwhile.
    ///
    /// >>> publisher = node.publisher("camera/front", rgaps.Image)
    /// >>> upside_down = np.zeros((480, 640, 3), np.uint8)[::-1]
    /// >>> with publisher.loan(rgaps.Image(640, 480, "rgb8")) as loan:
    /// ...     loan.copy_from(upside_down)
    /// >>> publisher.statistics.published
    /// 1
    fn copy_from(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = Source::of(array, 0)?;
        if source.is_cuda {
            return Err(errors::device(
                "copy_from takes arrays in CPU memory: torch.from_dlpack(loan).copy_(array) copies on the GPU",
            ));
        }
        let wanted = self.cell.with(|loan| Ok(loan.meta()))?;
        let plan = layout::gather(&wanted, &source.shape)?;
        if self.cell.node.backend().as_cuda().is_some() {
            let staging = Buffer::of(self.cell.staging(py)?.as_any())?;
            py.detach(|| raw::gather_into_staging(&plan, source.address, &staging, wanted.payload_bytes()))
                .map_err(|_| errors::metadata("the array does not fit into the block"))?;
            return Ok(());
        }
        // Move the loan out of the cell, so that no lock is held without the GIL. A publish meanwhile gets an error: the loan is in use.
        let mut loan = self.cell.take()?;
        let copied = py.detach(|| raw::gather(&plan, source.address, loan.bytes_mut()));
        self.cell.put_back(loan);
        copied.map_err(|_| errors::metadata("the array does not fit into the block"))
    }

    /// Publishes the message: in the order of `stream`, or, on a GPU, behind the work of the streams that arrays of the loan were made for.
    ///
    /// >>> publisher = node.publisher("raw", rgaps.Bytes)
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> loan = publisher.loan(rgaps.Bytes(5))
    /// >>> np.asarray(loan)[:] = 7
    /// >>> handle = loan.publish()
    /// >>> subscriber.take_by_handle(handle).tobytes()
    /// b'\x07\x07\x07\x07\x07'
    #[pyo3(signature = (stream = None))]
    fn publish(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<MessageHandle> {
        let stream = match stream::handle(stream)? {
            Some(handle) => Some(self.cell.node.borrow_stream(handle, stream)?),
            None => None,
        };
        self.publish_and_note(py, stream)
    }

    /// Frees the block without publishing it. Does nothing if the loan is already published or discarded.
    ///
    /// >>> publisher = node.publisher("raw", rgaps.Bytes)
    /// >>> loan = publisher.loan(rgaps.Bytes(1000))
    /// >>> loan.discard()
    /// >>> publisher.statistics.published, publisher.statistics.used_bytes
    /// (0, 0)
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let loan = self.cell.lock().take();
        if let Some(loan) = loan {
            self.cell.close_arrays(py)?;
            py.detach(|| drop(loan));
        }
        Ok(())
    }

    /// The message's handle; None until it is published.
    #[getter]
    fn handle(&self) -> Option<MessageHandle> {
        self.handle.get().cloned()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _error: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() {
            return self.discard(py);
        }
        if self.cell.lock().is_some() {
            let stream = self.stream.map(|handle| self.cell.node.borrow_stream(handle, None)).transpose()?;
            self.publish_and_note(py, stream)?;
        }
        Ok(())
    }

    /// See the Python array API; DLPack 1.1. The array may be written until the loan is published.
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

    /// The block as a numpy array: in place, or, for a block on a GPU, CPU memory that is copied when the loan is published.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.make_view(None)?.array(py, dtype, copy)
    }

    /// Version 3. Absent if the block is in host memory.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.make_view(None)?.cuda_interface(py)
    }

    fn __repr__(&self) -> String {
        let state = match (&*self.cell.lock(), self.handle.get()) {
            (Some(loan), _) => format!("{} B", loan.meta().payload_bytes()),
            (None, Some(handle)) => format!("published as {}", handle.sequence),
            (None, None) => "discarded".to_owned(),
        };
        format!("<rgaps.Loan of {}: {state}>", self.topic)
    }
}
