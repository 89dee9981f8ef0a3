//! Metadata of tensors.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rgaps::types::DType;

use super::{dtype_of, metadata, with_header};
use crate::source::Source;
use crate::{errors, layout};

/// A tensor, as in DLPack.
///
/// `dtype` is a name such as float32, or a dtype of numpy or torch. `strides` count elements; by default the tensor is in C order.
///
/// >>> tensor = rgaps.Tensor([1, 3, 224, 224], "float32")
/// >>> tensor.strides, tensor.nbytes
/// ((150528, 50176, 224, 1), 602112)
#[pyclass(frozen, eq, hash, module = "rgaps")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tensor(pub(crate) rgaps::types::Tensor);

metadata!(Tensor {
    #[new]
    #[pyo3(signature = (shape, dtype = None, *, strides = None, byte_offset = 0, stamp = None, frame_id = None, user = None))]
    #[allow(clippy::too_many_arguments)] // Keywords, in Python.
    fn new(
        shape: Vec<i64>,
        dtype: Option<&Bound<'_, PyAny>>,
        strides: Option<Vec<i64>>,
        byte_offset: u64,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<Self> {
        let dtype = dtype.map_or(Ok(DType::FLOAT32), dtype_of)?;
        let packed = |shape: &[i64]| rgaps::types::Tensor::new(dtype, shape);
        let made = match strides {
            Some(strides) => rgaps::types::Tensor::strided(dtype, &shape, &strides, byte_offset),
            None if byte_offset == 0 => packed(&shape),
            None => packed(&shape).and_then(|tensor| {
                rgaps::types::Tensor::strided(dtype, &shape, tensor.strides(), byte_offset)
            }),
        };
        with_header(made.map_err(|error| errors::of_meta(&error))?, stamp, frame_id, user).map(Self)
    }

    /// Metadata for a copy of an array in C order.
    ///
    /// >>> tensor = rgaps.Tensor.like(np.zeros((2, 3), np.float16), frame_id="activations")
    /// >>> tensor.shape, tensor.dtype
    /// ((2, 3), 'float16')
    #[staticmethod]
    #[pyo3(signature = (array, *, stamp = None, frame_id = None, user = None))]
    fn like(
        array: &Bound<'_, PyAny>,
        stamp: Option<u64>,
        frame_id: Option<&str>,
        user: Option<&[u8]>,
    ) -> PyResult<Self> {
        let tensor = layout::tensor_like(&Source::shape_of(array)?)?;
        with_header(tensor, stamp, frame_id, user).map(Self)
    }

    /// Number of elements in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    /// Step in elements (not bytes) in each dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.strides())
    }

    /// Name of the element type.
    #[getter]
    fn dtype(&self) -> String {
        self.0.dtype().to_string()
    }

    /// Offset of the first element in the payload, in bytes.
    #[getter]
    fn byte_offset(&self) -> u64 {
        self.0.byte_offset()
    }

    fn __repr__(&self) -> String {
        format!("rgaps.Tensor({:?}, '{}')", self.0.shape(), self.0.dtype())
    }
});
