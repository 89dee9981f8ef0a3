//! Arrays given to other libraries: a payload or a field of a cloud, through DLPack, numpy's protocol or CUDA's.
//!
//! ```text
//!   Sample, Loan, field() ──▶ View ──__dlpack__──▶ capsule, which holds the message or the loan
//!                                 ──__array__──▶ numpy array ──base──▶ Memory, which holds them
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rgaps::device::Stream;
use rgaps::dlpack::{DLDevice, DeviceRange, ManagedTensor, UnmanagedTensor};
use rgaps::dynamic::{DynamicMeta, DynamicSample};
use rgaps::types::{DType, Tensor};

use crate::loan_cell::LoanCell;
use crate::meta::{array_type, cloud};
use crate::node_cell::NodeCell;
use crate::{errors, layout, raw, stream};

/// The owner of a view's memory.
#[derive(Clone)]
pub(crate) enum Holder {
    Sample(DynamicSample),
    Loan(Arc<LoanCell>),
}

/// A payload, or one field of the points of a cloud, as an array: for `numpy.asarray`, `torch.from_dlpack`, `cupy.from_dlpack`.
///
/// It and every array made of it hold the message.
///
/// >>> subscriber = node.subscriber("points", rgaps.PointCloud)
/// >>> points = np.zeros(4, [("x", "f4"), ("y", "f4")])
/// >>> handle = node.publisher("points", rgaps.PointCloud).push(points)
/// >>> np.asarray(subscriber.wait(timeout=1.0).field("x")).shape
/// (4,)
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct View {
    pub(crate) holder: Holder,
    pub(crate) node: Arc<NodeCell>,
    tensor: Tensor,
    is_bigendian: bool,
    range: DeviceRange,
    /// The structured type of a point, if the view is of a whole cloud.
    structured: Option<rgaps::types::PointCloud>,
    /// The stream that a sample was taken on.
    taken_on: Option<u64>,
    /// Whether a consumer got the GPU address without naming the stream that it works on.
    is_exported: AtomicBool,
}

impl View {
    /// Makes a view of a whole payload, or of one field.
    pub(crate) fn new(
        holder: Holder,
        node: Arc<NodeCell>,
        meta: &DynamicMeta,
        range: DeviceRange,
        field: Option<&str>,
        taken_on: Option<u64>,
    ) -> PyResult<Self> {
        let is_bigendian = match meta {
            DynamicMeta::Image(image) => image.is_bigendian,
            DynamicMeta::PointCloud(cloud) => cloud.is_bigendian,
            DynamicMeta::Bytes(_) | DynamicMeta::Tensor(_) => false,
        };
        let plain = layout::without_byte_order(meta);
        let tensor = match (field, &plain) {
            (None, plain) => plain.tensor(),
            (Some(name), DynamicMeta::PointCloud(cloud)) => cloud.field_tensor(name),
            (Some(_), _) => {
                return Err(errors::metadata(&format!(
                    "only a point cloud has fields, and this is of {}",
                    meta.kind()
                )));
            }
        };
        let tensor = tensor.map_err(|error| errors::of_view(&error))?;
        let structured = match meta {
            DynamicMeta::PointCloud(cloud) if field.is_none() && !cloud.fields().is_empty() => Some(*cloud),
            _ => None,
        };
        let is_bigendian = is_bigendian && tensor.dtype().bytes() > 1;
        let is_exported = AtomicBool::new(false);
        Ok(Self { holder, node, tensor, is_bigendian, range, structured, taken_on, is_exported })
    }

    fn unmanaged(&self) -> PyResult<UnmanagedTensor> {
        if self.is_bigendian {
            return Err(PyBufferError::new_err(
                "the elements are big-endian (high bytes first), which DLPack cannot express: use numpy.asarray",
            ));
        }
        UnmanagedTensor::new(&self.tensor, &self.range).map_err(|error| errors::of_view(&error))
    }

    fn is_on_cpu(&self) -> bool {
        self.range.device == DLDevice::CPU
    }

    /// `__dlpack__`, with the arguments of the array API.
    pub(crate) fn dlpack(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let described = self.unmanaged()?;
        let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let own = (described.device().device_type, described.device().device_id);
        let cpu = (DLDevice::CPU.device_type, DLDevice::CPU.device_id);
        let wanted = dl_device.unwrap_or(own);
        if wanted != own && wanted != cpu {
            return Err(PyBufferError::new_err(format!(
                "the payload is on DLPack's device {own:?} and is not copied to {wanted:?}: take it here and move it there"
            )));
        }
        if copy == Some(true) || wanted != own {
            if copy == Some(false) {
                return Err(PyBufferError::new_err("the payload is in device memory: the CPU gets it by a copy only"));
            }
            if wanted != cpu {
                return Err(PyBufferError::new_err(
                    "__dlpack__ makes no copy on the device: take the array as it is and copy it, for example with tensor.clone()",
                ));
            }
            return self.copied(py, is_versioned);
        }
        let stream = self.consumer(stream)?;
        let tensor = match &self.holder {
            Holder::Sample(message) => {
                py.detach(|| message.to_dlpack(&described, stream.as_ref())).map_err(|error| errors::of_take(&error))?
            }
            Holder::Loan(cell) => LoanCell::manage(cell, &described)?,
        };
        raw::capsule(py, tensor, is_versioned, 0)
    }

    /// The stream of the tensor's consumer, if there is one that must be made to wait.
    fn consumer(&self, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Stream>> {
        let number = stream.and_then(|stream| stream.extract::<i64>().ok());
        if self.is_on_cpu() {
            return match (stream.is_none(), number) {
                (true, _) | (_, Some(-1)) => Ok(None),
                _ => Err(PyValueError::new_err("CPU memory has no streams: stream must be None")),
            };
        }
        if number == Some(-1) {
            return Ok(None);
        }
        let handle = stream::handle(stream)?.unwrap_or(0);
        if let Holder::Loan(cell) = &self.holder {
            cell.note_stream(handle);
        }
        self.node.borrow_stream(handle, stream.filter(|_| number.is_none())).map(Some)
    }

    /// A CPU copy that the consumer owns.
    fn copied(&self, py: Python<'_>, is_versioned: bool) -> PyResult<Py<PyAny>> {
        let bytes = self.host_copy(py)?;
        let range = DeviceRange {
            address: bytes.as_ptr() as u64,
            bytes: self.range.bytes,
            device: DLDevice::CPU,
            is_read_only: false,
        };
        let described = UnmanagedTensor::new(&self.tensor, &range).map_err(|error| errors::of_view(&error))?;
        raw::capsule(py, described.manage(bytes), is_versioned, raw::IS_COPIED)
    }

    /// Allocated as 16-byte words, so that elements of any type are aligned.
    fn host_copy(&self, py: Python<'_>) -> PyResult<Vec<u128>> {
        let count = usize::try_from(self.range.bytes.div_ceil(16)).unwrap_or(usize::MAX);
        match &self.holder {
            Holder::Sample(message) => py
                .detach(|| {
                    let from = message.to_host()?;
                    let mut words = vec![0_u128; count];
                    for (word, part) in words.iter_mut().zip(from.chunks(16)) {
                        let mut bytes = [0; 16];
                        bytes[..part.len()].copy_from_slice(part);
                        *word = u128::from_ne_bytes(bytes);
                    }
                    Ok(words)
                })
                .map_err(|error: rgaps::TakeError| errors::of_take(&error)),
            Holder::Loan(_) => Err(PyBufferError::new_err("a loan cannot be copied out: it is still being filled")),
        }
    }

    /// A numpy array of the memory, or of a CPU copy if the CPU cannot reach it.
    pub(crate) fn array<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = self.plain_array(py)?;
        let array = match &self.structured {
            Some(points) => as_structures(&array, points)?,
            None => array,
        };
        if let Holder::Loan(cell) = &self.holder {
            cell.note_array(&array)?;
        }
        let cast = dtype.map(|dtype| py.import("numpy")?.call_method1("dtype", (dtype,))).transpose()?;
        let cast = match cast {
            Some(dtype) if !array.getattr("dtype")?.eq(&dtype)? => Some(dtype),
            _ => None,
        };
        match (cast, copy) {
            (Some(_), Some(false)) => Err(PyValueError::new_err("another dtype needs a copy")),
            (Some(dtype), _) => array.call_method1("astype", (dtype,)),
            (None, Some(true)) => array.call_method0("copy"),
            (None, _) => Ok(array),
        }
    }

    fn plain_array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.tensor.dtype();
        let Some(kind) = array_type(dtype, self.is_bigendian) else {
            return Err(PyBufferError::new_err(format!(
                "numpy has no element type {dtype}: use torch.from_dlpack, or view(\"uint{}\")",
                dtype.bytes() * 8
            )));
        };
        self.interpreted(py, &kind)
    }

    /// The memory as an array with this element type of the array interface.
    fn interpreted<'py>(&self, py: Python<'py>, kind: &str) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        let element = self.tensor.dtype().bytes() as i64;
        let shape = PyTuple::new(py, self.tensor.shape())?;
        let strides = PyTuple::new(py, self.tensor.strides().iter().map(|stride| stride * element))?;
        let (base, memory) = match &self.holder {
            Holder::Sample(message) => {
                let base = py.detach(|| message.to_host().map(|bytes| bytes.as_ptr() as u64));
                (base.map_err(|error| errors::of_take(&error))?, Memory::of(self.holder.clone()))
            }
            Holder::Loan(cell) if self.is_on_cpu() => {
                // The pool stays mapped after the loan is gone, as long as there is an array.
                let pool = LoanCell::manage(
                    cell,
                    &UnmanagedTensor::new(&self.tensor, &self.range).map_err(|error| errors::of_view(&error))?,
                )?;
                (self.range.address, Memory { interface: None, _keep: Keep::Pool { _pool: pool.into() } })
            }
            Holder::Loan(cell) => {
                // CPU memory, copied into the block when the loan is published.
                let keywords = PyDict::new(py);
                keywords.set_item("buffer", cell.staging(py)?)?;
                keywords.set_item("offset", self.tensor.byte_offset())?;
                keywords.set_item("strides", strides)?;
                return numpy.getattr("ndarray")?.call((shape, kind), Some(&keywords));
            }
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("data", (base + self.tensor.byte_offset(), self.range.is_read_only))?;
        interface.set_item("shape", shape)?;
        interface.set_item("strides", strides)?;
        interface.set_item("typestr", kind)?;
        let memory = Py::new(py, Memory { interface: Some(interface.unbind()), ..memory })?;
        numpy.call_method1("asarray", (memory,))
    }

    /// `__cuda_array_interface__`, version 3.
    pub(crate) fn cuda_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.is_on_cpu() {
            return Err(PyAttributeError::new_err("__cuda_array_interface__: the payload is in host memory"));
        }
        let described = self.unmanaged()?;
        let dtype = described.dtype();
        let kind = array_type(dtype, false).ok_or_else(|| {
            PyAttributeError::new_err(format!("__cuda_array_interface__ cannot express {dtype}: use DLPack"))
        })?;
        let element = dtype.bytes() as i64;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, described.shape())?)?;
        interface.set_item("typestr", kind)?;
        interface.set_item("data", (described.data(), described.is_read_only()))?;
        interface.set_item("strides", PyTuple::new(py, described.strides().iter().map(|stride| stride * element))?)?;
        interface.set_item("stream", self.taken_on.map(stream::for_interface))?;
        if let Holder::Loan(cell) = &self.holder {
            cell.note_stream(0);
        }
        self.is_exported.store(true, Ordering::Release);
        Ok(interface)
    }

    pub(crate) fn device(&self) -> (i32, i32) {
        (self.range.device.device_type, self.range.device.device_id)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // A consumer of the exported address may still use it on the GPU. The interface requires it to order its work before that stream's.
        if let (Holder::Sample(message), true) = (&self.holder, *self.is_exported.get_mut()) {
            self.node.release_behind(message.clone(), self.taken_on);
        }
    }
}

#[pymethods]
impl View {
    /// Number of elements in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// Step in elements (not bytes) in each dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.strides())
    }

    /// Type of the elements, by name.
    #[getter]
    fn dtype(&self) -> String {
        self.tensor.dtype().to_string()
    }

    /// See the Python array API; DLPack 1.1.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        self.dlpack(py, stream, max_version, dl_device, copy)
    }

    /// DLPack's device: (1, 0) is the CPU, (2, n) a GPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        self.device()
    }

    /// The memory as a numpy array.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.array(py, dtype, copy)
    }

    /// Version 3. Absent if the payload is in host memory. The sample releases the message as it does for its own address.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.cuda_interface(py)
    }

    /// The same elements as a numpy array of another type of equal size, such as "uint16" for bfloat16.
    fn view<'py>(&self, py: Python<'py>, dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let other = crate::meta::dtype_of(dtype)?;
        let own: DType = self.tensor.dtype();
        match array_type(other, false).filter(|_| other.bytes() == own.bytes()) {
            Some(kind) => self.interpreted(py, &kind),
            None => Err(PyValueError::new_err(format!("{own} cannot be viewed as {other}: their sizes differ"))),
        }
    }

    fn __repr__(&self) -> String {
        format!("<rgaps.View of {:?} {}>", self.tensor.shape(), self.tensor.dtype())
    }
}

/// Bytes as numpy structures, one for each point.
fn as_structures<'py>(bytes: &Bound<'py, PyAny>, points: &rgaps::types::PointCloud) -> PyResult<Bound<'py, PyAny>> {
    let py = bytes.py();
    let dtype = py.import("numpy")?.call_method1("dtype", (cloud::structured(py, points)?,))?;
    bytes.call_method1("view", (dtype,))?.get_item((py.Ellipsis(), 0))
}

/// Keeps memory alive; its content is never used.
enum Keep {
    Sample { _message: Holder },
    Pool { _pool: Mutex<ManagedTensor> },
}

/// The `base` of numpy arrays: the memory that they view.
#[pyclass(frozen, module = "rgaps")]
struct Memory {
    interface: Option<Py<PyDict>>,
    _keep: Keep,
}

impl Memory {
    fn of(holder: Holder) -> Self {
        Self { interface: None, _keep: Keep::Sample { _message: holder } }
    }
}

#[pymethods]
impl Memory {
    #[getter]
    fn __array_interface__(&self, py: Python<'_>) -> Option<Py<PyDict>> {
        self.interface.as_ref().map(|interface| interface.clone_ref(py))
    }
}
